"""Six arms of Stellaris: each is an experiment that differs in one thing from the one before; the table has medians."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.stellaris.arms import COMBINED, FILE, SERIES, WORKLOADS, arms_of, runs, table
from runtime.config.loading import load_experiment
from runtime.cost.durations import read_durations
from tests.helpers import ROOT


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_arm_is_an_experiment_that_differs_in_one_thing_from_the_one_before(workload: str) -> None:
    found = {}
    for run in runs(workload, Path("work"), arms_of(workload), [3]):
        experiment = load_experiment(
            ROOT / run.file, [f"{key}={json.dumps(value)}" for key, value in run.settings.items()])
        learner = experiment.learner.stellaris
        assert (run.file, experiment.seed, learner.place) == (FILE, 3, "virtual")
        assert (experiment.environment.id, experiment.stop.max_rounds) == (
            WORKLOADS[workload].environment, WORKLOADS[workload].rounds)
        assert read_durations(ROOT / str(learner.durations)).mean_s(1024) < 0.1
        found[run.rule] = (experiment.algorithm.chosen.minibatch_steps, learner.learners, learner.staleness_decay,
                           learner.learning_rate_root, learner.truncation, experiment.scaler.kind)
    six = [values for arm, values in found.items() if arm not in COMBINED]
    assert [sum(a != b for a, b in zip(*pair, strict=True)) for pair in zip(six, six[1:], strict=False)] == [1] * 5
    if WORKLOADS[workload].is_combined:
        assert found["nitro-sync"] == (*found["sync-1024"][:-1], "nitro")
        assert found["nitro+stellaris"] == (*found["+truncation"][:-1], "nitro")


def test_the_table_has_medians_and_counts_who_got_to_the_target() -> None:
    def a_run(seed: int, value: float) -> dict:
        rows = {name: [value] * 21 for name in SERIES}
        rows |= {"evaluation_round": [None] * 5 + [5] + [None] * 14 + [20],
                 "evaluation_return_mean": [None] * 5 + [300 * value] + [None] * 14 + [30.0 + seed]}
        return {"arm": "async", "seed": seed, "rounds": 21, "rows": rows}

    lines = table([a_run(0, 2.0), a_run(1, 3.0), a_run(2, 1.0)], 600.0)
    assert lines[0].startswith("| arm | seeds | hit | return after 20 rounds | learn s of 20 rounds |")
    assert lines[2] == "| async | 3 | 2 | 31 | 40 | 40 | 5 | 15 | 15 |"
