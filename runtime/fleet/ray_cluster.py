"""The Ray fleet: each invocation is a task of a Ray cluster, which runs the same handler as Lambda.

Ray queues tasks beyond its capacity. A task streams two messages, both bytes: that it has begun, and its answer. A task
that dies with its worker or its node has no answer, is never repeated, and affects no other. If the head dies, Ray
ends this process after a minute, and the run can be resumed. After `kill -9` of this process, a cluster that it started
ends by itself within about two minutes, and one that it joined drops the run's tasks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import ERROR_CHARACTERS_MAX, FleetError, one_line
from runtime.experiment.kinds import load
from runtime.fleet import ACTOR_VARIABLES, FleetSetup
from runtime.fleet.actor_process import serve
from runtime.fleet.interfaces import Invocation
from runtime.fleet.processes import socket_parent
from runtime.money.work import Outcome, OutcomeStatus

_ROOT = Path(__file__).resolve().parents[2]
_SENT = ("nitro_rl", "runtime", "lambda_actor")
"""Files of this project for the nodes of an existing cluster."""
_BEGUN = b""
_ANSWER_S = 10.0
_STORE_BYTES = 256 * 2**20
"""Memory for messages in transit, in a cluster started here."""
_PARENT_BYTES_MAX = 38
"""Length of a folder for temporary files in which the paths of Ray's sockets are short enough."""
_LOCAL_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""For this process and a cluster that it starts."""


def play(message: bytes) -> Iterator[bytes]:
    """Runs on a worker: yields that it has begun, then the handler's answer.

    Args:
        message: JSON of ``handler``, ``credentials`` and ``event``.
    """
    yield _BEGUN
    task, started_s = json.loads(message), time.perf_counter()
    os.environ.update(task["credentials"])
    reply = serve(lambda event, context: load(task["handler"])(event, context), task["event"])
    yield json.dumps({**reply, "seconds": time.perf_counter() - started_s}).encode()


@dataclass(eq=False)
class _Task:
    """One open invocation; ``begun_s`` is when it was seen to begin."""

    invocation_id: str
    begun_s: float | None = None


class RayFleet:
    """Runs invocations as tasks of a Ray cluster; see `runtime.fleet.interfaces.Fleet`.

    Attributes:
        concurrency: Invocations that the cluster's CPUs can run at once.
    """

    def __init__(
        self,
        setup: FleetSetup,
        *,
        address: str | None = None,
        cpus_per_task: float = 1.0,
    ) -> None:
        """Joins a cluster, or starts one, unless this process already belongs to one.

        Args:
            setup: Time limits count from an invocation's start. A cluster started here has as many CPUs as actors at
                once.
            address: ``HOST:PORT`` of the cluster, ``auto`` for the cluster of this machine, None to start one.
            cpus_per_task: CPUs per invocation.

        Raises:
            FleetError: The cluster does not answer, or no node has that many CPUs.
        """
        self._setup = setup
        self._timeout_s = setup.timeout_s
        import ray

        self._ray: Any = ray
        self._has_opened = not ray.is_initialized()
        if self._has_opened:
            _open(ray, address, setup.concurrency)
        self._tasks: dict[Any, _Task] = {}
        self._ended: list[Outcome] = []
        found = _cpus_by_node(ray)
        self.concurrency = sum(int(cpus / cpus_per_task) for cpus in found)
        if not self.concurrency:
            self.close()
            raise FleetError(
                f"fleet.cpus_per_actor = {cpus_per_task:g}: no node of the Ray cluster has that many "
                f"CPUs; allowed: up to {max(found, default=0):g}"
            )
        self._play = ray.remote(num_cpus=cpus_per_task, max_retries=0, num_returns="streaming")(
            play
        )

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Submits these to the cluster, which queues them.

        Raises:
            FleetError: The cluster does not answer.
        """
        with self._talking():
            for invocation in invocations:
                message = {
                    "handler": self._setup.function,
                    "credentials": dict(self._setup.credentials),
                    "event": invocation.event,
                }
                self._tasks[self._play.remote(json.dumps(message).encode())] = _Task(
                    invocation.invocation_id
                )

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call; see `runtime.fleet.interfaces.Fleet`.

        Raises:
            FleetError: The cluster does not answer.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = until_s - time.monotonic()
            self._look(0.0 if self._ended else max(0.0, min(left_s, self._until_overdue_s())))
            self._end(
                [stream for stream, task in self._tasks.items() if self._left_s(task) <= 0.0],
                lambda task: Outcome.timed_out(
                    task.invocation_id, self._timeout_s, billed_s=self._timeout_s
                ),
            )
            if self._ended or left_s <= 0.0:
                ended, self._ended = self._ended, []
                return ended

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Kills the workers of begun invocations, and drops waiting ones."""
        self._look(0.0)
        given_up = set(invocation_ids)
        self._end(
            [stream for stream, task in self._tasks.items() if task.invocation_id in given_up],
            lambda task: (
                Outcome.never_started(task.invocation_id)
                if task.begun_s is None
                else Outcome.abandoned(
                    task.invocation_id,
                    billed_s=min(self._timeout_s - self._left_s(task), self._timeout_s),
                )
            ),
        )

    def close(self) -> None:
        """Ends all tasks, and leaves the cluster, which ends if it was started here; idempotent."""
        if self._ray.is_initialized():
            for stream in self._tasks:
                self._ray.cancel(stream, force=True)
            if self._has_opened:
                self._ray.shutdown()
        self._tasks.clear()

    def _look(self, timeout_s: float) -> None:
        """Takes in arrived messages; waits if there are none."""
        if not self._tasks:
            time.sleep(timeout_s)
        while self._tasks:
            with self._talking():
                ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout_s)
                if not ready:
                    return
                self._advance(ready[0])
            timeout_s = 0.0

    def _advance(self, stream: Any) -> None:
        """Takes in a task's next message."""
        task = self._tasks[stream]
        reply: dict[str, Any] = {}
        status: OutcomeStatus = "crashed"
        try:
            message = self._ray.get(next(stream))
            if message == _BEGUN:
                task.begun_s = time.monotonic()
                return
            reply = json.loads(message)
            status, error = "error" if reply["error"] else "ok", reply["error"]
        except (self._ray.exceptions.RayError, StopIteration) as lost:
            error = f"{type(lost).__name__}: {lost}"
        del self._tasks[stream]
        self._ended.append(
            Outcome(
                task.invocation_id,
                status,
                reply.get("response"),
                one_line(error, ERROR_CHARACTERS_MAX),
                billed_s=min(
                    reply.get("seconds", self._timeout_s - self._left_s(task)), self._timeout_s
                ),
                error_type=reply.get("error_type", ""),
            )
        )

    def _end(self, streams: Sequence[Any], end: Callable[[_Task], Outcome]) -> None:
        """Ends tasks, without waiting for Ray to confirm."""
        for stream in streams:
            task = self._tasks.pop(stream)
            with self._talking():
                self._ray.cancel(stream, force=True)
            self._ended.append(end(task))

    def _left_s(self, task: _Task) -> float:
        """Returns the seconds until a task is overdue; the full limit until it begins."""
        return self._timeout_s - (0.0 if task.begun_s is None else time.monotonic() - task.begun_s)

    def _until_overdue_s(self) -> float:
        return min((self._left_s(task) for task in self._tasks.values()), default=self._timeout_s)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """A block that makes requests to the cluster.

        Raises:
            FleetError: It does not answer.
        """
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            words = one_line(str(error), ERROR_CHARACTERS_MAX)
            raise FleetError(f"the Ray cluster does not answer: {words}") from error
        except SystemError as error:
            # Exceptions from signal handlers inside Ray's code, such as a time limit, arrive wrapped.
            raise (error.__cause__ or error) from None


def node_count() -> int:
    """Returns the number of nodes of this process's cluster."""
    import ray

    return len(_cpus_by_node(ray))


def _cpus_by_node(ray: Any) -> list[float]:
    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def _open(ray: Any, address: str | None, cpus: int) -> None:
    """Joins or starts a cluster, and keeps this process's signal handlers."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**_LOCAL_SETTINGS, **ACTOR_VARIABLES, "PYTHONPATH": path}
    before = dict(os.environ)
    place: dict[str, Any] = {
        "address": address,
        "runtime_env": {
            "env_vars": ACTOR_VARIABLES,
            "py_modules": [str(_ROOT / name) for name in _SENT],
        },
    }
    if address is None:
        wanted = filter(None, [os.environ.get("RAY_TMPDIR")])
        place = {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": os.path.join(socket_parent(*wanted, bytes_max=_PARENT_BYTES_MAX), "ray"),
        }
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    # Ray's child processes inherit these.
    os.environ.update(variables)
    try:
        if address not in (None, "auto"):
            # Ray itself would ask for minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _ANSWER_S).close()
        ray.init(**place, log_to_driver=False, configure_logging=False)
    except Exception as error:
        # Ray raises arbitrary types: ConnectionError, RuntimeError, ValueError, Exception itself.
        ray.shutdown()
        what = (
            "cannot be started"
            if address is None
            else f"of fleet.address = {address} cannot be joined"
        )
        why = ": ".join(str(cause) for cause in (error, error.__cause__) if cause is not None)
        raise FleetError(
            f"the Ray cluster {what}: {one_line(why, ERROR_CHARACTERS_MAX)}"
        ) from error
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)
        if is_main:
            signal.signal(signal.SIGTERM, handler)
