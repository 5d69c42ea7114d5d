"""Training as a function call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from nitro_rl import train
from runtime.errors import ExperimentError, RunError
from tests.helpers import ROOT, SMALL_EXPERIMENT, results_only, rounds
from tests.helpers import train as train_by_command

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
TREE = yaml.safe_load(SMALL_EXPERIMENT) | {"stop": {"max_rounds": 2}}


def test_it_does_what_the_command_does_and_leaves_no_handler_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL_EXPERIMENT)
    handlers = [signal.getsignal(number) for number in SIGNALS]
    result = train(file, out=tmp_path / "called", overrides=["stop.max_rounds=2"], is_quiet=True)
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert capsys.readouterr().out == ""
    assert result.directory == tmp_path / "called"
    assert (result.summary["stop_reason"], result.summary["experiment"]) == ("max_rounds", "small")
    assert result.policy.predict(np.zeros(11)).shape == (3,)
    assert result.best_policy.policy_version == result.summary["evaluation_round_best"]
    assert (
        train_by_command(file, tmp_path / "commanded", "--set", "stop.max_rounds=2").returncode == 0
    )
    assert results_only(rounds(tmp_path / "called")) == results_only(rounds(tmp_path / "commanded"))


def test_a_dict_will_do_and_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, out = TREE | {"evaluation": {"every_rounds": 0}}, tmp_path / "run"
    train(tree | {"stop": {"max_rounds": 1}}, out=out)
    assert "round    1" in capsys.readouterr().out
    with pytest.raises(RunError, match="holds a run already"):
        train(tree, out=out)
    (out / "best_policy.safetensors").write_bytes(b"of an evaluation that no checkpoint knows")
    result = train(tree, out=out, resume=True, is_quiet=True)
    assert (result.summary["rounds"], result.summary["best_policy_file"]) == (2, None)
    with pytest.raises(
        RunError, match="best_policy.safetensors is not there: none of the run's evaluations"
    ):
        _ = result.best_policy


def test_what_cannot_begin_is_refused(tmp_path: Path) -> None:
    for wrong, text in (
        (TREE | {"sed": 1}, "experiment: 1 problem:\n  sed is not a known key; did you mean"),
        (tmp_path / "none.yaml", "cannot be read"),
    ):
        with pytest.raises(ExperimentError, match=text):
            train(wrong, out=tmp_path / "run")
    with pytest.raises(ExperimentError, match="change the dict"):
        train(TREE, overrides=["seed=1"])
    with pytest.raises(ExperimentError, match=r"allowed: \['seed=1'\]"):
        train(tmp_path / "small.yaml", overrides="seed=1")
    with pytest.raises(RunError, match="out = '' is no directory"):
        train(TREE, out="")
    with pytest.raises(RunError, match="out="):
        train(TREE, resume=True)
    assert not (tmp_path / "run").exists()


def test_actors_import_from_where_the_script_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.environments import Counter\ndef make():\n    return Counter()\n"
    )
    tree = TREE | {
        "environment": {"id": "mine:make", "max_episode_steps": 20},
        "evaluation": {"every_rounds": 0},
    }
    script = tmp_path / "script.py"
    script.write_text(
        f"from nitro_rl import train\nprint(train({tree!r}, is_quiet=True).summary['rounds'])\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = subprocess.run(
        [sys.executable, script],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr


def test_another_thread_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(RunError, match="main thread"):
        threads.submit(train, TREE, out=tmp_path / "run").result()


def test_a_signal_ends_it_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("runtime.show.display.PlainDisplay.on_round_end", show)
    handlers = [signal.getsignal(one) for one in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        train(TREE, out=tmp_path / "run")
    assert [signal.getsignal(one) for one in SIGNALS] == handlers
    assert (tmp_path / "run" / "summary.json").read_text().count('"interrupted"') == 1


def test_a_failure_is_raised(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the training failed: .*"):
        train(
            TREE | {"environment": {"id": "tests.end_to_end.failing_environment:make"}},
            out=tmp_path / "run",
            is_quiet=True,
        )
