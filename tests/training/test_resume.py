"""The records from which a run continues."""

from __future__ import annotations

import json
import shutil
from collections import ChainMap
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import CheckpointError, RunDirectoryError
from runtime.experiment.loading import experiment_from_tree
from runtime.fleet.opening import ShieldedStack
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.records.checkpoint import Checkpoint, save_checkpoint
from runtime.records.observers import EventLog
from runtime.records.run_directory import RunDirectory
from runtime.training.opening import Resources, Run, open_run
from runtime.training.resume import (
    check_same_experiment,
    continue_rounds,
    finished_summary,
    stored_experiment,
)
from tests.fleet.parts import read_events
from tests.helpers import cost_model
from tests.records.rows import a_row

USUAL = {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}


def checked(before: Mapping[str, Any], now: Mapping[str, Any], tmp_path: Path) -> str:
    """Resumes a run of one experiment with another; returns the refusal, or "" if it may continue."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    with closing(RunDirectory(tmp_path / "run")) as directory:
        (directory.path / "config.yaml").write_text(
            experiment_from_tree(before, source="x").resolved().to_yaml()
        )
        try:
            check_same_experiment(
                experiment_from_tree(now, source="x").resolved(),
                stored_experiment(directory),
                directory,
            )
        except RunDirectoryError as refusal:
            return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("before", "now"),
    [("gmi", "function"), ("instance", "gmi"), ("stellaris", "gmi"), ("function", "instance")],
)
def test_another_updater_is_refused_by_the_names_of_both_unless_they_are_equal(
    before: str, now: str, tmp_path: Path
) -> None:
    refusal = checked(*(USUAL | {"learner": {"kind": kind}} for kind in (before, now)), tmp_path)
    are_equal = {before, now} <= {"instance", "function"}
    assert (f'learner.kind is "{now}" now, "{before}" in the run' in refusal) != are_equal
    assert are_equal == (not refusal)


KWARGS = ({"a": 1}, {"a": True}, {"a": {}}, {"a": {"b": 2}}, {"a": [1, "x"]}, {"a": None})
SECTIONS: tuple[dict[str, Any], ...] = (
    *({"environment": {"id": "some:thing", "kwargs": kwargs}} for kwargs in KWARGS),
    {"environment": {"id": "some:thing", "wrappers": ["a:b", {"c:D": {"e": 1}}]}},
    {"environment": {"id": "Other-v0"}},
    {"algorithm": {"kind": "impact"}},
    {"algorithm": {"kind": "impact", "staleness_max": 64}},
    {"scaler": {"kind": "nitro"}},
    {"scaler": {"actors_fixed": 3, "actors_min": 2}},
    {"cache": {"kind": "none"}},
    {"seed": 2},
    {"stop": {"max_steps": 9999}},
)
TREES = st.lists(st.sampled_from(SECTIONS), max_size=3)


@settings(max_examples=60)
@given(before=TREES, now=TREES)
def test_any_two_experiments_are_the_same_or_refused_in_words(
    before: list[dict[str, Any]], now: list[dict[str, Any]], tmp_path: Path
) -> None:
    trees = [dict(ChainMap(*sections, USUAL)) for sections in (before, now)]
    identities = [experiment_from_tree(tree, source="x").resolved().identity for tree in trees]
    refusal = checked(*trees, tmp_path)
    assert ("was another experiment" in refusal) == (identities[0] != identities[1])


@pytest.mark.parametrize(
    ("stop", "steps", "is_finished"),
    [
        ({"max_steps": 1000}, 768, True),
        ({"max_steps": 1023}, 768, True),
        ({"max_steps": 1024}, 768, False),
        ({"max_steps": None}, 768, False),
        ({"max_steps": 1000}, 512, False),
    ],
)
def test_a_run_is_finished_if_no_further_fragment_fits(
    stop: Mapping[str, Any], steps: int, is_finished: bool, tmp_path: Path
) -> None:
    experiment = experiment_from_tree(
        {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}, "stop": stop}, source="x"
    ).resolved()
    summary = {
        "stop_reason": "max_steps",
        "env_steps_total": steps,
        "rounds": 1,
        "evaluation_return_mean": None,
        "budget_usd": 1.0,
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert (finished_summary(experiment, tmp_path) is not None) == is_finished


MINE, OTHER = "of this experiment", "of another one"


@pytest.mark.parametrize(
    ("rows", "checkpoints", "owner", "words"),
    [
        ([1, 2, 3], [2, 3], MINE, ""),
        ([1, 2, 3, 4, 5], [2, 3], MINE, ""),
        ([1], [], MINE, ""),
        ([1, 2, 3], [2, 3], OTHER, "of round 3 in .* belongs to another experiment"),
        ([1, 2, 4, 5], [4, 5], MINE, "round_000005 is newer than the rows: .* is 2"),
        ([1, 2, 3, 5], [2, 3], MINE, "begins with rounds 1 to 3, in order, and has 4 rows"),
        ([1, 2], [], MINE, "the newest usable checkpoint is of round 0"),
        ([], [2, 3], MINE, "round_000003 is newer than the rows"),
    ],
)
def test_a_run_continues_from_its_own_newest_checkpoint_and_unbroken_rows_or_is_left_alone(
    rows: list[int], checkpoints: list[int], owner: str, words: str, tmp_path: Path
) -> None:
    restored: list[int] = []
    loop: Any = SimpleNamespace(
        restore=lambda checkpoint, rows: restored.append(checkpoint.round_index)
    )
    with closing(RunDirectory(tmp_path)) as directory:
        for round_index in rows:
            directory.append_round(a_row(round_index))
        for round_index in checkpoints:
            values = {"experiment": owner}
            save_checkpoint(tmp_path / "checkpoints", Checkpoint(round_index, {}, values))
        run: Any = SimpleNamespace(
            directory=directory,
            experiment=SimpleNamespace(identity=MINE),
            events=EventLog(tmp_path / "events.jsonl"),
        )
        before = directory.read_rounds()
        if words:
            with pytest.raises((CheckpointError, RunDirectoryError), match=words):
                continue_rounds(loop, run, before)
        else:
            finished = continue_rounds(loop, run, before)
            assert [row.round_index for row in finished] == list(
                range(1, sum(checkpoints[-1:]) + 1)
            )
            before = finished
        assert directory.read_rounds() == before
    assert restored == ([] if words else checkpoints[-1:])


LEDGER = (
    b'{"budget": {"units_per_usd": 68719476736, "spent": %d, "reserved": {}}, '
    b'"billed_until_s": 0, "billed_s": 0, "blocks": 0, "warm_slots": []}'
)


def opened(folder: Path) -> tuple[Run, Meter]:
    """Opens a run in ``folder`` whose checkpoint has spent a quarter of a dollar."""
    meter = Meter(cost_model(experiment_from_tree(USUAL, source="x").resolved()), Budget(1.0))
    meter.budget.spend(0.25)
    backend: Any = SimpleNamespace(
        open=lambda _: Resources(None, SimpleNamespace(concurrency=1), meter, {}, {})
    )  # type: ignore[arg-type]
    with closing(RunDirectory(folder)) as directory:
        return open_run(None, None, directory, backend, ShieldedStack()), meter  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ledger", "spent_usd"),
    [(LEDGER % 2**35, 0.5), (b"{", 0.25), (b"[]", 0.25), (LEDGER % -1, 0.25), (LEDGER % 1, 0.25)],
    ids=["sound", "broken", "list", "negative", "too little"],
)
def test_a_newer_ledger_counts_but_one_that_cannot_be_right_gives_no_money_back(
    ledger: bytes, spent_usd: float, tmp_path: Path
) -> None:
    (tmp_path / "ledger.json").write_bytes(ledger)
    run, meter = opened(tmp_path)
    run.take_over_spending([], run.save_ledger)
    assert meter.spent_usd == spent_usd
    assert json.loads((tmp_path / "ledger.json").read_bytes()) == meter.get_state()
    assert len(read_events(tmp_path / "events.jsonl", "ledger_unreadable")) == (spent_usd == 0.25)


@pytest.mark.parametrize("has_ledger", [False, True])
def test_what_a_killed_process_spent_or_reserved_is_spent(tmp_path: Path, has_ledger: bool) -> None:
    """The dollars of rows stay spent without a ledger, also of rows that a resumption cuts."""
    rows = [a_row(1, spent_usd=0.125), a_row(2, spent_usd=0.375)]
    (tmp_path / "rounds.jsonl").write_bytes(b"".join(row.to_json_line() for row in rows))
    if has_ledger:
        reserved = (LEDGER % 2**35).replace(b'"reserved": {}', b'"reserved": {"round": %d}' % 2**34)
        (tmp_path / "ledger.json").write_bytes(reserved)
    run, meter = opened(tmp_path)
    (tmp_path / "rounds.jsonl").write_bytes(rows[0].to_json_line())
    run.take_over_spending(rows, run.save_ledger)
    assert (meter.spent_usd, meter.reserved_usd) == (0.75 if has_ledger else 0.375, 0.0)
    forfeited = [
        (event["usd"], event["reserved_usd"])
        for event in read_events(tmp_path / "events.jsonl", "reservation_forfeited")
    ]
    assert forfeited == [(0.25, 0.25)] * has_ledger
