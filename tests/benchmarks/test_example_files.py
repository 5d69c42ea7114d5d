"""The page on the example files agrees with the data, which come from the current files."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import example_files
from benchmarks.seeds import EPISODES


def a_run(seed: int, stop_reason: str, steps: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "stop_reason": stop_reason,
        "env_steps_total": steps,
        "cpu_s": 60.0 * seed,
        f"evaluation_return_mean_of_{EPISODES}_others": 100.0 + seed,
    }


def test_the_page_is_up_to_date() -> None:
    assert example_files.PAGE.read_text() == example_files.page(example_files.read())


@pytest.mark.parametrize("name", example_files.read()["files"])
def test_what_is_published_is_of_the_file_as_it_is(name: str) -> None:
    assert example_files.read()["files"][name]["settings"] == example_files.settings_of(name)


def test_a_line_counts_the_runs_that_reached_the_target_and_gives_mean_and_lowest_return_and_medians() -> (
    None
):
    runs = [
        a_run(1, "target_return", 1000),
        a_run(2, "max_steps", 9000),
        a_run(3, "target_return", 2000),
    ]
    settings = {"environment": {"id": "module:CartPole-v1"}, "stop": {"target_return": 475}}
    line = example_files.lines({"cartpole": {"settings": settings, "runs": runs}}).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [
        "475",
        "2/3",
        "102 (101)",
        "2,000",
        "2.0",
        "500 in 100,000",
    ]
