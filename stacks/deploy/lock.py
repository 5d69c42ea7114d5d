"""Rewrites the images' lock files: ``make lock``, after constraints.txt or pyproject.toml change.

They contain the hash of every file of each pinned version, and restrict pip to wheels. All versions come from
constraints.txt. The learner gets what pyproject.toml requires, the actor the packages of its own file. Needs ``uv``,
which refuses a requirement without a wheel for either processor.

PyPI's torch includes CUDA, so the CPU builds come from PyTorch's own index. requirements-cpu.txt is not rewritten here.
The Dockerfiles pin their base image by digest. Debian's packages and an environment's own package are not pinned.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")
"""Both images have Debian 12's glibc."""
_ACTOR = ROOT / "lambda_actor" / "requirements.txt"
_ONNX = ROOT / "lambda_actor" / "requirements-onnx.txt"
_LEARNER = ROOT / "stacks" / "constructs" / "learner_image"
_LAMBDA = ("awslambdaric", "simplejson", "snapshot-restore-py")
EXTRAS = ("atari", "aws", "mujoco")
"""What the learner image has of pyproject.toml's extras."""
_WRITTEN = "# Written by `make lock`.\n"


def _locked(requirements: Iterable[str], *options: str) -> str:
    """Returns the requirements as uv locks them.

    Raises:
        SystemExit: A requirement has no wheel, or uv is missing.
    """
    try:
        done = subprocess.run(
            [
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--no-header",
                "--no-annotate",
                "--python-version",
                "3.11",
                "--generate-hashes",
                "--only-binary",
                ":all:",
                "--emit-build-options",
                *options,
                "-",
            ],
            input="\n".join(requirements),
            text=True,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise SystemExit("uv is missing here: python -m pip install uv") from None
    if done.returncode:
        raise SystemExit(f"uv pip compile failed:\n{done.stderr}")
    return done.stdout


def _write(
    path: Path, header: str, pins: Sequence[str], platforms: Sequence[str] = PLATFORMS
) -> None:
    """Writes the lock file of pins. Each must have a wheel for every platform."""
    for platform in platforms:
        _locked(pins, "--no-deps", "--python-platform", platform)
    # uv keeps the file's hashes of a version that stays.
    _locked(pins, "--no-deps", "--universal", "--output-file", str(path))
    path.write_text(header + _WRITTEN + path.read_text())


def _pins(path: Path) -> dict[str, str]:
    """Returns a file's requirements by normalized name, up to the version and its marker."""
    return {
        line.partition("==")[0].lower().replace("_", "-"): line
        for line in path.read_text().splitlines()
        if re.match(r"[A-Za-z].*==", line)
    }


def main() -> int:
    """Writes all lock files but requirements-cpu.txt, whose two wheels exist only in PyTorch's own index.

    Raises:
        SystemExit: constraints.txt lacks a package.
    """
    constraints = _pins(ROOT / "constraints.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    learner = re.findall(
        r"(?m)^([\w.-]+)==",
        _locked(
            required,
            "--python-platform",
            PLATFORMS[0],
            "--constraint",
            str(ROOT / "constraints.txt"),
        ),
    )
    actor, graphs = _pins(_ACTOR), _pins(_ONNX)
    if missing := sorted({*learner, *actor, *graphs} - constraints.keys()):
        raise SystemExit(f"constraints.txt pins no version of {', '.join(missing)}")
    of_torch = [name for name in learner if re.match(r"(torch|triton)$|(cuda|nvidia)-", name)]
    for path, header, names, platforms in (
        (
            _ACTOR,
            "# What the actor image installs, and nothing else, with everything that it brings along.\n",
            actor,
            PLATFORMS,
        ),
        (
            _ONNX,
            "# What the actor image installs besides, if actors may be given an ONNX graph.\n",
            graphs,
            PLATFORMS,
        ),
        (
            _LEARNER / "requirements-lambda.txt",
            "# Lambda's runtime client, for a learner that is a function: the actor image's.\n",
            _LAMBDA,
            PLATFORMS,
        ),
        (
            _LEARNER / "requirements.txt",
            f"# What the learner image installs, but for torch: pyproject.toml's "
            f"dependencies, and its extras {', '.join(EXTRAS)}.\n",
            [n for n in learner if n not in of_torch],
            PLATFORMS,
        ),
        (
            _LEARNER / "requirements-cuda.txt",
            "# torch for GPUs, all of x86_64: PyPI's build, and the CUDA libraries that it brings along.\n"
            "# CUDA 13.0 wants a driver from 580 on.\n",
            of_torch,
            PLATFORMS[:1],
        ),
    ):
        _write(path, header, [constraints[name] for name in names], platforms)
    return 0


if __name__ == "__main__":
    sys.exit(main())
