"""A pool of actors in another interpreter, for programs that need other packages than this project."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from lambda_actor import wire
from lambda_actor.errors import WireError
from runtime import errors
from runtime.errors import RunError
from runtime.pool.trajectory import Trajectory, for_trainers
from runtime.processes.child import Child, how_it_ended

_MESSAGES_MAX = 100_000
_PATIENCE_S = 60.0


class RemotePool:
    """Controls a process of `runtime.pool.server`, which ends with this one. Needs only NumPy.

    Attributes:
        spaces: The environment's `lambda_actor.spaces.Spaces`, as a JSON dict.
        actors_max, steps_max: Most actors of a call, and most steps of each.
        spent_usd: The pool's spending at its last answer.
    """

    def __init__(
        self,
        *,
        python: str | os.PathLike[str],
        experiment: str | os.PathLike[str] | Mapping[str, Any],
        budget_usd: float | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> None:
        """Starts the process and waits until its pool is open. Costs nothing.

        Args:
            python: An interpreter with this project and its requirements.
            experiment, budget_usd, out: As for `nitro_rl.ActorPool`.

        Raises:
            RunError: The pool cannot be opened; see the message.
        """
        settings = {
            "experiment": experiment if isinstance(experiment, Mapping) else os.fspath(experiment),
            "budget_usd": budget_usd,
            "out": None if out is None else os.fspath(out),
        }
        self.spent_usd = 0.0
        try:
            self._child = Child(
                "runtime.pool.server", json.dumps(settings), output=None, python=os.fspath(python)
            )
        except OSError as error:
            raise RunError(f"python = {os.fspath(python)!r} cannot be started: {error}") from None
        try:
            head, _ = self._answer()
            self.spaces = dict(head["spaces"])
            self.actors_max, self.steps_max = int(head["actors_max"]), int(head["steps_max"])
        except BaseException as error:
            self._child.end(_PATIENCE_S if isinstance(error, RunError) else 0.0)
            raise

    def sample(self, weights: bytes, *, actors: int, steps: int) -> list[Trajectory]:
        """As `ActorPool.sample`, with a policy made by `numpy_policy`."""
        return self._trajectories(self._ask("sample", weights, actors=actors, steps=steps))

    def submit(self, weights: bytes, *, actors: int, steps: int) -> None:
        """As `ActorPool.submit`. `collect` returns the trajectories."""
        self._ask("submit", weights, actors=actors, steps=steps)

    def collect(self) -> list[Trajectory]:
        """Waits for all submitted calls; as `ActorPool.as_completed`, in the order of calls and slots."""
        return self._trajectories(self._ask("collect"))

    def state(self) -> bytes:
        """As `ActorPool.state`."""
        (state,) = self._ask("state")
        return state

    def load_state(self, state: bytes) -> None:
        """As `ActorPool.load_state`."""
        self._ask("load_state", state)

    def close(self) -> None:
        """Closes the pool and ends its process; idempotent."""
        if not self._child.connection.closed:
            with suppress(OSError):
                self._child.connection.send_bytes(b'{"do": "close"}\n')
                self._child.wait(_PATIENCE_S)
            self._child.connection.close()
        self._child.end()

    def _ask(self, do: str, body: bytes = b"", **arguments: int) -> list[bytes]:
        if self._child.connection.closed:
            raise RunError("the pool's process has ended; open another one on its directory")
        with suppress(OSError):
            self._child.connection.send_bytes(
                json.dumps({"do": do, **arguments}).encode() + b"\n" + body
            )
        return self._answer()[1]

    def _answer(self) -> tuple[Mapping[str, Any], list[bytes]]:
        """Receives an answer.

        Raises:
            BudgetError, RunError: The answer is this error, or not an answer, or the process has ended.
        """
        try:
            head = json.loads(self._child.connection.recv_bytes(wire.MESSAGE_BYTES_MAX))
            self.spent_usd, count = float(head["spent_usd"]), head["messages"]
            if type(count) is not int or not 0 <= count <= _MESSAGES_MAX:
                raise ValueError(f"messages = {count!r}")
            found = [
                self._child.connection.recv_bytes(wire.MESSAGE_BYTES_MAX) for _ in range(count)
            ]
        except (EOFError, ConnectionError):
            self._fail(f"ended ({how_it_ended(self._child.end(1.0))}); what it printed says why")
        except (ValueError, KeyError, TypeError, OSError) as error:
            self._fail(f"answered what is none: {type(error).__name__}: {error}")
        except BaseException:
            # An answer was cut: the next one would begin with its rest.
            self._child.connection.close()
            self._child.end()
            raise
        if "error" in head:
            kind = errors.BudgetError if head["error"] == "BudgetError" else RunError
            raise kind(str(head["text"]))
        return head, found

    def _trajectories(self, messages: list[bytes]) -> list[Trajectory]:
        try:
            return [for_trainers(wire.decode(one, wire.Kind.TRAJECTORY)) for one in messages]
        except WireError as error:
            self._fail(f"sent what is no trajectory: {error}")

    def _fail(self, what: str) -> NoReturn:
        self._child.connection.close()
        self._child.end()
        raise RunError(f"the pool's process {what}") from None
