"""The origin of a result: its commit and processor, in the same form for every benchmark and study."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from lambda_actor.replay import processor as processor

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
