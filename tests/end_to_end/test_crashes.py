"""Runs survive kill -9, Ctrl-C, dying actors, damaged files and a vanished server."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from runtime.money.budget import UNITS_PER_USD
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    command_line,
    descendants,
    events,
    is_alive,
    overrides,
    results_only,
    rounds,
    start,
    summary,
    train,
    wait_for,
)


def finished_rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def interrupted(reference: Path, tmp_path: Path) -> Path:
    """The reference run's directory with more work to do."""
    out = shutil.copytree(reference, tmp_path / "run")
    (out / "summary.json").unlink()
    return out


def test_kill_and_resume_gives_the_same_rounds(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(experiment, out)
    wait_for(lambda: finished_rounds(out) >= 2, "two rounds")
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "actors and server to die with the run")
    spent_before_usd = rounds(out)[-1]["spent_usd"]
    reserved = json.loads((out / "ledger.json").read_text())["budget"]["reserved"]

    resumed = train(None, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert results_only(rounds(out)) == results_only(rounds(reference))
    assert summary(out)["spent_usd"] >= spent_before_usd
    # Nothing is billed here, so what its actors had run counts, and not their time-outs.
    reserved_usd = sum(reserved.values()) / UNITS_PER_USD
    forfeited_usd = sum(event["usd"] for event in events(out, "reservation_forfeited"))
    assert not reserved or forfeited_usd < reserved_usd / 2
    line = f"! the run was killed: ${forfeited_usd:.5f} of ${reserved_usd:.5f} reserved are spent\n"
    assert not reserved or line in resumed.stdout
    for name in ("policy.safetensors", "best_policy.safetensors"):
        assert (out / name).read_bytes() == (reference / name).read_bytes(), name


def test_the_seconds_of_an_update_in_which_a_run_is_killed_are_known(
    experiment: Path, tmp_path: Path
) -> None:
    """No actor plays meanwhile, and nothing is written."""
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(algorithm__epochs=1_000_000))
    wait_for(lambda: (out / "ledger.json").exists(), "the first ledger")

    def ran_s() -> float:
        ledger, lock = ((out / name).stat().st_mtime for name in ("ledger.json", ".lock"))
        return lock - ledger

    wait_for(lambda: ran_s() > 3.0, "seconds without a ledger")
    process.kill()
    process.communicate()
    assert finished_rounds(out) == 0


def test_updates_by_a_function_give_the_same_rounds_and_may_be_continued_without_it(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    """A complete run whose last rounds are updated in place again. None of the function's files remain."""
    out = tmp_path / "run"
    first = train(experiment, out, *overrides(learner__kind="function", stop__max_rounds=2))
    assert first.returncode == 0, first.stderr
    assert not (out / ".updates").exists()
    assert train(experiment, out, "--resume").returncode == 0
    assert (out / "policy.safetensors").read_bytes() == (
        reference / "policy.safetensors"
    ).read_bytes()


def test_a_resumption_says_which_limits_it_changes(interrupted: Path) -> None:
    changes = overrides(stop__max_rounds=6, stop__target_return=9999, cache__url="redis://:pw@here")
    resumed = train(None, interrupted, "--resume", *changes, "--set", "cache.kind=none")
    assert resumed.returncode == 0, resumed.stderr
    assert [line for line in resumed.stdout.splitlines() if line.startswith("! ")] == [
        '! cache.kind: "redis" -> "none"',
        '! cache.url: null -> "redis://:***@here"',
        "! stop.max_rounds: 5 -> 6",
        "! stop.target_return: null -> 9999.0",
    ]
    assert len(rounds(interrupted)) == 6
    assert train(None, interrupted, "--resume").returncode == 0, "its config.yaml has the changes"
    assert len(rounds(interrupted)) == 6


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("checkpoints/round_000005.safetensors", "checkpoint_skipped"),
        ("rounds.jsonl", "checkpoint_skipped"),
        ("ledger.json", "ledger_unreadable"),
    ],
)
def test_a_run_with_a_truncated_file_continues_from_its_newest_sound_state(
    reference: Path, experiment: Path, interrupted: Path, name: str, event: str
) -> None:
    out = interrupted
    os.truncate(out / name, (out / name).stat().st_size - 20)
    (out / "best_policy.safetensors").write_bytes(b"of an evaluation in a lost round")
    finished = train(experiment, out, "--resume")
    assert finished.returncode == 0, finished.stderr
    assert events(out, event)
    assert results_only(rounds(out)) == results_only(rounds(reference))
    name = "best_policy.safetensors"
    assert (out / name).read_bytes() == (reference / name).read_bytes()
    spent_usd = rounds(reference)[-1]["spent_usd"]
    assert summary(out)["spent_usd"] >= spent_usd - 1e-9, "no money comes back"


@pytest.mark.parametrize(
    ("lost", "epochs", "words"),
    [
        ("checkpoints", 2, "usable checkpoint is of round 0"),
        ("config.yaml", 2, "config.yaml: cannot be read"),
        ("tensorboard", 3, "algorithm.epochs is 3 now, 2 in the run"),
    ],
)
def test_a_run_that_lost_a_part_or_is_another_one_is_refused_and_left_alone(
    experiment: Path, interrupted: Path, tmp_path: Path, lost: str, epochs: int, words: str
) -> None:
    out = interrupted
    (out / lost).rename(tmp_path / "lost")
    kept = [path for path in out.rglob("*") if path.is_file() and path.name != "events.jsonl"]
    before = [path.read_bytes() for path in kept]
    changes = overrides(stop__max_rounds=7, algorithm__epochs=epochs)
    finished = train(experiment, out, "--resume", *changes)
    assert finished.returncode == 2
    assert words in finished.stderr
    assert [path.read_bytes() for path in kept] == before


def test_a_closed_pipe_does_not_end_the_training(experiment: Path, tmp_path: Path) -> None:
    process = start(experiment, tmp_path / "run", *overrides(stop__max_rounds=2))
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0, errors
    assert len(rounds(tmp_path / "run")) == 2


def test_an_interrupt_stops_cleanly_a_run_that_no_other_one_disturbs(
    experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(stop__max_rounds=1000), start_new_session=True)
    wait_for(lambda: finished_rounds(out) >= 1, "a round")
    second = train(experiment, out, "--resume")
    assert second.returncode == 2
    assert "another process trains there" in second.stderr
    below = descendants(process.pid)
    # To the whole group, as a terminal sends it.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert summary(out)["stop_reason"] == "interrupted"
    assert summary(out)["rounds"] == len(rounds(out)) >= 1
    assert not any(map(is_alive, below))


def test_a_vanished_server_ends_the_run_with_its_reason(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(stop__max_rounds=1000))
    wait_for(lambda: finished_rounds(out) >= 1, "a round")
    for pid in descendants(process.pid):
        if b"server.sock" in command_line(pid) and not _is_shell(pid):
            os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert summary(out)["stop_reason"] == "failed"
    assert "does not answer" in summary(out)["error"]


def _is_shell(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() in ("sh", "dash", "bash", "cat")


def test_actors_that_keep_failing_end_the_run_with_the_root_error(
    experiment: Path, tmp_path: Path
) -> None:
    finished = train(
        experiment,
        tmp_path / "run",
        *overrides(environment__id="tests.environments:FailingInActors"),
    )
    assert finished.returncode == 1
    where = ROOT / "tests" / "environments.py"
    assert f"RuntimeError: the motor is on fire, in {where}, line " in finished.stdout
    assert summary(tmp_path / "run")["stop_reason"] == "failed"
