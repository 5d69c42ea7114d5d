"""Measures each round's signals along one training, their noise, and the gain from boosting the round.

    python -m papers.nitro.boosting.measure experiments/hopper.yaml --seed 0 --out WORK [--paper] [--minutes M]

The base is a training with I_min actors in every round. Before each of its rounds k, with policy π_k:

- ``signals``: all signals, from the batch that made π_k, as a run has them when it must decide.
- ``noise`` (in blocks of consecutive rounds): R of π_k on independent batches of π_k, by objective and size, on other
  subsets of one batch, and from other start vectors.
- ``lanczos`` (first round of each block): R with fewer and more iterations.
- ``gain`` (every few rounds; paper: Nitro §2.2 and §5.2, Fig. 2 and 7): round k is rolled out several times with I_max
  actors. π_k is updated from all of them, from the first I_min, and from all of them with larger minibatches, in the
  number of gradient steps of the first I_min. Each of these policies is evaluated.

Each measurement is a line of ``WORK/NAME-SEED.jsonl``. A restart repeats the training, which is identical to the bit,
and makes only the missing measurements.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from papers.nitro.boosting import signals
from papers.nitro.boosting.trainer import Trainer
from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment
from runtime.ports.learning import DetectorSamples
from runtime.records.files import write_atomically

ROUNDS = 60
BLOCKS = [(start, start + 3) for start in (10, 30, 50)]
"""Consecutive rounds whose noise is measured."""
SIZES = (1024, 4096, 32768)
MIDDLE_SIZE, LARGE_SIZE = SIZES[1:]
REPLICATES = 3
"""Independent batches of each policy."""
REPLICATES_LARGE, LARGE_ROUNDS = 2, (30, 32)
"""The same for the large size, which takes most of the time: fewer batches, for fewer policies."""
LANCZOS_STEPS = (4, 6, 8, 10, 15, 20, 40)
GAIN_EVERY = 4
REPETITIONS = 6
EPISODES, EPISODES_BEFORE = 16, 64
SAME_STEPS = "boosted_same_steps"
POOLED_ROUNDS = 4
PAPER = {"rounds": 10, "gain_every": 1, "repetitions": 10, "actors_min": 1, "actors_max": 16}
"""Paper: Nitro §2.2: ten rounds, one actor of 256 steps against sixteen."""


class Study:
    """One base training and its lines."""

    def __init__(
        self,
        path: Path,
        trainer: Trainer,
        *,
        actors_min: int,
        actors_max: int,
        largest: int,
        until_s: float,
    ) -> None:
        self._file = claim(path, trainer.experiment.identity)
        self._trainer, self._largest, self._until_s = trainer, largest, until_s
        self._actors_min, self._actors_max = actors_min, actors_max
        self._known = {
            (line["kind"], line["round_index"], line["repetition"]) for line in whole_lines(path)
        }

    def run(self, rounds: int, gain_every: int, repetitions: int, *, has_noise: bool) -> None:
        """Trains, and makes missing measurements, until the time is up."""
        trainer, batches, report = self._trainer, [], {}
        for round_index in range(1, rounds + 1):
            if batches:
                self._once("signals", self._signals, round_index, 0, batches, report)
            if has_noise and any(round_index == start for start, _ in BLOCKS):
                self._once("lanczos", self._lanczos, round_index, 0)
            if has_noise and any(start <= round_index < end for start, end in BLOCKS):
                for replicate in range(REPLICATES):
                    self._once("noise", self._noise, round_index, replicate)
            if batches and round_index % gain_every == 0:
                for repetition in range(repetitions):
                    self._once("gain", self._gain, round_index, repetition)
            fragments = trainer.roll_out(round_index, self._actors_min)
            update = trainer.update(fragments)
            batches = [*batches, update.samples][-POOLED_ROUNDS:]
            returns = np.concatenate([one["episode_returns"] for one in fragments])
            report = signals.of_update(update) | {
                "episodes_finished": len(returns),
                "episode_return_mean": float(returns.mean()) if len(returns) else None,
                "episode_return_std": float(returns.std()) if len(returns) > 1 else None,
            }

    def _once(
        self,
        kind: str,
        measure: Callable[..., dict[str, Any]],
        round_index: int,
        repetition: int,
        *more: Any,
    ) -> None:
        if (kind, round_index, repetition) in self._known:
            return
        if time.monotonic() > self._until_s:
            raise TimeoutError("no time is left; start again to continue")
        started_s, before = time.perf_counter(), self._trainer.snapshot()
        line = {
            "kind": kind,
            "round_index": round_index,
            "repetition": repetition,
            **measure(round_index, repetition, *more),
            "seconds": time.perf_counter() - started_s,
        }
        self._trainer.restore(before)
        append(self._file, line)

    def _signals(
        self,
        _round_index: int,
        _repetition: int,
        batches: list[DetectorSamples],
        report: dict[str, Any],
    ) -> dict[str, Any]:
        learner, last = self._trainer.learner, batches[-1]
        return {
            **{
                f"{objective}-1024": signals.curvature(learner, last, objective, subset_size=1024)
                for objective in signals.OBJECTIVES
            },
            **{
                f"{objective}-all": signals.curvature(learner, last, objective)
                for objective in signals.OBJECTIVES
            },
            "log_prob-pooled": signals.curvature(learner, signals.pooled(batches), "log_prob"),
            **signals.gradient_noise(learner, last),
            **report,
        }

    def _noise(self, round_index: int, replicate: int) -> dict[str, Any]:
        steps = self._trainer.experiment.actor.fragment_steps
        has_large = (
            self._largest >= LARGE_SIZE
            and replicate < REPLICATES_LARGE
            and round_index in LARGE_ROUNDS
        )
        sizes = [size for size in SIZES if size < LARGE_SIZE or has_large]
        fragments = self._trainer.roll_out(round_index, max(sizes) // steps, seed=_seed(replicate))
        learner = self._trainer.learner

        def samples(size: int) -> DetectorSamples:
            # The smallest is drawn from twice its size, like a run's subset from its smallest round.
            return learner.samples(
                self._trainer.batch(fragments[: max(size, 2 * SIZES[0]) // steps])
            ).arrays

        by_size = {size: samples(size) for size in sizes}
        one = by_size[MIDDLE_SIZE]
        returns = np.concatenate(
            [one["episode_returns"] for one in fragments[: MIDDLE_SIZE // steps]]
        )
        found: dict[str, Any] = {
            "sizes": {
                str(size): {
                    objective: signals.curvature(learner, drawn, objective, subset_size=size)
                    for objective in signals.OBJECTIVES
                }
                for size, drawn in by_size.items()
            },
            "others": {
                **signals.gradient_noise(learner, one),
                "target_std": float(one.value_targets.std()),
                "episode_return_mean": float(returns.mean()) if len(returns) else None,
            },
        }
        if replicate == 0:
            for name, seeds in (
                ("subsets", [(seed, 0) for seed in range(4)]),
                ("starts", [(0, 0), (0, 1)]),
            ):
                found[name] = {
                    objective: [
                        signals.curvature(
                            learner,
                            one,
                            objective,
                            subset_size=1024,
                            subset_seed=subset,
                            start_seed=start,
                        )
                        for subset, start in seeds
                    ]
                    for objective in signals.OBJECTIVES
                }
        return found

    def _lanczos(self, round_index: int, _repetition: int) -> dict[str, Any]:
        trainer = self._trainer
        fragments = trainer.roll_out(
            round_index, SIZES[0] // trainer.experiment.actor.fragment_steps, seed=_seed(0)
        )
        samples = trainer.learner.samples(trainer.batch(fragments)).arrays
        return {
            "steps": {
                str(steps): {
                    objective: signals.curvature(
                        trainer.learner, samples, objective, lanczos_steps=steps
                    )["ratio"]
                    for objective in signals.OBJECTIVES
                }
                for steps in LANCZOS_STEPS
            }
        }

    def _gain(self, round_index: int, repetition: int) -> dict[str, Any]:
        trainer, before = self._trainer, self._trainer.snapshot()
        found = {}
        if repetition == 0:
            found["returns_before"] = trainer.returns(EPISODES_BEFORE, seed=_seed(10_000)).tolist()
        fragments = trainer.roll_out(round_index, self._actors_max, seed=_seed(repetition))
        for name, actors, factor in (
            ("plain", self._actors_min, 1),
            ("boosted", self._actors_max, 1),
            (SAME_STEPS, self._actors_max, self._actors_max // self._actors_min),
        ):
            trainer.restore(before)
            trainer.update(fragments[:actors], minibatch_factor=factor)
            found[f"returns_{name}"] = trainer.returns(
                EPISODES, seed=_seed(20_000 + repetition)
            ).tolist()
        return found


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the file's lines, without an unfinished one.

    Raises: SystemExit: A finished line is not JSON.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise SystemExit(f"{path} is corrupt: {error}") from error


def claim(path: Path, settings: str) -> BinaryIO:
    """Opens or creates the file for this process alone. Removes a line that a kill cut short.

    Args:
        settings: The settings on which its lines depend; kept next to it.

    Raises: SystemExit: Another process measures into it, or it was begun with other settings.
    """
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SystemExit(f"{path}: another process measures into it") from None
    kept = path.with_suffix(".settings")
    if not kept.exists():
        write_atomically(kept, settings.encode())
    if kept.read_text() != settings:
        file.close()
        raise SystemExit(f"{path}: was begun with other settings; name another --out")
    file.seek(0)
    held = file.read()
    if held and not held.endswith(b"\n"):
        file.truncate(held.rfind(b"\n") + 1)
    return file


def append(file: BinaryIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line).encode() + b"\n")
    file.flush()


def _seed(number: int) -> int:
    return 1_000_000 + number


def make_parser() -> argparse.ArgumentParser:
    """Returns a parser with the options of all parts of the study."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=1e9)
    return parser


def begin(options: argparse.Namespace) -> tuple[Experiment, float]:
    """Makes the folder. Returns the experiment, for one thread, and the deadline in monotonic seconds."""
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    experiment = load_experiment(
        options.experiment, [f"seed={options.seed}", "learner.threads=1"]
    ).resolved()
    return experiment, time.monotonic() + 60.0 * options.minutes


def main() -> None:
    parser = make_parser()
    parser.add_argument(
        "--paper", action="store_true", help="the paper's ten rounds, one actor against sixteen"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument(
        "--largest",
        type=int,
        default=LARGE_SIZE,
        choices=SIZES[1:],
        help="largest number of samples for measuring R",
    )
    options = parser.parse_args()
    experiment, until_s = begin(options)
    settings = (
        PAPER
        if options.paper
        else {
            "rounds": options.rounds,
            "gain_every": GAIN_EVERY,
            "repetitions": options.repetitions,
            "actors_min": experiment.scaler.actors_min,
            "actors_max": experiment.scaler.actors_max,
        }
    )
    name = f"{experiment.environment.id}{'-paper' if options.paper else ''}-{options.seed}"
    study = Study(
        options.out / f"{name}.jsonl",
        Trainer(experiment),
        actors_min=settings["actors_min"],
        actors_max=settings["actors_max"],
        largest=options.largest,
        until_s=until_s,
    )
    try:
        study.run(
            settings["rounds"],
            settings["gain_every"],
            settings["repetitions"],
            has_noise=not options.paper,
        )
    except TimeoutError as end:
        print(f"{name}: {end}")


if __name__ == "__main__":
    main()
