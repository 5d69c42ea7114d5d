"""One uninterrupted run for several tests to compare with."""

from pathlib import Path

import pytest

from tests.helpers import SMALL_EXPERIMENT, train


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_EXPERIMENT)
    return path


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a complete, undisturbed run of the small experiment."""
    directory = tmp_path_factory.mktemp("reference")
    path = directory / "small.yaml"
    path.write_text(SMALL_EXPERIMENT)
    finished = train(path, directory / "run")
    assert finished.returncode == 0, finished.stderr + finished.stdout
    return directory / "run"
