"""Tries an environment before anything starts, in several processes if needed.

`play` plays in one environment and leaves an episode open, `go_on` continues it in another one, and `conclude` draws
the conclusions. Episodes that cannot be saved are also replayed one after the other in the same environment. If they
differ there, each episode needs an environment of its own. One episode would not show that: BipedalWalker's first
agrees in a used environment, but 20 of 25 differ. PYTHONHASHSEED is fixed wherever environments run.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from lambda_actor import making, wire
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import (
    ActorError,
    EpisodeReplayError,
    OversizedMessageError,
    UnusableEnvironmentError,
    describe_error,
)
from lambda_actor.inline import from_text, to_text
from lambda_actor.policy import Policy, default_network, parameter_shapes
from lambda_actor.replay import ReplayedEnvironment, continuation
from lambda_actor.rollout import EPISODE_BYTES_MAX, Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces

_FRAGMENTS = 6
_FURTHER_STEPS_MAX = 64
"""Maximum fragments to play, and maximum steps of each after the first."""
_PROBE_STEPS = 24
_SLOW_S = 2.0
"""If this many steps take longer, the trial plays no more."""
_EPISODE_EXTRA_BYTES = 2**16
"""Maximum bytes of an open episode's message without actions and digests: mostly the observation."""


@dataclasses.dataclass(frozen=True)
class TriedEnvironment:
    """Properties of a tried environment, with the attributes of `ActorEnvironment`.

    Attributes:
        replay: How episodes are replayed that cannot be saved: ``reset``, or ``anew`` if each needs an environment of
            its own. "" if they can be saved.
        state_problem: Why another process cannot continue an episode from its state; "" if it can.
        difference: How an episode differed when it was replayed; "" if seed and actions alone determine it.
        single_because: Why no second one can exist on a machine; "" if one can.
        step_s: Seconds of a step as they are billed, CPU and waits, with a random policy, resets and reports of the
            trial.
        wait_s: Those of them in which it waits.
        make_s: Seconds until it was imported and made, with the start of its process.
    """

    environment_id: str
    spaces: Spaces
    preprocessing: str
    episode_steps_max: int | None
    cannot_save_reason: str
    plain_because: str
    rescales_actions: bool
    replay: str = ""
    state_problem: str = ""
    difference: str = ""
    single_because: str = ""
    step_s: float = 0.0
    wait_s: float = 0.0
    make_s: float = 0.0

    @property
    def can_save_episode(self) -> bool:
        """Whether an open episode's state can travel."""
        return not self.cannot_save_reason

    @property
    def problem(self) -> str:
        """Why another process cannot continue an episode; "" if it can."""
        return self.state_problem or ("" if self.can_save_episode else self.difference)

    @property
    def warnings(self) -> dict[str, str]:
        """Warnings about a usable environment, by subject."""
        warnings = {}
        if self.difference and not self.problem:
            warnings["environment"] = (
                f"not deterministic, so that results cannot be reproduced: {self.difference}"
            )
        if self.plain_because:
            warnings["steps"] = (
                f"the environment's are slower than they could be: {self.plain_because}"
            )
        return warnings

    def obstacle(self) -> tuple[str, str]:
        """Returns why no other process can continue an episode, and the alternatives; both empty if one can."""
        limit = self.episode_steps_max
        allowed = []
        action_bytes = (8 if self.spaces.is_discrete else 4) * math.prod(self.spaces.action_shape)
        limit_max = (EPISODE_BYTES_MAX - _EPISODE_EXTRA_BYTES) // (action_bytes + 8)
        if self.problem:
            why = f"no later actor can continue its episodes: {self.problem}"
        elif self.can_save_episode or (limit is not None and limit <= limit_max):
            return "", ""
        else:
            steps = (
                "no limit of steps that Gymnasium knows" if limit is None else f"{limit:,} steps"
            )
            why = f"its episodes can have {steps}, and {self.cannot_save_reason}"
            allowed = [f"environment.max_episode_steps up to {limit_max:,}"]
        if self.difference:
            allowed += ["chance from self.np_random alone, which super().reset(seed=seed) seeds"]
        else:
            allowed += [
                f"a complete get_state() of {EPISODE_BYTES_MAX:,} bytes at most, and set_state(state)"
            ]
        if limit is not None:
            allowed += [
                f"actor.fragment_steps from {limit:,}, which drops each fragment's last episode"
            ]
        return why, ", ".join([*allowed, "or environment.truncate_at_fragment: true"])

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


def facts(environment: ActorEnvironment) -> dict[str, Any]:
    """Returns what is known before playing: the attributes of `TriedEnvironment` without a default."""
    return {
        field.name: getattr(environment, field.name)
        for field in dataclasses.fields(TriedEnvironment)
        if field.default is dataclasses.MISSING
    }


def play(
    environment: ActorEnvironment, make: Callable[[], ActorEnvironment], *, steps: int
) -> dict[str, Any]:
    """Plays, and leaves an episode open for `go_on`.

    Args:
        environment: A new environment.
        make: Makes another one.
        steps: Steps of the first fragment.

    Returns:
        ``steps``, ``mean_reward`` of the first fragment; ``has_action_mask``; ``replay`` of a `TriedEnvironment`;
        ``episode``, a message, "" if none was left open; of an environment that saves episodes ``saved``, the same
        with its state, and ``digests`` of how it continues. If it cannot travel, ``state_problem``.

    Raises:
        ActorError: Its observations or results are unusable.
    """
    is_saved = environment.can_save_episode
    # One after the other in the same environment: some can exist only once.
    recorded = ReplayedEnvironment(lambda: environment, is_made_anew=False)
    played: dict[str, Any] = {"episode": "", "replay": "" if is_saved else "reset"}
    try:
        episodes = []
        for episode in _open_episodes(recorded, steps, played):
            if is_saved:
                saved = _text(dataclasses.replace(episode, state=environment.get_state()))
                digests = continuation(environment, episode.state["actions"])
                # An episode for this check may be slightly larger than one that travels.
                message = _text(episode, 2 * EPISODE_BYTES_MAX)
                return played | {"episode": message, "saved": saved, "digests": digests}
            episodes.append(episode)
        if not _are_replayed(recorded, episodes):
            played["replay"] = "anew"
            recorded.close()
            with closing(ReplayedEnvironment(make, is_made_anew=True)) as anew:
                episodes = list(_open_episodes(anew, steps, played))
        if episodes:
            played["episode"] = _text(max(episodes, key=lambda episode: episode.length))
        return played
    except OversizedMessageError as error:
        return played | {"state_problem": str(error)}


def go_on(
    environment: ActorEnvironment,
    *,
    episode: str,
    saved: str = "",
    digests: Sequence[str] = (),
    **played: Any,
) -> dict[str, str]:
    """Continues an episode that another environment has left open.

    Args:
        environment: A new environment.
        episode: This and the rest are results of `play`.

    Returns:
        ``difference`` and ``state_problem`` of a `TriedEnvironment`.
    """
    differs = {"difference": "", "state_problem": ""}
    replayed = _episode(episode)
    try:
        ReplayedEnvironment(lambda: environment, is_made_anew=False).set_state(replayed.state)
    except EpisodeReplayError as error:
        differs["difference"] = str(error)
    if saved:
        environment.set_state(_episode(saved).state)
        here = continuation(environment, replayed.state["actions"])
        if here != list(digests):
            pairs = zip(here, digests, strict=False)
            step = next((step for step, (ours, theirs) in enumerate(pairs, 1) if ours != theirs), 0)
            differs["state_problem"] = (
                f"a saved episode continues differently elsewhere, at step {step or 'its end'} after its state was set"
                ": get_state() leaves something out, or the environment is not deterministic"
            )
    return differs


def conclude(
    known: Mapping[str, Any], played: Mapping[str, Any], differs: Mapping[str, str]
) -> TriedEnvironment:
    """Returns the properties of an environment.

    Args:
        known: Result of `facts`.
        played: Result of `play`.
        differs: Result of `go_on`; empty if no episode was left open.
    """
    spaces = dataclasses.replace(known["spaces"], has_action_mask=played["has_action_mask"])
    saving = {name: played[name] for name in ("replay", "state_problem") if name in played}
    return TriedEnvironment(**{**known, "spaces": spaces, **saving, **differs})


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
        else f"it raised when it was tried: {describe_error(error)}{making.advice(environment_id, error)}"
    )
    return f"environment.id = {environment_id!r}: {what}"


def random_policy(environment: ActorEnvironment | ReplayedEnvironment) -> Policy:
    """Returns a policy for the environment, read from a message as an actor does."""
    return Policy.from_bytes(random_weights(environment.spaces))


def random_weights(spaces: Spaces) -> bytes:
    """Returns a WEIGHTS message of a full-size policy with small random weights."""
    network = default_network(spaces)
    moments = spaces.vector_size
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


def _are_replayed(environment: ReplayedEnvironment, episodes: Sequence[OpenEpisode]) -> bool:
    """Whether a used environment repeats these episodes."""
    try:
        for episode in episodes:
            for _ in environment.replay(episode.state):
                pass
    except EpisodeReplayError:
        return False
    return True


def _open_episodes(
    environment: ReplayedEnvironment, steps: int, played: dict[str, Any]
) -> Iterator[OpenEpisode]:
    """Plays, notes what is seen, and yields the episodes that fragments leave open."""
    for fragment in _fragments(environment, steps):
        played.setdefault("steps", len(fragment.rewards))
        played.setdefault("mean_reward", float(fragment.rewards.mean()))
        played["has_action_mask"] = environment.spaces.has_action_mask
        if fragment.open_episode is not None:
            yield fragment.open_episode


def _fragments(environment: ReplayedEnvironment, steps: int) -> Iterator[Fragment]:
    """Rolls out fragments of decreasing length, or a short one if it is slow."""
    policy = random_policy(environment)
    began_s = time.monotonic()

    def fragment(length: int, slot: int) -> Fragment:
        return roll_out(
            environment, policy, fragment_steps=length, seed=0, round_index=0, slot=slot
        )

    probe = fragment(min(steps, _PROBE_STEPS), _FRAGMENTS)
    if time.monotonic() - began_s > _SLOW_S and probe.open_episode is not None:
        yield probe
        return
    for slot in range(_FRAGMENTS):
        yield fragment(max(1, min(steps, _FURTHER_STEPS_MAX if slot else steps) - slot), slot)


def _text(episode: OpenEpisode, bytes_max: int = EPISODE_BYTES_MAX) -> str:
    return to_text(episode.to_bytes(bytes_max))


def _episode(text: str) -> OpenEpisode:
    return OpenEpisode.from_bytes(from_text(text))
