"""Tries an environment in separate processes, before anything starts.

    python -m runtime.training.trial CONTROL_FD MADE

An environment that raises, hangs, or ends its process is refused, with the step at which it did so. A run leaves
episodes open in one process and continues them in another. So the trial plays some in a new process and continues one
in another new process: from its saved state, if the environment can save it, and from its seed and its actions. If
observations and rewards differ, the environment is not deterministic. `lambda_actor.trial` has the tests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from lambda_actor.spaces import Spaces
from lambda_actor.trial import TriedEnvironment
from runtime.errors import ERROR_CHARACTERS_MAX, EnvironmentNotHereError, ExperimentError, one_line
from runtime.fleet import ACTOR_VARIABLES
from runtime.fleet.processes import (
    DEATH_PATIENCE_S,
    Child,
    connect,
    how_it_ended,
)

_STEPS_MAX = 256
"""Longest first fragment that is played."""
PATIENCE_S, _NOTICE_S, _POLL_S = 600, 30, 1.0
"""Time limit of the whole trial; the time until a notice about an import, reset or step; and between checks."""
_SAID_BYTES = 2**16
"""Bytes of output that are kept for its last line. More output in one step counts as endless."""
_MAKING = "being imported and made"


def try_environment(
    environment_id: str,
    preprocessing: str = "auto",
    options: Mapping[str, Any] | None = None,
    *,
    fragment_steps: int = _STEPS_MAX,
    is_together: bool = False,
) -> TriedEnvironment:
    """Makes an environment in another process, plays, and continues in a third one; returns its properties.

    Args:
        environment_id: This and the next two are arguments of `make_environment`.
        fragment_steps: ``actor.fragment_steps``; at most 256 steps are played.
        is_together: Whether a process will play several in lock-step, which is then tried.

    Raises:
        EnvironmentNotHereError: It cannot be made, its process ended, or it took too long.
        ExperimentError: It raises, has unusable observations or results, ends its process, or takes too long.
    """
    made, until_s = (
        json.dumps([environment_id, preprocessing, options or {}]),
        time.monotonic() + PATIENCE_S,
    )
    with _Trial(made, until_s) as here, _Trial(made, until_s) as elsewhere:
        try:
            began_s = time.monotonic()
            known = here.ask("make")
            make_s = time.monotonic() - began_s
            known["spaces"] = Spaces(
                **{key: _tuples(value) for key, value in known["spaces"].items()}
            )
        except _TrialError as error:
            raise EnvironmentNotHereError(str(error)) from None
        try:
            played = here.ask("play", steps=min(fragment_steps, _STEPS_MAX))
            step_s = played.pop("step_s")
            # Frees its ports and files for the next process.
            here.end()
            differs = (
                elsewhere.ask("go on", **played) if played["episode"] else trial.NOTHING_DIFFERS
            )
        except _TrialError as error:
            raise ExperimentError(str(error)) from None
        shared = ""
        if is_together and played["episode"] and not differs["replayed"]:
            try:
                shared = elsewhere.ask("play beside", episode=played["episode"])["shared"]
            except _TrialError as error:
                shared = str(error)
    return dataclasses.replace(
        trial.conclude(known, played, differs), shared=shared, step_s=step_s, make_s=make_s
    )


class _TrialError(Exception):
    """The failure of a trial, for people."""


class _Trial:
    """A process that runs tasks with one environment; only the end of its output is kept."""

    def __init__(self, made: str, until_s: float) -> None:
        """Starts it.

        Args:
            made: The arguments of `make_environment`, as JSON.
            until_s: When the trial must be over, by the monotonic clock.
        """
        self._until_s = until_s
        self._about, self._doing, self._said = (
            f"environment.id = {json.loads(made)[0]!r}: ",
            _MAKING,
            b"",
        )
        self._printed = 0
        self._output, written = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._process = Child(
                "runtime.training.trial", made, variables=ACTOR_VARIABLES, output=written
            )
        finally:
            os.close(written)
        self._sources: list[Any] = [self._process.connection, self._output]

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        os.close(self._output)

    def end(self) -> None:
        """Ends it, with all processes that the environment started."""
        self._process.end()

    def ask(self, task: str, **values: Any) -> dict[str, Any]:
        """Runs a task; returns the answer.

        Raises:
            _TrialError: It raised, ended, or took too long.
        """
        try:
            self._process.connection.send_bytes(json.dumps({"task": task, **values}).encode())
            while True:
                kind, value = self._message()
                if kind == "doing":
                    self._doing = value
                elif kind == "error":
                    raise _TrialError(value)
                else:
                    answer: dict[str, Any] = value
                    return answer
        except (EOFError, OSError):
            how = how_it_ended(self._process.end(DEATH_PATIENCE_S))
            self._listen()
            raise _TrialError(
                f"{self._about}it ended the process that it was tried in ({how}), while it was "
                f"{self._doing}{self._last_line()}"
            ) from None

    def _message(self) -> tuple[str, Any]:
        """Waits for the next message; returns its kind and value."""
        since_s, is_noticed, printed_before = time.monotonic(), False, self._printed
        while True:
            ready, now_s = wait(self._sources, _POLL_S), time.monotonic()
            if self._output in ready:
                self._listen()
            if now_s >= self._until_s:
                raise _TrialError(
                    f"{self._about}it was still {self._doing} after {PATIENCE_S} s, in the trial before "
                    f"the first round{self._prints(printed_before)}"
                )
            if self._process.connection in ready:
                break
            if not ready and self._process.exit_code is not None:
                raise EOFError
            if now_s - since_s >= _NOTICE_S and not is_noticed:
                is_noticed = True
                _notice(
                    f"{self._about}it is still {self._doing} after {_NOTICE_S} s{self._prints(printed_before)}; "
                    f"after {PATIENCE_S} s it is refused"
                )
        ((kind, value),) = json.loads(self._process.connection.recv_bytes()).items()
        return kind, value

    def _prints(self, printed_before: int) -> str:
        """Returns text about endless output and the last line, to append to a message."""
        printed = self._printed - printed_before
        return (
            f", and prints without end, {printed:,} bytes so far" if printed > _SAID_BYTES else ""
        ) + self._last_line()

    def _last_line(self) -> str:
        """Returns the last line of its output, to append to a message; "" if there is none."""
        said = self._said.decode(errors="replace").strip().splitlines()
        return f"; the last line there: {one_line(said[-1])}" if said else ""

    def _listen(self) -> None:
        """Reads its output, and keeps only the end."""
        with suppress(BlockingIOError):
            while data := os.read(self._output, _SAID_BYTES):
                self._said = (self._said + data)[-_SAID_BYTES:]
                self._printed += len(data)
                if self._process.exit_code is None:
                    return
            # All writers have closed it.
            self._sources = [self._process.connection]


def _notice(line: str) -> None:
    with suppress(OSError, AttributeError, ValueError):
        print(f"! {line}", file=sys.stderr, flush=True)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# In the other process


class _Telling:
    """An environment that reports each call before it makes it, and counts the steps of all."""

    steps_total = 0

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
        _Telling.steps_total += 1
        self._tell(f"in step {self._step} of an episode")
        return self._environment.step(action)


def main(control_fd: int, made: str) -> None:
    """Runs tasks until the other end closes the connection."""
    connection, messages = connect(control_fd)
    process_id = os.getpid()
    environment_id = json.loads(made)[0]
    spare: list[Any] = []

    def say(kind: str, value: Any) -> None:
        # Forked copies of this process must not send messages.
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
                say(
                    "answer",
                    trial.facts(spare[0]) | {"spaces": dataclasses.asdict(spare[0].spaces)},
                )
            elif task == "play beside":
                say("answer", {"shared": trial.play_beside(make(), make(), **request)})
            elif task == "play":
                environment, began_s = make(), time.monotonic()
                played = trial.play(environment, make, **request)
                step_s = (time.monotonic() - began_s) / max(1, _Telling.steps_total)
                say("answer", played | {"step_s": step_s})
            else:
                say("answer", trial.go_on(make(), **request))
        except (Exception, SystemExit) as error:
            say(
                "error",
                f"{error}"
                if task == "make" and isinstance(error, ActorError)
                else one_line(trial.explained(environment_id, error), ERROR_CHARACTERS_MAX),
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
