"""The command ``nitro-rl``, which is also ``python -m runtime``."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from runtime.errors import ENDING_SIGNALS, Interrupted


def _interrupt(number: int, _frame: object) -> None:
    raise Interrupted(number)


def run() -> NoReturn:
    """Runs the command line, and ends this process with its exit code."""
    for number in ENDING_SIGNALS:
        # Signals that were ignored from the start, as under nohup, remain ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    for descriptor in range(3):
        # One that was closed at the start would be given to the next file that is opened.
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    with suppress(OSError):
        # `nitro-rl` finds modules of one's own where `python -m runtime` does, and as that not under `python -P`.
        if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    try:
        from runtime.cli.main import main

        code = main()
    except Interrupted as interrupt:
        # While the command line was imported.
        print("interrupted", file=sys.stderr)
        code = interrupt.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Not sys.exit: threads that a user's environment has started must not keep a finished run alive.
    os._exit(code)


if __name__ == "__main__":
    run()
