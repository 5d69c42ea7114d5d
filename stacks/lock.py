"""Writes the images' lock files again: ``make lock``, after a change of the project's requirements.

They hold the hash of each file of each requirement's version, and let pip take wheels only. Versions are not chosen
here: the actor's stand in its own file, the learner's in the project's, and those of CUDA follow from torch. Needs
``uv``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")
"""Of both images, which have Debian 12's glibc."""
_ACTOR = ROOT / "lambda_actor" / "requirements.txt"
_ONNX = ROOT / "lambda_actor" / "requirements-onnx.txt"
_LEARNER = ROOT / "stacks" / "learner_image"
_LAMBDA = ("awslambdaric", "simplejson", "snapshot-restore-py")
_WRITTEN = "# Written by `make lock`.\n"


def _locked(requirements: Iterable[str], *options: str) -> str:
    """What uv makes of requirements.

    Raises:
        SystemExit: One has no wheel, or uv is missing.
    """
    try:
        done = subprocess.run(
            ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11",
             "--generate-hashes", "--only-binary", ":all:", "--emit-build-options", *options, "-"],
            input="\n".join(requirements), text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise SystemExit("uv is missing here: python -m pip install uv") from None
    if done.returncode:
        raise SystemExit(f"uv pip compile failed:\n{done.stderr}")
    return done.stdout


def _write(path: Path, header: str, pins: dict[str, str]) -> None:
    """Writes the lock file of pins, each of which must have a wheel for either processor."""
    for platform in PLATFORMS:
        _locked(pins.values(), "--no-deps", "--python-platform", platform)
    path.write_text(header + _WRITTEN + _locked(pins.values(), "--no-deps", "--universal"))


def _pins(path: Path) -> dict[str, str]:
    """By name the lines of a file that name requirements, without what follows the version and its marker."""
    return {line.partition("==")[0]: line.removesuffix("\\").strip() for line in path.read_text().splitlines()
            if re.match(r"[A-Za-z].*==", line)}


def main() -> int:
    """Writes all but requirements-cpu.txt, whose two files only PyTorch's own index has."""
    actor, project = _pins(_ACTOR), _pins(ROOT / "requirements.txt")
    common = {name: pin for name, pin in project.items() if name != "torch"}
    _write(_ACTOR, "# What the actor image installs, and nothing else, with everything that it brings along.\n", actor)
    _write(_ONNX, "# What the actor image installs besides, if actors may be given an ONNX graph.\n", _pins(_ONNX))
    _write(_LEARNER / "requirements-lambda.txt",
           "# Lambda's runtime client, for a learner that is a function: the actor image's.\n",
           {name: actor[name] for name in _LAMBDA})
    _write(_LEARNER / "requirements.txt", "# What the learner image installs, but for torch: ../../requirements.txt.\n",
           common)
    cuda = _LEARNER / "requirements-cuda.txt"
    # uv keeps the versions that the file has, if they still fit.
    _locked(project.values(), "--python-platform", PLATFORMS[0], "--output-file", str(cuda),
            *(f"--no-emit-package={name}" for name in common))
    cuda.write_text("# torch for GPUs, all of x86_64: PyPI's build, and the CUDA libraries that it brings along.\n"
                    f"# CUDA 13.0 wants a driver from 580 on.\n{_WRITTEN}{cuda.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
