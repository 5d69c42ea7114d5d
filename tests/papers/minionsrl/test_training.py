"""Training of the scheduler: rewards by hand, learning on a toy workload, and a killed training that continues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers.minionsrl.scheduler.recordings import read_recording
from papers.minionsrl.scheduler.showing import comparison_lines
from papers.minionsrl.scheduler.training import (
    SchedulerLearner,
    compared,
    episode_of,
    rewards,
    train_on_runs,
    train_on_surrogate,
)
from runtime.errors import RunError
from runtime.scaler.interfaces import RoundView
from runtime.scaler.minions_settings import MinionsSettings
from tests.papers.minionsrl.workloads import make_surrogate, record, write
from tests.scaler.schedulers import PRICING


def test_rewards_by_hand() -> None:
    """β = 0.1; T = 50 s; the shortfall from J is in units of J, and counts in the last round of a failure."""
    assert rewards([5.0, 10.0], [0.2, 0.6], is_success=True, reference_s=50.0) == pytest.approx(
        [-0.01, -0.02]
    )
    assert rewards([5.0, 10.0], [0.8, 0.6], is_success=False, reference_s=50.0) == pytest.approx(
        [-0.01, -0.22]
    )
    assert rewards([5.0], [1.4], is_success=False, reference_s=50.0) == pytest.approx([-0.01])


def test_it_learns_the_known_best_schedule_of_a_toy_workload(one_thread: None) -> None:
    """Only time depends on the number of actors, and no run reaches its target, so the fewest are best."""
    toy = make_surrogate(
        coefficients={
            "return_gain": [0, 0],
            "round_s": [0.5, 0.0, 0.0, 5.0],
            "learner_s": [0.0, 0.0],
            "usd": [0.001, 0.0, 0.0],
        },
        noise={"return_gain": [0.001], "round_s": [0.0]},
        reference_s=60.0,
    )
    learner = SchedulerLearner(
        toy.workload["actors_min"],
        toy.workload["actors_max"],
        learning_rate=0.001,
        minibatch_rounds=4,
        seed=2,
    )
    entry = train_on_surrogate(learner, toy, episodes=40, seed=2, say=lambda line: None)
    found = compared(toy, learner.policy, episodes=10, seed=5)
    means = {
        name: np.mean([one.rewards.sum() for one in episodes]) for name, episodes in found.items()
    }
    ideal, random, mine = (
        means[name] for name in ("fixed at 2", "uniformly random", "scheduler, sampled")
    )
    assert mine > random + 0.3 * (ideal - random)
    assert entry["usd"] > entry["recording_usd"] == 0.5
    lines = list(comparison_lines(found, actors_min=2))
    assert "does not beat the best other rule, fixed at 2" in lines[-1]


def test_a_real_run_is_the_episode_that_its_scheduler_saw(tmp_path: Path, one_thread: None) -> None:
    """The states and actions of a run's rows are the scaler's inputs and decisions."""
    learner = SchedulerLearner(2, 6)
    learner.saved([], PRICING).save(tmp_path / "a.safetensors")
    scaler = MinionsSettings(
        actors_min=2, actors_max=6, draws_seed=7, scheduler=str(tmp_path / "a.safetensors")
    ).make()
    run, policy = record(make_surrogate(), lambda run, _: 4), learner.policy
    run = replace(run, priced=[PRICING.price(one) for one in run.rows])
    episode = episode_of(run, actors_min=2, reference_s=10.0)
    for k, (state, one) in enumerate(zip(episode.states, run.rows, strict=True), start=1):
        draw = policy.noise(np.random.default_rng((7, k)), 1)[0]
        wanted = scaler.decide(RoundView(k, target_return=200.0, budget_usd=1.0)).actor_count
        assert wanted == 2 + int(policy.sample(policy.outputs(state), draw))
        scaler.observe(one)
    assert set(episode.actions) == {2}


class Runs:
    """Plays toy runs with a given scheduler, as the engine would; fails on demand."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.played: list[int] = []
        self._fails_at = fails_at

    def __call__(self, number: int, scheduler: Path, out: Path) -> None:
        if number == self._fails_at:
            raise KeyboardInterrupt
        self.played.append(number)
        scaler = MinionsSettings(
            actors_min=2, actors_max=6, draws_seed=number, scheduler=str(scheduler)
        ).make()
        write(
            record(
                make_surrogate(),
                lambda run, _: (
                    scaler.decide(
                        RoundView(run.round_index, target_return=200.0, budget_usd=1.0)
                    ).actor_count
                ),
                number,
            ),
            out,
        )


def train(directory: Path, runs: Runs, **options: Any) -> tuple[SchedulerLearner, dict[str, Any]]:
    learner = SchedulerLearner(2, 6, seed=3)
    return learner, train_on_runs(
        learner,
        PRICING,
        directory,
        runs,
        **{
            "episodes": 3,
            "phase": "trained on real runs",
            "identity": {"seed": 3},
            "say": lambda line: None,
            **options,
        },
    )


def test_a_killed_training_goes_on_without_playing_again(tmp_path: Path, one_thread: None) -> None:
    whole, entry = train(tmp_path / "whole", Runs())
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", Runs(fails_at=3))
    again = Runs()
    resumed, same = train(tmp_path / "killed", again)
    assert again.played == [3]
    assert resumed.saved([], PRICING).digest == whole.saved([], PRICING).digest
    assert same == entry
    assert entry["usd"] == pytest.approx(
        sum(
            read_recording(tmp_path / "whole" / f"episode-000{number}", PRICING).spent_usd
            for number in (1, 2, 3)
        )
    )
    with pytest.raises(RunError, match="holds another training"):
        train(tmp_path / "whole", Runs(), identity={"seed": 4})
