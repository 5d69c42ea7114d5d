"""Summarizes the measurements in WORK: signal to noise, correlation with the gain, and trainings at equal dollars.

    python -m papers.nitro.boosting.summarise WORK

Writes papers/nitro/results/boosting.json. Intervals are 95 % percentile bootstraps: over blocks of rounds for the
signal-to-noise ratio, over rounds within each training for correlations, over seeds for whole trainings.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import origin
from papers.estimates import spearman
from papers.nitro.boosting.measure import LANCZOS_STEPS, MIDDLE_SIZE, SAME_STEPS, whole_lines
from papers.nitro.boosting.signals import OBJECTIVES
from runtime.records.estimates import interval_estimate

RESULTS = Path(__file__).parents[1] / "results"
RESAMPLES = 2000
WINDOW_ROUNDS = 6
ROUNDS_AVERAGED = 3
TRENDS = ("kl", "explained_variance", "entropy", "episode_return_mean")
"""Signals whose change from the previous rounds' mean is also a signal."""

Rows = list[dict[str, Any]]


# Signal to noise


def signal_to_noise(groups: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Returns the variance between rounds over the variance within a round, by analysis of variance.

    Args:
        groups: Blocks of consecutive rounds, each with at least two measurements per round.

    Returns:
        ``sd_within`` and ``sd_between``: standard deviations of one measurement, and of the rounds' true values in a
        block. ``signal_to_noise``: the squared ratio, with its interval over blocks. ``rounds``.
    """
    blocks = [[np.array(one) for one in block if len(one) > 1] for block in groups]
    blocks = [block for block in blocks if len(block) > 1]
    if not blocks:
        return {"rounds": 0}
    sums = np.array([_sums_of_squares(block) for block in blocks])

    def estimate(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        within, within_freedom, between, between_freedom, inverse_sizes, rounds = np.moveaxis(
            chosen.sum(-2), -1, 0
        )
        within = within / within_freedom
        return within, np.maximum(0.0, between / between_freedom - within * inverse_sizes / rounds)

    within, between = map(float, estimate(sums))
    chosen = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    resampled_within, resampled_between = estimate(sums[chosen])
    has_noise = resampled_within > 0
    return {
        "rounds": sum(map(len, blocks)),
        "blocks": len(blocks),
        "sd_within": within**0.5,
        "sd_between": between**0.5,
        "signal_to_noise": between / within,
        "interval": _interval(resampled_between[has_noise] / resampled_within[has_noise]),
    }


def _sums_of_squares(block: Sequence[np.ndarray]) -> tuple[float, ...]:
    """Returns a block's squares and degrees of freedom within and between rounds, Σ 1/measurements, and its rounds."""
    means = np.array([one.mean() for one in block])
    return (
        sum(((one - one.mean()) ** 2).sum() for one in block),
        sum(len(one) - 1 for one in block),
        ((means - means.mean()) ** 2).sum(),
        len(block) - 1,
        sum(1.0 / len(one) for one in block),
        len(block),
    )


def noise(by_run: dict[str, Rows]) -> dict[str, Any]:
    """Returns the noise of log R by objective and size, of other signals, of subsets and start vectors, and costs."""
    cells: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[str, dict[str, list[float]]] = {
        "subsets": defaultdict(list),
        "starts": defaultdict(list),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    for run, rows in by_run.items():
        for row in rows:
            place = f"{run}/{row['round_index'] // 10}/{row['round_index']}"
            for size, objectives in row["sizes"].items():
                for objective, found in objectives.items():
                    ratio = found["ratio"]
                    cells[f"{objective}, {size} samples"][place].append(
                        None if ratio is None else float(np.log(ratio))
                    )
                    seconds[f"{objective}, {size} samples"].append(found["seconds"])
            for name, value in row["others"].items():
                cells[f"{name}, {MIDDLE_SIZE} samples"][place].append(value)
            for what, spreads in alone.items():
                for objective, found in row.get(what, {}).items():
                    logs = [np.log(one["ratio"]) for one in found if one["ratio"] is not None]
                    if len(logs) > 1:
                        spreads[objective].append(np.var(logs, ddof=1))
    result = {}
    for key, rounds in cells.items():
        blocks: dict[str, list] = defaultdict(list)
        for name, values in rounds.items():
            blocks[name.rpartition("/")[0]].append([value for value in values if value is not None])
        values = [value for found in rounds.values() for value in found]
        result[key] = signal_to_noise(list(blocks.values())) | {
            "undefined": values.count(None),
            "measurements": len(values),
        }
    return {
        "of_independent_batches": result,
        **{
            f"sd_of_{what}_of_one_batch": {
                objective: float(np.mean(found) ** 0.5) for objective, found in spreads.items()
            }
            for what, spreads in alone.items()
        },
        "seconds_median": {key: float(np.median(values)) for key, values in seconds.items()},
    }


def lanczos(rows: Rows) -> dict[str, dict[str, float]]:
    """Returns, by objective and iterations, the median of |log R − log R with the most iterations|."""
    result: dict[str, dict[str, float]] = defaultdict(dict)
    *fewer, most = map(str, LANCZOS_STEPS)
    for objective in OBJECTIVES:
        for steps in fewer:
            pairs = [
                (row["steps"][steps][objective], row["steps"][most][objective]) for row in rows
            ]
            if errors := [
                abs(np.log(one / right))
                for one, right in pairs
                if one is not None and right is not None
            ]:
                result[objective][steps] = float(np.median(errors))
    return dict(result)


def of_own_batch(by_run: dict[str, tuple[Rows, Rows]]) -> dict[str, Any]:
    """Compares R on the batch that trained the policy, as in a run, with R on independent batches.

    Returns, by objective, the mean and standard deviation over rounds of the difference of logarithms, and Spearman's
    ρ of both over all rounds.
    """
    result = {}
    for objective in OBJECTIVES:
        own, independent = [], []
        for signal_rows, noise_rows in by_run.values():
            measured = {
                row["round_index"]: row[f"{objective}-1024"]["ratio"] for row in signal_rows
            }
            anew: dict[int, list[float]] = defaultdict(list)
            for row in noise_rows:
                if (ratio := row["sizes"][str(MIDDLE_SIZE)][objective]["ratio"]) is not None:
                    anew[row["round_index"]].append(np.log(ratio))
            for round_index, logs in anew.items():
                if measured.get(round_index) is not None:
                    own.append(np.log(measured[round_index]))
                    independent.append(np.mean(logs))
        differences = np.array(own) - np.array(independent)
        result[objective] = {"rounds": len(own)} | (
            {
                "difference_mean": float(differences.mean()),
                "difference_sd": float(differences.std(ddof=1)),
                "spearman": float(spearman(np.array(own), np.array(independent))),
            }
            if len(own) > 1
            else {}
        )
    return result


# Correlation with the gain


def gains(rows: Rows, name: str = "boosted") -> dict[int, np.ndarray]:
    """Returns boosting's gain in return by round and repetition, for rounds with at least two."""
    found = _by_round(
        rows, lambda row: np.mean(row[f"returns_{name}"]) - np.mean(row["returns_plain"])
    )
    return {round_index: values for round_index, values in found.items() if len(values) > 1}


def gain_estimates(by_run: Sequence[dict[int, np.ndarray]]) -> dict[str, Any]:
    """Estimates the gain over all rounds of these trainings, resampling rounds within each training."""
    by_round = [np.array([values.mean() for values in gained.values()]) for gained in by_run]
    generator = np.random.default_rng(0)
    resampled = [
        one[generator.integers(len(one), size=(RESAMPLES, len(one)))].mean(axis=1)
        for one in by_round
    ]
    return {
        "mean": float(np.mean([one.mean() for one in by_round])),
        "interval": _interval(np.mean(resampled, axis=0)),
        "trainings": len(by_round),
        "share_above_0": float((np.concatenate(by_round) > 0).mean()),
    }


def gain_spread(by_run: Sequence[dict[int, np.ndarray]]) -> dict[str, Any]:
    """Returns the standard deviation of the rounds' true gains in a training: the possible value of knowing them.

    It is the variance of their means minus the repetitions' noise. Rounds are resampled within each training.
    """
    generator, variances, resampled = np.random.default_rng(0), [], []
    for gained in by_run:
        means = np.array([values.mean() for values in gained.values()])
        noise = np.array([values.var(ddof=1) / len(values) for values in gained.values()])
        chosen = generator.integers(len(means), size=(RESAMPLES, len(means)))
        variances.append(means.var(ddof=1) - noise.mean())
        resampled.append(means[chosen].var(axis=1, ddof=1) - noise[chosen].mean(axis=1))
    return {
        "sd": float(max(0.0, np.mean(variances)) ** 0.5),
        "interval": _interval(np.sqrt(np.maximum(0.0, np.mean(resampled, axis=0)))),
    }


def gains_over_before(rows: Rows, name: str = "boosted") -> dict[int, np.ndarray]:
    """Returns the return after each round minus the return before it, by round and repetition.

    For boosted rounds this is the paper's gain, which ignores the gain of a plain round: Nitro §5.2, Fig. 7.
    """
    before = {
        row["round_index"]: np.mean(row["returns_before"])
        for row in rows
        if "returns_before" in row
    }
    return _by_round(rows, lambda row: np.mean(row[f"returns_{name}"]) - before[row["round_index"]])


def _by_round(rows: Rows, value: Callable[[dict[str, Any]], float]) -> dict[int, np.ndarray]:
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        found[row["round_index"]].append(value(row))
    return {round_index: np.array(values) for round_index, values in sorted(found.items())}


def candidates(rows: Rows) -> dict[str, dict[int, float | None]]:
    """Returns the measured signals by name and round."""
    table: dict[str, dict[int, float | None]] = defaultdict(dict)
    for row in rows:
        for key, value in row.items():
            if isinstance(value, dict):
                for name, part in (
                    ("R", "ratio"),
                    ("eigenvalue_max",) * 2,
                    ("eigenvalue_min",) * 2,
                ):
                    table[f"{name} {key}"][row["round_index"]] = value[part]
            elif key not in ("kind", "round_index", "repetition", "seconds"):
                table[key][row["round_index"]] = value
        table["round_index"][row["round_index"]] = float(row["round_index"])
    for name in [name for name in table if name.startswith("R ")]:
        table[f"{name}, mean of {ROUNDS_AVERAGED} rounds"] = _averaged(table[name])
        table[f"{name}, Nitro's window"] = _windowed(table[name])
    for name in TRENDS:
        if name in table:
            table[f"{name}, trend"] = _trend(table[name])
    return dict(table)


def _averaged(series: dict[int, float | None]) -> dict[int, float | None]:
    averaged = {}
    for index in series:
        logs = [
            np.log(series[i])
            for i in range(index - ROUNDS_AVERAGED + 1, index + 1)
            if series.get(i) is not None
        ]
        averaged[index] = float(np.mean(logs)) if logs else None
    return averaged


def _trend(series: dict[int, float | None]) -> dict[int, float | None]:
    changes = {}
    for index, value in series.items():
        before = [
            series[i] for i in range(index - ROUNDS_AVERAGED, index) if series.get(i) is not None
        ]
        changes[index] = value - float(np.mean(before)) if before and value is not None else None
    return changes


def _windowed(series: dict[int, float | None]) -> dict[int, float | None]:
    """Returns 1 − the scaler's normalized score, so that low values boost. Paper: Nitro §5.3."""
    result, window = {}, []
    for index, value in sorted(series.items()):
        if value is None:
            result[index] = 0.0
            continue
        window = [*window, value][-WINDOW_ROUNDS:]
        low, high = min(window), max(window)
        result[index] = 0.0 if high == low else (value - low) / (high - low)
    return result


def correlations(by_run: dict[str, tuple[Rows, Rows]]) -> dict[str, Any]:
    """Returns each signal's correlation with the gain: Spearman's ρ, plain and with the round held fixed.

    ρ is the mean over trainings. The paper's definition of the gain is also included.

    ``largest_by_chance`` is the 95 % quantile of the largest |ρ| of all signals when each training's gains are
    permuted. The best of this many signals means something only above it.

    Args:
        by_run: Each training's rows of signals and of gains. The result is empty if there are none.
    """
    if not by_run:
        return {}
    runs = [
        (candidates(signal_rows), gains(gain_rows)) for signal_rows, gain_rows in by_run.values()
    ]
    papers = [
        {k: float(values.mean()) for k, values in gains_over_before(gain_rows).items()}
        for _, gain_rows in by_run.values()
    ]
    generator = np.random.default_rng(0)
    permuted = [
        generator.permuted(
            np.tile([values.mean() for values in gained.values()], (RESAMPLES, 1)), axis=1
        )
        for _, gained in runs
    ]
    signals, by_chance = {}, []
    for name in sorted(set.intersection(*(set(table) for table, _ in runs))):
        known = [
            np.array([table[name].get(k) is not None for k in gained]) for table, gained in runs
        ]
        if min(map(np.sum, known)) < 5:
            continue
        pairs = [
            np.array(
                [
                    (k, table[name][k], values.mean(), paper[k])
                    for k, values in gained.items()
                    if table[name].get(k) is not None
                ]
            )
            for (table, gained), paper in zip(runs, papers, strict=True)
        ]
        signals[name] = {
            "spearman": _bootstrapped(pairs, lambda _, signal, gain, __: spearman(signal, gain)),
            "spearman_round_held_fixed": _bootstrapped(
                pairs, lambda k, signal, gain, _: _partial(k, signal, gain)
            ),
            "spearman_of_the_papers_gain": _bootstrapped(
                pairs, lambda _, signal, __, gain: spearman(signal, gain)
            ),
            "rounds": sum(map(len, pairs)),
        }
        by_chance.append(
            _mean(
                [
                    spearman(part[:, 1], gain[:, chosen])
                    for part, gain, chosen in zip(pairs, permuted, known, strict=True)
                ]
            )
        )
    by_round = [
        {
            "training": run,
            "round_index": k,
            "gain": float(values.mean()),
            "standard_error": float(values.std(ddof=1) / len(values) ** 0.5),
            "repetitions": len(values),
        }
        for run, (_, gained) in zip(by_run, runs, strict=True)
        for k, values in gained.items()
    ]
    boosted = [gained for _, gained in runs]
    return {
        "reliability_of_the_gain": _reliability(boosted),
        "gains": {
            "boosted": gain_estimates(boosted),
            SAME_STEPS: gain_estimates(
                [gains(gain_rows, SAME_STEPS) for _, gain_rows in by_run.values()]
            ),
            "plain_over_before": gain_estimates(
                [gains_over_before(gain_rows, "plain") for _, gain_rows in by_run.values()]
            ),
        },
        "spread_of_true_gains": gain_spread(boosted),
        "largest_by_chance": float(np.quantile(np.nanmax(np.abs(by_chance), axis=0), 0.95)),
        "signals": signals,
        "by_round": by_round,
    }


def _bootstrapped(
    pairs: list[np.ndarray], statistic: Callable[..., np.ndarray]
) -> dict[str, Any] | None:
    """Bootstraps the mean over trainings of a statistic of their columns, resampling rounds within each training.

    Returns None if it is defined for no training.
    """
    generator = np.random.default_rng(0)
    by_training = [float(statistic(*part.T)) for part in pairs]
    if np.isnan(by_training).all():
        return None
    resampled = [
        statistic(
            *np.moveaxis(part[generator.integers(len(part), size=(RESAMPLES, len(part)))], -1, 0)
        )
        for part in pairs
    ]
    return {
        "mean": float(_mean(by_training)),
        "interval": _interval(_mean(resampled)),
        "by_training": [None if np.isnan(one) else one for one in by_training],
    }


def _mean(of_trainings: Sequence[Any]) -> np.ndarray:
    """Returns the mean of known values over the first axis; NaN if there are none."""
    values = np.array(of_trainings)
    is_known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(is_known, values, 0.0).sum(0) / is_known.sum(0)


def _reliability(runs: list[dict[int, np.ndarray]]) -> float:
    """Returns the gain's correlation with a repeated measurement of itself, which bounds all other correlations.

    It follows from the mean correlation of halves over many splits, by the Spearman–Brown formula.
    """
    generator, found = np.random.default_rng(0), []
    for gained in runs:
        for _ in range(200):
            halves = []
            for values in gained.values():
                order = generator.permutation(len(values))
                half = len(values) // 2
                halves.append((values[order[:half]].mean(), values[order[half : 2 * half]].mean()))
            found.append(spearman(*np.array(halves).T))
    rho = float(np.mean(found))
    return 2.0 * rho / (1.0 + rho)


def _partial(z: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns Spearman's ρ of x and y with z held fixed; NaN if z determines one of them."""
    xz, yz = spearman(x, z), spearman(y, z)
    remaining = (1.0 - xz**2) * (1.0 - yz**2)
    return np.where(remaining > 1e-12, spearman(x, y) - xz * yz, np.nan) / np.sqrt(
        np.maximum(remaining, 1e-12)
    )


def _interval(values: np.ndarray) -> list[float]:
    return [float(bound) for bound in np.nanquantile(values, (0.025, 0.975))]


# Trainings at equal dollars


def dollars(by_seed: dict[str, Rows]) -> dict[str, Any]:
    """Returns each arm's started actors and returns at the end and along the way, and differences paired by seed."""
    arms = sorted({row["arm"] for rows in by_seed.values() for row in rows})
    final = {
        arm: {
            seed: float(np.mean(next(iter(reversed(row["returns"].values())))))
            for seed, rows in by_seed.items()
            for row in rows
            if row["arm"] == arm
        }
        for arm in arms
    }
    along = {
        arm: {
            seed: _mean_along(row)
            for seed, rows in by_seed.items()
            for row in rows
            if row["arm"] == arm
        }
        for arm in arms
    }
    actors = {
        arm: [sum(row["actors"]) for rows in by_seed.values() for row in rows if row["arm"] == arm]
        for arm in arms
    }
    result: dict[str, Any] = {
        "arms": {
            arm: {
                "actors_mean": float(np.mean(actors[arm])),
                "return_at_the_end": interval_estimate(list(final[arm].values())),
                "return_along_the_way": interval_estimate(list(along[arm].values())),
                "return_at_the_end_by_seed": final[arm],
                "return_along_the_way_by_seed": along[arm],
            }
            for arm in arms
        },
        "differences": {},
    }
    for arm in arms:
        for other in (f"{arm}-permuted", f"{arm}-even", f"{arm}-rounds"):
            if other in arms:
                result["differences"][f"{arm} − {other}"] = {
                    what: _paired(values[arm], values[other])
                    for what, values in (("at_the_end", final), ("along_the_way", along))
                }
    return result


def _mean_along(row: dict[str, Any]) -> float:
    """Returns the mean return over started actors, which stand for dollars; 0 for an untrained policy."""
    started = np.cumsum([0, *row["actors"]])
    spent = [0, *(started[int(round_index)] for round_index in row["returns"])]
    return float(np.trapezoid([0.0, *map(np.mean, row["returns"].values())], spent) / spent[-1])


def _paired(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, Any]:
    differences = np.array([ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))])
    if len(differences) < 2:
        return {"seeds": len(differences)}
    generator = np.random.default_rng(0)
    means = differences[generator.integers(len(differences), size=(50_000, len(differences)))].mean(
        axis=1
    )
    return {
        "seeds": len(differences),
        "mean": float(differences.mean()),
        "interval": _interval(means),
        "share_above_0": float((differences > 0).mean()),
    }


# All of it


def _load(paths: Iterable[Path]) -> dict[str, Rows]:
    return {path.stem: whole_lines(path) for path in sorted(paths)}


def summarise(work: Path) -> dict[str, Any]:
    files = _load(path for path in work.glob("*.jsonl"))
    if not any(files.values()):
        raise SystemExit(f"{work} has no measurements")
    by_task: dict[str, dict[str, Rows]] = defaultdict(dict)
    for name, rows in files.items():
        by_task[name.rpartition("-")[0]][name.rpartition("-")[2]] = rows
    result: dict[str, Any] = {}
    for task, by_seed in sorted(by_task.items()):
        if task.endswith("-dollars"):
            result[task] = dollars(by_seed)
            continue
        parts = {
            seed: {
                kind: [row for row in rows if row["kind"] == kind]
                for kind in ("signals", "noise", "lanczos", "gain")
            }
            for seed, rows in by_seed.items()
        }
        result[task] = {
            "seeds": sorted(by_seed),
            "noise": noise({seed: part["noise"] for seed, part in parts.items() if part["noise"]}),
            "error_of_few_lanczos_steps": lanczos(
                [row for part in parts.values() for row in part["lanczos"]]
            ),
            "of_own_batch": of_own_batch(
                {seed: (part["signals"], part["noise"]) for seed, part in parts.items()}
            ),
            "gain": correlations(
                {
                    seed: (part["signals"], part["gain"])
                    for seed, part in parts.items()
                    if len(gains(part["gain"])) >= 5
                }
            ),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    options = parser.parse_args()
    result = {
        **origin(
            "python -m papers.nitro.boosting.run WORK, then python -m papers.nitro.boosting.summarise WORK"
        ),
        "versions": {
            name: version(name) for name in ("torch", "numpy", "gymnasium", "mujoco", "PyHessian")
        },
        **summarise(options.work),
    }
    (RESULTS / "boosting.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
