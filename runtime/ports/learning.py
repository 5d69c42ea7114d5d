"""How batches become policies.

Shape letters, used everywhere: ``T`` steps of a fragment, ``B`` trajectories of a batch, ``N`` = T·B samples,
``O`` observation size, ``A`` action size, ``D`` parameters of a distribution over actions, ``P`` of a network.
``…`` stands for the rest of an observation's shape: ``O``, or ``F·C, H, W`` of stacked frames (see
`lambda_actor.spaces.Spaces`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    from lambda_actor.spaces import Spaces
    from runtime.ports.sampling import Trajectory


@dataclass(frozen=True)
class Batch:
    """What accepted actors sampled: a round's in slot order, or those of an asynchronous update as they came.

    A trajectory of fewer than ``T`` steps is followed by padding: zeros, which belong to nothing. Where the simulator
    is on the learner's device, so is the batch: all but ``policy_versions`` and ``lengths`` are tensors there, and
    nothing is padded.

    Attributes:
        policy_versions: The version that acted, int64 ``[B]``.
        lengths: Steps of each trajectory, int64 ``[B]``.
        observations: Raw, float32 ``[T, B, O]``, or uint8 ``[T, B, F·C, H, W]`` or ``[T, B, 1, 1, Y]``.
        actions: As sampled, before the environment clipped them, float32 ``[T, B, A]``; discrete ones int64 ``[T, B]``.
        log_probs: log μ(a|s) of the acting policy, float32 ``[T, B]``.
        rewards: float64 ``[T, B]``.
        terminated: bool ``[T, B]``; the episode ended and nothing follows.
        bootstrap_mask: bool ``[T, B]``; the sequence is cut here (time limit or end of the fragment) and goes on
            from ``bootstrap_observations``.
        bootstrap_observations: ``[K, …]``, one for each True of ``bootstrap_mask`` in (B, T) order.
        action_masks: Which values of each choice the environment allowed, those of several choices one after the
            other, bool ``[T, B, M]``; None if it does not say.
    """

    policy_versions: np.ndarray
    lengths: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    bootstrap_mask: np.ndarray
    bootstrap_observations: np.ndarray
    action_masks: np.ndarray | None = field(default=None, kw_only=True)

    @property
    def env_steps(self) -> int:
        """``N``, without padding."""
        return int(self.lengths.sum())

    @property
    def is_step(self) -> np.ndarray:
        """What is no padding, bool ``[T, B]``."""
        return np.arange(len(self.rewards))[:, None] < self.lengths


@dataclass(frozen=True)
class DetectorSamples:
    """Samples on which the objective's curvature is measured; as in `Batch`, flattened to ``[N, …]``.

    Attributes:
        advantages: As the update used them (normalised where it normalises), float32 ``[N]``.
        value_targets: float32 ``[N]``.
        old_outputs: The distribution that the update kept close to (PPO: the acting policy's; IMPACT: the target
            network's), float32 ``[N, D]``; see `runtime.learner.distributions`. The logits of actions that were not
            allowed are `lambda_actor.policy.FORBIDDEN`, and tell so wherever the samples go.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray
    value_targets: np.ndarray
    old_outputs: np.ndarray


@dataclass(frozen=True)
class UpdateMetrics:
    """What one policy update reports; means over its last epoch, but ``kl`` over the whole batch after it.

    Attributes:
        kl: KL(old ‖ new) in nats, of the distribution that the update kept close to; for IMPALA the acting policy's,
            estimated from the samples. Infinite if the new policy's σ is too large for a float.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    explained_variance: float | None
    learning_rate: float


@dataclass(frozen=True)
class Aggregation:
    """How an update was put together from gradients of several learners; named as in `runtime.records.rows`.

    Attributes:
        gradients: Those that were applied.
        gradients_lost: Those whose learner failed.
        gradients_late: Those of earlier updates that came since the last one, and were not applied.
        aggregations: Versions of the parameter function.
        gradient_staleness_mean: Mean number of aggregations between a gradient's policy and the one that it was applied
            to.
        staleness_bound: None if there was none.
        truncated_fraction: Share of the samples whose ratio was cut.
    """

    gradients: int
    gradients_lost: int
    gradients_late: int
    aggregations: int
    gradient_staleness_mean: float
    staleness_bound: int | None
    truncated_fraction: float


@dataclass(frozen=True)
class Together:
    """How an update was made by several instances; named as in `runtime.records.rows`.

    Attributes:
        instances: Those that took part.
        reduce_s: Seconds in which an instance summed gradients with the others, mean over the instances.
        reduce_wait_s: Of them, those in which it waited for others.
        instance_memory_mib: The most memory that an instance has had, MiB.
    """

    instances: int
    reduce_s: float
    reduce_wait_s: float
    instance_memory_mib: float


@dataclass(frozen=True)
class Update:
    """One policy update.

    Attributes:
        samples: What it was made on, for the detector.
        staleness: By trajectory, how many versions older than the policy that was updated the acting one was,
            int64 ``[B]``.
        is_replay: Whether these trajectories had been trained on before.
        aggregation: How it was put together; None if one process made it.
    """

    metrics: UpdateMetrics
    samples: DetectorSamples
    staleness: np.ndarray
    is_replay: bool = False
    aggregation: Aggregation | Together | None = None


@dataclass(frozen=True)
class CurvatureProblem:
    """A scalar objective whose Hessian is asked for: ``criterion(module(inputs), targets)``, to be *maximised*."""

    module: torch.nn.Module
    criterion: Any
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class State:
    """What a part needs to go on after a checkpoint: arrays by name, and values that JSON can hold."""

    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


class HasState(Protocol):
    """A part of a run that goes on after a checkpoint."""

    def get_state(self) -> State:
        """Returns what a resumption needs; what follows does not change it."""

    def set_state(self, state: State) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """A batch that is ready to be trained on: flattened, with advantages and value targets.

    Attributes:
        arrays: The samples as an `Update` hands them out.
        tensors: The same by name on the learner's device, observations as its networks take them.
        values: V of the observations when the samples were made, float32 ``[N]``.
        policy_versions: The version that acted, by trajectory, int64 ``[B]``.
    """

    arrays: DetectorSamples
    tensors: Mapping[str, torch.Tensor]
    values: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, eq=False)
class LossMeans:
    """What a gradient's samples cost before its step.

    Attributes:
        means: Mean policy loss, value loss and entropy, float32 ``[3]``, on the learner's device.
        sample_count: Samples that these are means over.
    """

    means: torch.Tensor
    sample_count: int


@dataclass(frozen=True, eq=False)
class Gradients:
    """A gradient of the loss, clipped as the settings say.

    Attributes:
        tensors: By parameter, ``policy.…`` and ``critic.…``.
    """

    tensors: Mapping[str, torch.Tensor]
    losses: LossMeans


class Learner(HasState, Protocol):
    """Trains the policy. One file per algorithm, on top of `runtime.learner.actor_critic`."""

    @property
    def policy_version(self) -> int:
        """Counts finished updates."""

    def weights(self) -> bytes:
        """Returns what acts, the policy, as a WEIGHTS message of `lambda_actor.wire`."""

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on every sample of a batch and moves to the next policy version.

        Args:
            batch: What was sampled.
            progress: Share of the training that is done, 0 to 1, for schedules.
        """

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on trajectories that it keeps, and moves to the next version; None if it keeps none.

        These trajectories are no part of a checkpoint: after a resumption there is nothing to replay.
        """

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the maximised objective of that name at the present policy; a copy, free to be differentiated."""


class Updater(HasState, Protocol):
    """Turns batches into policy versions: it decides where and when a learner trains."""

    @property
    def policy_version(self) -> int:
        """The newest version."""

    def weights(self) -> bytes:
        """The newest policy as a WEIGHTS message of `lambda_actor.wire`."""

    def assemble(self, trajectories: Sequence[Trajectory], spaces: Spaces, *, clip_rewards: bool) -> Batch:
        """Returns what `submit` takes of these trajectories, in their order.

        Args:
            trajectories: Decoded and checked against ``spaces``.
            spaces: Of the environment.
            clip_rewards: Whether the sign of each reward counts.

        Raises:
            CorruptedMessageError: Frames cannot be unpacked.
        """

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Takes a batch to be trained on; may return before it is.

        Args:
            batch: Belongs to the updater from now on.
            progress: Share of the training that is done, 0 to 1, for schedules.

        Raises:
            RunError: What trains is gone.
        """

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the updates that have ended since the last call, oldest first.

        Args:
            timeout_s: Seconds to wait for the first one, if none has ended and one is under way.

        Raises:
            RunError: What trains is gone.
        """

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on trajectories that were trained on before; None if there is nothing to train on again."""

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the newest policy, as a copy that training leaves alone."""

    def get_state(self) -> State:
        """Returns what a resumption needs; nothing that was submitted is still under way when it is called."""

    def close(self) -> None:
        """Ends everything that trains; idempotent."""
