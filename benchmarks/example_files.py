"""Trains each example file with three seeds, and lists steps and time next to rl-zoo3's results.

    python -m benchmarks.example_files train --work WORK
    python -m benchmarks.example_files page

`train` evaluates each final policy on 100 new episodes, because the evaluation that ended a run selected it. It writes
benchmarks/results/example_files.json after each run, keeps the results of unchanged files, and continues where it was
stopped. `page` turns that into docs/example_files.md and its picture. MiniGrid, Box2D and highway-env must be
installed, as the files explain. A continued run counts only the CPU time of its last session.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drawing import panels, saved
from benchmarks.pages import rendered, table
from benchmarks.provenance import ROOT, origin
from benchmarks.seeds import EPISODES, NATIVE, train_and_evaluate
from runtime.experiment.loading import load_experiment
from runtime.records.files import write_atomically

RESULTS = ROOT / "benchmarks" / "results" / "example_files.json"
PICTURE = RESULTS.with_suffix(".png")
PAGE = ROOT / "docs" / "example_files.md"
SEEDS = (0, 1, 2)
ARITHMETICS = (NATIVE, "avx2")
"""Values of torch's ATEN_CPU_CAPABILITY. They differ in rounding: a result that depends on it is chance."""


@dataclass(frozen=True)
class Published:
    """rl-zoo3's published result of its PPO.

    Attributes:
        mean: The mean return of a trained policy.
        steps: The environment steps that it was trained for.
        version: The environment's version, if it differs.
    """

    mean: float
    steps: float
    version: str = ""


ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2/benchmark.md"
FILES: Mapping[str, Published | None] = {
    "cartpole": Published(500.0, 1e5),
    "acrobot": Published(-73.506, 1e6),
    "pendulum": Published(-172.225, 1e5),
    "mountain_car_continuous": Published(88.343, 2e4),
    "frozen_lake": None,
    "minigrid_empty": Published(0.968, 1e5),
    "lunar_lander": Published(242.119, 1e6, "v2"),
    "lunar_lander_continuous": Published(270.863, 1e6, "v2"),
    "bipedal_walker": Published(287.939, 5e6),
    "racetrack": None,
    "kung_fu_master": None,
}
"""By the name of a file in experiments/; None if rl-zoo3 has no result."""


def path_of(name: str) -> Path:
    """Returns the path of an example file."""
    return ROOT / "experiments" / f"{name}.yaml"


def settings_of(name: str) -> dict[str, Any]:
    """Returns an example file's settings as JSON, by which its runs are recognized."""
    settings: dict[str, Any] = load_experiment(path_of(name)).model_dump(
        mode="json", exclude_unset=True
    )
    return settings


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Returns the results so far."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"files": {}}
    return found


def cpu_s() -> float:
    """Returns the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_of(name: str, seed: int, arithmetic: str, work: Path) -> dict[str, Any]:
    """Trains and evaluates one run to its end. Continues an interrupted one."""
    out, before_s = work / name / f"{seed}-{arithmetic}", cpu_s()
    found = train_and_evaluate(str(path_of(name).relative_to(ROOT)), seed, [], out, arithmetic)
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return {
        **found,
        "cpu_s": cpu_s() - before_s,
        "date": time.strftime("%Y-%m-%d"),
        "curve": {
            "env_steps_total": [row["env_steps_total"] for row in rows],
            "episode_return_mean": [row["episode_return_mean"] for row in rows],
        },
    }


def train(work: Path) -> None:
    """Trains missing runs, seed by seed, and writes the results after each run."""
    for seed, arithmetic in itertools.product(SEEDS, ARITHMETICS):
        for name in FILES:
            found, settings = read(), settings_of(name)
            of_file = found["files"].get(name)
            if of_file is None or of_file["settings"] != settings:
                of_file = {"settings": settings, "runs": []}
            if any(
                (run["seed"], run["arithmetic"]) == (seed, arithmetic) for run in of_file["runs"]
            ):
                continue
            runs = sorted(
                [*of_file["runs"], run_of(name, seed, arithmetic, work)],
                key=lambda run: (run["seed"], run["arithmetic"]),
            )
            files = {**found["files"], name: {"settings": settings, "runs": runs}}
            write_atomically(
                RESULTS,
                json.dumps(
                    {
                        **origin("python -m benchmarks.example_files train --work WORK"),
                        "files": {each: files[each] for each in FILES if each in files},
                    },
                    indent=1,
                ).encode(),
            )
            print(f"{name}, seed {seed}, {arithmetic}: done", flush=True)


def lines(files: Mapping[str, Any]) -> str:
    """Returns a Markdown table with a line for each file."""
    rows = []
    for name, of_file in files.items():
        settings, runs, zoo = of_file["settings"], of_file["runs"], FILES[name]
        got = [run for run in runs if run["stop_reason"] == "target_return"]
        returns = [run[f"evaluation_return_mean_of_{EPISODES}_others"] for run in runs]
        rows.append(
            [
                f"[{name}](../experiments/{name}.yaml)",
                f"{settings['stop']['target_return']:g}",
                f"{len(got)}/{len(runs)}",
                f"{statistics.mean(returns):.4g} ({min(returns):.4g})",
                f"{statistics.median(run['env_steps_total'] for run in runs):,.0f}",
                f"{statistics.median(run['cpu_s'] for run in runs) / 60.0:.1f}",
                _published(zoo) if zoo else "–",
            ]
        )
    return table(
        ["file", "target", "reached", "return", "steps", "CPU minutes", "rl-zoo3's PPO"],
        rows,
    )


def _published(zoo: Published) -> str:
    version = f" ({zoo.version})" if zoo.version else ""
    return f"{zoo.mean:.4g} in {zoo.steps:,.0f}{version}"


def page(found: Mapping[str, Any]) -> str:
    """Returns docs/example_files.md."""
    files = found["files"]
    return rendered(
        Path(__file__).with_suffix(".md"),
        episodes=EPISODES,
        zoo=ZOO,
        table=lines(files),
        command=found["command"],
        hardware=found["hardware"],
        missing=[name for name in FILES if name not in files],
        dates=sorted({run["date"] for of_file in files.values() for run in of_file["runs"]}),
    )


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draws every seed's training returns, with a panel for each file."""
    files, columns = found["files"], 4
    lines = -(-len(files) // columns)
    figure, every = panels(columns, (11, 2.4 * lines), lines, squeeze=False)
    for axes, name in zip(every.flat, files, strict=False):
        for run in files[name]["runs"]:
            points = [
                (steps / 1000.0, value)
                for steps, value in zip(*run["curve"].values(), strict=True)
                if value is not None
            ]
            axes.plot(*zip(*points, strict=True), lw=1.0, color="#3569b3", alpha=0.8)
        axes.axhline(
            files[name]["settings"]["stop"]["target_return"], color="#c33", lw=0.8, ls="--"
        )
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in every.flat[len(files) :]:
        axes.set_axis_off()
    figure.supxlabel("thousand environment steps", fontsize=9)
    figure.supylabel("return in training", fontsize=9)
    saved(figure, path, 110, metadata={"Software": None})


def main() -> None:
    """Trains, or writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train what is missing")
    training.add_argument("--work", type=Path, required=True, help="folder of the runs")
    commands.add_parser("page", help="write the page and its picture")
    asked = parser.parse_args()
    if asked.command == "train":
        train(asked.work.resolve())
    else:
        draw(read(), PICTURE)
        PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
