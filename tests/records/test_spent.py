"""A run's spending: every record is read, and none is trusted alone."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.money.budget import Budget
from runtime.records.spent import Spent, spent_by_records, spent_in


def test_what_a_killed_run_had_reserved_may_be_spent(tmp_path: Path):
    budget = Budget(1.0)
    budget.reserve({"round": 0.25})
    budget.settle("round", 0.125)
    budget.reserve({"actor": 0.25})
    assert spent_in(tmp_path) == Spent(0.0, 0.0)
    (tmp_path / "ledger.json").write_text(
        json.dumps({"budget": budget.get_state(), "billed_s": 0.0})
    )
    assert spent_in(tmp_path) == Spent(0.125, most_usd=0.375)
    budget.settle("actor", 0.25)
    assert budget.spent_usd == 0.375


def test_beside_a_damaged_ledger_the_rows_and_the_summary_count(tmp_path: Path):
    (tmp_path / "ledger.json").write_text('{"budget": {"units_per')
    (tmp_path / "rounds.jsonl").write_text(
        '{"round_index": 1, "spent_usd": 0.25}\n{"round_index": 2, "spe'
    )
    assert spent_in(tmp_path) == Spent(0.25, 0.25)
    (tmp_path / "summary.json").write_text('{"spent_usd": 0.5}')
    assert spent_in(tmp_path) == Spent(0.5, 0.5)
    (tmp_path / "ledger.json").write_text('{"budget": {"spent": 9, "units_per_usd": 1}}')
    (tmp_path / "rounds.jsonl").write_text('{"spent_usd": 0.75}\n{"spent_usd": null}\n')
    assert spent_in(tmp_path) == Spent(0.75, 0.75)
    for ledger in (
        '{"spent": 9, "reserved": {}, "units_per_usd": 0}',
        '{"spent": 1e400, "reserved": {}, "units_per_usd": 1}',
        '{"spent": 9, "reserved": {"round": -1}, "units_per_usd": 1}',
    ):
        (tmp_path / "ledger.json").write_text(f'{{"budget": {ledger}}}')
        assert spent_in(tmp_path) == Spent(0.75, 0.75)
    for spent_usd in ("1e300", "-2.0"):
        (tmp_path / "summary.json").write_text(f'{{"spent_usd": {spent_usd}}}')
        assert spent_in(tmp_path) == Spent(0.75, 0.75)
    (tmp_path / "rounds.jsonl").write_text('{"spent_usd": -2.0}\n')
    assert spent_in(tmp_path) == Spent(0.0, 0.0)


def test_a_summary_and_an_older_ledger_each_tell_one_of_the_two_figures():
    budget = {"spent": 4, "reserved": {"actor": 2}, "units_per_usd": 1}
    found = spent_by_records(ledger={"budget": budget}, rows=[], summary={"spent_usd": 5.0})
    assert found == Spent(5.0, most_usd=6.0)
