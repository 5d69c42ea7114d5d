"""Runs survive kill -9, Ctrl-C, dying actors, damaged files and a vanished server."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.money.budget import UNITS_PER_USD
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    command,
    command_line,
    descendants,
    events,
    is_alive,
    overrides,
    results_only,
    rounds,
    summary,
    train,
    wait_for,
)


def start(experiment: Path, out: Path, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        command("train", str(experiment), "--out", str(out), *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished_rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def interrupted_copy(reference: Path, out: Path) -> Path:
    """Returns the reference run's directory with more work to do."""
    shutil.copytree(reference, out)
    (out / "summary.json").unlink()
    return out


@pytest.mark.parametrize("kill_after_round", [0, 2])
def test_kill_and_resume_gives_the_same_rounds(
    reference: Path, experiment: Path, tmp_path: Path, kill_after_round: int
) -> None:
    out = tmp_path / "run"
    process = start(experiment, out)
    wait_for(
        lambda: finished_rounds(out) >= kill_after_round and (out / "ledger.json").exists(),
        "the round",
    )
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "actors and server to die with the run")
    spent_before_usd = rounds(out)[-1]["spent_usd"] if finished_rounds(out) else 0.0
    reserved = json.loads((out / "ledger.json").read_text())["budget"]["reserved"]

    resumed = train(experiment, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert results_only(rounds(out)) == results_only(rounds(reference))
    assert summary(out)["spent_usd"] >= spent_before_usd
    # Nothing is billed here, so what its actors had run counts, and not their time-outs.
    forfeited_usd = sum(event["usd"] for event in events(out, "reservation_forfeited"))
    assert not reserved or forfeited_usd < sum(reserved.values()) / UNITS_PER_USD / 2
    for name in ("policy.safetensors", "best_policy.safetensors"):
        assert (out / name).read_bytes() == (reference / name).read_bytes(), name


def test_updates_by_a_function_give_the_same_rounds_and_may_be_continued_without_it(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    """A complete run whose last rounds are updated in place again. None of the function's files remain."""
    out = tmp_path / "run"
    first = train(experiment, out, *overrides(learner__kind="function", stop__max_rounds=2))
    assert first.returncode == 0, first.stderr
    assert not (out / ".updates").exists()
    assert train(experiment, out, "--resume").returncode == 0
    # The last round decides which rounds are evaluated.
    ours, others = (
        [
            {
                key: value
                for key, value in row.items()
                if not key.startswith(("evaluation_", "evaluated_"))
            }
            for row in results_only(rounds(of))
        ]
        for of in (out, reference)
    )
    assert ours == others
    assert (out / "policy.safetensors").read_bytes() == (
        reference / "policy.safetensors"
    ).read_bytes()


def cut_row_and_checkpoint(out: Path) -> None:
    """Leaves what a kill between a row and its checkpoint leaves."""
    (out / "checkpoints" / "round_000005.json").unlink()
    with (out / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round_index": 6, "half a ro')
    (out / "best_policy.safetensors").write_bytes(b"of an evaluation in the lost round")


def cut_off(name: str) -> Callable[[Path], None]:
    return lambda out: os.truncate(out / name, (out / name).stat().st_size - 20)


def damage_the_summary(out: Path) -> None:
    (out / "summary.json").write_text('{"stop_reason": "max_rounds", "rounds": 5}')


@pytest.mark.parametrize(
    ("damage", "event"),
    [
        (cut_row_and_checkpoint, None),
        (cut_off("checkpoints/round_000005.safetensors"), "checkpoint_skipped"),
        (cut_off("rounds.jsonl"), "checkpoint_skipped"),
        (cut_off("ledger.json"), "ledger_unreadable"),
        (damage_the_summary, None),
    ],
    ids=["a kill", "checkpoint", "row", "ledger", "summary"],
)
def test_a_damaged_run_continues_from_its_newest_sound_state(
    reference: Path,
    experiment: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    event: str | None,
) -> None:
    out = interrupted_copy(reference, tmp_path / "run")
    damage(out)
    finished = train(experiment, out, "--resume")
    assert finished.returncode == 0, finished.stderr
    assert event is None or events(out, event)
    assert results_only(rounds(out)) == results_only(rounds(reference))
    name = "best_policy.safetensors"
    assert (out / name).read_bytes() == (reference / name).read_bytes()
    assert summary(out)["rounds"] == 5
    spent_usd = rounds(reference)[-1]["spent_usd"]
    assert summary(out)["spent_usd"] >= spent_usd - 1e-9, "no money comes back"


def without_sound_checkpoints(out: Path) -> None:
    for path in (out / "checkpoints").glob("*.json"):
        path.write_bytes(b"{}")


def without_the_first_row(out: Path) -> None:
    rows = out / "rounds.jsonl"
    rows.write_bytes(rows.read_bytes().partition(b"\n")[2])


def of_another_seed(out: Path) -> None:
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("seed: 3", "seed: 4"))


@pytest.mark.parametrize(
    ("damage", "changes", "words"),
    [
        (without_sound_checkpoints, {}, "none of the checkpoints"),
        (lambda out: shutil.rmtree(out / "checkpoints"), {}, "usable checkpoint is of round 0"),
        (lambda out: (out / "rounds.jsonl").unlink(), {}, "newer than the rows, which end at 0"),
        (without_the_first_row, {}, "newer than the rows, which end at 0"),
        (lambda out: (out / "config.yaml").unlink(), {}, "config.yaml: cannot be read"),
        (of_another_seed, {"seed": 4}, "belongs to another experiment"),
        (lambda out: None, {"algorithm__epochs": 3}, "algorithm.epochs is 3 now, 2 in the run"),
    ],
    ids=["sound checkpoints", "checkpoints", "rows", "a row", "config", "seed", "experiment"],
)
def test_a_run_that_lost_a_part_or_is_another_one_is_refused_and_left_alone(
    reference: Path,
    experiment: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    changes: dict[str, Any],
    words: str,
) -> None:
    out = interrupted_copy(reference, tmp_path / "run")
    damage(out)
    before = {path: path.read_bytes() for path in out.glob("rounds.jsonl")}
    finished = train(experiment, out, "--resume", *overrides(stop__max_rounds=7, **changes))
    assert finished.returncode == 2
    assert words in finished.stderr
    assert {path: path.read_bytes() for path in out.glob("rounds.jsonl")} == before


def test_a_hang_among_environments_in_lock_step_costs_time_alone(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hanging environment and the others are played again before the round's deadline."""
    (tmp_path / "begun").mkdir()
    found = []

    def monotonic() -> float:
        """Skips an actor's time when one hangs: none ends because this machine is slow."""
        return time.monotonic() + 1000.0 * len(list(tmp_path.glob("begun/5 *")))

    monkeypatch.setattr(
        "runtime.fleet.local.time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    )
    for name in ("nowhere", "begun"):
        finished = train(
            experiment,
            tmp_path / f"run {name}",
            *overrides(
                environment__id="tests.end_to_end.failing_environment:make_hanging_once",
                environment__kwargs=json.dumps({"place": str(tmp_path / name)}),
                fleet__processes=1,
                actor__fragment_steps=16,
                actor__timeout_s=300,
                scaler__kind="fixed",
                scaler__actors_fixed=4,
                stop__max_rounds=3,
                evaluation__every_rounds=0,
            ),
        )
        assert finished.returncode == 0, finished.stderr
        found.append(rounds(tmp_path / f"run {name}"))
    begun = dict(path.name.split() for path in (tmp_path / "begun").iterdir())
    assert begun["0"] == begun["5"] != begun["6"], "the process that hung is replaced"
    assert results_only(found[0]) == results_only(found[1])
    assert [row["actors_failed"] for row in found[1]] == [0, 0, 0]


def test_a_closed_pipe_does_not_end_the_training(experiment: Path, tmp_path: Path) -> None:
    process = start(experiment, tmp_path / "run", *overrides(stop__max_rounds=2))
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0, errors
    assert len(rounds(tmp_path / "run")) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_stops_cleanly(
    experiment: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(stop__max_rounds=1000), start_new_session=True)
    wait_for(lambda: finished_rounds(out) >= 2, "two rounds")
    below = descendants(process.pid)
    # To the whole group, as a terminal sends it.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert summary(out)["stop_reason"] == "interrupted"
    assert summary(out)["rounds"] == len(rounds(out)) >= 2
    assert not any(map(is_alive, below))


def test_a_killed_actor_costs_its_own_trajectory_only(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(stop__max_rounds=12, evaluation__every_rounds=0))
    wait_for(lambda: finished_rounds(out) >= 1, "a round")
    while finished_rounds(out) < 10 and not events(out, "actor_failed"):
        for pid in descendants(process.pid):
            if b"runtime.fleet.actor_process" in command_line(pid):
                os.kill(pid, signal.SIGKILL)
                break
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    failed = events(out, "actor_failed")
    assert failed, "no actor was killed while it had an invocation"
    assert "SIGKILL" in failed[0]["error"]
    assert events(out, "actor_replaced")
    assert all(row["actors_returned"] == row["actor_count"] for row in rounds(out))
    assert sum(row["actors_failed"] for row in rounds(out)) == len(failed)


def test_two_runs_in_one_directory_are_refused(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(stop__max_rounds=10**6, budget__usd=1000.0))
    wait_for(lambda: (out / "config.yaml").exists(), "the run to start")
    second = train(experiment, out, "--resume")
    assert second.returncode == 2
    assert "another process is training there" in second.stderr
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130


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
        *overrides(environment__id="tests.end_to_end.failing_environment:make"),
    )
    assert finished.returncode == 1
    where = Path(__file__).with_name("failing_environment.py")
    line = next(
        number for number, text in enumerate(where.read_text().splitlines(), 1) if "motor" in text
    )
    assert f"RuntimeError: the motor is on fire, in {where}, line {line}" in finished.stdout
    assert "mend the environment first: it would fail again. Then resume with\n" in finished.stdout
    assert "go on with" not in finished.stdout
    assert summary(tmp_path / "run")["stop_reason"] == "failed"
    assert len(events(tmp_path / "run", "actor_failed")) >= 4
