r"""Records the durations of Stellaris' learner functions here, for `papers.stellaris.virtual`.

    python -m papers.stellaris.record experiments/hopper-stellaris.yaml --out durations.json \
        [--minibatches 1024 4096] [--rounds 3] [--set section.key=value ...]

Trains a few rounds with each minibatch size, in processes on this machine. Writes the CPU seconds of every gradient and
every process start. Run it on an idle machine: other load makes them longer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import commit_of, processor
from runtime.cli.main import main as run
from runtime.fleet import FleetSetup
from runtime.fleet.inline import PassingFleet
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.fleet.settings import LocalSettings
from runtime.learner.functions.settings import StellarisSettings
from runtime.money.work import Outcome


class RecordedSettings(StellarisSettings):
    """Settings of Stellaris whose functions are recorded."""

    records: str = "durations.jsonl"

    def functions_fleet(self) -> RecorderSettings:
        """Returns the fleet of its learner functions."""
        return RecorderSettings(records=self.records)


class RecorderSettings(LocalSettings):
    """Settings of processes that are recorded."""

    records: str

    def make(self, setup: FleetSetup) -> Recorder:
        """Makes the fleet."""
        return Recorder(super().make(setup), Path(self.records))


class Recorder(PassingFleet):
    """A fleet that appends the durations of another fleet's invocations to a file."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        """Wraps a fleet."""
        super().__init__(fleet)
        self._path = path
        self._samples: dict[str, int] = {}

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        self._samples |= {one.invocation_id: len(one.event["indices"]) for one in invocations}
        super().start(invocations)

    def _passed(self, outcome: Outcome) -> Outcome:
        """Does not record a process's first gradient, because it takes longer."""
        if outcome.cpu_s:
            found = {"samples": self._samples[outcome.invocation_id], "s": outcome.cpu_s}
        elif outcome.status == "ok":
            found = {"samples": 0, "s": outcome.init_cpu_s}
        else:
            return outcome
        with self._path.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        return outcome


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
    found: dict[int, list[float]] = {}
    for steps in asked.minibatches:
        with tempfile.TemporaryDirectory() as folder:
            changes = [
                *asked.set,
                "learner.kind=papers.stellaris.record:RecordedSettings",
                f"learner.records={folder}/records",
                "stop.target_return=null",
                f"stop.max_rounds={asked.rounds}",
                "evaluation.every_rounds=0",
                "learner.threads=1",
                f"algorithm.minibatch_steps={steps}",
            ]
            words = [word for change in changes for word in ("--set", change)]
            if code := run(["train", str(asked.experiment), "--out", f"{folder}/run", *words]):
                raise SystemExit(code)
            for line in Path(folder, "records").read_text().splitlines():
                one: dict[str, Any] = json.loads(line)
                found.setdefault(one["samples"], []).append(round(one["s"], 6))
    start_s = found.pop(0)
    about = {
        "command": " ".join(
            [
                "python -m papers.stellaris.record",
                str(asked.experiment),
                *(f"--set {change}" for change in asked.set),
            ]
        ),
        "commit": commit_of(),
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "unit": "CPU seconds of one core",
    }
    gradient_s = {str(samples): found[samples] for samples in sorted(found)}
    asked.out.write_text(
        json.dumps({"about": about, "start_s": start_s, "gradient_s": gradient_s}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
