"""The worked example of a custom environment, installed as a user installs it."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor.check import check
from lambda_actor.environments import make_environment
from lambda_actor.spaces import Spaces
from stacks.constructs.staging import actor_context
from tests.helpers import ROOT, overrides, rounds, run_command

EXAMPLE = ROOT / "docs" / "example_environment"
ENVIRONMENT = "thermostat:make"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installs the package as a deployment stages it, and puts it on this process's path."""
    folder = tmp_path_factory.mktemp("site")
    with actor_context(str(EXAMPLE)) as staged:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--no-build-isolation",
                "--target",
                str(folder),
                str(staged / "package" / "source"),
            ],
            check=True,
            capture_output=True,
        )
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("thermostat", None)


def test_it_is_found_by_its_name_and_can_save_its_episodes(installed: Path) -> None:
    environment = make_environment(ENVIRONMENT)
    assert Path(importlib.import_module("thermostat").__file__).parent == installed
    assert environment.spaces == Spaces((2,), action_count=3)
    assert environment.can_save_episode, environment.cannot_save_reason


def test_it_passes_the_check_that_the_actor_image_is_built_with(installed: Path) -> None:
    assert check(ENVIRONMENT, 64).endswith("an open episode was continued")


class Drifting(gymnasium.Env):
    """Moves a place at random in each step, and saves its state as docs/guides/environments.md shows."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place], np.float32), {}

    def step(self, action: int):
        self.place += self.np_random.normal(float(action))
        return np.array([self.place], np.float32), self.place, False, False, {}


def test_a_random_environment_with_the_pages_two_methods_is_continued() -> None:
    page = (ROOT / "docs" / "guides" / "environments.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    methods: dict[str, Any] = {"json": json, "np": np}
    exec(code, methods)
    Drifting.get_state, Drifting.set_state = methods["get_state"], methods["set_state"]
    assert check(f"{__name__}:Drifting", 64).endswith("an open episode was continued")


def test_an_episode_cut_in_the_middle_is_the_uncut_one(installed: Path) -> None:
    first, second = make_environment(ENVIRONMENT), make_environment(ENVIRONMENT)
    actions = np.random.default_rng(0).integers(3, size=100)
    first.reset(1)
    uncut = [first.step(action) for action in actions]
    first.reset(1)
    cut = [first.step(action) for action in actions[:40]]
    second.set_state({name: value.copy() for name, value in first.get_state().items()})
    cut += [second.step(action) for action in actions[40:]]
    assert [row[1:] for row in cut] == [row[1:] for row in uncut]
    np.testing.assert_array_equal([row[0] for row in cut], [row[0] for row in uncut])
    assert uncut[-1][3], "its time limit"


def test_it_is_trained(installed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_command(
        "train",
        str(EXAMPLE / "thermostat.yaml"),
        "--out",
        str(out),
        *overrides(
            stop__max_rounds=3,
            fleet__processes=2,
            learner__device="cpu",
            evaluation__every_rounds=3,
        ),
        PYTHONPATH=f"{ROOT}:{installed}",
    )
    assert done.returncode == 0, done.stderr
    assert [row["env_steps"] for row in rounds(out)] == 3 * [8 * 128]
    assert rounds(out)[-1]["evaluation_return_mean"] is not None
