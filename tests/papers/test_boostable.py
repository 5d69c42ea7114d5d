"""Boosted rounds of a real Hopper, and the measures of their claims on made records with a known answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from papers.nitro import boostable
from papers.nitro.boostable import BoostableTraining, measure
from papers.nitro.boostable_measures import KINDS
from papers.runs import Results
from papers.study import SEEDS, settings_hash
from runtime.detector.convexity import ConvexityDetector
from tests.helpers import rounds, train

FILE = "experiments/paper/hopper-ppo.yaml"
SMALL = {
    "algorithm.epochs": 2,
    "actor.fragment_steps": 64,
    "actor.provisioned": 0,
    "learner.threads": 1,
}
PLAN = {"rounds": 4, "actors": [1, 3], "replays": 2, "episodes": 1}


def test_a_training_is_a_runs_to_the_bit(tmp_path: Path) -> None:
    """By R before each round, which depends on all that was played and learned."""
    settings = SMALL | {
        "budget.usd": 10.0,
        "detector.subset_size": 64,
        "fleet.processes": 1,
        "scaler.actors_min": 1,
        "scaler.actors_max": 1,
        "stop.max_rounds": 3,
        "evaluation.every_rounds": 0,
    }
    options = [
        part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    train(Path(FILE), tmp_path, *options)
    training = BoostableTraining(FILE, SMALL, 0, 1)
    samples, ratios = None, []
    for round_index in (1, 2, 3):
        ratios.append(training.start(round_index, samples).ratio)
        samples = training.update(training.play(round_index, 1, 0))
    assert ratios == [row["convexity_ratio"] for row in rounds(tmp_path)]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")  # PyHessian's
def test_signals_of_a_policy() -> None:
    """A surface's centre is the policy, which is not changed, and R is on one actor's samples."""
    training = BoostableTraining(FILE, SMALL, 0, 3)
    samples = training.update(training.play(1, 3, 0))
    centre = training.surface(samples, 3)[4]
    assert centre == training.mean_return(boostable.SURFACE_EPISODES, 0)
    chosen = ConvexityDetector("log_prob", 64, 20, seed=0).select(samples)
    assert training.ratio(samples) == training.ratio(chosen)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_each_replay_starts_from_the_same_state() -> None:
    """So a round's first replay does not depend on what is played before and after it."""
    once = PLAN | {"replays": 1, "actors": [3]}
    arms = {
        "all": PLAN | {"is_continued": True},
        "once": once,
        "lowest": once | {"span": 2, "surface_points": 2},
    }
    study = {"file": FILE, "settings": SMALL, "arms": arms}
    every, once, lowest = (measure(study, arm, 5) for arm in arms)
    assert [row["round_index"] for row in every["rounds"]] == [1, 2, 3, 4]
    for row, alone in zip(every["rounds"], once["rounds"], strict=True):
        assert row["ratio"] == alone["ratio"]
        for values, first in zip(_numbers(row), _numbers(alone), strict=True):
            assert values[:1] == first
            assert len(set(values)) == 2, "replays have other seeds"
        assert row["ratios_after"]["1"] != row["ratios_after"]["3"]
        is_last = row["round_index"] == 4
        assert (row["final"] == row["after"]["3"]) == is_last
    second, chosen = lowest["rounds"]
    assert second["round_index"] == 2, "the first round has no R"
    assert chosen == min(once["rounds"][2:], key=lambda row: row["ratio"])
    assert set(lowest["surfaces"]) == {"lowest", "highest", "3"}


def test_seeds_of_the_same_settings_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {name: PLAN | {"actors": [], "replays": 1, "rounds": 2} for name in ("same", "other")}
    study = {"program": boostable.PROGRAM, "file": FILE, "settings": SMALL, "arms": arms}
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump({"studies": {"small": study}}))
    known = {"0": {"cpu_s": 1.0}}
    content = {
        "hashes": {"same": settings_hash(study, "same"), "other": "another"},
        "commits": ["older"],
        "runs": {"same": known, "other": known},
    }
    (tmp_path / "small.json").write_text(json.dumps(content))
    monkeypatch.setattr("papers.study.PROTOCOL", tmp_path / "protocol.yaml")
    monkeypatch.setattr("papers.study.RESULTS", tmp_path)
    monkeypatch.setattr("papers.nitro.boostable.SEEDS", (0, 1))
    # Here, because a new process would first import torch.
    monkeypatch.setattr(
        "papers.nitro.boostable.ProcessPoolExecutor", lambda jobs, _: ThreadPoolExecutor(jobs)
    )
    monkeypatch.setattr("sys.argv", ["boostable", "small", "--jobs", "1"])
    boostable.main()
    written = json.loads((tmp_path / "small.json").read_bytes())
    assert written["hashes"] == {arm: settings_hash(study, arm) for arm in arms}
    assert "older" in written["commits"]
    runs = written["runs"]
    assert {arm: set(by_seed) for arm, by_seed in runs.items()} == dict.fromkeys(arms, {"0", "1"})
    assert runs["same"] | known == runs["same"]
    assert runs["same"]["1"]["rounds"] == runs["other"]["1"]["rounds"]
    assert [row["round_index"] for row in runs["other"]["0"]["rounds"]] == [1, 2]


def _numbers(row: dict[str, Any]) -> list[list[float]]:
    return [row["before"], row["ratios_anew"], row["after"]["3"], row["ratios_after"]["3"]]


# Measures

ROUNDS, REPLAYS = 10, 6


def _record(
    generator: np.random.Generator,
    ratios: np.ndarray,
    *,
    noise: float = 0.1,
    **expected: np.ndarray,
) -> dict[str, Any]:
    """Returns a record whose rows have these values by round, with noise for each replay."""

    def noisy(values: np.ndarray) -> list[list[float]]:
        return (values[:, None] + noise * generator.normal(size=(len(values), REPLAYS))).tolist()

    nothing = np.zeros(len(ratios))
    plain, boosted, final = (expected.get(name, nothing) for name in ("plain", "boosted", "final"))
    columns = {
        "ratio": [None, *ratios[1:].tolist()],
        "ratios_anew": noisy(ratios),
        "before": noisy(nothing),
        "final": noisy(final),
        "after": [{"1": a, "16": b} for a, b in zip(noisy(plain), noisy(boosted), strict=True)],
    }
    return {
        "rounds": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    }


class Measured:
    """Measures made records through the results that the page reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, kind: str, *labels: list[dict[str, Any]], **arguments: str
    ) -> dict[str, Any]:
        for label, records in enumerate(labels):
            runs = {"rounds": {str(seed): record for seed, record in enumerate(records)}}
            (self.folder / f"r4-{label}.json").write_text(json.dumps({"runs": runs}))
        studies = {str(label): f"r4-{label}" for label in range(len(labels))}
        results = Results(self.folder, dict.fromkeys(studies.values(), {}))
        found = KINDS[kind](results, studies=studies, arm="rounds", **arguments)
        return next(iter(found.values()))


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return Measured(tmp_path)


def _sign(estimate: dict[str, Any]) -> int:
    """Returns on which side of 0 an estimate's interval lies; 0 if it contains 0."""
    assert estimate["seeds"] == len(SEEDS)
    return int(estimate["interval_low"] > 0) - int(estimate["interval_high"] < 0)


def _records(
    expected: Callable[[np.random.Generator], dict[str, Any]], first: int = 0
) -> list[Any]:
    generators = [np.random.default_rng(first + seed) for seed in SEEDS]
    return [_record(generator, **expected(generator)) for generator in generators]


def _ratios(generator: np.random.Generator) -> np.ndarray:
    return generator.uniform(0.5, 4.0, ROUNDS)


@pytest.mark.parametrize("kind", ["lowest_less_highest", "rank_correlation"])
@pytest.mark.parametrize(("slope", "sign"), [(-1.0, 1), (0.0, 0), (1.0, -1)])
def test_gain_by_ratio(measured: Measured, kind: str, slope: float, sign: int) -> None:
    def expected(generator: np.random.Generator) -> dict[str, Any]:
        ratios = _ratios(generator)
        return {"ratios": ratios, "boosted": 5.0 + slope * ratios}

    assert _sign(measured(kind, _records(expected))) == sign


def test_a_gain_that_one_actor_also_has_is_none_over_one_actor(measured: Measured) -> None:
    def expected(generator: np.random.Generator) -> dict[str, Any]:
        ratios = _ratios(generator)
        return {"ratios": ratios, "plain": -ratios, "boosted": 5.0 - ratios}

    records = _records(expected)
    assert _sign(measured("lowest_less_highest", records)) == 1
    assert _sign(measured("lowest_less_highest", records, over="1")) == 0


def test_ratios_rise_by_geometric_means_and_without_those_that_are_undefined(
    measured: Measured,
) -> None:
    row = {"ratio": 2.0, "ratios_after": {"1": [3.0, 12.0, None], "16": [2.0, 32.0, None]}}
    rows = [{"ratio": None, "ratios_after": {"16": [9.0]}}, row]
    records = [{"rounds": rows}] * len(SEEDS)
    assert measured("ratio_rise", records)["interquartile_mean"] == pytest.approx(8.0 / 2.0 - 1.0)
    over_one = measured("ratio_rise", records, over="1")
    assert over_one["interquartile_mean"] == pytest.approx(8.0 / 6.0 - 1.0)


@pytest.mark.parametrize(
    ("final", "result"),
    [([0, 0, 0, 0, 6, 2, 0, 0, 0, 0], 5.0), ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 0.0)],
)
def test_the_best_round_is_one_above_both_neighbours(
    measured: Measured, final: list[float], result: float
) -> None:
    """A trend does not count."""
    expected = {"ratios": np.ones(ROUNDS), "final": np.array(final), "noise": 0.01}
    estimate = measured("best_round", _records(lambda _: expected))
    assert estimate["interquartile_mean"] == pytest.approx(result, abs=0.03)


def test_the_best_round_by_chance_is_not_confirmed(measured: Measured) -> None:
    assert _sign(measured("best_round", _records(lambda _: {"ratios": np.ones(ROUNDS)}))) == 0


@pytest.mark.parametrize(("share", "result"), [(0.2, 0.2), (0.0, 0.0)])
def test_surfaces_with_more_high_points(measured: Measured, share: float, result: float) -> None:
    records = []
    for seed in SEEDS:
        fewer, more = np.random.default_rng(seed).uniform(size=(2, 225))
        more[: round(share * 225)] += 1.0
        records.append({"surfaces": {"1": fewer.tolist(), "16": more.tolist()}})
    estimate = measured("surfaces", records, more="16", fewer="1")
    assert _sign(estimate) == (result > 0)
    assert estimate["interquartile_mean"] == pytest.approx(result, abs=0.02)


def test_gains_of_the_first_and_the_last_chosen_round(measured: Measured) -> None:
    rows = [
        {"before": [1.0, 3.0], "after": {"4": [6.0, 6.0], "8": [10.0, 10.0]}},
        {"before": [0.0, 0.0], "after": {"4": [99.0, 99.0], "8": [99.0, 99.0]}},
        {"before": [5.0, 5.0], "after": {"4": [6.0, 6.0], "8": [7.0, 7.0]}},
    ]
    estimate = measured("first_less_last", [{"rounds": rows}] * len(SEEDS))
    assert estimate["interquartile_mean"] == pytest.approx(6.0 - 1.5)


@pytest.mark.parametrize("falls", [0, 1])
def test_scores_differ_between_labels_only_if_their_ratios_do(
    measured: Measured, falls: int
) -> None:
    rising = np.linspace(0.5, 4.0, ROUNDS)

    def expected(ratios: np.ndarray) -> Callable[[np.random.Generator], dict[str, Any]]:
        return lambda generator: {"ratios": ratios + generator.uniform(0, 1, ROUNDS)}

    other = rising[::-1] if falls else rising
    labels = _records(expected(rising)), _records(expected(other), first=len(SEEDS))
    assert _sign(measured("scores_by_label", *labels)) == falls


@pytest.mark.parametrize(("noise", "sign"), [(0.01, 1), (100.0, 0)])
def test_scores_differ_between_runs_only_beyond_their_noise(
    measured: Measured, noise: float, sign: int
) -> None:
    records = _records(lambda generator: {"ratios": _ratios(generator), "noise": noise})
    assert _sign(measured("scores_by_run", records)) == sign


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_seeds_are_no_estimate(measured: Measured, kind: str) -> None:
    """The page is written while a study runs."""
    arguments = {"more": "16", "fewer": "1"} if kind == "surfaces" else {}
    record = _record(np.random.default_rng(0), np.ones(ROUNDS)) | {
        "surfaces": {"1": [1.0, 2.0], "16": [1.0, 2.0]}
    }
    for row in record["rounds"]:
        row["ratios_after"] = {"1": [2.0], "16": [3.0]}
    for records in ([], [record]):
        assert measured(kind, records, records, **arguments)["interval_low"] is None
