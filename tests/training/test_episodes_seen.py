"""The steps of its environment's episodes that a run trains on, from first to last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runtime.records.checkpoint import load_newest_checkpoint
from tests.environments import StepShower
from tests.helpers import events, rounds, train

SHOWER = "tests.environments:make_step_shower"
FRAGMENT_STEPS, ACTORS, ROUNDS = 32, 2, 4
PACINGS = {
    "synchronous": "{kind: ppo, epochs: 1, minibatch_steps: 32}",
    "asynchronous": "{kind: impact, minibatch_steps: 32, uses_max: 1}",
}


def write(path: Path, *, algorithm: str = PACINGS["synchronous"], **environment: object) -> Path:
    path.write_text(f"""
environment: {{id: '{SHOWER}', kwargs: {environment}}}
algorithm: {algorithm}
scaler: {{kind: fixed, actors_fixed: {ACTORS}}}
actor: {{fragment_steps: {FRAGMENT_STEPS}, timeout_s: 30, provisioned: 0}}
fleet: {{processes: 1}}
budget: {{usd: 1.0}}
stop: {{max_rounds: {ROUNDS}}}
evaluation: {{every_rounds: 0}}
""")
    return path


def steps_seen(out: Path) -> np.ndarray:
    """Returns how often each step of an episode was trained on: the sum of its one-hot observations."""
    checkpoint = load_newest_checkpoint(out / "checkpoints", lambda stem, reason: None)
    count = checkpoint.values["learner"]["moments_count"]
    return np.rint(checkpoint.arrays["learner.moments.mean"] * count).astype(int)


@pytest.mark.parametrize("pacing", PACINGS)
def test_every_step_of_an_episode_is_seen_equally_often_but_for_those_still_open(
    tmp_path: Path, pacing: str
) -> None:
    path, out = write(tmp_path / "one.yaml", algorithm=PACINGS[pacing]), tmp_path / "run"
    finished = train(path, out)
    assert finished.returncode == 0, finished.stderr
    seen, rows = steps_seen(out), rounds(out)
    assert seen.sum() == rows[-1]["env_steps_total"] >= ROUNDS * ACTORS * FRAGMENT_STEPS
    open_episodes = seen[0] - seen[-1]
    assert 0 <= open_episodes <= 2 * ACTORS
    assert (np.diff(seen) <= 0).all()
    assert sum(row["replayed_steps"] for row in rows) > 0
    assert [row["episodes_dropped"] for row in rows] == [0] * len(rows)


@pytest.mark.parametrize("pacing", PACINGS)
def test_an_episode_that_cannot_be_continued_is_dropped_whole_counted_and_told(
    tmp_path: Path, pacing: str
) -> None:
    path, out = (
        write(tmp_path / "one.yaml", algorithm=PACINGS[pacing], is_random=True),
        tmp_path / "run",
    )
    finished = train(path, out)
    assert finished.returncode == 0, finished.stderr
    seen, rows = steps_seen(out), rounds(out)
    whole = FRAGMENT_STEPS // StepShower.EPISODE_STEPS
    assert set(seen) == {whole * sum(row["actors_returned"] for row in rows)}
    assert seen.sum() == rows[-1]["env_steps_total"] == sum(row["env_steps"] for row in rows)
    assert [row["episodes_dropped"] for row in rows] == [row["actors_returned"] for row in rows]
    assert all(row["replayed_steps"] is None for row in rows)
    reason = "not deterministic"
    (started,) = events(out, "run_started")
    assert reason in started["dropped"]
    told, _, _ = finished.stdout.partition("  round")
    assert reason in " ".join(told.split())
