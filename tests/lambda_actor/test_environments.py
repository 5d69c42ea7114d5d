"""Environments by name, and episodes that are cut in one environment and continue in another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError, EpisodeStateError, UnusableEnvironmentError
from lambda_actor.rollout import OpenEpisode
from lambda_actor.spaces import Spaces
from tests import environments as helpers
from tests.environments import EPISODE_STEPS, LIMIT_STEPS

MUJOCO_IDS = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]
OTHER_IDS = [
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "HumanoidStandup-v5",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
]
OWN_IDS = [
    "tests.environments:make_short_hopper",
    "tests.environments:make_counter",
    "tests.environments:make_limited",
]
SEED, STEPS_MAX = 5, 40
GENTLE = {"InvertedPendulum-v5": 0.02, "InvertedDoublePendulum-v5": 0.02}
"""Scale of the actions in environments whose episodes end at once with lively ones."""


# Custom environments, found by ``tests.lambda_actor.test_environments:name``


class WindyHopper(HopperEnv):
    """A custom MuJoCo environment with Python state that MuJoCo does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.gust = 0.0

    def step(self, action):
        self.gust += 0.1
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward - self.gust, terminated, truncated, info


class HalfSavingHopper(WindyHopper):
    """Offers ``get_state()``, but only MuJoCo's own ``set_state(qpos, qvel)``."""

    def get_state(self):
        return {"gust": self.gust}


class SavingHopper(gymnasium.Wrapper):
    """A custom wrapper that saves and restores everything inside it."""

    def get_state(self):
        data = self.unwrapped.data
        return {"qpos": data.qpos.copy(), "qvel": data.qvel.copy()}

    def set_state(self, state):
        self.unwrapped.set_state(state["qpos"], state["qvel"])


class RandomLimit(gymnasium.wrappers.TimeLimit):
    """A custom time limit that draws the length of each episode."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self._max_episode_steps = int(self.np_random.integers(5, 50))
        return result


class TextState(helpers.StatefulCounter):
    def get_state(self):
        return {"mood": "gloomy"}


class ObjectState(helpers.StatefulCounter):
    """Has an unrelated method with this name, like Tetris Gymnasium's."""

    def get_state(self):
        return object()


class RaisingState(helpers.StatefulCounter):
    def get_state(self):
        raise NotImplementedError


class ListState(helpers.StatefulCounter):
    def get_state(self):
        return [self.count]


def make_windy_hopper() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(WindyHopper(), 100)


def make_half_saving_hopper() -> gymnasium.Env:
    return HalfSavingHopper()


def make_saving_hopper() -> gymnasium.Env:
    return SavingHopper(gymnasium.make("Hopper-v5", disable_env_checker=True))


def make_random_limit() -> gymnasium.Env:
    return RandomLimit(helpers.StatefulCounter(episode_steps=None), 50)


def make_normalized() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(
        gymnasium.make("Hopper-v5", disable_env_checker=True)
    )


def make_rescaled() -> gymnasium.Env:
    inner = gymnasium.make("HalfCheetah-v5", disable_env_checker=True)
    return gymnasium.wrappers.RescaleAction(inner, np.float32(-4.0), np.float32(2.0))


def make_asserting() -> gymnasium.Env:
    raise AssertionError


def make_clipping() -> gymnasium.Env:
    return gymnasium.wrappers.ClipAction(gymnasium.make("HalfCheetah-v5", disable_env_checker=True))


def make_text_state() -> gymnasium.Env:
    return TextState()


def make_object_state() -> gymnasium.Env:
    return ObjectState()


def make_raising_state() -> gymnasium.Env:
    return RaisingState()


def make_list_state() -> gymnasium.Env:
    return ListState()


# Cut and continued episodes


@dataclass(frozen=True)
class Step:
    observation: bytes
    reward: float
    terminated: bool
    truncated: bool


def actions_for(environment: ActorEnvironment, gain: float | None = None) -> np.ndarray:
    """Returns lively actions. Some continuous ones are outside the action space."""
    if environment.spaces.is_discrete:
        return np.random.default_rng(SEED).integers(environment.spaces.action_count, size=STEPS_MAX)
    gain = gain or GENTLE.get(environment.environment_id, 0.8)
    normal = np.random.default_rng(SEED).standard_normal(
        (STEPS_MAX, environment.spaces.action_size), dtype=np.float32
    )
    return np.float32(gain) * normal


def play(environment: ActorEnvironment, actions: Iterable[np.ndarray]) -> list[Step]:
    """Steps until the episode or the actions end."""
    steps = []
    for action in actions:
        observation, reward, terminated, truncated = environment.step(action)
        steps.append(Step(observation.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return steps


def sent(environment: ActorEnvironment, observation: bytes = b"\0\0\0\0") -> OpenEpisode:
    """Returns the open episode as the next actor receives it: through the bytes of a message."""
    episode = OpenEpisode(
        np.frombuffer(observation, np.float32), environment.get_state(), 0.0, 1, 0
    )
    return OpenEpisode.from_bytes(episode.to_bytes())


def dirty(environment: ActorEnvironment) -> ActorEnvironment:
    """Puts the same environment in the middle of a wild episode."""
    environment.reset(SEED + 100)
    play(environment, actions_for(environment, gain=3.0)[::-1])
    environment.reset(SEED + 101)
    play(environment, actions_for(environment, gain=2.0)[:3])
    return environment


def uncut_episode(environment_id: str) -> tuple[np.ndarray, list[Step]]:
    environment = make_environment(environment_id)
    actions = actions_for(environment)
    environment.reset(SEED)
    return actions, play(environment, actions)


@pytest.mark.parametrize("environment_id", MUJOCO_IDS + OTHER_IDS + OWN_IDS)
def test_a_cut_episode_continues_bit_for_bit_in_another_environment(environment_id: str) -> None:
    actions, uncut = uncut_episode(environment_id)
    assert len(uncut) > 4
    first, second = make_environment(environment_id), dirty(make_environment(environment_id))
    for cut in sorted({1, 2, len(uncut) // 2, len(uncut) - 1}):
        first.reset(SEED)
        head = play(first, actions[:cut])
        episode = sent(first, head[-1].observation)
        dirty(first)
        second.set_state(episode.state)
        assert head + play(second, actions[cut:]) == uncut, f"cut after step {cut}"
        assert episode.observation.tobytes() == uncut[cut - 1].observation


@pytest.mark.parametrize("environment_id", [*MUJOCO_IDS, "Pendulum-v1"])
def test_an_episode_handed_over_after_every_step(environment_id: str) -> None:
    actions, uncut = uncut_episode(environment_id)
    hands = dirty(make_environment(environment_id)), make_environment(environment_id)
    hands[1].reset(SEED)
    steps = play(hands[1], actions[:1])
    for turn, action in enumerate(actions[1 : len(uncut)]):
        giver, taker = hands[(turn + 1) % 2], hands[turn % 2]
        taker.set_state(sent(giver).state)
        steps += play(taker, [action])
    assert steps == uncut


def test_saving_does_not_disturb_the_episode() -> None:
    actions, uncut = uncut_episode("Humanoid-v5")
    environment = make_environment("Humanoid-v5")
    environment.reset(SEED)
    steps = []
    for action in actions[: len(uncut)]:
        steps += play(environment, [action])
        environment.get_state()
    assert steps == uncut


def test_a_saved_state_is_a_copy() -> None:
    environment = make_environment("Hopper-v5")
    environment.reset(SEED)
    actions = actions_for(environment)
    play(environment, actions[:3])
    saved = environment.get_state()
    kept = {name: value.copy() for name, value in saved.items()}
    play(environment, actions[3:6])
    assert all(np.array_equal(saved[name], kept[name]) for name in kept)


def test_the_time_limit_counts_on_from_the_cut() -> None:
    environment_id = "tests.environments:make_short_hopper"
    first, second = make_environment(environment_id), dirty(make_environment(environment_id))
    actions = np.zeros((20, first.spaces.action_size), np.float32)
    first.reset(SEED)
    play(first, actions[:5])
    second.set_state(sent(first).state)
    steps = play(second, actions)
    assert len(steps) == 12 - 5
    assert (steps[-1].terminated, steps[-1].truncated) == (False, True)


def test_the_episode_after_a_continued_one_starts_from_its_seed_alone() -> None:
    actions, uncut = uncut_episode("Ant-v5")
    first, second = make_environment("Ant-v5"), make_environment("Ant-v5")
    first.reset(SEED + 1)
    play(first, actions[:4])
    second.set_state(sent(first).state)
    play(second, actions[:4])
    second.reset(SEED)
    assert play(second, actions) == uncut


@pytest.mark.parametrize("environment_id", ["Ant-v5", "Humanoid-v5"])
def test_restoring_mujocos_integration_state_alone_gets_the_first_reward_wrong(
    environment_id: str,
) -> None:
    """Shows why the last step is taken again: rewards use positions that only that step computed."""
    first, second = (gymnasium.make(environment_id, disable_env_checker=True) for _ in range(2))
    actions = actions_for(make_environment(environment_id))
    first.reset(seed=SEED)
    for action in actions[:6]:
        first.step(np.clip(action, first.action_space.low, first.action_space.high))
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(first.unwrapped.model, spec))
    mujoco.mj_getState(first.unwrapped.model, first.unwrapped.data, state, spec)
    second.reset(seed=0)
    mujoco.mj_setState(second.unwrapped.model, second.unwrapped.data, state, spec)
    action = np.clip(actions[6], first.action_space.low, first.action_space.high)
    expected, got = first.step(action), second.step(action)
    np.testing.assert_array_equal(first.unwrapped.data.qpos, second.unwrapped.data.qpos)
    assert expected[1] != got[1]


@pytest.mark.parametrize("factory", ["make_rescaled", "make_clipping"])
def test_wrappers_that_change_the_action_are_saved_with_it_or_refused(factory: str) -> None:
    environment_id = f"{__name__}:{factory}"
    first, second = make_environment(environment_id), make_environment(environment_id)
    if not first.can_save_episode:
        return
    actions, uncut = uncut_episode(environment_id)
    first.reset(SEED)
    head = play(first, actions[:7])
    dirty(second).set_state(sent(first).state)
    assert head + play(second, actions[7:]) == uncut


# Environments that can save an episode


@pytest.mark.parametrize("environment_id", MUJOCO_IDS + OTHER_IDS + OWN_IDS)
def test_these_can_save_their_episodes(environment_id: str) -> None:
    environment = make_environment(environment_id)
    assert environment.can_save_episode, environment.cannot_save_reason
    assert environment.cannot_save_reason == ""


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("tests.environments:make_stateless_counter", "Counter"),
        ("tests.environments:make_stateless_limited", "Counter"),
        (f"{__name__}:make_windy_hopper", "WindyHopper"),
        (f"{__name__}:make_half_saving_hopper", "HalfSavingHopper"),
        (f"{__name__}:make_normalized", "NormalizeObservation"),
        (f"{__name__}:make_random_limit", "RandomLimit"),
    ],
)
def test_these_cannot_save_their_episodes_and_say_why(environment_id: str, named: str) -> None:
    environment = make_environment(environment_id)
    assert not environment.can_save_episode
    assert named in environment.cannot_save_reason
    environment.reset(SEED)
    environment.step(np.zeros(environment.spaces.action_size, np.float32))
    with pytest.raises(EpisodeStateError, match=named):
        environment.get_state()
    with pytest.raises(EpisodeStateError, match=named):
        environment.set_state({})


def test_a_users_own_methods_are_used() -> None:
    environment = make_environment("tests.environments:make_limited")
    environment.reset(SEED)
    play(environment, np.zeros((3, 1), np.float32))
    assert {
        name.split(".", 1)[1]: float(value) for name, value in environment.get_state().items()
    } == {
        "elapsed_steps": 3.0,
        "count": 3.0,
        "start": pytest.approx(np.random.default_rng(SEED).random()),
    }


def test_a_users_wrapper_answers_for_all_that_it_wraps() -> None:
    environment = make_environment(f"{__name__}:make_saving_hopper")
    environment.reset(SEED)
    play(environment, np.zeros((3, 3), np.float32))
    assert sorted(environment.get_state()) == ["0.qpos", "0.qvel"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text", "get_state()['mood'] is <U6; supported are numbers and arrays of them"),
        ("list", "ListState.get_state() returned list, not a dict of arrays"),
        ("object", "ObjectState.get_state() returned object, not a dict of arrays"),
        (
            "raising",
            f"RaisingState.get_state() after reset() raised NotImplementedError, in {__file__}, line ",
        ),
    ],
)
def test_a_state_that_is_not_numbers_by_name_is_not_used(name: str, told: str) -> None:
    environment = make_environment(f"{__name__}:make_{name}_state")
    assert not environment.can_save_episode
    assert told in environment.cannot_save_reason
    environment.reset(SEED)
    with pytest.raises(EpisodeStateError, match="get_state"):
        environment.get_state()


def foreign_state(source_id: str, changes: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Returns a saved state of ``source_id`` with the arrays of these names replaced, or removed if None."""
    environment = make_environment(source_id)
    environment.reset(SEED)
    play(environment, actions_for(environment)[:2])
    state = {
        name: changes.get(name.partition(".")[2], value)
        for name, value in environment.get_state().items()
    }
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("environment_id", "source_id", "changes"),
    [
        ("Ant-v5", "Hopper-v5", {}),
        ("Hopper-v5", "Ant-v5", {}),
        ("Hopper-v5", "Pendulum-v1", {}),
        ("Pendulum-v1", "Hopper-v5", {}),
        ("tests.environments:make_counter", "Hopper-v5", {}),
        ("Hopper-v5", "tests.environments:make_counter", {}),
        ("Hopper-v5", "Hopper-v5", {"elapsed_steps": None}),
        ("Hopper-v5", "Hopper-v5", {"elapsed_steps": np.array([1, 2])}),
        ("Hopper-v5", "Hopper-v5", {"before_last_step": None}),
        ("Hopper-v5", "Hopper-v5", {"before_last_step": np.float64(0.0)}),
        ("Hopper-v5", "Hopper-v5", {"last_action": np.zeros(8, np.float32)}),
        ("Pendulum-v1", "Pendulum-v1", {"state": None}),
        ("Pendulum-v1", "Pendulum-v1", {"state": np.zeros(4)}),
    ],
)
def test_a_foreign_state_is_refused(environment_id: str, source_id: str, changes: dict) -> None:
    state = foreign_state(source_id, changes)
    with pytest.raises(EpisodeStateError, match=environment_id):
        make_environment(environment_id).set_state(state)


# Environments by name


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("NoSuchEnvironment-v0", "NoSuchEnvironment"),
        ("Zqxwvy-v0", "doesn't exist. If another package registers it"),
        ("Hoper-v5", "Did you mean: `Hopper`? If another package registers it"),
        ("Hopper", "Hopper"),
        ("", "cannot be made"),
        ("no_such_module:make", "no_such_module"),
        (":make", "does not import"),
        ("tests.environments:", "no callable"),
        ("tests.environments:no_such_factory", "no_such_factory"),
        ("tests.environments:NOT_CALLABLE", "NOT_CALLABLE"),
        ("tests.environments:make_nothing", "NoneType"),
        ("tests.environments:make_failing", "no licence for this simulator"),
        ("tests.environments:make_text_observation", "Text("),
        (f"{__name__}:make_asserting", f"AssertionError, in {__file__}, line"),
    ],
)
def test_unusable_environments_are_named(environment_id: str, named: str) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(environment_id)
    assert f"environment.id = {environment_id!r}" in str(caught.value)
    assert named in str(caught.value)
    assert isinstance(caught.value, ActorError)


@pytest.mark.parametrize(
    ("environment_id", "sizes", "limit"),
    [
        ("Hopper-v5", (11, 3), 1000),
        ("Humanoid-v5", (348, 17), 1000),
        ("Pendulum-v1", (3, 1), 200),
        ("tests.environments:make_short_hopper", (11, 3), 12),
        ("tests.environments:make_counter", (2, 1), None),
        ("tests.environments:TestCounter-v0", (2, 1), LIMIT_STEPS),
        (f"{__name__}:make_normalized", (11, 3), 1000),
    ],
)
def test_sizes_and_time_limit(
    environment_id: str, sizes: tuple[int, int], limit: int | None
) -> None:
    environment = make_environment(environment_id)
    assert (environment.spaces.observation_size, environment.spaces.action_size) == sizes
    assert environment.episode_steps_max == limit
    assert environment.environment_id == environment_id


# Spaces


@pytest.mark.parametrize(
    ("name", "space", "advice"),
    [
        ("observation", spaces.Text(5), "ObservationWrapper"),
        ("observation", spaces.Dict({}), "ObservationWrapper"),
        ("observation", spaces.Box(-1.0, 1.0, (0,)), "ObservationWrapper"),
        ("action", spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), "ActionWrapper"),
        ("action", spaces.Dict({"a": spaces.Discrete(2)}), "ActionWrapper"),
        ("action", spaces.Box(0, 3, (2,), np.int64), "ActionWrapper"),
        ("action", spaces.Box(-1.0, 1.0, (2, 0)), "ActionWrapper"),
    ],
    ids=str,
)
def test_other_spaces_are_refused_with_what_can_be_done(
    name: str, space: spaces.Space, advice: str
) -> None:
    usable = {"observation_space": spaces.Box(-1.0, 1.0, (2,)), "action_space": spaces.Discrete(2)}
    environment = helpers.OtherSpaces(**{**usable, f"{name}_space": space})
    with pytest.raises(UnusableEnvironmentError) as caught:
        ActorEnvironment(environment, "odd")
    assert f"environment.id = 'odd': its {name} space is {space}; supported: Box" in str(
        caught.value
    )
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "observation_shape", "frame_shape"),
    [
        ((3,), np.float64, (3,), ()),
        ((), np.float32, (1,), ()),
        ((2, 3, 4), np.float32, (24,), ()),
        ((128,), np.uint8, (128,), ()),
        ((8, 8, 3), np.uint8, (192,), ()),
        ((100, 8), np.uint8, (800,), ()),
        ((16, 16, 16, 3), np.uint8, (12288,), ()),
        ((32, 48), np.float32, (1536,), ()),
        ((16, 24), np.uint8, (1, 16, 24), (1, 16, 24)),
        ((32, 48, 3), np.uint8, (3, 32, 48), (3, 32, 48)),
        ((3, 32, 48), np.uint8, (3, 32, 48), (3, 32, 48)),
        ((32, 48, 6), np.uint8, (6, 32, 48), (6, 32, 48)),
        ((4, 8, 48), np.uint8, (1536,), ()),
    ],
    ids=str,
)
def test_what_a_policy_sees_of_a_box(
    shape: tuple[int, ...],
    dtype: type,
    observation_shape: tuple[int, ...],
    frame_shape: tuple[int, ...],
) -> None:
    environment = ActorEnvironment(helpers.Pictures(shape, dtype), "pictures")
    assert environment.spaces == Spaces(observation_shape, frame_shape, 1, action_count=3)
    raw, frame = helpers.Pictures.picture(shape, dtype, SEED), environment.reset(SEED)
    assert (frame.shape, frame.dtype) == (
        observation_shape,
        np.uint8 if frame_shape else np.float32,
    )
    assert frame.flags["C_CONTIGUOUS"]
    is_channels_last = len(shape) == 3 and frame_shape and shape != frame_shape
    np.testing.assert_array_equal(
        frame, (np.moveaxis(raw, -1, 0) if is_channels_last else raw).reshape(frame.shape)
    )


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 9, (24, 18), np.uint8),
        spaces.Box(0, np.full((24, 18), 254, np.uint8), dtype=np.uint8),
    ],
    ids=str,
)
def test_a_board_of_small_numbers_is_no_picture(space: spaces.Box) -> None:
    environment = ActorEnvironment(helpers.OtherSpaces(space, spaces.Discrete(2)), "board")
    assert environment.spaces == Spaces((432,), action_count=2)


def test_pixels_of_another_type_than_the_space_says_are_refused() -> None:
    environment = helpers.Pictures((32, 48), np.uint8)
    acting = ActorEnvironment(environment, "pictures")
    environment.dtype = np.float64
    with pytest.raises(UnusableEnvironmentError, match="float64"):
        acting.reset(SEED)


def test_discrete_actions_count_from_zero() -> None:
    acting = ActorEnvironment(helpers.Pictures((2,), np.float32, start=-1), "pictures")
    acting.reset(SEED)
    rewards = [acting.step(action)[1] for action in (0, 1, np.int64(2))]
    assert rewards == [-1.0, 0.0, 1.0]
    assert acting.spaces.action_count == 3


def test_continuous_actions_of_any_rank_are_shaped_and_clipped() -> None:
    class Grid(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (1,))
        action_space = spaces.Box(
            np.array([[-1.0, -2.0], [0.0, 0.0]]),
            np.array([[1.0, 2.0], [0.5, 9.0]]),
            (2, 2),
            np.float64,
        )

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.seen = action
            return np.zeros(1, np.float32), 0.0, False, False, {}

    grid = Grid()
    acting = ActorEnvironment(grid, "grid")
    assert acting.spaces == Spaces((1,), action_size=4)
    acting.reset(SEED)
    acting.step(np.array([-5.0, 5.0, 0.25, 1.0], np.float32))
    assert grid.seen.tolist() == [[-1.0, 2.0], [0.25, 1.0]]


def test_an_episode_is_what_the_environment_makes_of_it() -> None:
    environment = make_environment("tests.environments:make_counter")
    start = np.random.default_rng(SEED).random()
    first = environment.reset(SEED)
    assert first.dtype == np.float32
    assert first.tolist() == [0.0, np.float32(start)]
    steps = play(environment, np.full((50, 1), 0.5, np.float32))
    assert [step.reward for step in steps] == [
        10.0 * (i + 1) + start + 0.5 for i in range(EPISODE_STEPS)
    ]
    assert [step.terminated for step in steps] == [False] * (EPISODE_STEPS - 1) + [True]


def test_observations_are_float32() -> None:
    environment = make_environment("Hopper-v5")
    assert environment.reset(SEED).dtype == np.float32
    assert environment.step(np.zeros(3, np.float32))[0].dtype == np.float32


class Rewarding(helpers.Counter):
    """Returns the reward with which it was made."""

    def __init__(self, reward: object) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, self.reward, *ends


@pytest.mark.parametrize(
    "reward", [2, np.float32(2.0), np.array(2.0), np.array([2.0]), np.array([[2]])], ids=repr
)
def test_a_reward_may_be_any_one_number(reward: object) -> None:
    environment = ActorEnvironment(Rewarding(reward), "odd")
    environment.reset(0)
    found = environment.step(np.zeros(1))[1]
    assert (found, type(found)) == (2.0, float)


@pytest.mark.parametrize("reward", [np.array([1.0, 2.0]), None, {"money": 1.0}, "much"], ids=repr)
def test_a_reward_that_is_not_one_number_is_refused_with_the_wrapper_that_helps(
    reward: object,
) -> None:
    environment = ActorEnvironment(Rewarding(reward), "odd")
    environment.reset(0)
    with pytest.raises(
        UnusableEnvironmentError,
        match=r"odd returned a reward .*allowed: one number; .*LinearReward",
    ):
        environment.step(np.zeros(1))


def test_a_seed_gives_the_same_episode_whatever_was_before() -> None:
    _, uncut = uncut_episode("Walker2d-v5")
    environment = dirty(make_environment("Walker2d-v5"))
    environment.reset(SEED)
    assert play(environment, actions_for(environment)) == uncut
    environment.reset(SEED + 1)
    assert play(environment, actions_for(environment)) != uncut


@pytest.mark.parametrize(
    ("action", "seen"), [(0.25, 0.25), (7.0, 1.0), (-7.0, -1.0), (np.inf, 1.0)]
)
def test_actions_are_clipped_to_the_action_space(action: float, seen: float) -> None:
    counter = helpers.StatefulCounter()
    environment = ActorEnvironment(counter, "counter")
    environment.reset(SEED)
    asked = np.array([action], np.float32)
    environment.step(asked)
    assert [value.tolist() for value in counter.actions_seen] == [[seen]]
    assert asked[0] == np.float32(action), "the caller's action is what the trajectory records"


def test_observations_are_copies_of_what_the_environment_reuses() -> None:
    """Some environments write each observation to the same float32 array."""

    class Reusing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            self.buffer = np.zeros(2, np.float32)
            return self.buffer, {}

        def step(self, action):
            self.buffer += 1
            return self.buffer, 0.0, False, False, {}

    environment = ActorEnvironment(Reusing(), "reusing")
    first = environment.reset(0)
    second, *_ = environment.step(np.zeros(1, np.float32))
    environment.step(np.zeros(1, np.float32))
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


def test_an_observation_of_another_shape_than_the_space_says_is_refused() -> None:
    class Shrinking(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(3 if seed == 0 else 1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {}

    environment = ActorEnvironment(Shrinking(), "shrinking")
    environment.reset(0)
    with pytest.raises(UnusableEnvironmentError, match=r"shape \(1,\).*says Box\(.*\(3,\)"):
        environment.step(np.zeros(1, np.float32))
    with pytest.raises(UnusableEnvironmentError, match=r"shape \(1,\)"):
        environment.reset(1)
