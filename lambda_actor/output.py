"""What an environment prints, kept short: logs are paid for by their size, and no budget counts them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any


class _Limited:
    """A text stream that passes on as much as is left to it; all else is the stream's own."""

    def __init__(self, stream: Any, left: list[int]) -> None:
        # One number, which streams share: characters; below 0, so many were dropped.
        self._stream, self._left = stream, left

    def write(self, text: str) -> int:
        if self._left[0] > 0:
            self._stream.write(text[:self._left[0]])
        self._left[0] -= len(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def limited_output(characters_max: int) -> Iterator[None]:
    """Lets so much through of what Python code prints meanwhile, and says at the end how much more there was.

    What a simulator prints by itself, or to a stream that it got hold of before, is not seen here.

    Args:
        characters_max: For standard output and standard error together.
    """
    left, said = [characters_max], sys.stderr
    with redirect_stdout(_Limited(sys.stdout, left)), redirect_stderr(_Limited(said, left)):
        try:
            yield
        finally:
            if left[0] < 0:
                said.write(f"\n{-left[0]} characters more were printed, and dropped\n")
