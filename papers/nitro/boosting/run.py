"""Makes all measurements of the study: ``python -m papers.nitro.boosting.run WORK [--jobs 2] [--minutes M]``.

Takes about eight hours of one slow core. After Ctrl-C, a kill or ``--minutes``, the same command continues. Then
``python -m papers.nitro.boosting.summarise WORK`` writes papers/nitro/results/boosting.json, and
``python -m papers.nitro.boosting.picture`` its pictures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SEEDS = range(3)
DOLLAR_SEEDS = range(10, 16)
"""Other seeds, so that a signal is not judged on the seeds that selected it."""
HOPPER, WALKER = "experiments/hopper.yaml", "experiments/walker2d-nitro.yaml"
WALKER_OPTIONS = ("--rounds", "32", "--repetitions", "4", "--largest", "4096")
"""Fewer than for Hopper, to save time."""
PAPER = "experiments/paper/hopper-ppo.yaml"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def commands(work: Path) -> Iterator[list[str]]:
    def command(name: str, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            f"papers.nitro.boosting.{name}",
            *arguments,
            "--out",
            str(work),
        ]

    for experiment, options in ((HOPPER, ()), (WALKER, WALKER_OPTIONS)):
        for seed in SEEDS:
            yield command("measure", experiment, "--seed", str(seed), *options)
    for seed in DOLLAR_SEEDS:
        yield command("dollars", HOPPER, "--seed", str(seed))
    for seed in SEEDS:
        yield command("measure", PAPER, "--paper", "--seed", str(seed))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    until_s = time.monotonic() + 60.0 * options.minutes

    def run(command: list[str]) -> int:
        left = (until_s - time.monotonic()) / 60.0
        if left <= 0.0:
            return 0
        return subprocess.run(
            [*command, "--minutes", f"{left:.2f}"], check=False, env={**os.environ, **ONE_THREAD}
        ).returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        return int(any(list(pool.map(run, commands(options.work)))))


if __name__ == "__main__":
    sys.exit(main())
