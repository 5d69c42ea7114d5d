"""The updater that trains in place does what its learner does, and nothing more."""

from __future__ import annotations

import pytest

from runtime.learner.in_place import InPlaceUpdater
from tests.learner.learning import VECTORS, assert_same, everything, make, roll

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_trains_while_a_batch_is_submitted_and_hands_each_update_out_once() -> None:
    learner, alone = (make("impact", minibatch_steps=12) for _ in range(2))
    updater, expected = InPlaceUpdater(learner), []
    for seed in range(2):
        batch = roll(alone.weights(), VECTORS, seed=seed)
        updater.submit(batch, progress=0.25)
        expected.append(alone.update(batch, progress=0.25).metrics)
    assert updater.weights() == alone.weights()
    assert [update.metrics for update in updater.poll(1e9)] == expected
    replayed = updater.replay(progress=0.5)
    assert replayed is not None and replayed.is_replay
    assert updater.poll(1e9) == [], "a replay is returned, not queued"
    updater.submit(batch, progress=0.0)
    updater.set_state(alone.get_state())
    assert updater.poll(0.0) == [], "an unknown update belongs to another training"
    assert_same(everything(updater.learner), everything(alone))
    updater.close()
