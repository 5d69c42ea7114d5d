"""A loaded policy acts as the actors' policy does in their environment."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.policy import Policy
from nitro_rl import load_policy
from runtime.errors import RunError
from runtime.export.onnx import save_onnx
from runtime.records.policy_file import save_policy
from tests.environments import policy_arrays

BATCH = 5


def make_run(
    directory: Path, environment_id: str, gain: float = 3.0
) -> tuple[ActorEnvironment, Policy]:
    """Writes the files of a run's directory that are read; returns the loaded policy."""
    environment = make_environment(environment_id)
    fields = policy_arrays(
        spaces=environment.spaces,
        network="conv" if environment.spaces.is_pixels else "mlp",
        policy_version=12,
        gain=gain,
    )
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    directory.mkdir()
    save_policy(directory / "policy.safetensors", weights, environment_id=environment_id)
    (directory / "config.yaml").write_text(
        f"environment: {{id: '{environment_id}'}}\nbudget: {{usd: 1.0}}\n"
    )
    save_onnx(
        directory / "policy.onnx",
        weights,
        environment,
        {"environment_id": environment_id, "policy_version": "12"},
    )
    return environment, Policy(fields)


def observations(environment: ActorEnvironment) -> np.ndarray:
    random = np.random.default_rng(4)
    shape = (BATCH, *environment.spaces.observation_shape)
    if environment.spaces.is_pixels:
        return random.integers(256, size=shape, dtype=np.uint8)
    return random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "environment_id", ["Hopper-v5", "CartPole-v1", "tests.environments:make_pictures"]
)
@pytest.mark.parametrize("file", ["", "policy.onnx"])
def test_it_takes_the_best_action_within_bounds(
    environment_id: str, file: str, tmp_path: Path
) -> None:
    environment, actors = make_run(tmp_path / "run", environment_id)
    policy = load_policy(tmp_path / "run" / file)
    batch = observations(environment)
    expected = [actors.best_action(one) for one in batch]
    if not environment.spaces.is_discrete:
        expected = np.clip(expected, -1.0, 1.0)
        assert (np.abs(expected) == 1.0).any(), "nothing was clipped"
    actions = policy.predict(batch)
    np.testing.assert_allclose(actions, expected, rtol=0.0, atol=1e-5)
    single = policy.predict(batch[0])
    np.testing.assert_allclose(single, actions[0], rtol=0.0, atol=1e-5)
    assert environment.gymnasium_environment.action_space.contains(single)
    assert (policy.environment_id, policy.policy_version) == (environment_id, 12)


def test_the_best_policy_is_another_file_of_the_run(tmp_path: Path) -> None:
    environment, _ = make_run(tmp_path / "run", "CartPole-v1")
    best = wire.encode(
        wire.Kind.WEIGHTS, policy_arrays(spaces=environment.spaces, policy_version=7)
    )
    save_policy(tmp_path / "run" / "best_policy.safetensors", best, environment_id="CartPole-v1")
    assert [load_policy(tmp_path / "run", best=one).policy_version for one in (False, True)] == [
        12,
        7,
    ]


def test_it_says_what_it_is(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "CartPole-v1")
    policy = load_policy(tmp_path / "run")
    assert repr(policy) == (
        f"TrainedPolicy('CartPole-v1', policy_version={policy.policy_version}, "
        "observation_shape=[4], observation_dtype=float32)"
    )


@pytest.mark.parametrize(
    "environment_id",
    [
        "FrozenLake-v1",
        "Blackjack-v1",
        "tests.environments:make_locks",
        "tests.environments:make_switches",
    ],
)
def test_it_takes_what_the_environment_observes_or_that_flattened(
    environment_id: str, tmp_path: Path
) -> None:
    environment, actors = make_run(tmp_path / "run", environment_id)
    policy, exported = load_policy(tmp_path / "run"), load_policy(tmp_path / "run" / "policy.onnx")
    space = environment.gymnasium_environment.observation_space
    space.seed(0)
    seen = [space.sample() for _ in range(8)]
    expected = [
        environment.to_environment(actors.best_action(environment.to_frame(one))) for one in seen
    ]
    np.testing.assert_array_equal([policy.predict(one) for one in seen], expected)
    assert environment.gymnasium_environment.action_space.contains(
        np.asarray(policy.predict(seen[0]), environment.gymnasium_environment.action_space.dtype)
    )
    sampled = policy.predict(
        np.array([environment.to_frame(one) for one in seen]), deterministic=False
    )
    assert sampled.shape == np.shape(expected)
    assert len({float(actors.outputs(environment.to_frame(one))[0]) for one in seen}) > 1
    batch = np.array([environment.to_frame(one) for one in seen])
    for one in (policy, exported):
        np.testing.assert_array_equal(one.predict(batch), expected)


@pytest.mark.parametrize("environment_id", ["Hopper-v5", "CartPole-v1"])
def test_samples_follow_from_the_seed_and_have_the_policys_mean(
    environment_id: str, tmp_path: Path
) -> None:
    environment, _ = make_run(tmp_path / "run", environment_id, gain=0.3)
    one = observations(environment)[0]
    policies = [
        load_policy(tmp_path / "run", seed=seed) for seed in (1, np.random.default_rng(1), 2)
    ]
    batch = np.tile(one, (200, 1))
    first, same, other = (policy.predict(batch, deterministic=False) for policy in policies)
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()
    if not environment.spaces.is_discrete:
        np.testing.assert_allclose(first.mean(0), policies[0].predict(one), atol=0.1)
    singles = [policies[0].predict(one, deterministic=False) for _ in range(50)]
    assert any(np.any(single != singles[0]) for single in singles)


@pytest.mark.parametrize("file", ["", "policy.onnx"])
def test_another_shape_or_type_is_refused_with_what_is_expected(file: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run", "CartPole-v1")
    policy = load_policy(tmp_path / "run" / file)
    for shape in ((), (3,), (2, 5), (1, 2, 4)):
        with pytest.raises(
            ValueError, match=r"expected .*\[4\].*\[batch, 4\].*; given "
        ) as refusal:
            policy.predict(np.zeros(shape))
        assert str(refusal.value).endswith(str(list(shape)))
    with pytest.raises(ValueError, match="float32; given <U"):
        policy.predict(np.full(4, "x"))


def test_pixels_are_not_converted(tmp_path: Path) -> None:
    environment, _ = make_run(tmp_path / "run", "tests.environments:make_pictures")
    with pytest.raises(ValueError, match="expected observations of type uint8; given float64"):
        load_policy(tmp_path / "run").predict(observations(environment) / 255.0)


def test_an_exported_file_samples_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "CartPole-v1")
    with pytest.raises(
        RunError, match=r"policy\.onnx holds the deterministic action only; .* the run's directory"
    ):
        load_policy(tmp_path / "run" / "policy.onnx").predict(np.zeros(4), deterministic=False)


def test_what_is_no_policy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "seeds.json").write_text("{}")
    for name, text in (
        ("none", "there is no such directory"),
        ("none.onnx", "there is no such file"),
        ("noise.onnx", "cannot be read as an ONNX file"),
        ("seeds", "seed-S"),
    ):
        with pytest.raises(RunError, match=text):
            load_policy(tmp_path / name)
    with pytest.raises(RunError, match="holds one policy; best=True is for a run's directory"):
        load_policy(tmp_path / "noise.onnx", best=True)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RunError, match=r"needs onnxruntime: pip install 'nitro-rl\[export\]'"):
        load_policy(tmp_path / "noise.onnx")


def test_a_policy_of_another_environment_or_that_diverged_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "hopper", "Hopper-v5")
    make_run(tmp_path / "cart", "CartPole-v1")
    config = tmp_path / "hopper" / "config.yaml"
    config.write_bytes((tmp_path / "cart" / "config.yaml").read_bytes())
    with pytest.raises(
        RunError, match="trained in 'Hopper-v5', but config.yaml beside it says 'CartPole-v1'"
    ):
        load_policy(tmp_path / "hopper")
    with pytest.raises(RunError, match="its policy does not fit CartPole-v1: WEIGHTS"):
        load_policy(tmp_path / "hopper", environment="CartPole-v1")
    fields = policy_arrays(policy_version=12, gain=float("nan"))
    save_policy(
        tmp_path / "cart" / "policy.safetensors",
        wire.encode(wire.Kind.WEIGHTS, fields),
        environment_id="CartPole-v1",
    )
    with pytest.raises(RunError, match="holds NaN or infinity"):
        load_policy(tmp_path / "cart")
