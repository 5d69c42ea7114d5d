"""Compares instances with one learner and with EnvPool + CleanRL, in environment steps per second on this machine.

    python -m venv /tmp/peers && /tmp/peers/bin/python -m pip install -r benchmarks/peers/requirements.txt
    python -m benchmarks.gmi --peers /tmp/peers/bin/python [--instances 2] [--repeats 5]

As in `benchmarks.whole_training`, contenders take turns, and ratios are per turn. Keep the machine idle. Writes
benchmarks/results/gmi.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.provenance import ROOT, origin
from benchmarks.whole_training import Contender, compare

SLOW = "benchmarks.slow_humanoid:frames_80"
SETTINGS = {
    "whole batch": {"steps": 40_960, "batch": 4096, "epochs": 10, "minibatch": 4096},
    "minibatch 1,024": {"steps": 40_960, "batch": 4096, "epochs": 10, "minibatch": 1024},
    "minibatch 256": {"steps": 40_960, "batch": 4096, "epochs": 10, "minibatch": 256},
    "8 x 256, minibatch 64": {"steps": 20_480, "batch": 2048, "epochs": 10, "minibatch": 64},
    "slow environment, minibatch 64": {
        "steps": 1536,
        "batch": 512,
        "epochs": 10,
        "minibatch": 64,
        "environment": SLOW,
    },
}
"""By name. A step of the slow environment takes about 5 ms. The other cases use Hopper-v5."""


def contenders(peers: str | None, instances: int) -> dict[str, Contender]:
    here = str(ROOT / "benchmarks")
    engine = [sys.executable, f"{here}/engine_rounds.py"]
    found = {}
    for threads in (1, 2):
        more = ["--threads", str(threads)]
        found[f"one learner, {threads} threads"] = Contender("ours", [*engine, *more], ROOT)
        if peers:
            found[f"EnvPool + CleanRL, {threads} threads"] = Contender(
                "EnvPool + CleanRL", [peers, f"{here}/peers/envpool_cleanrl.py", *more]
            )
    alone = ["--threads", "1", "--instances", str(instances)]
    found[f"{instances} instances"] = Contender("instances", [*engine, *alone], ROOT)
    return found


def main(args: argparse.Namespace) -> None:
    results = {
        **origin(f"python -m benchmarks.gmi {' '.join(sys.argv[1:])}"),
        "load_before": os.getloadavg(),
        "settings": {},
    }
    for name, options in SETTINGS.items():
        found = contenders(args.peers if "environment" not in options else None, args.instances)
        summary = compare(name, found, options, args.repeats)
        results["settings"][name] = {"of": options, "contenders": summary}
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", help="Python of the peers' environment; none = they are left out"
    )
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "gmi.json"))
    main(parser.parse_args())
