"""Callbacks: the calls that they receive and when, their effects on a run, and the handling of one that raises."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import nitro_rl
from runtime.errors import ExperimentError, RunError
from tests.callbacks import Noting
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    SMALL_EXPERIMENT,
    command,
    results_only,
    rounds,
    run_command,
    summary,
    train,
    wait_for,
)

SMALL: dict[str, Any] = yaml.safe_load(SMALL_EXPERIMENT) | {
    "environment": {"id": "tests.callbacks:make_longer", "kwargs": {"episode_steps": 10}},
    "scaler": {"kind": "fixed", "actors_fixed": 2, "actors_min": 1},
    "actor": {"fragment_steps": 32},
    "stop": {"max_rounds": 4},
    "fleet": {"processes": 1},
    "evaluation": {"every_rounds": 2, "episodes": 1},
}
del SMALL["detector"]


def written(folder: Path, *callbacks: Any, **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"callbacks": list(callbacks)} | changes))
    return path


def history(out: Path) -> list[dict[str, Any]]:
    return results_only(rounds(out))


def test_they_are_told_in_order_and_may_stop_the_run(tmp_path: Path) -> None:
    noting, out = Noting(), tmp_path / "run"
    result = nitro_rl.train(
        written(tmp_path, {"tests.callbacks.Stopping": {"after": 3}}),
        out=out,
        is_quiet=True,
        callbacks=[noting],
    )
    reason = "callback: it learns nothing more"
    assert noting.told == ["round 1", "round 2", "evaluation 3", "round 3", f"end {reason}"]
    assert result.summary["stop_reason"] == summary(out)["stop_reason"] == reason
    assert len(rounds(out)) == 3
    with pytest.raises(
        RunError,
        match=r"the run's callbacks were .*Noting.*, and are \['tests.callbacks.Stopping'\]",
    ):
        nitro_rl.train(tmp_path / "small.yaml", out=out, is_quiet=True, resume=True)


def test_a_run_that_one_stopped_is_shown_so_and_stops_again(tmp_path: Path) -> None:
    path, out = written(tmp_path, {"tests.callbacks.Stopping": {"after": 1}}), tmp_path / "run"
    for _ in range(2):
        finished = train(path, out, "--resume")
        assert finished.returncode == 0, finished.stderr
        assert "stopped by   callback: it learns nothing more" in finished.stdout
        assert len(rounds(out)) == 1


def test_one_that_looks_changes_nothing(tmp_path: Path) -> None:
    train(written(tmp_path), tmp_path / "without")
    train(written(tmp_path, "tests.callbacks.Noting"), tmp_path / "with")
    assert history(tmp_path / "with") == history(tmp_path / "without")


def test_one_that_raises_the_difficulty_goes_on_after_kill_9_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    changes = {"stop": {"max_rounds": 6}}
    # The same arguments in both, since they are part of a run's identity.
    longer = {"tests.callbacks.Longer": {"kill_in": 4, "flag": "flag"}}
    (whole / "flag").touch()
    assert (
        run_command(
            "train", str(written(whole, longer, **changes)), "--out", "run", cwd=whole
        ).returncode
        == 0
    )
    lengths = [row["episode_length_mean"] for row in rounds(whole / "run")]
    assert lengths == [10, 10, 15, 15, 20, 20]
    assert [row["episodes_dropped"] for row in rounds(whole / "run")] == [0, 0, 2, 0, 2, 0]

    path = str(written(killed, longer, **changes))
    assert run_command("train", path, "--out", "run", cwd=killed).returncode == -9
    assert len(rounds(killed / "run")) == 4, "the round is on disk before callbacks run"
    assert run_command("train", path, "--out", "run", "--resume", cwd=killed).returncode == 0
    assert history(killed / "run") == history(whole / "run")


def test_a_run_that_goes_on_has_the_history_of_one_that_was_never_ended(tmp_path: Path) -> None:
    path = written(
        tmp_path, "tests.callbacks.Longer", stop={"max_rounds": 5}, evaluation={"every_rounds": 0}
    )
    train(path, tmp_path / "whole")
    for last in (1, 2, 3, 5):
        assert (
            train(
                path, tmp_path / "parts", "--resume", "--set", f"stop.max_rounds={last}"
            ).returncode
            == 0
        )
    assert history(tmp_path / "parts") == history(tmp_path / "whole")


@pytest.mark.parametrize(
    ("where", "saved"), [("on_evaluation", 2), ("on_round_end", 1), ("state", 1), ("set", 1)]
)
def test_one_that_raises_is_named_and_loses_no_finished_round(
    tmp_path: Path, where: str, saved: int
) -> None:
    out = tmp_path / "run"
    path = written(
        tmp_path,
        {"tests.callbacks.Raising": {"where": where}},
        evaluation={"every_rounds": 1, "episodes": 1},
    )
    finished = train(path, out)
    assert finished.returncode == 1
    assert summary(out)["stop_reason"] == "failed"
    method, said = (
        ("state", r"the state is no JSON value: .*")
        if where == "set"
        else (where, r"the curriculum has no such lesson, in .*tests/callbacks.py, line \d+")
    )
    assert re.fullmatch(
        f"CallbackError: callback tests.callbacks.Raising.{method} raised ValueError: {said}",
        summary(out)["error"],
    )
    assert "mend the callback first" in finished.stdout
    assert len(rounds(out)) == len(list((out / "checkpoints").glob("*.json"))) == saved
    assert train(path, out, "--resume").returncode == 1
    assert len(rounds(out)) == saved, "it receives the same round again"


def test_one_that_raises_at_the_end_or_while_it_is_resumed_is_named_too(tmp_path: Path) -> None:
    out, last = tmp_path / "run", {"evaluation": {"every_rounds": 0}, "stop": {"max_rounds": 1}}
    finished = train(
        written(tmp_path, {"tests.callbacks.Raising": {"where": "on_end"}}, **last), out
    )
    assert finished.returncode == 1
    assert (
        "callback tests.callbacks.Raising.on_end raised ValueError: the curriculum"
        in finished.stdout
    )
    assert len(rounds(out)) == 1 and summary(out)["stop_reason"] == "max_rounds"
    path, out = (
        written(tmp_path, {"tests.callbacks.Raising": {"where": "load_state"}}, **last),
        tmp_path / "other",
    )
    assert train(path, out).returncode == 0
    finished = train(path, out, "--resume", "--set", "stop.max_rounds=2")
    assert finished.returncode == 2
    assert (
        "callback tests.callbacks.Raising.load_state raised ValueError: the curriculum"
        in finished.stderr
    )


def test_ctrl_c_ends_one_that_hangs(tmp_path: Path) -> None:
    path, out = written(tmp_path, "tests.callbacks.Hanging"), tmp_path / "run"
    with subprocess.Popen(
        command("train", str(path), "--out", str(out)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            wait_for(
                lambda: list((out / "checkpoints").glob("*.json")), "the first round's checkpoint"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
    assert summary(out)["stop_reason"] == "interrupted" and len(rounds(out)) == 1


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (
            "Longer",
            "callbacks = 'Longer' is not allowed; allowed: an import path such as my_package.curriculum.Longer, ",
        ),
        (
            {"a.b": None, "a.c": None},
            "callbacks = {'a.b': None, 'a.c': None} is not allowed; allowed: an import path",
        ),
        (
            3,
            "callbacks = [3] is not allowed; allowed: a list of text or a mapping",
        ),
        (
            "tests.callbacks.Missing",
            "callbacks: tests.callbacks.Missing cannot be imported: AttributeError: ",
        ),
        (
            "no_such_package.Missing",
            "callbacks: no_such_package.Missing cannot be imported: ModuleNotFoundError: No mod",
        ),
        (
            "tests.callbacks.NO_CLASS",
            "callbacks: tests.callbacks.NO_CLASS is not allowed; allowed: a subclass of nitro_rl",
        ),
        (
            "json.JSONEncoder",
            "callbacks: json.JSONEncoder is not allowed; allowed: a subclass of nitro_rl.Callback",
        ),
        (
            {"tests.callbacks.Longer": {"most": 1}},
            "callbacks: tests.callbacks.Longer cannot be made with {'most': 1}: Ty",
        ),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_starts(
    tmp_path: Path, callback: Any, told: str
) -> None:
    finished = train(written(tmp_path, callback), tmp_path / "run")
    assert finished.returncode == 2
    assert told in finished.stderr
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_what_train_is_given_must_be_callbacks(tmp_path: Path) -> None:
    with pytest.raises(
        ExperimentError, match="callbacks: 3 is not allowed; allowed: objects of subclasses of nit"
    ):
        nitro_rl.train(written(tmp_path), out=tmp_path / "run", is_quiet=True, callbacks=[3])


def test_the_environment_of_asynchronous_rounds_stays(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "tests.callbacks.Longer",
        algorithm={"kind": "impact"},
        evaluation={"every_rounds": 0},
    )
    finished = train(path, tmp_path / "run")
    assert finished.returncode == 1
    assert (
        "environment.kwargs cannot change with algorithm.rounds = asynchronous" in finished.stdout
    )
    assert len(rounds(tmp_path / "run")) == 2
