"""A learner that does everything in several processes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from runtime.errors import ExperimentError, RunError
from runtime.interfaces import (
    Batch,
    CurvatureProblem,
    DetectorSamples,
    Gradients,
    HasCurvature,
    Learner,
    LossMeans,
    Replays,
    Snapshot,
    State,
    TrainingSamples,
    Update,
)
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.parallel.group import TorchGroup
from runtime.learner.parallel.processes import LearnerProcesses
from runtime.learner.parallel.tasks import Kept, Make


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
    """A learner that does in all processes what it is asked to; see `runtime.interfaces.Learner`.

    What it gives is what one process gives, but for the rounding of sums.
    """

    def __init__(self, spec: LearnerSpec, processes: LearnerProcesses) -> None:
        """Makes the learner in all processes.

        Args:
            spec: What it is made of.
            processes: The others; they serve one learner at a time.
        """
        self._processes, self._kept = processes, Kept()
        processes.tell(self._kept.writer(Make(spec)))
        self.here = make_learner(spec, device=processes.device, group=processes.group)
        self.set_state(self.here.get_state())

    @property
    def policy_version(self) -> int:
        """The version that all processes have."""
        return self.here.policy_version

    def weights(self) -> bytes:
        """Returns the policy as a WEIGHTS message."""
        return self.here.weights()

    def snapshot(self) -> Snapshot:
        """Returns what a learner elsewhere starts from."""
        return self.here.snapshot()

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Has all processes take a snapshot's place."""
        self._everywhere("load_snapshot", snapshot)

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch.

        Raises:
            RunError: A process is gone.
        """
        update: Update = self._everywhere("update", batch, progress=progress)
        return update

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on what is kept; None if that is nothing, or the algorithm does not replay.

        Raises:
            RunError: A process is gone.
        """
        if not isinstance(self.here, Replays):
            return None
        update: Update | None = self._everywhere("replay", progress=progress)
        return update

    def begin(self, batches: Sequence[Batch], *, progress: float) -> None:
        """Begins an update in all processes."""
        self._everywhere("begin", batches, progress=progress)

    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages and value targets, in each process for itself."""
        samples: TrainingSamples = self._everywhere("samples", batch)
        return samples

    def gradients(self, samples: TrainingSamples, indices: torch.Tensor | None = None) -> Gradients:
        """Computes the gradient of the loss, of which each process takes its share."""
        gradients: Gradients = self._everywhere("gradients", samples, indices)
        return gradients

    def apply(self, gradients: Sequence[tuple[Gradients, float]]) -> None:
        """Makes one optimiser step for each gradient in all processes."""
        self._everywhere("apply", gradients)

    def finish(self, samples: TrainingSamples, losses: Sequence[LossMeans]) -> Update:
        """Ends an update in all processes."""
        update: Update = self._everywhere("finish", samples, losses)
        return update

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the present policy, in this process.

        Raises:
            RunError: The algorithm has none.
        """
        if not isinstance(self.here, HasCurvature):
            raise RunError("this algorithm gives the detector no objective; another scaler.kind needs none")
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
        """
        self.here.set_state(state)
        self._processes.tell(self._kept.writer(self._kept.call("set_state", (state,), {})))

    def fingerprints(self) -> list[int]:
        """Returns a checksum of each process' state; all are equal."""
        with self._processes.together(self._kept.writer("fingerprint")):
            return fingerprints(self.here, self._processes.group)

    def _everywhere(self, method: str, *arguments: Any, **options: Any) -> Any:
        call = self._kept.call(method, arguments, options)
        with self._processes.together(self._kept.writer(call)):
            result = getattr(self.here, method)(*arguments, **options)
        self._kept.keep(call, result)
        return result


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
