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
from runtime.errors import CallbackError, ExperimentError, RunError
from runtime.experiment.loading import experiment_from_tree
from runtime.training.callbacks import make_callbacks
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
    "environment": {"id": "tests.environments:make_counter"},
    "scaler": {"kind": "fixed", "actors_fixed": 2, "actors_min": 1},
    "actor": {"fragment_steps": 32},
    "stop": {"max_rounds": 4},
    "fleet": {"processes": 1},
    "evaluation": {"every_rounds": 2, "episodes": 1},
}
del SMALL["detector"]


def written(folder: Path, *callbacks: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"callbacks": list(callbacks)}))
    return path


def history(out: Path) -> list[dict[str, Any]]:
    return results_only(rounds(out))


def resolved(*callbacks: Any) -> Any:
    return experiment_from_tree(SMALL | {"callbacks": list(callbacks)}, source="x").resolved()


def test_callbacks_are_called_in_order_and_may_stop_the_run(tmp_path: Path) -> None:
    noting, out = Noting(), tmp_path / "run"
    path = written(tmp_path, {"tests.callbacks:Stopping": {"after": 3}})
    result = nitro_rl.train(path, out=out, is_quiet=True, callbacks=[noting])
    reason = "callback: it learns nothing more"
    assert noting.told == ["round 1", "round 2", "round 3", f"end {reason}"]
    assert result.summary["stop_reason"] == summary(out)["stop_reason"] == reason
    assert len(rounds(out)) == 3
    with pytest.raises(
        RunError,
        match=r"were \['tests.callbacks.Stopping', 'tests.callbacks.Noting'\], and are \['.*Stopping'\]",
    ):
        nitro_rl.train(path, out=out, is_quiet=True, resume=True)
    # Those that only look change nothing, and a stopped run stops again.
    train(path, tmp_path / "without")
    assert history(out) == history(tmp_path / "without")
    again = train(path, tmp_path / "without", "--resume")
    assert (again.returncode, len(rounds(tmp_path / "without"))) == (0, 3)
    assert f"stopped by   {reason}" in again.stdout


def test_a_run_killed_in_a_callback_loads_its_state_and_calls_it_with_the_last_round_again(
    tmp_path: Path,
) -> None:
    out, record = tmp_path / "run", tmp_path / "record"
    path = written(tmp_path, {"tests.callbacks:Killing": {"record": str(record)}})
    assert run_command("train", str(path), "--out", str(out)).returncode == -9
    assert len(rounds(out)) == 2, "the round is on disk before callbacks run"
    nitro_rl.train(path, out=out, is_quiet=True, resume=True)
    told = "round 2, round 3, round 4, 4 rounds"
    assert record.read_text() == told, "the state is from before the last round's call"


@pytest.mark.parametrize(
    ("where", "saved"),
    [("on_round_end", 1), ("set", 1), ("on_end", 4)],
)
def test_a_callback_that_raises_is_named_and_loses_no_finished_round(
    tmp_path: Path, where: str, saved: int
) -> None:
    out = tmp_path / "run"
    path = written(tmp_path, {"tests.callbacks:Raising": {"where": where}})
    finished = train(path, out)
    assert (finished.returncode, len(rounds(out))) == (1, saved)
    assert len(list((out / "checkpoints").glob("*.json"))) == min(saved, 2)
    method, said = (
        ("state", r"the state is no JSON value: .*")
        if where == "set"
        else (where, r"the mail server does not answer, in .*tests/callbacks.py, line \d+")
    )
    assert re.search(
        f"CallbackError: callback tests.callbacks.Raising.{method} raised ValueError: {said}",
        finished.stdout,
    )
    if where != "on_end":
        assert summary(out)["stop_reason"] == "failed"
        assert train(path, out, "--resume").returncode == 1
        assert len(rounds(out)) == saved, "it receives the same round again"


def test_ctrl_c_ends_a_callback_that_hangs(tmp_path: Path) -> None:
    path, out = written(tmp_path, "tests.callbacks:Hanging"), tmp_path / "run"
    process = subprocess.Popen(
        command("train", str(path), "--out", str(out)),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: list((out / "checkpoints").glob("*.json")), "the first round's checkpoint")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert summary(out)["stop_reason"] == "interrupted" and len(rounds(out)) == 1


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (
            "Stopping",
            "callbacks = 'Stopping' is not allowed; allowed: an import path such as my_package.plateau:Plateau, ",
        ),
        (
            "tests.callbacks:Missing",
            "tests.callbacks:Missing cannot be made with {}: AttributeError",
        ),
        (
            "json:JSONEncoder",
            "callbacks: json.encoder.JSONEncoder is not allowed; allowed: objects of subclasses",
        ),
        (
            "tests.callbacks:Misspelt",
            "tests.callbacks.Misspelt.on_rounds_end would never be called; allowed: on_round_end | on_end",
        ),
        ({"tests.callbacks:Stopping": {"most": 1}}, "cannot be made with {'most': 1}: TypeError"),
    ],
)
def test_anything_else_than_a_callback_is_refused(callback: Any, words: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(words)):
        make_callbacks(resolved(callback))


def test_a_callback_that_cannot_load_its_state_is_named() -> None:
    raising = make_callbacks(resolved({"tests.callbacks:Raising": {"where": "load_state"}}))
    with pytest.raises(CallbackError, match="Raising.load_state raised ValueError: the mail"):
        raising.set_state(raising.get_state())
