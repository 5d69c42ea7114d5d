"""Several processes train as one does: real processes, gloo, no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.policy import default_network
from lambda_actor.spaces import Spaces
from runtime.config.loading import experiment_from_tree
from runtime.errors import ExperimentError, RunError
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.parallel.learner import DataParallelLearner, make_parallel_learner, process_count
from runtime.learner.parallel.processes import LearnerProcesses
from runtime.learner.parallel.tasks import Task
from runtime.ports.learning import Batch, Learner
from tests.helpers import ROOT, is_alive, wait_for
from tests.learner.learning import COMBINED, random_observations

VECTORS = Spaces(observation_shape=(5,), action_size=2)
PIXELS = Spaces(observation_shape=(2, 20, 20), frame_shape=(1, 20, 20), frame_stack=2, action_count=3)
SETTINGS = {"minibatch_steps": 8, "learning_rate": 1e-3}


def make_spec(kind: str, spaces: Spaces, **settings: Any) -> LearnerSpec:
    own = {"ppo": {"epochs": 2}, "impact": {"uses_max": 3, "buffer_batches": 2}, "impala": {}}[kind]
    experiment = experiment_from_tree({
        "environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}, "seed": 4,
        "algorithm": {"kind": kind, kind: {**SETTINGS, **own, **settings}},
    }, source="test").resolved().fitted(spaces, preprocessing="none")
    return LearnerSpec(experiment.algorithm, spaces, experiment.network.kind, experiment.seed)


def batch(spaces: Spaces, *, version: int, steps: int = 7, trajectories: int = 3) -> Batch:
    """Samples near to what an untrained policy would give; the last step of each trajectory is cut."""
    random = np.random.default_rng((version, steps, trajectories))
    shape = (steps, trajectories)

    def observations(count: tuple[int, ...]) -> np.ndarray:
        if spaces.is_combined:
            return random_observations(random, spaces, count)
        if spaces.is_pixels:
            return random.integers(256, size=(*count, *spaces.observation_shape), dtype=np.uint8)
        return random.normal(size=(*count, *spaces.observation_shape)).astype(np.float32)

    if spaces.is_discrete:
        actions = random.integers(spaces.action_count, size=shape)
        log_probs = np.full(shape, -np.log(spaces.action_count), np.float32)
    else:
        actions = random.normal(size=(*shape, spaces.action_size)).astype(np.float32)
        log_probs = (-0.5 * (actions**2 + np.log(2 * np.pi))).sum(-1).astype(np.float32)
    cut = np.zeros(shape, np.bool_)
    cut[-1] = True
    return Batch(policy_versions=np.full(trajectories, version), lengths=np.full(trajectories, shape[0]),
                 observations=observations(shape), actions=actions, log_probs=log_probs,
                 rewards=random.normal(size=shape), terminated=np.zeros(shape, np.bool_),
                 bootstrap_mask=cut, bootstrap_observations=observations((trajectories,)))


def train(learner: Learner, spaces: Spaces, updates: int = 3, **sizes: int) -> list[Any]:
    """Updates, each with two replays where the algorithm has any; what they report."""
    made = []
    for step in range(updates):
        made.append(learner.update(batch(spaces, version=learner.policy_version, **sizes), progress=step / 10))
        made += [update for _ in range(2) if (update := learner.replay(progress=step / 10)) is not None]
    return made


def assert_equal_but_for_rounding(together: Learner, alone: Learner) -> None:
    """Adam divides a gradient by its own size, so that one near to 0 is moved by what is only its rounding."""
    found, expected = together.get_state(), alone.get_state()
    assert found.values == pytest.approx(expected.values)
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[name], array, rtol=1e-5, err_msg=name, atol=max(
            1e-5 * np.abs(array).max(initial=0.0), 1e-3 * SETTINGS["learning_rate"]))


# With processes of their own; there is one group at a time.


def test_two_train_as_one_until_one_is_killed_which_ends_the_run_soon_and_by_name() -> None:
    chosen = make_spec("ppo", VECTORS)
    processes = LearnerProcesses(2, device="cpu", timeout_s=600.0)
    (other,) = processes.process_ids()
    try:
        learner, alone = DataParallelLearner(chosen, processes), make_learner(chosen, device="cpu")
        train(learner, VECTORS, updates=1)
        train(alone, VECTORS, updates=1)
        assert_equal_but_for_rounding(learner, alone)
        # Stopped first, so that the sum really waits for it.
        os.kill(other, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (other, signal.SIGKILL)).start()
        with pytest.raises(RunError, match=r"process 2 of 2 \(killed by SIGKILL\)"):
            train(learner, VECTORS, updates=1)
        with pytest.raises(RunError, match="in the middle of an update"):
            learner.update(batch(VECTORS, version=1), progress=0.0)
    finally:
        processes.close()


def test_a_process_that_hangs_is_not_awaited_for_ever() -> None:
    chosen = make_spec("ppo", VECTORS)
    processes = LearnerProcesses(2, device="cpu", timeout_s=5.0)
    (other,) = processes.process_ids()
    try:
        learner = DataParallelLearner(chosen, processes)
        os.kill(other, signal.SIGSTOP)
        with pytest.raises(RunError, match="the contact between its processes"):
            train(learner, VECTORS, updates=1)
    finally:
        processes.close()
    assert not is_alive(other)


def test_what_the_other_process_raised_is_told() -> None:
    processes = LearnerProcesses(2, device="cpu", timeout_s=60.0)
    try:
        processes.tell(Task("dance"))
        with pytest.raises(RunError, match="exit code 1: .*ValueError: no learner yet for 'dance'"):
            processes.group.sum([torch.zeros(3)])
    finally:
        processes.close()


PARENT = """
import time
from runtime.learner.parallel.processes import LearnerProcesses
from runtime.learner.parallel.tasks import Task
processes = LearnerProcesses(2, device="cpu", timeout_s=600.0)
print(*processes.process_ids(), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_a_killed_training_and_ctrl_c_is_for_the_first_alone() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})
    with parent:
        other = int(parent.stdout.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(other, number)
        assert os.getpgid(other) != os.getpgid(parent.pid)
        time.sleep(0.5)
        assert is_alive(other), "the first process decides when it ends"
        parent.kill()
    wait_for(lambda: not is_alive(other), "the process to die with its parent")


def test_one_process_needs_no_group() -> None:
    chosen = make_spec("impala", VECTORS)
    with ExitStack() as stack:
        learner = make_parallel_learner(chosen, processes=None, device="cpu", timeout_s=60.0, stack=stack)
        assert not isinstance(learner, DataParallelLearner)


def test_as_many_processes_as_gpus_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [process_count(count, "cuda") for count in (None, 1, 4)] == [4, 1, 4]
    assert [process_count(count, "cpu") for count in (None, 1, 9)] == [1, 1, 9]
    with pytest.raises(ExperimentError, match=r"learner.processes = 5.*4 are here; allowed: null \| 1 to 4"):
        process_count(5, "cuda")


# With processes that several tests share


@pytest.fixture(scope="module")
def processes() -> Iterator[LearnerProcesses]:
    made = LearnerProcesses(3, device="cpu", timeout_s=60.0)
    yield made
    ids = made.process_ids()
    made.close()
    assert not any(map(is_alive, ids))


@pytest.mark.parametrize(("kind", "spaces"), [
    ("ppo", VECTORS), ("impact", VECTORS), ("impala", VECTORS), ("ppo", PIXELS), ("impact", PIXELS),
    ("impala", PIXELS), ("ppo", COMBINED)],
    ids=lambda value: "" if isinstance(value, str) else default_network(value))
def test_updates_and_replays_are_those_of_one_process(
    processes: LearnerProcesses, kind: str, spaces: Spaces
) -> None:
    chosen = make_spec(kind, spaces)
    together, alone = DataParallelLearner(chosen, processes), make_learner(chosen, device="cpu")
    for found, expected in zip(train(together, spaces), train(alone, spaces), strict=True):
        assert vars(found.metrics) == pytest.approx(vars(expected.metrics), rel=1e-5, abs=1e-5)
        assert (found.is_replay, found.staleness.tolist()) == (expected.is_replay, expected.staleness.tolist())
        np.testing.assert_allclose(found.samples.advantages, expected.samples.advantages, rtol=1e-5, atol=1e-5)
    assert together.policy_version == alone.policy_version >= 3
    assert_equal_but_for_rounding(together, alone)
    assert len(set(together.fingerprints())) == 1, "all processes have the same parameters, bit by bit"


@pytest.mark.parametrize("kind", ["ppo", "impact", "impala"])
def test_a_minibatch_may_be_smaller_than_the_group(processes: LearnerProcesses, kind: str) -> None:
    chosen = make_spec(kind, VECTORS, minibatch_steps=2)
    together, alone = DataParallelLearner(chosen, processes), make_learner(chosen, device="cpu")
    for learner in (together, alone):
        train(learner, VECTORS, steps=1, trajectories=5)
    assert_equal_but_for_rounding(together, alone)


def test_the_share_of_each_process_counts(processes: LearnerProcesses) -> None:
    """The oracle can fail: a group whose other processes add nothing gives another policy."""
    chosen = make_spec("ppo", VECTORS)

    class Deaf:
        rank, size = 0, processes.group.size

        def sum(self, tensors: list[torch.Tensor]) -> None:
            pass

    deaf, alone = make_learner(chosen, device="cpu", group=Deaf()), make_learner(chosen, device="cpu")
    for learner in (deaf, alone):
        train(learner, VECTORS)
    with pytest.raises(AssertionError):
        assert_equal_but_for_rounding(deaf, alone)


def test_a_restored_state_goes_on_as_before(processes: LearnerProcesses) -> None:
    chosen = make_spec("ppo", VECTORS)
    alone = make_learner(chosen, device="cpu")
    train(alone, VECTORS)
    together = DataParallelLearner(chosen, processes)
    together.set_state(alone.get_state())
    assert len(set(together.fingerprints())) == 1
    for learner in (together, alone):
        learner.update(batch(VECTORS, version=learner.policy_version), progress=0.5)
    assert_equal_but_for_rounding(together, alone)
    assert together.weights() != make_learner(chosen, device="cpu").weights()


def test_processes_that_drifted_apart_are_brought_back(processes: LearnerProcesses) -> None:
    chosen = make_spec("ppo", VECTORS)
    together = DataParallelLearner(chosen, processes)
    with torch.no_grad():
        next(together.here.policy.parameters()).add_(1.0)
    assert len(set(together.fingerprints())) == 2
    together.get_state()
    assert len(set(together.fingerprints())) == 1
