"""Docker's simulator: what it refuses. Each rehearsal starts a learner with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.simulators.docker import GPUS_VARIABLE

REPOSITORY = "1.dkr.ecr.us-east-1.amazonaws.com/assets"
PROGRAM = "import os, sys; print(os.environ['ONE'], os.environ['TWO'], sys.argv[1:], os.getcwd()); sys.exit(7)"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "asset.abc"
    folder.mkdir()
    (folder / "Dockerfile").write_text('FROM scratch\nENTRYPOINT ["python", "-m", "program"]\n')
    (folder / "program.py").write_text(PROGRAM)
    return folder


def docker(
    images: Path, *words: str, typed: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulators.docker", *words],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "IMAGES": str(images),
            **variables,
        },
    )


def test_what_is_not_there_is_neither_pulled_nor_run(image: Path) -> None:
    assert docker(image.parent, "pull", "--quiet", f"{REPOSITORY}:abc").returncode == 0
    gone = docker(image.parent, "pull", "--quiet", f"{REPOSITORY}:abcd")
    assert (gone.returncode, gone.stderr) == (1, "manifest unknown\n")
    assert docker(image.parent, "run", f"{REPOSITORY}:abcd").returncode == 125
    assert docker(image.parent, "login", "--password-stdin").returncode == 1
    assert docker(image.parent, "login", "--password-stdin", typed="token").returncode == 0


def test_a_container_with_gpus_runs_only_where_there_are_some(image: Path) -> None:
    words = ["run", "--gpus=all", "--env=ONE=1", "--env=TWO=2", f"{REPOSITORY}:abc"]
    assert docker(image.parent, *words).returncode == 125
    assert docker(image.parent, *words, **{GPUS_VARIABLE: "1"}).returncode == 7
