"""What is shown of events, and of a run that has ended."""

from __future__ import annotations

from runtime.display.table import EventLines, summary_lines
from runtime.training.summary import Summary


def test_the_same_error_over_and_over_is_shown_a_few_times_only() -> None:
    lines = EventLines()
    shown = [lines.line("actor_failed", {"slot": slot, "error": f"on fire at {slot}.5 s"}) for slot in range(6)]
    assert shown == [
        "! actor failed: slot 0, error on fire at 0.5 s", "! actor failed: slot 1, error on fire at 1.5 s",
        "! actor failed (more like this are only in events.jsonl): slot 2, error on fire at 2.5 s", None, None, None]
    assert lines.line("actor_replaced", {"slot": 0, "attempt": 1}) is None, "it follows a failure"
    assert lines.line("actor_failed", {"slot": 7, "error": "drowned"}) == "! actor failed: slot 7, error drowned"


def test_events_without_an_error_are_shown_every_time_but_for_beginning_and_end() -> None:
    lines = EventLines()
    assert [lines.line("round_shrunk", {"granted": 1}) for _ in range(5)] == ["! round shrunk: granted 1"] * 5
    assert lines.line("round_shrunk", {"free_usd": 0.0029999999999, "bytes": None}) == "! round shrunk: free_usd 0.003"
    assert [lines.line(kind, {}) for kind in ("run_started", "run_ended")] == [None, None]
    assert lines.line("actors_abandoned", {"reason": "the run ends", "count": 3}) is None
    assert lines.line("actors_abandoned", {"reason": "too stale", "count": 3}) is not None


def test_the_end_names_the_best_policy_where_it_is_not_the_last_evaluated_one() -> None:
    def lines(**values: object) -> list[str]:
        summary = dict.fromkeys(Summary.__annotations__, 0) | {"evaluation_return_mean": 80.0, "evaluation_round": 9}
        return summary_lines(summary | values, "runs/mine")

    best = lines(evaluation_return_best=2500.0, evaluation_round_best=6, best_policy_file="best_policy.safetensors")
    assert best[1:3] == ["return       80.0, evaluated after round 9",
                         "             best 2,500.0, after round 6: best_policy.safetensors"]
    assert lines(evaluation_return_best=80.0, evaluation_round_best=9)[1:2] == [
        "return       80.0, evaluated after round 9 (the best)"]
    # Of a run whose disk was full when its first evaluation was to be kept.
    assert "best" not in "".join(lines(evaluation_return_best=None, evaluation_round_best=None))
