"""RLlib with a pool of actors; RLlib has an environment of its own.

Runs where ``RLLIB_PYTHON`` names an interpreter as docs/guides/rllib.md installs it. What needs no RLlib is in
tests/pool/test_server.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

PYTHON = os.environ.get("RLLIB_PYTHON", "")


@pytest.mark.skipif(not PYTHON, reason="RLLIB_PYTHON names no interpreter with RLlib")
def test_rllib(tmp_path: Path) -> None:
    checks = [PYTHON, "-W", "ignore", "-m", "tests.integrations.rllib_checks"]
    done = subprocess.run(
        [*checks, sys.executable, tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
