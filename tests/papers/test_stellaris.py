"""Stellaris' studies have the authors' settings, and bills follow from counts and recorded durations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from papers.measures import KINDS
from papers.page import Page
from papers.pricing import lambda_speed, units_of
from papers.runs import Results
from papers.stellaris.measures import SERVERS_HOUR_USD, StellarisBill, returns_and_seconds
from papers.stellaris.virtual import VirtualSettings
from papers.study import trainings
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB
from runtime.experiment.loading import load_experiment
from runtime.money.model import learner_function_prices
from runtime.money.prices import PRICES
from tests.helpers import ROOT

PROTOCOL = Page.of(ROOT / "papers").protocol
STUDIES = {name: one for name, one in PROTOCOL["studies"].items() if name.startswith("stellaris-")}
CHANGES = {
    ("sync-4096", "sync-1024"): [0],
    ("sync-1024", "async"): [1],
    ("async", "aggregation"): [2],
    ("aggregation", "stellaris"): [3],
}
"""Between two arms: the minibatch, the learners, the bound with its rates, or the cap."""
ROUNDS = 12
BIG_S, SMALL_S, START_S = 2.0, 0.5, 1.5
"""Recorded seconds: of a gradient of 4,096 and of 1,024 samples, and of a start."""


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_adds_one_thing_and_has_durations_of_its_environment_and_minibatch(
    name: str,
) -> None:
    found = {}
    for run in (run for run in trainings(name, Path("work")) if run.seed == 3):
        overrides = [f"{key}={json.dumps(value)}" for key, value in run.settings.items()]
        experiment = load_experiment(ROOT / run.file, overrides)
        learner, steps = experiment.learner, experiment.algorithm.minibatch_steps
        assert isinstance(learner, VirtualSettings)
        assert experiment.environment.id.split("-")[0].lower() in learner.durations
        assert str(steps) in json.loads((ROOT / learner.durations).read_text())["gradient_s"]
        techniques = learner.staleness_decay, learner.truncation
        found[run.arm] = (steps, learner.learners, *techniques)
    for (before, after), differences in CHANGES.items():
        if {before, after} <= found.keys():
            pairs = zip(found[before], found[after], strict=True)
            assert [index for index, (a, b) in enumerate(pairs) if a != b] == differences
    assert found["stellaris"] == (1024, 4, 0.9, 1.0)


@pytest.fixture
def study(tmp_path: Path) -> dict[str, Any]:
    """Hopper's study with durations that are all the same."""
    path = tmp_path / "durations.json"
    seconds = {"1024": [SMALL_S], "4096": [BIG_S]}
    path.write_text(json.dumps({"start_s": [START_S], "gradient_s": seconds}))
    whole = STUDIES["stellaris-hopper"]
    return {**whole, "settings": {**whole["settings"], "learner.durations": str(path)}}


def a_run(gradients: int, returned: float) -> dict[str, list[Any]]:
    """Returns columns of rounds whose return rises by ``returned``."""
    return {
        "actor_count": [16] * ROUNDS,
        "env_steps": [4096] * ROUNDS,
        "gradient_steps": [gradients] * ROUNDS,
        "episode_return_mean": [returned * index for index in range(1, ROUNDS + 1)],
        "episodes_finished": [10] * ROUNDS,
    }


SLOW, FAST = a_run(10, 1.0), a_run(40, 2.0)


def test_always_on_servers_cost_the_seconds_of_actors_and_of_the_longest_learner(
    study: dict[str, Any],
) -> None:
    units = units_of(load_experiment(ROOT / study["file"], []).resolved())
    actor_s = units["invocation_s"] + 256 * units["step_s"]
    for arm, sharing, run, update_s in (
        ("sync-4096", 1, SLOW, 10 * BIG_S),
        ("sync-4096", 4, SLOW, 10 * SMALL_S),
        ("sync-1024", 1, FAST, 40 * SMALL_S),
        ("stellaris", 1, FAST, 40 * SMALL_S / 4),
    ):
        seconds, usd = StellarisBill.of(study, arm, "servers", sharing).rounds(run, 0)
        assert seconds == pytest.approx([actor_s + update_s] * ROUNDS), (arm, sharing)
        assert usd == pytest.approx(seconds * SERVERS_HOUR_USD / 3600)
    assert pytest.approx(5.15, abs=0.001) == SERVERS_HOUR_USD


def test_functions_cost_their_milliseconds_starts_and_requests_and_the_loop_all_the_while(
    study: dict[str, Any],
) -> None:
    seconds, usd = StellarisBill.of(study, "stellaris", "functions").rounds(FAST, 0)
    resolved = load_experiment(ROOT / study["file"], []).resolved()
    units, actor, learner = units_of(resolved), resolved.actor, resolved.learner
    speed, actor_speed = (
        lambda_speed(one) for one in (learner.function_memory_mib, actor.memory_mib)
    )
    warm_s = (units["invocation_s"] + 256 * units["step_s"]) / actor_speed
    second_s = warm_s + 40 * SMALL_S / 4 / speed
    assert seconds[1:] == pytest.approx([second_s] * (ROUNDS - 1))
    starts_s = START_S / speed + units["init_s"] / actor_speed
    assert seconds[0] == pytest.approx(second_s + starts_s)

    gib_s_usd = PRICES.functions[actor.architecture].on_demand_usd
    gradient = learner_function_prices(PRICES, learner, architecture=actor.architecture)
    gib_s = second_s * COORDINATOR_MEMORY_MIB + 16 * warm_s * actor.memory_mib
    billed_s = math.ceil(SMALL_S / speed * 1000) / 1000
    gib_s += 40 * billed_s * learner.function_memory_mib
    requests_usd = 16 * PRICES.request_usd + 40 * gradient.request_usd
    assert usd[1] == pytest.approx(gib_s / 1024 * gib_s_usd + requests_usd)
    started_gib_s = starts_s * COORDINATOR_MEMORY_MIB
    started_gib_s += 4 * START_S / speed * learner.function_memory_mib
    started_gib_s += 16 * units["init_s"] / actor_speed * actor.memory_mib
    assert usd[0] - usd[1] == pytest.approx(started_gib_s / 1024 * gib_s_usd, rel=1e-3)


def test_of_learners_that_share_a_gradient_the_slowest_one_counts(
    study: dict[str, Any], tmp_path: Path
) -> None:
    durations = {"start_s": [0.0], "gradient_s": {"1024": [0.1, 0.9], "4096": [BIG_S]}}
    (tmp_path / "durations.json").write_text(json.dumps(durations))
    seconds, _ = StellarisBill.of(study, "sync-4096", "servers", 4).rounds(SLOW, 0)
    # A gradient of four takes 0.9 s with a probability of 15 in 16.
    assert 10 * 0.7 < seconds.mean() < 10 * 0.9 + 0.1


def saved(study: dict[str, Any], folder: Path, **arguments: Any) -> dict[str, Any]:
    runs = {"stellaris": {"0": FAST, "7": FAST, "8": FAST}, "sync-4096": {"0": SLOW, "7": SLOW}}
    (folder / "hopper.json").write_text(json.dumps({"runs": runs}))
    measured = KINDS["stellaris_saving"](
        Results(folder, {"hopper": study}),
        studies={"Hopper": "hopper"},
        ours="stellaris",
        theirs="sync-4096",
        **arguments,
    )
    return dict(measured["Hopper"])


def test_a_saving_is_a_share_of_the_other_arm_over_equal_rounds_or_to_an_equal_return(
    study: dict[str, Any], tmp_path: Path
) -> None:
    """The slow arm's last five rounds return 10 on average, and so do rounds 3 to 7 of the fast arm."""
    ours_s, theirs_s = 40 * SMALL_S / 4, 10 * BIG_S
    rounds = saved(study, tmp_path, basis="servers", of="seconds", at="rounds")
    assert rounds["seeds"] == 2, "seeds that both arms have"
    assert rounds["interquartile_mean"] == pytest.approx(1 - ours_s / theirs_s, rel=0.01)
    assert rounds["note"] == "60 against 2.4e+02 seconds"
    equal = saved(study, tmp_path, basis="servers", of="cents", at="return")
    assert equal["interquartile_mean"] == pytest.approx(1 - 7 * ours_s / (12 * theirs_s), rel=0.01)
    shared = saved(study, tmp_path, basis="servers", of="seconds", at="rounds", sharing=4)
    assert shared["interquartile_mean"] == pytest.approx(0.0, abs=0.01)
    dearer = saved(study, tmp_path, basis="functions", of="cents", at="rounds")
    assert dearer["interquartile_mean"] < 0.0


def test_the_picture_has_returns_over_rounds_and_over_seconds(
    study: dict[str, Any], tmp_path: Path
) -> None:
    runs = {"stellaris": {"0": FAST, "1": FAST}, "sync-4096": {"0": SLOW}}
    (tmp_path / "hopper.json").write_text(json.dumps({"runs": runs}))
    picture = {
        "studies": {"Hopper": "hopper", "Walker2d": "walker2d"},
        "arms": {"one": "sync-4096", "control": "sync-1024", "four": "stellaris"},
    }
    studies = {"hopper": study, "walker2d": study}
    figure = returns_and_seconds(Results(tmp_path, studies), picture)
    by_rounds, by_seconds = figure.axes
    assert by_rounds.get_title() == "Hopper"
    for axis, x in ((by_rounds, [12, 12]), (by_seconds, [12 * 10 * BIG_S, 12 * 10 * SMALL_S])):
        ends = [line.get_xydata()[-1] for line in axis.lines]
        assert [end[0] for end in ends] == pytest.approx(x, rel=0.01)
        assert [end[1] for end in ends] == [10.0, 20.0]
    pyplot.close(figure)
