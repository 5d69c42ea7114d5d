"""The base of all algorithms: a model, its gradients and its steps.

An algorithm defines its samples (`samples`), their order (`update`), and what it maximizes (`surrogate`). All
algorithms share the loss (`runtime.learner.objective`). An update consists of

    begin → samples → descend → finish

which each algorithm's `update` calls. A step of `descend` is `gradients` → `apply`. Code that needs another order, such
as several learners, calls those two.

Derivatives of the loss with respect to the networks' outputs are written out, as are the derivatives of fully connected
networks (`runtime.learner.networks`). Autograd and modules would take longer than the arithmetic.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch

from lambda_actor import wire
from lambda_actor.frames import floats
from runtime.errors import CheckpointError
from runtime.experiment.algorithm import AlgorithmSettings
from runtime.learner import LearnerSpec
from runtime.learner.advantages import discounted_so_far
from runtime.learner.batch import Tensors, flat, float32, masked, unflat
from runtime.learner.descent import Descent
from runtime.learner.distributions import make_distribution
from runtime.learner.fast.trained_perceptron import make_trained
from runtime.learner.interfaces import (
    Batch,
    CurvatureProblem,
    DetectorSamples,
    LossMeans,
    TrainingSamples,
    Update,
    UpdateMetrics,
)
from runtime.learner.networks import (
    PolicyNetwork,
    ValueNetwork,
    layer_arrays,
    vectors_of,
    with_vectors,
)
from runtime.learner.normaliser import RunningMoments
from runtime.learner.objective import Objective, make_curvature_problem
from runtime.learner.share import Alone
from runtime.records.state import State

OBSERVATION_CLIP = 10.0
"""Normalized observations are clipped to ± this."""
_NO_CLIP = np.float32(3.0e38)
_PIXEL_SAMPLES = 1024
"""Observations per pass through a pixel network without gradients. Features are large."""
REWARD_CLIP = 10.0
"""Normalized rewards are clipped to ± this as in stable-baselines3's VecNormalize."""

Settings = TypeVar("Settings", bound=AlgorithmSettings)


@contextmanager
def _belonging() -> Iterator[None]:
    """Turns errors of state that does not fit a learner into a CheckpointError."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint does not fit this experiment's networks: {error}"
        ) from error


class ActorCritic(ABC, Generic[Settings]):
    """The base of the algorithms; see `runtime.learner.interfaces.Learner`.

    Attributes:
        settings: The algorithm's section of the experiment file.
        policy: Acts.
        critic: Estimates values.
        moments: Normalize observations; the policy trained next acts with them.
        return_moments: Moments of the returns. If rewards are normalized, they are divided by the deviation.
        acting_moments: Moments of the current version's weights: `moments` before `begin` merged a batch into them.
        distribution: Distribution over actions.
        policy_version: Number of finished updates.
        counters: Names of the numeric attributes that belong to a state.
        learning_rate: Learning rate of the most recent update.
        trained: Policy and critic by name, with gradients and optimizers.
        kl_coefficient: β, weight of the KL penalty.
        share: This process's share of the batches. In a group that trains together, each batch that it gets is its
            part of a larger one.
    """

    share: Alone = Alone()
    kl_coefficient: float = 0.0
    counters: tuple[str, ...] = ("policy_version", "kl_coefficient")

    def __init__(self, spec: LearnerSpec, *, device: str = "cpu") -> None:
        """Makes a learner with fresh networks.

        Args:
            spec: The specification. Its algorithm is fitted to the environment.
            device: ``cpu`` or ``cuda``.

        Raises:
            ValueError: The algorithm was not fitted.
        """
        self.settings = cast(Settings, spec.algorithm)
        if self.settings.normalize_observations is None:
            raise ValueError(
                "normalize_observations is open: fit the experiment to its environment first"
            )
        self.kind = spec.algorithm.kind
        self.seed = spec.seed
        self.device = torch.device(device)
        self._threads = spec.threads
        self._network = spec.network
        self._spaces = spec.spaces
        # Torch's threads spin for a while after each operation and would slow down the two threads of `descend`.
        self._torch_threads = (
            -(-spec.threads // 2) if spec.network.startswith("mlp") else spec.threads
        )
        # The number of threads affects the rounding of initial weights, which must not depend on the machine's cores.
        torch.set_num_threads(self._torch_threads)
        self.distribution = make_distribution(spec.spaces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            self.policy = PolicyNetwork(
                spec.spaces, spec.network, spec.initialisation, initial_std=spec.initial_std
            )
            self.critic = ValueNetwork(spec.spaces, spec.network, spec.initialisation)
        self.policy.to(self.device)
        self.critic.to(self.device)
        self.moments = (
            RunningMoments(spec.spaces.vector_size, spec.spaces.binary_parts)
            if self.settings.normalize_observations
            else RunningMoments(0)
        )
        self.acting_moments = self.moments.copy()
        self.return_moments = RunningMoments(1)
        self._graphs: dict[Any, Any] = {}
        self.policy_version = 0
        self.learning_rate = self.settings.learning_rate
        self.trained = {
            name: make_trained(
                network, learning_rate=self.learning_rate, epsilon=self.settings.adam_epsilon
            )
            for name, network in (("policy", self.policy), ("critic", self.critic))
        }

    # Implemented by each algorithm

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on every sample of a batch; see `runtime.learner.interfaces.Learner.update`."""

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on trajectories that the algorithm has kept. Returns None if there are none."""
        return None

    @abstractmethod
    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages and value targets of a batch with the current policy and critic."""

    @abstractmethod
    def surrogate(
        self, log_probs: torch.Tensor, samples: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each sample's objective, which is maximized, and its derivative by log π(a|s), both ``[N]``.

        Args:
            log_probs: log π(a|s) of the actions taken, ``[N]``.
            samples: The samples of one minibatch.
        """

    def kl(self, samples: TrainingSamples) -> float:
        """Returns the KL divergence for an update's report: mean KL(old ‖ π) at the current policy."""
        return self.mean_at_present(
            lambda outputs, part: self.distribution.kl(part["old_outputs"], outputs), samples
        )

    # What the networks compute, and what they hold

    def networks(self) -> dict[str, torch.nn.Module]:
        """Returns every network of a state by name."""
        return {"policy": self.policy, "critic": self.critic}

    def all_moments(self) -> dict[str, RunningMoments]:
        """Returns all moments of a state by name."""
        return {"moments": self.moments} | (
            {"return_moments": self.return_moments} if self.settings.normalize_rewards else {}
        )

    def evaluate(
        self, network: torch.nn.Module, observations: Any, moments: RunningMoments | None = None
    ) -> np.ndarray:
        """Returns a network's outputs for raw observations ``[N, …]``, without gradients. A tensor gives a tensor.

        Args:
            network: A network of this learner.
            observations: Raw observations.
            moments: Normalize them; None = the current moments.
        """
        inputs = self.inputs(observations, moments)
        with torch.no_grad():
            parts = torch.split(inputs, _PIXEL_SAMPLES) if inputs.dtype == torch.uint8 else [inputs]
            outputs: Any = torch.cat([network(part) for part in parts])
        if not isinstance(observations, torch.Tensor):
            outputs = outputs.cpu().numpy()
        return cast(np.ndarray, outputs)

    def inputs(self, observations: Any, moments: RunningMoments | None = None) -> torch.Tensor:
        """Returns network inputs for raw observations, normalized by these moments or the current ones."""
        inputs = torch.as_tensor(observations, device=self.device)
        if not self.settings.normalize_observations:
            return inputs
        mean, std, clip = self._normalisation(moments or self.moments)
        raw = vectors_of(inputs, self._spaces)
        inverse = torch.from_numpy(1.0 / std).to(raw)
        vectors = ((raw - torch.from_numpy(mean).to(raw)) * inverse).clamp(
            -float(clip), float(clip)
        )
        return with_vectors(inputs, vectors, self._spaces)

    def tensors(self, samples: DetectorSamples) -> dict[str, torch.Tensor]:
        """Returns the samples as tensors on the learner's device. Observations become network inputs."""
        tensors = {
            name: torch.as_tensor(array, device=self.device)
            for name, array in vars(samples).items()
            if name != "observations"
        }
        return tensors | {"observations": self.inputs(samples.observations)}

    def _normalisation(self, moments: RunningMoments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation, float32 ``[O]``, and the clip. Without normalization, neutral and ``[0]``."""
        clip = np.float32(OBSERVATION_CLIP) if self.settings.normalize_observations else _NO_CLIP
        return moments.mean.astype(np.float32), moments.std.astype(np.float32), np.asarray(clip)

    def weights(self) -> bytes:
        """Returns the policy as a WEIGHTS message."""
        arrays = {
            name: tensor.detach().cpu().numpy()
            for name, tensor in layer_arrays(self.policy).items()
        }
        log_std = self.policy.log_std
        mean, std, clip = self._normalisation(self.moments)
        return wire.encode(
            wire.Kind.WEIGHTS,
            {
                "policy_version": np.asarray(self.policy_version, np.int64),
                "network": wire.text_field(self._network),
                "distribution": wire.text_field(self.distribution.name),
                **arrays,
                "log_std": np.empty(0, np.float32)
                if log_std is None
                else log_std.detach().cpu().numpy(),
                "observation_mean": mean,
                "observation_std": std,
                "observation_clip": clip,
            },
        )

    def snapshot(self) -> State:
        """Returns all that gradients and samples depend on: networks, moments and counters, without the optimizer."""
        arrays = {
            f"{name}.{key}": tensor.detach().cpu().numpy().copy()
            for name, network in self.networks().items()
            for key, tensor in network.state_dict().items()
        }
        values = {"algorithm": self.kind} | {name: getattr(self, name) for name in self.counters}
        for name, moments in self.all_moments().items():
            arrays |= {
                f"{name}.mean": moments.mean.copy(),
                f"{name}.variance": moments.variance.copy(),
            }
            values[f"{name}_count"] = moments.count
        return State(arrays, values)

    @_belonging()
    def load_snapshot(self, snapshot: State) -> None:
        """Loads a snapshot and leaves the optimizer unchanged.

        Raises:
            CheckpointError: The snapshot belongs to another network or algorithm.
        """
        arrays = snapshot.arrays
        values = snapshot.values
        if values["algorithm"] != self.kind:
            raise ValueError(f"it is {values['algorithm']}'s, not {self.kind}'s")
        for name, network in self.networks().items():
            network.load_state_dict(
                {
                    key: torch.from_numpy(arrays[f"{name}.{key}"].copy())
                    for key in network.state_dict()
                }
            )
        for name, moments in self.all_moments().items():
            moments.load(
                arrays[f"{name}.mean"], arrays[f"{name}.variance"], int(values[f"{name}_count"])
            )
        for name in self.counters:
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.acting_moments = self.moments.copy()

    @property
    def objective(self) -> Objective:
        """The loss with its current coefficients."""
        return Objective(
            self.surrogate,
            self.distribution,
            self.settings.value_coefficient,
            self.settings.entropy_coefficient,
            self.kl_coefficient,
            self._spaces.has_action_mask,
        )

    # Steps of an update

    def begin(self, batches: Sequence[Batch], *, progress: float, is_replay: bool = False) -> None:
        """Begins an update: sets threads and learning rate, and merges the batches' observations into the moments.

        The merge comes before the first gradient step, so the trained function of the raw observation is the one that
        acts next. A merge after the update would move the policy as far as the update does, and nothing would correct
        that (docs/design/algorithms.md). Compensating each merge in the first layer's weights did as well, but
        blows up when a feature that never varied begins to.

        Args:
            batches: All batches of this update.
            progress: Fraction of the training that is done, 0 to 1.
            is_replay: Whether an earlier update has seen these batches. Then the moments do not change.
        """
        torch.set_num_threads(self._torch_threads)
        for batch in () if is_replay else batches:
            self._merge(batch)
        self.learning_rate = self.settings.learning_rate
        if self.settings.learning_rate_schedule == "linear":
            self.learning_rate *= max(0.0, 1.0 - progress)

    def _merge(self, batch: Batch) -> None:
        """Merges a batch into the moments that normalize."""
        if self.settings.normalize_observations:
            observations = flat(batch, batch.observations)
            self.moments.add(*self.share.moments(floats(observations, self._spaces)))
        if self.settings.normalize_rewards:
            returns = discounted_so_far(
                batch.rewards,
                batch.terminated | batch.bootstrap_mask,
                discount=self.settings.discount,
            )
            self.return_moments.add(*self.share.moments(flat(batch, returns)[:, None]))

    def gradients(
        self, tensors: Tensors, indices: torch.Tensor | None = None
    ) -> tuple[Tensors, LossMeans]:
        """Computes the gradient of the loss, and clips it, without a step.

        Args:
            tensors: Samples of this learner or of one in the same state.
            indices: The samples of the minibatch, int64; None = all.

        Returns:
            The gradient by all parameters, ``[P]``, by network, and the losses.
        """
        losses = self._write_gradients(tensors, indices)
        gradient = {name: trained.gradient.clone() for name, trained in self.trained.items()}
        return gradient, losses

    def _write_gradients(self, tensors: Tensors, indices: torch.Tensor | None) -> LossMeans:
        """Writes and clips the gradients of the whole group's minibatch. Returns its losses."""
        own, count = self.share.own(indices, len(tensors["advantages"]))
        part = 1.0 if own is None else len(own) / count
        descent = self._descent()
        means = [descent.write_gradient(name, tensors, own, part) for name in self.trained]
        self.share.sum([*(trained.gradient for trained in self.trained.values()), *means])
        for trained in self.trained.values():
            trained.clip(self.settings.max_gradient_norm)
        return _loss_means(means, count)

    def apply(self, gradients: Sequence[tuple[Tensors, float]]) -> None:
        """Makes one optimizer step for each gradient, in order; `finish` advances the version.

        Args:
            gradients: Each with a factor on the learning rate.
        """
        for gradient, factor in gradients:
            for name, trained in self.trained.items():
                trained.gradient.copy_(gradient[name])
                trained.optimizer.learning_rate = self.learning_rate * factor
                trained.optimizer.step()

    def descend(
        self, samples: TrainingSamples, minibatches: Sequence[torch.Tensor | None]
    ) -> list[LossMeans]:
        """Makes one step on each minibatch, in order; `finish` advances the version.

        Args:
            samples: The training samples.
            minibatches: Indices of samples, int64; None = all.

        Returns:
            The losses of each minibatch before its step.
        """
        for trained in self.trained.values():
            trained.optimizer.learning_rate = self.learning_rate
        if self.share.is_alone:
            means = self._descent().steps(
                samples.tensors,
                minibatches,
                threads=self._threads,
                torch_threads=self._torch_threads,
            )
            counts = [self.share.own(part, len(samples.values))[1] for part in minibatches]
            return list(map(_loss_means, zip(*means, strict=True), counts))
        losses = []
        for indices in minibatches:
            losses.append(self._write_gradients(samples.tensors, indices))
            for trained in self.trained.values():
                trained.optimizer.step()
        return losses

    def _descent(self) -> Descent:
        return Descent(
            self.trained,
            self.objective,
            self.settings.max_gradient_norm,
            self.device,
            self._graphs,
        )

    def finish(
        self, samples: TrainingSamples, losses: Sequence[LossMeans], *, is_replay: bool = False
    ) -> Update:
        """Moves to the next version.

        Args:
            samples: All samples of the update.
            losses: Losses of the gradients in the report, each weighted by its samples.
            is_replay: Whether an earlier update has trained on these samples.

        Returns:
            The report.
        """
        kl = self.kl(samples)
        if self.policy.log_std is not None and torch.exp(self.policy.log_std).isinf().any():
            # The formula uses log σ. An actor uses σ itself and could not act.
            kl = math.inf
        total = sum(loss.sample_count for loss in losses)
        shares = [loss.means * (loss.sample_count / total) for loss in losses]
        policy_loss, value_loss, entropy = torch.stack(shares, dim=1).sum(1).tolist()
        staleness = self.policy_version - samples.policy_versions
        self.policy_version += 1
        self.acting_moments = self.moments.copy()
        return Update(
            UpdateMetrics(
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy=entropy,
                kl=kl,
                explained_variance=self.share.explained_variance(
                    samples.values, samples.arrays.value_targets
                ),
                learning_rate=self.learning_rate,
            ),
            samples.arrays,
            staleness,
            is_replay,
        )

    # Parts of the above

    def training_samples(
        self,
        batch: Batch,
        *,
        advantages: np.ndarray,
        value_targets: np.ndarray,
        values: np.ndarray,
        old_outputs: np.ndarray,
    ) -> TrainingSamples:
        """Combines a batch with an algorithm's estimates.

        Args:
            batch: The sampled batch.
            advantages: ``[T, B]``.
            value_targets: ``[T, B]``.
            values: V of the observations, ``[T, B]``.
            old_outputs: Distributions to stay close to, ``[N, D]``. The batch's masks are applied to them.
        """
        arrays = DetectorSamples(
            observations=flat(batch, batch.observations),
            actions=flat(batch, batch.actions),
            log_probs=flat(batch, batch.log_probs),
            advantages=float32(flat(batch, advantages)),
            value_targets=float32(flat(batch, value_targets)),
            old_outputs=masked(batch, old_outputs),
        )
        return TrainingSamples(
            arrays, self.tensors(arrays), flat(batch, values), batch.policy_versions
        )

    def rewards(self, batch: Batch) -> np.ndarray:
        """Returns a batch's training rewards, float64 ``[T, B]``: divided and clipped, or unchanged.

        Sums of continued episodes restart in each fragment, so short fragments give a smaller deviation.
        """
        if not self.settings.normalize_rewards:
            return batch.rewards
        scaled: np.ndarray = batch.rewards / float(self.return_moments.std[0])
        return scaled.clip(-REWARD_CLIP, REWARD_CLIP)

    def state_values(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Returns V of each observation and of its successor, float32 ``[T, B]``."""
        values = unflat(batch, self.evaluate(self.critic, flat(batch, batch.observations)))
        next_values = 0.0 * values
        next_values[:-1] = values[1:]
        next_values.T[batch.bootstrap_mask.T] = self.evaluate(
            self.critic, batch.bootstrap_observations
        )
        return values, next_values

    def acting_outputs(self, batch: Batch) -> np.ndarray:
        """Returns the current version's acting distributions ``[N, D]``, with the moments that actors got with it."""
        return self.evaluate(self.policy, flat(batch, batch.observations), self.acting_moments)

    def mean_at_present(
        self, function: Callable[[torch.Tensor, Tensors], torch.Tensor], samples: TrainingSamples
    ) -> float:
        """Returns the mean over all samples of a function of the current policy's outputs, ``[N, D]`` → ``[N]``."""
        observations = samples.tensors["observations"]
        step = _PIXEL_SAMPLES if observations.dtype == torch.uint8 else len(observations)
        total_and_count = torch.zeros(2, device=self.device, dtype=torch.float64)
        with torch.no_grad():
            for start in range(0, len(observations), step):
                part = {
                    name: tensor[start : start + step] for name, tensor in samples.tensors.items()
                }
                outputs = self.objective.allowed(self.policy(part["observations"]), part)
                values = function(outputs, part)
                total_and_count[0] += values.mean().double() * len(values)
                total_and_count[1] += len(values)
        self.share.sum([total_and_count])
        return float(total_and_count[0] / total_and_count[1])

    # For other modules

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the current policy; see `runtime.learner.objective`."""
        return make_curvature_problem(
            self.policy, self.critic, self.objective, objective, self.tensors(samples)
        )

    def get_state(self) -> State:
        """Returns a snapshot and the optimizer's state."""
        state = self.snapshot()
        for name, tensor in self._optimizer_tensors().items():
            state.arrays[name] = tensor.cpu().numpy().copy()
        return state

    @_belonging()
    def set_state(self, state: State) -> None:
        """Continues from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """
        self.load_snapshot(state)
        for name, tensor in self._optimizer_tensors().items():
            tensor.copy_(torch.from_numpy(state.arrays[name]))

    def _optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the optimizers' tensors by their names in a state."""
        return {
            f"optimizer.{network}.{name}": tensor
            for network, trained in self.trained.items()
            for name, tensor in trained.optimizer.tensors.items()
        }


def _loss_means(losses: Sequence[torch.Tensor], sample_count: int) -> LossMeans:
    """Combines the losses of the policy's and the critic's gradients."""
    policy, critic = losses
    return LossMeans(torch.cat([policy[:1], critic, policy[1:]]), sample_count)
