"""The measurements, part by part. A part is a list of points. Instances are the project's own, in real trainings.

Points are ordered by turn, so that contenders take turns, and a part that is cut short has results of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.card import Monitor
from benchmarks.gpu.limits import NotMeasuredError, Point
from benchmarks.provenance import ROOT
from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.gmi.devices import Machine, choose_backend

FRAGMENT_STEPS = 32
"""Steps of each environment in a round."""
GAME, GAME_STEPS = "SpaceInvadersNoFrameskip-v4", 1024
ENDING_S = 30
"""Seconds in which a training must end when asked to."""
TASKS = {"Ant": "experiments/warp/ant.yaml", "Humanoid": "experiments/warp/humanoid.yaml"}
GYMNASIUMS = {"Ant": "Ant-v5", "Humanoid": "Humanoid-v5"}
EXAMPLE = "docs/example_environment"
PLAIN_TASKS = {"Thermostats": f"{EXAMPLE}/thermostats.yaml"}
"""Tasks of a rehearsal without MuJoCo Warp."""
SKETCHED = (("Ant", 4096), ("Ant", 1024), ("Ant", 16_384), ("Humanoid", 4096))
"""Tasks and worlds that the sketch is compared with, in order of worth."""
STAND_INS = {"mps": "cores", "mig": "cores", "cuda": "cpu"}
"""Backends that a rehearsal uses instead."""


@dataclass(frozen=True)
class Bench:
    """The place of all measurements, or of a rehearsal, which uses no GPU and the smallest sizes.

    Attributes:
        machine: The machine whose first GPU is measured.
        peers: Python that has the peers.
        sketch: A program of one file that keeps all of Ant's training on the device, as a measure of what is possible.
            It takes ``--device --env --worlds --seconds --hidden``, and its last line is JSON with
            ``physics_steps_per_s`` and ``training_steps_per_s``.
        turns: How often each point is measured.
    """

    machine: Machine
    peers: str
    is_rehearsal: bool = False
    sketch: str = ""
    turns: int = 1

    @property
    def tasks(self) -> Mapping[str, str]:
        """Experiment files by name; empty if there is no simulator for them."""
        return TASKS if find_spec("mujoco_warp") else PLAIN_TASKS if self.is_rehearsal else {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Environments of one process, ascending."""
        return (4, 8, 16) if self.is_rehearsal else (512, 1024, 2048, 4096, 8192, 16_384)

    @property
    def usual(self) -> int:
        """Environments of one process where their number does not vary."""
        return 8 if self.is_rehearsal else 4096

    def standing_in(self, name: str) -> str:
        return STAND_INS.get(name, name) if self.is_rehearsal else name


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
        points: Returns the points in the order of measurement.
        measure: Measures a point within a number of seconds.
        missing: Names missing packages; empty if there are none.
    """

    points: Callable[[Bench], list[Point]]
    measure: Callable[[Bench, Point, float], Mapping[str, Any]]
    missing: Callable[[Bench], str]


def _environment() -> dict[str, str]:
    """Returns the variables of programs, which find this project and the example."""
    paths = [str(ROOT), str(ROOT / EXAMPLE), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


# Trainings with instances


def command(bench: Bench, point: Point, folder: str) -> list[str]:
    """Returns the command of a point's training. A minibatch is half a round."""
    actors = point["environments"] * point["instances"]
    changes = [
        "learner.kind=gmi",
        f"learner.instances={point['instances']}",
        f"learner.backend={bench.standing_in(point['backend'])}",
        f"learner.device={bench.standing_in('cuda')}",
        "scaler.kind=fixed",
        f"scaler.actors_fixed={actors}",
        f"actor.fragment_steps={FRAGMENT_STEPS}",
        f"algorithm.minibatch_steps={actors * FRAGMENT_STEPS // 2}",
        "evaluation.every_rounds=0",
        "stop.target_return=null",
        "stop.max_steps=null",
        "budget.usd=100",
        f"seed={point['turn']}",
    ]
    return [
        sys.executable,
        "-m",
        "runtime",
        "train",
        bench.tasks[point["task"]],
        "--out",
        f"{folder}/run",
        *(word for change in changes for word in ("--set", change)),
    ]


def train(bench: Bench, point: Point, left_s: float, *, seconds: float) -> dict[str, Any]:
    """Trains for a number of seconds after the first round, which does not count.

    Returns:
        Steps per second of everything, and of playing alone (serving); how busy the GPU was; and the returns by the
        seconds of all rounds.

    Raises:
        NotMeasuredError: The backend is not possible here, or the training did not reach its second round.
    """
    if not bench.is_rehearsal:
        try:
            choose_backend(bench.machine, point["backend"], point["instances"])
        except ExperimentError as error:
            raise NotMeasuredError(str(error)) from None
    end_s, seen_s = time.monotonic() + left_s - ENDING_S, list[float]()
    with tempfile.TemporaryDirectory() as folder:
        rounds, log = Path(folder, "run", "rounds.jsonl"), Path(folder, "log")
        with log.open("wb") as output:
            # It ends in time even if this process dies.
            process = subprocess.Popen(
                [
                    "timeout",
                    "--foreground",
                    f"--kill-after={ENDING_S}",
                    f"{left_s:.0f}",
                    *command(bench, point, folder),
                ],
                cwd=ROOT,
                env=_environment(),
                stdout=output,
                stderr=output,
            )
        monitor = Monitor(bench.machine.gpus[0].index if bench.machine.gpus else 0)
        try:
            while (
                process.poll() is None
                and time.monotonic() < end_s
                and (len(seen_s) < 2 or time.monotonic() < seen_s[0] + seconds)
            ):
                time.sleep(0.05)
                count = rounds.read_bytes().count(b"\n") if rounds.exists() else 0
                seen_s += [time.monotonic()] * (count - len(seen_s))
        finally:
            has_failed = bool(process.poll())
            process.send_signal(signal.SIGTERM)
            process.wait()
            did = monitor.end(min(seen_s, default=0.0), max(seen_s, default=0.0))
        if has_failed or len(seen_s) < 2:
            lines = log.read_text(errors="replace").strip().splitlines()
            reason = [
                f"no second round within {left_s:.0f} s",
                *(lines[-1:] if has_failed else []),
                *(line for line in lines if "rror" in line),
            ][-1]
            raise NotMeasuredError(reason.strip()[:300])
        rows = [json.loads(line) for line in rounds.read_text().splitlines()]
    elapsed_s = [sum(row["round_s"] for row in rows[: count + 1]) for count in range(len(rows))]
    curve = [
        (round(at_s, 2), round(row["episode_return_mean"], 1))
        for at_s, row in zip(elapsed_s, rows, strict=True)
        if row["episode_return_mean"] is not None
    ]
    steps = sum(row["env_steps"] for row in rows[1:])
    return {
        "rounds": len(rows) - 1,
        # By this clock, which also counts what happens between two rounds.
        "steps_per_s": steps / max(seen_s[-1] - seen_s[0], 0.05),
        "served_per_s": steps / sum(row["collect_s"] for row in rows[1:]),
        **did,
        "elapsed_s": elapsed_s[-1],
        "last_return": curve[-1][1] if curve else None,
        "curve": curve,
    }


def trainings(layouts: Callable[[Bench], Sequence[tuple[int, int, str]]], seconds: float) -> Part:
    """Returns a part with each layout of each task in every turn: environments per instance, instances, backend."""

    def points(bench: Bench) -> list[Point]:
        return [
            {
                "task": task,
                "environments": size,
                "instances": count,
                "backend": backend,
                "turn": turn,
            }
            for turn in range(bench.turns)
            for size, count, backend in layouts(bench)
            for task in bench.tasks
        ]

    def measure(bench: Bench, point: Point, left_s: float) -> dict[str, Any]:
        return train(bench, point, left_s, seconds=0.5 if bench.is_rehearsal else seconds)

    return Part(points, measure, _missing_simulator)


def beside_sketch() -> Part:
    """Returns the part that compares this engine with the sketch, and with its physics alone."""

    def points(bench: Bench) -> list[Point]:
        sketched = [(task, 16) for task in bench.tasks] if bench.is_rehearsal else SKETCHED
        return [
            {
                "task": task,
                "environments": size,
                "instances": 1,
                "backend": "none",
                "contender": contender,
                "turn": turn,
            }
            for turn in range(bench.turns)
            for task, size in sketched
            for contender in ("sketch", "this engine")
        ]

    def measure(bench: Bench, point: Point, left_s: float) -> dict[str, Any]:
        seconds = 0.5 if bench.is_rehearsal else 10.0
        if point["contender"] == "this engine":
            return {**train(bench, point, left_s, seconds=seconds), "physics_per_s": None}
        if not bench.sketch or point["task"] not in GYMNASIUMS:
            raise NotMeasuredError("--sketch names no program, or it does not have the task")
        experiment = load_experiment(ROOT / bench.tasks[point["task"]])
        words = {
            "device": bench.standing_in("cuda"),
            "env": GYMNASIUMS[point["task"]],
            "worlds": point["environments"],
            "steps": FRAGMENT_STEPS,
            "seconds": seconds,
            "hidden": ",".join(map(str, experiment.network.hidden_sizes or ())),
        }
        options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
        found = said_by([sys.executable, bench.sketch, *options], left_s)
        return {
            "steps_per_s": found["training_steps_per_s"],
            "physics_per_s": found["physics_steps_per_s"],
        }

    return Part(points, measure, _missing_simulator)


def _missing_simulator(bench: Bench) -> str:
    return "" if bench.tasks else "mujoco-warp is not installed: pip install 'nitro-rl[warp]'"


# Games, and units of work


def said_by(words: Sequence[str], left_s: float) -> dict[str, Any]:
    """Runs a program and returns the JSON in its last line.

    Raises:
        NotMeasuredError: It failed, or took too long.
    """
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=left_s,
        )
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"it takes more than {left_s:.0f} s") from None
    if done.returncode:
        raise NotMeasuredError(["it failed", *done.stderr.strip().splitlines()][-1][:300])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


CONTENDERS = {
    "this engine": "engine_rounds.py",
    "stable-baselines3": "peers/sb3_ppo.py",
}


def play(bench: Bench, point: Point, left_s: float) -> dict[str, Any]:
    """Returns a contender's training speed on a game, and the seconds of each part of a round."""
    python = sys.executable if point["contender"] == "this engine" else bench.peers
    found = said_by(
        [
            python,
            str(ROOT / "benchmarks" / CONTENDERS[point["contender"]]),
            "--environment",
            GAME,
            "--batch",
            str(GAME_STEPS),
            "--epochs",
            "4",
            "--minibatch",
            "256",
            "--steps",
            str(GAME_STEPS * (1 if bench.is_rehearsal else 16)),
            "--device",
            bench.standing_in("cuda"),
            "--threads",
            "2",
        ],
        left_s,
    )
    return {
        "steps_per_s": found["steps"] / found["seconds"],
        "learn_s": found["learn_s"],
        "collect_s": found["collect_s"],
    }


def missing_peer(bench: Bench) -> str:
    """Returns a message if stable-baselines3 is missing."""
    words = [bench.peers, "-c", "import stable_baselines3"]
    if subprocess.run(words, capture_output=True).returncode == 0:
        return ""
    return f"stable-baselines3 is not installed for {bench.peers} (--peers PYTHON)"


def work(bench: Bench, point: Point, left_s: float) -> dict[str, Any]:
    """Returns the seconds of the units by which figures are priced."""
    return said_by(
        [
            sys.executable,
            "-m",
            "benchmarks.gpu.work",
            point["file"],
            bench.standing_in(point["device"]),
        ],
        left_s,
    )


PARTS: Mapping[str, Part] = {
    "sketch": beside_sketch(),
    "fig7": trainings(
        lambda bench: [
            (bench.usual, 1, "none"),
            *((bench.usual // count, count, "mps") for count in (2, 4)),
        ],
        8.0,
    ),
    "fig8": trainings(
        lambda bench: [
            (bench.usual // count, count, backend)
            for count in (2, 4)
            for backend in ("none", "mps", "mig")
        ],
        8.0,
    ),
    "sweep": trainings(lambda bench: [(size, 1, "none") for size in bench.sizes], 8.0),
    "fig9": trainings(lambda bench: [(bench.usual, 1, "none"), (bench.usual // 4, 4, "mps")], 60.0),
    "atari": Part(
        lambda bench: [
            {"contender": name, "turn": turn} for turn in range(bench.turns) for name in CONTENDERS
        ],
        play,
        missing_peer,
    ),
    "work": Part(
        lambda bench: [
            {"file": f"experiments/{name}.yaml", "device": device, "turn": turn}
            for turn in range(bench.turns)
            for name in ("hopper", "space_invaders")
            for device in ("cpu", "cuda")
        ],
        work,
        lambda bench: "",
    ),
}
"""By name, in order of worth; `sweep` is for figures 1 and 10."""
