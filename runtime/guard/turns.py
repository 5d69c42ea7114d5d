"""Takes turns: several pieces of work share the time of one tick, so that none waits long for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Work = Iterator[bool]
"""Does one step with each ``next()``, and says whether it now waits for something; it ends when nothing is left."""


@dataclass
class _Turn:
    """One piece of work, how long its steps have taken so far, and when its next one is due."""

    work: Work
    used_s: float = 0.0
    due_s: float = 0.0


def take_turns(
    works: Sequence[Work], *, clock: Callable[[], float], sleep: Callable[[float], None], begin_until_s: float,
    wait_until_s: float, pause_s: float,
) -> None:
    """Lets each do a step at a time; next is always the one that has taken the least time, then the first.

    So work whose steps are slow holds the others up by one of its steps, and after that only takes what they leave.

    Args:
        works: In the order in which they begin.
        clock: Monotonic seconds.
        sleep: Waits for that many seconds.
        begin_until_s: No step begins after this time by the clock; what is left is left to the next tick.
        wait_until_s: What waits is not looked at again after this time.
        pause_s: Seconds after which what waits is looked at again.
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
