"""``train --seeds N`` for real: several runs under one budget, killed, resumed and summarized."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_crashes import start
from tests.helpers import (
    PATIENCE_S,
    descendants,
    is_alive,
    overrides,
    results_only,
    rounds,
    summary,
    train,
    wait_for,
)

SHORT = overrides(stop__max_rounds=2)
TWO = ("--seeds", "2")


def refused(experiment: Path, out: Path, *arguments: str) -> str:
    """Returns the refusing command's message."""
    finished = train(experiment, out, *arguments)
    assert finished.returncode == 2
    return finished.stderr


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


def spent_units(out: Path) -> int:
    """Returns the sum of the ledgers, reserved amounts included."""
    budgets: list[dict[str, Any]] = [
        json.loads(path.read_bytes())["budget"] for path in out.glob("seed-*/ledger.json")
    ]
    return sum(budget["spent"] + sum(budget["reserved"].values()) for budget in budgets)


@pytest.fixture(scope="module")
def two(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two undisturbed seeds."""
    out = tmp_path_factory.mktemp("seeds") / "runs"
    finished = train(reference.parent / "small.yaml", out, *TWO, *SHORT)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (out / "printed.txt").write_text(finished.stdout)
    return out


def test_the_settings_are_shown_once_with_the_whole_budget(two: Path) -> None:
    printed = (two / "printed.txt").read_text()
    settings, _, runs = printed.partition("\nseed 3, 1 of 2: ")
    assert "\nenvironment:\n" in settings
    assert "\nenvironment:\n" not in runs
    assert runs.count("\nresults: ") == 2


def test_each_seed_is_the_run_that_it_is_alone(two: Path, reference: Path, tmp_path: Path) -> None:
    # The last round is evaluated at once; in a longer run, one round later.
    assert results_only(rounds(two / "seed-3")[:1]) == results_only(rounds(reference)[:1])
    assert (
        train(
            reference.parent / "small.yaml", tmp_path / "alone", *SHORT, *overrides(seed=4)
        ).returncode
        == 0
    )
    assert results_only(rounds(two / "seed-4")) == results_only(rounds(tmp_path / "alone"))
    assert {name for name, _ in files(two / "seed-4").items() if "/" not in name} >= {
        "config.yaml",
        "rounds.jsonl",
        "events.jsonl",
        "summary.json",
        "policy.safetensors",
        "ledger.json",
        "report.html",
    }


def test_the_summary_is_of_both_and_is_printed(two: Path) -> None:
    both = summary(two)
    assert both["stop_reason"] == "finished"
    assert [row["seed"] for row in both["seeds"]] == [3, 4]
    of_seeds = [summary(two / f"seed-{seed}") for seed in (3, 4)]
    for key in ("evaluation_return_mean", "evaluation_return_best", "env_steps_total", "spent_usd"):
        estimate, values = both["estimates"][key], [one[key] for one in of_seeds]
        assert estimate["interquartile_mean"] == pytest.approx(sum(values) / 2)
        assert (estimate["interval_low"], estimate["interval_high"]) == (min(values), max(values))
        assert estimate["seeds"] == 2
    for row, one in zip(both["seeds"], of_seeds, strict=True):
        assert row["evaluation_round_best"] == one["evaluation_round_best"]
        assert (two / row["directory"] / row["best_policy_file"]).exists()
    assert both["spent_usd"] == pytest.approx(sum(one["spent_usd"] for one in of_seeds))
    printed = (two / "printed.txt").read_text()
    for words in (
        "seed 4, 2 of 2",
        "interquartile mean over seeds",
        "2 seeds say little",
        str(two),
        f"report       {two / 'report.html'}",
    ):
        assert words in printed


def test_the_second_gets_what_the_first_did_not_use(two: Path) -> None:
    first, second = (summary(two / f"seed-{seed}") for seed in (3, 4))
    assert first["budget_usd"] == 0.5
    assert second["budget_usd"] == pytest.approx(1.0 - first["spent_usd"], abs=1e-9)


def test_interrupted_then_killed_then_finished_is_as_if_nothing_had_been(
    two: Path, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    process = start(experiment, out, *TWO, *SHORT)
    wait_for(
        (out / "seed-3" / "checkpoints" / "round_000001.json").exists, "a round of the first seed"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    if process.returncode == 130:
        assert summary(out)["stop_reason"] == "interrupted"
        assert not (out / "seed-4").exists(), "Ctrl-C ends them all"

    process = start(experiment, out, *TWO, "--resume", *SHORT)
    wait_for(
        (out / "seed-4" / "checkpoints" / "round_000001.json").exists, "a round of the second seed"
    )
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "actors and server to die with the run")
    kept, spent_usd = (
        files(out / "seed-3"),
        sum(rounds(out / f"seed-{seed}")[-1]["spent_usd"] for seed in (3, 4)),
    )

    resumed = train(experiment, out, *TWO, "--resume", *SHORT)
    assert resumed.returncode == 0, resumed.stderr
    for seed in (3, 4):
        assert results_only(rounds(out / f"seed-{seed}")) == results_only(
            rounds(two / f"seed-{seed}")
        )
    assert files(out / "seed-3") == kept, "a finished seed does not change"
    assert spent_usd <= summary(out)["spent_usd"] <= 1.0, "spending before the kill counts"
    assert summary(out)["spent_usd"] == spent_units(out) / 2**36
    done = files(out)
    assert train(experiment, out, *TWO, "--resume", *SHORT).returncode == 0
    assert files(out) == done, "if all are finished, nothing is done"
    assert (
        summary(out)["estimates"]["env_steps_total"] == summary(two)["estimates"]["env_steps_total"]
    )


def test_more_rounds_and_more_seeds_may_follow(two: Path, experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    shutil.copytree(two, out)
    resumed = train(experiment, out, "--seeds", "3", "--resume", *overrides(stop__max_rounds=3))
    assert resumed.returncode == 0, resumed.stderr
    assert [len(rounds(out / f"seed-{seed}")) for seed in (3, 4, 5)] == [3, 3, 3]
    assert results_only(rounds(out / "seed-3"))[:2] == results_only(rounds(two / "seed-3"))
    assert "holds 3 seeds; allowed: --seeds from 3" in refused(experiment, out, *TWO, "--resume")
    assert "actor.fragment_steps is 32 now, 64 there" in refused(
        experiment, out, "--seeds", "3", "--resume", *overrides(actor__fragment_steps=32)
    )


def test_all_together_stay_within_the_budget(experiment: Path, tmp_path: Path) -> None:
    # An expensive learner, so that a few rounds use up the first seed's share.
    out = tmp_path / "runs"
    finished = train(
        experiment,
        out,
        *TWO,
        *overrides(
            actor__timeout_s=30,
            fleet__round_deadline_s=30,
            learner__update_timeout_s=30,
            learner__instance_types="[p3.8xlarge]",
            budget__usd=0.0095,
            stop__max_rounds="null",
            evaluation__every_rounds=0,
        ),
    )
    assert finished.returncode == 0, finished.stderr
    first, second = summary(out)["seeds"]
    assert (first["stop_reason"], second["stop_reason"]) == ("budget", "budget")
    assert first["budget_usd"] == pytest.approx(0.00475, abs=1e-9)
    assert second["budget_usd"] == pytest.approx(0.0095 - first["spent_usd"], abs=1e-9)
    assert spent_units(out) <= 0.0095 * 2**36
    assert summary(out)["estimates"]["evaluation_return_mean"]["interquartile_mean"] is None


def test_a_run_that_fails_is_the_last(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    finished = train(
        experiment,
        out,
        *TWO,
        *overrides(environment__id="tests.end_to_end.failing_environment:make"),
    )
    assert finished.returncode == 1
    assert "the motor is on fire" in finished.stdout
    assert "mend the environment first" in finished.stdout
    assert summary(out)["stop_reason"] == "failed"
    assert [row["stop_reason"] for row in summary(out)["seeds"]] == ["failed", None]
    assert summary(out)["estimates"]["spent_usd"]["seeds"] == 0


def test_too_many_seeds_for_the_budget_are_refused_before_anything_starts(
    experiment: Path, tmp_path: Path
) -> None:
    said = refused(experiment, tmp_path / "runs", "--seeds", "1000", *overrides(budget__usd=0.01))
    for words in (
        "--seeds 1000",
        "budget.usd = 0.01 leaves 0.000010 USD for each of 1000 runs",
        "allowed: budget.usd from",
    ):
        assert words in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "holds runs of several seeds; continue them with --seeds N --resume"),
        (["--resume"], "holds runs of several seeds; continue them with --seeds N --resume"),
        ([*TWO], "holds runs of several seeds already; continue them with --resume"),
    ],
)
def test_a_directory_of_seeds_is_no_single_run(
    two: Path, experiment: Path, arguments: list[str], words: str
) -> None:
    before = files(two)
    assert words in refused(experiment, two, *arguments)
    assert files(two) == before


@pytest.mark.parametrize("arguments", [[], ["--resume"]])
def test_a_single_run_is_no_directory_of_seeds(
    reference: Path, experiment: Path, arguments: list[str]
) -> None:
    before = files(reference)
    assert "holds a single run; name another directory for --seeds" in refused(
        experiment, reference, *TWO, *arguments
    )
    assert files(reference) == before
