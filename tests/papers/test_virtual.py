"""Virtual time: learner functions end in the order of recorded durations, and a run repeats itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from papers.stellaris.virtual import Durations, VirtualFleet
from runtime.errors import ExperimentError
from runtime.fleet.interfaces import Invocation
from tests.end_to_end.test_crashes import finished_rounds, start
from tests.helpers import (
    SMALL_EXPERIMENT,
    events,
    overrides,
    results_only,
    rounds,
    train,
    wait_for,
)


def made(timeout_s: float = 1e9) -> VirtualFleet:
    def handler(event: Mapping[str, Any], context: object) -> Mapping[str, Any]:
        return {"inverse": 1 / event["lasts_s"]}

    return VirtualFleet(handler, lambda event: event["lasts_s"], timeout_s=timeout_s)


def begin(fleet: VirtualFleet, **lasts_s: float) -> None:
    fleet.start([Invocation(name, {"lasts_s": seconds}) for name, seconds in lasts_s.items()])


def ends(fleet: VirtualFleet, count: int) -> list[tuple[str, str, float]]:
    found = [outcome for _ in range(count) for outcome in fleet.wait(1e9)]
    return [(one.invocation_id, one.status, one.billed_s) for one in found]


def test_they_end_in_the_order_of_their_durations() -> None:
    """0.1 + 0.2 ends at the same time as 0.3, and the invocation that began first comes first."""
    fleet = made(timeout_s=5.0)
    begin(fleet, a=0.3, b=0.1)
    assert ends(fleet, 1) == [("b", "ok", 0.1)]
    begin(fleet, c=0.2, d=7.0, e=0.0)
    assert [one[:2] for one in ends(fleet, 4)] == [
        ("e", "error"),
        ("a", "ok"),
        ("c", "ok"),
        ("d", "timeout"),
    ]


def written(path: Path, **values: object) -> Path:
    found = {"start_s": [1.5], "gradient_s": {"32": [0.25, 0.5], "128": [2.0]}, **values}
    path.write_text(json.dumps(found))
    return path


def test_a_duration_depends_on_seed_update_and_job_only(tmp_path: Path) -> None:
    def event(job: int, samples: int = 32, update: int = 1) -> dict[str, Any]:
        learner = {"seed": 5}
        return {
            "learner": learner,
            "update": update,
            "slot": job % 2,
            "job": job,
            "indices": [0] * samples,
        }

    path = written(tmp_path / "durations.json")
    found = Durations.read(path)
    assert found.of(event(0, samples=500)) == 2.0, "the nearest recorded number of samples"
    drawn = [found.of(event(job)) for job in range(20)]
    assert set(drawn) == {0.25, 0.5}
    assert drawn[::-1] == [Durations.read(path).of(event(job)) for job in reversed(range(20))]
    first = [found.of(event(job, update=0)) for job in range(4)]
    assert [one > 1.5 for one in first] == [True, True, False, False], "a learner starts once"


def played(durations: Durations, learners: int, jobs: int) -> tuple[float, list[float]]:
    """Invokes an update's gradients as the updater does. Returns the time at the last end, and each one's seconds."""
    fleet = VirtualFleet(lambda event, _: event, durations.of, timeout_s=1e9)
    event = {"learner": {"seed": 5}, "update": 0, "indices": [0] * 32}
    free, begun, now_s, billed_s = set(range(learners)), dict[str, tuple[int, float]](), 0.0, []
    waiting = list(range(jobs))
    while waiting or begun:
        while waiting and free:
            job, slot = waiting.pop(0), min(free)
            free.remove(slot)
            begun[str(job)] = slot, now_s
            fleet.start([Invocation(str(job), {**event, "job": job, "slot": slot})])
        (ended,) = fleet.wait(0.0)
        slot, began_s = begun.pop(ended.invocation_id)
        now_s = began_s + ended.billed_s
        billed_s.append(ended.billed_s)
        free.add(slot)
    return now_s, billed_s


@pytest.mark.parametrize("learners", [1, 3])
def test_an_update_is_priced_with_the_seconds_that_its_gradients_took(
    tmp_path: Path, learners: int
) -> None:
    path = written(tmp_path / "durations.json")
    ended_s, billed_s = played(Durations.read(path), learners, 12)
    update_s, each_s = Durations.read(path).update_s(5, 0, 12, samples=32, learners=learners)
    assert update_s == pytest.approx(ended_s)
    assert sorted(each_s) == sorted(billed_s)


def test_a_file_without_durations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"start_s": [1]}')
    with pytest.raises(ExperimentError, match="cannot be read: .*; allowed: a file that papers"):
        Durations.read(tmp_path / "a.json")


def test_boosting_learner_functions_and_actors_train_together_and_again_after_kill_9(
    tmp_path: Path,
) -> None:
    """Stellaris' learners with Nitro's boosting and serverless actors in the same file."""
    written(tmp_path / "durations.json", gradient_s={"32": [0.02, 0.03, 0.07]}, start_s=[1.5, 2.5])
    experiment, whole, killed = (tmp_path / name for name in ("small.yaml", "whole", "killed"))
    experiment.write_text(SMALL_EXPERIMENT)
    arguments = overrides(
        learner__kind="papers.stellaris.virtual:VirtualSettings",
        learner__durations=tmp_path / "durations.json",
        stop__max_rounds=3,
        algorithm__minibatch_steps=32,
    )
    done = train(experiment, whole, *arguments)
    assert done.returncode == 0, done.stderr
    found = rounds(whole)
    assert any(row["convexity_ratio"] is not None for row in found)
    assert len({row["actor_count"] for row in found}) > 1, "boosted, and not"
    assert [row["gradients"] for row in found] == [row["env_steps"] // 32 * 2 for row in found]
    assert all(
        row["gradient_staleness_mean"] > 0.0 and row["truncated_fraction"] > 0.0 for row in found
    )
    assert found[0]["staleness_bound"] is None and found[-1]["staleness_bound"] >= 1

    process = start(experiment, killed, *arguments)
    wait_for(
        lambda: finished_rounds(killed) >= 2 and any((killed / ".updates").glob("*-gradient-2-*")),
        "an update",
    )
    process.kill()
    process.communicate()
    again = train(experiment, killed, "--resume", *arguments)
    assert again.returncode == 0, again.stderr
    assert events(killed, "run_started")[-1]["resumed_after_round"] == 2
    assert results_only(rounds(killed)) == results_only(found)
    assert (killed / "policy.safetensors").read_bytes() == (
        whole / "policy.safetensors"
    ).read_bytes()
    other = train(experiment, killed, "--resume", *arguments, *overrides(learner__truncation=2.0))
    assert other.returncode == 2
    assert "learner.truncation is 2.0 now, 1.0 in the run" in other.stderr
