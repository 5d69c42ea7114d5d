"""Six arms of Stellaris: each is an experiment that differs from the previous one in one thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from papers.stellaris.arms import COMBINED, FILE, RESULTS, WORKLOADS, priced, runs, study_of
from papers.stellaris.virtual import Durations, VirtualSettings
from runtime.experiment.loading import load_experiment
from tests.helpers import ROOT
from tests.records.rows import a_row

NOTHING_ELSE = {
    "cold_starts": 0,
    **dict.fromkeys(("actors_waited_s", "evaluated_steps", "hessian_products", "lost_steps")),
    "replayed_steps": None,
}


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


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_published_follows_from_the_counts_and_the_recorded_durations(
    workload: str,
) -> None:
    """Checks round 2 of every fixed arm, which starts nothing cold and evaluates nothing."""
    found = json.loads((RESULTS / f"{workload}.json").read_text())["runs"]
    for run, published in zip(runs(workload, Path()), found, strict=True):
        if run.arm in COMBINED:
            continue
        second = {name: values[1] for name, values in published["rows"].items()}
        counts = {
            **NOTHING_ELSE,
            "policy_version": 1,
            "actors_billed": second["actor_count"],
            "env_steps": 4096,
            **{name: second[name] for name in ("gradients", "gradients_lost")},
        }
        (row,) = priced(run, [vars(a_row(2, **counts))])
        assert row["priced_s"] == pytest.approx(second["priced_s"], rel=1e-4)
        # The dollars also had the requests of the loop's legs.
        assert row["priced_usd"] == pytest.approx(second["priced_usd"], rel=0.005)


def test_an_evaluation_costs_what_outlasts_the_actors_and_a_detector_all_of_its_time() -> None:
    run = next(runs("hopper", Path()))
    counts = {**NOTHING_ELSE, "policy_version": 1, "gradients": 10, "gradients_lost": 0}

    def price(**more: object) -> tuple[float, float]:
        (row,) = priced(run, [vars(a_row(2, **{**counts, **more}))])
        return row["priced_s"], row["priced_usd"]

    assert price(evaluated_steps=1) == price()
    evaluated_s, evaluated_usd = price(evaluated_steps=100_000)
    detected_s, detected_usd = price(hessian_products=10, product_samples=1024)
    assert evaluated_s > price()[0] < detected_s
    assert evaluated_usd > price()[1] < detected_usd
    assert price(gradients_lost=1)[0] > price()[0]
