"""Checks that the image builder works here, and for the processors that a deployment needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from runtime.aws.asking import AccountError
from stacks.plan import Plan

TOOL_TIMEOUT_S = 20.0
BINFMT = Path("/proc/sys/fs/binfmt_misc")
"""Where Linux lists the emulators for other processors' machine code."""
_DOCKER_NAMES = {"x86_64": "amd64", "arm64": "arm64"}
_QEMU_NAMES = {"x86_64": "qemu-x86_64", "arm64": "qemu-aarch64"}
_PLATFORMS = re.compile(r"^Platforms:(.*)$", re.MULTILINE)


def check_tools(plan: Plan) -> str:
    """Checks that the images of a deployment can be built here.

    Returns:
        A remark for the user; may be empty.

    Raises:
        AccountError: They cannot. The message says what to do.
    """
    program = os.environ.get("CDK_DOCKER", "docker")
    if shutil.which(program) is None:
        raise AccountError(
            f"{program} is not on PATH: the actor image is built with it; install Docker, or name "
            "another program that understands its commands in the variable CDK_DOCKER"
        )
    problem: str | int | None
    try:
        done = _run(program, "info")
        problem = (
            done.returncode
            and (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        )
    except subprocess.TimeoutExpired:
        problem = f"no answer in {TOOL_TIMEOUT_S:g} s"
    except OSError as error:
        problem = error.strerror
    if problem:
        raise AccountError(f"`{program} info` fails, so the actor image cannot be built: {problem}")
    return _check_processors(program, _wanted(plan))


def _wanted(plan: Plan) -> Mapping[str, str]:
    """Returns each processor that images are built for, with the experiment file's key that decides it."""
    learner = {
        plan.processor: f"learner.instance_types = {', '.join(plan.experiment.learner.instance_types)}"
    }
    architecture = plan.experiment.actor.architecture
    return {
        **(learner if plan.has_instance else {}),
        **({architecture: f"actor.architecture = {architecture}"} if plan.has_function else {}),
    }


def _check_processors(program: str, wanted: Mapping[str, str]) -> str:
    here = {"aarch64": "arm64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    foreign = {processor: key for processor, key in wanted.items() if processor != here}
    for processor, key in foreign.items():
        name = _DOCKER_NAMES[processor]
        is_built = _can_build(program, processor)
        if is_built is None:
            return f"whether {program} builds images for linux/{name} on this machine ({here}) could not be found out"
        if not is_built:
            raise AccountError(
                f"{key}: {program} cannot build images for linux/{name} on this machine ({here}). Nothing was deployed"
                f"; allowed: `{program} run --privileged --rm tonistiigi/binfmt --install {name}` first, which lets "
                f"QEMU run them, or "
                + ("instance types" if key.startswith("learner") else "actor.architecture")
                + f" of {here}"
            )
    return ""


def _can_build(program: str, processor: str) -> bool | None:
    """Returns buildx's answer, or else whether Linux can run such binaries; None if neither is known."""
    try:
        done = _run(program, "buildx", "inspect")
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = _PLATFORMS.findall(done.stdout) if done.returncode == 0 else []
    if told:
        # A star marks platforms that were set by hand when the builder was created.
        names = {name.strip(" *") for line in told for name in line.split(",")}
        return f"linux/{_DOCKER_NAMES[processor]}" in names
    if not (BINFMT / "status").exists():
        # Not Linux, or the list is missing.
        return None
    entry = BINFMT / _QEMU_NAMES[processor]
    return entry.exists() and entry.read_text().startswith("enabled")


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
