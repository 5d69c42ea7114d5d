"""The plain path and the fast one: the same training, and a message that explains why it is slower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import runtime.learner.fast
from lambda_actor.fast import PLAIN_VARIABLE
from runtime.learner.fast import compiled
from tests.helpers import ROOT, SMALL_EXPERIMENT, events, overrides, results_only, rounds, train

# Not ``-m runtime``, which tests start from a process with compiled functions (`tests.warm`).
_TRAIN = "import sys; from runtime.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_both_paths_train_alike_and_the_slow_one_says_so_once(tmp_path: Path) -> None:
    file, fast, plain = tmp_path / "small.yaml", tmp_path / "fast", tmp_path / "plain"
    file.write_text(SMALL_EXPERIMENT)
    finished = train(file, fast, *(options := overrides(stop__max_rounds=2)))
    assert finished.returncode == 0, finished.stderr
    assert PLAIN_VARIABLE not in finished.stdout
    slow = subprocess.run(
        [sys.executable, "-c", _TRAIN, "train", str(file), "--out", str(plain), *options],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, PLAIN_VARIABLE: "1"},
    )
    assert slow.returncode == 0, slow.stderr
    assert [line for line in slow.stdout.splitlines() if line.startswith("! ")] == [
        f"! steps: the environment's are slower than they could be: {PLAIN_VARIABLE} is set",
        f"! updates: they are slower than they could be: {PLAIN_VARIABLE} is set",
    ]
    assert f"{PLAIN_VARIABLE} is set" in events(plain, "run_started")[0]["updates"]
    expected, found = results_only(rounds(fast)), results_only(rounds(plain))
    # Steps are equal to the digit. Gradients differ by the order in which floats are added.
    assert found[0]["episode_return_mean"] == expected[0]["episode_return_mean"]
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        assert {key: value for key, value in row.items() if value is not None} == pytest.approx(
            {key: value for key, value in other.items() if value is not None}, rel=1e-3, abs=1e-5
        )
    assert found != expected, "the plain path was not taken"


def test_what_a_machine_lacks_is_said_and_a_function_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, why in (
        ("HAS_ONEDNN", f"torch {torch.__version__} has no mkldnn._linear_pointwise"),
        ("HAS_SCRIPTS", "Python 3.14 and later have no TorchScript"),
    ):
        monkeypatch.setattr(runtime.learner.fast, name, False)
        assert why in runtime.learner.fast.why_off()
    assert compiled(torch.sin) is torch.sin
