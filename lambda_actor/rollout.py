"""Rolls out a fragment: ``fragment_steps`` steps of a policy version in one environment, or the whole episodes in them.

Several are rolled out in lock-step, each in its own environment, with one policy call per step for all. Each is
bit-identical to a separate rollout: it has its own random numbers, and the others do not affect the policy's outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import (
    EpisodeStateError,
    NonFiniteTrajectoryError,
    UnusableEnvironmentError,
)
from lambda_actor.frames import FrameStack, floats, pack_frames
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces

if TYPE_CHECKING:
    from lambda_actor.environments import ActorEnvironment
    from lambda_actor.replay import ReplayedEnvironment

NO_BYTES = np.empty(0, np.uint8)
EPISODE_BYTES_MAX = 2**20
"""Larger states are refused, because traffic is paid for, and the budget reserves its worst case."""
_STOP_CHECK_STEPS = 64


@dataclass(frozen=True)
class OpenEpisode:
    """An episode that the next fragment can continue.

    Attributes:
        observation: The current raw observation, float32 ``[O]``; or its frames, uint8 ``[F, C, H, W]``.
        state: The environment's state (see `ActorEnvironment.get_state`).
        return_so_far: Sum of its rewards so far.
        length: Its steps so far.
        first_version: The policy version that took its first step.
    """

    observation: np.ndarray
    state: dict[str, np.ndarray]
    return_so_far: float
    length: int
    first_version: int

    def to_bytes(self, bytes_max: int = EPISODE_BYTES_MAX) -> bytes:
        """Returns the EPISODE message of this episode.

        Raises:
            OversizedMessageError: The message is larger than ``bytes_max``.
        """
        return wire.encode(
            wire.Kind.EPISODE,
            {
                "observation": self.observation,
                "return_so_far": np.array(self.return_so_far, np.float64),
                "length": np.array(self.length, np.int64),
                "first_version": np.array(self.first_version, np.int64),
                **{wire.STATE_PREFIX + name: value for name, value in self.state.items()},
            },
            bytes_max=bytes_max,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> OpenEpisode:
        """Reads an EPISODE message.

        Raises:
            WireError: The bytes are not a valid message.
        """
        fields = wire.decode(data, wire.Kind.EPISODE)
        return cls(
            observation=fields["observation"],
            state={
                name.removeprefix(wire.STATE_PREFIX): value
                for name, value in fields.items()
                if name.startswith(wire.STATE_PREFIX)
            },
            return_so_far=float(fields["return_so_far"]),
            length=int(fields["length"]),
            first_version=int(fields["first_version"]),
        )


@dataclass(frozen=True)
class Fragment:
    """An actor's result, with arrays as in the schemas of `lambda_actor.wire`.

    ``T`` is ``fragment_steps``, or less if the last episode was dropped.

    Attributes:
        observations: Float32 ``[T, O]``; with frames, the indices of each step's frames, int32 ``[T, F]``.
        actions: Float32 ``[T, A]``, or int64 ``[T]`` or ``[T, A]``.
        bootstrap_observations: Like ``observations``, ``[K, …]``.
        action_masks: Which values of each choice were allowed at each step, bool ``[T, M]``; None if all were.
        frames: Uint8 ``[U, C, H, W]`` or ``[U, 1, 1, Y]``, each once; None if only vectors are observed.
        replayed_steps: Replayed steps of the open episode; None if the environment does not replay.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    bootstrap_steps: np.ndarray
    bootstrap_observations: np.ndarray
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    episode_first_versions: np.ndarray
    open_episode: OpenEpisode | None
    action_masks: np.ndarray | None = None
    frames: np.ndarray | None = None
    replayed_steps: int | None = None

    @property
    def kind(self) -> wire.Kind:
        """The kind of its message."""
        return wire.Kind.TRAJECTORY if self.frames is None else wire.Kind.FRAME_TRAJECTORY

    def fields(self) -> dict[str, np.ndarray]:
        """Returns its fields for such a message.

        Raises:
            OversizedMessageError: The open episode does not fit into a message.
        """
        observed = {
            "observations": self.observations,
            "bootstrap_observations": self.bootstrap_observations,
        }
        if self.frames is not None:
            observed = {
                **pack_frames(self.frames),
                "observation_frames": self.observations,
                "bootstrap_frames": self.bootstrap_observations,
            }
        if self.action_masks is not None:
            observed["action_masks"] = self.action_masks
        return {
            **observed,
            **{name: getattr(self, name) for name in _STEP_FIELDS},
            "open_episode": (
                np.frombuffer(self.open_episode.to_bytes(), np.uint8)
                if self.open_episode
                else NO_BYTES
            ),
        }


@dataclass(frozen=True)
class Request:
    """One fragment to roll out.

    Attributes:
        seed: This and the next two determine its random numbers; see `random_streams`.
        open_episode: The episode that it continues first.
        should_stop: Called once a second. True ends the fragment with `InterruptedError`.
    """

    seed: int
    round_index: int
    slot: int
    open_episode: OpenEpisode | None = None
    should_stop: Callable[[], bool] = lambda: False


_Message = tuple[np.ndarray, np.ndarray | int]
_Rollout = Generator[np.ndarray, _Message, Fragment]
"""Yields observations, and gets the policy's outputs and the action for each. Returns the fragment."""
_BEGIN: Any = None
_STEP_FIELDS = (
    "actions",
    "log_probs",
    "rewards",
    "terminated",
    "truncated",
    "bootstrap_steps",
    "episode_returns",
    "episode_lengths",
    "episode_first_versions",
)


def random_streams(
    seed: int, round_index: int, slot: int
) -> tuple[np.random.Generator, np.random.Generator]:
    """Returns the generators of action noise and of environment seeds for one slot of one round.

    They depend only on these three numbers, so a replacement actor returns exactly the trajectory that the failed one
    would have returned.
    """
    action, environment = np.random.SeedSequence((seed, round_index, slot)).spawn(2)
    return np.random.default_rng(action), np.random.default_rng(environment)


def roll_out(
    environment: ActorEnvironment | ReplayedEnvironment,
    policy: Policy,
    *,
    fragment_steps: int,
    seed: int,
    round_index: int,
    slot: int,
    open_episode: OpenEpisode | None = None,
    truncate_at_fragment: bool = False,
    drop_unfinished: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Fragment:
    """Samples ``fragment_steps`` steps, continuing ``open_episode`` first if there is one.

    Args:
        open_episode: This, the three arguments before it and ``should_stop`` are a `Request`.
        truncate_at_fragment: This and the next as in `roll_out_together`.

    Raises:
        SchemaError: The policy does not fit the environment.
        EpisodeStateError: The open episode belongs to another environment.
        NonFiniteTrajectoryError: NaN or infinity in observations, actions or rewards.
        UnusableEnvironmentError: No episode ended, so nothing remains with ``drop_unfinished``.
        InterruptedError: ``should_stop`` returned True.
    """
    request = Request(seed, round_index, slot, open_episode, should_stop)
    (found,) = roll_out_together(
        [environment],
        policy,
        [request],
        fragment_steps=fragment_steps,
        truncate_at_fragment=truncate_at_fragment,
        drop_unfinished=drop_unfinished,
    )
    if isinstance(found, BaseException):
        raise found
    return found


def roll_out_together(
    environments: Sequence[ActorEnvironment | ReplayedEnvironment],
    policy: Policy,
    requests: Sequence[Request],
    *,
    fragment_steps: int,
    truncate_at_fragment: bool = False,
    drop_unfinished: bool = False,
) -> list[Fragment | BaseException]:
    """Rolls out several fragments in lock-step.

    Args:
        environments: One for each request, all different.
        truncate_at_fragment: Abandon the episode at the end instead of leaving it open.
        drop_unfinished: Omit the steps of an episode that the fragment's end cuts.

    Returns:
        For each request its fragment or its exception, even an environment's `SystemExit`. Others are not affected.
    """
    found: dict[int, Fragment | BaseException] = {}
    contexts = [_Context() for _ in requests]
    rollouts = [
        _rollout(
            environment,
            policy,
            request,
            context,
            fragment_steps,
            truncate_at_fragment=truncate_at_fragment,
            drop_unfinished=drop_unfinished,
        )
        for environment, request, context in zip(environments, requests, contexts, strict=True)
    ]
    places: Sequence[int] = range(len(rollouts))
    messages = iter([_BEGIN] * len(rollouts))
    for step in range(fragment_steps + 1):
        playing, observations = [], []
        for place, message in zip(places, messages, strict=True):
            try:
                observations.append(rollouts[place].send(message))
                playing.append(place)
            except (Exception, SystemExit) as end:
                found[place] = _what_ended(end)
        if len(playing) == 1:
            found[playing[0]] = _go_on_alone(
                rollouts[playing[0]], observations[0], policy, contexts[playing[0]], step
            )
        if len(playing) < 2:
            break
        if not step or len(playing) < len(places):
            noise = np.stack([contexts[place].noise for place in playing], 1)
        masks = [contexts[place].action_mask for place in playing]
        try:
            outputs = policy.outputs_together(observations, masks)
            actions = policy.sample_together(outputs, noise[step])
        except Exception as error:
            # A user's graph raised.
            found.update(dict.fromkeys(playing, error))
            break
        places, messages = playing, zip(outputs, actions, strict=True)
    return [found[place] for place in range(len(rollouts))]


class _Context:
    """A policy's further inputs in a fragment.

    Attributes:
        action_mask: Which values of each choice are allowed now; None = all.
        noise: Noise for sampling the fragment's actions, a row each.
    """

    action_mask: np.ndarray | None = None
    noise: np.ndarray = NO_BYTES


def _go_on_alone(
    rollout: _Rollout,
    observation: np.ndarray,
    policy: Policy,
    context: _Context,
    step: int,
) -> Fragment | BaseException:
    act, sample, send = policy.outputs, policy.sample, rollout.send
    try:
        for row in context.noise[step:]:
            output = act(observation, context.action_mask)
            observation = send((output, sample(output, row)))
    except (Exception, SystemExit) as end:
        return _what_ended(end)
    raise AssertionError("a fragment has as many steps as rows of noise")


def _what_ended(end: BaseException) -> Fragment | BaseException:
    """Returns a rollout's fragment, or its environment's exception."""
    if isinstance(end, StopIteration):
        fragment: Fragment = end.value
        return fragment
    # A generator hides a StopIteration of the environment.
    return end.__cause__ if isinstance(end.__cause__, StopIteration) else end


def _rollout(
    environment: ActorEnvironment | ReplayedEnvironment,
    policy: Policy,
    request: Request,
    context: _Context,
    fragment_steps: int,
    *,
    truncate_at_fragment: bool,
    drop_unfinished: bool,
) -> _Rollout:
    """Rolls out one fragment. At each observation, the context contains the policy's further inputs."""
    spaces = environment.spaces
    policy.check(spaces)
    noise_stream, seed_stream = random_streams(request.seed, request.round_index, request.slot)
    context.noise = noise = policy.noise(noise_stream, fragment_steps)
    outputs = np.empty((fragment_steps, policy.output_size), np.float32)
    actions = np.empty(
        (fragment_steps, *spaces.action_shape), np.int64 if spaces.is_discrete else np.float32
    )
    recorder = (_FrameRecorder if spaces.is_pixels else _Recorder)(spaces, fragment_steps)
    finished: list[tuple[float, int, int]] = []

    def fresh_episode() -> tuple[np.ndarray, float, int, int]:
        return (
            recorder.begin(environment.reset(int(seed_stream.integers(2**31)))),
            0.0,
            0,
            policy.policy_version,
        )

    open_episode, should_stop = request.open_episode, request.should_stop
    if open_episode is None:
        observation, episode_return, length, first_version = fresh_episode()
    else:
        observation = recorder.resume(open_episode.observation)
        environment.set_state(open_episode.state)
        episode_return, length = open_episode.return_so_far, open_episode.length
        first_version = open_episode.first_version
    replayed_steps = getattr(environment, "replayed_steps", None)

    rewards: list[float] = []
    terminated: list[bool] = []
    truncated: list[bool] = []
    masks: list[np.ndarray | None] = []
    keep, take_step = recorder.keep, environment.step
    next_stop_check = time.monotonic() + 1.0
    for step in range(fragment_steps):
        if step % _STOP_CHECK_STEPS == 0 and time.monotonic() > next_stop_check:
            if should_stop():
                raise InterruptedError("this trajectory is no longer awaited")
            next_stop_check = time.monotonic() + 1.0
        keep(step)
        context.action_mask = environment.action_mask
        masks.append(context.action_mask)
        outputs[step], action = yield observation
        actions[step] = action
        frame, reward, is_terminated, is_truncated = take_step(action)
        rewards.append(reward)
        terminated.append(is_terminated)
        truncated.append(is_truncated)
        episode_return += reward
        length += 1
        if not is_terminated:
            observation = recorder.push(frame)
            if is_truncated:
                recorder.keep_bootstrap(step)
        if is_terminated or is_truncated:
            finished.append((episode_return, length, first_version))
            if step + 1 < fragment_steps:
                observation, episode_return, length, first_version = fresh_episode()

    remaining = None
    steps = fragment_steps
    if drop_unfinished:
        ends = [step for step in range(steps) if terminated[step] or truncated[step]]
        steps = 1 + max(ends, default=-1)
        if not steps:
            raise UnusableEnvironmentError(
                f"no episode ended in {fragment_steps} steps, and none can be continued"
            )
    elif not (terminated[-1] or truncated[-1]):
        recorder.keep_bootstrap(fragment_steps - 1)
        if environment.can_save_episode and not truncate_at_fragment:
            remaining = OpenEpisode(
                recorder.last(),
                environment.get_state(),
                float(episode_return),
                length,
                first_version,
            )
    observations, bootstrap_observations, frames = recorder.recorded(steps)
    fragment = Fragment(
        observations=observations,
        actions=actions[:steps],
        log_probs=policy.log_probs(outputs[:steps], actions[:steps], noise[:steps]),
        rewards=np.array(rewards[:steps], np.float64),
        terminated=np.array(terminated[:steps], np.bool_),
        truncated=np.array(truncated[:steps], np.bool_),
        bootstrap_steps=np.array(recorder.bootstrap_steps, np.int64),
        bootstrap_observations=bootstrap_observations,
        episode_returns=np.array([episode[0] for episode in finished], np.float64),
        episode_lengths=np.array([episode[1] for episode in finished], np.int64),
        episode_first_versions=np.array([episode[2] for episode in finished], np.int64),
        open_episode=remaining,
        action_masks=np.array(masks[:steps]) if environment.spaces.has_action_mask else None,
        frames=frames,
        replayed_steps=replayed_steps,
    )
    _require_finite(fragment, outputs[:steps], spaces)
    return fragment


class _Recorder:
    """Turns an environment's frames into observations, and keeps a fragment's. This class is for vectors."""

    def __init__(self, spaces: Spaces, steps: int) -> None:
        """Makes room for a fragment."""
        self._make_room(steps, spaces.observation_size, np.float32)

    def _make_room(self, steps: int, size: int, dtype: type) -> None:
        self._size = size
        self._kept: np.ndarray = np.empty((steps, size), dtype)
        self._present: Any = None
        self._bootstraps: list[Any] = []
        self.bootstrap_steps: list[int] = []

    def begin(self, frame: np.ndarray) -> np.ndarray:
        """Returns the observation at an episode's first frame."""
        return self.push(frame)

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Returns the observation at the next frame."""
        self._present = frame
        return frame

    def resume(self, saved: np.ndarray) -> np.ndarray:
        """Returns an open episode's last observation. Raises: EpisodeStateError: It is another environment's."""
        _require_saved(saved, (self._size,), np.float32)
        return self.begin(saved)

    def last(self) -> np.ndarray:
        """Returns the argument for `resume`."""
        present: np.ndarray = self._present
        return present

    def keep(self, step: int) -> None:
        """Records the current observation as that step's."""
        self._kept[step] = self._present

    def keep_bootstrap(self, step: int) -> None:
        """Records the current observation as the one after that step, where the sequence is cut."""
        self.bootstrap_steps.append(step)
        self._bootstraps.append(self._present)

    def recorded(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the first steps' observations, the bootstraps' observations, and the frames of a `Fragment`."""
        return (
            self._kept[:steps],
            np.array(self._bootstraps, self._kept.dtype).reshape(-1, self._size),
            None,
        )


class _FrameRecorder(_Recorder):
    """Keeps each frame once, and the frames of each observation."""

    def __init__(self, spaces: Spaces, steps: int) -> None:
        self._make_room(steps, spaces.frame_stack, np.int32)
        self._spaces = spaces
        self._stack = FrameStack(spaces)
        self._frames: list[np.ndarray] = []

    def begin(self, frame: np.ndarray) -> np.ndarray:
        self._frames.append(frame)
        self._present = [len(self._frames) - 1] * self._spaces.frame_stack
        return self._stack.begin(frame)

    def push(self, frame: np.ndarray) -> np.ndarray:
        self._frames.append(frame)
        self._present = [*self._present[1:], len(self._frames) - 1]
        return self._stack.push(frame)

    def resume(self, saved: np.ndarray) -> np.ndarray:
        _require_saved(saved, (self._spaces.frame_stack, *self._spaces.frame_shape), np.uint8)
        observation = self.begin(saved[0])
        for before, frame in zip(saved, saved[1:], strict=False):
            # An episode's first frame also fills in for earlier ones.
            if not np.array_equal(before, frame):
                self._frames.append(frame)
            self._present = [*self._present[1:], len(self._frames) - 1]
            observation = self._stack.push(frame)
        return observation

    def last(self) -> np.ndarray:
        return np.stack([self._frames[index] for index in self._present])

    def recorded(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        kept, bootstraps, _ = super().recorded(steps)
        return (
            kept,
            bootstraps,
            np.stack(self._frames[: max(kept.max(), bootstraps.max(initial=0)) + 1]),
        )


def _require_saved(saved: np.ndarray, shape: tuple[int, ...], dtype: type) -> None:
    if saved.shape != shape or saved.dtype != dtype:
        raise EpisodeStateError(
            f"an open episode's observation is {saved.dtype}{list(saved.shape)}; the environment's "
            f"observations are {np.dtype(dtype)}{list(shape)}"
        )


def _require_finite(fragment: Fragment, outputs: np.ndarray, spaces: Spaces) -> None:
    """Checks that everything is finite, and otherwise names the step."""
    seen, after = fragment.observations, fragment.bootstrap_observations
    if fragment.frames is not None:
        in_frames = floats(fragment.frames, spaces)
        seen, after = in_frames[seen[:, 0]], in_frames[after[:, 0]]
    every_step = np.arange(len(outputs))
    for name, array, steps in (
        ("observations", seen, every_step),
        ("the policy's outputs", outputs, every_step),
        ("actions", fragment.actions, every_step),
        ("rewards", fragment.rewards, every_step),
        ("last observations", after, fragment.bootstrap_steps),
    ):
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise NonFiniteTrajectoryError(
                f"{name} are not finite at step {steps[row]} of the fragment"
            )
