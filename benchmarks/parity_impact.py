"""Compares our IMPACT with RLlib's implementation, APPO, with the same hyperparameters.

    python3 -m venv peer && peer/bin/pip install -r benchmarks/parity/requirements-impact.txt
    python benchmarks/parity_impact.py --work runs/parity_impact --peer-python peer/bin/python
    python benchmarks/parity_impact.py --work runs/parity_impact --summarise

The second command may be interrupted and repeated: it keeps finished runs. The last writes
benchmarks/results/parity_impact.json and .png. Both sides are asynchronous, so the number of replays of a minibatch and
the age of its policy depend on the machine: do not run several at once unless there are cores for them.

RLlib 2.60 does not bootstrap where a fragment is cut (see `MendedLearner` in benchmarks/parity/rllib_appo.py).
``--mended``, in both of the last commands, compares with APPO with that corrected. Its results are
parity_impact_mended.json and .png, and our runs are shared.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.parity.bench import DIFFERENCES, Benchmark, main  # noqa: E402

MENDED = "--mended"


def our_details(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the number of updates, single gradient steps while at most a minibatch is new, and mean staleness."""
    return {
        "updates": sum(row["updates"] for row in rows),
        "replayed_fraction_mean": sum(row["replayed_fraction"] for row in rows) / len(rows),
        "staleness_mean": sum(row["staleness_mean"] for row in rows) / len(rows),
    }


BENCHMARK = Benchmark(
    name="parity_impact",
    experiment="benchmarks/parity/impact.yaml",
    peer_script="benchmarks/parity/rllib_appo.py",
    titles=("IMPACT here", "RLlib APPO"),
    environments=("CartPole-v1",),
    steps=100_000,
    seeds=5,
    differences=DIFFERENCES["parity_impact"],
    our_details=our_details,
)


def chosen(arguments: Sequence[str]) -> Benchmark:
    """Returns the benchmark that the command line names."""
    if MENDED not in arguments:
        return BENCHMARK
    return dataclasses.replace(
        BENCHMARK,
        name="parity_impact_mended",
        titles=(BENCHMARK.titles[0], "RLlib APPO, mended"),
        peer="mended",
        peer_arguments=(MENDED,),
        differences=BENCHMARK.differences[1:],
    )


if __name__ == "__main__":
    sys.exit(
        main(
            chosen(sys.argv), __doc__, [argument for argument in sys.argv[1:] if argument != MENDED]
        )
    )
