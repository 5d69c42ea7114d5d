"""Staged files: our sources, the user's package, the experiment's file, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import ExperimentError
from runtime.money.prices import PRICES
from stacks.constructs.staging import actor_context, learner_context, learner_files
from tests.stacks.conftest import Assembly, Synthesise


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A user's package, with files that must not be uploaded."""
    for name in (
        "pyproject.toml",
        "envs/__init__.py",
        "envs/data/body.xml",
        "envs/__pycache__/x.cpython-311.pyc",
        ".env",
        ".git/config",
        ".venv/bin/python",
        "envs.egg-info/PKG-INFO",
        "cdk.out/tree.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_folder_is_installed_from_its_source(package: Path) -> None:
    with actor_context(str(package)) as staged:
        assert names(staged / "package") == {
            "requirements.txt",
            "source/pyproject.toml",
            "source/envs/__init__.py",
            "source/envs/data/body.xml",
        }
        assert (staged / "package" / "requirements.txt").read_text() == "./source\n"
    assert not staged.exists()


def test_a_folder_is_meant_relative_to_where_the_command_runs(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package.parent)
    with learner_context(package.name) as staged:
        assert (staged / "package" / "source" / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    "requirement", ["my-envs==1.2.0", "my_envs[mujoco,x]==1.2.0rc1", "a==1!2.0+cu118"]
)
def test_a_pinned_requirement_is_a_line(requirement: str) -> None:
    with actor_context(requirement) as staged:
        assert names(staged / "package") == {"requirements.txt"}
        assert (staged / "package" / "requirements.txt").read_text() == f"{requirement}\n"


@pytest.mark.parametrize(
    "wrong",
    [
        "my-envs",
        "my-envs>=1",
        "no/such/folder",
        "a==1\n--index-url=x",
        "-r x==1",
        "a==1 b==2",
        "a==*",
        "a @ https://user:word@host/a.zip",
    ],
)
def test_anything_else_is_refused_by_its_key(wrong: str) -> None:
    with (
        pytest.raises(ExperimentError, match="^environment.package = ") as refusal,
        actor_context(wrong),
    ):
        pass
    assert "word" not in str(refusal.value)


def test_a_folder_that_pip_cannot_install_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ExperimentError, match="without pyproject.toml or setup.py"),
        actor_context(str(tmp_path)),
    ):
        pass
    (tmp_path / "setup.py").touch()
    with actor_context(str(tmp_path)) as staged:
        assert (staged / "package" / "source" / "setup.py").is_file()


def test_without_a_package_the_learner_has_the_shipped_schedulers_and_nothing_to_install() -> None:
    with learner_context(None) as staged:
        assert (staged / "runtime/scaler/schedulers/hopper.safetensors").is_file()
        assert (staged / "package" / "requirements.txt").read_text() == ""


def test_what_is_one_runs_own_travels_as_it_was_written() -> None:
    text = "# kept\r\nbudget: {usd: 1}  # ü\n".encode()
    with learner_files(text, PRICES) as staged:
        assert (staged / "experiment.yaml").read_bytes() == text
        assert names(staged) == {"experiment.yaml", "prices.json"}


def test_both_images_carry_the_package(
    synthesise: Synthesise, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("package")
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = '1'\n")
    made = synthesise(environment__package=str(folder))
    for of_learner in (False, True):
        package = made.directory / made.image_asset(of_learner=of_learner)["directory"] / "package"
        assert (package / "source" / "pyproject.toml").is_file()
        assert (package / "requirements.txt").read_text() == "./source\n"


def test_equal_sources_make_equal_images(synthesise: Synthesise, serverless: Assembly) -> None:
    other = synthesise(cache="none")
    for of_learner in (False, True):
        images = [
            made.image_asset(of_learner=of_learner)["directory"] for made in (other, serverless)
        ]
        assert images[0] == images[1]
    assert other.learner_asset().name != serverless.learner_asset().name, "its experiment differs"


def test_links_within_a_package_travel_as_they_are(package: Path) -> None:
    (package / "envs" / "assets").symlink_to("data")
    (package / "envs" / "again").symlink_to("..")
    (package / ".venv" / "bin" / "python3").symlink_to("/usr/bin/env")
    with actor_context(str(package)) as staged:
        source = staged / "package" / "source" / "envs"
        assert (source / "assets").is_symlink()
        assert (source / "assets" / "body.xml").read_text() == "envs/data/body.xml"
