"""Settings of the algorithms, and of updaters without functions. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from runtime.errors import ExperimentError
from runtime.experiment.algorithm import AlgorithmSettings
from runtime.experiment.learner import UpdaterSettings
from runtime.experiment.section import Count, Field, NonNegative, Positive, Share

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater


class PpoSettings(AlgorithmSettings):
    """Settings of PPO."""

    learner: ClassVar[str] = "runtime.learner.ppo:Ppo"
    has_truncated_loss: ClassVar[bool] = True

    epochs: Count = Field(10, description="passes over each batch")
    gae_lambda: Share = Field(0.95, description="λ of generalized advantage estimation")
    clip: Positive = Field(0.2, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(
        0.0,
        description="initial β of the adaptive KL penalty (impact: towards the target network); 0 = no "
        "penalty",
    )
    kl_target: Positive = Field(0.01, description="KL per update that β adapts to, nats")

    @property
    def passes(self) -> int:
        """Number of epochs."""
        return self.epochs


class OffPolicySettings(AlgorithmSettings):
    """Settings that IMPACT and IMPALA share."""

    is_off_policy: ClassVar[bool] = True

    minibatch_steps: Count = Field(
        512,
        description="most samples per gradient step (impact, impala: whole fragments, at least one)",
    )
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")


class ImpactSettings(OffPolicySettings):
    """Settings of IMPACT."""

    learner: ClassVar[str] = "runtime.learner.impact:Impact"
    learning_rate: Positive = Field(5e-4, description="Adam's step size")
    clip: Positive = Field(0.4, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(
        1.0,
        description="initial β of the adaptive KL penalty (impact: towards the target network); 0 = no "
        "penalty",
    )
    kl_target: Positive = Field(0.01, description="KL per update that β adapts to, nats")
    target_update_frequency: Positive = Field(
        1.0,
        description="the target network is replaced after training on this × buffer_batches · uses_max · "
        "minibatch_steps samples",
    )
    buffer_batches: Annotated[int, Field(ge=1, le=1000)] = Field(
        8, description="N, minibatches kept for replay"
    )
    uses_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="K, most times that a minibatch is trained on; 1 in synchronous rounds"
    )


class ImpalaSettings(OffPolicySettings):
    """Settings of IMPALA."""

    learner: ClassVar[str] = "runtime.learner.impala:Impala"
    learning_rate: Positive = Field(6e-4, description="Adam's step size")
    value_coefficient: NonNegative = Field(
        0.5, description="weight of the value loss ½(V − target)²"
    )


class InstanceSettings(UpdaterSettings):
    """Settings for training where the loop runs."""

    is_exact: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.updaters import InPlaceUpdater

        return InPlaceUpdater(learner)


class ExternalSettings(UpdaterSettings):
    """Settings of an external trainer, which samples with `nitro_rl.ActorPool`."""

    has_instance: ClassVar[bool] = False
    is_external: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> Updater:
        """Always raises, because nothing here trains.

        Raises:
            ExperimentError: Always.
        """
        raise ExperimentError(
            "learner.kind = external: only nitro_rl.ActorPool samples with it, for a trainer of your "
            "own; allowed for train: any other"
        )
