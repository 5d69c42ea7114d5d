"""The aws command line, loaded once: each call is a fork of a process that has imported it.

    python -m tests.simulators.aws.aws_command SOCKET

What a call runs is the very program; only what it takes to import it, most of a short call, is not paid each time.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_MESSAGE_BYTES_MAX = 2**20
_CLIENT = """\
import array, json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
server.sendmsg([call], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.shutdown(socket.SHUT_WR)
os._exit(int(server.recv(16) or b"1"))
"""


@contextmanager
def aws_command(directory: Path) -> Iterator[str]:
    """Yields the words of a shell that run ``aws``, as long as the block lasts."""
    path = directory / "aws.sock"
    (directory / "aws.py").write_text(_CLIENT.format(path=str(path)))
    server = subprocess.Popen([sys.executable, "-m", "tests.simulators.aws.aws_command", str(path)], cwd=ROOT,
                              stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"ready\n"
        yield f"{sys.executable} -S -E {directory / 'aws.py'}"
    finally:
        server.terminate()
        server.communicate()


def serve(path: str) -> None:
    """Runs calls, each in a process of its own, until it is ended."""
    import awscli.clidriver

    from tests.simulators.aws import loaded_models  # noqa: F401

    awscli.clidriver.create_clidriver()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            if os.fork() == 0:
                _answer(connection)
            os._exit(0)
        connection.close()
        os.wait()


def _answer(connection: socket.socket) -> None:
    code = 255
    try:
        arguments, folder, environment = _call(connection)
        os.chdir(folder)
        # Its import has told where its data are.
        kept = {"AWS_DATA_PATH": os.environ["AWS_DATA_PATH"]}
        os.environ.clear()
        os.environ.update(environment | kept)
        code = _run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.sendall(str(code).encode())
        os._exit(0)


def _call(connection: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """What is asked for; the asker's standard streams become this process'."""
    room = socket.CMSG_LEN(3 * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(_MESSAGE_BYTES_MAX, room)
    streams = array.array("i", ancillary[0][2])
    while part := connection.recv(_MESSAGE_BYTES_MAX):
        data += part
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    return tuple(json.loads(data))


def _run(arguments: list[str]) -> int:
    import awscli.clidriver

    sys.argv = ["aws", *arguments]
    try:
        return awscli.clidriver.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


if __name__ == "__main__":
    serve(sys.argv[1])
