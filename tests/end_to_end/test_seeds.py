"""``train --seeds N`` for real: several runs under one budget, killed, resumed and summarized."""

import json
import shutil
import signal
from pathlib import Path

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
    """Returns the files, without the report of several seeds, which says when it was written."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file not in (path / ".lock", path / "report.html")
    }


def spent_units(out: Path) -> int:
    """Returns the sum of the ledgers, reserved amounts included."""
    ledgers = [json.loads(path.read_bytes()) for path in out.glob("seed-*/ledger.json")]
    budgets = [ledger["budget"] for ledger in ledgers]
    return sum(budget["spent"] + sum(budget["reserved"].values()) for budget in budgets)


@pytest.fixture(scope="module")
def two(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two undisturbed seeds."""
    out = tmp_path_factory.mktemp("seeds") / "runs"
    finished = train(reference.parent / "small.yaml", out, *TWO, *SHORT)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (out / "printed.txt").write_text(finished.stdout)
    return out


def test_two_seeds_are_trained_and_summarized(two: Path, reference: Path) -> None:
    # The last round is evaluated at once; in a longer run, one round later.
    first, second = (results_only(rounds(two / f"seed-{seed}")) for seed in (3, 4))
    assert first[:1] == results_only(rounds(reference)[:1]) != second[:1]
    both, of_seeds = summary(two), [summary(two / f"seed-{seed}") for seed in (3, 4)]
    assert both["stop_reason"] == "finished"
    for key in ("evaluation_return_best", "spent_usd"):
        estimate, values = both["estimates"][key], [one[key] for one in of_seeds]
        assert estimate["interquartile_mean"] == pytest.approx(sum(values) / 2)
        assert (estimate["interval_low"], estimate["interval_high"]) == (min(values), max(values))
    for row, one in zip(both["seeds"], of_seeds, strict=True):
        assert row["evaluation_round_best"] == one["evaluation_round_best"]
        assert (two / row["directory"] / row["best_policy_file"]).exists()
    spent_usd = of_seeds[0]["spent_usd"]
    assert both["spent_usd"] == pytest.approx(spent_usd + of_seeds[1]["spent_usd"])
    assert [one["budget_usd"] for one in of_seeds] == [0.5, pytest.approx(1.0 - spent_usd)]
    printed = (two / "printed.txt").read_text()
    for words in ("seed 4, 2 of 2", "interquartile mean over", f"report       {two}/report.html"):
        assert words in printed


def test_seeds_that_were_interrupted_and_killed_end_as_if_they_had_not_been(
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
        assert not (out / "seed-4").exists(), "Ctrl-C ends them all"

    process = start(experiment, out, *TWO, "--resume", *SHORT)
    wait_for(
        (out / "seed-4" / "checkpoints" / "round_000001.json").exists, "a round of the second seed"
    )
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "actors and server to die with the run")
    kept = files(out / "seed-3")
    spent_usd = sum(rounds(out / f"seed-{seed}")[-1]["spent_usd"] for seed in (3, 4))

    resumed = train(experiment, out, *TWO, "--resume", *SHORT)
    assert resumed.returncode == 0, resumed.stderr
    for name in ("seed-3", "seed-4"):
        assert results_only(rounds(out / name)) == results_only(rounds(two / name))
    assert files(out / "seed-3") == kept, "a finished seed does not change"
    assert spent_usd <= summary(out)["spent_usd"] == spent_units(out) / 2**36 <= 1.0
    done = files(out)
    assert train(experiment, out, *TWO, "--resume", *SHORT).returncode == 0
    assert files(out) == done, "if all are finished, nothing is done"


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
    settings = overrides(
        actor__timeout_s=30,
        fleet__round_deadline_s=30,
        learner__update_timeout_s=30,
        learner__instance_types="[p3.8xlarge]",
        budget__usd=0.0095,
        stop__max_rounds="null",
        evaluation__every_rounds=0,
    )
    finished = train(experiment, out, *TWO, *settings)
    assert finished.returncode == 0, finished.stderr
    first, second = summary(out)["seeds"]
    assert (first["stop_reason"], second["stop_reason"]) == ("budget", "budget")
    assert first["budget_usd"] == pytest.approx(0.00475, abs=1e-9)
    assert second["budget_usd"] == pytest.approx(0.0095 - first["spent_usd"], abs=1e-9)
    assert spent_units(out) <= 0.0095 * 2**36


def test_too_many_seeds_for_the_budget_are_refused_before_anything_starts(
    experiment: Path, tmp_path: Path
) -> None:
    said = refused(experiment, tmp_path / "runs", "--seeds", "1000", *overrides(budget__usd=0.01))
    words = "--seeds 1000 share budget.usd = 0.01; for seed 3, budget.usd = 1e-05 cannot hold"
    assert words in said
    assert not (tmp_path / "runs").exists()


def test_a_directory_of_seeds_and_one_of_a_single_run_are_not_mixed(
    two: Path, reference: Path, experiment: Path
) -> None:
    for out, arguments, words in (
        (two, ["--resume"], "holds runs of several seeds; continue them with --seeds N --resume"),
        (two, [*TWO], "holds runs of several seeds already; continue them with --resume"),
        (reference, [*TWO, "--resume"], "holds a single run; name another directory for --seeds"),
    ):
        before = files(out)
        assert words in refused(experiment, out, *arguments)
        assert files(out) == before
