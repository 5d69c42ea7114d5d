"""``train --seeds N`` for real: several runs under one budget, killed, resumed and summarized."""

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


def files(path: Path) -> dict[str, bytes]:
    """Returns the files, without the report of several seeds, which says when it was written."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file not in (path / ".lock", path / "report.html")
    }


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
    assert all((two / row["directory"] / row["best_policy_file"]).exists() for row in both["seeds"])
    spent_usd = of_seeds[0]["spent_usd"]
    assert both["spent_usd"] == pytest.approx(spent_usd + of_seeds[1]["spent_usd"])
    assert [one["budget_usd"] for one in of_seeds] == [0.5, pytest.approx(1.0 - spent_usd)]
    printed = (two / "printed.txt").read_text()
    for words in ("seed 4, 2 of 2", "\nmean over seeds", f"report       {two}/report.html"):
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

    resumed = train(None, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("seed-3", "seed-4"):
        assert results_only(rounds(out / name)) == results_only(rounds(two / name))
    assert files(out / "seed-3") == kept, "a finished seed does not change"
    assert spent_usd <= summary(out)["spent_usd"] <= 1.0
    done = files(out)
    assert train(None, out, "--resume").returncode == 0
    assert files(out) == done, "if all are finished, nothing is done"


def test_more_rounds_and_more_seeds_may_follow(two: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    shutil.copytree(two, out)
    # Without it, the seeds' folders tell what is there.
    (out / "summary.json").unlink()
    resumed = train(None, out, "--seeds", "3", "--resume", *overrides(stop__max_rounds=3))
    assert resumed.returncode == 0, resumed.stderr
    changed, begun = "! stop.max_rounds: 2 -> 3\n", "seed 3, 1 of 3"
    assert resumed.stdout.index(changed) < resumed.stdout.index(begun)
    assert [len(rounds(out / f"seed-{seed}")) for seed in (3, 4, 5)] == [3, 3, 3]
    assert results_only(rounds(out / "seed-3"))[:2] == results_only(rounds(two / "seed-3"))


def test_what_cannot_be_shared_or_mixed_is_refused_and_changes_nothing(
    two: Path, reference: Path, experiment: Path, tmp_path: Path
) -> None:
    new, poor = tmp_path / "runs", overrides(budget__usd=0.01)
    other = overrides(actor__fragment_steps=32)
    for out, arguments, words in (
        (
            new,
            ["--seeds", "1000", *poor],
            "share budget.usd = 0.01; for seed 3, budget.usd = 1e-05",
        ),
        (two, ["--seeds", "1", "--resume"], "holds 2 seeds; allowed: --seeds from 2"),
        (two, [*TWO, "--resume", *other], "actor.fragment_steps is 32 now, 64 in the run"),
        (two, [], "holds runs of several seeds already; continue them with --resume"),
        (two, [*TWO], "holds runs of several seeds already; continue them with --resume"),
        (reference, [*TWO, "--resume"], "holds a single run; name another directory for --seeds"),
    ):
        before = files(out)
        finished = train(experiment, out, *arguments)
        assert finished.returncode == 2
        assert words in finished.stderr
        assert files(out) == before
    assert not new.exists()
