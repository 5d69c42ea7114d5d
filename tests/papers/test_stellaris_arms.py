"""Six arms of Stellaris: each is an experiment that differs from the previous one in one thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from papers.stellaris.arms import COMBINED, FILE, RESULTS, WORKLOADS, runs, study_of
from papers.stellaris.virtual import Durations, VirtualSettings
from runtime.config.loading import load_experiment
from tests.helpers import ROOT


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_arm_is_an_experiment_that_differs_in_one_thing_from_the_one_before(
    workload: str,
) -> None:
    found = {}
    for run in (run for run in runs(workload, Path("work")) if run.seed == 3):
        experiment = load_experiment(
            ROOT / run.file, [f"{key}={json.dumps(value)}" for key, value in run.settings.items()]
        )
        learner = experiment.learner
        assert isinstance(learner, VirtualSettings)
        assert (run.file, experiment.seed) == (FILE, 3)
        assert (experiment.environment.id, experiment.stop.max_rounds) == (
            WORKLOADS[workload].environment,
            WORKLOADS[workload].rounds,
        )
        event = {"learner": {"seed": 3}, "update": 1, "slot": 0, "job": 0, "indices": range(1024)}
        assert 0.0 < Durations.read(ROOT / learner.durations).of(event) < 1.0
        found[run.arm] = (
            experiment.algorithm.minibatch_steps,
            learner.learners,
            learner.staleness_decay,
            learner.learning_rate_root,
            learner.truncation,
            experiment.scaler.kind,
        )
    six = [values for arm, values in found.items() if arm not in COMBINED]
    assert [
        sum(a != b for a, b in zip(*pair, strict=True)) for pair in zip(six, six[1:], strict=False)
    ] == [1] * 5
    if WORKLOADS[workload].is_combined:
        assert found["nitro-sync"] == (*found["sync-1024"][:-1], "nitro")
        assert found["nitro+stellaris"] == (*found["+truncation"][:-1], "nitro")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_in_the_results_is_of_the_study_as_it_is(workload: str) -> None:
    found = json.loads((RESULTS / f"{workload}.json").read_text())
    assert {name: found[name] for name in study_of(workload)} == json.loads(
        json.dumps(study_of(workload))
    )
    assert [(one["arm"], one["seed"]) for one in found["runs"]] == [
        (run.arm, run.seed) for run in runs(workload, Path())
    ]
