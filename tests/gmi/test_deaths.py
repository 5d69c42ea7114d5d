"""Instances that are killed before, in or after an update cost time, and change no bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.gmi import backend
from tests.gmi.dying import HANDLER, MOMENTS, VARIABLE
from tests.helpers import events, rounds, train

EXPERIMENT = f"""\
environment: {{id: CartPole-v1}}
algorithm: {{kind: ppo, epochs: 1, minibatch_steps: 64}}
scaler: {{kind: fixed, actors_fixed: 4}}
actor: {{fragment_steps: 32}}
learner: {{kind: gmi, instances: 2, device: cpu, update_timeout_s: 86400}}
budget: {{usd: 1.0}}
stop: {{max_rounds: {len(MOMENTS) + 1}}}
evaluation: {{every_rounds: 0}}
seed: 3
"""
"""So long a time-out that a test which waits for it never ends."""


def test_instances_that_are_killed_are_replaced_and_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each round one dies, at another moment; in the second run the other one."""
    (file := tmp_path / "small.yaml").write_text(EXPERIMENT)
    undisturbed = tmp_path / "undisturbed"
    finished = train(file, undisturbed)
    assert finished.returncode == 0, finished.stderr
    monkeypatch.setattr(backend, "INSTANCES_HANDLER", HANDLER)
    for first in (0, 1):
        out, flags = tmp_path / f"run{first}", tmp_path / f"died{first}"
        flags.mkdir()
        monkeypatch.setenv(VARIABLE, f"{first}|{flags}")
        finished = train(file, out)
        assert finished.returncode == 0, finished.stderr
        assert {path.name for path in flags.iterdir()} == set(MOMENTS)
        for name in ("policy_loss", "episode_return_mean", "env_steps_total"):
            assert [row[name] for row in rounds(out)] == [row[name] for row in rounds(undisturbed)]
        policy = "policy.safetensors"
        assert (out / policy).read_bytes() == (undisturbed / policy).read_bytes()
        replaced = [one["instance"] for one in events(out, "instance_replaced")]
        died = [(first + version) % 2 for version in range(len(MOMENTS))]
        assert sorted(replaced) == sorted(died)
