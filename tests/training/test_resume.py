"""The records from which a run continues."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runtime.errors import ExperimentError, RunDirectoryError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.money.prices import PRICES
from runtime.records.run_directory import RunDirectory
from runtime.training.opening import HERE, Resources, Run, ShieldedStack
from runtime.training.resume import (
    check_same_experiment,
    finished_summary,
    stored_experiment,
)
from runtime.training.summary import summarise
from tests.fleet.parts import read_events
from tests.helpers import cost_model
from tests.records.rows import a_row


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
    ("before", "now", "words"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, "environment.kwargs.b is missing now, 2 in the run"),
        ({"a": 1}, {"a": 1, "b": "x"}, 'environment.kwargs.b is "x" now, missing in the run'),
        ({"a": {"b": 2}}, {"a": {}}, "environment.kwargs.a.b is missing now, 2 in the run"),
        ({"a": {}}, {}, "environment.kwargs.a is missing now, {} in the run"),
        ({"a": 1}, {"a": True}, "environment.kwargs.a is true now, 1 in the run"),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, ""),
    ],
)
def test_another_environment_is_refused_by_its_key(
    before: Mapping[str, Any], now: Mapping[str, Any], words: str, tmp_path: Path
) -> None:
    refusal = checked(
        *(
            {
                "environment": {"id": "some:thing", **({"kwargs": one} if one else {})},
                "budget": {"usd": 1.0},
            }
            for one in (before, now)
        ),
        tmp_path,
    )
    assert words in refusal
    assert bool(words) == bool(refusal)


@pytest.mark.parametrize(
    ("before", "now"),
    [("gmi", "function"), ("instance", "gmi"), ("stellaris", "gmi"), ("function", "instance")],
)
def test_another_updater_is_refused_by_the_names_of_both_unless_they_are_equal(
    before: str, now: str, tmp_path: Path
) -> None:
    refusal = checked(
        *(
            {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}, "learner": {"kind": kind}}
            for kind in (before, now)
        ),
        tmp_path,
    )
    are_equal = {before, now} <= {"instance", "function"}
    assert (f'learner.kind is "{now}" now, "{before}" in the run' in refusal) != are_equal
    assert are_equal == (not refusal)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, "x", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)
TREES = st.fixed_dictionaries(
    {
        "environment": st.fixed_dictionaries(
            {"id": st.sampled_from(["some:thing", "Other-v0"])},
            optional={
                "kwargs": st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=3),
                "wrappers": st.lists(
                    st.just("a.b")
                    | st.fixed_dictionaries(
                        {"c.D": st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=2)}
                    ),
                    max_size=2,
                ),
            },
        ),
        "budget": st.just({"usd": 1.0}),
    },
    optional={
        "algorithm": st.sampled_from(
            [
                {"kind": "impact"},
                {"kind": "impact", "staleness_max": 64},
                {"kind": "ppo", "clip": 0.1},
            ]
        ),
        "scaler": st.sampled_from(
            [{"kind": "nitro"}, {"actors_fixed": 3, "actors_min": 2}, {"kind": "schedule"}]
        ),
        "learner": st.sampled_from([{"kind": "stellaris", "learners": 2}, {"kind": "function"}]),
        "cache": st.just({"kind": "none"}),
        "seed": st.integers(0, 2),
        "stop": st.sampled_from([{"max_rounds": 3}, {"max_steps": 9999, "target_return": 1.5}]),
    },
)


@settings(max_examples=150)
@given(before=TREES, now=TREES)
def test_any_two_experiments_are_the_same_or_refused_in_words(
    before: Mapping[str, Any], now: Mapping[str, Any], tmp_path: Path
) -> None:
    experiments = []
    for tree in (before, now):
        try:
            experiments.append(experiment_from_tree(tree, source="x").resolved())
        except ExperimentError:
            assume(False)
    refusal = checked(before, now, tmp_path)
    assert ("was another experiment" in refusal) == (
        experiments[0].identity != experiments[1].identity
    )


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
    rows = [a_row(1, env_steps_total=steps)]
    backend = SimpleNamespace(cost_basis=HERE, prices=PRICES)
    summary = summarise(
        rows,
        name="x",
        experiment=experiment,
        backend=backend,
        best=None,
        stop_reason="max_steps",
        error="",
        spent_usd=0.5,
        session_s=1.0,
        was_resumed=False,
    )
    with closing(RunDirectory(tmp_path / "run")) as directory:
        (directory.path / "summary.json").write_text(json.dumps(summary))
        assert (finished_summary(experiment, directory) is not None) == is_finished


LEDGER = (
    b'{"budget": {"units_per_usd": 68719476736, "spent": %d, "reserved": {}}, '
    b'"billed_until_s": 0, "billed_s": 0, "blocks": 0, "warm_slots": []}'
)


@pytest.mark.parametrize(
    ("ledger", "spent_usd"),
    [(LEDGER % 2**35, 0.5), (b"{", 0.25), (b"[]", 0.25), (LEDGER % -1, 0.25), (LEDGER % 1, 0.25)],
    ids=["sound", "broken", "list", "negative", "too little"],
)
def test_a_newer_ledger_counts_but_one_that_cannot_be_right_gives_no_money_back(
    ledger: bytes, spent_usd: float, tmp_path: Path
) -> None:
    tree = {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}
    meter = Meter(cost_model(experiment_from_tree(tree, source="test").resolved()), Budget(1.0))
    meter.add_spent(0.25)
    (tmp_path / "ledger.json").write_bytes(ledger)
    backend: Any = SimpleNamespace(open=lambda _: Resources(None, None, meter, {}, {}))  # type: ignore[arg-type]
    with closing(RunDirectory(tmp_path)) as directory:
        run = Run(None, None, directory, backend, ShieldedStack())  # type: ignore[arg-type]
        run.take_over_spending(run.save_ledger)
    assert meter.spent_usd == spent_usd
    assert json.loads((tmp_path / "ledger.json").read_bytes()) == meter.get_state()
    assert len(read_events(tmp_path / "events.jsonl", "ledger_unreadable")) == (spent_usd == 0.25)


def test_rows_that_a_resumption_cuts_stay_paid_without_a_ledger(tmp_path: Path) -> None:
    tree = {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}
    meter = Meter(cost_model(experiment_from_tree(tree, source="test").resolved()), Budget(1.0))
    paid_usd = (0.125, 0.375)
    (tmp_path / "rounds.jsonl").write_bytes(
        b"".join(
            a_row(index + 1, spent_usd=usd).to_json_line() for index, usd in enumerate(paid_usd)
        )
    )
    backend: Any = SimpleNamespace(open=lambda _: Resources(None, None, meter, {}, {}))  # type: ignore[arg-type]
    with closing(RunDirectory(tmp_path)) as directory:
        run = Run(None, None, directory, backend, ShieldedStack())  # type: ignore[arg-type]
        directory.keep_rounds(run.rows[:1])
        run.take_over_spending(run.save_ledger)
    assert meter.spent_usd == 0.375
