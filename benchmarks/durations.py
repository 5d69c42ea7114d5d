r"""Records the durations of learner functions here, for learner.stellaris.place = virtual.

    python -m benchmarks.durations experiments/hopper-stellaris.yaml --out durations.json \
        [--minibatches 1024 4096] [--rounds 3] [--set section.key=value ...]

Trains a few rounds with each minibatch size, in processes on this machine. Writes the CPU seconds of every gradient and
every process start in the format of runtime/cost/durations.py. Run it on an idle machine: other load makes them longer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.provenance import commit_of, processor
from runtime.backends import this_machine
from runtime.cli.main import main as run
from runtime.cost.rates import GradientTimes
from runtime.ports.fleet import Fleet, Invocation, Outcome
from runtime.ports.run import RunContext


class Recorder:
    """A fleet that records the durations of another fleet's invocations."""

    def __init__(
        self, fleet: Fleet, gradient_s: dict[int, list[float]], start_s: list[float]
    ) -> None:
        """Wraps a fleet, and takes the lists to which seconds are added."""
        self._fleet, self._gradient_s, self._start_s = fleet, gradient_s, start_s
        self.concurrency = fleet.concurrency
        self._samples: dict[str, int] = {}

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        self._samples |= {one.invocation_id: len(one.event["indices"]) for one in invocations}
        self._fleet.start(invocations)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns outcomes. Does not record a process's first gradient, because it takes longer."""
        outcomes = self._fleet.wait(timeout_s)
        for one in outcomes:
            if one.cpu_s:
                self._gradient_s.setdefault(self._samples[one.invocation_id], []).append(
                    round(one.cpu_s, 6)
                )
            elif one.status == "ok":
                self._start_s.append(round(one.init_cpu_s, 6))
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Gives these up."""
        self._fleet.abandon(invocation_ids)

    def close(self) -> None:
        """Ends everything."""
        self._fleet.close()


def main() -> None:
    """Records durations and writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minibatches", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    gradient_s: dict[int, list[float]] = {}
    start_s: list[float] = []
    processes = this_machine.LEARNER_PLACES["processes"]

    def recorded(context: RunContext, times: GradientTimes) -> Fleet:
        return Recorder(processes(context, times), gradient_s, start_s)

    this_machine.LEARNER_PLACES = {**this_machine.LEARNER_PLACES, "processes": recorded}
    for steps in asked.minibatches:
        changes = [
            *asked.set,
            "learner.kind=stellaris",
            "learner.stellaris.place=processes",
            "stop.target_return=null",
            f"stop.max_rounds={asked.rounds}",
            "evaluation.every_rounds=0",
            "learner.threads=1",
            f"algorithm.ppo.minibatch_steps={steps}",
        ]
        with tempfile.TemporaryDirectory() as folder:
            code = run(
                [
                    "train",
                    str(asked.experiment),
                    "--out",
                    f"{folder}/run",
                    *(word for change in changes for word in ("--set", change)),
                ]
            )
        if code:
            raise SystemExit(code)
    asked.out.write_text(
        json.dumps(
            {
                "about": {
                    "command": " ".join(
                        [
                            "python -m benchmarks.durations",
                            str(asked.experiment),
                            *(f"--set {change}" for change in asked.set),
                        ]
                    ),
                    "commit": commit_of(),
                    "date": datetime.date.today().isoformat(),
                    "machine": processor(),
                    "unit": "CPU seconds of one core",
                },
                "start_s": start_s,
                "gradient_s": {str(samples): gradient_s[samples] for samples in sorted(gradient_s)},
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
