"""A pool of actors in another interpreter, for programs that need other packages than this project."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runtime.errors import BudgetError, RunError
from runtime.fleet.processes import Child, how_it_ended
from runtime.pool.trajectory import Trajectory

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
        settings = {"experiment": experiment, "budget_usd": budget_usd, "out": out}
        self.spent_usd = 0.0
        try:
            self._child = Child(
                "runtime.pool.server",
                json.dumps(settings, default=os.fspath),
                output=None,
                python=os.fspath(python),
            )
        except OSError as error:
            raise RunError(f"python = {os.fspath(python)!r} cannot be started: {error}") from None
        try:
            head, _ = self._answer()
        except RunError:
            self._child.end(_PATIENCE_S)
            raise
        self.spaces = head["spaces"]
        self.actors_max = head["actors_max"]
        self.steps_max = head["steps_max"]

    def sample(self, weights: bytes, *, actors: int, steps: int) -> list[Trajectory]:
        """As `ActorPool.sample`, with a policy made by `numpy_policy`."""
        answers = self._ask("sample", weights, actors=actors, steps=steps)
        return [Trajectory.from_bytes(answer) for answer in answers]

    def submit(self, weights: bytes, *, actors: int, steps: int) -> None:
        """As `ActorPool.submit`. `collect` returns the trajectories."""
        self._ask("submit", weights, actors=actors, steps=steps)

    def collect(self) -> list[Trajectory]:
        """Waits for all submitted calls; as `ActorPool.as_completed`, in the order of calls and slots."""
        return [Trajectory.from_bytes(answer) for answer in self._ask("collect")]

    def state(self) -> bytes:
        """As `ActorPool.state`."""
        (state,) = self._ask("state")
        return state

    def load_state(self, state: bytes) -> None:
        """As `ActorPool.load_state`."""
        self._ask("load_state", state)

    def close(self) -> None:
        """Closes the pool and ends its process; idempotent."""
        with suppress(OSError):
            self._child.connection.send_bytes(b'{"do": "close"}')
            self._child.wait(_PATIENCE_S)
        self._child.connection.close()
        self._child.end()

    def _ask(self, do: str, body: bytes = b"", **arguments: int) -> list[bytes]:
        with suppress(OSError):
            self._child.connection.send_bytes(json.dumps({"do": do, **arguments}).encode())
            self._child.connection.send_bytes(body)
        return self._answer()[1]

    def _answer(self) -> tuple[Mapping[str, Any], list[bytes]]:
        """Receives an answer.

        Raises:
            BudgetError, RunError: The answer is this error, or the process has ended.
        """
        try:
            head = json.loads(self._child.connection.recv_bytes())
            bodies = [self._child.connection.recv_bytes() for _ in range(head["messages"])]
        except (EOFError, OSError):
            raise RunError(
                f"the pool's process has ended ({how_it_ended(self._child.end(1.0))}); what it printed says why; "
                "open another one on its directory"
            ) from None
        except BaseException:
            # An answer was cut: the next one would begin with its rest.
            self._child.connection.close()
            self._child.end()
            raise
        self.spent_usd = head["spent_usd"]
        if "error" in head:
            kind = BudgetError if head["error"] == "BudgetError" else RunError
            raise kind(head["text"])
        return head, bodies
