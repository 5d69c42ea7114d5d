"""RLlib with a pool of actors; RLlib has an environment of its own.

Runs where ``RLLIB_PYTHON`` names an interpreter as docs/guides/rllib.md installs it. What needs no RLlib is in
tests/pool/test_server.py.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import ROOT

PYTHON = os.environ.get("RLLIB_PYTHON", "")
SCRIPT = ROOT / "tests" / "integrations" / "rllib_checks.py"
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(one, ast.Name) and one.id == "check" for one in node.decorator_list)
]
PATIENCE_S = 900.0


@cache
def results(directory: Path) -> dict[str, str]:
    done = subprocess.run(
        [
            PYTHON,
            "-W",
            "ignore",
            "-m",
            "tests.integrations.rllib_checks",
            sys.executable,
            directory,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "\nCHECKED" in done.stdout, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.rpartition("\nCHECKED")[2])
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rllib")


@pytest.mark.skipif(not PYTHON, reason="RLLIB_PYTHON names no interpreter with RLlib")
@pytest.mark.parametrize("name", CHECKS)
def test_rllib(name: str, directory: Path) -> None:
    failed = results(directory)[name]
    if failed.startswith("skipped: "):
        pytest.skip(failed)
    assert not failed, failed


def test_the_checks_are_found() -> None:
    assert {"policies_equal_the_module", "ppo_trains_until_the_budget_ends"} <= set(CHECKS)
