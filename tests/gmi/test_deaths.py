"""An instance that is killed before, in or after an update costs time, and changes no bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.gmi import backend
from tests.gmi.dying import HANDLER, MOMENTS, VARIABLE
from tests.helpers import events, rounds, train

EXPERIMENT = """\
environment: {id: CartPole-v1}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 64}
scaler: {kind: fixed, actors_fixed: 4}
actor: {fragment_steps: 32}
learner: {kind: gmi, instances: 2, device: cpu, update_timeout_s: 86400}
budget: {usd: 1.0}
stop: {max_rounds: 3}
evaluation: {every_rounds: 0}
seed: 3
"""
"""So long a time-out that a test which waits for it never ends."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deaths")
    (folder / "small.yaml").write_text(EXPERIMENT)
    finished = train(folder / "small.yaml", folder / "run")
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


@pytest.mark.parametrize("instance", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_instance_that_is_killed_is_replaced_and_the_result_is_the_same(
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    instance: int,
) -> None:
    monkeypatch.setattr(backend, "INSTANCES_HANDLER", HANDLER)
    monkeypatch.setenv(VARIABLE, f"{moment}|{instance}|{tmp_path / 'died'}")
    finished = train(undisturbed.parent / "small.yaml", tmp_path / "run")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "died").exists()
    for name in ("policy_loss", "episode_return_mean", "env_steps_total"):
        assert [row[name] for row in rounds(tmp_path / "run")] == [
            row[name] for row in rounds(undisturbed)
        ]
    policy = "policy.safetensors"
    assert (tmp_path / "run" / policy).read_bytes() == (undisturbed / policy).read_bytes()
    replaced = [one["instance"] for one in events(tmp_path / "run", "instance_replaced")]
    assert replaced == [instance]
