"""What a run goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.config.loading import experiment_from_tree
from runtime.cost.budget import Budget
from runtime.cost.meter import Meter
from runtime.errors import CheckpointError
from runtime.records.checkpoint import save_checkpoint
from runtime.records.events import EventLog
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.resume import continue_rounds, count_what_was_spent
from tests.helpers import cost_model
from tests.sampling.parts import read_events
from tests.training.test_synchronous import Rig


def continue_after(kept: Mapping[str, Any], digests: Mapping[str, str], tmp_path: Path) -> int:
    """Goes on after a run whose checkpoint has ``kept`` beside the loop's values; returns the rounds that it has."""
    rig, again = (Rig(tmp_path / name) for name in ("before", "again"))
    rig.run()
    newest = rig.checkpoints[-1]
    with closing(RunDirectory(tmp_path / "run")) as directory:
        for row in rig.rows:
            directory.append_round(RoundRow.from_mapping(row))
        save_checkpoint(directory.checkpoints_path,
                        replace(newest, values={**newest.values, "experiment": "it", **kept}))
        continue_rounds(again.loop, directory, "it", digests, EventLog(tmp_path / "events.jsonl", lambda: "now"))
    return again.loop.progress.round_index


@pytest.mark.parametrize(("kept", "digests"), [
    ({"digests": {"a.file": "1"}}, {"a.file": "1"}), ({"digests": {"a.file": "1"}}, {}),
    ({"digests": {}}, {"a.file": "1"}), ({}, {"a.file": "1"})],
    ids=["the same", "no longer read", "not read before", "before there were digests"])
def test_a_run_whose_files_are_as_they_were_goes_on(
    kept: Mapping[str, Any], digests: Mapping[str, str], tmp_path: Path
) -> None:
    assert continue_after(kept, digests, tmp_path) == 4


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="^--resume: a.file names a file that holds something else than when round"
                       " 4 ended; allowed: what it held then, or another --out$"):
        continue_after({"digests": {"a.file": "1"}}, {"a.file": "2"}, tmp_path)


LEDGER = (b'{"budget": {"units_per_usd": 68719476736, "spent": %d, "reserved": {}}, "billed_s": 0, "blocks": 0, '
          b'"warm_environments": 0}')


@pytest.mark.parametrize(("ledger", "spent_usd"), [
    (LEDGER % 2**35, 0.5), (b"{", 0.25), (b"[]", 0.25), (LEDGER % -1, 0.25), (LEDGER % 1, 0.25)],
    ids=["sound", "broken", "list", "negative", "too little"])
def test_a_newer_ledger_counts_but_one_that_cannot_be_right_gives_no_money_back(
    ledger: bytes, spent_usd: float, tmp_path: Path
) -> None:
    tree = {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}
    meter = Meter(cost_model(experiment_from_tree(tree, source="test").resolved()), Budget(1.0))
    meter.add_spent(0.25)
    (tmp_path / "ledger.json").write_bytes(ledger)
    count_what_was_spent(meter, tmp_path / "ledger.json", EventLog(tmp_path / "events.jsonl", lambda: "now"),
                         elsewhere_usd=0.0, save_ledger=lambda: None)
    assert meter.spent_usd == spent_usd
    assert len(read_events(tmp_path / "events.jsonl", "ledger_unreadable")) == (spent_usd == 0.25)
