"""Folders that a deployment uploads: the build contexts of both images, the run's own files, and the guard.

They are assembled in a temporary folder, so that nothing else of a working directory is uploaded, such as hidden files
and caches, and equal sources make equal assets.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from modulefinder import ModuleFinder
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime.errors import ExperimentError
from runtime.money.prices import PriceTable, prices_to_json
from runtime.records import layout

ROOT = Path(__file__).resolve().parents[2]
GUARD_MODULE = "runtime.aws.guard.function"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*"
)
LEFT_OUT = (".*", "__pycache__", "*.pyc", "*.egg-info", "build", "venv", "node_modules", "cdk.out")
"""Names that are not uploaded, and do not count when packages are compared."""
_LEFT_OUT = shutil.ignore_patterns(*LEFT_OUT)


@contextmanager
def actor_context(package: str | None) -> Iterator[Path]:
    """Yields the Docker build context of the actor image: Dockerfile, lambda_actor/ and package/.

    Args:
        package: ``environment.package``.

    Raises:
        ExperimentError: See `_stage_package`.
    """
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        shutil.copytree(ROOT / "lambda_actor", staged / "lambda_actor", ignore=_LEFT_OUT)
        shutil.move(staged / "lambda_actor" / "Dockerfile", staged / "Dockerfile")
        _stage_package(package, staged / "package")
        yield staged


@contextmanager
def learner_context(package: str | None) -> Iterator[Path]:
    """Yields the Docker build context of the learner image: Dockerfile, requirements, package/, and a run's modules.

    Args:
        package: ``environment.package``.

    Raises:
        ExperimentError: See `_stage_package`.
    """
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        shutil.copytree(
            ROOT / "stacks" / "constructs" / "learner_image",
            staged,
            ignore=_LEFT_OUT,
            dirs_exist_ok=True,
        )
        for name in ("nitro_rl", "runtime", "lambda_actor"):
            shutil.copytree(ROOT / name, staged / name, ignore=_LEFT_OUT)
        _stage_package(package, staged / "package")
        yield staged


@contextmanager
def learner_files(experiment_file: bytes, prices: PriceTable) -> Iterator[Path]:
    """Yields the files of one run, which are not in the learner image: experiment.yaml and prices.json.

    They are separate so that one image serves all experiments with the same environment, at any day's prices.

    Args:
        experiment_file: The experiment file to upload; it extends no other.
        prices: The prices that count for the whole deployment.
    """
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        (staged / "experiment.yaml").write_bytes(experiment_file)
        (staged / layout.PRICES).write_bytes(prices_to_json(prices))
        yield staged


@contextmanager
def guard_files() -> Iterator[Path]:
    """Yields the guard's function: its module and all our modules that it imports. Only boto3 is missing."""
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        for path in import_closure(GUARD_MODULE):
            (staged / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, staged / path)
        yield staged


def import_closure(module: str) -> list[Path]:
    """Returns the files of a module, of all our modules that it imports, directly or not, and of their packages.

    Args:
        module: Dotted name.

    Returns:
        Paths relative to the project's root, sorted.
    """
    finder = ModuleFinder([str(ROOT)])
    finder.import_hook(module)
    files = (vars(found)["__file__"] for found in finder.modules.values())
    return sorted(Path(file).relative_to(ROOT) for file in files if file)


def _stage_package(package: str | None, folder: Path) -> None:
    """Fills ``folder`` so that ``pip install -r requirements.txt`` in it installs the user's environment.

    Raises:
        ExperimentError: ``package`` is neither a Python project's folder nor a pinned requirement.
    """
    folder.mkdir()
    requirement = ""
    if package is not None and Path(package).is_dir():
        if not any((Path(package) / name).is_file() for name in ("pyproject.toml", "setup.py")):
            raise ExperimentError(
                f"environment.package = {package!r} is a folder without pyproject.toml or setup.py"
            )
        shutil.copytree(package, folder / "source", ignore=_LEFT_OUT, symlinks=True)
        requirement = "./source\n"
    elif package is not None:
        if not _REQUIREMENT.fullmatch(package):
            raise ExperimentError(
                f"environment.package = {package!r} is neither a folder here nor a pinned "
                "requirement such as my-envs==1.2.0"
            )
        requirement = f"{package}\n"
    (folder / "requirements.txt").write_text(requirement)
