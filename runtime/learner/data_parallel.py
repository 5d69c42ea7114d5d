"""The learner in several processes: each takes its share of every minibatch, and the gradients are summed.

The first process is the training itself. It starts the others, and tells them through their standard input what it is
about to do: JSON, then the bytes of arrays. All do the same on the same batch; only in a gradient step each computes
its own samples, and then they need each other (see `runtime.learner.actor_critic`). docs/decisions/0012 says why.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.distributed as distributed

from lambda_actor.spaces import Spaces
from runtime.config.loading import experiment_from_tree
from runtime.config.schema import Experiment
from runtime.errors import ExperimentError, RunError
from runtime.interfaces import Batch, CurvatureProblem, DetectorSamples, Learner, State, Update
from runtime.learner import make_learner

_ROOT = Path(__file__).resolve().parents[2]
_HOST = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_END_PATIENCE_S = 5.0
_DEATH_PATIENCE_S = 1.0
_CHECK_S = 0.2
_POLL_S = 20e-6
_PR_SET_PDEATHSIG = 1
_ERROR_CHARACTERS_MAX = 500
_PIPE_BYTES = 2**20
_HEADER = struct.Struct(">Q")
_ENVIRONMENT = {
    # Nothing listens where another machine could reach it.
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "NCCL_SOCKET_IFNAME": "lo",
    # NCCL's watchdog ends the process; here a process that ended is told from one that is slow, and the run is saved.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


def make_parallel_learner(experiment: Experiment, spaces: Spaces, *, device: str, stack: ExitStack) -> Learner:
    """The experiment's learner, in as many processes as ``learner.processes`` says.

    Args:
        experiment: Resolved and fitted.
        device: ``cpu`` or ``cuda``.
        stack: Ends the processes.

    Raises:
        ExperimentError: More processes than GPUs.
        RunError: A process does not start.
    """
    size = process_count(experiment, device)
    if size == 1:
        return _make_learner(experiment, spaces, device=device)
    processes = LearnerProcesses(size, device=device, timeout_s=experiment.learner.update_timeout_s)
    stack.callback(processes.close)
    return DataParallelLearner(experiment, spaces, processes)


def process_count(experiment: Experiment, device: str) -> int:
    """Processes that share each gradient step: as many as were asked for, else one a GPU, else one.

    Raises:
        ExperimentError: More than there are GPUs.
    """
    wanted = experiment.learner.processes
    if device == "cpu":
        return wanted or 1
    gpus = torch.cuda.device_count()
    if wanted is not None and wanted > gpus:
        raise ExperimentError(f"learner.processes = {wanted}: each needs a GPU of its own, and {gpus} "
                              f"{'is' if gpus == 1 else 'are'} here; allowed: null | 1 to {gpus}")
    return wanted or gpus


class DataParallelLearner:
    """A learner that does in all processes what it is asked to; see `runtime.interfaces.Learner`.

    What it gives is what one process gives, but for the rounding of sums.
    """

    def __init__(self, experiment: Experiment, spaces: Spaces, processes: LearnerProcesses) -> None:
        self._processes = processes
        tree = experiment.model_copy(update={
            "cache": experiment.cache.model_copy(update={"url": None})}).model_dump(mode="json")
        processes.tell("make", experiment=tree, spaces=dataclasses.asdict(spaces))
        self._learner = _make_learner(experiment, spaces, device=processes.device, group=processes.group)
        self.set_state(self._learner.get_state())

    @property
    def policy_version(self) -> int:
        return self._learner.policy_version

    def weights(self) -> bytes:
        return self._learner.weights()

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Raises: RunError: A process is gone."""
        arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        with self._processes.together("update", arrays, progress=progress):
            return self._learner.update(batch, progress=progress)

    def replay(self, *, progress: float) -> Update | None:
        """Raises: RunError: A process is gone."""
        with self._processes.together("replay", progress=progress):
            return self._learner.replay(progress=progress)

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        return self._learner.curvature_problem(objective, samples)

    def get_state(self) -> State:
        """The state that all processes have; where one has drifted off, it is brought back first.

        Raises:
            RunError: A process is gone.
        """
        state = self._learner.get_state()
        if len(set(self.fingerprints())) > 1:
            self.set_state(state)
        return state

    def set_state(self, state: State) -> None:
        """Raises: CheckpointError: as the learner itself."""
        self._learner.set_state(state)
        self._processes.tell("set_state", state.arrays, values=state.values)

    def fingerprints(self) -> list[int]:
        """A checksum of each process' state; all are equal."""
        with self._processes.together("fingerprint"):
            return _fingerprints(self._learner, self._processes.group)


class TorchGroup:
    """The processes as `runtime.learner.actor_critic` sees them, over torch.distributed."""

    def __init__(
        self, rank: int, size: int, *, timeout_s: float, check: Callable[[], None], explain: Callable[[str], RunError],
    ) -> None:
        """Args:
        timeout_s: No sum takes longer.
        check: Raises where the others can be seen to have ended.
        explain: What it means when a sum failed.
        """
        self.rank, self.size = rank, size
        self._timeout_s, self._check, self._explain = timeout_s, check, explain

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each by its sum over all processes, the same bits in all of them.

        Raises:
            RunError: Another process is gone, or does not take part in time.
        """
        with torch.no_grad():
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                flat = torch.cat([tensor.reshape(-1) for tensor in alike])
                self._all_reduce(flat)
                for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                    tensor.copy_(part.view_as(tensor))

    def _all_reduce(self, flat: torch.Tensor) -> None:
        """Looks for the end instead of waiting for it: a wait for a process that is gone may be a long one."""
        started_s = checked_s = time.monotonic()
        try:
            work = distributed.all_reduce(flat, async_op=True)
            while not work.is_completed():
                time.sleep(_POLL_S)
                now_s = time.monotonic()
                if now_s > checked_s + _CHECK_S:
                    checked_s = now_s
                    self._check()
                if now_s > started_s + self._timeout_s:
                    raise self._explain(f"no answer for {self._timeout_s:g} s")
            work.wait()
        except RuntimeError as error:
            raise self._explain(str(error)) from error


class LearnerProcesses:
    """The group's other processes, 1 to ``size`` − 1; they live and die with this one."""

    def __init__(self, size: int, *, device: str, timeout_s: float) -> None:
        """Starts them; returns when all are connected. To be called from a thread that outlives them.

        Args:
            size: Processes in all, this one included.
            device: ``cpu``, or ``cuda``: then each has a GPU of its own.
            timeout_s: Longest that the slowest may stay behind the fastest.

        Raises:
            RunError: They do not start.
        """
        self.device = _device_of(device, 0)
        self._size, self._is_in_step, self._has_joined = size, True, False
        self._popens: list[subprocess.Popen[bytes]] = []
        self._logs: list[BinaryIO] = []
        self.group = TorchGroup(0, size, timeout_s=timeout_s, check=self._check, explain=self._explained)
        try:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            # Bound here, so that it is reached from this machine only.
            listener = socket.create_server((_HOST, 0))
            port = listener.getsockname()[1]
            self._store = distributed.TCPStore(_HOST, port, is_master=True, wait_for_workers=False,
                                               timeout=timedelta(seconds=_START_TIMEOUT_S),
                                               master_listen_fd=listener.detach())
            for rank in range(1, size):
                self._start(rank, port, device, timeout_s)
            self._await_all_started()
            _join_group(0, size, device, self._store, timeout_s)
            self._has_joined = True
        except BaseException as error:
            self._is_in_step = False
            self.close()
            if isinstance(error, OSError | RuntimeError):
                raise RunError(f"the learner's processes do not start: {error}") from error
            raise

    def tell(self, task: str, arrays: Mapping[str, np.ndarray] | None = None, **values: Any) -> None:
        """Has all others do ``task``, for which nobody needs anybody.

        Raises:
            RunError: One is gone, or an earlier task was not finished together.
        """
        with self.together(task, arrays, **values):
            pass

    @contextmanager
    def together(self, task: str, arrays: Mapping[str, np.ndarray] | None = None, **values: Any) -> Iterator[None]:
        """Has all others do ``task`` while the block does it here; a block that raises is the last one.

        Raises:
            RunError: as `tell`.
        """
        if not self._is_in_step:
            raise RunError("the learner's processes stopped in the middle of an update")
        frame = _frame({"task": task, **values}, arrays or {})
        self._is_in_step = False
        try:
            for popen in self._popens:
                for part in frame:
                    popen.stdin.write(part)
                popen.stdin.flush()
        except OSError as error:
            raise self._explained(str(error)) from error
        yield
        self._is_in_step = True

    def process_ids(self) -> list[int]:
        """Of the others."""
        return [popen.pid for popen in self._popens]

    def close(self) -> None:
        """Ends them, whatever they do; idempotent."""
        if self._is_in_step:
            with suppress(RunError):
                self.tell("end")
        if not self._is_in_step:
            for popen in self._popens:
                popen.kill()
        try:
            if self._has_joined:
                _leave_group(is_in_step=self._is_in_step)
        finally:
            self._is_in_step = self._has_joined = False
            self._end_all()

    def _end_all(self) -> None:
        for popen in self._popens:
            with suppress(OSError):
                popen.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                popen.wait(_END_PATIENCE_S)
            popen.kill()
            popen.wait()
            popen.stdout.close()
        for log in self._logs:
            log.close()
        self._popens, self._logs, self._store = [], [], None

    def _start(self, rank: int, port: int, device: str, timeout_s: float) -> None:
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        log = tempfile.TemporaryFile()  # noqa: SIM115
        self._logs.append(log)
        # A session of its own: what the terminal sends to all is for the first process to act on.
        self._popens.append(subprocess.Popen(
            [sys.executable, "-m", "runtime.learner.data_parallel", device, str(timeout_s), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank),
                 "WORLD_SIZE": str(self._size), "MASTER_ADDR": _HOST, "MASTER_PORT": str(port)}))
        with suppress(OSError, AttributeError):
            # Larger where the system has and allows that: frames of a whole round go through it.
            fcntl.fcntl(self._popens[-1].stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def _await_all_started(self) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        waiting = {popen.stdout: popen for popen in self._popens}
        while waiting:
            ready = connections.wait(list(waiting), max(0.0, deadline_s - time.monotonic()))
            if not ready or any(not stdout.read(1) for stdout in ready):
                raise self._explained(f"not started after {_START_TIMEOUT_S:g} s")
            for stdout in ready:
                del waiting[stdout]

    def _check(self) -> None:
        if any(popen.poll() is not None for popen in self._popens):
            raise self._explained("")

    def _explained(self, otherwise: str) -> RunError:
        """Which of them ended, and why; ``otherwise`` where all live, also a moment later."""
        deadline_s = time.monotonic() + _DEATH_PATIENCE_S
        while all(popen.poll() is None for popen in self._popens) and time.monotonic() < deadline_s:
            time.sleep(_CHECK_S / 4)
        ended = [f"process {number} of {self._size} {_how_it_ended(popen.returncode, log)}"
                 for number, (popen, log) in enumerate(zip(self._popens, self._logs, strict=True), start=2)
                 if popen.poll() is not None]
        return RunError("the learner lost "
                        + ("; ".join(ended) if ended else f"the contact between its processes: {otherwise}"))


# One of the other processes


def main(device: str, timeout_s: float, parent_id: int) -> None:
    """Does what the first process says, until it says nothing more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The first process decides what these mean, and ends this one.
        signal.signal(number, signal.SIG_IGN)
    _die_with(parent_id)
    started, tasks = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                 timeout=timedelta(seconds=_START_TIMEOUT_S))
    group = TorchGroup(rank, size, timeout_s=timeout_s, check=lambda: None, explain=RunError)
    with started:
        started.write(b"+")
    _join_group(rank, size, device, store, timeout_s)
    learner: Learner | None = None
    while True:
        order, arrays = _read_frame(tasks)
        if order["task"] == "end":
            _leave_group(is_in_step=True)
            return
        if order["task"] == "make":
            learner = _make_learner(
                experiment_from_tree(order["experiment"], source="the first process"), _spaces(order["spaces"]),
                device=_device_of(device, rank), group=group)
        else:
            _do(learner, group, order, arrays)


def _do(learner: Learner, group: TorchGroup, order: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> None:
    match order["task"]:
        case "update":
            learner.update(Batch(**arrays), progress=order["progress"])
        case "replay":
            learner.replay(progress=order["progress"])
        case "set_state":
            learner.set_state(State(arrays, order["values"]))
        case "fingerprint":
            _fingerprints(learner, group)
        case task:
            raise ValueError(f"unknown task {task!r}")


def _die_with(parent_id: int) -> None:
    """Ends this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        # Also inside a C call that never lets another thread run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent_id:
            time.sleep(_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# What all processes do


def _make_learner(experiment: Experiment, spaces: Spaces, **options: Any) -> Learner:
    """Threads first: their number rounds the initial weights, which must not depend on the machine's cores."""
    torch.set_num_threads(experiment.learner.threads)
    return make_learner(experiment, spaces, **options)


def _device_of(device: str, rank: int) -> str:
    return f"cuda:{rank}" if device == "cuda" else device


def _join_group(rank: int, size: int, device: str, store: distributed.Store, timeout_s: float) -> None:
    options: dict[str, Any] = {}
    if device == "cuda":
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device("cuda", rank)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=size,
                                   timeout=timedelta(seconds=timeout_s), **options)


def _leave_group(*, is_in_step: bool) -> None:
    if not is_in_step and distributed.get_backend() == "nccl":
        # An orderly end would wait for the others.
        distributed.distributed_c10d._abort_process_group()
    else:
        distributed.destroy_process_group()


def _fingerprints(learner: Learner, group: TorchGroup) -> list[int]:
    state = learner.get_state()
    checksum = zlib.crc32(json.dumps(state.values, sort_keys=True).encode())
    for name in sorted(state.arrays):
        checksum = zlib.crc32(np.ascontiguousarray(state.arrays[name]).tobytes(), checksum)
    # Sums of one number and zeros; as float64, which holds 32 bits exactly.
    device = "cpu" if distributed.get_backend() == "gloo" else _device_of("cuda", group.rank)
    checksums = torch.zeros(group.size, dtype=torch.float64, device=device)
    checksums[group.rank] = checksum
    group.sum([checksums])
    return [int(value) for value in checksums.tolist()]


def _frame(values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """The message as parts to be written one after the other: length, JSON, and the arrays' own memory."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    header = json.dumps({**values, "arrays": [
        [name, array.dtype.str, list(array.shape)] for name, array in contiguous.items()]}).encode()
    return [_HEADER.pack(len(header)), header,
            *(array.reshape(-1).view(np.uint8).data for array in contiguous.values() if array.size)]


def _read_frame(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One message; where there is none any more, the end."""
    length = stream.read(_HEADER.size)
    if len(length) < _HEADER.size:
        return {"task": "end"}, {}
    values = json.loads(stream.read(*_HEADER.unpack(length)))
    arrays = {}
    for name, dtype, shape in values.pop("arrays"):
        array = np.empty(shape, np.dtype(dtype))
        if array.size and stream.readinto(array.reshape(-1).view(np.uint8).data) < array.nbytes:
            return {"task": "end"}, {}
        arrays[name] = array
    return values, arrays


def _spaces(fields: Mapping[str, Any]) -> Spaces:
    return Spaces(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def _how_it_ended(code: int, log: BinaryIO) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")[:_ERROR_CHARACTERS_MAX]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"({how}{f': {text}' if text else ''})"


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
    # As the training itself ends: nothing is left to be done.
    os._exit(0)
