"""Training of the scheduler: rewards by hand, learning on a toy workload, and a killed training that continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers.minionsrl.runs import read_run
from papers.minionsrl.training import SchedulerLearner, episode_of, rewards, train_on_runs
from runtime.errors import RunDirectoryError, RunError
from runtime.scaler.interfaces import RoundView
from runtime.scaler.minions_settings import MinionsSettings
from tests.papers.minionsrl.toy import ROUNDS, play
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


def test_a_real_run_is_the_episode_that_its_scheduler_saw(tmp_path: Path, one_thread: None) -> None:
    """The states and actions of a run's rows are the scaler's inputs and decisions."""
    learner = SchedulerLearner(2, 6)
    file = tmp_path / "a.safetensors"
    learner.saved([], PRICING).save(file)
    play(7, file, tmp_path / "run")
    run, policy = read_run(tmp_path / "run", PRICING), learner.policy
    episode = episode_of(run, actors_min=2, reference_s=10.0)
    scaler = MinionsSettings(actors_min=2, actors_max=6, scheduler=str(file)).make()
    for k, (state, finished) in enumerate(zip(episode.states, run.rows, strict=True), start=1):
        draw = policy.noise(np.random.default_rng((7, k)), 1)[0]
        action = policy.sample(policy.outputs(state), draw)
        view = RoundView(k, target_return=200.0, budget_usd=1.0, seed=7)
        assert scaler.decide(view).actor_count == 2 + action == finished.actor_count
        assert episode.actions[k - 1] == action
        scaler.observe(finished)
    assert episode.rewards.sum() == pytest.approx(
        -0.1 * run.seconds / 10.0 + 10.0 * ROUNDS / 200.0 - 1.0
    )


def trained(directory: Path, **options: Any) -> tuple[SchedulerLearner, dict[str, Any]]:
    learner = SchedulerLearner(2, 6, seed=3)
    arguments = {
        "play_run": play,
        "episodes": 3,
        "identity": {"seed": 3},
        "say": lambda line: None,
        **options,
    }
    return learner, train_on_runs(learner, PRICING, directory, **arguments)


def test_it_learns_the_known_best_schedule_of_a_toy_workload(
    tmp_path: Path, one_thread: None
) -> None:
    """Only time depends on the number of actors, and no run reaches its target, so the fewest are best."""
    trained(tmp_path, episodes=40)

    def mean_actors(number: int) -> float:
        rows = read_run(tmp_path / f"episode-{number:04d}", PRICING).rows
        return float(np.mean([row.actor_count for row in rows]))

    assert np.mean([mean_actors(number) for number in (1, 2, 3)]) > 3.6
    assert np.mean([mean_actors(number) for number in (38, 39, 40)]) < 3.3


def test_a_killed_training_goes_on_without_playing_again(tmp_path: Path, one_thread: None) -> None:
    whole, entry = trained(tmp_path / "whole")

    def killed(number: int, scheduler: Path, out: Path) -> None:
        if number == 3:
            raise KeyboardInterrupt
        play(number, scheduler, out)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", play_run=killed)
    again = []

    def noted(number: int, scheduler: Path, out: Path) -> None:
        again.append(number)
        play(number, scheduler, out)

    resumed, same = trained(tmp_path / "killed", play_run=noted)
    assert again == [3]
    assert resumed.saved([], PRICING).digest == whole.saved([], PRICING).digest
    assert same == entry
    assert (entry["episodes"], entry["reached"]) == (3, 0)
    assert entry["usd"] == pytest.approx(
        sum(
            read_run(tmp_path / "whole" / f"episode-000{number}", PRICING).spent_usd
            for number in (1, 2, 3)
        )
    )
    with pytest.raises(RunError, match="holds another training"):
        trained(tmp_path / "whole", identity={"seed": 4})


def test_an_unfinished_or_damaged_run_is_named(tmp_path: Path, one_thread: None) -> None:
    file, out = tmp_path / "a.safetensors", tmp_path / "run"
    SchedulerLearner(2, 6).saved([], PRICING).save(file)
    with pytest.raises(RunDirectoryError, match=f"{out} holds no finished run"):
        read_run(out, PRICING)
    play(1, file, out, stop_reason="interrupted")
    with pytest.raises(RunDirectoryError, match="stop_reason = interrupted"):
        read_run(out, PRICING)
    play(1, file, out)
    assert not read_run(out, PRICING).is_success
    rows = out / "rounds.jsonl"
    rows.write_text(rows.read_text().replace("{", "[", 1))
    with pytest.raises(RunDirectoryError, match=f"{out} holds no finished run"):
        read_run(out, PRICING)
    play(1, file, out, stop_reason="target_return")
    assert read_run(out, PRICING).is_success
