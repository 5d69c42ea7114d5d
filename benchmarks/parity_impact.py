"""IMPACT here against RLlib's APPO, its implementation of IMPACT, with the same hyper-parameters.

    python3 -m venv peer && peer/bin/pip install -r benchmarks/parity/requirements-impact.txt
    python benchmarks/parity_impact.py --work runs/parity_impact --peer-python peer/bin/python
    python benchmarks/parity_impact.py --work runs/parity_impact --summarise

The second may be interrupted and repeated: what is finished is kept. The last writes
benchmarks/results/parity_impact.json and .png. Both sides are asynchronous, so that how often a minibatch is replayed,
and how old its policy is, depends on the machine: do not run several at once unless there are cores for it.

RLlib 2.60 expects nothing to follow where a fragment is cut (see `MendedLearner` in benchmarks/parity/rllib_appo.py).
``--mended``, in both of the last commands, compares with APPO without that; its results are
parity_impact_mended.json and .png, and our runs are shared.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.parity.bench import Benchmark, main  # noqa: E402

MENDED = "--mended"


def our_details(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Updates, each a gradient step as long as no more than a minibatch is new; and how stale trajectories were."""
    return {"updates": sum(row["updates"] for row in rows),
            "replayed_fraction_mean": sum(row["replayed_fraction"] for row in rows) / len(rows),
            "staleness_mean": sum(row["staleness_mean"] for row in rows) / len(rows)}


BENCHMARK = Benchmark(
    name="parity_impact", experiment="benchmarks/parity/impact.yaml", peer_script="benchmarks/parity/rllib_appo.py",
    titles=("IMPACT here", "RLlib APPO"), environments=("CartPole-v1",), steps=100_000, seeds=5,
    differences=(
        "fragments that are cut: V of the next observation is expected to follow; in RLlib 2.60 nothing is, because "
        "V-trace's target of the step that it appends is 0 (not with --mended)",
        "rows of V-trace: each is a fragment of 64 steps of one environment; there the appended steps shift "
        "the rows of 64, whose ends are bootstrapped by the next row's first value",
        "circular buffer: a minibatch is trained on when it comes, and once more while the learner has nothing new to "
        "do; there twice in random order as soon as it is there, so that replays are more",
        "target network: renewed before an update after 8 minibatches trained on; there after one, counted by new "
        "minibatches alone, so that the frequency is set to 0.5 there and 1 here",
        "KL penalty: β adapts to the KL after an update and not below a thousandth of its first value; there to the "
        "KL of the step's own loss, without a limit",
        "gradients: clipped to norm 40 for policy and critic each; there for both together",
        "Adam: ε 1e-5; there 1e-8",
        "initial weights: orthogonal on both sides; of the last layer gain 0.01 for the policy and 1 for the critic; "
        "there 0.01 for both",
        "actors: eight of 64 steps each, one after the other in one process, each with the newest policy; there eight "
        "environments in one process step together",
    ),
    our_details=our_details)


def chosen(arguments: Sequence[str]) -> Benchmark:
    """The benchmark that the command line asks for."""
    if MENDED not in arguments:
        return BENCHMARK
    return dataclasses.replace(
        BENCHMARK, name="parity_impact_mended", titles=(BENCHMARK.titles[0], "RLlib APPO, mended"), peer="mended",
        peer_arguments=(MENDED,), differences=BENCHMARK.differences[1:])


if __name__ == "__main__":
    sys.exit(main(chosen(sys.argv), __doc__, [argument for argument in sys.argv[1:] if argument != MENDED]))
