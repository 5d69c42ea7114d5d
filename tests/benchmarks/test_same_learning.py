"""The comparison of two checkouts sees a last digit, a missing column and a missing round."""

from __future__ import annotations

from benchmarks.same_learning import difference

ROWS = [{"round_index": k, "kl": 0.1 + 0.2 * k, "updates": 1, "learn_s": 0.5} for k in (1, 2)]
COLUMNS = ["kl", "updates"]


def test_every_difference_but_of_times_is_told() -> None:
    assert difference(ROWS, [row | {"learn_s": 0.6} for row in ROWS], COLUMNS) == ""
    changed = [ROWS[0], ROWS[1] | {"kl": 0.5000000000000001}]
    assert difference(ROWS, changed, COLUMNS) == "round 2, kl: 0.5 -> 0.5000000000000001"
    lacking = [{key: row[key] for key in ("round_index", "kl", "learn_s")} for row in ROWS]
    assert difference(ROWS, lacking, COLUMNS) == 'round 1, updates: 1 -> "missing"'
    assert difference(ROWS, ROWS[:1], COLUMNS) == "2 rounds -> 1"
