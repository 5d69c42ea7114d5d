"""Training for real: the command, the server, the actor processes, MuJoCo."""

import itertools
import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lambda_actor.environments import make_environment
from runtime.cli.main import main
from runtime.experiment.loading import load_experiment
from runtime.records.policy_file import read_policy
from runtime.scaler.interfaces import RoundView
from runtime.scaler.nitro import NitroScaler, NitroSettings
from runtime.training.evaluation import Evaluator
from tests.helpers import ROOT, events, overrides, results_only, rounds, summary, train

ROW_KEYS = """round_index policy_version eigenvalue_min eigenvalue_max convexity_ratio boosting_score decay_weight
actor_count_wanted actor_count actors_returned actors_failed env_steps env_steps_total episode_return_mean
episode_length_mean episodes_finished evaluation_return_mean policy_loss value_loss entropy kl explained_variance
learning_rate collect_s learn_s detect_s evaluate_s round_s actor_billed_s_mean actor_billed_s_max
actors_cost_usd learner_cost_usd round_cost_usd spent_usd reserved_usd""".split()


def test_a_run_leaves_what_the_readme_promises(reference: Path) -> None:
    for name in (
        "config.yaml",
        "rounds.jsonl",
        "events.jsonl",
        "summary.json",
        "policy.safetensors",
        "best_policy.safetensors",
        "report.html",
    ):
        assert (reference / name).stat().st_size > 0, name
    assert list((reference / "checkpoints").glob("round_000005.*"))
    assert load_experiment(reference / "config.yaml").seed == 3
    assert summary(reference)["stop_reason"] == "max_rounds"
    assert summary(reference)["rounds"] == 5
    # Written after the run ended, with its spending.
    assert (
        f'<data value="{summary(reference)["spent_usd"]!r}">'
        in (reference / "report.html").read_text()
    )


def test_rows_have_every_documented_key_and_no_nan(reference: Path) -> None:
    rows = rounds(reference)
    assert [row["round_index"] for row in rows] == [1, 2, 3, 4, 5]
    documented = (ROOT / "docs" / "reference" / "run_directory.md").read_text()
    for row in rows:
        assert not set(ROW_KEYS) - row.keys()
        for key, value in row.items():
            assert value is None or math.isfinite(value), key
            assert f"`{key}`" in documented, f"{key} is not documented"


def test_money_adds_up_row_by_row(reference: Path) -> None:
    spent_usd = 0.0
    for row in rounds(reference):
        parts = (
            "actors_cost_usd",
            "provisioned_cost_usd",
            "learner_cost_usd",
            "infrastructure_cost_usd",
        )
        assert row["round_cost_usd"] == pytest.approx(sum(row[part] for part in parts), abs=1e-11)
        spent_usd += row["round_cost_usd"]
        assert row["spent_usd"] == pytest.approx(spent_usd, abs=1e-9)
        assert row["spent_usd"] + row["reserved_usd"] <= 1.0
    assert summary(reference)["spent_usd"] == pytest.approx(spent_usd, abs=1e-9)


def test_scores_and_actor_counts_follow_from_the_recorded_ratios(reference: Path) -> None:
    rows = rounds(reference)
    scaler = NitroScaler(
        NitroSettings(actors_min=2, actors_max=6, window_rounds=3, decay_factor=0.95)
    )
    for row in rows:
        decision = scaler.decide(
            RoundView(row["round_index"], signals={"convexity_ratio": row["convexity_ratio"]})
        )
        assert row["boosting_score"] == decision.boosting_score
        assert row["actor_count_wanted"] == row["actor_count"] == decision.actor_count
        if row["convexity_ratio"] is not None:
            assert row["convexity_ratio"] == pytest.approx(
                -row["eigenvalue_max"] / row["eigenvalue_min"]
            )
    assert rows[0]["convexity_ratio"] is None, "the first round has no samples to measure on"
    assert any(row["convexity_ratio"] is not None for row in rows[1:])


def test_each_round_acts_with_the_version_that_the_round_before_trained(reference: Path) -> None:
    assert [row["policy_version"] for row in rounds(reference)] == [0, 1, 2, 3, 4]
    totals = itertools.accumulate(row["actors_returned"] * 64 for row in rounds(reference))
    assert [row["env_steps_total"] for row in rounds(reference)] == list(totals)


def test_tensorboard_files_hold_the_rows(reference: Path) -> None:
    accumulator = EventAccumulator(str(reference / "tensorboard"))
    accumulator.Reload()
    steps = [event.step for event in accumulator.Scalars("learner/policy_loss")]
    values = [event.value for event in accumulator.Scalars("learner/policy_loss")]
    assert steps == [row["env_steps_total"] for row in rounds(reference)]
    assert values == pytest.approx([row["policy_loss"] for row in rounds(reference)], rel=1e-6)


def test_neither_the_number_of_processes_nor_a_cache_changes_anything(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    """Nor does the number of environments in lockstep: the reference has three in each of two processes."""
    out, settings = tmp_path / "run", overrides(fleet__processes=1, cache__kind="none")
    assert train(experiment, out, *settings).returncode == 0
    assert results_only(rounds(out)) == results_only(rounds(reference))
    [started] = events(out, "run_started")
    assert started["server"].startswith("none")


def test_another_seed_and_initial_deviation_change_everything(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    assert (
        train(
            experiment,
            tmp_path / "run",
            *overrides(seed=4, network__initial_std=0.5, stop__max_rounds=1),
        ).returncode
        == 0
    )
    (row,), before = rounds(tmp_path / "run"), rounds(reference)[0]
    assert row["policy_loss"] != before["policy_loss"]
    hopper_actions = 3
    assert before["entropy"] - row["entropy"] == pytest.approx(
        hopper_actions * math.log(2.0), abs=0.1
    )


def test_the_budget_ends_the_run_within_it(experiment: Path, tmp_path: Path) -> None:
    # An expensive learner, so that a few rounds use up the budget.
    finished = train(
        experiment,
        tmp_path / "run",
        *overrides(
            actor__timeout_s=30,
            fleet__round_deadline_s=30,
            learner__update_timeout_s=30,
            learner__instance_types="[p3.8xlarge]",
            budget__usd=0.008,
            stop__max_rounds="null",
            evaluation__every_rounds=0,
        ),
    )
    assert finished.returncode == 0, finished.stderr
    assert summary(tmp_path / "run")["stop_reason"] == "budget"
    assert 0 < summary(tmp_path / "run")["spent_usd"] <= 0.008
    assert events(tmp_path / "run", "round_shrunk") or events(tmp_path / "run", "budget_exhausted")


def test_target_return_ends_the_run(experiment: Path, tmp_path: Path) -> None:
    finished = train(experiment, tmp_path / "run", *overrides(stop__target_return=-1000))
    assert finished.returncode == 0
    assert summary(tmp_path / "run")["stop_reason"] == "target_return"
    assert len(rounds(tmp_path / "run")) == 2, "the first evaluation is after round 2"


@pytest.mark.parametrize(
    ("policy", "key"), [([], "evaluation_return_mean"), (["--best"], "evaluation_return_best")]
)
def test_evaluate_prints_json_and_repeats_the_training_evaluation(
    reference: Path, capsys: pytest.CaptureFixture[str], policy: list[str], key: str
) -> None:
    assert main(["evaluate", str(reference), *policy, "--episodes", "1", "--seed", "3"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["evaluation_return_mean"] == summary(reference)[key]
    assert ("take another --seed" in printed.err) == bool(policy)


def test_evaluate_tells_how_episodes_differ(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(reference), "--episodes", "3", "--seed", "8", "--stochastic"]) == 0
    printed = capsys.readouterr()
    weights, environment = (
        read_policy(reference / "policy.safetensors")[0],
        make_environment("Hopper-v5"),
    )
    expected = Evaluator(environment, 3, seed=8, is_stochastic=True)(weights)
    found = json.loads(printed.out)
    assert (found["actions"], found["seed"], found["episodes"], found["policy_version"]) == (
        "stochastic",
        8,
        3,
        5,
    )
    for name, values in (
        ("evaluation_return", expected.returns),
        ("episode_length", expected.lengths),
    ):
        assert [found[f"{name}_{one}"] for one in ("mean", "std", "min", "max")] == pytest.approx(
            [statistics.fmean(values), statistics.pstdev(values), min(values), max(values)]
        )
        assert found[f"{name}_std"] > 0.0
        assert (
            f" {statistics.fmean(values):,.1f} ± {statistics.pstdev(values):,.1f} (" in printed.err
        )


def test_evaluate_samples_actions_if_the_runs_evaluations_did(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert (
        train(
            experiment, out, *overrides(evaluation__actions="stochastic", stop__max_rounds=1)
        ).returncode
        == 0
    )
    found = {}
    for flags in ((), ("--no-stochastic",)):
        assert main(["evaluate", str(out), "--episodes", "1", "--seed", "3", *flags]) == 0
        found[flags] = json.loads(capsys.readouterr().out)
    assert [one["actions"] for one in found.values()] == ["stochastic", "deterministic"]
    assert found[()]["evaluation_return_mean"] == summary(out)["evaluation_return_mean"]
    assert (
        found["--no-stochastic",]["evaluation_return_mean"]
        != summary(out)["evaluation_return_mean"]
    )


def test_the_resolved_tree_is_stored(reference: Path, experiment: Path, tmp_path: Path) -> None:
    finished = train(experiment, tmp_path / "run", "--resume", *overrides(stop__max_rounds=1))
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert "resumed: no finished round is there: begun anew" in finished.stdout
    assert yaml.safe_load(stored)["fleet"]["round_deadline_s"] == 400


def test_a_directory_that_holds_a_run_is_refused(reference: Path, experiment: Path) -> None:
    before = (reference / "rounds.jsonl").read_bytes()
    finished = train(experiment, reference)
    assert finished.returncode == 2
    assert "holds a run already" in finished.stderr
    assert (reference / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("scaler.actors_mim=3", ["scaler.actors_mim", "scaler.actors_min"]),
        ("scaler.actors_min=7", ["scaler.actors_min = 7", "scaler.actors_max = 6"]),
        ("budget.usd=0.00001", ["budget.usd = 1e-05", "allowed: budget.usd from 0.0"]),
        ("environment.id=Hoper-v5", ["environment.id", "Hoper-v5", "Hopper"]),
        ("environment.id=nowhere:make", ["environment.id", "nowhere"]),
        ("learner.instance_types=[t2.nano]", ["learner.instance_types", "t2.nano", "g5.xlarge"]),
        ("actor.timeout_s=0", ["actor.timeout_s = 0", "1 to 900"]),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    experiment: Path, tmp_path: Path, override: str, words: list[str]
) -> None:
    finished = train(experiment, tmp_path / "run", "--set", override)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    for word in words:
        assert word in finished.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_had_ended_is_not_trained_and_that_is_said(
    reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(reference, run)
    before = (run / "rounds.jsonl").read_bytes()
    again = train(run / "config.yaml", run, "--resume")
    assert (again.returncode, (run / "rounds.jsonl").read_bytes()) == (0, before)
    assert again.stdout.startswith("nothing was trained: the run had ended by max_rounds; ")
    more = train(run / "config.yaml", run, "--resume", *overrides(stop__max_rounds=6))
    assert "nothing was trained" not in more.stdout
