"""Rolls out a fragment: ``fragment_steps`` steps of a policy version in one environment, or the whole episodes in them.

Several are rolled out in lock-step, each in its own environment, with one policy call per step for all. Each is
bit-identical to a separate rollout: it has its own random numbers, and the others do not affect the policy's outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import (
    EpisodeStateError,
    NonFiniteTrajectoryError,
    UnusableEnvironmentError,
    note_step,
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
        fields = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        if self.frames is not None:
            fields["observation_frames"] = fields.pop("observations")
            fields["bootstrap_frames"] = fields.pop("bootstrap_observations")
            fields |= pack_frames(self.frames)
        episode = self.open_episode
        fields["open_episode"] = (
            np.frombuffer(episode.to_bytes(), np.uint8) if episode else NO_BYTES
        )
        return fields


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
) -> Fragment:
    """Samples ``fragment_steps`` steps, continuing ``open_episode`` first if there is one.

    Args:
        open_episode: This and the three arguments before it are a `Request`.
        truncate_at_fragment: This and the next as in `roll_out_together`.

    Raises:
        SchemaError: The policy does not fit the environment.
        EpisodeStateError: The open episode belongs to another environment.
        NonFiniteTrajectoryError: NaN or infinity in observations, actions or rewards.
        UnusableEnvironmentError: No episode ended, so nothing remains with ``drop_unfinished``.
    """
    request = Request(seed, round_index, slot, open_episode)
    (outcome,) = roll_out_together(
        [environment],
        policy,
        [request],
        fragment_steps=fragment_steps,
        truncate_at_fragment=truncate_at_fragment,
        drop_unfinished=drop_unfinished,
    )
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


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
    outcomes: dict[int, Fragment | BaseException] = {}
    plays: dict[int, _Play] = {}

    def attempt(index: int, task: Callable[..., Any], *arguments: Any) -> Any:
        """Returns a task's result. If it raises, that ends its fragment, and the result is None."""
        try:
            return task(*arguments)
        except (Exception, SystemExit) as error:
            outcomes[index] = error
            plays.pop(index, None)
            return None

    for index, (environment, request) in enumerate(zip(environments, requests, strict=True)):
        if play := attempt(index, _Play, environment, policy, request, fragment_steps):
            plays[index] = play
    next_check_s = time.monotonic() + 1.0
    for step in range(fragment_steps):
        if step % _STOP_CHECK_STEPS == 0 and time.monotonic() > next_check_s:
            for index in list(plays):
                attempt(index, _require_wanted, requests[index])
            next_check_s = time.monotonic() + 1.0
        if len(plays) < 2:
            # Without lists of one: that is a tenth of CartPole's time.
            for index, play in list(plays.items()):
                attempt(index, play.act_alone, step)
            continue
        try:
            outputs, actions = _act_together(policy, list(plays.values()), step)
        except Exception as error:
            # A user's graph raised.
            return [outcomes.get(index, error) for index in range(len(requests))]
        for (index, play), *acted in zip(list(plays.items()), outputs, actions, strict=True):
            attempt(index, play.take_step, *acted)
    for index, play in list(plays.items()):
        if fragment := attempt(index, play.fragment, truncate_at_fragment, drop_unfinished):
            outcomes[index] = fragment
    return [outcomes[index] for index in sorted(outcomes)]


def _require_wanted(request: Request) -> None:
    if request.should_stop():
        raise InterruptedError("this trajectory is no longer awaited")


def _act_together(
    policy: Policy, plays: Sequence[_Play], step: int
) -> tuple[np.ndarray, Sequence[np.ndarray | int]]:
    """Returns the policy's outputs and the action for each observation, which do not depend on the others."""
    outputs = policy.outputs_together(
        [play.recorder.observation for play in plays],
        [play.environment.action_mask for play in plays],
    )
    return outputs, policy.sample_together(outputs, np.array([play.noise[step] for play in plays]))


@dataclass
class _Episode:
    """An episode so far, with fields as in `OpenEpisode`."""

    return_so_far: float
    length: int
    first_version: int


class _Play:
    """A fragment while it is rolled out.

    Attributes:
        noise: Noise for sampling its actions, a row for each step.
        recorder: Its observations.
    """

    def __init__(
        self,
        environment: ActorEnvironment | ReplayedEnvironment,
        policy: Policy,
        request: Request,
        fragment_steps: int,
    ) -> None:
        """Begins an episode, or continues the open one."""
        policy.check(environment.spaces)
        noise_stream, self._seeds = random_streams(request.seed, request.round_index, request.slot)
        self.environment = environment
        self.noise = policy.noise(noise_stream, fragment_steps)
        self.recorder = (_FrameRecorder if environment.spaces.is_pixels else _VectorRecorder)(
            environment.spaces, fragment_steps
        )
        self._policy = policy
        self._outputs = np.empty((fragment_steps, policy.output_size), np.float32)
        self._steps: list[tuple[Any, ...]] = []
        self._episodes: list[_Episode] = []
        if episode := request.open_episode:
            self.recorder.resume(episode.observation)
            environment.set_state(episode.state)
            self._episodes.append(
                _Episode(episode.return_so_far, episode.length, episode.first_version)
            )
        else:
            self._begin_episode()
        self._replayed_steps = getattr(environment, "replayed_steps", None)

    def _begin_episode(self) -> None:
        self.recorder.begin(self.environment.reset(int(self._seeds.integers(2**31))))
        self._episodes.append(_Episode(0.0, 0, self._policy.policy_version))

    def act_alone(self, step: int) -> None:
        """Takes one step with the policy's action for this observation alone."""
        output = self._policy.outputs(self.recorder.observation, self.environment.action_mask)
        self.take_step(output, self._policy.sample(output, self.noise[step]))

    def take_step(self, output: np.ndarray, action: np.ndarray | int) -> None:
        """Takes one step, and begins the next episode after the last one's end.

        Args:
            output: The policy's at the current observation.
            action: Sampled from it.
        """
        recorder = self.recorder
        episode = self._episodes[-1]
        step = len(self._steps)
        recorder.store(step)
        self._outputs[step] = output
        mask = self.environment.action_mask
        try:
            frame, reward, is_terminated, is_truncated = self.environment.step(action)
        except (Exception, SystemExit) as error:
            note_step(error, episode.length + 1)
            raise
        self._steps.append((action, reward, is_terminated, is_truncated, mask))
        episode.return_so_far += reward
        episode.length += 1
        if not is_terminated:
            recorder.push(frame)
            if is_truncated:
                recorder.store_bootstrap(len(self._steps) - 1)
        if (is_terminated or is_truncated) and len(self._steps) < len(self.noise):
            self._begin_episode()

    def fragment(self, truncate_at_fragment: bool, drop_unfinished: bool) -> Fragment:
        """Returns the fragment once it has all its steps; the arguments as in `roll_out_together`."""
        actions, rewards, terminated, truncated, masks = zip(*self._steps, strict=True)
        ends = np.flatnonzero(np.logical_or(terminated, truncated))
        steps = len(rewards)
        finished = self._episodes
        remaining = None
        if steps - 1 not in ends:
            finished = self._episodes[:-1]
            if drop_unfinished:
                if not finished:
                    raise UnusableEnvironmentError(
                        f"no episode ended in {steps} steps, and none can be continued"
                    )
                steps = int(ends[-1]) + 1
            else:
                self.recorder.store_bootstrap(len(self._steps) - 1)
                if self.environment.can_save_episode and not truncate_at_fragment:
                    remaining = self._open_episode()
        spaces = self.environment.spaces
        taken = np.array(actions[:steps], np.int64 if spaces.is_discrete else np.float32)
        outputs = self._outputs[:steps]
        observations, bootstrap_observations, frames = self.recorder.recorded(steps)
        fragment = Fragment(
            observations=observations,
            actions=taken,
            log_probs=self._policy.log_probs(outputs, taken, self.noise[:steps]),
            rewards=np.array(rewards[:steps], np.float64),
            terminated=np.array(terminated[:steps], np.bool_),
            truncated=np.array(truncated[:steps], np.bool_),
            bootstrap_steps=np.array(self.recorder.bootstrap_steps, np.int64),
            bootstrap_observations=bootstrap_observations,
            episode_returns=np.array([episode.return_so_far for episode in finished], np.float64),
            episode_lengths=np.array([episode.length for episode in finished], np.int64),
            episode_first_versions=np.array(
                [episode.first_version for episode in finished], np.int64
            ),
            open_episode=remaining,
            action_masks=np.array(masks[:steps]) if spaces.has_action_mask else None,
            frames=frames,
            replayed_steps=self._replayed_steps,
        )
        _require_finite(fragment, outputs, spaces)
        return fragment

    def _open_episode(self) -> OpenEpisode:
        episode = self._episodes[-1]
        return OpenEpisode(
            observation=self.recorder.last(),
            state=self.environment.get_state(),
            return_so_far=float(episode.return_so_far),
            length=episode.length,
            first_version=episode.first_version,
        )


class _VectorRecorder:
    """Stores a fragment's observations, which are vectors.

    Attributes:
        observation: The policy's current input.
        bootstrap_steps: The steps after which the sequence is cut.
    """

    def __init__(self, spaces: Spaces, steps: int) -> None:
        self._spaces = spaces
        self.observation = NO_BYTES
        self.bootstrap_steps: list[int] = []
        # What is stored of the current observation, and of those before.
        self._present: Any = None
        self._stored: np.ndarray = np.empty((steps, spaces.observation_size), np.float32)
        self._bootstraps: list[Any] = []

    def begin(self, frame: np.ndarray) -> None:
        """Observes an episode's first frame."""
        self.push(frame)

    def push(self, frame: np.ndarray) -> None:
        """Observes the next frame."""
        self.observation = self._present = frame

    def resume(self, saved: np.ndarray) -> None:
        """Observes what `last` returned. Raises: EpisodeStateError: It is another environment's."""
        _require_saved(saved, self._spaces.observation_shape, np.float32)
        self.begin(saved)

    def last(self) -> np.ndarray:
        """Returns the argument for `resume`."""
        return self.observation

    def store(self, step: int) -> None:
        """Stores the current observation as that step's."""
        self._stored[step] = self._present

    def store_bootstrap(self, step: int) -> None:
        """Stores the current observation as the one after that step, where the sequence is cut."""
        self.bootstrap_steps.append(step)
        self._bootstraps.append(self._present)

    def recorded(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the first steps' observations, the bootstraps' observations, and the frames of a `Fragment`."""
        stored = self._stored[:steps]
        bootstraps = np.array(self._bootstraps, stored.dtype).reshape(-1, stored.shape[1])
        return stored, bootstraps, None


class _FrameRecorder(_VectorRecorder):
    """Stores each frame once, and the indices of each observation's frames."""

    def __init__(self, spaces: Spaces, steps: int) -> None:
        super().__init__(spaces, 0)
        self._stored = np.empty((steps, spaces.frame_stack), np.int32)
        self._stack = FrameStack(spaces)
        self._frames: list[np.ndarray] = []

    def begin(self, frame: np.ndarray) -> None:
        self._frames.append(frame)
        self._present = [len(self._frames) - 1] * self._spaces.frame_stack
        self.observation = self._stack.begin(frame)

    def push(self, frame: np.ndarray) -> None:
        self._frames.append(frame)
        self._show(frame)

    def _show(self, frame: np.ndarray) -> None:
        self._present = [*self._present[1:], len(self._frames) - 1]
        self.observation = self._stack.push(frame)

    def resume(self, saved: np.ndarray) -> None:
        _require_saved(saved, (self._spaces.frame_stack, *self._spaces.frame_shape), np.uint8)
        self.begin(saved[0])
        for before, frame in pairwise(saved):
            # An episode's first frame also fills in for earlier ones, and is stored once.
            if not np.array_equal(before, frame):
                self._frames.append(frame)
            self._show(frame)

    def last(self) -> np.ndarray:
        return np.stack([self._frames[index] for index in self._present])

    def recorded(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        stored, bootstraps, _ = super().recorded(steps)
        used = max(stored.max(), bootstraps.max(initial=0)) + 1
        return stored, bootstraps, np.stack(self._frames[:used])


def _require_saved(saved: np.ndarray, shape: tuple[int, ...], dtype: type) -> None:
    if saved.shape != shape or saved.dtype != dtype:
        raise EpisodeStateError(
            f"an open episode's observation is {saved.dtype}{list(saved.shape)}; the environment's "
            f"observations are {np.dtype(dtype)}{list(shape)}"
        )


def _require_finite(fragment: Fragment, outputs: np.ndarray, spaces: Spaces) -> None:
    """Checks that everything is finite, and otherwise names the step."""
    seen = fragment.observations
    after = fragment.bootstrap_observations
    if fragment.frames is not None:
        in_frames = floats(fragment.frames, spaces)
        seen = in_frames[seen[:, 0]]
        after = in_frames[after[:, 0]]
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
