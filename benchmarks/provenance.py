"""The origin of a result: its commit and processor, in the same form for every benchmark and study."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit_of(checkout: Path = ROOT) -> str:
    """Returns the short hash of a checkout's commit; empty outside of git."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()


def origin(command: str) -> dict[str, str]:
    """Returns the head of a result: its command, this commit, today's date, and this machine."""
    return {
        "command": command,
        "commit": commit_of(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": f"{os.cpu_count()} shared cores of {processor()}",
    }


def processor() -> str:
    """Returns the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
