"""Starts ``python -m MODULE`` without starting Python anew: importing torch takes longer than most tests.

`Popen` replaces `subprocess.Popen`. For the modules in `IMPORTS`, it asks a helper process to fork, which has already
imported their dependencies. All other commands start as usual. Such a process is real and a child of the caller. It has
its own pid, command line, environment, files, working directory and exit code, and may be killed. It differs from a
fresh interpreter in its imported modules and its hashes, so tests of either must not use these modules.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from fcntl import F_DUPFD, F_DUPFD_CLOEXEC, fcntl
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ACTOR = (
    "lambda_actor.handler",
    "lambda_actor.atari",
    "gymnasium",
    "gymnasium.envs.mujoco.hopper_v5",
    "mujoco",
)
MODELS = ("tests.simulators.aws.loaded_models",)
LEARNER = (
    "boto3",
    "torch",
    "runtime.show.tensorboard_log",
    "runtime.cli.main",
    "runtime.training.run",
    *ACTOR,
)
DEPLOYED_LEARNER = ("runtime.aws.learner.learner", *LEARNER, *MODELS)
IMPORTS: dict[str, tuple[str, ...]] = {
    "awslambdaric": (*ACTOR, *MODELS),  # Its library reads the environment during import.
    "runtime.fleet.actor_process": ACTOR,
    "runtime.pool.server": ("runtime.pool.server", *ACTOR),
    "runtime": LEARNER,
    "tests.docs.one_process": LEARNER,
    "runtime.aws.learner.learner": DEPLOYED_LEARNER,
    "tests.simulators.rehearsal.learner": DEPLOYED_LEARNER,
    "runtime.training.environment_process": ("runtime.training.environment_process", *ACTOR),
    "tests.gmi.member": ("runtime.gmi.group",),
    "tests.simulators.aws.moto_server": (
        "moto.moto_server.werkzeug_app",
        "tests.simulators.aws.moto_types",
    ),
}
_GRADIENTS = ("runtime.learner.functions.handler", "runtime.learner.functions.gradients")
_INSTANCE = ("runtime.gmi.worker", "runtime.gmi.trainer")
_COORDINATOR = "runtime.aws.learner.coordinator.handler"
HANDLERS: dict[str, tuple[str, ...]] = {
    "runtime.learner.functions.handler:handler": _GRADIENTS,
    "runtime.gmi.worker:handler": _INSTANCE,
    "runtime.gmi.worker:handler_together": _INSTANCE,
    "tests.gmi.dying:handler_together": _INSTANCE,
    "runtime.learner.functions.handler.handler": _GRADIENTS,
    _COORDINATOR: ("runtime.aws.learner.coordinator", *LEARNER, *MODELS),
}
"""Extra imports of some handlers, which are words of the command."""
STARTS_OTHERS = {
    "runtime",
    "runtime.aws.learner.learner",
    "tests.simulators.rehearsal.learner",
    "runtime.pool.server",
    "tests.docs.one_process",
    _COORDINATOR,
}
INTERPRETER_VARIABLES = {
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "PYTHONSTARTUP",
    "LC_ALL",
    "LD_PRELOAD",
    "PYTHONHASHSEED",
}
OWN_VARIABLES = {"PYTHONHASHSEED": "0"}
"""Variables of the helper for any caller. Processes that play environments have the same. A call that sets none also
gets them.
"""
PR_SET_CHILD_SUBREAPER = 36
HIGH_FD = 512
_FreshPopen = subprocess.Popen


class Helper:
    """The forking process, as seen by its caller."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid, self._owner = connection, pid, os.getpid()
        self._lock = threading.Lock()

    @property
    def is_mine(self) -> bool:
        return self._owner == os.getpid()

    def spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        """Starts a child of this process; returns its pid."""
        message = json.dumps(request).encode()
        with self._lock:
            # The child's parent ends at once. This process adopts the orphan if it asks to.
            _prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._connection, [len(message).to_bytes(4, "big")], fds)
                self._connection.sendall(message)
                return int.from_bytes(_receive(self._connection, 4), "big")
            finally:
                _prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._connection.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_helper: Helper | None = None
_lock = threading.Lock()


def helper() -> Helper:
    """Returns this process's own helper, started on first use."""
    global _helper
    with _lock:
        if _helper is None or not _helper.is_mine:
            ours, theirs = socket.socketpair()
            process = _FreshPopen(
                # Room for the command lines of future processes.
                [sys.executable, "-m", "tests.warm", str(theirs.fileno()), "." * 2048],
                cwd=ROOT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OPENBLAS_NUM_THREADS": "1",
                    **OWN_VARIABLES,
                },
            )
            theirs.close()
            _helper = Helper(ours, process.pid)
            process.returncode = 0  # Waited for by `close`.
        return _helper


def close() -> None:
    """Ends this process's helper."""
    if _helper is not None and _helper.is_mine:
        _helper.close()


class Popen(subprocess.Popen):
    """A `subprocess.Popen` that starts known modules from a warm process."""

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: bool,
        *rest: Any,
    ) -> None:
        *pipes, restore_signals, gid, gids, uid, umask, start_new_session, process_group = rest
        words = [] if shell or isinstance(args, str | bytes) else [os.fspath(word) for word in args]
        directory = os.path.realpath(cwd or os.getcwd())
        variables = dict(os.environ if env is None else env)
        is_path_safe = "-P" in words[1:2]
        module = (
            words[2 + is_path_safe] if words[1 + is_path_safe : 2 + is_path_safe] == ["-m"] else ""
        )
        if (
            not words
            or words[0] != sys.executable
            or executable
            or module not in IMPORTS
            or preexec_fn
            or not close_fds
            or uid is not None
            or unlike(variables)
            or not _is_ours(
                [
                    *([] if is_path_safe else [directory]),
                    *variables.get("PYTHONPATH", "").split(os.pathsep),
                ]
            )
        ):
            super()._execute_child(
                args,
                executable,
                preexec_fn,
                close_fds,
                pass_fds,
                cwd,
                env,
                startupinfo,
                creationflags,
                shell,
                *rest,
            )
            return
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        standard = [
            given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self.pid = helper().spawn(
            {
                "words": words,
                "module": module,
                "path": [] if is_path_safe else [directory],
                "directory": directory,
                "environment": {
                    os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()
                },
                "fds": [0, 1, 2, *pass_fds],
                "has_session": start_new_session,
                "group": process_group,
            },
            [*standard, *pass_fds],
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _is_ours(path: list[str]) -> bool:
    """Whether a process with this path would import this checkout's modules: no earlier entry replaces any module."""
    if str(ROOT) not in path:
        return False
    found = {
        file.relative_to(folder).parts[0].removesuffix(".py")
        for folder in path[: path.index(str(ROOT))]
        for file in [*Path(folder).glob("*.py"), *Path(folder).glob("*/*.py")]
    }
    return not any(map(PathFinder.find_spec, found))


def unlike(variables: Mapping[Any, Any]) -> set[str]:
    """Returns the variables by which a fresh interpreter would differ from the helper, which is then not used."""
    own = os.environ | OWN_VARIABLES
    return {
        name
        for name in INTERPRETER_VARIABLES
        if name in variables and own.get(name) != variables[name]
    }


# The helper


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Forks for each request. Returns only in the forked processes, with their request."""
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    imported: set[str] = set()
    while True:
        head, fds, _, _ = socket.recv_fds(connection, 4, 64)
        if not head:
            os._exit(0)
        head += _receive(connection, 4 - len(head)) if len(head) < 4 else b""
        request = json.loads(_receive(connection, int.from_bytes(head, "big")))
        needed = [
            *IMPORTS[request["module"]],
            *(module for word in request["words"] for module in HANDLERS.get(word, ())),
        ]
        for module in [module for module in needed if module not in imported]:
            importlib.import_module(module)
            imported.add(module)
            gc.collect()
            gc.freeze()
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            middle = os.getpid()
            if (child := os.fork()) != 0:
                os.write(write, child.to_bytes(4, "big"))
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.0005)
            return request | {"received": fds, "ready": write}
        os.close(write)
        os.waitpid(between, 0)
        child = os.read(read, 4)
        os.read(read, 1)  # Until it is ready, or dead.
        connection.sendall(child)
        for fd in (read, *fds):
            os.close(fd)


def _become(request: dict[str, Any]) -> None:
    """Makes this process look as if the request's command had started it."""
    global _helper
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGTERM", signal.SIG_DFL)):
        signal.signal(getattr(signal, name), handler)
    ready, *high = [fcntl(fd, F_DUPFD, HIGH_FD) for fd in (request["ready"], *request["received"])]
    os.closerange(0, HIGH_FD)
    for fd, wanted in zip(high, request["fds"], strict=True):
        os.dup2(fd, wanted)
        os.close(fd)
    if request["has_session"]:
        os.setsid()
    if request["group"] is not None and request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["directory"])
    _set_command_line(request["words"])
    os.write(ready, b".")
    os.close(ready)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    _helper = None
    if STARTS_OTHERS & {request["module"], request["words"][-1]}:
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            ours.close()
            fd = fcntl(theirs.detach(), F_DUPFD, HIGH_FD)
            os.closerange(0, HIGH_FD)
            for _ in range(3):
                os.open(os.devnull, os.O_RDWR)
            theirs = socket.socket(fileno=fcntl(fd, F_DUPFD_CLOEXEC, 3))
            os.close(fd)
            _set_command_line(["python", "-m", "tests.warm"])
            _run(_serve(theirs))
            sys.exit()
        theirs.close()
        _helper = Helper(ours, pid)
    subprocess.Popen = Popen
    paths = [
        os.path.realpath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    ]
    sys.path[:] = [
        *request["path"],
        *paths,
        *[entry for entry in sys.path if entry and Path(entry) != ROOT],
    ]
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        if fd == 0:
            raw = io.BufferedReader(raw)
        elif not is_unbuffered:
            raw = io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors="backslashreplace" if fd == 2 else "strict",
            line_buffering=fd == 2,
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = request["words"][request["words"].index("-m") + 1 :]


def _run(request: dict[str, Any]) -> None:
    _become(request)
    for name in (request["module"], f"{request['module']}.__main__"):
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _set_command_line(words: list[str]) -> None:
    """Returns this process's entry in /proc."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise EOFError("the helper that forks has ended")
        received += chunk
    return received


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.modules["tests.warm"] = sys.modules["__main__"]
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
