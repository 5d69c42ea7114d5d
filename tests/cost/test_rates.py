"""The modelled bill counts work: the same history costs the same on any machine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.work_rates import shipped
from lambda_actor.environments import make_environment
from lambda_actor.trial import TriedEnvironment
from runtime.config.loading import load_experiment
from runtime.cost.rates import (
    BUCKET_REQUEST_S,
    GRADIENT_EXTRA_S,
    LEARNER_INIT_S,
    MEASURED,
    POLICY_SHARE,
    UNITS,
    FunctionTimes,
    GradientTimes,
    ModelledTimes,
    Rates,
    lambda_speed,
    make_rates,
    make_times,
    table,
    tabled,
)
from runtime.errors import ExperimentError, RunDirectoryError
from runtime.fleet.counting import CountingFleet, CountingLearner
from runtime.learner.updater import InPlaceUpdater
from runtime.ports.fleet import Invocation, Outcome
from runtime.records.events import EventLog
from runtime.sampling.serverless import ServerlessSampler
from runtime.training.assembly import Equipment, make_round_loop
from runtime.training.books import Books
from runtime.training.callbacks import Callbacks
from runtime.training.preflight import preflight
from runtime.training.saving import Saving
from runtime.training.timing import Timing
from tests.fakes import (
    CRASHED,
    OK,
    SPACES,
    FakeCache,
    FakeDetector,
    FakeEvaluator,
    FakeFleet,
    FakeLearner,
    ManualClock,
)
from tests.helpers import ROOT
from tests.sampling.parts import EVENT, make_experiment, make_meter

KNOWN = {
    "init_s": 0.5,
    "invocation_s": 0.01,
    "step_s": 0.25,
    "evaluated_step_s": 0.125,
    "gradient_step_s": 0.0625,
    "sample_s": 0.03125,
    "product_sample_s": 0.015625,
}


def rates(path: Path, units: dict[str, float] = KNOWN) -> Rates:
    return Rates("a test", units, path / "rates.json")


def test_the_table_covers_all_shipped_experiments_and_says_whence_it_is(
    monkeypatch: pytest.MonkeyPatch,
):
    def made(
        environment_id: str,
        preprocessing: str,
        options: dict[str, Any],
        *,
        fragment_steps: int,
        is_together: bool,
    ) -> Any:
        environment = make_environment(environment_id, preprocessing, options)
        return TriedEnvironment(
            environment_id,
            environment.spaces,
            environment.preprocessing,
            environment.episode_steps_max,
            environment.can_save_episode,
            environment.cannot_save_reason,
            spanning_wrapper="",
            plain_because="",
            replay="reset",
        )

    # All trials together take a minute and change no rate.
    monkeypatch.setattr("runtime.training.preflight.try_environment", made)
    missing, looked_at = [], set()
    for path in shipped():
        experiment = load_experiment(path).resolved()
        if (kinds := (experiment.environment.id, experiment.algorithm.kind)) in looked_at:
            continue
        looked_at.add(kinds)
        units = tabled(preflight(experiment)[1])
        if units.keys() != UNITS.keys() or not all(0 <= seconds < 1 for seconds in units.values()):
            missing.append(path.name)
    assert missing == [], "python benchmarks/work_rates.py makes them"
    assert {"as_of", "commit", "machine", "workloads"} == set(table())


def bill(tmp_path: Path, slowness: float, units: dict[str, float]) -> list[dict[str, Any]]:
    """Returns the rows of a run on a machine ``slowness`` times as slow as another."""
    tmp_path.mkdir()
    experiment = make_experiment(
        evaluation={"every_rounds": 2}, learner={"instance_types": ["c7g.large"]}
    )
    clock, cache, meter = ManualClock(), FakeCache(), make_meter(experiment)

    def script(event: Any, nth: int) -> Any:
        play = CRASHED if event["slot"] == 1 and event["round_index"] == 3 and nth == 0 else OK
        return replace(play, billed_s=slowness * play.billed_s, init_s=slowness * play.init_s)

    found = rates(tmp_path, units)
    fleet = CountingFleet(
        FakeFleet(cache, clock, script), found, fragment_steps=4, timeout_s=60, speed=0.5
    )
    rows: list[Any] = []
    make_round_loop(
        experiment,
        Equipment(
            updater=InPlaceUpdater(FakeLearner(clock, slowness)),
            detector=FakeDetector(clock, measure_s=slowness),
            sampler=ServerlessSampler(fleet, cache, meter, clock=clock),
            evaluator=FakeEvaluator(clock, evaluate_s=slowness),
            actor_event=EVENT,
            spaces=SPACES,
        ),
        books=Books(meter, EventLog(tmp_path / "events.jsonl", lambda: "now"), lambda: None),
        saving=Saving(lambda row, *_: rows.append(vars(row))),
        callbacks=Callbacks([], experiment),
        timing=Timing(ModelledTimes(found, experiment, "c7g.large"), clock=clock),
    ).run()
    return rows


def test_the_same_history_costs_the_same_to_the_digit_at_any_speed(tmp_path: Path):
    fast, slow = (
        bill(tmp_path / name, slowness, KNOWN) for name, slowness in (("a", 1.0), ("b", 7.3))
    )
    for quick, sluggish in zip(fast, slow, strict=True):
        for key in quick:
            if key.endswith("_usd") or key.startswith(("modelled_", "actor_billed_")):
                assert quick[key] == sluggish[key], key
        assert sluggish["learn_s"] == pytest.approx(7.3 * quick["learn_s"])


def test_work_is_counted_in_gradient_steps_samples_products_and_steps(tmp_path: Path):
    experiment = make_experiment(algorithm={"epochs": 3, "minibatch_steps": 64})
    times = ModelledTimes(rates(tmp_path), experiment, "c7g.large")
    assert times.update_s(130, 99.0) == pytest.approx((3 * 3 * 0.0625 + 3 * 130 * 0.03125) / 0.85)
    assert times.detect_s(20, 100, 99.0) == pytest.approx(2000 * 0.015625 / 0.85)
    assert times.evaluate_s(1000, 99.0) == pytest.approx(125 / 0.85)
    assert lambda_speed(885) == pytest.approx(0.68 * 885 / 1769)


@pytest.mark.parametrize(("kind", "products"), [("nitro", 40), ("fixed", 0)])
def test_of_a_measurement_only_what_the_scaler_reads_is_expected(
    tmp_path: Path, kind: str, products: int
):
    times = ModelledTimes(rates(tmp_path), make_experiment(scaler={"kind": kind}), "c7g.large")
    assert times.expected_s()["detect_s"] == pytest.approx(products * 1024 * 0.015625 / 0.85)


def test_an_invocation_is_billed_by_its_steps_and_one_that_brought_nothing_as_a_whole_fragment(
    tmp_path: Path,
):
    class Ended:
        concurrency = 1

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [
                Outcome("a", "ok", {"env_steps": 2}, billed_s=9.0),
                Outcome("b", "crashed", billed_s=9.0),
                Outcome("c", "timeout", billed_s=9.0),
                Outcome("d", "abandoned", was_started=False),
            ]

    fleet = CountingFleet(Ended(), rates(tmp_path), fragment_steps=8, timeout_s=3.0, speed=0.5)  # type: ignore[arg-type]
    assert [(one.billed_s, one.init_s) for one in fleet.wait(0.0)] == [
        (1.02, 1.0),
        (3.0, 1.0),
        (3.0, 1.0),
        (0.0, 0.0),
    ]


def test_a_replay_is_billed_whoever_goes_on_and_only_what_was_replayed_here_tells_how_long_a_step_takes(
    tmp_path: Path,
):
    class Ended:
        concurrency = 1

        def start(self, invocations: list[Invocation]) -> None:
            """Starts nothing."""

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [
                Outcome("a", "ok", {"env_steps": 4, "replayed_steps": 0}, billed_s=9.0, cpu_s=1.0)
            ]

    found = rates(tmp_path, {})
    fleet = CountingFleet(Ended(), found, fragment_steps=4, timeout_s=60, speed=0.5)  # type: ignore[arg-type]
    fleet.start([Invocation("a", {}, replayed_steps=12)])
    assert [one.billed_s for one in fleet.wait(0.0)] == [16 * 0.25 / 0.5]
    assert found.units["step_s"] == 0.25


def test_a_learner_function_is_billed_for_what_it_trained_on_and_the_loop_waits_for_its_starts(
    tmp_path: Path,
):
    class Ended:
        concurrency = 1

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [
                Outcome("a", "crashed", billed_s=7.0),
                Outcome("b", "ok", {"samples": 130}, billed_s=9.0),
                Outcome("d", "ok", {"samples": 0}, billed_s=0.5),
            ]

    experiment = make_experiment(
        algorithm={"epochs": 3, "minibatch_steps": 64},
        learner={"kind": "function", "function_memory_mib": 885},
    )
    times = make_times(rates(tmp_path), experiment)
    assert isinstance(times, FunctionTimes)
    trained_s = (3 * 3 * 0.0625 + 3 * 130 * 0.03125) / (0.68 * 885 / 1769) + 2 * BUCKET_REQUEST_S
    fleet = CountingLearner(Ended(), times, timeout_s=60.0)  # type: ignore[arg-type]
    init_s = LEARNER_INIT_S / (0.68 * 885 / 1769)
    assert [one.billed_s for one in fleet.wait(0.0)] == pytest.approx(
        [7.0 + init_s, trained_s + init_s, 0.5]
    )
    waited_s = 7.0 + 0.5 + 2 * init_s
    assert times.update_s(130, 99.0) == pytest.approx(waited_s + trained_s + 2 * BUCKET_REQUEST_S)
    assert times.update_s(130, 99.0) == pytest.approx(trained_s + 2 * BUCKET_REQUEST_S), (
        "waited for once"
    )
    assert times.evaluate_s(1000, 99.0) == pytest.approx(125 / 0.68), "the loop's own"
    assert times.detect_s(20, 100, 99.0) == pytest.approx(2000 * 0.015625 / 0.68)


@pytest.mark.parametrize("samples", [-(10**18), 0, 1.5, math.nan, "130", None, True])
def test_a_learner_function_that_does_not_say_on_how_many_samples_is_billed_as_measured(
    tmp_path: Path, samples: Any
):
    class Ended:
        concurrency = 1

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [Outcome("a", "ok", {"samples": samples}, billed_s=7.0)]

    times = make_times(rates(tmp_path), make_experiment(learner={"kind": "function"}))
    assert isinstance(times, FunctionTimes)
    (outcome,) = CountingLearner(Ended(), times, timeout_s=60.0).wait(0.0)  # type: ignore[arg-type]
    assert 7.0 < outcome.billed_s < 17.0, "with a start-up"


def test_gradients_are_billed_one_by_one_and_the_loop_waits_for_the_busiest_learner_or_for_itself(
    tmp_path: Path,
):
    class Ended:
        concurrency = 2

        def start(self, invocations: Sequence[Invocation]) -> None: ...

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [
                Outcome(
                    f"{job}",
                    "ok" if job else "crashed",
                    {"samples": 64} if job else None,
                    billed_s=7.0,
                )
                for job in range(3)
            ]

    experiment = make_experiment(
        algorithm={"epochs": 3, "minibatch_steps": 64},
        learner={
            "kind": "stellaris",
            "function_memory_mib": 885,
            "learners": 2,
        },
    )
    times = make_times(rates(tmp_path), experiment)
    assert isinstance(times, GradientTimes)
    speed, handle_s = 0.68 * 885 / 1769, 2 * BUCKET_REQUEST_S
    gradient_s = (
        0.0625 + GRADIENT_EXTRA_S + 64 * (1 + 2 * POLICY_SHARE) * 0.03125
    ) / speed + 2 * BUCKET_REQUEST_S
    init_s = LEARNER_INIT_S / speed
    fleet = CountingLearner(Ended(), times, timeout_s=60.0)  # type: ignore[arg-type]
    fleet.start(
        [Invocation(f"{job}", {"slot": job % 2, "published_versions": [1, 2]}) for job in range(3)]
    )
    assert [one.billed_s for one in fleet.wait(0.0)] == pytest.approx(
        [7.0 + init_s, gradient_s + init_s, gradient_s + init_s]
    ), "failed actors start again"
    assert times.update_s(192, 99.0) == pytest.approx(7.0 + gradient_s + 2 * init_s + 3 * handle_s)
    assert times.update_s(192, 99.0) == pytest.approx(5 * (gradient_s + handle_s) + handle_s), (
        "nine, expected"
    )
    times.took(0.01, 0)
    times.took(0.01, 1)
    assert times.update_s(192, 99.0) == pytest.approx(3 * handle_s), (
        "the loop takes them in one by one"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            ["kind=function", "function_memory_mib=512", "function_timeout_s=2"],
            r"timeout_s = 2 is .* on 8,192 samples .* 512 MiB, 3 s; allowed: 3 to",
        ),
        (
            ["kind=stellaris", "update_timeout_s=60"],
            r"update_timeout_s = 60 is .* the 320 gradients of an update on 8,192 "
            r"samples .* 65 s; allowed: 65 to 86400",
        ),
    ],
)
def test_a_learner_function_without_the_time_for_an_update_is_refused_before_it_starts(
    changes: list[str], told: str
):
    experiment = load_experiment(
        ROOT / "experiments" / "hopper.yaml", [f"learner.{one}" for one in changes]
    )
    with pytest.raises(ExperimentError, match=told):
        preflight(experiment.resolved())


def test_an_invocation_is_billed_for_no_more_than_its_own_limit(tmp_path: Path):
    cache = FakeCache()
    fleet = CountingFleet(
        FakeFleet(cache, ManualClock(), lambda event, nth: CRASHED),
        rates(tmp_path),
        fragment_steps=8,
        timeout_s=3.0,
        speed=0.5,
    )
    fleet.start(
        [
            Invocation(name, {"round_index": 1, "slot": 0}, limit_s)
            for name, limit_s in (("a", 0.25), ("b", 60.0))
        ]
    )
    assert {one.invocation_id: one.billed_s for one in fleet.wait(0.0)} == {"a": 0.25, "b": 3.0}


def test_what_the_table_lacks_is_measured_once_and_kept_with_the_run(tmp_path: Path):
    path = tmp_path / "rates.json"
    experiment = make_experiment(algorithm={"epochs": 1})
    first = make_rates(experiment, path)
    assert first.source == MEASURED
    assert ModelledTimes(first, experiment, "c7i.large").update_s(100, 5.0) == pytest.approx(5.0)
    resumed = ModelledTimes(make_rates(experiment, path), experiment, "c7i.large")
    assert resumed.update_s(200, 77.0) == pytest.approx(10.0)
    assert json.loads(path.read_bytes()) == {"source": MEASURED, "units": {"sample_s": 0.05}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"source": 1, "units": {}}',
        '{"source": "a", "units": {"step_s": -1}}',
        '{"source": "a", "units": {"hours": 1}}',
        '{"source": "a", "units": {"step_s": 1e999}}',
        '{"source": "a", "units": {"step_s": 1%s}}' % ("0" * 400),
    ],
)
def test_a_runs_rates_that_cannot_be_used_are_refused(tmp_path: Path, text: str):
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"rates\.json does not hold the rates of a bill"):
        rates(tmp_path)


def test_a_steps_seconds_are_of_the_first_fragment_that_made_no_environment(tmp_path: Path):
    class Ended:
        concurrency = 1

        def wait(self, timeout_s: float) -> list[Outcome]:
            return [
                Outcome(
                    str(cpu_s),
                    "ok",
                    {"env_steps": 4},
                    billed_s=9.0,
                    init_s=5.0,
                    cpu_s=cpu_s,
                    init_cpu_s=2.0,
                )
                for cpu_s in (0.0, 1.0, 3.0)
            ]

    fleet = CountingFleet(Ended(), rates(tmp_path, {}), fragment_steps=4, timeout_s=60, speed=0.5)  # type: ignore[arg-type]
    assert [(one.billed_s, one.init_s) for one in fleet.wait(0.0)] == [
        (9.0, 5.0),
        (2.0, 4.0),
        (2.0, 4.0),
    ]


class Waited:
    """A fleet whose first environment has waited for so long."""

    concurrency = 1

    def __init__(self, *waited_s: float | None) -> None:
        self._waited_s = waited_s

    def wait(self, timeout_s: float) -> list[Outcome]:
        return [
            Outcome("", "ok", {"env_steps": 4}, billed_s=9.0, cpu_s=1.0, waited_s=one)
            for one in self._waited_s
        ]


def billed_waits(
    found: Rates, *waited_s: float | None, timeout_s: float = 60.0, events: Any = None
) -> list[float]:
    fleet = CountingFleet(
        Waited(*waited_s),
        found,
        fragment_steps=4,  # type: ignore[arg-type]
        timeout_s=timeout_s,
        speed=0.5,
        events=events,
    )
    return [one.billed_s for one in fleet.wait(0.0)]


def test_waits_of_an_environment_that_is_measured_here_are_billed_at_any_speed_and_measured_once(
    tmp_path: Path,
):
    assert billed_waits(rates(tmp_path, {}), 8.0, 99.0) == [2.0 + 8.0, 2.0 + 8.0]
    resumed = rates(tmp_path, {})
    assert resumed.units["wait_s"] == 2.0
    assert billed_waits(resumed, 0.0) == [10.0], "kept with the run"
    assert billed_waits(resumed, 0.0, timeout_s=7.0) == [7.0]
    (tmp_path / "quick").mkdir()
    assert billed_waits(rates(tmp_path / "quick", {}), 0.0, 99.0) == [2.0, 2.0], (
        "measured with the step"
    )


def test_an_environment_of_the_table_has_the_bill_that_it_has_however_long_it_waited(
    tmp_path: Path,
):
    found, log = rates(tmp_path), EventLog(tmp_path / "events.jsonl", lambda: "now")
    assert billed_waits(found, 8.0, None, 0.0, events=log) == [(0.01 + 4 * 0.25) / 0.5] * 3
    assert found.units == KNOWN
    assert not (tmp_path / "events.jsonl").exists()


def test_waits_that_nobody_can_tell_are_left_out_and_told_of_once(tmp_path: Path):
    found, log = rates(tmp_path, {}), EventLog(tmp_path / "events.jsonl", lambda: "now")
    assert billed_waits(found, None, None, 8.0, events=log) == [2.0, 2.0, 2.0]
    assert [
        json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()
    ] == ["waits_unknown"]


def test_an_evaluation_waits_as_actors_do(tmp_path: Path):
    times = ModelledTimes(rates(tmp_path, {**KNOWN, "wait_s": 0.5}), make_experiment(), "c7g.large")
    assert times.evaluate_s(1000, 99.0) == pytest.approx(125 / 0.85 + 500)
