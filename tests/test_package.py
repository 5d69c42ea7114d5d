"""The project as a wheel, in an environment that contains only the wheel's requirements."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nitro_rl
from tests.helpers import ROOT
from tests.requirements import CDK, EXTRAS, PROJECT, lines, pins, required

PACKAGES = ("nitro_rl", "runtime", "lambda_actor")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy of this clone, because building writes into it."""
    clone, folder = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    pip(
        sys.executable,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(clone),
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel, and with links to the required libraries of this environment.

    pip resolves the wheel's requirements against these without an index, so a library that is missing or out of range
    fails here.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment)
    python = str(environment / "bin" / "python")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for distribution in required(PROJECT["dependencies"]).values():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    pip(python, "install", "--no-compile", str(wheel))
    return environment


def pip(python: str, *words: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            *words,
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run(environment: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [environment / "bin" / words[0], *words[1:]],
        cwd=cwd,
        env=variables,
        check=False,
        capture_output=True,
        text=True,
    )


def test_cartpole_is_trained_and_its_policy_acts(environment: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "experiments" / "cartpole.yaml", tmp_path)
    (tmp_path / "train_it.py").write_text("""
import importlib.metadata
import nitro_rl, runtime

assert nitro_rl.__version__ == importlib.metadata.version("nitro-rl")
print(nitro_rl.__file__, runtime.__file__)
nitro_rl.train("cartpole.yaml", out="out", overrides=["stop.max_rounds=3", "evaluation.every_rounds=2"], is_quiet=True)
policy = nitro_rl.load_policy("out")
assert policy.predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
print(policy.policy_version)
""")
    done = run(environment, "python", "train_it.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *files, version = done.stdout.split()
    assert all(Path(file).is_relative_to(environment) for file in files)
    assert version == "3"
    assert "CartPole-v1" in (tmp_path / "out" / "report.html").read_text()
    refused = run(environment, "nitro-rl", "export", "out", "--onnx", "a.onnx", cwd=tmp_path)
    assert refused.stderr == (
        "error: --onnx needs onnx: pip install 'nitro-rl[export]', or in a clone: python -m pip install "
        "-e '.[export]' -c constraints.txt\n"
    )


def test_the_command_is_that_of_the_module(environment: Path, tmp_path: Path) -> None:
    own, of_module = (
        run(environment, *words, "--help", cwd=tmp_path).stdout
        for words in (["nitro-rl"], ["python", "-m", "runtime"])
    )
    assert "train" in own
    assert own == of_module
    (tmp_path / "mine.py").write_text("")
    refused = run(environment, "nitro-rl", "explain", "mine:Settings", cwd=tmp_path)
    assert "AttributeError" in refused.stderr, "it did not look into the present folder"


def test_a_missing_library_names_its_extra(environment: Path, tmp_path: Path) -> None:
    """No extra is installed here: each command that needs one reports it in one line."""
    shutil.copy(ROOT / "experiments" / "cartpole.yaml", tmp_path)
    wanted = {
        "train cartpole.yaml --set environment.id=Hopper-v5": "mujoco brings it",
        "train cartpole.yaml --set environment.id=ALE/Pong-v5": "atari brings it",
        "train cartpole.yaml --set fleet.kind=ray": "fleet.kind = 'ray' needs Ray: ray",
        "status": "AWS needs boto3: aws",
        "stop cartpole": "AWS needs boto3: aws",
        "export nothing --onnx policy.onnx": "--onnx needs onnx: export",
        "evaluate nothing --video policy.mp4": "--video needs OpenCV: export",
    }
    (tmp_path / "ask.py").write_text(
        "import sys\nfrom runtime.cli.main import main\n"
        "for line in sys.argv[1:]:\n    assert main(line.split()) == 2\n"
    )
    said = run(environment, "python", "ask.py", *wanted, cwd=tmp_path)
    errors = [
        re.sub(
            r"pip install 'nitro-rl\[(\w+)]'(, or in a clone: .*)?",
            r"\1",
            line.removeprefix("error: "),
        )
        for line in said.stderr.splitlines()
        if line.startswith("error: ")
    ]
    assert said.returncode == 0, said.stderr
    assert len(errors) == len(wanted)
    for error, end in zip(errors, wanted.values(), strict=True):
        assert error.endswith(end)


def test_the_wheel_has_all_files_of_its_packages(wheel: Path) -> None:
    """Except parts that only a clone needs: it deploys, and has the images."""
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {*tracked} - packed == {
        "lambda_actor/Dockerfile",
        "lambda_actor/requirements.txt",
        "lambda_actor/requirements-onnx.txt",
    }
    assert packed - {*tracked} == set()


def test_importing_the_package_loads_no_library() -> None:
    """Except the table of the kinds' names."""
    code = (
        "import nitro_rl, sys\nprint({'numpy', 'pydantic'} & sys.modules.keys())\n"
        "nitro_rl.train, nitro_rl.ScalerSettings, nitro_rl.Fleet\n"
        "print({'torch', 'boto3'} & sys.modules.keys())"
    )
    assert subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")[:2] == ["set()", "set()"]


def test_all_that_the_package_offers_is_there_and_typed() -> None:
    assert [name for name in nitro_rl.__all__ if not hasattr(nitro_rl, name)] == []
    assert {*nitro_rl.__all__} <= {*dir(nitro_rl)}
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = nitro_rl.nothing_like_it


def test_requirements_name_what_is_needed_and_constraints_pin_it_with_all_that_it_brings_along() -> (
    None
):
    run, dev = lines(ROOT / "requirements.txt"), lines(ROOT / "requirements-dev.txt")
    assert (run.pop(0), dev.pop(0)) == ("-c constraints.txt", "-r requirements.txt")
    assert run == [Requirement(one).name for one in run], "versions are in constraints.txt"
    assert {*run} == {
        Requirement(one).name
        for one in sum(map(EXTRAS.get, ("atari", "aws", "mujoco")), PROJECT["dependencies"])
    } | {*CDK}
    here = {canonicalize_name(found.name) for found in metadata.distributions()}
    optional = [
        one
        for extra in EXTRAS.values()
        for one in extra
        if canonicalize_name(Requirement(one).name) in here
    ]
    installed = {
        name: found.version.partition("+")[0]
        for name, found in required([*run, *dev, *optional]).items()
    }
    pinned = pins(ROOT / "constraints.txt")
    assert {name: pinned.get(name) for name in installed} == installed


def test_what_is_pinned_is_in_the_range_that_is_asked_for() -> None:
    pinned = pins(ROOT / "constraints.txt")
    asked = [Requirement(one) for one in sum(EXTRAS.values(), PROJECT["dependencies"])]
    assert {
        one.name: pinned[canonicalize_name(one.name)] in one.specifier for one in asked
    } == dict.fromkeys([one.name for one in asked], True)
    assert not [one for one in asked if "==" in str(one.specifier)]
