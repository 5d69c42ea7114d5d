"""Tries an environment in processes of its own, before anything starts.

    python -m runtime.training.trial CONTROL_FD MADE

An environment that raises, hangs, or ends the process that it is in, is refused with what it was doing. A run leaves
episodes open in one process and continues them in another. So some are played in a new process, and one is taken up in
another new one: from its saved state, if the environment can save it, and from its seed and its actions. If
observations and rewards differ, the environment is not deterministic. Episodes that nobody can save are replayed in one
environment after the other, too: if they differ there, each episode needs an environment of its own.
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
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from lambda_actor.check import random_policy
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.episode_state import spanning_wrapper
from lambda_actor.errors import ActorError, EpisodeReplayError, EpisodeStateError, OversizedMessageError, told
from lambda_actor.replay import ReplayedEnvironment, check_continuation, continuation
from lambda_actor.rollout import EPISODE_BYTES_MAX, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces
from runtime.errors import ERROR_CHARACTERS_MAX, EnvironmentNotHereError, ExperimentError, one_line
from runtime.fleet.answers import JUNK, answer
from runtime.training.environment_process import EnvironmentProcess, connect

_FRAGMENTS, _STEPS_MAX, _FURTHER_STEPS_MAX = 6, 256, 64
"""Fragments that are played if episodes are replayed; the steps of the first one, and of each further one."""
_PATIENCE_S, _NOTICE_S, _POLL_S, _DEATH_PATIENCE_S = 600, 30, 1.0, 1.0
"""Each import, reset and step has so long; one that takes longer than the notice is told of."""
_SAID_BYTES = 2**16
"""Of what it printed, so much is kept for its last line."""
_MESSAGE_BYTES_MAX = 2**24
_MAKING = "being imported and made"


@dataclasses.dataclass(frozen=True)
class TriedEnvironment:
    """What an environment is like, without the environment; attributes as those of `ActorEnvironment`.

    Attributes:
        spanning_wrapper: The name of a wrapper whose state goes on from one episode to the next; "" if there is none.
        replay: How episodes are replayed that cannot be saved: ``reset``, or ``anew`` if each needs an environment of
            its own. "" if they can be saved.
        problem: Why another process cannot continue an episode; "" if it can.
        remark: What else differs from process to process; "" if nothing does.
    """

    environment_id: str
    spaces: Spaces
    preprocessing: str
    episode_steps_max: int | None
    can_save_episode: bool
    cannot_save_reason: str
    spanning_wrapper: str
    replay: str = ""
    problem: str = ""
    remark: str = ""


_FACTS = tuple(field.name for field in dataclasses.fields(TriedEnvironment) if field.default is dataclasses.MISSING)


def try_environment(
    environment_id: str, preprocessing: str = "auto", options: Mapping[str, Any] | None = None, *,
    fragment_steps: int = _STEPS_MAX,
) -> TriedEnvironment:
    """Makes an environment in another process, plays, and goes on in a third one; returns what it is like.

    Args:
        environment_id: This and the next two as `make_environment` takes them.
        fragment_steps: ``actor.fragment_steps``; so many steps are played at once, of 256 at most.

    Raises:
        EnvironmentNotHereError: It cannot be made, its process ended, or it took too long.
        ExperimentError: It raises, observes or returns what nobody here can use, ends its process or takes too long.
    """
    made = json.dumps([environment_id, preprocessing, options or {}])
    with _Trial(made) as here, _Trial(made) as elsewhere:
        try:
            facts = here.ask("make", _FACTS)
            tried = TriedEnvironment(**facts | {"spaces": Spaces(**{
                key: _tuples(value) for key, value in facts["spaces"].items()})})
        except _TrialError as error:
            raise EnvironmentNotHereError(str(error)) from None
        try:
            played = here.ask("play", _PLAYED, steps=min(fragment_steps, _STEPS_MAX))
            # Whatever it holds, a port or a file, is free for the next one.
            here.end()
            differs = elsewhere.ask("go on", _DIFFERS, **played) if played["episode"] else dict.fromkeys(_DIFFERS, "")
        except _TrialError as error:
            raise ExperimentError(str(error)) from None
    problem = played["problem"] or differs["saved"]
    if tried.can_save_episode:
        return dataclasses.replace(tried, problem=problem, remark="" if problem else differs["replayed"])
    return dataclasses.replace(tried, problem=problem or differs["replayed"], replay=played["way"])


_PLAYED = ("way", "problem", "episode", "saved", "digests")
_DIFFERS = ("replayed", "saved")


class _TrialError(Exception):
    """What a trial came to, for people."""


class _Trial:
    """A process that does what it is asked for with one environment; nothing that it prints is kept but the end."""

    def __init__(self, made: str) -> None:
        """Starts it.

        Args:
            made: The arguments of `make_environment`, as JSON.
        """
        self._about, self._doing, self._said = f"environment.id = {json.loads(made)[0]!r}: ", _MAKING, b""
        self._output, written = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._process = EnvironmentProcess("runtime.training.trial", made, output=written)
        finally:
            os.close(written)
        self._sources: list[Any] = [self._process.connection, self._output]

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        os.close(self._output)

    def end(self) -> None:
        """Ends it, with what the environment has started."""
        self._process.end()

    def ask(self, task: str, keys: tuple[str, ...], **values: Any) -> dict[str, Any]:
        """Has it do a task; returns the answer, which has these keys.

        Raises:
            _TrialError: It raised, ended, took too long, or answered something else.
        """
        try:
            self._process.connection.send_bytes(json.dumps({"task": task, **values}).encode())
            while True:
                kind, value = self._message()
                if kind == "doing":
                    self._doing = value
                elif kind == "error":
                    raise _TrialError(value)
                elif not (isinstance(value, dict) and value.keys() == set(keys)):
                    raise self._junk()
                else:
                    return value
        except (EOFError, OSError):
            how = self._process.end(_DEATH_PATIENCE_S)
            self._listen()
            said = self._said.decode(errors="replace").strip().splitlines()
            raise _TrialError(
                f"{self._about}it ended the process that it was tried in ({how}), while it was {self._doing}"
                f"{f'; the last line there: {one_line(said[-1])}' if said else ''}") from None

    def _message(self) -> tuple[str, Any]:
        """Awaits the next message: its kind, and what it says."""
        since_s, is_noticed = time.monotonic(), False
        while self._process.connection not in (ready := wait(self._sources, _POLL_S)):
            if self._output in ready:
                self._listen()
            elif not self._process.is_alive:
                raise EOFError
            waited_s = time.monotonic() - since_s
            if waited_s >= _PATIENCE_S:
                raise _TrialError(f"{self._about}it was still {self._doing} after {_PATIENCE_S} s, in the trial before "
                                  "the first round")
            if waited_s >= _NOTICE_S and not is_noticed:
                is_noticed = True
                _notice(f"{self._about}it is still {self._doing} after {_NOTICE_S} s; after {_PATIENCE_S} s it is "
                        "refused")
        try:
            (kind, value), = answer(self._process.connection.recv_bytes(_MESSAGE_BYTES_MAX),
                                    {"doing": (str,)}, {"error": (str,)}, {"answer": (dict,)}).items()
        except ValueError:
            raise self._junk() from None
        return kind, value

    def _junk(self) -> _TrialError:
        return _TrialError(f"{self._about}while it was {self._doing}, it {JUNK}")

    def _listen(self) -> None:
        """Takes in what was printed, and forgets all but the end."""
        with suppress(BlockingIOError):
            while data := os.read(self._output, _SAID_BYTES):
                self._said = (self._said + data)[-_SAID_BYTES:]
                if self._process.is_alive:
                    return
            # Nobody has it open any more.
            self._sources = [self._process.connection]


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


def main(control_fd: int, made: str) -> None:
    """Does what it is asked for, until the other end hangs up."""
    connection, messages = connect(control_fd)
    process_id = os.getpid()
    environment_id = json.loads(made)[0]
    spare: list[Any] = []

    def say(kind: str, value: Any) -> None:
        # A copy that the environment forked says nothing.
        if os.getpid() == process_id:
            connection.send_bytes(json.dumps({kind: value}).encode())

    def make() -> Any:
        if spare:
            return spare.pop()
        say("doing", _MAKING)
        return _Telling(make_environment(*json.loads(made)), lambda doing: say("doing", doing))

    while True:
        request = json.loads(messages.get())
        task = request.pop("task")
        try:
            if task == "make":
                spare.append(make())
                say("answer", _facts(spare[0]))
            elif task == "play":
                say("answer", _play(make, **request))
            else:
                say("answer", _go_on(make, **request))
        except ActorError as error:
            say("error", f"{error}" if task == "make" else f"environment.id = {environment_id!r}: {error}")
        except (Exception, SystemExit) as error:
            say("error", f"environment.id = {environment_id!r}: it raised when it was tried: "
                         f"{one_line(told(error), ERROR_CHARACTERS_MAX)}")


def _facts(environment: Any) -> Mapping[str, Any]:
    facts = {name: getattr(environment, name) for name in _FACTS if name != "spanning_wrapper"}
    return {**facts, "spaces": dataclasses.asdict(environment.spaces),
            "spanning_wrapper": spanning_wrapper(environment.gymnasium_environment)}


def _play(make: Callable[[], Any], *, steps: int) -> dict[str, Any]:
    """Plays; returns an episode that is left open, as whoever goes on needs it."""
    made = make()
    found: dict[str, Any] = dict.fromkeys(("way", "problem", "episode", "saved"), "") | {"digests": []}
    environment = ReplayedEnvironment(lambda: made, is_made_anew=False)
    if made.can_save_episode:
        for episode in _open_episodes(environment, steps):
            try:
                found["saved"] = _text(dataclasses.replace(episode, state=made.get_state()))
            except OversizedMessageError as error:
                return found | {"problem": f"its state cannot travel: {error}"}
            # What proves it may be a little larger than what travels.
            return found | {"episode": _text(episode, 2 * EPISODE_BYTES_MAX),
                            "digests": continuation(made, episode.state["actions"])}
        return found
    if made.episode_steps_max is None or spanning_wrapper(made.gymnasium_environment):
        next(_open_episodes(environment, steps), None)
        return found
    return found | _replays(make, made, steps)


def _replays(make: Callable[[], Any], made: Any, steps: int) -> dict[str, Any]:
    """Finds out how episodes are replayed, in environments of their own and in a used one."""
    spare = [made]
    environment = ReplayedEnvironment(lambda: spare.pop() if spare else make(), is_made_anew=True)
    used = ReplayedEnvironment(make, is_made_anew=False)
    episodes = list(_open_episodes(environment, steps))
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
        return {"way": way, "problem": f"{made.cannot_save_reason}, and its seed and actions cannot travel: {error}"}


def _open_episodes(environment: ReplayedEnvironment, steps: int) -> Iterator[OpenEpisode]:
    """Rolls out fragments of falling length; yields the episodes that they leave open."""
    policy = random_policy(environment)
    for slot in range(_FRAGMENTS):
        length = max(1, min(steps, _FURTHER_STEPS_MAX if slot else steps) - slot)
        episode = roll_out(environment, policy, fragment_steps=length, seed=0, round_index=0, slot=slot).open_episode
        if episode is not None:
            yield episode


def _go_on(make: Callable[[], Any], *, episode: str, saved: str, digests: list[str],
           **played: str) -> Mapping[str, Any]:
    """Takes up an episode that another process has left open; returns what differs, if something does."""
    environment, differs = make(), dict.fromkeys(_DIFFERS, "")
    replayed = _episode(episode)
    try:
        ReplayedEnvironment(lambda: environment, is_made_anew=False).set_state(replayed.state)
    except EpisodeReplayError as error:
        differs["replayed"] = f"in another process, {error}"
    if saved:
        environment.set_state(_episode(saved).state)
        try:
            check_continuation(digests, continuation(environment, replayed.state["actions"]))
        except EpisodeStateError as error:
            differs["saved"] = str(error)
    return differs


def _text(episode: OpenEpisode, bytes_max: int = EPISODE_BYTES_MAX) -> str:
    return base64.b64encode(episode.to_bytes(bytes_max)).decode()


def _episode(text: str) -> OpenEpisode:
    return OpenEpisode.from_bytes(base64.b64decode(text))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
