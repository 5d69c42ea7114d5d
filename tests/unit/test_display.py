"""What is shown of events."""

from __future__ import annotations

from runtime.display import EventLines


def test_the_same_error_over_and_over_is_shown_a_few_times_only() -> None:
    lines = EventLines()
    shown = [lines.line("actor_failed", {"slot": slot, "error": "on fire"}) for slot in range(6)]
    assert shown[:2] == [f"! actor failed: slot {slot}, error on fire" for slot in range(2)]
    assert shown[2].startswith("! actor failed: slot 2, error on fire (")
    assert "events.jsonl" in shown[2]
    assert shown[3:] == [None] * 3
    assert lines.line("actor_failed", {"slot": 7, "error": "drowned"}) == "! actor failed: slot 7, error drowned"


def test_events_without_an_error_are_shown_every_time_but_for_beginning_and_end() -> None:
    lines = EventLines()
    assert [lines.line("round_shrunk", {"granted": 1}) for _ in range(5)] == ["! round shrunk: granted 1"] * 5
    assert [lines.line(kind, {}) for kind in ("run_started", "run_ended")] == [None, None]
    assert lines.line("actors_abandoned", {"reason": "the run ends", "count": 3}) is None
    assert lines.line("actors_abandoned", {"reason": "too stale", "count": 3}) is not None
