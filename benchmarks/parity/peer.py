"""Shared code of the peers' scripts: their arguments and results. Imports nothing of ours."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def peer_arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of all peers."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment_id")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def write_run(out: Path, packages: Sequence[str], **told: Any) -> None:
    """Writes ``run.json``: a run's results and its package versions."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    (out / "run.json").write_text(json.dumps({**told, "versions": versions}))
