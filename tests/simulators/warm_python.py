"""``python3`` for a machine's scripts, forked from a process that has already imported their modules.

Importing http.client takes a new interpreter longer than all else that the boot script's requests do. The program reads
its arguments, environment, folder and files from /proc, where the shell that waits for it has them. It does not replace
that shell, so signals do not reach it. ``-m`` starts a new interpreter.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from select import select
from socketserver import ForkingTCPServer, StreamRequestHandler
from typing import Self

_CLIENT = """\
#!{bash}
[ "$1" != -m ] || exec {python} -S -E "$@"
exec 3<>/dev/tcp/127.0.0.1/{port} 4<&0 5>&1 6>&2
echo $$ >&3
read -r code <&3
exit "$code"
"""


class WarmPython:
    """Serves between ``__enter__`` and ``__exit__``.

    Attributes:
        program: Text of a script that replaces ``python -S -E``.
    """

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-P", __file__],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.program = _CLIENT.format(
            bash=shutil.which("bash"),
            python=sys.executable,
            port=self._process.stdout.readline().strip(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class _Handler(StreamRequestHandler):
    def handle(self) -> None:
        shell = Path("/proc", self.rfile.readline().decode().strip())
        for fd, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
            os.dup2(os.open(shell / f"fd/{4 + fd}", mode), fd)
        os.chdir(shell / "cwd")
        os.environb.clear()
        os.environb.update(
            one.split(b"=", 1) for one in (shell / "environ").read_bytes().split(b"\0")[:-1]
        )
        _, _, *sys.argv = map(os.fsdecode, (shell / "cmdline").read_bytes().split(b"\0")[:-1])
        self.wfile.write(b"%d\n" % _run(sys.argv[0]))


def _run(first: str) -> int:
    """Returns the exit code."""
    code: object = None
    try:
        if first == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            runpy.run_path(first, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except Exception:
        code = traceback.format_exc()
    sys.stdout.flush()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    for name in ("base64", "hmac", "http.client", "json"):
        import_module(name)
    with ForkingTCPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        while sys.stdin not in select([sys.stdin, server], [], [])[0]:
            server.handle_request()
            server.service_actions()
