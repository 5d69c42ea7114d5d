"""Open episodes of environments that cannot be saved. They travel as a seed and actions, and are replayed.

The next actor resets an environment with the seed, repeats the actions, and compares digests of all observations and
rewards at each step (BLAKE2b, 8 bytes). Equal digests prove that it has reached the same point; a different one names
the step. A process that still holds the episode does not replay it. That cannot hide an environment that is not
deterministic, because an episode is replayed in a new process before round 1. In AWS, an actor rarely reaches the
sandbox that served the episode last.

An episode that continues differently is dropped after two tries. An episode that cannot be continued and fits into a
fragment is dropped whole, so trajectories get shorter and batches are padded.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from lambda_actor.environments import ActorEnvironment
from lambda_actor.episode_state import State
from lambda_actor.errors import EpisodeReplayError
from lambda_actor.spaces import Spaces

_DIGEST = struct.Struct("<d??")


class ReplayedEnvironment:
    """An environment whose open episode is saved as seed and actions; used as an `ActorEnvironment`.

    Attributes:
        replayed_steps: Steps that the last `set_state` replayed.
    """

    can_save_episode = True

    def __init__(self, make: Callable[[], ActorEnvironment], *, is_made_anew: bool) -> None:
        """Makes the environment.

        Args:
            make: Makes an environment.
            is_made_anew: Whether each episode gets an environment of its own.

        Raises:
            UnusableEnvironmentError: It cannot be made.
        """
        self._make = make
        self._is_made_anew = is_made_anew
        self._environment = make()
        self._is_used = False
        self._begin(0)

    @property
    def spaces(self) -> Spaces:
        """The policy's observations and actions."""
        return self._environment.spaces

    @property
    def action_mask(self) -> np.ndarray | None:
        """As `ActorEnvironment.action_mask`."""
        return self._environment.action_mask

    def reset(self, seed: int) -> np.ndarray:
        """Starts a new episode; as `ActorEnvironment.reset`."""
        if self._is_used and self._is_made_anew:
            self._environment.close()
            self._environment = self._make()
        self._is_used = True
        self._begin(seed)
        frame = self._environment.reset(seed)
        self._digest.update(_seen(frame, self.action_mask))
        return frame

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        """Takes one step with ``action``; as `ActorEnvironment.step`."""
        frame, reward, terminated, truncated = result = self._environment.step(action)
        self._digest.update(_seen(frame, self.action_mask))
        self._digest.update(_DIGEST.pack(reward, terminated, truncated))
        self._actions.append(action)
        self._digests.append(self._digest.digest())
        return result

    def get_state(self) -> State:
        """Returns the open episode, after at least one step.

        Returns:
            seed: int64 ``[]``.
            actions: of its steps, ``[n]`` or ``[n, A]``.
            digests: of all observations and rewards up to each step, uint64 ``[n]``.
            processor: the processor that played it, text as uint8.
        """
        return {
            "seed": np.array(self._seed, np.int64),
            "actions": np.array(self._actions),
            "digests": np.frombuffer(b"".join(self._digests), "<u8"),
            "processor": np.frombuffer(processor().encode(), np.uint8),
        }

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues the episode that `get_state` saved, here or in another process.

        Raises:
            EpisodeReplayError: The episode continues differently here.
        """
        self.replayed_steps = 0
        if not self._stands_at(state):
            self.replayed_steps = sum(1 for _ in self.replay(state))

    def replay(self, state: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Replays the episode, a step at a time.

        Raises:
            EpisodeReplayError: The episode continues differently here.
        """
        seed = int(state["seed"])
        where = state["processor"].tobytes().decode()
        self.reset(seed)
        for step, action in enumerate(state["actions"]):
            self.step(action)
            if self._digests[-1] != state["digests"][step].tobytes():
                raise EpisodeReplayError(
                    f"the episode of seed {seed} continued differently at step "
                    f"{step + 1} of {len(state['actions'])} when it was replayed; "
                    + (
                        "the environment is not deterministic, or remembers something across episodes"
                        if where == processor()
                        else f"it was begun on {where}, and this is {processor()}, which may round differently"
                    )
                )
            yield

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _begin(self, seed: int) -> None:
        self.replayed_steps = 0
        self._seed = seed
        self._actions: list[np.ndarray | int] = []
        self._digests: list[bytes] = []
        self._digest = blake2b(digest_size=8)

    def _stands_at(self, state: Mapping[str, np.ndarray]) -> bool:
        """Whether this process still holds the open episode."""
        here = self.get_state()
        return bool(self._digests) and all(
            np.array_equal(here[name], state[name]) for name in ("seed", "digests", "actions")
        )


def continuation(environment: ActorEnvironment, actions: Iterable[np.ndarray | int]) -> list[str]:
    """Takes allowed actions until the episode ends. Returns a digest of each step's results."""
    digests = []
    for action in actions:
        frame, *rest = environment.step(environment.allowed(action))
        digests.append(
            blake2b(
                _seen(frame, environment.action_mask) + _DIGEST.pack(*rest), digest_size=8
            ).hexdigest()
        )
        if rest[1] or rest[2]:
            break
    return digests


def _seen(frame: np.ndarray, mask: np.ndarray | None) -> bytes:
    return frame.tobytes() if mask is None else frame.tobytes() + mask.tobytes()


@cache
def processor() -> str:
    """Returns the model of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "CPU part"):
                return f"{platform.machine()} {value.strip()}"
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"
