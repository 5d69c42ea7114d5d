"""Pictures with numbers, for real: trained, resumed, evaluated, filmed and used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lambda_actor.environments import make_environment
from lambda_actor.frames import apart
from lambda_actor.policy import Policy
from nitro_rl import load_policy
from runtime.cli.main import main
from runtime.records.policy_file import read_policy
from tests.environments import EPISODE_STEPS, Signs
from tests.helpers import overrides, rounds, summary, train

EXPERIMENT = """\
environment: {id: "tests.environments:make_signs"}
algorithm: {kind: ppo, epochs: 4, minibatch_steps: 64, learning_rate: 3.0e-4, discount: 0.5}
network: {hidden_sizes: [64, 64]}
scaler: {kind: fixed, actors_fixed: 4}
actor: {fragment_steps: 64, timeout_s: 30, provisioned: 0}
learner: {device: cpu, threads: 1}
fleet: {processes: 2}
budget: {usd: 1.0}
stop: {max_rounds: 14}
evaluation: {every_rounds: 14, episodes: 3}
seed: 3
"""
MINIGRID = """\
id: "minigrid:MiniGrid-Empty-5x5-v0", max_episode_steps: 50, wrappers: [minigrid.wrappers:RGBImgPartialObsWrapper,
  {gymnasium.wrappers:FilterObservation: {filter_keys: [direction, image]}}]"""


def trained(directory: Path, text: str = EXPERIMENT, **changes: object) -> Path:
    directory.mkdir()
    (directory / "experiment.yaml").write_text(text)
    done = train(directory / "experiment.yaml", directory / "run", *overrides(**changes))
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("combined") / "signs")


def test_what_pays_is_learned_though_neither_picture_nor_numbers_tell_it_alone_and_is_filmed(
    learned: Path, tmp_path: Path
) -> None:
    assert rounds(learned)[0]["episode_return_mean"] < 0.65 * EPISODE_STEPS
    assert summary(learned)["evaluation_return_mean"] == EPISODE_STEPS
    video = tmp_path / "signs.mp4"
    assert main(["evaluate", str(learned), "--episodes", "2", "--video", str(video)]) == 0
    assert video.stat().st_size > 0


def test_a_loaded_policy_takes_what_the_environment_gives(learned: Path) -> None:
    policy = load_policy(learned)
    environment = make_environment("tests.environments:make_signs")
    signs = Signs()
    observations = [signs.reset(seed=5)[0]]
    observations += [signs.step(step % 2)[0] for step in range(1, EPISODE_STEPS)]
    pictures, vectors = apart(
        np.stack([environment.to_frame(one) for one in observations]), environment.spaces
    )
    actions = [policy.predict(one) for one in observations]
    assert set(actions) == {0, 1} and all(type(action) is int for action in actions)
    with pytest.raises(ValueError, match="expected one observation as the environment gives it"):
        policy.predict((pictures, vectors))
    actors = Policy.from_bytes(read_policy(learned / "policy.safetensors")[0])
    actors.check(environment.spaces)
    assert actions == [actors.best_action(environment.to_frame(one)) for one in observations]


def test_minigrid_is_trained_on_by_replay(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "minigrid",
        EXPERIMENT.replace('id: "tests.environments:make_signs"', MINIGRID),
        stop__max_rounds=2,
        actor__fragment_steps=40,
        scaler__actors_fixed=2,
        fleet__processes=1,
        algorithm__epochs=1,
        evaluation__every_rounds=2,
    )
    assert [row["env_steps"] for row in rounds(run)] == [80, 80]
    assert rounds(run)[1]["replayed_steps"] == 80
    assert load_policy(run).observation_shape == (3, 56, 56)
