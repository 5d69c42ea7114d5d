"""Both images: a base and files that cannot change unnoticed, and the project's versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stacks.constructs.staging import actor_context, learner_context
from tests.helpers import ROOT
from tests.requirements import CDK, PROJECT, lines, pins, required
from tests.requirements import EXTRAS as OPTIONAL

ACTOR, LEARNER = ROOT / "lambda_actor", ROOT / "stacks" / "constructs" / "learner_image"
EXTRAS = re.findall(r"--extra (\w+)", (ROOT / "Makefile").read_text())
LOCKED = [*sorted(ACTOR.glob("requirements*.txt")), *sorted(LEARNER.glob("requirements*.txt"))]


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_requirement_has_its_hashes_and_no_source_is_built(path: Path) -> None:
    options = [line for line in lines(path) if line.startswith("--")]
    assert [re.sub(r"https://\S+", "URL", line) for line in options] == [
        "--index-url URL" if path.stem == "requirements-cpu" else "--only-binary :all:"
    ]
    for line in lines(path):
        assert line in options or re.search(r"==.* --hash=sha256:[0-9a-f]{64}\b", line), line


@pytest.mark.parametrize("folder", [ACTOR, LEARNER], ids=["actor", "learner"])
def test_all_that_python_imports_is_compiled_in_the_image(folder: Path) -> None:
    """Lambda's root is read-only, so each cold start would compile again."""
    (compiling,) = re.findall(
        r"(?m)^RUN python -m compileall .*(?:\n {4,}.*)*", (folder / "Dockerfile").read_text()
    )
    assert 'sysconfig.get_path("stdlib")' in compiling
    assert "lambda_actor" in compiling


def test_the_actor_has_the_projects_versions() -> None:
    actor, project = pins(ACTOR / "requirements.txt"), pins(ROOT / "constraints.txt")
    assert {"numpy", "mujoco", "redis", "packaging", "awslambdaric"} <= actor.keys()
    assert {name: version for name, version in actor.items() if project[name] != version} == {}
    graphs = pins(ACTOR / "requirements-onnx.txt")
    assert "onnxruntime" in graphs and graphs.keys().isdisjoint(actor)
    assert {name: version for name, version in graphs.items() if project[name] != version} == {}


@pytest.mark.parametrize(
    ("torch", "local", "brings_along"), [("cpu", "+cpu", set()), ("cuda", "", {"triton"})]
)
def test_the_learner_has_all_of_the_project_with_either_torch(
    torch: str, local: str, brings_along: set[str]
) -> None:
    project, common = pins(ROOT / "constraints.txt"), pins(LEARNER / "requirements.txt")
    own = pins(LEARNER / f"requirements-{torch}.txt")
    assert own.keys().isdisjoint(common)
    assert own.pop("torch") == project["torch"] + local
    assert {name: project[name] for name in common | own} == common | own
    assert {name for name in own if not name.startswith(("cuda-", "nvidia-"))} == brings_along
    brought = required(
        [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in OPTIONAL[extra])]
    )
    assert common.keys() == brought.keys() - pins(LEARNER / "requirements-cuda.txt").keys()


def test_neither_an_image_nor_a_node_of_ray_gets_the_cdk() -> None:
    cdk = {
        "jsii",
        "publication",
        *(name for name in required(CDK) if "cdk" in name or name == "constructs"),
    }
    assert {*CDK} < cdk <= required(CDK).keys()
    for path in LOCKED:
        assert cdk.isdisjoint(pins(path)), path
    guide = (ROOT / "docs" / "guides" / "ray.md").read_text()
    (extras,) = re.findall(
        r"(?m)^\.venv/bin/python -m pip install -e '\.\[(.*?)]' -c constraints\.txt\b", guide
    )
    node = required(
        [*PROJECT["dependencies"], *(one for extra in extras.split(",") for one in OPTIONAL[extra])]
    )
    assert {"ray", "mujoco", "ale-py", "torch"} <= node.keys()
    assert cdk.isdisjoint(node)


@pytest.mark.parametrize("folder", [ACTOR, LEARNER], ids=["actor", "learner"])
def test_the_base_and_all_that_is_installed_are_pinned(folder: Path) -> None:
    dockerfile = (folder / "Dockerfile").read_text()
    base = re.search(r"(?m)^ARG BASE_IMAGE=(\S+)$", dockerfile)[1]
    assert re.fullmatch(r"public\.ecr\.aws/docker/library/python:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert base in (ACTOR / "Dockerfile").read_text()
    installed = re.findall(r"pip install (.*)", dockerfile)
    own = [words for words in installed if "/installed.txt" not in words]
    assert all(words.startswith("--require-hashes --no-deps --requirement ") for words in own)
    assert len(own) == len(installed) - 1, "the user's package is the only one without hashes"
    assert dockerfile.index("USER 65534:65534") < dockerfile.index("lambda_actor.check ")


def test_what_a_dockerfile_copies_is_in_its_context() -> None:
    for context in (actor_context, learner_context):
        with context(None) as folder:
            dockerfile = (folder / "Dockerfile").read_text()
            named = {
                name
                for words in re.findall(r"(?m)^COPY (.*) \S+$", dockerfile)
                for name in words.split()
            }
            assert {name for name in named if not (folder / name).exists()} == set()
            assert {path.name for path in folder.iterdir()} == {
                name.split("/")[0] for name in named
            } | {"Dockerfile"}
            assert not any(path.suffix == ".pyc" for path in folder.rglob("*"))
