"""The row of a finished round: it reads its own output, and refuses unknown contents."""

from __future__ import annotations

import dataclasses
import json

import pytest

from runtime.errors import RunDirectoryError
from runtime.records.rows import COLUMNS, RoundRow, return_text
from tests.records.rows import a_row


def test_a_row_comes_back_from_its_line():
    row = a_row(7, detect_s=None, spent_usd=0.1, kl=0)
    line = row.to_json_line()
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    assert list(json.loads(line)) == [field.name for field in dataclasses.fields(RoundRow)]
    assert RoundRow.from_json_line(line) == row


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "altered: .*Invalid JSON"),
        (b'{"round_index": 1}', "policy_version: Field required"),
        (a_row(3).to_json_line().replace(b'"kl"', b'"kullback"'), "kl: Field required"),
        (a_row(3, kl=0.125).to_json_line().replace(b"0.125", b"NaN"), "kl: .*finite"),
        (
            a_row(3, updates=7).to_json_line().replace(b'"updates": 7', b'"updates": 7.5'),
            "updates: 7.5. Input should be a valid integer",
        ),
        (
            a_row(3, spent_usd=1e300).to_json_line(),
            "spent_usd: 1e\\+300. .* less than 10000",
        ),
        (
            a_row(3, spent_usd=0.125).to_json_line().replace(b"0.125", b"1e999"),
            "spent_usd: .*finite",
        ),
        (a_row(3, spent_usd=-0.5).to_json_line(), "spent_usd: -0.5. .*greater than or equal to 0"),
        (a_row(3, kl=-1e300).to_json_line(), "kl: -1e\\+300. .*greater than -10000"),
        (a_row(3, env_steps_total=10**400).to_json_line(), "env_steps_total: 1000000.*less than"),
        (a_row(3, env_steps=-1).to_json_line(), "env_steps: -1. .*greater than or equal to 0"),
    ],
)
def test_a_row_of_another_version_is_refused_in_one_line(line: bytes, words: str):
    with pytest.raises(RunDirectoryError, match=rf"^rounds\.jsonl: another version .*{words}"):
        RoundRow.from_json_line(line)


def test_names_in_tensorboard_follow_from_the_group_of_each_key():
    shown = a_row(4, convexity_ratio=None).scalars()
    assert {"return/episode_return_mean", "learner/kl", "run/env_steps_total"} <= shown.keys()
    assert len(shown) == len(COLUMNS) - 1


def test_small_returns_are_told_with_three_digits():
    assert [return_text(value) for value in (-0.0312, 9.9996, 10.0, 3081.04, None)] == [
        "-0.031",
        "10.000",
        "10.0",
        "3,081.0",
        "–",
    ]
