"""Takes turns: several teardowns share one tick, so that none waits long for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Work = Iterator[bool]
"""Does one step with each ``next()`` and yields whether it is waiting. It ends when nothing is left."""


@dataclass
class _Turn:
    """One piece of work, the time its steps have taken so far, and when its next step is due."""

    work: Work
    used_s: float = 0.0
    due_s: float = 0.0


def take_turns(
    works: Sequence[Work],
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    begin_until_s: float,
    wait_until_s: float,
    pause_s: float,
) -> None:
    """Runs one step at a time, always of the work that has used the least time; the first if tied.

    So slow steps delay the others once, and after that only use the time they leave.

    Args:
        works: In the order in which they begin.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds.
        begin_until_s: No step begins after this time by the clock. The next tick does the rest.
        wait_until_s: Waiting work is not checked after this time.
        pause_s: Seconds between two checks of waiting work.
    """
    turns = [_Turn(work) for work in works]
    while turns and (now_s := clock()) < begin_until_s:
        due = [turn for turn in turns if turn.due_s <= now_s]
        if not due:
            sleep(min(turn.due_s for turn in turns) - now_s)
            continue
        turn = min(due, key=lambda turn: turn.used_s)
        is_waiting = next(turn.work, None)
        turn.used_s += clock() - now_s
        turn.due_s = clock() + pause_s if is_waiting else 0.0
        if is_waiting is None or turn.due_s > wait_until_s:
            turns.remove(turn)
