"""Taking turns, by a clock that moves only during work and waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.aws.guard.turns import take_turns


class Day:
    """A clock, and a log of each step's name and time."""

    def __init__(self) -> None:
        self.now_s, self.steps = 0.0, []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0.0
        self.now_s += seconds

    def work(self, name: str, *steps: tuple[float, bool]) -> Iterator[bool]:
        """Each step takes that many seconds, and then waits or not."""
        for seconds, is_waiting in steps:
            self.now_s += seconds
            self.steps.append((name, self.now_s))
            yield is_waiting

    def spend(
        self, *works: Iterator[bool], begin_until_s: float = 75.0, wait_until_s: float = 40.0
    ) -> list[str]:
        take_turns(
            works,
            clock=self.clock,
            sleep=self.sleep,
            begin_until_s=begin_until_s,
            wait_until_s=wait_until_s,
            pause_s=5.0,
        )
        return [name for name, _ in self.steps]


@pytest.fixture
def day() -> Day:
    return Day()


def test_slow_work_holds_the_others_up_by_one_step(day: Day) -> None:
    names = day.spend(
        day.work("slow", *[(15.0, False)] * 9), day.work("quick", *[(0.5, False)] * 9)
    )
    assert names[:10] == ["slow", *["quick"] * 9]
    assert names[10:] == ["slow"] * 4
    assert day.now_s < 75.0 + 15.0


def test_what_waits_is_looked_at_again_whatever_the_others_do(day: Day) -> None:
    names = day.spend(
        day.work("waits", *[(0.1, True)] * 3, (0.1, False)), day.work("slow", *[(15.0, False)] * 3)
    )
    assert names == ["waits", "slow", "waits", "slow", "waits", "slow", "waits"]


def test_what_waits_too_long_is_left_to_the_next_tick(day: Day) -> None:
    names = day.spend(day.work("waits", *[(0.0, True)] * 99))
    assert (names, day.now_s) == (["waits"] * 9, 40.0)


def test_nothing_begins_after_its_time_and_nothing_at_all_is_fine(day: Day) -> None:
    assert day.spend(*(day.work(str(number), (30.0, False)) for number in range(9))) == [
        "0",
        "1",
        "2",
    ]
    assert Day().spend() == []
