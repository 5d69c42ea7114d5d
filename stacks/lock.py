"""Writes the images' lock files again: ``make lock``, after a change of the project's requirements.

For each requirement they hold the wheels that pip takes in the images, on either processor, each with its name and its
hash. Versions are not chosen here: the actor's stand in its own file, the learner's in the project's, and those of CUDA
follow from torch. Needs ``uv``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (3, 11)
"""Of both images."""
GLIBC = 36
"""The minor version of Debian 12's, which both images have."""
MACHINES = ("x86_64", "aarch64")
_ACTOR = ROOT / "lambda_actor" / "requirements.txt"
_LEARNER = ROOT / "stacks" / "learner_image"
_LAMBDA = ("awslambdaric", "simplejson", "snapshot-restore-py")
_BOTH = "# For each requirement the wheels of x86_64 and arm64, or the one for both. Written by `make lock`.\n"


def tags_of(machine: str) -> list[Tag]:
    """The tags of the wheels that pip takes in the images, the best first.

    Args:
        machine: One of `MACHINES`.
    """
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    # Its other name follows each of these.
    for minor, name in ((17, "manylinux2014"), (12, "manylinux2010"), (5, "manylinux1")):
        platforms.insert(platforms.index(f"manylinux_2_{minor}_{machine}") + 1, f"{name}_{machine}")
    return [*cpython_tags(PYTHON, platforms=platforms),
            *compatible_tags(PYTHON, interpreter=f"cp{PYTHON[0]}{PYTHON[1]}", platforms=platforms)]


def best(names: Sequence[str], machine: str) -> str | None:
    """The wheel that pip takes of these; None if none fits the image.

    Args:
        names: Of the files of one version.
        machine: One of `MACHINES`.
    """
    ranks = {tag: rank for rank, tag in enumerate(tags_of(machine))}
    fitting = [(min(ranks[tag] for tag in tags), name) for name in names
               if (tags := parse_wheel_filename(name)[3] & ranks.keys())]
    return min(fitting)[1] if fitting else None


def write(path: Path, header: str, packages: Sequence[Mapping[str, Any]], machines: Sequence[str]) -> None:
    """Writes a lock file.

    Args:
        path: The file.
        header: Its first lines.
        packages: As uv locks them.
        machines: For which each of them must have a wheel.

    Raises:
        SystemExit: One has none.
    """
    path.write_text(header + "".join(line for package in packages for line in _lines(package, machines)))


def _lines(package: Mapping[str, Any], machines: Sequence[str]) -> Iterator[str]:
    hashes = {unquote(wheel["url"].rpartition("/")[2]): wheel["hashes"]["sha256"] for wheel in package["wheels"]}
    chosen = []
    for machine in machines:
        name = best(list(hashes), machine)
        if name is None:
            raise SystemExit(f"{package['name']} {package['version']} has no wheel for Python 3.11 on {machine}")
        chosen.append(name)
    marker = f" ; {package['marker']}" if package.get("marker") else ""
    yield from (f"# {name}\n" for name in dict.fromkeys(chosen))
    yield f"{package['name']}=={package['version']}{marker}"
    yield from (f" \\\n    --hash=sha256:{hashes[name]}" for name in dict.fromkeys(chosen))
    yield "\n"


def _locked(requirements: str, *options: str) -> list[dict[str, Any]]:
    """What uv makes of requirements: each package with all its files."""
    try:
        printed = subprocess.run(
            ["uv", "pip", "compile", "--quiet", "--python-version", "3.11", "--format", "pylock.toml", *options, "-"],
            input=requirements, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise SystemExit("uv is missing here: python -m pip install uv") from None
    if printed.returncode:
        raise SystemExit(f"uv pip compile failed:\n{printed.stderr}")
    packages: list[dict[str, Any]] = tomllib.loads(printed.stdout)["packages"]
    return packages


def _pins(path: Path) -> str:
    """The lines of a file that name requirements, without what follows the version and its marker."""
    return "".join(f"{line.removesuffix(chr(92)).strip()}\n" for line in path.read_text().splitlines()
                   if re.match(r"[A-Za-z].*==", line))


def main() -> int:
    """Writes all but requirements-cpu.txt, whose two files only PyTorch's own index has."""
    project = _pins(ROOT / "requirements.txt")
    common = _locked(re.sub(r"(?m)^torch==.*\n", "", project), "--no-deps", "--universal")
    actor = _locked(_pins(_ACTOR), "--no-deps", "--universal")
    write(_ACTOR, "# What the actor image installs, and nothing else, with everything that it brings along.\n" + _BOTH,
          actor, MACHINES)
    write(_LEARNER / "requirements-lambda.txt",
          "# Lambda's runtime client, for a learner that is a function: the actor image's.\n" + _BOTH,
          [package for package in actor if package["name"] in _LAMBDA], MACHINES)
    write(_LEARNER / "requirements.txt",
          "# What the learner image installs, but for torch: ../../requirements.txt.\n" + _BOTH, common, MACHINES)
    names = {package["name"] for package in common}
    write(_LEARNER / "requirements-cuda.txt",
          "# torch for GPUs, all of x86_64: PyPI's build, and the CUDA libraries that it brings along.\n"
          "# CUDA 13.0 wants a driver from 580 on. Written by `make lock`.\n",
          [{**package, "marker": None} for package in _locked(project, "--python-platform", "x86_64-manylinux_2_28")
           if package["name"] not in names], MACHINES[:1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
