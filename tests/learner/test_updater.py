"""The updater that trains in place does what its learner does, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.numpy

from runtime.config.schema import AlgorithmSection
from runtime.learner.impact import Impact
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.updater import InPlaceUpdater
from tests.helpers import PATIENCE_S, ROOT
from tests.learner.learning import VECTORS, assert_same, everything, roll

pytestmark = pytest.mark.usefixtures("one_thread")


def make_learner() -> Impact:
    return Impact(VECTORS, AlgorithmSection(kind="impact", staleness_max=8, impact=ImpactSettings(
        normalize_observations=True, minibatch_steps=12)), seed=3)


def test_it_trains_while_a_batch_is_submitted_and_hands_each_update_out_once() -> None:
    learner, alone = make_learner(), make_learner()
    updater = InPlaceUpdater(learner)
    assert updater.poll(1e9) == []
    batches = [roll(alone.weights(), VECTORS, seed=seed) for seed in range(2)]
    for batch in batches:
        updater.submit(batch, progress=0.25)
    expected = [alone.update(batch, progress=0.25) for batch in batches]
    assert updater.policy_version == 2
    assert updater.weights() == alone.weights()
    updates = updater.poll(1e9)
    assert [update.metrics for update in updates] == [update.metrics for update in expected]
    assert updater.poll(1e9) == []
    replayed = updater.replay(progress=0.5)
    assert replayed is not None and replayed.is_replay
    assert updater.poll(1e9) == [], "a replay is returned, not queued"


def test_a_restored_updater_goes_on_from_the_state_alone() -> None:
    one, other = InPlaceUpdater(make_learner()), InPlaceUpdater(restored := make_learner())
    one.submit(roll(one.weights(), VECTORS), progress=0.0)
    other.submit(roll(other.weights(), VECTORS, seed=9), progress=0.0)
    other.set_state(one.get_state())
    assert other.poll(0.0) == [], "what was not handed out belongs to another training"
    samples = one.poll(0.0)[0].samples
    values = [problem.criterion(problem.module(problem.inputs), problem.targets).item() for problem in (
        updater.curvature_problem("log_prob", samples) for updater in (one, other))]
    assert values == values[:1] * 2
    learner = make_learner()
    learner.set_state(one.get_state())
    assert_same(everything(restored), everything(learner))
    other.close()
    other.close()


TRAIN = """
import sys
from runtime.config.updaters import UPDATERS
UPDATERS.update({LINE})
from runtime.cli.main import main
sys.exit(main(["train", "experiment.yaml", "--out", "run"]))
"""


def test_the_updater_of_the_docs_trains(tmp_path: Path) -> None:
    """docs/design/add-an-updater.md: its example as it stands, registered by its one line; one step a round."""
    page = (ROOT / "docs" / "design" / "add-an-updater.md").read_text()
    example, line = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (file,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "one_step.py").write_text(example)
    (tmp_path / "experiment.yaml").write_text(file)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN.replace("{LINE}", "{" + line + "}")], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(row) for row in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [(row["round_index"], row["policy_version"], row["updates"]) for row in rows] == [(1, 0, 1), (2, 1, 1)]
    arrays = safetensors.numpy.load_file(max((tmp_path / "run" / "checkpoints").glob("*.safetensors")))
    assert arrays["learner.optimizer.0.step"] == 2.0
