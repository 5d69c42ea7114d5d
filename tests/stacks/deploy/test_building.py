"""Processors for which images can be built here, from recorded answers of `docker buildx inspect` and Linux."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.asking import AccountError
from stacks.deploy import building
from stacks.deploy.building import check_tools
from stacks.plan import Plan
from tests.stacks.conftest import experiment_text

BUILDX = """\
Name:          default
Driver:        docker
Last Activity: 2026-11-20 09:12:44 +0000 UTC

Nodes:
Name:             default
Endpoint:         default
Status:           running
BuildKit version: v0.18.2
Platforms:        {platforms}
Labels:
 org.mobyproject.buildkit.worker.moby.host-gateway-ip: 172.17.0.1
"""
"""From Docker 27."""
X86 = "linux/amd64, linux/amd64/v2, linux/amd64/v3, linux/386"
EMULATED = (
    f"{X86}, linux/arm64, linux/riscv64, linux/ppc64le, linux/s390x, linux/arm/v7, linux/arm/v6"
)
ARM = "linux/arm64, linux/arm/v7, linux/arm/v6"
NO_BUILDX = "docker: 'buildx' is not a docker command."
PODMAN = "Error: unrecognized command `podman buildx inspect`"
QEMU = "enabled\ninterpreter /usr/bin/qemu-aarch64\nflags: POCF\noffset 0\nmagic 7f454c46020101\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """``machine("x86_64", "…")``: a machine with a program that gives this answer."""

    def make(
        processor: str, inspected: str = "", *, code: int = 0, qemu: dict[str, str] | None = None
    ) -> None:
        program, answer, binfmt = tmp_path / "docker", tmp_path / "answer", tmp_path / "binfmt_misc"
        answer.write_text(inspected)
        program.write_text(f'#!/bin/sh\n[ "$1" = info ] && exit 0\ncat {answer}\nexit {code}\n')
        program.chmod(0o755)
        if qemu is not None:
            binfmt.mkdir()
            for name, text in {"status": "enabled\n", "register": "", **qemu}.items():
                (binfmt / name).write_text(text)
        monkeypatch.setenv("CDK_DOCKER", str(program))
        monkeypatch.setattr(building, "BINFMT", binfmt)
        monkeypatch.setattr(platform, "machine", lambda: processor)

    return make


def plan(folder: Path, **changes: Any) -> Plan:
    path = folder / "walker.yaml"
    path.write_text(experiment_text(**{"cache__kind": "none", **changes}))
    return Plan.from_context({"experiment": str(path)}.get)


MIXED = {"learner__instance_types": ["c8g.large"], "actor__architecture": "x86_64"}
ONLY_ARM = {"learner__instance_types": ["c8g.large"], "actor__architecture": "arm64"}
ONLY_X86 = {"actor__architecture": "x86_64"}


@pytest.mark.parametrize(
    ("processor", "changes"),
    [
        ("x86_64", ONLY_X86),
        ("aarch64", ONLY_ARM),
        ("arm64", ONLY_ARM),
        ("arm64", {**ONLY_ARM, "fleet__kind": "local"}),
        ("arm64", {"learner__kind": "function", "actor__architecture": "arm64"}),
    ],
)
def test_for_its_own_processor_nothing_is_asked(
    machine: Callable[..., None], tmp_path: Path, processor: str, changes: dict[str, Any]
) -> None:
    machine(processor, BUILDX.format(platforms="linux/riscv64"), qemu={})
    assert check_tools(plan(tmp_path, **changes)) == ""


@pytest.mark.parametrize(
    ("processor", "inspected", "code", "qemu"),
    [
        ("x86_64", BUILDX.format(platforms=EMULATED), 0, None),
        ("x86_64", BUILDX.format(platforms=EMULATED), 0, {}),
        ("x86_64", BUILDX.format(platforms=X86) + BUILDX.format(platforms="linux/arm64*"), 0, None),
        ("x86_64", NO_BUILDX, 1, {"qemu-aarch64": QEMU}),
        ("x86_64", PODMAN, 125, {"qemu-aarch64": QEMU}),
        ("x86_64", "", 0, {"qemu-aarch64": QEMU}),
        ("aarch64", BUILDX.format(platforms=f"{ARM}, linux/amd64"), 0, None),
    ],
)
def test_what_can_be_built_is(
    machine: Callable[..., None],
    tmp_path: Path,
    processor: str,
    inspected: str,
    code: int,
    qemu: dict[str, str] | None,
) -> None:
    machine(processor, inspected, code=code, qemu=qemu)
    assert check_tools(plan(tmp_path, **MIXED)) == ""


@pytest.mark.parametrize(
    ("processor", "inspected", "code", "qemu"),
    [
        ("x86_64", BUILDX.format(platforms=X86), 0, None),
        ("x86_64", BUILDX.format(platforms=X86), 0, {"qemu-aarch64": QEMU}),
        ("x86_64", NO_BUILDX, 1, {}),
        (
            "x86_64",
            PODMAN,
            125,
            {"qemu-aarch64": QEMU.replace("enabled", "disabled"), "qemu-arm": QEMU},
        ),
        ("aarch64", BUILDX.format(platforms=ARM), 0, None),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_remedy_and_the_other_key(
    machine: Callable[..., None],
    tmp_path: Path,
    processor: str,
    inspected: str,
    code: int,
    qemu: dict[str, str] | None,
) -> None:
    machine(processor, inspected, code=code, qemu=qemu)
    is_x86 = processor == "x86_64"
    program, name, here = (
        tmp_path / "docker",
        *(("arm64", "x86_64") if is_x86 else ("amd64", "arm64")),
    )
    remedy = (
        f"`{program} run --privileged --rm tonistiigi/binfmt --install {name}` first, which lets QEMU run them, "
        "or "
    )
    with pytest.raises(AccountError) as refusal:
        check_tools(plan(tmp_path, **MIXED))
    key, other = (
        ("learner.instance_types = c8g.large", "instance types")
        if is_x86
        else ("actor.architecture = x86_64", "actor.architecture")
    )
    assert str(refusal.value) == (
        f"{key}: {program} cannot build images for linux/{name} on this machine ({here}). Nothing was deployed; "
        f"allowed: {remedy}{other} of {here}"
    )


@pytest.mark.parametrize(("inspected", "code"), [(NO_BUILDX, 1), ("", 0)])
def test_what_nobody_tells_is_a_remark(
    machine: Callable[..., None], tmp_path: Path, inspected: str, code: int
) -> None:
    """On macOS, with a program without buildx: its machine usually emulates."""
    machine("arm64", inspected, code=code)
    assert check_tools(plan(tmp_path, **MIXED)) == (
        f"whether {tmp_path / 'docker'} builds images for linux/amd64 on this machine (arm64) could not be found out"
    )


def test_actors_on_the_learner_need_no_image_of_theirs(
    machine: Callable[..., None], tmp_path: Path
) -> None:
    machine("arm64", BUILDX.format(platforms=ARM))
    assert check_tools(plan(tmp_path, **{**MIXED, "fleet__kind": "local"})) == ""
    with pytest.raises(AccountError, match="actor.architecture = x86_64: "):
        check_tools(plan(tmp_path, learner__kind="function", actor__architecture="x86_64"))
