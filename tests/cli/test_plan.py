"""``python -m runtime plan``: measured rounds, predictions from them, and its output and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.cli.main import main
from runtime.cli.plan import best_memory
from runtime.cli.plan_measuring import MeasuredRounds, measure
from runtime.cli.plan_prediction import (
    MeasuredWork,
    Prediction,
    memories,
    predict_all,
    seconds_here,
    ways,
    work_of,
)
from runtime.experiment.loading import load_experiment
from runtime.money.estimate import rounds_of
from runtime.money.prices import PRICES
from runtime.training.trial import try_environment
from tests.cases.simulators import COMPANION_MIB
from tests.helpers import ROOT

HOPPER = ROOT / "experiments" / "hopper-fixed.yaml"
CART = """\
environment: {id: CartPole-v1}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 32}
network: {hidden_sizes: [8]}
scaler: {kind: fixed, actors_fixed: 2}
actor: {fragment_steps: 32}
learner: {device: cpu, threads: 1}
budget: {usd: 0.000001}
stop: {max_rounds: 20}
"""
ROW = {
    "actor_cpu_s_mean": 0.0256,
    "actors_waited_s": 0.0,
    "actors_billed": 2,
    "replayed_steps": None,
    "round_s": 1.0,
    "collect_s": 0.5,
    "env_steps": 2048,
    "detect_s": None,
}
WORK = MeasuredWork(step_s=1e-3, wait_s=0.0, sample_s=1e-4, detect_s=0.0, make_s=0.4, actor_mib=80)
Predict = Callable[..., dict[str, Prediction]]


@pytest.fixture(scope="module")
def predicted() -> Predict:
    """Predicts ways, or memory sizes, of the fixed Hopper with changes, by name."""
    environment = try_environment("Hopper-v5", "none")

    def predict(
        *changes: str, of_memories: bool = False, replays: bool = False, **work: float
    ) -> dict[str, Prediction]:
        base = load_experiment(HOPPER, ["cache.kind=none", "stop.max_rounds=100", *changes])
        tried = environment
        if replays:
            tried = replace(environment, cannot_save_reason="it has no state", replay="reset")
        deployed, measured = base.resolved(is_deployed=True), MeasuredWork(**{**vars(WORK), **work})
        chosen = memories(deployed, measured.actor_mib) if of_memories else ways(deployed)
        found = predict_all(base, chosen, measured, tried, PRICES)
        return {one.name: one for one in found}

    return predict


@pytest.mark.parametrize(
    ("limits", "rounds", "actors"),
    [
        (["stop.max_steps=2048"], 1, 8),
        (["stop.max_steps=2304"], 2, 4.5),
        (["stop.max_steps=null"], 489, 3906 / 489),
        (["stop.max_steps=null", "stop.max_rounds=3"], 3, 8),
        (["stop.max_steps=600000", "stop.max_rounds=3"], 3, 8),
        (["stop.max_steps=2048", "stop.max_rounds=3"], 1, 8),
    ],
)
def test_a_run_ends_at_the_limit_that_comes_first(
    limits: list[str], rounds: int, actors: float
) -> None:
    found = rounds_of(load_experiment(HOPPER, limits).resolved())
    assert found == (rounds, pytest.approx(actors))


def test_the_file_comes_first_and_all_ways_have_its_batch(predicted: Predict) -> None:
    assert list(predicted()) == [
        "the file as it is",
        "all on one c7i.large",
        "functions: 32 actors x 64 steps",
        "functions: 64 actors x 32 steps",
    ]
    with_cache = predicted("cache.kind=redis")
    without = with_cache["the file without a cache"]
    assert with_cache["the file as it is"].start_s - without.start_s == pytest.approx(210.0)
    assert without.usd < with_cache["the file as it is"].usd
    # Its messages are too large without one.
    assert "the file without a cache" not in predicted(
        "cache.kind=redis", "actor.fragment_steps=65536"
    )


def test_time_and_dollars_follow_from_the_measured_seconds(predicted: Predict) -> None:
    """Against the sums written out: 100 rounds of 8 actors of 256 steps."""
    own = predicted(wait_s=2e-3)["the file as it is"]
    share = 1024 / 1769
    actor_s = 256 * (1e-3 / share + 2e-3)
    assert own.actor_s == pytest.approx(actor_s)
    trained_s = 0.4 / share + 100 * (0.02 + actor_s + 8 * 256 * 1e-4)
    assert own.seconds - own.start_s == pytest.approx(trained_s)
    second_usd = PRICES.functions["x86_64"].on_demand_usd
    assert own.actor_usd == pytest.approx(actor_s * second_usd + PRICES.request_usd, rel=0.01)
    hourly = PRICES.instance_hour_usd["c7i.large"]
    least_usd = (own.seconds - 90.0) / 3600 * hourly + 800 * own.actor_usd
    assert least_usd < own.usd < 1.3 * least_usd
    # On the instance, its two vCPUs play one actor after the other.
    alone = predicted(wait_s=2e-3)["all on one c7i.large"]
    assert alone.actor_usd == 0.0
    assert alone.seconds - alone.start_s == pytest.approx(100 * (4 * 256 * 3e-3 + 8 * 256 * 1e-4))
    here = load_experiment(HOPPER, ["fleet.processes=3", "stop.max_rounds=100"]).resolved()
    seconds = seconds_here(here, replace(WORK, wait_s=2e-3))
    assert seconds == pytest.approx(100 * (3 * 256 * 3e-3 + 8 * 256 * 1e-4))
    slow = predicted(wait_s=2e-3, detect_s=60.0)["the file as it is"]
    assert slow.seconds - own.seconds == pytest.approx(100 * (60 - 0.02 - actor_s))


def test_functions_replay_what_fragments_cut_and_a_measured_step_is_one_of_all_played(
    predicted: Predict,
) -> None:
    """Episodes have 1,000 steps: fragments of 256 begin at multiples of 8, those of 64 also, and those of 32 too."""
    saved, replayed = predicted(), predicted(replays=True)
    for name, steps in {"the file as it is": 256, "functions: 64 actors x 32 steps": 32}.items():
        factor = (steps + (1000 - 8) / 2) / steps
        assert replayed[name].actor_s == pytest.approx(factor * saved[name].actor_s)
    on_instance = "all on one c7i.large"
    assert replayed[on_instance].actor_s == saved[on_instance].actor_s
    rows: list[Any] = [
        SimpleNamespace(
            **{**ROW, "actor_cpu_s_mean": 0.256 + 1e-3 * count, "replayed_steps": 2 * count}
        )
        for count in (0, 80, 500)
    ]
    assert work_of(MeasuredRounds(rows, 80), 256, 0.4).step_s == pytest.approx(1e-3)


def test_warm_actors_cost_more_and_start_at_once(predicted: Predict) -> None:
    warm = predicted("actor.provisioned=8")["the file as it is"]
    cold = predicted()["the file as it is"]
    # Four more are kept for a block of five minutes, and during the start.
    block_usd = 4 * 300 * PRICES.functions["x86_64"].provisioned_capacity_usd
    half = predicted("actor.provisioned=4")["the file as it is"]
    assert warm.usd - half.usd > 1.5 * block_usd and half.usd > cold.usd
    assert (cold.seconds - cold.start_s) - (warm.seconds - warm.start_s) == pytest.approx(
        0.4 / (1024 / 1769)
    )


@pytest.mark.parametrize(
    ("work", "best"),
    [
        ({"step_s": 1e-5}, 1024),
        ({}, 1769),
        ({"step_s": 1e-7, "wait_s": 2e-3}, 512),
        ({"actor_mib": 1025}, 1769),
    ],
)
def test_the_best_memory_holds_an_actor_and_gives_the_cheapest_run(
    predicted: Predict, work: dict[str, float], best: int
) -> None:
    found = predicted(of_memories=True, **work)
    sizes = [one.changes["actor"]["memory_mib"] for one in found.values()]
    assert sizes == [size for size in (512, 884, 1024, 1769) if size >= work.get("actor_mib", 0)]
    chosen, reason = best_memory(list(found.values()), 1024)
    assert (chosen, "the file's" in reason) == (best, best == 1024)
    times = [one.actor_s for one in found.values()]
    assert times == sorted(times, reverse=True)
    assert "3,000 MiB" in predicted("actor.memory_mib=3000", of_memories=True)


def run(capsys: Any, *arguments: str, code: int = 0) -> str:
    """Returns a command's output in one line; its errors if it fails."""
    assert main(["plan", *arguments]) == code
    printed = capsys.readouterr()
    return " ".join((printed.err if code else printed.out).split())


def test_rounds_run_here_and_the_best_memory_is_written(tmp_path: Path, capsys: Any) -> None:
    file, written = tmp_path / "cart.yaml", tmp_path / "planned.yaml"
    file.write_text(CART)
    given = [str(file), "--set", "seed=7", "--write", str(written)]
    output = run(capsys, *given)
    assert output.count(" of at most 6: ") == 6
    assert "20 rounds of 2 actors x 32 steps" in output
    assert "free this machine" in output
    assert "a run ends at budget.usd = $1e-06, before it is done" in output
    change = output.partition("--set '")[2].partition("'")[0]
    experiment = load_experiment(written)
    assert change == f"actor.memory_mib={experiment.actor.memory_mib}"
    assert load_experiment(file, ["seed=7", change]).model_dump() == experiment.model_dump()
    assert "exists already" in run(capsys, *given, code=2)


def test_a_measurement_that_takes_long_ends_after_the_first_round_that_counts(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("runtime.cli.plan_measuring.PATIENCE_S", 0.0)
    (tmp_path / "cart.yaml").write_text(CART)
    environment = "environment={id: 'tests.cases.simulators:make', kwargs: {kind: Companion}}"
    changes = [environment, "budget.usd=1", "scaler.actors_fixed=1", "scaler.actors_min=1"]
    experiment = load_experiment(tmp_path / "cart.yaml", changes).resolved()
    measured = measure(experiment, lambda _: None)
    assert [row.round_index for row in measured.rows] == [2]
    assert 40 < measured.actor_mib - COMPANION_MIB < 400


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--write", "{}/none/a.yaml"], "a folder that is there"),
        (["--set", "fleet.kind=local", "--write", "{}/a.yaml"], "has no actor functions"),
        (
            ["--set", "algorithm.kind=impala"],
            "asynchronous cannot be predicted; allowed: synchronous",
        ),
        (["--set", "learner.kind=function"], "function cannot be predicted; allowed: instance"),
        (
            ["--set", "learner.instance_types=[g5.xlarge]", "--set", "learner.device=cpu"],
            "no GPU to measure; allowed here: types without one, such as --set learner.instance_types=[c7i.large]",
        ),
    ],
)
def test_what_cannot_be_planned_or_written_is_told_in_a_line(
    tmp_path: Path, capsys: Any, arguments: list[str], reason: str
) -> None:
    words = [str(HOPPER), *(one.format(tmp_path) for one in arguments)]
    assert reason in run(capsys, *words, code=2)


@pytest.mark.parametrize(
    ("waited_s", "words", "best"),
    [
        (0.0, ["a step 100 us, ", "all on one g5.xlarge"], 1024),
        (2.56, ["a step 100 us of CPU and 5 ms of waiting, "], 512),
        (None, ["and an unknown time of waiting, "], 1024),
    ],
)
def test_waits_are_told_and_a_gpu_that_was_measured_is_predicted(
    monkeypatch: Any, capsys: Any, waited_s: float | None, words: list[str], best: int
) -> None:
    row: Any = SimpleNamespace(**{**ROW, "actors_waited_s": waited_s})
    monkeypatch.setattr("runtime.cli.plan_measuring.measure", lambda *_: MeasuredRounds([row], 80))
    monkeypatch.setattr("runtime.learner.device_of", lambda _: "cuda")
    output = run(capsys, str(HOPPER), "--set", "learner.instance_types=[g5.xlarge]")
    assert [word for word in words if word not in output] == []
    assert f"memory_mib={best}" in output
