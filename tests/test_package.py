"""The project, installed as a user installs it from a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import runtime
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment into which a copy of this clone is installed; libraries are this interpreter's."""
    clone, environment = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("environment")
    for name in ("runtime", "lambda_actor", "stacks"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    venv.create(environment)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet",
         "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(clone)],
        check=True, capture_output=True, text=True)
    return environment


def output(environment: Path, *words: str, cwd: Path) -> str:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([environment / "bin" / words[0], *words[1:]], cwd=cwd, env=variables, check=True,
                          capture_output=True, text=True, timeout=120).stdout


def test_it_can_be_imported_from_anywhere(environment: Path, tmp_path: Path) -> None:
    code = ("import runtime, lambda_actor.wire, stacks.staging, importlib.metadata as metadata\n"
            "print(runtime.__version__, metadata.version('nitro-serverless-actors'), runtime.__file__,\n"
            "      runtime.train.__name__, runtime.load_policy.__name__)")
    version, installed, file, *names = output(environment, "python", "-c", code, cwd=tmp_path).split()
    assert version == installed == runtime.__version__
    assert not Path(file).is_relative_to(ROOT)
    assert names == ["train", "load_policy"]


def test_the_command_is_that_of_the_module(environment: Path, tmp_path: Path) -> None:
    own, of_module = (output(environment, *words, "--help", cwd=tmp_path)
                      for words in (["nitro-rl"], ["python", "-m", "runtime"]))
    assert "train" in own
    assert own == of_module


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = "import runtime, sys; print([name for name in sys.modules if name.startswith(('runtime.', 'numpy'))])"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True,
                          text=True).stdout.strip() == "[]"
    assert {"train", "load_policy"} <= set(dir(runtime))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = runtime.nothing_like_it


def test_the_package_asks_for_what_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(one) for one in project["dependencies"]]
    pins = dict(line.split(";")[0].split("==") for line in (ROOT / "requirements.txt").read_text().splitlines()
                if "==" in line)
    assert {one.name: pins[one.name] in one.specifier for one in asked} == dict.fromkeys(
        [one.name for one in asked], True)
    assert "3.17.0" in next(one.specifier for one in asked if one.name == "mujoco")
