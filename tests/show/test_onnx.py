"""The exported policy acts as the actors' policy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces as gym_spaces

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.frames import FrameStack
from lambda_actor.policy import Policy
from runtime.cli.main import main
from runtime.errors import RunError
from runtime.records.policy_file import save_policy
from runtime.show.onnx import save_onnx
from tests.environments import OtherSpaces, policy_arrays

CLIP = 2.0
STEPS = 24
FACTS = {"environment_id": "an environment", "algorithm": "ppo"}


def exported(
    path: Path, fields: dict[str, np.ndarray], environment: ActorEnvironment
) -> onnxruntime.InferenceSession:
    save_onnx(path, wire.encode(wire.Kind.WEIGHTS, fields), environment, FACTS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def visited(environment: ActorEnvironment, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Returns observations of an environment, with the outputs of the actors' policy and of their environment."""
    stack = FrameStack(environment.spaces)
    observations, actions = [stack.begin(environment.reset(1)).copy()], []
    for step in range(STEPS):
        actions.append(environment.to_environment(policy.best_action(observations[-1])))
        # Not the policy's own actions, which soon repeat.
        action = (
            step % environment.spaces.action_count
            if environment.spaces.is_discrete
            else environment.gymnasium_environment.action_space.sample()
        )
        frame, _, terminated, truncated = environment.step(action)
        observations.append(
            (
                stack.begin(environment.reset(step))
                if terminated or truncated
                else stack.push(frame)
            ).copy()
        )
    return np.array(observations[:-1]), np.array(actions)


@pytest.mark.parametrize(
    ("environment_id", "network", "dtype"),
    [
        ("Hopper-v5", "mlp", np.float32),
        ("Humanoid-v5", "mlp", np.float32),
        ("CartPole-v1", "mlp", np.int64),
        ("ALE/Qbert-v5", "conv", np.int64),
        ("tests.environments:make_pictures", "conv", np.int64),
        ("CartPole-v1", "mlp relu 24 16 8", np.int64),
    ],
)
def test_the_file_acts_as_the_actors_do(
    environment_id: str, network: str, dtype: type, tmp_path: Path
) -> None:
    environment = make_environment(environment_id, options={"rescale_actions": True})
    environment.gymnasium_environment.action_space.seed(3)
    fields = policy_arrays(spaces=environment.spaces, network=network, gain=3.0, hidden=32)
    if not environment.spaces.is_pixels:
        size = environment.spaces.observation_size
        fields |= {
            "observation_mean": np.linspace(-0.5, 0.5, size, dtype=np.float32),
            "observation_std": np.geomspace(0.01, 2.0, size).astype(np.float32),
            "observation_clip": np.float32(CLIP),
        }
    policy = Policy(fields)
    observations, actions = visited(environment, policy)
    session = exported(tmp_path / "policy.onnx", fields, environment)
    batch, outputs, *_ = session.run(None, {"observation": observations})
    [single] = session.run(["action"], {"observation": observations[:1]})
    np.testing.assert_array_equal(single, batch[:1])
    assert batch.dtype == dtype
    np.testing.assert_allclose(
        outputs, [policy.outputs(one) for one in observations], rtol=1e-5, atol=1e-5
    )
    if environment.spaces.is_discrete:
        np.testing.assert_array_equal(batch, actions)
    else:
        np.testing.assert_allclose(batch, actions, rtol=0.0, atol=1e-5)
        assert (np.abs(outputs) > 1).any(), "nothing was clipped"
        assert (np.abs(outputs) < 1).any(), "nothing but bounds"
    if not environment.spaces.is_pixels:
        normal = (observations - fields["observation_mean"]) / fields["observation_std"]
        assert (np.abs(normal) > CLIP).any()
        assert (np.abs(normal) < CLIP).any()


@pytest.mark.parametrize("name", ["make_locks", "make_signs"])
def test_what_has_no_single_action_or_observation_is_refused(name: str, tmp_path: Path) -> None:
    environment = make_environment(f"tests.environments:{name}")
    network = "combined" if environment.spaces.is_combined else "mlp"
    fields = policy_arrays(spaces=environment.spaces, network=network)
    with pytest.raises(RunError, match="is exported; allowed: load_policy in Python"):
        exported(tmp_path / "policy.onnx", fields, environment)
    assert not (tmp_path / "policy.onnx").exists()


def test_discrete_actions_begin_where_the_environments_do(tmp_path: Path) -> None:
    space = gym_spaces.Discrete(3, start=5)
    environment = ActorEnvironment(
        OtherSpaces(gym_spaces.Box(-9.0, 9.0, (2,)), space), "starts at five"
    )
    session = exported(
        tmp_path / "policy.onnx", policy_arrays(spaces=environment.spaces, hidden=8), environment
    )
    actions, logits = session.run(None, {"observation": np.eye(2, dtype=np.float32)})
    np.testing.assert_array_equal(actions, 5 + logits.argmax(1))


def test_the_command_replaces_the_file_and_says_in_it_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run := tmp_path / "run").mkdir()
    spaces = make_environment("CartPole-v1").spaces
    weights = wire.encode(wire.Kind.WEIGHTS, policy_arrays(spaces=spaces, policy_version=12))
    save_policy(run / "policy.safetensors", weights, environment_id="CartPole-v1")
    (run / "config.yaml").write_text("environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n")
    (run / "summary.json").write_text('{"experiment": "poles"}')
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"older")
    assert main(["export", str(run), "--onnx", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: policy version 12, observation → action\n"
    assert {entry.key: entry.value for entry in onnx.load(path).metadata_props} == {
        "environment_id": "CartPole-v1",
        "preprocessing": "none",
        "frame_stack": "1",
        "algorithm": "ppo",
        "policy_version": "12",
        "experiment": "poles",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.onnx", "run"]
