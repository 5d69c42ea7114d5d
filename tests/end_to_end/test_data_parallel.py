"""A training whose learner is several processes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S, ROOT, command, descendants, is_alive, overrides, rounds, summary, wait_for


def test_two_processes_train_as_one_and_the_loss_of_one_ends_the_run(
    reference: Path, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    changes = overrides(learner__processes=2, stop__max_rounds=1000)
    process = subprocess.Popen(
        command("train", str(experiment), "--out", str(out), *changes), cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((out / "checkpoints" / "round_000002.json").exists, "two rounds")
    below = descendants(process.pid)
    (other,) = [pid for pid in below if b"runtime.learner.parallel" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(other, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "the learner lost process 2 of 2 (killed by SIGKILL)" in summary(out)["error"]
    assert not any(map(is_alive, below))
    for found, expected in zip(rounds(out)[:2], rounds(reference), strict=False):
        for key in ("policy_loss", "value_loss", "entropy", "kl", "explained_variance", "episode_return_mean"):
            assert found[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
