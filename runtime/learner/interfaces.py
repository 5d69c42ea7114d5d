"""Interface of learners, which turn batches into policies.

Shape letters, used everywhere: ``T`` steps of a fragment, ``B`` trajectories of a batch, ``N`` = T·B samples,
``O`` observation size, ``A`` action size, ``D`` parameters of a distribution over actions, ``P`` of a network.
``…`` is the rest of an observation's shape: ``O``, or ``F·C, H, W`` of stacked frames (see
`lambda_actor.spaces.Spaces`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runtime.records.state import HasState

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Batch:
    """Samples of accepted actors: a round's in slot order, or an asynchronous update's in order of arrival.

    A trajectory of fewer than ``T`` steps is followed by padding with zeros. If the simulator is on the learner's
    device, so is the batch: all but ``policy_versions`` and ``lengths`` are tensors there, without padding.

    Attributes:
        policy_versions: The version that acted, int64 ``[B]``.
        lengths: Steps of each trajectory, int64 ``[B]``.
        observations: Raw, float32 ``[T, B, O]``, or uint8 ``[T, B, F·C, H, W]`` or ``[T, B, 1, 1, Y]``.
        actions: As sampled, before the environment clips them, float32 ``[T, B, A]``; discrete: int64 ``[T, B]``.
        log_probs: log μ(a|s) of the acting policy, float32 ``[T, B]``.
        rewards: float64 ``[T, B]``.
        terminated: bool ``[T, B]``; the episode ended and no reward can follow.
        bootstrap_mask: bool ``[T, B]``; the sequence is cut here (time limit or end of the fragment) and continues
            from ``bootstrap_observations``.
        bootstrap_observations: ``[K, …]``, one for each True of ``bootstrap_mask`` in (B, T) order.
        action_masks: Which values of each choice the environment allowed, choices concatenated, bool ``[T, B, M]``;
            None if the environment has no masks.
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
        """Steps that are not padding, bool ``[T, B]``."""
        return np.arange(len(self.rewards))[:, None] < self.lengths


@dataclass(frozen=True)
class DetectorSamples:
    """Samples on which the objective's curvature is measured; as in `Batch`, flattened to ``[N, …]``.

    Attributes:
        advantages: The update's advantages (normalized if it normalizes), float32 ``[N]``.
        value_targets: float32 ``[N]``.
        old_outputs: The distribution that the update kept close to (PPO: the acting policy's; IMPACT: the target
            network's), float32 ``[N, D]``; see `runtime.learner.distributions`. Forbidden actions have the logit
            `lambda_actor.policy.FORBIDDEN`, so these samples contain the action masks.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray
    value_targets: np.ndarray
    old_outputs: np.ndarray


@dataclass(frozen=True)
class UpdateMetrics:
    """Report of one policy update: means over its last epoch, except ``kl``, over the whole batch after it.

    Attributes:
        kl: KL(old ‖ new) in nats, from the distribution that the update kept close to. For IMPALA, estimated from the
            samples for the acting policy. Infinite if the new policy's σ is too large for a float.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    explained_variance: float | None
    learning_rate: float


@dataclass(frozen=True)
class Update:
    """One policy update.

    Attributes:
        samples: Its samples, for the detector.
        staleness: Versions between the acting policy and the updated one, by trajectory, int64 ``[B]``.
        is_replay: Whether these trajectories had been trained on before.
        columns: How several learners or instances made it: the columns of `runtime.records.rows` that only they have.
    """

    metrics: UpdateMetrics
    samples: DetectorSamples
    staleness: np.ndarray
    is_replay: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CurvatureProblem:
    """A scalar objective to differentiate twice: ``criterion(module(inputs), targets)``, which is *maximized*."""

    module: torch.nn.Module
    criterion: Any
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """A batch ready for training: flattened, with advantages and value targets.

    Attributes:
        arrays: The samples, as in an `Update`.
        tensors: The same by name on the learner's device, with observations as network inputs.
        values: V of the observations when the samples were made, float32 ``[N]``.
        policy_versions: The version that acted, by trajectory, int64 ``[B]``.
    """

    arrays: DetectorSamples
    tensors: Mapping[str, torch.Tensor]
    values: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, eq=False)
class LossMeans:
    """Losses of a gradient's samples before its step.

    Attributes:
        means: Mean policy loss, value loss and entropy, float32 ``[3]``, on the learner's device.
        sample_count: Number of samples.
    """

    means: torch.Tensor
    sample_count: int


class Learner(HasState, Protocol):
    """Trains the policy. One file per algorithm, on top of `runtime.learner.actor_critic`."""

    @property
    def policy_version(self) -> int:
        """Number of finished updates."""

    def weights(self) -> bytes:
        """Returns the acting policy as a WEIGHTS message of `lambda_actor.wire`."""

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on every sample of a batch and moves to the next policy version.

        Args:
            batch: The sampled batch.
            progress: Fraction of the training that is done, 0 to 1, for schedules.
        """

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on kept trajectories, and moves to the next version. Returns None if none are kept.

        Kept trajectories are not part of a checkpoint, so a resumed run has nothing to replay at first.
        """

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the maximized objective of that name at the current policy, as a copy to differentiate."""
