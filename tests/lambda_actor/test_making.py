"""Environments made by name, with arguments, wrappers and a time limit."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from lambda_actor.check import check
from lambda_actor.environments import make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.making import mujoco_remedy
from lambda_actor.rollout import roll_out
from lambda_actor.trial import random_policy
from runtime.config.loading import experiment_from_tree
from tests.environments import LIMIT_STEPS, Counter
from tests.helpers import ROOT
from tests.requirements import pins

WRAPPERS = "gymnasium.wrappers."


def make_counter_of(episode_steps: int = 3) -> gymnasium.Env:
    return Counter(episode_steps=episode_steps)


def no_wrapper(environment: gymnasium.Env) -> int:
    return 5


class Weighted(gymnasium.Wrapper):
    """Accepts only an array, like MO-Gymnasium's LinearReward."""

    def __init__(self, environment: gymnasium.Env, weight: np.ndarray) -> None:
        super().__init__(environment)
        self.weight = weight.reshape(-1)


def steps_of_an_episode(environment_id: str, preprocessing: str = "auto", **options: Any) -> int:
    environment = make_environment(environment_id, preprocessing, options)
    environment.reset(0)
    action = (
        0
        if environment.spaces.is_discrete
        else np.zeros(environment.spaces.action_size, np.float32)
    )
    return next(step for step in range(1, 1000) if any(environment.step(action)[2:]))


def test_arguments_reach_whatever_makes_it() -> None:
    assert steps_of_an_episode(f"{__name__}:make_counter_of") == 3
    assert steps_of_an_episode(f"{__name__}:make_counter_of", kwargs={"episode_steps": 5}) == 5
    hopper = make_environment(
        "Hopper-v5", options={"kwargs": {"exclude_current_positions_from_observation": False}}
    )
    assert hopper.spaces.observation_size == 12
    game = make_environment("ALE/Qbert-v5", options={"kwargs": {"full_action_space": True}})
    assert (game.preprocessing, game.spaces.action_count) == ("atari", 18)


@pytest.mark.parametrize(
    ("environment_id", "registered"),
    [
        ("Pendulum-v1", 200),
        ("tests.environments:TestCounter-v0", LIMIT_STEPS),
        ("tests.environments:make_endless", None),
        ("ALE/Qbert-v5", 27_000),
    ],
)
def test_a_limit_counts_the_policys_steps(environment_id: str, registered: int | None) -> None:
    assert make_environment(environment_id).episode_steps_max == registered
    limited = make_environment(environment_id, options={"max_episode_steps": 4})
    assert (limited.episode_steps_max, limited.can_save_episode) == (4, True)
    assert steps_of_an_episode(environment_id, max_episode_steps=4) == 4


def test_the_first_wrapper_is_the_innermost_and_lists_are_tuples() -> None:
    environment = make_environment(
        "Pendulum-v1",
        options={
            "wrappers": [
                [WRAPPERS + "ReshapeObservation", {"shape": [3, 1]}],
                [WRAPPERS + "TimeLimit", {"max_episode_steps": 2}],
            ]
        },
    )
    outermost = environment.gymnasium_environment
    assert [type(outermost), type(outermost.env)] == [
        gymnasium.wrappers.TimeLimit,
        gymnasium.wrappers.ReshapeObservation,
    ]
    assert (outermost.observation_space.shape, environment.episode_steps_max) == ((3, 1), 2)


def test_a_wrapper_that_takes_no_tuple_gets_an_array() -> None:
    wrapper = f"{__name__}.Weighted"
    environment = make_environment(
        "Pendulum-v1", options={"wrappers": [[wrapper, {"weight": [1.0, 0.5]}]]}
    )
    assert environment.gymnasium_environment.weight.tolist() == [1.0, 0.5]
    with pytest.raises(
        UnusableEnvironmentError, match="cannot wrap .* 'tuple' object has no attribute 'reshape'"
    ):
        make_environment(
            "Pendulum-v1", options={"wrappers": [[wrapper, {"weight": [[1.0], [0.5, 2.0]]}]]}
        )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"wrappers": [["no_such_module.Wrapper", {}]]},
            "no_such_module.Wrapper cannot be imported: ModuleNotFoundError",
        ),
        ({"wrappers": [[WRAPPERS + "NoSuch", {}]]}, "NoSuch cannot be imported: AttributeError"),
        ({"wrappers": [[WRAPPERS + "TimeLimit", {"steps": 3}]]}, "TimeLimit cannot wrap <"),
        (
            {"wrappers": [[f"{__name__}.no_wrapper", {}]]},
            "no_wrapper returned int, not a gymnasium.Env",
        ),
        ({"kwargs": {"speed": 3}}, "unexpected keyword argument 'speed'"),
        ({"wraps": []}, "no option ['wraps']"),
    ],
)
def test_what_cannot_be_made_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment("Pendulum-v1", options=options)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("environment_id", "advice"),
    [
        (
            "bsuite/catch-v0",
            "The module shimmy registers such ids; it is not installed: python -m pip install shimmy",
        ),
        ("MiniGrid-NoSuch-v0", "The module minigrid registers such ids"),
        ("NoSuchEnvironment-v0", "name the package's module"),
        ("no_such_module:Env-v0", "does not import"),
    ],
)
def test_an_id_that_nobody_registered_comes_with_advice(environment_id: str, advice: str) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(environment_id)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("environment_id", "is_advised"),
    [
        ("no_such_module:make", True),
        ("no_such_module.envs:make", True),
        ("tests.no_such_module:make", False),
    ],
)
def test_a_package_that_python_does_not_find_comes_with_both_ways_to_it(
    environment_id: str, is_advised: bool
) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(environment_id)
    text = str(caught.value)
    assert ("`python -m pip install -e FOLDER` or with PYTHONPATH=FOLDER" in text) == is_advised
    assert ("environment.package names the folder for a deployment only" in text) == is_advised


def test_ids_of_known_packages_need_no_import() -> None:
    made = make_environment("highway-fast-v0")
    assert type(made.gymnasium_environment.unwrapped).__name__ == "HighwayEnvFast"


def test_all_that_minigrid_needs_is_given_at_once_to_be_pasted() -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(
            "MiniGrid-Empty-5x5-v0",
            options={"wrappers": [["minigrid.wrappers.RGBImgPartialObsWrapper", {"tile_size": 8}]]},
        )
    text, _, pasted = str(caught.value).partition("all that it needs:\n")
    assert "its observation space is" in text
    section = yaml.safe_load(pasted)["environment"]
    assert section == {
        "id": "MiniGrid-Empty-5x5-v0",
        "max_episode_steps": 100,
        "wrappers": [
            {"minigrid.wrappers.RGBImgPartialObsWrapper": {"tile_size": 8}},
            {"gymnasium.wrappers.FilterObservation": {"filter_keys": ["direction", "image"]}},
        ],
    }
    environment = experiment_from_tree(
        {"environment": section, "algorithm": {"kind": "ppo"}, "budget": {"usd": 1.0}},
        source="the test",
    ).environment
    assert make_environment(environment.id, "auto", environment.options).episode_steps_max == 100


def test_a_mujoco_that_another_package_has_replaced_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"mujoco": "2.3.7", "mujoco-core": "4.0.0"}

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    def raising(environment: object) -> None:
        raise AttributeError("module 'mujoco' has no attribute 'mjtState'")

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("lambda_actor.episode_state.MujocoState", raising)
    remedy = (
        "; installed is mujoco 2.3.7, mujoco-core 4.0.0, needed is mujoco 4.0.0: python -m pip uninstall --yes "
        "mujoco mujoco-core mujoco-studio; python -m pip install mujoco==4.0.0 mujoco-core==4.0.0 "
        "mujoco-studio==4.0.0"
    )
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment("Hopper-v5")
    assert "'Hopper-v5' cannot be used: AttributeError: module 'mujoco' has no" in str(caught.value)
    assert str(caught.value).endswith(remedy)
    # A failing import, in Gymnasium's own words.
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setattr("gymnasium.envs.mujoco.mujoco_env.mujoco", None, raising=False)
    found.clear()
    with pytest.raises(
        UnusableEnvironmentError, match=r"installed is no mujoco, needed is mujoco 4.0.0: python -m"
    ):
        make_environment("Hopper-v5")
    # If the right versions are installed, the message does not mention pip.
    found.update({"mujoco": "4.0.0", "mujoco-core": "4.0.0", "mujoco-studio": "4.0.0"})
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment("Hopper-v5")
    assert "pip" not in str(caught.value)


def test_what_is_pinned_is_what_is_said_to_be_needed() -> None:
    pinned = pins(ROOT / "constraints.txt")
    assert mujoco_remedy(ImportError("no mujoco")) == ""
    for name in ("mujoco", "mujoco-core", "mujoco-studio"):
        assert pinned[name] == metadata.version(name)


def test_an_id_needs_no_version_where_gymnasium_needs_none() -> None:
    with pytest.warns(UserWarning, match="TestCounter-v0"):
        assert make_environment("tests.environments:TestCounter").episode_steps_max == LIMIT_STEPS


def test_the_check_continues_an_episode_of_what_is_made_so() -> None:
    told = check(
        "Pendulum-v1",
        8,
        "none",
        {"kwargs": {"g": 9.0}, "wrappers": [[WRAPPERS + "ClipReward", {"min_reward": -1.0}]]},
    )
    assert "an open episode was continued" in told


@pytest.mark.parametrize(
    ("environment_id", "frames", "channels"),
    [("ALE/Qbert-v5", 4, 1), ("ALE/Qbert-v5", 1, 1), ("tests.environments:make_pictures", 3, 2)],
)
def test_pixels_are_stacked_as_often_as_is_said(
    environment_id: str, frames: int, channels: int
) -> None:
    environment = make_environment(environment_id, options={"frame_stack": frames})
    spaces = environment.spaces
    assert (spaces.frame_stack, spaces.observation_shape[0], spaces.frame_shape[0]) == (
        frames,
        frames * channels,
        channels,
    )
    fragment = roll_out(
        environment, random_policy(environment), fragment_steps=8, seed=0, round_index=0, slot=0
    )
    assert fragment.observations.shape == (8, frames)
    assert fragment.observations[3].tolist() == [0, 1, 2, 3][-frames:]


def test_vectors_are_stacked_by_a_wrapper() -> None:
    with pytest.raises(UnusableEnvironmentError, match="gymnasium.wrappers.FrameStackObservation"):
        make_environment("Pendulum-v1", options={"frame_stack": 2})
    assert make_environment("Pendulum-v1", options={"frame_stack": 1}).spaces.observation_size == 3
    wrapped = make_environment(
        "Pendulum-v1",
        options={"wrappers": [[WRAPPERS + "FrameStackObservation", {"stack_size": 2}]]},
    )
    assert wrapped.spaces.observation_size == 6
