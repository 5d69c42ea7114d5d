"""A learner that does everything in several processes."""

from __future__ import annotations

import dataclasses
import json
import zlib
from contextlib import ExitStack

import numpy as np
import torch

from runtime.errors import ExperimentError
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.parallel.group import TorchGroup
from runtime.learner.parallel.processes import LearnerProcesses
from runtime.learner.parallel.tasks import Task, spec_values
from runtime.ports.learning import Batch, CurvatureProblem, DetectorSamples, Learner, State, Update


def make_parallel_learner(
    spec: LearnerSpec, *, processes: int | None, device: str, timeout_s: float, stack: ExitStack
) -> Learner:
    """Makes a learner in as many processes as were asked for.

    Args:
        spec: What it is made of.
        processes: As `process_count` takes it.
        device: ``cpu`` or ``cuda``.
        timeout_s: Seconds that the slowest process may stay behind the fastest.
        stack: Ends the processes.

    Raises:
        ExperimentError: More processes than GPUs.
        RunError: A process does not start.
    """
    size = process_count(processes, device)
    if size == 1:
        return make_learner(spec, device=device)
    others = LearnerProcesses(size, device=device, timeout_s=timeout_s)
    stack.callback(others.close)
    return DataParallelLearner(spec, others)


def process_count(wanted: int | None, device: str) -> int:
    """Returns how many processes share each gradient.

    Args:
        wanted: What was asked for; None = one for each GPU, and one if there is none.
        device: ``cpu`` or ``cuda``.

    Raises:
        ExperimentError: More than there are GPUs.
    """
    if device == "cpu":
        return wanted or 1
    gpus = torch.cuda.device_count()
    if wanted is not None and wanted > gpus:
        raise ExperimentError(f"learner.processes = {wanted}: each needs a GPU of its own, and {gpus} "
                              f"{'is' if gpus == 1 else 'are'} here; allowed: null | 1 to {gpus}")
    return wanted or gpus


class DataParallelLearner:
    """A learner that updates in all processes; see `runtime.ports.learning.Learner`.

    What it gives is what one process gives, but for the rounding of sums. The single steps of an update are not
    offered: they would have to be told to the other processes one by one.
    """

    def __init__(self, spec: LearnerSpec, processes: LearnerProcesses) -> None:
        """Makes the learner in all processes.

        Args:
            spec: What it is made of.
            processes: The others; they serve one learner at a time.
        """
        self._processes = processes
        processes.tell(Task("make", spec_values(spec)))
        self.here = make_learner(spec, device=processes.device, group=processes.group)
        self.set_state(self.here.get_state())

    @property
    def policy_version(self) -> int:
        """The version that all processes have."""
        return self.here.policy_version

    def weights(self) -> bytes:
        """Returns the policy as a WEIGHTS message."""
        return self.here.weights()

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch.

        Raises:
            RunError: A process is gone.
        """
        arrays = {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}
        with self._processes.together(Task("update", {"progress": progress}, arrays)):
            return self.here.update(batch, progress=progress)

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on what is kept; None if that is nothing, or the algorithm does not replay.

        Raises:
            RunError: A process is gone.
        """
        with self._processes.together(Task("replay", {"progress": progress})):
            return self.here.replay(progress=progress)

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the present policy, in this process."""
        return self.here.curvature_problem(objective, samples)

    def get_state(self) -> State:
        """Returns the state that all processes have; one that has drifted off is brought back first.

        Raises:
            RunError: A process is gone.
        """
        state = self.here.get_state()
        if len(set(self.fingerprints())) > 1:
            self.set_state(state)
        return state

    def set_state(self, state: State) -> None:
        """Has all processes go on from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
            RunError: A process is gone.
        """
        self.here.set_state(state)
        self._processes.tell(Task("set_state", {"values": state.values}, state.arrays))

    def fingerprints(self) -> list[int]:
        """Returns a checksum of each process' state; all are equal."""
        with self._processes.together(Task("fingerprint")):
            return fingerprints(self.here, self._processes.group)


def do_task(task: Task, learner: Learner, group: TorchGroup) -> None:
    """Does in one of the other processes what the first one does.

    Raises:
        ValueError: There is no such task.
    """
    match task.name:
        case "update":
            learner.update(Batch(**task.arrays), progress=task.values["progress"])
        case "replay":
            learner.replay(progress=task.values["progress"])
        case "set_state":
            learner.set_state(State(dict(task.arrays), task.values["values"]))
        case "fingerprint":
            fingerprints(learner, group)
        case name:
            raise ValueError(f"unknown task {name!r}")


def fingerprints(learner: Learner, group: TorchGroup) -> list[int]:
    """Returns a checksum of each process' state; to be called in all of them."""
    state = learner.get_state()
    checksum = zlib.crc32(json.dumps(state.values, sort_keys=True).encode())
    for name in sorted(state.arrays):
        checksum = zlib.crc32(np.ascontiguousarray(state.arrays[name]).tobytes(), checksum)
    # Sums of one number and zeros; as float64, which holds 32 bits exactly.
    device = "cpu" if torch.distributed.get_backend() == "gloo" else f"cuda:{group.rank}"
    checksums = torch.zeros(group.size, dtype=torch.float64, device=device)
    checksums[group.rank] = checksum
    group.sum([checksums])
    return [int(value) for value in checksums.tolist()]
