"""Training as a function call."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from nitro_rl import train
from runtime.errors import RunError
from tests.helpers import SMALL_EXPERIMENT

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)
TREE = yaml.safe_load(SMALL_EXPERIMENT) | {"stop": {"max_rounds": 2}}


def test_it_trains_quietly_and_leaves_no_handler_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "small.yaml").write_text(SMALL_EXPERIMENT)
    handlers = [signal.getsignal(number) for number in SIGNALS]
    result = train(file, out=tmp_path / "called", overrides=["stop.max_rounds=2"], is_quiet=True)
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert capsys.readouterr().out == ""
    assert result.directory == tmp_path / "called"
    assert (result.summary["stop_reason"], result.summary["experiment"]) == ("max_rounds", "small")
    assert result.policy.predict(np.zeros(11)).shape == (3,)
    assert result.best_policy.policy_version == result.summary["evaluation_round_best"]


def test_a_dict_will_do_a_run_goes_on_and_actors_import_from_where_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (scripts := tmp_path / "scripts").mkdir()
    (scripts / "mine.py").write_text(
        "from tests.environments import Counter\ndef make():\n    return Counter()\n"
    )
    monkeypatch.syspath_prepend(scripts)
    monkeypatch.chdir(tmp_path)
    tree = TREE | {
        "environment": {"id": "mine:make", "max_episode_steps": 20},
        "evaluation": {"every_rounds": 0},
    }
    train(tree | {"stop": {"max_rounds": 1}}, out="run")
    assert "\n    1 " in capsys.readouterr().out
    assert train(tree, out="run", resume=True, is_quiet=True).summary["rounds"] == 2
    with pytest.raises(RunError, match="holds a run already"):
        train(TREE, out="run")
    Path("run/summary.json").write_text('{"seeds": [{}]}')
    with pytest.raises(RunError, match="holds runs of several seeds"):
        train(tree, out="run", resume=True)


@pytest.mark.parametrize(
    ("experiment", "options", "text"),
    [
        (TREE | {"sed": 1}, {}, "experiment: 1 problem:\n  sed is not a known key; did you mean"),
        ("none.yaml", {}, "cannot be read"),
        (TREE, {"overrides": ["seed=1"]}, "change the dict"),
        ("small.yaml", {"overrides": "seed=1"}, r"allowed: \['seed=1'\]"),
        (TREE, {"resume": True}, "out="),
    ],
)
def test_what_cannot_begin_is_refused(
    tmp_path: Path, experiment: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(RunError, match=text):
        train(
            experiment,
            **{"out": tmp_path / "run"} | options if "resume" not in options else options,
        )
    assert not (tmp_path / "run").exists()


def test_another_thread_is_refused_and_a_failure_raised(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(RunError, match="main thread"):
        threads.submit(train, TREE, out=tmp_path / "run").result()
    failing = {"environment": {"id": "tests.environments:FailingInActors"}}
    with pytest.raises(RunError, match="the training failed: .*"):
        train(TREE | failing, out=tmp_path / "run", is_quiet=True)


def test_a_signal_ends_it_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("runtime.show.display.RunDisplay.on_round_end", show)
    handlers = [signal.getsignal(one) for one in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        train(TREE, out=tmp_path / "run")
    assert [signal.getsignal(one) for one in SIGNALS] == handlers
    assert (tmp_path / "run" / "summary.json").read_text().count('"interrupted"') == 1
