"""Virtual time: invocations end in order of duration, whenever the fleet begins, without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.fleet.virtual import VirtualFleet
from runtime.ports.fleet import Invocation


def made(**options: Any) -> VirtualFleet:
    def handler(event: Mapping[str, Any], context: object) -> Mapping[str, Any]:
        return {"inverse": 1 / event["lasts_s"]}

    return VirtualFleet(handler, lambda event: event["lasts_s"], **options)


def begin(fleet: VirtualFleet, **lasts_s: float) -> None:
    fleet.start([Invocation(name, {"lasts_s": seconds}) for name, seconds in lasts_s.items()])


def ends(fleet: VirtualFleet, count: int) -> list[tuple[str, str, float]]:
    found = [outcome for _ in range(count) for outcome in fleet.wait(1e9)]
    return [(one.invocation_id, one.status, one.billed_s) for one in found]


def test_they_end_in_the_order_of_their_durations_and_the_rest_is_queued() -> None:
    fleet = made(concurrency=2, timeout_s=5.0)
    begin(fleet, a=3.0, b=1.0, c=1.5, d=7.0, e=0.0)
    assert ends(fleet, 6) == [
        ("b", "ok", 1.0),
        ("c", "ok", 1.5),
        ("a", "ok", 3.0),
        ("e", "error", 0.0),
        ("d", "timeout", 5.0),
    ]
    assert fleet.now_s == 7.5


def test_ties_are_ties_whenever_it_begins() -> None:
    """0.1 + 0.2 ends at the same time as 0.3, and the invocation that began first comes first."""
    for before_s in (1e-6, 1 / 3, 12345.678901):
        fleet = made(concurrency=2)
        begin(fleet, before=before_s)
        ends(fleet, 1)
        begin(fleet, a=0.3, b=0.1, c=0.2)
        assert [name for name, _, _ in ends(fleet, 3)] == ["b", "a", "c"]


def test_what_is_given_up_is_billed_until_then_or_not_at_all() -> None:
    fleet = made(concurrency=2)
    begin(fleet, a=3.0, b=1.0, c=9.0, d=9.0)
    ends(fleet, 1)
    fleet.abandon(["c", "d", "unknown"])
    assert ends(fleet, 2) == [("d", "abandoned", 0.0), ("c", "abandoned", 0.0)]
    fleet.close()
    assert fleet.wait(0.0) == []
