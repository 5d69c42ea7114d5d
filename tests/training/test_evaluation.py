"""Evaluations see what actors see, and the trained policy is read from its file unchanged."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import SchemaError, UnusableEnvironmentError
from lambda_actor.policy import Policy, default_network
from lambda_actor.rollout import EPISODE_BYTES_MAX, roll_out
from runtime.errors import RunDirectoryError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.prices import PRICES
from runtime.money.work import ACTOR
from runtime.records.policy_file import load_policy, save_policy
from runtime.training.costs import make_cost_model
from runtime.training.evaluation import UNLIMITED_EPISODE_STEPS_MAX, Evaluator
from tests.environments import (
    EPISODE_STEPS,
    FAULT_STEP,
    LIMIT_STEPS,
    Counter,
    Pictures,
    policy_arrays,
)


def weights_for(environment: ActorEnvironment, **options: object) -> bytes:
    network = default_network(environment.spaces)
    return wire.encode(
        wire.Kind.WEIGHTS, policy_arrays(spaces=environment.spaces, network=network, **options)
    )


def made(name: str) -> ActorEnvironment:
    return make_environment(f"tests.environments:make_{name}")


# Evaluations


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("counter", EPISODE_STEPS),
        ("limited", LIMIT_STEPS),
        ("pictures", EPISODE_STEPS),
        ("signs", EPISODE_STEPS),
        ("limited_pictures", LIMIT_STEPS),
        ("endless", UNLIMITED_EPISODE_STEPS_MAX),
    ],
)
def test_episodes_are_whole_and_the_same_each_time(name: str, length: int) -> None:
    evaluate = Evaluator(made(name), 2, seed=4)
    weights = weights_for(made(name))
    first = evaluate(weights)
    assert first.lengths == (length, length)
    assert first == evaluate(weights)


def test_the_best_action_is_taken_on_stacked_frames() -> None:
    """A game's return equals that of an actor with a practically deterministic policy."""
    game = gymnasium.wrappers.TimeLimit(
        make_environment("QbertNoFrameskip-v4").gymnasium_environment, 60
    )
    environment = ActorEnvironment(game, "short", "atari")
    fields = policy_arrays(spaces=environment.spaces, network="conv", gain=1000.0, hidden=32)
    # Its logits are a picture's differences from the episode's first one, so actions vary.
    fields["layer.3.bias"] = fields["layer.3.bias"] - Policy(fields).outputs(
        np.tile(game.reset(seed=1)[0], (3, 1, 1))
    )
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    evaluated = Evaluator(environment, 1, seed=4)(weights)
    start = int(np.random.default_rng((0xE7A1, 4)).integers(2**31, size=1)[0])

    class Started(ActorEnvironment):
        def reset(self, seed: int) -> np.ndarray:
            return super().reset(start)

    fragment = roll_out(
        Started(game, "short", "atari"),
        Policy.from_bytes(weights),
        fragment_steps=60,
        seed=0,
        round_index=0,
        slot=0,
    )
    assert len(set(fragment.actions.tolist())) > 1
    assert evaluated.returns == tuple(fragment.episode_returns.tolist())
    assert evaluated.lengths == (60,)


def test_sampled_actions_follow_from_the_seed_and_are_not_the_best_ones() -> None:
    environment = make_environment("CartPole-v1")
    weights = weights_for(environment)
    sampled = [
        Evaluator(environment, 4, seed=seed, is_stochastic=True)(weights) for seed in (4, 4, 5)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    assert sampled[0] != Evaluator(environment, 4, seed=4)(weights)
    certain = weights_for(environment, gain=1e6)
    assert Evaluator(environment, 4, seed=4, is_stochastic=True)(certain) == Evaluator(
        environment, 4, seed=4
    )(certain), "from the same start states"


def test_a_policy_of_other_spaces_is_no_fault_of_the_environment() -> None:
    with pytest.raises(SchemaError, match="WEIGHTS"):
        Evaluator(made("counter"), 1, seed=0)(weights_for(made("pictures")))


def test_an_environment_that_raises_is_named() -> None:
    with pytest.raises(
        UnusableEnvironmentError, match="make_raising failed while the policy was evaluated.*motor"
    ):
        Evaluator(made("raising"), 1, seed=0)(weights_for(made("raising")))


class Blinded(Counter):
    """Observes nothing after five steps."""

    def _observation(self) -> np.ndarray:
        return super()._observation() * (np.nan if self.count == 5 else 1.0)


@pytest.mark.parametrize(
    ("environment_id", "step"),
    [(f"{__name__}:Blinded", 5), ("tests.environments:make_nan_signs", FAULT_STEP + 1)],
)
def test_an_observation_that_is_not_finite_is_no_ground_for_an_action(
    environment_id: str, step: int
) -> None:
    environment = make_environment(environment_id)
    with pytest.raises(
        UnusableEnvironmentError,
        match=rf"{environment_id}: its observation is not finite after step {step} of an",
    ):
        Evaluator(environment, 1, seed=0)(weights_for(environment))


# The policy's file


@pytest.mark.parametrize("name", ["counter", "pictures"])
def test_a_policy_comes_out_of_its_file_as_it_went_in(name: str, tmp_path: Path) -> None:
    weights = weights_for(made(name))
    save_policy(tmp_path / "policy.safetensors", weights, environment_id=name)
    again = load_policy(tmp_path / "policy.safetensors")
    expected = wire.decode(weights, wire.Kind.WEIGHTS)
    for key, array in wire.decode(again, wire.Kind.WEIGHTS).items():
        np.testing.assert_array_equal(array, expected.pop(key), strict=True)
    assert not expected


def test_equal_policies_make_equal_files(tmp_path: Path) -> None:
    path, weights, files = tmp_path / "policy.safetensors", weights_for(made("counter")), set()
    for _ in range(20):
        save_policy(path, weights, environment_id="counter")
        files.add(path.read_bytes())
    assert len(files) == 1


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    with pytest.raises(RunDirectoryError, match="is not there"):
        load_policy(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        load_policy(path)
    save_policy(path, weights_for(made("counter")), environment_id="counter")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        load_policy(path)


# Limits on an actor's cost


def make_noise() -> gymnasium.Env:
    """Pictures that cannot be deflated, and episodes that end at each step."""
    return gymnasium.wrappers.TimeLimit(Pictures((40, 40, 3), episode_steps=10**9), 1)


@pytest.mark.parametrize(
    "environment_id",
    [
        "CartPole-v1",
        "Hopper-v5",
        "tests.environments:make_pictures",
        "tests.environments:make_signs",
        f"{__name__}:make_noise",
        "ALE/Qbert-v5",
    ],
)
@pytest.mark.parametrize("steps", [1, 64])
def test_no_actor_moves_more_bytes_than_are_reserved(environment_id: str, steps: int) -> None:
    environment = make_environment(environment_id)
    experiment = experiment_from_tree(
        {
            "environment": {"id": environment_id},
            "budget": {"usd": 1.0},
            "actor": {"fragment_steps": steps},
        },
        source="a test",
    ).resolved()
    experiment = experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)
    weights = wire.encode(
        wire.Kind.WEIGHTS,
        policy_arrays(spaces=environment.spaces, network=experiment.network.kind, hidden=256),
    )
    fragment = roll_out(
        environment, Policy.from_bytes(weights), fragment_steps=steps, seed=0, round_index=0, slot=0
    )
    trajectory = wire.encode(
        fragment.kind,
        {
            **fragment.fields(),
            "invocation_id": wire.text_field("x" * 36),
            "round_index": np.int64(0),
            "slot": np.int64(0),
            "policy_version": np.int64(0),
            "continued_episode": wire.text_field("x" * 36),
        },
    )
    episode = fragment.fields()["open_episode"].size
    reserved = (
        make_cost_model(experiment, environment.spaces, PRICES).roles[ACTOR].traffic_bytes_max
    )
    assert len(weights) + len(trajectory) - episode + 2 * EPISODE_BYTES_MAX <= reserved
    assert (
        reserved
        < 3 * (len(weights) + 2 * EPISODE_BYTES_MAX)
        + 40 * steps * environment.spaces.observation_size
    )
