"""Waits of environments, by clocks that tests turn on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lambda_actor import handler as actor
from lambda_actor import waiting
from lambda_actor.inline import to_text
from lambda_actor.waiting import Waits, waits
from tests.lambda_actor.test_handler import make_event, weights


class Clocks:
    """What a thread did: it ran, was queued, or waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_queue: bool = True) -> None:
        self.wall_s, self.cpu_s, self.queued_s = 100.0, 10.0, 50.0
        times = {"perf_counter": lambda: self.wall_s, "process_time": lambda: self.cpu_s}
        monkeypatch.setattr(waiting, "queued_s", lambda: self.queued_s if has_queue else None)
        monkeypatch.setattr(waiting, "time", SimpleNamespace(**times))

    def go_on(self, *, runs_s: float = 0.0, queues_s: float = 0.0, waits_s: float = 0.0) -> None:
        self.cpu_s += runs_s
        self.queued_s += queues_s
        self.wall_s += runs_s + queues_s + waits_s


@pytest.mark.parametrize(
    ("went_by", "expected"),
    [
        ({"runs_s": 0.02, "queues_s": 7.0, "waits_s": 0.32}, 0.32),
        ({"runs_s": 0.02, "queues_s": 7.0}, 0.0),
        ({"runs_s": 1.0, "queues_s": 0.0, "waits_s": 0.04}, 0.0),
        ({"runs_s": 1.0, "queues_s": 0.0, "waits_s": 0.06}, 0.06),
        ({"runs_s": 1.0, "waits_s": 8.0}, 0.0),
        ({"runs_s": 1.0, "waits_s": 11.0}, None),
    ],
)
def test_a_wait_is_what_was_neither_run_nor_queued(
    monkeypatch: pytest.MonkeyPatch, went_by: dict[str, float], expected: float | None
) -> None:
    """Without the queue nothing is counted, and the length of what may be a long wait is unknown."""
    clocks, found = Clocks(monkeypatch, has_queue="queues_s" in went_by), Waits()
    with found.counted():
        clocks.go_on(**went_by)
    with found.counted():
        clocks.go_on(runs_s=1.0)
    assert [found.take(), found.take()] == [expected and pytest.approx(expected), 0.0]


def test_an_actor_counts_the_waits_of_its_environment_and_not_those_for_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Clocks(monkeypatch)

    def slow(name: str, waits_s: float) -> None:
        plain: Any = getattr(actor, name)

        def slower(*args: Any, **named: Any) -> Any:
            clocks.go_on(waits_s=waits_s)
            return plain(*args, **named)

        monkeypatch.setattr(actor, name, slower)

    slow("_policy", 4.0)
    slow("roll_out_together", 2.0)
    slow("_submit", 1.0)
    waits.take()
    event = make_event("", "a run", weights=to_text(weights()), episode="")
    assert actor.handler(event, None)["env_steps"] == 25
    assert waits.take() == pytest.approx(2.0)
