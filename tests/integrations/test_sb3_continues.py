"""The example of off-policy training: killed by kill -9 and started again, it learns the same to the bit."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")

from stable_baselines3 import DQN, SAC  # noqa: E402

from tests.helpers import PATIENCE_S, ROOT, events  # noqa: E402

STEPS = "500"
EXAMPLE = "docs/examples/off_policy.py"
IN_A_CALL = """
import os, signal
from nitro_rl import ActorPool
def kills(self, policy, *, actors, steps=None, sample=ActorPool.sample):
    if len(self.rows) == 3:
        self.submit(policy, actors=actors, steps=steps)
        os.kill(os.getpid(), signal.SIGKILL)
    return sample(self, policy, actors=actors, steps=steps)
ActorPool.sample = kills
"""
BEFORE_RENAMING = """
import os, pathlib, signal
def kills(self, target, replace=pathlib.Path.replace):
    if self.suffix == ".new":
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
pathlib.Path.replace = kills
"""


def run(folder: Path, name: str, killed: str = "") -> int:
    """Runs the command that the guide shows; ``killed`` says in code when its process is killed."""
    words = [sys.executable, str(ROOT / EXAMPLE), name, STEPS]
    if killed:
        code = f"{killed}\nimport runpy\nrunpy.run_path({words[1]!r}, run_name='__main__')"
        words[1:2] = ["-c", code]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Returns all numbers of nested dicts, lists and tuples by their place."""
    if isinstance(value, Mapping):
        pairs = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {path: np.asarray(value)}
    return {
        name: leaf for key, inner in pairs for name, leaf in leaves(inner, f"{path}/{key}").items()
    }


def learned(folder: Path, name: str) -> dict[str, Any]:
    """Returns all that a finished training saved, apart from times."""
    contents = pickle.loads((folder / f"runs/off_policy_{name}/checkpoint.pickle").read_bytes())
    model = {"sac": SAC, "dqn": DQN}[name].load(io.BytesIO(contents["model"]), device="cpu")
    assert model.num_timesteps == int(STEPS)
    buffer = contents["replay_buffer"]
    episodes = [[episode["r"], episode["l"]] for episode in model.ep_info_buffer]
    numbers = {
        "parameters": model.get_parameters(),
        "entropy": model.log_ent_coef.detach() if name == "sac" else model.exploration_rate,
        "buffer": [
            getattr(buffer, part)[: buffer.size()]
            for part in ("observations", "next_observations", "actions", "rewards", "dones")
        ],
        "random": contents["random"],
        "counted": [model._n_updates, model._episode_num, episodes],
    }
    return leaves(numbers)


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_a_killed_training_ends_with_the_numbers_of_an_undisturbed_one(
    tmp_path: Path, name: str
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    assert run(undisturbed, name) == 0
    assert run(killed, name, IN_A_CALL) == -9
    ledger = json.loads((killed / f"runs/off_policy_{name}/ledger.json").read_text())["budget"]
    assert sum(ledger["reserved"].values()) > 0, "actors were playing"
    assert run(killed, name, BEFORE_RENAMING) == -9
    assert run(killed, name) == 0
    expected = learned(undisturbed, name)
    found = learned(killed, name)
    assert expected.keys() == found.keys() and len(expected) > 50
    for place, value in expected.items():
        np.testing.assert_array_equal(found[place], value, err_msg=place)
    forfeited = events(killed / f"runs/off_policy_{name}", "reservation_forfeited")
    assert len(forfeited) >= 1 and forfeited[0]["usd"] > 0, "what the killed actors ran is paid"
