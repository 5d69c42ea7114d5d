"""Training for real: the command, the server, the actor processes, MuJoCo."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from lambda_actor.environments import make_environment
from runtime.cli.main import main
from runtime.records.policy_file import read_policy
from runtime.training.evaluation import Evaluator
from tests.helpers import ROOT, events, overrides, results_only, rounds, summary, train


def test_a_run_leaves_what_the_readme_promises(reference: Path) -> None:
    for name in (
        "config.yaml",
        "events.jsonl",
        "policy.safetensors",
        "best_policy.safetensors",
        "report.html",
        "checkpoints/round_000005.json",
        "tensorboard",
    ):
        assert (reference / name).stat().st_size > 0, name
    ended, rows = summary(reference), rounds(reference)
    assert (ended["stop_reason"], ended["rounds"]) == ("max_rounds", 5)
    # Written after the run ended, with its spending.
    assert f'<data value="{ended["spent_usd"]!r}">' in (reference / "report.html").read_text()
    assert [(row["round_index"], row["policy_version"]) for row in rows] == [
        (number, number - 1) for number in range(1, 6)
    ]
    assert rows[-1]["env_steps_total"] == sum(row["actors_returned"] * 64 for row in rows)
    documented = (ROOT / "docs" / "reference" / "run_directory.md").read_text()
    for key in rows[-1]:
        assert f"`{key}`" in documented, f"{key} is not documented"


def test_neither_the_number_of_processes_nor_a_cache_changes_anything(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    """Nor does the number of environments in lockstep: the reference has three in each of two processes."""
    out, settings = tmp_path / "run", overrides(fleet__processes=1, cache__kind="none")
    assert train(experiment, out, *settings).returncode == 0
    assert results_only(rounds(out)) == results_only(rounds(reference))
    [started] = events(out, "run_started")
    assert started["server"].startswith("none")


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


@pytest.mark.parametrize(
    ("flags", "actions"), [([], "stochastic"), (["--no-stochastic"], "deterministic")]
)
def test_evaluate_acts_as_the_runs_evaluations_did_unless_told(
    reference: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    actions: str,
) -> None:
    run = shutil.copytree(reference, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        config.replace("actions: deterministic", "actions: stochastic")
    )
    assert main(["evaluate", str(run), "--episodes", "2", "--seed", "8", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    evaluate = Evaluator(
        make_environment("Hopper-v5"), 2, seed=8, is_stochastic=actions == "stochastic"
    )
    returns = evaluate(read_policy(run / "policy.safetensors")[0]).returns
    assert (printed["actions"], printed["policy_version"]) == (actions, 5)
    assert printed["evaluation_return_min"] == pytest.approx(min(returns))
    assert printed["evaluation_return_std"] == pytest.approx(statistics.pstdev(returns))


def test_a_run_that_had_ended_is_not_trained_and_that_is_said(reference: Path) -> None:
    before = (reference / "rounds.jsonl").read_bytes()
    again = train(reference / "config.yaml", reference, "--resume")
    assert (again.returncode, (reference / "rounds.jsonl").read_bytes()) == (0, before)
    assert again.stdout.startswith("nothing was trained: the run had ended by max_rounds; ")
