"""Tries an environment in processes of its own, before anything starts.

    python -m runtime.training.trial CONTROL_FD

An environment that hangs, or ends the process that it is in, is refused with what it was doing. One that cannot save
its episodes is proven to be replayable: a run leaves episodes open in one process and continues them in another, so
some are begun in a new process, and one is replayed in another new one. If observations and rewards differ, the
environment is not deterministic. Then they are replayed in one environment after the other: if they differ there, each
episode needs an environment of its own.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from lambda_actor.check import random_policy
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.episode_state import spanning_wrapper
from lambda_actor.errors import ActorError, EpisodeReplayError, told
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import OpenEpisode, roll_out
from lambda_actor.spaces import Spaces
from runtime.errors import EnvironmentNotHereError, ExperimentError, one_line
from runtime.training.environment_process import EnvironmentProcess, connect

_FRAGMENTS, _STEPS_MAX = 6, 256
_PATIENCE_S, _NOTICE_S, _POLL_S, _DEATH_PATIENCE_S = 600, 30, 1.0, 1.0
"""Each import, reset and step has so long; one that takes longer than the notice is told of."""
_SAID_BYTES = 2**16
"""Of what it printed, so much is looked at for its last line."""
_MAKING = "being imported and made"


@dataclasses.dataclass(frozen=True)
class TriedEnvironment:
    """What an environment is like, without the environment; attributes as those of `ActorEnvironment`.

    Attributes:
        spanning_wrapper: The name of a wrapper whose state goes on from one episode to the next; "" if there is none.
    """

    environment_id: str
    spaces: Spaces
    preprocessing: str
    episode_steps_max: int | None
    can_save_episode: bool
    cannot_save_reason: str
    spanning_wrapper: str


def try_environment(
    environment_id: str, preprocessing: str = "auto", options: Mapping[str, Any] | None = None
) -> TriedEnvironment:
    """Makes an environment in another process; returns what it is like.

    Args:
        environment_id: This and the others as `make_environment` takes them.

    Raises:
        EnvironmentNotHereError: It cannot be made, its process ended, or it took too long.
    """
    try:
        facts = _ask({"task": "make", "made": json.dumps([environment_id, preprocessing, options or {}])})
    except _TrialError as error:
        raise EnvironmentNotHereError(str(error)) from None
    spaces = {key: _tuples(value) for key, value in facts.pop("spaces").items()}
    return TriedEnvironment(spaces=Spaces(**spaces), **facts)


@cache
def prove_replay(made: str, fragment_steps: int) -> str:
    """Returns how episodes are replayed: ``reset``, or ``anew`` if each needs an environment of its own.

    Args:
        made: The arguments of `make_environment`, as JSON.
        fragment_steps: ``actor.fragment_steps``; episodes of so many steps are replayed, of 256 at most.

    Raises:
        ExperimentError: An episode goes on differently when it is replayed, or the environment raises, observes or
            returns what nobody here can use, ends its process or takes too long.
    """
    try:
        played = _ask({"task": "play", "made": made, "steps": min(fragment_steps, _STEPS_MAX)})
    except _TrialError as error:
        raise ExperimentError(str(error)) from None
    try:
        if played["episode"]:
            _ask({"task": "replay", "made": made, "episode": played["episode"]})
    except _TrialError as error:
        raise ExperimentError(
            f"environment.id = {json.loads(made)[0]!r}: its episodes cannot be continued by a later actor. In another "
            f"process: {error}. Allowed: get_state() and set_state(state) in the environment, actor.fragment_steps of "
            "a whole episode, or environment.truncate_at_fragment: true") from None
    return str(played["way"])


class _TrialError(Exception):
    """What a trial came to, for people."""


def _ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """Has a new process do a task; returns its answer."""
    environment_id = json.loads(request["made"])[0]
    with TemporaryFile() as output:
        process = EnvironmentProcess("runtime.training.trial", output=output)
        doing, since_s, is_noticed = _MAKING, time.monotonic(), False
        try:
            process.connection.send_bytes(json.dumps(request).encode())
            while True:
                while not process.connection.poll(_POLL_S):
                    if not process.is_alive:
                        raise EOFError
                    waited_s = time.monotonic() - since_s
                    if waited_s >= _PATIENCE_S:
                        raise _TrialError(f"environment.id = {environment_id!r}: it was still {doing} after "
                                          f"{_PATIENCE_S} s, in the trial before the first round")
                    if waited_s >= _NOTICE_S and not is_noticed:
                        is_noticed = True
                        _notice(f"environment.id = {environment_id!r}: it is still {doing} after {_NOTICE_S} s; after "
                                f"{_PATIENCE_S} s it is refused")
                message: dict[str, Any] = json.loads(process.connection.recv_bytes())
                if "error" in message:
                    raise _TrialError(message["error"])
                if "doing" not in message:
                    return message
                doing, since_s = message["doing"], time.monotonic()
        except (EOFError, OSError):
            how = process.end(_DEATH_PATIENCE_S)
            output.seek(max(0, output.seek(0, os.SEEK_END) - _SAID_BYTES))
            said = output.read().decode(errors="replace").strip().splitlines()
            raise _TrialError(
                f"environment.id = {environment_id!r}: it ended the process that it was tried in ({how}), while it was "
                f"{doing}{f'; the last line there: {one_line(said[-1])}' if said else ''}") from None
        finally:
            process.end()


def _notice(line: str) -> None:
    with suppress(OSError, AttributeError, ValueError):
        print(f"! {line}", file=sys.stderr, flush=True)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# In the other process


class _Telling:
    """An environment that tells what it is about to do."""

    def __init__(self, environment: ActorEnvironment, tell: Callable[[str], None]) -> None:
        self._environment, self._tell, self._step = environment, tell, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, seed: int) -> np.ndarray:
        self._step = 0
        self._tell(f"in reset(seed={seed})")
        return self._environment.reset(seed)

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        self._step += 1
        self._tell(f"in step {self._step} of an episode")
        return self._environment.step(action)


def main(control_fd: int) -> None:
    """Does the one task that it is asked for, and answers."""
    connection, messages = connect(control_fd)
    process_id = os.getpid()

    def answer(message: Mapping[str, Any]) -> None:
        # A copy that the environment forked says nothing.
        if os.getpid() == process_id:
            connection.send_bytes(json.dumps(message).encode())

    def make() -> Any:
        answer({"doing": _MAKING})
        return _Telling(make_environment(*json.loads(request["made"])), lambda doing: answer({"doing": doing}))

    request = json.loads(messages.get())
    environment_id = json.loads(request["made"])[0]
    about = f"environment.id = {environment_id!r}: " if request["task"] == "play" else ""
    try:
        answer({"make": _facts, "play": _play, "replay": _replay}[request["task"]](make, request))
    except ActorError as error:
        answer({"error": f"{about}{error}"})
    except (Exception, SystemExit) as error:
        answer({"error": f"environment.id = {environment_id!r}: it raised when it was tried: {one_line(told(error))}"})


def _facts(make: Callable[[], Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
    environment = make()
    names = [field.name for field in dataclasses.fields(TriedEnvironment) if field.name != "spanning_wrapper"]
    facts = {name: getattr(environment, name) for name in names}
    return {**facts, "spaces": dataclasses.asdict(environment.spaces),
            "spanning_wrapper": spanning_wrapper(environment.gymnasium_environment)}


def _play(make: Callable[[], Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
    environment, used = (ReplayedEnvironment(make, is_made_anew=is_anew) for is_anew in (True, False))
    episodes = list(_open_episodes(environment, request["steps"]))
    way = "reset"
    try:
        for episode in episodes:
            used.set_state(episode.state)
    except EpisodeReplayError:
        way = "anew"
    longest = max(episodes, key=lambda one: one.length, default=None)
    return {"way": way, "episode": base64.b64encode(longest.to_bytes()).decode() if longest else ""}


def _open_episodes(environment: ReplayedEnvironment, steps: int) -> Iterator[OpenEpisode]:
    """Rolls out fragments; yields the episodes that they leave open."""
    policy = random_policy(environment)
    for slot in range(_FRAGMENTS):
        episode = roll_out(environment, policy, fragment_steps=steps, seed=0, round_index=0, slot=slot).open_episode
        if episode is not None:
            yield episode


def _replay(make: Callable[[], Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
    episode = OpenEpisode.from_bytes(base64.b64decode(request["episode"]))
    ReplayedEnvironment(make, is_made_anew=False).set_state(episode.state)
    return {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.stdout.flush()
    # Not sys.exit: threads that an environment has started must not keep this process alive.
    os._exit(0)
