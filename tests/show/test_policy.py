"""A loaded policy acts as the actors' policy does in their environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.policy import Policy
from nitro_rl import load_policy
from runtime.errors import RunError
from runtime.records.policy_file import save_policy
from tests.environments import policy_arrays


def make_run(
    directory: Path, environment_id: str, gain: float = 3.0
) -> tuple[ActorEnvironment, Policy]:
    """Writes the files of a run's directory that are read; returns what they hold."""
    environment = make_environment(environment_id, options={"rescale_actions": True})
    network = "conv" if environment.spaces.is_pixels else "mlp"
    fields = policy_arrays(spaces=environment.spaces, network=network, policy_version=12, gain=gain)
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    directory.mkdir()
    save_policy(directory / "policy.safetensors", weights, environment_id=environment_id)
    (directory / "config.yaml").write_text(
        f"environment: {{id: '{environment_id}'}}\nbudget: {{usd: 1.0}}\n"
    )
    return environment, Policy(fields)


@pytest.mark.parametrize(
    "environment_id",
    [
        "Pendulum-v1",
        "CartPole-v1",
        "FrozenLake-v1",
        "Blackjack-v1",
        "tests.environments:make_pictures",
        "tests.environments:make_locks",
        "tests.environments:make_switches",
    ],
)
def test_it_takes_the_actors_best_action_for_one_observation_and_for_a_batch(
    environment_id: str, tmp_path: Path
) -> None:
    environment, actors = make_run(tmp_path / "run", environment_id)
    policy = load_policy(tmp_path / "run")
    gym = environment.gymnasium_environment
    gym.observation_space.seed(0)
    seen = [gym.observation_space.sample() for _ in range(16)]
    if policy.observation_shape == gym.observation_space.shape and not environment.spaces.is_pixels:
        seen = list(np.random.default_rng(4).normal(size=(16, *policy.observation_shape)))
    frames = np.array([environment.to_frame(one) for one in seen])
    chosen = [actors.best_action(one) for one in frames]
    expected = [environment.to_environment(one) for one in chosen]
    single = [
        policy.predict(one) for one in (frames if policy.observation_dtype == np.uint8 else seen)
    ]
    np.testing.assert_array_equal(single, expected)
    np.testing.assert_array_equal(policy.predict(frames), expected)
    assert gym.action_space.contains(np.asarray(single[0], gym.action_space.dtype))
    assert policy.predict(frames, deterministic=False).shape == np.shape(expected)
    assert (policy.environment_id, policy.policy_version) == (environment_id, 12)
    assert len({actors.outputs(one).tobytes() for one in frames}) > 1, "it sees something"
    if environment_id == "Hopper-v5":
        assert (np.abs(chosen) > 1.0).any() and (np.abs(single) <= 1.0).all(), "it clips"


@pytest.mark.parametrize("environment_id", ["Hopper-v5", "CartPole-v1"])
def test_samples_follow_from_the_seed_and_have_the_policys_mean(
    environment_id: str, tmp_path: Path
) -> None:
    make_run(tmp_path / "run", environment_id, gain=0.3)
    policies = [
        load_policy(tmp_path / "run", seed=seed) for seed in (1, np.random.default_rng(1), 2)
    ]
    one = np.random.default_rng(4).normal(size=policies[0].observation_shape)
    first, same, other = (
        policy.predict(np.tile(one, (200, 1)), deterministic=False) for policy in policies
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()
    if environment_id == "Hopper-v5":
        np.testing.assert_allclose(first.mean(0), policies[0].predict(one), atol=0.1)


def test_another_shape_or_type_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "CartPole-v1")
    policy = load_policy(tmp_path / "run")
    for given in (np.zeros(()), np.zeros((2, 5)), np.zeros((1, 2, 4)), np.full(4, "x")):
        with pytest.raises(ValueError, match=r"float32 .*\[4\], or a batch.* given"):
            policy.predict(given)
    with pytest.raises(ValueError, match="with 2 of 0 and 1"):
        policy.predict(np.zeros(4), action_mask=np.ones(3))


def test_what_is_no_policy_of_the_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "summary.json").write_text('{"seeds": [{}]}')
    make_run(tmp_path / "hopper", "Hopper-v5")
    make_run(tmp_path / "cart", "CartPole-v1")
    config = tmp_path / "hopper" / "config.yaml"
    config.write_bytes((tmp_path / "cart" / "config.yaml").read_bytes())
    fields = policy_arrays(policy_version=7, gain=float("nan"))
    save_policy(
        tmp_path / "cart" / "best_policy.safetensors",
        wire.encode(wire.Kind.WEIGHTS, fields),
        environment_id="CartPole-v1",
    )
    for name, options, text in (
        ("none", {}, "there is no such directory"),
        ("seeds", {}, "seed-S"),
        ("hopper", {}, "trained in 'Hopper-v5', but config.yaml beside it says 'CartPole-v1'"),
        ("hopper", {"environment": "CartPole-v1"}, "does not fit CartPole-v1: WEIGHTS"),
        ("cart", {"best": True}, r"best_policy\.safetensors .* NaN or infinity"),
    ):
        with pytest.raises(RunError, match=text):
            load_policy(tmp_path / name, **options)
