"""Any experiment file with any environment and algorithm: real environments, actors, server and learner."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.policy import Policy
from runtime.experiment.loading import load_experiment
from runtime.experiment.schema import Experiment
from runtime.records.policy_file import read_policy
from runtime.show.display import RunDisplay
from runtime.training.backends import make_backend
from runtime.training.run import train
from tests.helpers import ROOT, events, overrides, rounds, summary

SMALL = {
    "actor__fragment_steps": 16,
    "actor__timeout_s": 30,
    "scaler__kind": "nitro",
    "scaler__actors_min": 2,
    "scaler__actors_max": 3,
    "actor__provisioned": 0,
    "detector__subset_size": 32,
    "detector__lanczos_steps": 4,
    "stop__max_rounds": 2,
    "stop__max_steps": "null",
    "evaluation__every_rounds": 0,
    "fleet__processes": 2,
    "budget__usd": 5.0,
    "learner__device": "cpu",
}


def train_here(file: str, out: Path, **settings: Any) -> Experiment:
    """Trains an experiment file with these settings in this process; returns the resolved experiment."""
    values = [word for word in overrides(**(SMALL | settings)) if word != "--set"]
    experiment = load_experiment(ROOT / "experiments" / file, values).resolved()
    shown = io.StringIO()
    result = train(
        experiment,
        out,
        backend=make_backend(experiment),
        resume=False,
        display=RunDisplay(experiment, shown),
        name="workload",
    )
    assert result.exit_code == 0, shown.getvalue()
    return load_experiment(out / "config.yaml")


def test_how_an_environment_is_made_reaches_actors_and_evaluations(tmp_path: Path) -> None:
    """The environment observes parts and makes several choices. Five steps pay at most one half, here and in
    subprocesses.
    """
    out = tmp_path / "out"
    train_here(
        "hopper.yaml",
        out,
        environment__id="tests.environments:make_locks",
        environment__max_episode_steps=5,
        environment__wrappers="[{gymnasium.wrappers:ClipReward: {max_reward: 0.5}}]",
        network__hidden_sizes="[16, 8]",
        network__activation="relu",
        evaluation__every_rounds=1,
    )
    told = rounds(out)
    assert {row["episode_length_mean"] for row in told} == {5.0}
    assert all(0.0 < row["episode_return_mean"] <= 2.5 for row in told)
    assert any(0.0 < (row["evaluation_return_mean"] or 0.0) <= 2.5 for row in told)
    weights = wire.decode(read_policy(out / "policy.safetensors")[0], wire.Kind.WEIGHTS)
    assert wire.field_text(weights["network"]) == "mlp relu 16 8"
    assert wire.field_text(weights["distribution"]).split()[0] == "categorical"


@pytest.mark.parametrize(
    ("file", "environment", "algorithm", "network", "preprocessing"),
    [
        ("hopper.yaml", "CartPole-v1", "impala", "mlp", "none"),
        ("hopper-fixed.yaml", "ALE/Qbert-v5", "impact", "conv", "atari"),
        ("paper/walker2d-impact.yaml", "Humanoid-v5", "ppo", "mlp", "none"),
    ],
)
def test_any_file_with_any_workload(
    tmp_path: Path, file: str, environment: str, algorithm: str, network: str, preprocessing: str
) -> None:
    out = tmp_path / "out"
    # The other settings only change sizes, for speed.
    experiment = train_here(
        file,
        out,
        environment__id=environment,
        algorithm__kind=algorithm,
    )
    assert experiment.stop.target_return is None, "hopper.yaml's is of Hopper"
    assert experiment.network.kind == network
    assert experiment.environment.preprocessing == preprocessing
    assert experiment.algorithm.normalize_observations == (network == "mlp")
    assert experiment.algorithm.rounds == ("synchronous" if algorithm == "ppo" else "asynchronous")
    rows = rounds(out)
    assert [row["round_index"] for row in rows] == [1, 2]
    assert summary(out)["env_steps_total"] == sum(row["env_steps"] for row in rows) >= 2 * 2 * 16
    stale = 0 if algorithm == "ppo" else experiment.algorithm.staleness_max
    assert all(0 <= row["staleness_mean"] <= row["staleness_max"] <= stale for row in rows)
    # No money is lost between rounds.
    spent_usd = sum(row["round_cost_usd"] for row in rows)
    spent_usd += summary(out).get("unfinished_rounds_cost_usd", 0.0)
    assert spent_usd == pytest.approx(summary(out)["spent_usd"], abs=1e-9)
    assert not events(out, "actor_failed")
    weights = read_policy(out / "policy.safetensors")[0]
    Policy.from_bytes(weights).check(make_environment(environment, preprocessing).spaces)
    assert wire.field_text(wire.decode(weights, wire.Kind.WEIGHTS)["network"]) == network
