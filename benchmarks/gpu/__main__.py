"""Measures GMI-DRL's figures, games, and units of work on one NVIDIA GPU, in twelve minutes at most.

    make bench-gpu [ARGS="--sketch sketch.py --peers /tmp/peers/bin/python"]
    python -m benchmarks.gpu --part fig8
    python -m benchmarks.gpu --page
    python -m benchmarks.gpu --rehearse [--peers PYTHON]

Writes benchmarks/results/gpu/PART.json after each point. The same command continues with missing points. A part that
lacks a package names it and writes nothing. ``--page`` writes them into papers/gmi_drl/gpu.md. ``--rehearse``
tries everything at its smallest size on a CPU, into a temporary folder. Its numbers mean nothing.

Figures need mujoco-warp (the extra warp), games stable-baselines3 (benchmarks/peers/requirements.txt).
`make` installs none of them. If you cannot install packages, run the module with a Python that has them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.gpu import card, page
from benchmarks.gpu.limits import LIMIT_S, measure_part
from benchmarks.gpu.parts import PARTS, Bench
from benchmarks.provenance import origin
from runtime.gmi.devices import look


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, default=list(PARTS), help="parts (default: all)"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that all may take")
    parser.add_argument("--turns", type=int, default=1, help="measurements of each point")
    parser.add_argument("--sketch", default="", help="program that measures what the GPU can do")
    parser.add_argument("--peers", default=sys.executable, help="Python that has stable-baselines3")
    parser.add_argument("--out", type=Path, default=page.RESULTS, help="folder of the results")
    parser.add_argument("--page", action="store_true", help="write the page of the results")
    parser.add_argument("--rehearse", action="store_true", help="try everything without a GPU")
    args = parser.parse_args(words)
    if args.page:
        page.write(args.out, page.PAGE)
        return
    # Uses one GPU even if there are several: the figures are for one.
    machine = look()
    bench = Bench(
        replace(machine, gpus=machine.gpus[:1]), args.peers, args.rehearse, args.sketch, args.turns
    )
    end_s = time.monotonic() + args.limit
    lacking = "" if args.rehearse else card.missing(bench.machine)
    results = Path(tempfile.mkdtemp(prefix="rehearsed-")) if args.rehearse else args.out
    if machine.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = machine.gpus[0].uuid
    for name in args.part:
        part = PARTS[name]
        if lacks := lacking or part.missing(bench):
            print(f"{name}: not measured: {lacks}", flush=True)
            continue
        head = {
            **origin(f"python -m benchmarks.gpu --part {name}"),
            **({"is_rehearsed": True} if args.rehearse else card.about(bench.machine)),
        }
        results.mkdir(parents=True, exist_ok=True)
        measure_part(
            results / f"{name}.json",
            head,
            part.points(bench),
            partial(part.measure, bench),
            limit_s=end_s - time.monotonic(),
            say=partial(print, flush=True),
        )
    if args.rehearse:
        page.write(results, results / "gpu.md", is_rehearsal=True)


if __name__ == "__main__":
    main()
