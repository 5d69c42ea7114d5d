"""Times one sum of a gradient over several processes: each reduction against gloo, in wall-clock and total CPU seconds.

    python benchmarks/gmi_reduction.py

Devices are simulated: every two processes share one, but if there are only two, each has its own. All reductions are
set up at once and take turns with gloo's all_reduce. Ratios are taken turn by turn, so that drifts in the machine's
speed cancel out. A sum lasts until the slowest process has it. Prints JSON. Measure on an idle machine, and keep the
output under benchmarks/results/.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402

from benchmarks.provenance import origin  # noqa: E402
from runtime.gmi.group import InstanceGroup  # noqa: E402

ELEMENTS = {"Hopper, two networks of 2 × 256": 140_000, "Atari, convolutions": 1_700_000}
DEVICES = {2: [0, 1], 4: [0, 0, 1, 1], 8: [0, 0, 1, 1, 2, 2, 3, 3]}
"""By processes."""
REDUCTIONS = ("mpr", "mrr", "har")
TURNS = 101
WARM_UP = 10


def member(rank: int, processes: int, folder: str) -> None:
    """Takes part. Prints each turn's wall-clock and CPU seconds by gradient and contender."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=processes
    )
    for number, elements in enumerate(ELEMENTS.values()):
        gradient, nothing = torch.randn(elements), torch.zeros(1)
        groups = {
            reduction: InstanceGroup(
                rank=rank,
                devices=DEVICES[processes],
                path=f"{folder}/{number}-{reduction}",
                reduction=reduction,
                timeout_s=600.0,
                device="cpu",
                elements=elements,
            )
            for reduction in REDUCTIONS
        }
        contenders: dict[str, Callable[[], Any]] = {
            "gloo": lambda gradient=gradient: distributed.all_reduce(gradient),
            **{
                reduction: lambda group=group, gradient=gradient: group.sum([gradient])
                for reduction, group in groups.items()
            },
        }
        turns = []
        for _ in range(WARM_UP + TURNS):
            gradient.fill_(1.0)
            turns.append({})
            for contender, act in contenders.items():
                groups["mpr"].sum([nothing])  # Makes all begin at the same time.
                wall_s, cpu_s = time.perf_counter(), time.process_time()
                act()
                turns[-1][contender] = time.perf_counter() - wall_s, time.process_time() - cpu_s
        print(json.dumps(turns[WARM_UP:]), flush=True)
        for group in groups.values():
            group.leave()


def measured(processes: int) -> dict[str, dict[str, Any]]:
    """Returns, by gradient and contender, the slowest process's median milliseconds, total CPU, and ratio to gloo."""
    with tempfile.TemporaryDirectory() as folder:
        members = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(processes), folder],
                text=True,
                stdout=subprocess.PIPE,
            )
            for rank in range(processes)
        ]
        outputs = [one.communicate()[0] for one in members]
    found = {}
    for name, lines in zip(
        ELEMENTS, zip(*(output.splitlines() for output in outputs), strict=True), strict=True
    ):
        turns = list(zip(*map(json.loads, lines), strict=True))
        wall, cpu = (
            [
                {contender: pick(one[contender][kind] for one in turn) for contender in turn[0]}
                for turn in turns
            ]
            for kind, pick in ((0, max), (1, sum))
        )
        found[name] = {
            contender: {
                "wall_ms": median(1e3 * turn[contender] for turn in wall),
                "cpu_ms_of_all": median(1e3 * turn[contender] for turn in cpu),
                "ratio_to_gloo": median(turn[contender] / turn["gloo"] for turn in wall),
            }
            for contender in wall[0]
        }
    return found


def median(values: Any) -> float:
    return float(f"{statistics.median(values):.3g}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        member(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
        raise SystemExit
    load = os.getloadavg()[0]
    print(
        json.dumps(
            {
                **origin("python benchmarks/gmi_reduction.py"),
                "load_before": round(load, 2),
                "turns": TURNS,
                "elements": ELEMENTS,
                "sums": {f"{processes} processes": measured(processes) for processes in DEVICES},
            },
            indent=2,
        )
    )
