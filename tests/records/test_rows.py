"""The row of a finished round: it reads its own output, and refuses unknown contents."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from runtime.errors import RunDirectoryError
from runtime.records.rows import RoundRow, return_text
from tests.records.rows import a_row

UNDEFINED = {
    "eigenvalue_min",
    "eigenvalue_max",
    "convexity_ratio",
    "boosting_score",
    "decay_weight",
    "evaluation_return_mean",
    "episode_return_mean",
    "episode_length_mean",
    "explained_variance",
    "detect_s",
    "evaluate_s",
    "evaluation_round",
    "actor_billed_s_mean",
    "actor_billed_s_max",
    "modelled_detect_s",
    "modelled_evaluate_s",
    "actor_cpu_s_mean",
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "learning_rate",
    *RoundRow.optional(),
}


def test_a_row_comes_back_from_its_line():
    row = a_row(7, detect_s=None, spent_usd=0.1)
    line = row.to_json_line()
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    assert list(json.loads(line)) == [field.name for field in dataclasses.fields(RoundRow)]
    assert RoundRow.from_json_line(line) == row
    older = {key: value for key, value in vars(row).items() if key not in RoundRow.optional()}
    assert RoundRow.from_mapping(older) == dataclasses.replace(
        row, **dict.fromkeys(RoundRow.optional())
    )


def test_whole_numbers_may_stand_for_others_and_stay_as_they_were_written():
    line = a_row(1, kl=0).to_json_line()
    assert RoundRow.from_json_line(line).to_json_line() == line


def test_what_may_be_undefined_may_be_null_and_nothing_else_may():
    values = vars(a_row(1))
    for key in values:
        if key in UNDEFINED:
            assert vars(RoundRow.from_mapping({**values, key: None}))[key] is None
        else:
            with pytest.raises(RunDirectoryError, match=f"{key} is None"):
                RoundRow.from_mapping({**values, key: None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("kl"), r"round 3: lacks kl;"),
        (lambda values: values.update(speed=1.0), r"round 3: has the unknown speed;"),
        (
            lambda values: (values.pop("kl"), values.update(KL=1.0)),
            r"round 3: lacks kl and has the unknown KL",
        ),
        (
            lambda values: values.update(actor_count=2.5),
            r"round 3: actor_count is 2\.5; allowed: int$",
        ),
        (lambda values: values.update(actor_count=True), r"round 3: actor_count is True"),
        (
            lambda values: values.update(detect_s="soon"),
            r"round 3: detect_s is 'soon'; allowed: float \| NoneType \| int",
        ),
        (lambda values: values.pop("round_index"), r"round of unknown number: lacks round_index"),
    ],
)
def test_a_row_of_another_version_is_refused_by_key_and_round(change: Any, message: str):
    values = dict(vars(a_row(3)))
    change(values)
    with pytest.raises(RunDirectoryError, match=message):
        RoundRow.from_mapping(values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kl", float("nan")),
        ("round_s", float("-inf")),
    ],
)
def test_a_number_that_nothing_can_be_added_to_is_refused_by_key(key: str, value: float):
    with pytest.raises(RunDirectoryError, match=rf"round 3: {key} is .{{3,40}}; allowed: finite"):
        RoundRow.from_mapping(vars(a_row(3)) | {key: value})


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"7"])
def test_what_is_no_row_at_all_is_refused(line: bytes):
    with pytest.raises(RunDirectoryError, match=r"rounds\.jsonl: a line is not"):
        RoundRow.from_json_line(line)


def test_numbers_that_json_does_not_know_are_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dataclasses.replace(a_row(1), kl=float("nan")).to_json_line()


def test_names_in_tensorboard_follow_from_the_group_of_each_key():
    shown = a_row(4, convexity_ratio=None).scalars()
    assert "boosting/convexity_ratio" not in shown
    assert {
        "return/episode_return_mean",
        "boosting/boosting_score",
        "actors/actor_count",
        "learner/kl",
        "learner/updates",
        "time/round_s",
        "time/actor_billed_s_max",
        "cost/spent_usd",
        "actors/actors_billed",
        "run/env_steps_total",
        "run/round_index",
    } <= shown.keys()
    assert len(shown) == len(RoundRow.columns()) - 1


def test_units_follow_from_the_names():
    for key, column in RoundRow.columns().items():
        assert column.meaning
        assert (column.unit == "USD") == key.endswith("_usd")
        assert (column.unit == "s") == key.endswith(("_s", "_s_mean", "_s_max"))


def test_small_returns_are_told_with_three_digits():
    assert [
        return_text(value) for value in (0.9644, -0.0312, 9.9996, 10.0, -163.25, 3081.04, 0.0, None)
    ] == ["0.964", "-0.031", "10.000", "10.0", "-163.2", "3,081.0", "0.000", "–"]
