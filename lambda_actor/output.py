"""Limits an environment's output. Logs are billed by size, and no budget counts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from lambda_actor.errors import describe_error


def report_ignored_once() -> None:
    """Describes each exception that Python ignores, such as those of ``__del__``, in one line, and once."""
    texts: set[str] = set()

    def report(unraisable: Any) -> None:
        text = describe_error(unraisable.exc_value)
        if text not in texts:
            texts.add(text)
            print(f"! ignored: {text}", file=sys.stderr)

    sys.unraisablehook = report


class _Limited:
    """A text stream that passes on the remaining number of characters. Otherwise it behaves like the stream."""

    def __init__(self, stream: Any, left: list[int]) -> None:
        # Remaining characters, shared between streams. A negative number counts the dropped ones.
        self._stream = stream
        self._left = left

    def write(self, text: str) -> int:
        if self._left[0] > 0:
            self._stream.write(text[: self._left[0]])
        self._left[0] -= len(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def limited_output(characters_max: int) -> Iterator[None]:
    """Limits the output of Python code in this block, and finally reports how much was dropped.

    Does not limit a simulator's native output, or output to a stream obtained earlier.

    Args:
        characters_max: For standard output and standard error together.
    """
    left = [characters_max]
    said = sys.stderr
    with redirect_stdout(_Limited(sys.stdout, left)), redirect_stderr(_Limited(said, left)):
        try:
            yield
        finally:
            if left[0] < 0:
                said.write(f"\n{-left[0]} more characters were printed and dropped\n")
