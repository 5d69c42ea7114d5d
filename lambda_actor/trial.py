"""Tries an environment before anything starts, in as many processes as that takes.

`play` plays in one environment and leaves an episode open, `go_on` continues it in another one, and `conclude` draws
the conclusions. Episodes that cannot be saved are also replayed one after the other in the same environment. If they
differ there, each episode needs an environment of its own. One episode would not show that: BipedalWalker's first
agrees in a used environment, but 20 of 25 differ. PYTHONHASHSEED is fixed wherever environments run.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment
from lambda_actor.episode_state import spanning_wrapper
from lambda_actor.errors import (
    ActorError,
    EpisodeReplayError,
    EpisodeStateError,
    OversizedMessageError,
    UnusableEnvironmentError,
    told,
)
from lambda_actor.policy import Policy, default_network, parameter_shapes
from lambda_actor.replay import ReplayedEnvironment, check_continuation, continuation
from lambda_actor.rollout import EPISODE_BYTES_MAX, Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces

_FRAGMENTS, _FURTHER_STEPS_MAX = 6, 64
"""Maximum fragments to play, and maximum steps of each after the first."""
_PROBE_STEPS, _SLOW_S = 24, 2.0
"""If this many steps take longer, the trial plays no more."""
_EPISODE_EXTRA_BYTES = 2**16
"""Maximum bytes of an open episode's message without actions and digests: mostly the observation."""


@dataclasses.dataclass(frozen=True)
class TriedEnvironment:
    """Properties of a tried environment, with the attributes of `ActorEnvironment`.

    Attributes:
        can_save_episode: Whether an open episode's state can travel.
        spanning_wrapper: Name of a wrapper whose state spans episodes; "" if there is none.
        replay: How episodes are replayed that cannot be saved: ``reset``, or ``anew`` if each needs an environment of
            its own. "" if they can be saved.
        problem: Why another process cannot continue an episode; "" if it can.
        remark: Other differences between processes; "" if there are none.
        state_bytes: Size of a state that is too large to travel, otherwise 0.
        is_deterministic: Whether seed and actions alone determine an episode.
        shared: What went wrong with an episode next to another environment in its process; "" if nothing did or it was
            not tried.
        step_s: Seconds of a step, with a random policy, resets and reports of the trial.
        make_s: Seconds until it was imported and made, with the start of its process.
    """

    environment_id: str
    spaces: Spaces
    preprocessing: str
    episode_steps_max: int | None
    can_save_episode: bool
    cannot_save_reason: str
    spanning_wrapper: str
    plain_because: str
    replay: str = ""
    problem: str = ""
    remark: str = ""
    state_bytes: int = 0
    is_deterministic: bool = True
    shared: str = ""
    step_s: float = 0.0
    make_s: float = 0.0

    @property
    def warnings(self) -> dict[str, str]:
        """Returns warnings about a usable environment, by subject."""
        found = {}
        if self.remark:
            found["environment"] = (
                f"not deterministic, so that results cannot be reproduced: {self.remark}"
            )
        if self.shared:
            found["vector"] = (
                f"a process plays one environment at a time, as two share something: {self.shared}"
            )
        if self.plain_because:
            found["steps"] = (
                f"the environment's are slower than they could be: {self.plain_because}"
            )
        return found

    def obstacle(self) -> tuple[str, str]:
        """Returns why no other process can continue an episode, and the alternatives; both empty if one can."""
        limit, reason = self.episode_steps_max, self.cannot_save_reason
        methods = (
            f"a get_state() of {EPISODE_BYTES_MAX:,} bytes at most"
            if self.state_bytes
            else "get_state() and set_state(state) in the environment"
        )
        chance = "chance from self.np_random alone, which super().reset(seed=seed) seeds"
        whole = (
            f"actor.fragment_steps from {limit:,}, which drops the last episode of each fragment, "
            if limit is not None
            else ""
        )
        cut = "environment.truncate_at_fragment: true"
        if self.problem:
            remedies = [methods] if self.is_deterministic or self.state_bytes else []
            if not self.is_deterministic:
                remedies.append(chance)
            return (
                f"no later actor can continue its episodes: {self.problem}",
                f"{', '.join(remedies)}, {whole}or {cut}",
            )
        if self.can_save_episode:
            return "", ""
        if name := self.spanning_wrapper:
            return (
                f"wrapper {name} keeps moments across episodes, so that each actor would see something else",
                "without it, as algorithm.*.normalize_observations and normalize_rewards do the same for all "
                "actors at once",
            )
        if limit is None:
            return (
                f"its episodes have no limit of steps that Gymnasium knows, and {reason}, so that a later actor "
                "would replay ever more steps to continue one",
                f"environment.max_episode_steps, {methods}, or {cut}",
            )
        action_bytes = (8 if self.spaces.is_discrete else 4) * math.prod(self.spaces.action_shape)
        limit_max = (EPISODE_BYTES_MAX - _EPISODE_EXTRA_BYTES) // (action_bytes + 8)
        if limit > limit_max:
            return (
                f"an episode can have {limit:,} steps, and {reason}; actions of an episode that is replayed fit a "
                f"message up to {limit_max:,} steps",
                f"{methods}, {whole}or {cut}",
            )
        return "", ""

    def dropped_because(self, fragment_steps: int) -> str:
        """Returns why the unfinished episode at a fragment's end is dropped; "" if a later actor can continue it.

        Raises:
            UnusableEnvironmentError: No actor can continue it, and it may be longer than a fragment.
        """
        problem, allowed = self.obstacle()
        if problem and (self.episode_steps_max is None or self.episode_steps_max > fragment_steps):
            raise UnusableEnvironmentError(
                f"environment.id = {self.environment_id!r}: {problem}; allowed: {allowed}"
            )
        return problem


FACTS = tuple(
    field.name
    for field in dataclasses.fields(TriedEnvironment)
    if field.default is dataclasses.MISSING
)
PLAYED = (
    "steps",
    "mean_reward",
    "is_masked",
    "way",
    "problem",
    "state_bytes",
    "episode",
    "saved",
    "digests",
)
DIFFERS = ("replayed", "saved")
NOTHING_DIFFERS = dict.fromkeys(DIFFERS, "")
"""Result of `go_on` without differences, or if no episode was left open."""


def facts(environment: ActorEnvironment) -> dict[str, Any]:
    """Returns what is known before playing, by the names in `FACTS`."""
    return {name: getattr(environment, name) for name in FACTS if name != "spanning_wrapper"} | {
        "spanning_wrapper": spanning_wrapper(environment.gymnasium_environment)
    }


def play(
    environment: ActorEnvironment, make: Callable[[], ActorEnvironment], *, steps: int
) -> dict[str, Any]:
    """Plays, and returns an episode that is left open for `go_on`, by the names in `PLAYED`.

    Args:
        environment: A new environment.
        make: Makes another one.
        steps: Steps of the first fragment.

    Raises:
        ActorError: Its observations or results are unusable.
    """
    found: dict[str, Any] = dict.fromkeys(PLAYED, "") | {
        "digests": [],
        "state_bytes": 0,
        "is_masked": False,
    }

    def seen(fragment: Fragment) -> None:
        if not found["steps"]:
            found.update(
                steps=len(fragment.rewards),
                mean_reward=float(fragment.rewards.mean()),
                is_masked=fragment.action_masks is not None,
            )

    if environment.can_save_episode:
        recorded = ReplayedEnvironment(lambda: environment, is_made_anew=False)
        for episode in _open_episodes(recorded, steps, seen):
            state = environment.get_state()
            try:
                found["saved"] = _text(dataclasses.replace(episode, state=state))
            except OversizedMessageError:
                found["state_bytes"] = (
                    sum(value.nbytes for value in state.values()) + episode.observation.nbytes
                )
                environment = make()
                break
            # An episode for this check may be slightly larger than one that travels.
            return found | {
                "episode": _text(episode, 2 * EPISODE_BYTES_MAX),
                "digests": continuation(environment, episode.state["actions"]),
            }
        else:
            return found
    if environment.episode_steps_max is None or spanning_wrapper(environment.gymnasium_environment):
        next(
            _open_episodes(
                ReplayedEnvironment(lambda: environment, is_made_anew=False), steps, seen
            ),
            None,
        )
        return found
    return found | _replays(environment, make, steps, seen)


def go_on(
    environment: ActorEnvironment, *, episode: str, saved: str, digests: list[str], **played: Any
) -> dict[str, str]:
    """Continues an episode that another environment has left open. Returns the differences by the names in `DIFFERS`.

    Args:
        environment: A new environment.
        episode: This and the rest are results of `play`.
    """
    differs = dict(NOTHING_DIFFERS)
    replayed = _episode(episode)
    try:
        ReplayedEnvironment(lambda: environment, is_made_anew=False).set_state(replayed.state)
    except EpisodeReplayError as error:
        differs["replayed"] = str(error)
    if saved:
        environment.set_state(_episode(saved).state)
        try:
            check_continuation(digests, continuation(environment, replayed.state["actions"]))
        except EpisodeStateError as error:
            differs["saved"] = str(error)
    return differs


def play_beside(environment: ActorEnvironment, other: ActorEnvironment, episode: str) -> str:
    """Replays an episode while another environment plays in lock-step. Returns the difference, or "".

    Args:
        environment: A new environment.
        other: Another new environment.
        episode: Result of `play`.
    """
    both: Any = _Beside(environment, other)
    try:
        ReplayedEnvironment(lambda: both, is_made_anew=False).set_state(_episode(episode).state)
    except EpisodeReplayError as error:
        return str(error)
    return ""


class _Beside:
    """An environment next to another one that takes the same steps."""

    def __init__(self, environment: ActorEnvironment, other: ActorEnvironment) -> None:
        self._environment, self._other = environment, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, seed: int) -> np.ndarray:
        frame = self._environment.reset(seed)
        self._other.reset(seed + 1)
        return frame

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        found = self._environment.step(action)
        *_, is_terminated, is_truncated = self._other.step(self._other.nearest_allowed(action))
        if is_terminated or is_truncated:
            self._other.reset(0)
        return found


def conclude(
    known: Mapping[str, Any], played: Mapping[str, Any], differs: Mapping[str, str]
) -> TriedEnvironment:
    """Returns the properties of an environment.

    Args:
        known: Result of `facts`.
        played: Result of `play`.
        differs: Result of `go_on`.
    """
    known = {
        **known,
        "spaces": dataclasses.replace(known["spaces"], has_action_mask=played["is_masked"]),
    }
    tried = TriedEnvironment(
        **known,
        state_bytes=played["state_bytes"],
        problem=played["problem"] or differs["saved"],
        is_deterministic=not differs["replayed"],
    )
    if tried.state_bytes:
        tried = dataclasses.replace(
            tried,
            can_save_episode=False,
            cannot_save_reason=(
                f"its state has {tried.state_bytes:,} bytes, and {EPISODE_BYTES_MAX:,} can travel"
            ),
        )
    if tried.can_save_episode:
        return dataclasses.replace(tried, remark="" if tried.problem else differs["replayed"])
    return dataclasses.replace(
        tried, problem=tried.problem or differs["replayed"], replay=played["way"]
    )


def dropped(problem: str) -> str:
    """Returns the message that unfinished episodes are dropped.

    Args:
        problem: Result of `TriedEnvironment.dropped_because`.
    """
    return f"each fragment's last, unfinished episode, because {problem}"


def explained(environment_id: str, error: BaseException) -> str:
    """Returns a description of an error of `play` or `go_on`."""
    what = (
        str(error)
        if isinstance(error, ActorError)
        else f"it raised when it was tried: {told(error)}"
    )
    return f"environment.id = {environment_id!r}: {what}"


def random_policy(environment: ActorEnvironment | ReplayedEnvironment) -> Policy:
    """Returns a policy for the environment, read from a message as an actor does."""
    return Policy.from_bytes(random_weights(environment.spaces))


def random_weights(spaces: Spaces) -> bytes:
    """Returns a WEIGHTS message of a full-size policy with small random weights."""
    network, moments = default_network(spaces), spaces.vector_size
    draw = np.random.default_rng(0)
    return wire.encode(
        wire.Kind.WEIGHTS,
        {
            "policy_version": np.array(0, np.int64),
            "network": wire.text_field(network),
            "distribution": wire.text_field(spaces.distribution),
            "log_std": np.full(spaces.action_size, -1.0, np.float32),
            "observation_mean": np.zeros(moments, np.float32),
            "observation_std": np.ones(moments, np.float32),
            "observation_clip": np.array(10.0, np.float32),
            **{
                name: draw.normal(0.0, 0.1 if name.endswith("weight") else 0.0, shape).astype(
                    np.float32
                )
                for name, shape in parameter_shapes(spaces, network).items()
            },
        },
    )


def _replays(
    first: ActorEnvironment,
    make: Callable[[], ActorEnvironment],
    steps: int,
    seen: Callable[[Fragment], None],
) -> dict[str, Any]:
    """Returns how episodes are replayed, by trying separate environments and a used one."""
    spare = [first]
    environment = ReplayedEnvironment(lambda: spare.pop() if spare else make(), is_made_anew=True)
    used = ReplayedEnvironment(make, is_made_anew=False)
    episodes = list(_open_episodes(environment, steps, seen))
    way = "reset"
    try:
        for episode in episodes:
            used.set_state(episode.state)
    except EpisodeReplayError:
        way = "anew"
    longest = max(episodes, key=lambda one: one.length, default=None)
    try:
        return {"way": way, "episode": _text(longest) if longest else ""}
    except OversizedMessageError as error:
        return {
            "way": way,
            "problem": f"{first.cannot_save_reason or 'its state is too large'}, and its seed and "
            f"actions cannot travel: {error}",
        }


def _open_episodes(
    environment: ReplayedEnvironment, steps: int, seen: Callable[[Fragment], None]
) -> Iterator[OpenEpisode]:
    """Rolls out fragments of decreasing length, or a short one if it is slow. Yields episodes left open."""
    policy, began_s = random_policy(environment), time.monotonic()
    probe = roll_out(
        environment,
        policy,
        fragment_steps=min(steps, _PROBE_STEPS),
        seed=0,
        round_index=0,
        slot=_FRAGMENTS,
    )
    if time.monotonic() - began_s > _SLOW_S and probe.open_episode is not None:
        seen(probe)
        yield probe.open_episode
        return
    for slot in range(_FRAGMENTS):
        length = max(1, min(steps, _FURTHER_STEPS_MAX if slot else steps) - slot)
        fragment = roll_out(
            environment, policy, fragment_steps=length, seed=0, round_index=0, slot=slot
        )
        seen(fragment)
        if fragment.open_episode is not None:
            yield fragment.open_episode


def _text(episode: OpenEpisode, bytes_max: int = EPISODE_BYTES_MAX) -> str:
    return base64.b64encode(episode.to_bytes(bytes_max)).decode()


def _episode(text: str) -> OpenEpisode:
    return OpenEpisode.from_bytes(base64.b64decode(text))
