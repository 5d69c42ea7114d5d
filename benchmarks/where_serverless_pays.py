"""Finds where serverless actors pay, by the cost of a step and the number of steps in a round and a run.

    python benchmarks/where_serverless_pays.py [--repeats 3] [--again]

1. Measures a step, a gradient step and the other work in six environments, in CPU seconds of one thread.
2. Runs two of the slow ones here with `fleet.kind: local`, and compares actors' counted seconds with the prediction.
3. Predicts time and dollars of every way to run them, with the functions of `python -m runtime plan`. Does the same for
   Humanoid-v5 with steps of 0.1 to 100 ms, in rounds of 2,048 to 32,768 steps and runs of 100,000 to 100 million steps.

Writes benchmarks/results/where_serverless_pays.json and .png. `--again` predicts and draws from what is measured there.
When it was repeated, 7 of 288 verdicts changed, each at a boundary. Actors are at most 512; c7a, spot prices,
Lambda's free tier and evaluations are not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)

import matplotlib  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from benchmarks.provenance import commit_of  # noqa: E402
from benchmarks.work_rates import sampled  # noqa: E402
from lambda_actor.trial import TriedEnvironment  # noqa: E402
from runtime.config.instances import processor, vcpus  # noqa: E402
from runtime.config.loading import load_experiment  # noqa: E402
from runtime.config.schema import Experiment  # noqa: E402
from runtime.cost.prices import PRICES  # noqa: E402
from runtime.planning.prediction import KINDS, Prediction, Sample, front, predict_all, rounds_of  # noqa: E402
from runtime.training.preflight import preflight  # noqa: E402
from runtime.training.trial import try_environment  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "where_serverless_pays.json"
HUMANOID = "Humanoid-v5, {} frames"
MEASURED = {
    "Hopper-v5": ("hopper", "Hopper-v5"),
    "SpaceInvaders": ("space_invaders", "SpaceInvadersNoFrameskip-v4"),
    **{
        HUMANOID.format(frames): ("humanoid", f"benchmarks.slow_humanoid:frames_{frames}")
        for frames in (5, 20, 80, 320)
    },
}
"""By name: experiment file, environment."""
CHECKED = {HUMANOID.format(80): (8, 64), HUMANOID.format(320): (16, 32)}
"""The runs on this machine, each with its actors and their steps."""
STEPS_S = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
BATCHES = (2048, 8192, 32_768)
RUNS = (100_000, 1_000_000, 10_000_000, 100_000_000)
MINIBATCHES = 32
"""Gradient steps of an epoch: a larger round has larger minibatches."""
MARGIN = 1.15
"""The plan's predictions were within this factor of the measurements, so closer ways count as equally fast."""
INSTANCES = {
    "any processor, instances of up to 192 vCPUs": (192, False),
    "any processor, instances of up to 16 vCPUs": (16, False),
    "Intel alone, instances of up to 192 vCPUs": (192, True),
}
"""Allowed rentals: the largest number of vCPUs, and whether instance and Lambda must be x86."""


def loaded(name: str, changes: Sequence[str] = ()) -> Experiment:
    file, environment_id = MEASURED[name]
    return load_experiment(
        ROOT / "experiments" / f"{file}.yaml",
        [
            f"environment.id={environment_id}",
            "scaler.kind=fixed",
            "scaler.actors_fixed=8",
            "evaluation.every_rounds=0",
            "stop.target_return=null",
            "fleet.processes=1",
            "budget.usd=100",
            *changes,
        ],
    )


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Samples an environment's work, as `plan` does."""
    _, fitted = preflight(loaded(name).resolved())
    work = sampled(fitted, repeats)
    units = {unit: float(f"{seconds:.4g}") for unit, seconds in work.units().items()}
    return {
        "units": units,
        "message_bytes": work.message_bytes,
        "fragment_steps": fitted.actor.fragment_steps,
    }


def sample_of(found: dict[str, Any], **units: float) -> Sample:
    return Sample({**found["units"], **units}, found["message_bytes"], found["fragment_steps"])


def check(name: str, found: dict[str, Any], rounds: int = 5) -> dict[str, Any]:
    """Runs a few rounds here, and compares the actors' counted seconds with the prediction. The first warms up."""
    actors, steps = CHECKED[name]
    changes = [
        f"scaler.actors_fixed={actors}",
        f"actor.fragment_steps={steps}",
        f"stop.max_rounds={rounds}",
        "fleet.kind=local",
        "fleet.processes=2",
        "actor.timeout_s=120",
        "stop.max_steps=null",
        "algorithm.ppo.learning_rate_schedule=constant",
    ]
    experiment = loaded(name, changes)
    environment, fitted = preflight(experiment.resolved())
    predicted = rounds_of(
        fitted,
        sample_of(found),
        environment,
        steps=actors * steps,
        instance_type="",
        parallel_speed=1.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "experiment.yaml").write_text(experiment.to_yaml())
        subprocess.run(
            [
                sys.executable,
                "-m",
                "runtime",
                "train",
                f"{folder}/experiment.yaml",
                "--out",
                f"{folder}/run",
            ],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        rows = [
            json.loads(line)
            for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()
        ][1:]
    counted_s = statistics.median(row["actor_cpu_s_mean"] for row in rows)
    return {
        "environment": name,
        "actors": actors,
        "fragment_steps": steps,
        "rounds": len(rows),
        "predicted_actor_cpu_s": round(predicted.actor_s, 4),
        "counted_actor_cpu_s": round(counted_s, 4),
        "ratio": round(predicted.actor_s / counted_s, 3),
    }


def predictions(
    name: str, sample: Sample, environment: TriedEnvironment, *, batch: int, steps: int
) -> list[Prediction]:
    """Predicts all ways except for the file's own, with and without its cache."""
    experiment = loaded(
        name,
        [
            f"scaler.actors_fixed={batch // 32}",
            "actor.fragment_steps=32",
            f"algorithm.ppo.minibatch_steps={batch // MINIBATCHES}",
        ],
    )
    found = predict_all(experiment, sample, environment, PRICES, steps=steps)
    return [one for one in found if "learner.instance_types" in one.way.changes]


def is_allowed(one: Prediction, vcpus_max: int, is_x86: bool) -> bool:
    instance_type = one.way.changes["learner.instance_types"][0]
    is_of_x86 = {processor(instance_type), one.way.changes.get("actor.architecture", "x86_64")} == {
        "x86_64"
    }
    return vcpus(instance_type) <= vcpus_max and (is_of_x86 or not is_x86)


def shown(one: Prediction) -> dict[str, Any]:
    return {
        "way": one.way.name,
        "minutes": round(one.seconds / 60, 2),
        "usd": round(one.usd, 4),
        "decides": one.bound,
    }


def verdict(ways: Iterable[Prediction]) -> dict[str, Any]:
    """Compares serverless actors with everything on one instance.

    Returns:
        ``verdict``: ``faster``, if serverless actors are faster than every instance; ``equal dollars``, if they are
        also, or only, faster than every instance that costs no more, and cost no more than the fastest instance; else
        ``instance``. ``speed`` and ``dollars`` are the fastest instance's seconds over the chosen way's, and the way's
        dollars over the instance's; ``speed_at_equal_dollars`` compares with the fastest one that costs no more.
    """
    ways = list(ways)
    # The speed of many instances is modelled from measurements with eight, so they do not count here.
    found = [one for one in ways if one.way.changes["learner.kind"] != "gmi"]
    alone, serverless = (
        [one for one in found if (one.way.kind == KINDS[0]) == is_alone]
        for is_alone in (True, False)
    )
    fastest, quickest = (min(ones, key=lambda one: one.seconds) for ones in (alone, serverless))
    cheapest, least = (min(ones, key=lambda one: one.usd) for ones in (alone, serverless))
    rivals = [
        (min(other.seconds for other in alone if other.usd <= one.usd) / one.seconds, one)
        for one in front(serverless)
        if cheapest.usd <= one.usd <= fastest.usd
    ]
    at_equal, best = max(rivals, key=lambda rival: rival[0], default=(0.0, quickest))
    pays = at_equal >= MARGIN
    chosen = best if pays else quickest
    speed = fastest.seconds / quickest.seconds
    return {
        "verdict": "equal dollars" if pays else "faster" if speed >= MARGIN else "instance",
        "speed": round(speed, 3),
        "dollars": round(quickest.usd / fastest.usd, 3),
        "speed_at_equal_dollars": round(at_equal, 3),
        "chosen": shown(chosen),
        "fastest_instance": shown(fastest),
        "cheapest_instance": shown(cheapest),
        "fastest_serverless": shown(quickest),
        "cheapest_serverless": shown(least),
        "fastest_gmi": shown(
            min((one for one in ways if one not in found), key=lambda one: one.seconds)
        )
        if len(found) < len(ways)
        else None,
    }


def grid(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicts Humanoid-v5 with steps that take longer, in rounds and runs of several lengths."""
    name, cells = HUMANOID.format(5), []
    environment = try_environment(MEASURED[name][1], "none")
    for batch in BATCHES:
        for steps in RUNS:
            for step_s in STEPS_S:
                ways = predictions(
                    name, sample_of(measured, step_s=step_s), environment, batch=batch, steps=steps
                )
                for label, limits in INSTANCES.items():
                    found = verdict(one for one in ways if is_allowed(one, *limits))
                    cells.append(
                        {
                            "instances": label,
                            "batch_steps": batch,
                            "run_steps": steps,
                            "step_s": step_s,
                            **{
                                key: value
                                for key, value in found.items()
                                if not isinstance(value, dict)
                            },
                            "way": found["chosen"]["way"],
                        }
                    )
        print(f"{batch} steps a round predicted", file=sys.stderr, flush=True)
    return cells


def real(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicts the measured environments: ten million steps, rounds of 2,048 and of 32,768 steps."""
    rows = []
    for name, measured in found.items():
        file, environment_id = MEASURED[name]
        environment = try_environment(environment_id)
        for batch in (BATCHES[0], BATCHES[-1]):
            fitted = (
                loaded(name, [f"algorithm.ppo.minibatch_steps={batch // MINIBATCHES}"])
                .resolved()
                .fitted(environment.spaces, preprocessing=environment.preprocessing)
            )
            units, algorithm = measured["units"], fitted.algorithm.chosen
            learned_s = algorithm.passes * (
                units["sample_s"] + units["gradient_step_s"] * MINIBATCHES / batch
            )
            ways = predictions(
                name, sample_of(measured), environment, batch=batch, steps=10_000_000
            )
            rows += [
                {
                    "environment": name,
                    "batch_steps": batch,
                    "step_cpu_s": units["step_s"],
                    "learner_cpu_s_per_step": round(learned_s, 7),
                    "instances": label,
                    **verdict(one for one in ways if is_allowed(one, *limits)),
                }
                for label, limits in INSTANCES.items()
            ]
    return rows


def write(result: dict[str, Any]) -> None:
    """Writes the JSON, each prediction on a line of its own."""
    text = json.dumps({**result, "real": [], "grid": []}, indent=1)
    for name in ("real", "grid"):
        rows = ",\n  ".join(map(json.dumps, result.get(name, [])))
        text = text.replace(f'"{name}": []', f'"{name}": [\n  {rows}\n ]')
    RESULTS.write_text(text + "\n")


COLOURS = {"instance": "#f1f1f1", "faster": "#f6c177", "equal dollars": "#7fb3e6"}
HATCHES = {"instance": "", "faster": "", "equal dollars": "//"}


def draw(result: dict[str, Any], picture: Path) -> None:
    """Draws a map for each round size and choice of instances, with step costs on x and run lengths on y."""
    figure, rows = plt.subplots(
        len(BATCHES),
        len(INSTANCES),
        figsize=(15, 10.2),
        constrained_layout=True,
        sharex=True,
        sharey=True,
    )
    for batch, line in zip(BATCHES, rows, strict=True):
        for label, axes in zip(INSTANCES, line, strict=True):
            cells = [
                one
                for one in result["grid"]
                if one["batch_steps"] == batch and one["instances"] == label
            ]
            _draw_cells(axes, cells)
            if batch == BATCHES[0]:
                axes.set_title(label, fontsize=11, fontweight="bold", pad=38)
                _draw_measured(axes, result["measured"])
        line[0].set_ylabel(
            f"rounds of {batch:,} steps\n(up to {min(batch // 32, 512)} actors)\n\nsteps of a run",
            fontsize=10,
        )
    for axes in rows[-1]:
        axes.set_xlabel("CPU milliseconds of one environment step", fontsize=10)
    names = {
        "instance": "all on one instance: serverless is slower, or less than 15 % faster\n"
        "(speed against the fastest instance)",
        "faster": "serverless is faster than any instance, and dearer\n(speed, dollars against the fastest one)",
        "equal dollars": "serverless is faster than any instance for the same money\n(speed at equal dollars, =$)",
    }
    handles = [
        plt.Rectangle(
            (0, 0),
            1,
            1,
            facecolor=COLOURS[kind],
            hatch=HATCHES[kind],
            edgecolor="#555555",
            linewidth=0.6,
            label=name,
        )
        for kind, name in names.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    figure.suptitle(
        "Where serverless actors pay: step costs measured, times and dollars modelled "
        f"(list prices of {PRICES.region}, {PRICES.as_of})",
        fontsize=13,
    )
    figure.savefig(picture, dpi=100)
    plt.close(figure)


def _draw_cells(axes: Any, cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        x, y, kind = STEPS_S.index(cell["step_s"]), RUNS.index(cell["run_steps"]), cell["verdict"]
        axes.add_patch(
            plt.Rectangle(
                (x - 0.5, y - 0.5),
                1,
                1,
                facecolor=COLOURS[kind],
                hatch=HATCHES[kind],
                edgecolor="white",
                linewidth=1,
            )
        )
        text, weight = f"{cell['speed']:.1f}×", "normal"
        if kind == "faster":
            text, weight = f"{text}\n{cell['dollars']:.1f}× $", "bold"
        elif kind == "equal dollars":
            text, weight = f"{cell['speed_at_equal_dollars']:.1f}×\n= $", "bold"
        plain = (
            {"facecolor": COLOURS[kind], "edgecolor": "none", "pad": 0.8} if HATCHES[kind] else None
        )
        axes.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight=weight,
            bbox=plain,
            color="#777777" if kind == "instance" else "black",
        )
    axes.set(
        xlim=(-0.5, len(STEPS_S) - 0.5),
        ylim=(-0.5, len(RUNS) - 0.5),
        xticks=range(len(STEPS_S)),
        yticks=range(len(RUNS)),
    )
    axes.set_xticklabels([f"{seconds * 1e3:g}" for seconds in STEPS_S])
    axes.set_yticklabels(["100,000", "1 million", "10 million", "100 million"])
    axes.tick_params(length=0)


def _draw_measured(axes: Any, measured: dict[str, Any]) -> None:
    """Marks measured step costs above the map."""
    shown = [
        (name, found["units"]["step_s"])
        for name, found in measured.items()
        if name != "SpaceInvaders"
    ]
    for index, (name, step_s) in enumerate(shown):  # SpaceInvaders' learner has other work.
        x = max(-0.4, 2 * math.log10(step_s / STEPS_S[0]))
        label = "Hopper" if name.startswith("Hopper") else f"Humanoid, {name.split()[1]} frames"
        axes.annotate(
            label,
            (x, len(RUNS) - 0.5),
            xytext=(0, 12 + 12 * (index % 2)),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 0.8},
        )


def main() -> None:
    """Writes the JSON and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--again", action="store_true", help="predict and draw from the measurements in the JSON"
    )
    arguments = parser.parse_args()
    if arguments.again:
        result = json.loads(RESULTS.read_bytes())
    else:
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, others used them too",
            "measured": {},
        }
        for name in MEASURED:
            # In a separate process, because an actor keeps its last policy.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                result["measured"][name] = pool.apply(measure, (name, arguments.repeats))
            print(name, result["measured"][name]["units"], file=sys.stderr, flush=True)
        result["checked"] = [check(name, result["measured"][name]) for name in CHECKED]
        write(result)
    result |= {
        "commit": commit_of(),
        "prices": f"{PRICES.region}, {PRICES.as_of}",
        "real": real(result["measured"]),
        "grid": grid(result["measured"][HUMANOID.format(5)]),
    }
    write(result)
    draw(result, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()
