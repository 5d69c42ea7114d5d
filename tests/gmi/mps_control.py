"""A stand-in for ``nvidia-cuda-mps-control``, and for the CUDA driver of a program that uses it.

It follows NVIDIA's documentation (docs.nvidia.com/deploy/mps, "Tools and Interface", "Environment Variables", and the
program's manual page) and users' reports:

- ``-f`` runs the daemon in the foreground. Without options, the program is the front end: it sends commands to the
  daemon of ``CUDA_MPS_PIPE_DIRECTORY``. Its exit code is 0 if it could reach the daemon.
- A second daemon with the same pipe directory does not start: "An instance of this daemon is already running".
- The daemon writes ``nvidia-cuda-mps-control.pid`` and creates the socket ``control`` there. If the path is too long
  for a socket, it ends with "Cannot find MPS control daemon process".
- The first client makes it start a server, a process that outlives a killed daemon and ends by ``quit``.
- The daemon's ``CUDA_VISIBLE_DEVICES`` lists the devices that its clients may see. A client's must name one of them,
  here by UUID.
- ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` and ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` limit a client, or all clients if the
  daemon has them. In that case this stand-in admits no client, since a test would see a wrong share.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

NAME = "nvidia-cuda-mps-control"
LIMITS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
NOT_FOUND = "Cannot find MPS control daemon process"


def install(folder: Path) -> None:
    """Installs the program in a folder of PATH."""
    program = folder / NAME
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} "$@"\n')
    program.chmod(0o755)


def connect(variables: dict[str, str]) -> int:
    """Does a CUDA program's first call with these variables; returns the server's process id.

    Raises:
        PermissionError: The client is not admitted.
        OSError: There is no daemon.
    """
    answer = _say(Path(variables["CUDA_MPS_PIPE_DIRECTORY"]), f"client {json.dumps(variables)}")
    if not answer.isdigit():
        raise PermissionError(answer)
    return int(answer)


def _say(pipes: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(str(pipes / "control"))
        talk.sendall(f"{command}\n".encode())
        return talk.makefile().read().strip()


def _front_end(pipes: Path) -> int:
    for line in sys.stdin:
        try:
            print(_say(pipes, line.strip()))
        except OSError:
            print(NOT_FOUND)
            return 1
    return 0


def _objection(daemon: dict[str, str], client: dict[str, str]) -> str:
    if wrong := [name for name in LIMITS if name in daemon]:
        return f"the daemon has {wrong[0]}"
    visible, asked = (
        daemon["CUDA_VISIBLE_DEVICES"].split(","),
        client.get("CUDA_VISIBLE_DEVICES", "").split(","),
    )
    if not set(asked) <= set(visible):
        return "no CUDA-capable device is detected"
    return ""


def _daemon(pipes: Path) -> int:
    if not Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir():
        print("no directory for logs")
        return 1
    lock = (pipes / "control_lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("An instance of this daemon is already running")
        return 1
    if not all(uuid.startswith("GPU-") for uuid in os.environ["CUDA_VISIBLE_DEVICES"].split(",")):
        print("no UUIDs")
        return 1
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(pipes / "control"))
    except OSError:
        print(NOT_FOUND)
        return 1
    listening.listen()
    (pipes / f"{NAME}.pid").write_text(str(os.getpid()))
    server = None
    while True:
        with listening.accept()[0] as talk:
            verb, _, rest = talk.makefile().readline().strip().partition(" ")
            answer = {"get_default_active_thread_percentage": "100.0"}.get(verb, "")
            if verb == "client":
                answer = _objection(dict(os.environ), json.loads(rest))
                if not answer:
                    server = server or subprocess.Popen(
                        ["sleep", "9000"], start_new_session=True, stdout=2
                    )
                    answer = str(server.pid)
            if verb == "quit":
                if server:
                    server.kill()
                    server.wait()
                (pipes / f"{NAME}.pid").unlink()
                return 0
            talk.sendall(answer.encode())


if __name__ == "__main__":
    directory = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    sys.exit(
        _daemon(directory)
        if sys.argv[1:] == ["-f"]
        else 2
        if sys.argv[1:]
        else _front_end(directory)
    )
