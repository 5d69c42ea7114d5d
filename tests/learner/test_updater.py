"""The updater that trains in place does what its learner does, and nothing more."""

from __future__ import annotations

import pytest

from runtime.learner import LearnerSpec
from runtime.learner.impact import Impact
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.updater import InPlaceUpdater
from tests.learner.learning import VECTORS, assert_same, everything, roll

pytestmark = pytest.mark.usefixtures("one_thread")


def make_learner() -> Impact:
    return Impact(
        LearnerSpec(
            ImpactSettings(
                kind="impact", staleness_max=8, normalize_observations=True, minibatch_steps=12
            ),
            VECTORS,
            seed=3,
        )
    )


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
    assert other.poll(0.0) == [], "an unknown update belongs to another training"
    samples = one.poll(0.0)[0].samples
    values = [
        problem.criterion(problem.module(problem.inputs), problem.targets).item()
        for problem in (updater.curvature_problem("log_prob", samples) for updater in (one, other))
    ]
    assert values == values[:1] * 2
    learner = make_learner()
    learner.set_state(one.get_state())
    assert_same(everything(restored), everything(learner))
    other.close()
    other.close()
