"""Rewrites the images' lock files: ``make lock``, after the project's requirements change.

They contain the hash of every file of each pinned version, and restrict pip to wheels. Versions are not chosen here:
the actor's come from its own file, the learner's from the project's, and CUDA's follow from torch. Needs ``uv``, which
refuses a requirement without a wheel for either processor.

PyPI's torch includes CUDA, so the CPU builds come from PyTorch's own index. requirements-cpu.txt is not rewritten here.
The Dockerfiles pin their base image by digest. Debian's packages and an environment's own package are not pinned.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")
"""Both images have Debian 12's glibc."""
_ACTOR = ROOT / "lambda_actor" / "requirements.txt"
_ONNX = ROOT / "lambda_actor" / "requirements-onnx.txt"
_LEARNER = ROOT / "stacks" / "learner_image"
_LAMBDA = ("awslambdaric", "simplejson", "snapshot-restore-py")
_WRITTEN = "# Written by `make lock`.\n"


def _locked(requirements: Iterable[str], *options: str) -> str:
    """Returns the requirements as uv locks them.

    Raises:
        SystemExit: A requirement has no wheel, or uv is missing.
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
    """Writes the lock file of pins. Each must have a wheel for both processors."""
    for platform in PLATFORMS:
        _locked(pins.values(), "--no-deps", "--python-platform", platform)
    path.write_text(header + _WRITTEN + _locked(pins.values(), "--no-deps", "--universal"))


def _pins(path: Path) -> dict[str, str]:
    """Returns a file's requirements by name, up to the version and its marker."""
    return {line.partition("==")[0]: line.removesuffix("\\").strip() for line in path.read_text().splitlines()
            if re.match(r"[A-Za-z].*==", line)}


def main() -> int:
    """Writes all lock files but requirements-cpu.txt, whose two wheels exist only in PyTorch's own index."""
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
    # uv keeps the file's versions if they still fit.
    _locked(project.values(), "--python-platform", PLATFORMS[0], "--output-file", str(cuda),
            *(f"--no-emit-package={name}" for name in common))
    cuda.write_text("# torch for GPUs, all of x86_64: PyPI's build, and the CUDA libraries that it brings along.\n"
                    f"# CUDA 13.0 wants a driver from 580 on.\n{_WRITTEN}{cuda.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
