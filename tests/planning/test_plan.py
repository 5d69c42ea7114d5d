"""``python -m runtime plan``: its predictions from sampled work, and its output, charts and files."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import pytest

from lambda_actor import waiting
from lambda_actor.trial import TriedEnvironment
from runtime.cli.main import main
from runtime.cli.plan import _write
from runtime.config.loading import load_experiment
from runtime.cost.prices import PRICES
from runtime.planning import workload
from runtime.planning.drawing import scatter_lines, short_time, table_lines
from runtime.planning.prediction import (
    KINDS,
    NO_CACHE,
    Prediction,
    Sample,
    front,
    picks,
    predict_all,
    rounds_of,
    ways,
)
from runtime.planning.workload import Workload, _sampled
from runtime.training.trial import try_environment
from tests.fakes import ManualClock
from tests.helpers import ROOT

HOPPER = ROOT / "experiments" / "hopper-fixed.yaml"
UNITS_OF_HOPPER = {
    **json.loads((ROOT / "papers" / "units.json").read_text())["workloads"][
        "Hopper-v5 none mlp ppo"
    ],
    "round_s": 0.002,
    "trajectory_s": 0.0003,
}
SAMPLE = Sample(UNITS_OF_HOPPER, 320_000, 256)


@pytest.fixture(scope="module")
def environment() -> TriedEnvironment:
    return try_environment("Hopper-v5", "none")


def with_ways(most: int | None) -> Any:
    """Ends the thousand ways early: the first two are the file's own."""
    return mock.patch(
        "runtime.planning.prediction.ways", lambda *arguments: islice(ways(*arguments), most)
    )


@cache
def predicted(
    environment: TriedEnvironment,
    steps: int = 1_000_000,
    *,
    seeds: int = 1,
    changes: tuple[str, ...] = (),
    most: int | None = None,
    **units: float,
) -> list[Prediction]:
    sample = replace(SAMPLE, units={**UNITS_OF_HOPPER, **units})
    with with_ways(most):
        return predict_all(
            load_experiment(HOPPER, changes), sample, environment, PRICES, steps=steps, seeds=seeds
        )


def test_no_way_is_faster_than_the_fastest_or_cheaper_than_the_cheapest_and_the_knee_is_beaten_by_none(
    environment,
):
    found = predicted(environment)
    chosen = picks(found)
    assert chosen["fastest"].seconds == min(one.seconds for one in found)
    assert chosen["cheapest"].usd == min(one.usd for one in found)
    knee = chosen["knee"]
    assert [one for one in found if one.seconds < knee.seconds and one.usd < knee.usd] == []
    assert set(map(id, chosen.values())) <= set(map(id, front(found)))
    assert {one.way.kind for one in found} == set(KINDS[:2])
    for one in found:
        assert one.seconds == pytest.approx(one.start_s + one.actors_s + one.learner_s)


def test_what_decides_goes_from_the_start_to_the_learner_or_slow_actors(environment):
    assert predicted(environment)[0].bound == "start"
    bounds = {one.way.name: one.bound for one in predicted(environment, 50_000_000)}
    assert "learner" in bounds.values()
    assert bounds["c7i.large, 1 x 2048, arm64 512 MiB, no cache"] == "actors"


def test_serverless_actors_are_fastest_where_the_environment_is_slow_and_a_round_has_more_of_it_than_an_instance_holds(
    environment,
):
    many = ("scaler.kind=fixed", "scaler.actors_fixed=128")
    for found, kind in (
        (predicted(environment), KINDS[0]),
        (predicted(environment, step_s=0.1), KINDS[0]),
        (predicted(environment, step_s=0.1, changes=many), KINDS[1]),
    ):
        assert picks(found)["fastest"].way.kind == kind


def test_all_ways_have_the_batch_of_fixed_actors_and_a_cache_holds_what_a_message_cannot(
    environment,
):
    many = ("scaler.kind=fixed", "scaler.actors_fixed=64", "actor.fragment_steps=2048")
    changes = [one.way.changes for one in predicted(environment, changes=many)[2:]]
    batches = {one["scaler.actors_fixed"] * one["actor.fragment_steps"] for one in changes}
    assert 64 * 2048 <= min(batches) <= max(batches) <= 64 * 2048 + 192
    assert {
        one["cache.kind"]
        for one in changes
        if one["learner.kind"] != "gmi"
        and one["fleet.kind"] == "local"
        and one["scaler.actors_fixed"] == 2
    } == {"redis"}


def test_the_file_without_a_cache_is_a_way_if_its_messages_are_small_enough(environment):
    own, without = predicted(environment)[:2]
    assert (without.way.changes, without.way.kind) == (NO_CACHE, own.way.kind)
    assert own.start_s - without.start_s == pytest.approx(210.0), (
        "300 s for a cache, 90 s for a function"
    )
    assert without.usd < own.usd
    for changes in (
        ("actor.fragment_steps=65536",),
        ("cache.kind=none",),
        ("fleet.kind=local", "cache.kind=redis"),
    ):
        assert NO_CACHE not in [
            one.way.changes for one in predicted(environment, changes=changes, most=2)
        ]


@pytest.mark.parametrize("name", ["g5.12xlarge", "p4d.24xlarge", "c7a.48xlarge", "c7g.16xlarge"])
def test_a_large_type_of_the_file_is_predicted_at_its_price(environment, name):
    found = predicted(
        environment, changes=(f"learner.instance_types=[{name}]", "cache.kind=none"), most=1
    )[0]
    assert found.usd > 0.5 * PRICES.instance_hour_usd[name] * found.seconds / 3600


def test_vcpus_that_are_cores_are_worth_more_when_all_are_busy(environment):
    """A c7a's vCPUs are cores; two of a c7i share one."""

    def actors_s(name: str) -> float:
        changes = (
            f"learner.instance_types=[{name}]",
            "fleet.kind=local",
            "fleet.processes=8",
            "cache.kind=none",
        )
        return predicted(environment, changes=changes, step_s=0.1, most=1)[0].actors_s

    assert actors_s("c7i.2xlarge") / actors_s("c7a.2xlarge") == pytest.approx(1 / 0.62, rel=0.01)


def test_functions_alone_are_predicted_beside_the_other_ways(environment):
    found = predicted(environment, changes=("learner.kind=function", "cache.kind=none"))
    assert {one.way.kind for one in found} == {*KINDS[:2], KINDS[3]}
    as_instance = predicted(environment, changes=("cache.kind=none",))
    # The same rounds, with four requests to the bucket and slower processors.
    own, other = found[0], as_instance[0]
    rounds = math.ceil(1_000_000 / (20 * 256))
    assert own.start_s < other.start_s and own.learner_s > other.learner_s + rounds * 4 * 0.1
    assert [replace(one, way=other.way) for one in found if one.way.kind in KINDS[:3]] == [
        replace(one, way=other.way) for one in as_instance[1:]
    ]


def test_times_have_three_digits_and_no_exponent():
    assert [short_time(seconds) for seconds in (86.3e-6, 999.6e-6, 0.322, 0.9996, 1.02, 12.34)] == [
        "86.3 us",
        "1 ms",
        "322 ms",
        "1 s",
        "1.02 s",
        "12.3 s",
    ]


def test_many_seeds_share_one_start(environment):
    one, five = (found[-1] for found in (predicted(environment), predicted(environment, seeds=5)))
    assert five.start_s == one.start_s
    assert five.learner_s == pytest.approx(5 * one.learner_s)
    assert one.usd < five.usd < 5 * one.usd


def test_the_text_marks_the_picks_and_fits_a_terminal(environment):
    found = predicted(environment)
    lines = table_lines(found, picks(found))
    assert lines[1].endswith("the file as it is")
    assert "".join(line[:3] for line in lines[1:]).replace(" ", "") in {"FCK", "FKC"}
    scatter = scatter_lines(found, picks(found))
    assert max(map(len, scatter)) < 80
    assert set("F@.") <= set("".join(scatter[:-1]))


def test_the_command_samples_prints_draws_and_writes_a_file_that_can_be_deployed(
    tmp_path: Path, capsys
):
    written, picture = tmp_path / "planned.yaml", tmp_path / "plan.png"
    arguments = ["plan", str(HOPPER), "--seconds", "1", "--set", "seed=7", "--write", str(written)]
    assert main([*arguments, "--choose", "cheapest", "--picture", str(picture)]) == 0
    output = capsys.readouterr().out
    experiment = load_experiment(written)
    assert experiment.seed == 7
    assert (
        "at most: budget.usd = $0.5 for a run of the file as it is, as long as the guard runs"
        in " ".join(output.split())
    )
    assert (
        "first deployment: --set cache.kind=none starts 3:30 min sooner than the file as it is, and is taken down "
        "sooner"
    ) in " ".join(output.split())
    assert experiment.resolved(is_deployed=True).learner.instance_types[0] in output
    changes = [
        line.removeprefix("  --set ").strip("'")
        for line in output.splitlines()
        if line.startswith("  --set ")
    ]
    assert load_experiment(HOPPER, ["seed=7", *changes]).model_dump() == experiment.model_dump()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_keys_that_the_chosen_way_never_reads_are_not_written(tmp_path: Path) -> None:
    written = tmp_path / "planned.yaml"
    given = ["scaler.kind=nitro", "scaler.decay_factor=0.9"]
    _write(
        argparse.Namespace(experiment=HOPPER, write=written, set=given),
        load_experiment(HOPPER, given),
        ["scaler.kind=fixed", "scaler.actors_fixed=4"],
    )
    assert load_experiment(written).scaler.kind == "fixed"
    assert "decay_factor" not in written.read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--write", "{}/none/a.yaml"], "a folder that is there"),
        (["--picture", "{}/none/a.png"], "a folder that is there"),
        (["--picture", "{}/a"], "ends in .png"),
        (
            ["--set", "environment.id=tests.environments:make_raising"],
            "it raised when it was tried: RuntimeError",
        ),
        (
            ["--set", "environment.id=os:abort"],
            "it ended the process that it was tried in (SIGABRT)",
        ),
        (["--set", "algorithm.kind=impala"], "cannot be planned; allowed: synchronous"),
        (["--set", "learner.kind=external"], "make synth says what its deployment"),
        (
            ["--set", "learner.kind=function", "--set", "cache.kind=redis"],
            "allowed: none, such as with --set",
        ),
        (["--set", "learner.kind=stellaris"], "allowed: instance | function | gmi"),
    ],
)
def test_what_cannot_be_planned_or_written_is_told_in_a_line(
    tmp_path: Path, capsys, arguments: list[str], reason: str
):
    assert main(["plan", str(HOPPER), *(one.format(tmp_path) for one in arguments)]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "rounds", "fragments"),
    [(2048, 1, 8), (2047, 1, 7), (2304, 2, 9), (2303, 1, 8), (100, 1, 1), (600_000, 293, 2343)],
)
def test_a_prediction_has_the_rounds_and_fragments_of_a_run_with_so_many_steps(
    environment: TriedEnvironment, steps: int, rounds: int, fragments: int
) -> None:
    fitted = load_experiment(HOPPER).resolved().fitted(environment.spaces, preprocessing="none")
    found = rounds_of(fitted, SAMPLE, environment, steps=steps, parallel_speed=None)
    assert (found.count, found.count * found.actors) == (rounds, pytest.approx(fragments))


def test_a_prediction_counts_the_steps_that_are_replayed(environment: TriedEnvironment) -> None:
    fitted = load_experiment(HOPPER).resolved().fitted(environment.spaces, preprocessing="none")
    replayed = fitted.model_copy(
        update={"environment": fitted.environment.model_copy(update={"replay": "reset"})}
    )
    sample = replace(SAMPLE, units={**UNITS_OF_HOPPER, "invocation_s": 0.0})
    once, again = (
        rounds_of(one, sample, environment, steps=10**6, parallel_speed=None).actor_s
        for one in (fitted, replayed)
    )
    assert again / once == pytest.approx((256 + 250) / 256)


def test_a_wait_is_as_long_on_any_machine_and_processes_wait_at_the_same_time(
    environment: TriedEnvironment,
) -> None:
    fitted = (
        load_experiment(HOPPER, ["fleet.processes=2", "scaler.kind=fixed", "scaler.actors_fixed=8"])
        .resolved()
        .fitted(environment.spaces, preprocessing="none")
    )
    slow = replace(SAMPLE, units={**UNITS_OF_HOPPER, "wait_s": 0.5})
    waited_s = fitted.actor.fragment_steps * 0.5
    for parallel_speed, turns in ((None, 1), (1.0, 4), (0.62, 4)):
        quick, slower = (
            rounds_of(
                fitted,
                one,
                environment,
                steps=10**6,
                parallel_speed=parallel_speed,
            )
            for one in (SAMPLE, slow)
        )
        assert slower.actor_s - quick.actor_s == pytest.approx(waited_s)
        assert slower.collect_s - quick.collect_s == pytest.approx(turns * waited_s, rel=0.01)


@pytest.mark.parametrize(
    ("units", "is_unknown", "told"),
    [
        ({"wait_s": 0.005}, False, "a step 183 us of CPU and 5 ms of waiting, "),
        ({"wait_s": 0.0}, False, "a step 183 us, "),
        ({"wait_s": 0.0}, True, "so dollars leave waits out"),
    ],
)
def test_the_command_tells_what_a_step_waits(
    monkeypatch: pytest.MonkeyPatch, capsys, units: dict[str, float], is_unknown: bool, told: str
) -> None:
    monkeypatch.setattr(
        "runtime.planning.workload.sample",
        lambda *arguments: {
            "units": {**UNITS_OF_HOPPER, "step_s": 183e-6, **units},
            "message_bytes": 320_000,
            "fragment_steps": 256,
            "has_unknown_waits": is_unknown,
        },
    )
    with with_ways(2):
        assert main(["plan", str(HOPPER)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert told in output
    assert ("leave waits out" in output) == is_unknown


class Slow(gymnasium.Wrapper):
    """An environment that waits for half a second in each step, by the clock of this class."""

    now_s, steps = 0.0, 0

    def step(self, action):
        Slow.now_s += 0.5
        Slow.steps += 1
        return self.env.step(action)


def make_slow() -> gymnasium.Env:
    return Slow(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(("playing_s", "fewest", "most"), [(7.5, 20, 60), (math.inf, 2048, 4000)])
def test_a_slow_environment_takes_fewer_steps_while_its_work_is_sampled(
    monkeypatch: pytest.MonkeyPatch, playing_s: float, fewest: int, most: int
) -> None:
    monkeypatch.setattr(waiting, "queued_s", lambda: 0.0)
    monkeypatch.setattr(
        waiting, "time", SimpleNamespace(perf_counter=lambda: Slow.now_s, process_time=lambda: 0.0)
    )
    experiment = load_experiment(
        HOPPER,
        [
            "environment.id=tests.planning.test_plan:make_slow",
            "actor.fragment_steps=64",
            "network.hidden_sizes=[8]",
        ],
    ).resolved()
    before = Slow.steps
    work = Workload(experiment, playing_s=playing_s, wall=lambda: Slow.now_s)
    work.measure()
    assert fewest <= Slow.steps - before <= most
    units = work.units()
    assert units.keys() >= UNITS_OF_HOPPER.keys()
    assert units["wait_s"] == pytest.approx(0.5)
    assert work.message_bytes > 0


@pytest.mark.parametrize(("measure_s", "times"), [(9.9, 3), (12.0, 2), (1.0, 30), (40.0, 1)])
def test_a_measurement_that_would_end_too_late_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, measure_s: float, times: int
) -> None:
    clock, measured = ManualClock(), []
    monkeypatch.setattr(workload, "time", SimpleNamespace(monotonic=clock))
    work: Any = SimpleNamespace(
        measure=lambda: (measured.append(1), clock.advance(measure_s)),
        seconds={},
        units=dict,
        message_bytes=1,
        experiment=load_experiment(HOPPER),
        has_unknown_waits=False,
    )
    _sampled(work, 30)
    assert len(measured) == times
