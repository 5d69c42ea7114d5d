"""Recorded steps, which a GPU repeats, against steps made one by one. Off a GPU, a recording is the work itself."""

from __future__ import annotations

import os
import subprocess
import sys

from lambda_actor.fast import PLAIN_VARIABLE
from tests.helpers import ROOT

COMPARED = """
import numpy as np
import torch
from tests.learner.learning import VECTORS, make, roll
from runtime.learner.batch import assemble_batch

def learners():
    for _ in range(2):
        yield make("ppo", VECTORS, kl_coefficient=0.3, max_gradient_norm=0.5, entropy_coefficient=0.01)

one, other = learners()
batch = roll(one.weights(), VECTORS, trajectories=5)
samples = one.samples(batch)
chance = torch.Generator().manual_seed(1)
order = torch.randperm(len(samples.values), generator=chance)
minibatches = [*order[:50].split(16), None]
for rate in (1e-2, 3e-3):
    for learner in (one, other):
        for trained in learner.trained.values():
            trained.optimizer.learning_rate = rate
    descent = other._descent()
    expected = one._descent().steps(samples.tensors, minibatches, threads=1, torch_threads=1)
    for name, wanted in zip(one.trained, expected, strict=True):
        torch.testing.assert_close(descent.recorded_steps(name, samples.tensors, minibatches), wanted)
    for name, array in one.get_state().arrays.items():
        np.testing.assert_allclose(other.get_state().arrays[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
assert len(other._graphs) == 6, sorted(other._graphs)
print("equal")
"""


def test_recorded_steps_are_those_made_one_by_one() -> None:
    """At two learning rates, with three sizes of minibatches, and clipped gradients."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), PLAIN_VARIABLE: "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n"
