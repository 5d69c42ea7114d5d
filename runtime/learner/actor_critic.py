"""What all algorithms are made of: policy, critic, optimiser, observation moments, gradients and steps.

An algorithm says what it trains on (`samples`), in which order (`update`), and what it maximises (`surrogate`). The
loss

    − mean surrogate + c_v·½·mean (V − target)² − c_H·mean H + β·mean KL(old ‖ π)

is the same for all of them; an algorithm without a penalty leaves β at 0. An update is made of

    begin → samples → descend → finish

and each algorithm's `update` says how. A step of `descend` is `gradients` → `apply`: whoever composes them otherwise
(several learners, other steps) calls those. Policy and critic share nothing, neither parameters nor the norm that their
gradients are clipped to, so `descend` trains each on threads of its own, if there are several.

Derivatives of the loss with respect to what the networks give are written out, those of fully connected networks, too
(`runtime.learner.networks`): autograd and modules would take longer than the arithmetic. `loss` is what they are of.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch

from lambda_actor import wire
from lambda_actor.frames import floats
from lambda_actor.spaces import Spaces
from runtime.config.schema import AlgorithmSection
from runtime.errors import CheckpointError
from runtime.learner.advantages import discounted_so_far, explained_variance
from runtime.learner.compiled import compiled
from runtime.learner.curvature import make_curvature_problem
from runtime.learner.distributions import make_distribution
from runtime.learner.networks import PolicyNetwork, ValueNetwork, layer_arrays, vectors_beside, with_vectors
from runtime.learner.normaliser import RunningMoments
from runtime.learner.regression import value_loss
from runtime.learner.samples import Tensors, flat, flat_samples, unflat
from runtime.learner.trained_network import TrainedNetwork
from runtime.ports.learning import (
    Batch,
    CurvatureProblem,
    DetectorSamples,
    Gradients,
    LossMeans,
    Snapshot,
    State,
    TrainingSamples,
    Update,
    UpdateMetrics,
)
from runtime.records.files import INTEGER_MAX
from runtime.settings.algorithm import AlgorithmSettings

_NO_CLIP = np.float32(3.0e38)
REWARD_CLIP = 10.0
"""Normalised rewards are clipped to ± this, as stable-baselines3's VecNormalize clips them."""
_READ = {"policy": ("observations", "actions", "log_probs", "advantages", "old_outputs", "log_caps"),
         "critic": ("observations", "value_targets")}
"""What each network's part of the loss is made of."""
_CALL_MINIBATCHES = 128
"""Of a perceptron's critic in one compiled call, which nothing cuts: some milliseconds to about a second."""
_PIXEL_SAMPLES = 1024
"""Pixels are looked at in parts of so many observations where no gradient is asked for: features are large."""

Settings = TypeVar("Settings", bound=AlgorithmSettings)


class Group(Protocol):
    """Processes that make the same calls on the same data and share each gradient."""

    @property
    def rank(self) -> int:
        """Which of them this one is, from 0."""

    @property
    def size(self) -> int:
        """How many they are."""

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the group, in place."""


class ActorCritic(ABC, Generic[Settings]):
    """The base of the algorithms; see `runtime.ports.learning.Learner`.

    Attributes:
        settings: The algorithm's section of the experiment file.
        policy: Acts.
        critic: Estimates values.
        moments: Normalise observations; what is trained next acts with them.
        return_moments: Of the returns whose deviation rewards are divided by, if they are normalised.
        acting_moments: Those of the present version's weights: `moments` before `begin` merged a batch into them.
        learning_rate: Of the update that was begun last.
        trained: Policy and critic by name, with gradients and optimisers.
        distribution: Over actions.
        policy_version: Counts finished updates.
        kl_coefficient: β, weight of the KL penalty.
        counters: Names of the attributes, numbers, that belong to a state.
    """

    kl_coefficient: float = 0.0
    counters: tuple[str, ...] = ("policy_version", "kl_coefficient")

    def __init__(
        self,
        spaces: Spaces,
        algorithm: AlgorithmSection,
        *,
        network: str = "mlp",
        hidden_sizes: tuple[int, ...] | None = None,
        initialisation: str = "orthogonal",
        initial_std: float = 1.0,
        seed: int,
        device: str = "cpu",
        threads: int = 1,
        group: Group | None = None,
    ) -> None:
        """Makes a learner with fresh networks.

        Args:
            spaces: The environment's.
            algorithm: Fitted to the environment.
            network: The text of a `lambda_actor.policy.Architecture`.
            hidden_sizes: Of ``mlp`` and ``combined``; None for those that the text says.
            initialisation: ``orthogonal`` or ``default``; see `PolicyNetwork`.
            initial_std: Of continuous actions; see `PolicyNetwork`.
            seed: Of the networks and of all that is drawn later.
            device: ``cpu`` or ``cuda``.
            threads: CPU threads of the update.
            group: The processes that share each gradient; None = this one alone.

        Raises:
            ValueError: The algorithm was not fitted.
        """
        self.settings = cast(Settings, algorithm.chosen)
        if self.settings.normalize_observations is None:
            raise ValueError("normalize_observations is open: fit the experiment to its environment first")
        self.kind, self.seed, self.device = algorithm.kind, seed, torch.device(device)
        self._threads, self._group, self._network, self._spaces = threads, group, network, spaces
        # Those that torch has used for one operation go on spinning for a while, in the way of the two of `descend`.
        self._torch_threads = -(-threads // 2) if network.startswith("mlp") else threads
        # Their number rounds the initial weights, which must not depend on the machine's cores.
        torch.set_num_threads(self._torch_threads)
        self.distribution = make_distribution(spaces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = PolicyNetwork(spaces, network, hidden_sizes=hidden_sizes, initialisation=initialisation,
                                        initial_std=initial_std)
            self.critic = ValueNetwork(spaces, network, hidden_sizes=hidden_sizes, initialisation=initialisation)
        self.policy.to(self.device)
        self.critic.to(self.device)
        self.learning_rate = self.settings.learning_rate
        self.trained = {name: TrainedNetwork(network, learning_rate=self.learning_rate)
                        for name, network in (("policy", self.policy), ("critic", self.critic))}
        self.moments = RunningMoments(spaces.vector_size if self.settings.normalize_observations else 0,
                                      spaces.binary_parts if self.settings.normalize_observations else ())
        self.acting_moments = self.moments.copy()
        self.return_moments = RunningMoments(1)
        self.policy_version = 0

    # What an algorithm gives

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on every sample of a batch; see `runtime.ports.learning.Learner.update`."""

    @abstractmethod
    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages and value targets of a batch by the present policy and critic."""

    @abstractmethod
    def surrogate(self, log_probs: torch.Tensor, samples: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what is maximised, of each sample, and its derivative by log π(a|s), both ``[N]``.

        Args:
            log_probs: log π(a|s) of the actions that were taken, ``[N]``.
            samples: Of one minibatch.
        """

    def kl(self, samples: TrainingSamples) -> float:
        """Returns the KL divergence that an update reports: mean KL(old ‖ π) at the present policy."""
        return self.mean_at_present(lambda outputs, part: self.distribution.kl(part["old_outputs"], outputs), samples)

    def networks(self) -> dict[str, torch.nn.Module]:
        """Returns, by name, every network that belongs to a state."""
        return {"policy": self.policy, "critic": self.critic}

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns, by name, what gradients are of: the parameters of policy and critic."""
        return {f"{name}.{key}": parameter for name, network in (("policy", self.policy), ("critic", self.critic))
                for key, parameter in network.named_parameters()}

    def all_moments(self) -> dict[str, RunningMoments]:
        """Returns, by name, all moments that belong to a state."""
        return {"moments": self.moments} | (
            {"return_moments": self.return_moments} if self.settings.normalize_rewards else {})

    # Steps of an update

    def begin(self, batches: Sequence[Batch], *, progress: float, is_replay: bool = False) -> None:
        """Begins an update on these batches: sets threads and learning rate, and merges the observations.

        What the batches show goes into the moments first, so that what is trained is the very function of the raw
        observation that acts next. Merged afterwards, they would move it as far as an update does, and nothing would
        correct that (docs/decisions/0010-off-policy.md).

        Args:
            batches: All that this update trains on.
            progress: Share of the training that is done, 0 to 1.
            is_replay: Whether an earlier update has seen these batches; then the moments stay as they are.
        """
        torch.set_num_threads(self._torch_threads)
        if self.settings.normalize_observations and not is_replay:
            for batch in batches:
                self.moments.merge(floats(flat(batch, batch.observations), self._spaces))
        if self.settings.normalize_rewards and not is_replay:
            for batch in batches:
                returns = discounted_so_far(batch.rewards, batch.terminated | batch.bootstrap_mask,
                                            discount=self.settings.discount)
                self.return_moments.merge(flat(batch, returns)[:, None])
        self.learning_rate = self.settings.learning_rate
        if self.settings.learning_rate_schedule == "linear":
            self.learning_rate *= max(0.0, 1.0 - progress)

    def gradients(self, samples: TrainingSamples, indices: torch.Tensor | None = None) -> Gradients:
        """Computes the gradient of the loss, and clips it; nothing moves.

        The group shares the samples and sums the gradients: each of its processes returns the same.

        Args:
            samples: Of this learner, or of one that stands where this one stands.
            indices: The samples of the minibatch, int64; all without.
        """
        count = len(samples.values) if indices is None else len(indices)
        share = 1.0
        if self._group is not None:
            indices = torch.arange(count, device=self.device) if indices is None else indices
            indices = indices[self._group.rank::self._group.size]
            share = len(indices) / count
        found = [self._write_gradient(name, samples.tensors, indices, share) for name in self.trained]
        if self._group is not None:
            self._group.sum([*(one.gradient for one in self.trained.values()), *found])
        tensors: dict[str, torch.Tensor] = {}
        for name, one in self.trained.items():
            one.clip(self.settings.max_gradient_norm)
            tensors |= {f"{name}.{key}": gradient for key, gradient in one.named_gradients().items()}
        return Gradients(self.policy_version, tensors, _loss_means(found, count))

    def apply(self, gradients: Sequence[tuple[Gradients, float]]) -> None:
        """Makes one optimiser step for each gradient, in order; the version stays until `finish`.

        Args:
            gradients: Each with a factor on the learning rate.
        """
        for gradient, factor in gradients:
            for name, one in self.trained.items():
                prefix = f"{name}."
                one.set_gradients({key.removeprefix(prefix): tensor for key, tensor in gradient.tensors.items()
                                   if key.startswith(prefix)})
                one.optimizer.learning_rate = self.learning_rate * factor
                one.optimizer.step()

    def descend(self, samples: TrainingSamples, minibatches: Sequence[torch.Tensor | None]) -> list[LossMeans]:
        """Makes one step on each minibatch, in order; the version stays until `finish`.

        Args:
            samples: What is trained on.
            minibatches: Indices of samples, int64; None = all.

        Returns:
            What each minibatch cost before its step.
        """
        if self._group is not None:
            losses = []
            for indices in minibatches:
                gradients = self.gradients(samples, indices)
                self.apply([(gradients, 1.0)])
                losses.append(gradients.losses)
            return losses
        if self._threads > 1 and self.device.type == "cpu":
            is_cut = Event()
            with ThreadPoolExecutor(1) as beside:
                try:
                    critic = beside.submit(
                        self._descend_alone, "critic", samples.tensors, minibatches, self._threads // 2, is_cut.is_set)
                    policy = self._descend_alone("policy", samples.tensors, minibatches, -(-self._threads // 2))
                    found = [policy, critic.result()]
                finally:
                    # After a signal, or the update's time limit, nobody waits for the critic's other minibatches.
                    is_cut.set()
            torch.set_num_threads(self._torch_threads)
        else:
            found = [self._descend_alone(name, samples.tensors, minibatches, self._torch_threads)
                     for name in self.trained]
        counts = [len(samples.values) if indices is None else len(indices) for indices in minibatches]
        return [_loss_means(means, count) for means, count in zip(zip(*found, strict=True), counts, strict=True)]

    def finish(self, samples: TrainingSamples, losses: Sequence[LossMeans], *, is_replay: bool = False) -> Update:
        """Moves to the next version.

        Args:
            samples: All that was trained on.
            losses: Of the gradients that make up the report, each weighted by its samples.
            is_replay: Whether an earlier update has trained on these samples.

        Returns:
            The report.
        """
        kl = self.kl(samples)
        if self.policy.log_std is not None and torch.exp(self.policy.log_std).isinf().any():
            # The formula takes its logarithm; an actor takes σ itself, and cannot act.
            kl = math.inf
        total = sum(one.sample_count for one in losses)
        shares = [one.means * (one.sample_count / total) for one in losses]
        policy_loss, value_loss, entropy = torch.stack(shares, dim=1).sum(1).tolist()
        staleness = self.policy_version - samples.policy_versions
        self.policy_version += 1
        self.acting_moments = self.moments.copy()
        return Update(UpdateMetrics(
            policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, kl=kl,
            explained_variance=explained_variance(samples.values, samples.arrays.value_targets),
            learning_rate=self.learning_rate), samples.arrays, staleness, is_replay)

    # What these are made of

    def training_samples(
        self,
        batch: Batch,
        *,
        advantages: np.ndarray,
        value_targets: np.ndarray,
        values: np.ndarray,
        old_outputs: np.ndarray,
    ) -> TrainingSamples:
        """Puts an algorithm's estimates and the batch together.

        Args:
            batch: What was sampled.
            advantages: ``[T, B]``.
            value_targets: ``[T, B]``.
            values: V of the observations, ``[T, B]``.
            old_outputs: Distributions to stay close to, ``[N, D]``.
        """
        arrays = flat_samples(batch, advantages=advantages, value_targets=value_targets, old_outputs=old_outputs)
        return TrainingSamples(arrays, self.tensors(arrays), flat(batch, values), batch.policy_versions)

    def tensors(self, samples: DetectorSamples) -> dict[str, torch.Tensor]:
        """Returns the samples as tensors on the learner's device, observations as the networks take them."""
        tensors = {name: torch.from_numpy(array).to(self.device)
                   for name, array in vars(samples).items() if name != "observations"}
        return tensors | {"observations": self.inputs(samples.observations)}

    def rewards(self, batch: Batch) -> np.ndarray:
        """Returns a batch's rewards as they are trained on, float64 ``[T, B]``: divided and clipped, or as they are."""
        if not self.settings.normalize_rewards:
            return batch.rewards
        scaled: np.ndarray = np.clip(batch.rewards / self.return_moments.std, -REWARD_CLIP, REWARD_CLIP)
        return scaled

    def state_values(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Returns V of each observation and V of the one that followed, float32 ``[T, B]``."""
        values = unflat(batch, self.evaluate(self.critic, flat(batch, batch.observations)))
        next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
        next_values.T[batch.bootstrap_mask.T] = self.evaluate(self.critic, batch.bootstrap_observations)
        return values, next_values

    def acting_outputs(self, batch: Batch) -> np.ndarray:
        """Returns the distributions ``[N, D]`` that the present version acted by: with the moments it was sent with."""
        return self.evaluate(self.policy, flat(batch, batch.observations), self.acting_moments)

    def evaluate(
        self, network: torch.nn.Module, observations: np.ndarray, moments: RunningMoments | None = None
    ) -> np.ndarray:
        """Returns what a network gives for raw observations ``[N, …]``, without a gradient.

        Args:
            network: Of this learner.
            observations: Raw.
            moments: Normalise them; the present ones without.
        """
        inputs = self.inputs(observations, moments)
        with torch.no_grad():
            parts = torch.split(inputs, _PIXEL_SAMPLES) if inputs.dtype == torch.uint8 else [inputs]
            outputs: np.ndarray = torch.cat([network(part) for part in parts]).cpu().numpy()
        return outputs

    def inputs(self, observations: np.ndarray, moments: RunningMoments | None = None) -> torch.Tensor:
        """Returns raw observations as the networks take them: normalised by these moments, or the present ones."""
        inputs = torch.from_numpy(observations).to(self.device)
        if not self.settings.normalize_observations:
            return inputs
        mean, std, clip = self._normalisation(moments or self.moments)
        raw = vectors_beside(inputs, self._spaces) if self._spaces.is_combined else inputs
        inverse = torch.from_numpy(1.0 / std).to(raw)
        vectors = ((raw - torch.from_numpy(mean).to(raw)) * inverse).clamp(-float(clip), float(clip))
        return with_vectors(inputs, vectors, self._spaces) if self._spaces.is_combined else vectors

    def loss(self, outputs: torch.Tensor, values: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """Returns the mean loss ``[]`` if the networks give ``outputs`` ``[N, D]`` and ``values`` ``[N]``."""
        surrogate = self.surrogate(self.distribution.log_prob(outputs, samples["actions"]), samples)[0].mean()
        value_loss = 0.5 * (values - samples["value_targets"]).square().mean()
        entropy = self.distribution.entropy(outputs).mean()
        loss = (-surrogate + self.settings.value_coefficient * value_loss
                - self.settings.entropy_coefficient * entropy)
        if self.kl_coefficient > 0.0:
            loss = loss + self.kl_coefficient * self.distribution.kl(samples["old_outputs"], outputs).mean()
        return loss

    def mean_at_present(
        self, function: Callable[[torch.Tensor, Tensors], torch.Tensor], samples: TrainingSamples
    ) -> float:
        """Returns the mean over all samples of a function of the present policy's outputs, ``[N, D]`` → ``[N]``."""
        rank, size = (0, 1) if self._group is None else (self._group.rank, self._group.size)
        observations = samples.tensors["observations"]
        count = len(observations)
        step = _PIXEL_SAMPLES if observations.dtype == torch.uint8 else count
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        share = {name: tensor[rank::size] for name, tensor in samples.tensors.items()}
        with torch.no_grad():
            for start in range(0, len(share["observations"]), step):
                part = {name: tensor[start: start + step] for name, tensor in share.items()}
                values = function(self.policy(part["observations"]), part)
                total += values.mean().double() * len(values)
        if self._group is not None:
            self._group.sum([total])
        return float(total) / count

    def _descend_alone(self, name: str, samples: Tensors, minibatches: Sequence[torch.Tensor | None], threads: int,
                       is_cut: Callable[[], bool] = lambda: False) -> list[torch.Tensor]:
        """Steps with one of the networks, until it is cut; returns the means of each minibatch."""
        torch.set_num_threads(threads)
        trained, found = self.trained[name], []
        trained.optimizer.learning_rate = self.learning_rate
        # Each call costs less where it cannot become part of a graph.
        with torch.inference_mode(trained.is_by_hand):
            if name == "critic" and trained.is_by_hand and self.device.type == "cpu":
                for first in range(0, len(minibatches), _CALL_MINIBATCHES):
                    if is_cut():
                        break
                    found += trained.regress(
                        samples["observations"], samples["value_targets"],
                        minibatches[first:first + _CALL_MINIBATCHES],
                        weight=self.settings.value_coefficient, norm_max=self.settings.max_gradient_norm)
                return found
            for indices in minibatches:
                if is_cut():
                    break
                found.append(self._write_gradient(name, samples, indices))
                trained.clip(self.settings.max_gradient_norm)
                trained.optimizer.step()
        return found

    def _write_gradient(self, name: str, samples: Tensors, indices: torch.Tensor | None, share: float = 1.0
                        ) -> torch.Tensor:
        """Writes the gradient of one network's part of the loss.

        Args:
            name: Of the network.
            samples: What the minibatch is drawn from.
            indices: The minibatch; None = all.
            share: Of the whole group's samples that these are; a process may have no sample at all.

        Returns:
            Policy loss and entropy, or the value loss: means, times the share.
        """
        if share == 0.0:
            self.trained[name].gradient.zero_()
            return torch.zeros(2 if name == "policy" else 1, device=self.device)
        if indices is not None:
            read = [key for key in _READ[name] if key in samples]
            samples = dict(zip(read, _taken([samples[key] for key in read], indices), strict=True))
        with torch.no_grad():
            write = self._write_policy_gradient if name == "policy" else self._write_critic_gradient
            means = write(samples, share)
            return means if share == 1.0 else means * share

    def _write_policy_gradient(self, samples: Tensors, share: float) -> torch.Tensor:
        outputs = self.trained["policy"].forward(samples["observations"])
        surrogate, slopes = self.surrogate(self.distribution.log_prob(outputs, samples["actions"]), samples)
        weight = share / len(outputs)
        self.trained["policy"].backward(self.distribution.slopes(
            outputs, samples["actions"], samples["old_outputs"], of_log_probs=-weight * slopes,
            of_entropy=-weight * self.settings.entropy_coefficient, of_kl=weight * self.kl_coefficient))
        return _policy_means(surrogate, self.distribution.entropy(outputs))

    def _write_critic_gradient(self, samples: Tensors, share: float) -> torch.Tensor:
        values = self.trained["critic"].forward(samples["observations"])
        means, slopes = value_loss(values, samples["value_targets"], share * self.settings.value_coefficient)
        self.trained["critic"].backward(slopes)
        return means

    # What others see of it

    def weights(self) -> bytes:
        """Returns the policy as a WEIGHTS message."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in layer_arrays(self.policy).items()}
        log_std = self.policy.log_std
        mean, std, clip = self._normalisation(self.moments)
        return wire.encode(wire.Kind.WEIGHTS, {
            "policy_version": np.asarray(self.policy_version, np.int64), "network": wire.text_field(self._network),
            "distribution": wire.text_field(self.distribution.name), **arrays,
            "log_std": np.empty(0, np.float32) if log_std is None else log_std.detach().cpu().numpy(),
            "observation_mean": mean, "observation_std": std, "observation_clip": clip,
        })

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the present policy; see `runtime.learner.curvature`."""
        return make_curvature_problem(self, objective, samples)

    def snapshot(self) -> Snapshot:
        """Returns what gradients and samples depend on: networks, moments and counters, without the optimiser."""
        arrays = {f"{name}.{key}": tensor.detach().cpu().numpy().copy()
                  for name, network in self.networks().items() for key, tensor in network.state_dict().items()}
        values = {"algorithm": self.kind} | {name: getattr(self, name) for name in self.counters}
        for name, moments in self.all_moments().items():
            arrays |= {f"{name}.mean": moments.mean.copy(), f"{name}.variance": moments.variance.copy()}
            values[f"{name}_count"] = moments.count
        return Snapshot(self.policy_version, arrays, values)

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Takes a snapshot's place; the optimiser stays as it is.

        Raises:
            CheckpointError: The snapshot belongs to another network or algorithm.
        """
        with _belonging():
            self._load(snapshot.arrays, snapshot.values)

    def get_state(self) -> State:
        """Returns a snapshot and the optimiser's state."""
        snapshot = self.snapshot()
        return State(snapshot.arrays | self._optimizer_arrays(), snapshot.values)

    def set_state(self, state: State) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """
        with _belonging():
            self._load(state.arrays, state.values)
            self._set_optimizer_arrays(state.arrays)

    def _load(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Takes over all but the optimiser's state."""
        if values["algorithm"] != self.kind:
            raise ValueError(f"it is {values['algorithm']}'s, not {self.kind}'s")
        for name, network in self.networks().items():
            network.load_state_dict({key: torch.from_numpy(arrays[f"{name}.{key}"].copy())
                                     for key in network.state_dict()})
        for name, moments in self.all_moments().items():
            moments.mean = arrays[f"{name}.mean"].copy()
            moments.variance = arrays[f"{name}.variance"].copy()
            moments.count = int(values[f"{name}_count"])
        for name in self.counters:
            setattr(self, name, type(getattr(self, name))(values[name]))
            if not 0 <= getattr(self, name) <= INTEGER_MAX:
                raise ValueError(f"{name} is {values[name]!r}")
        self.acting_moments = self.moments.copy()

    def _optimizer_arrays(self) -> dict[str, np.ndarray]:
        """Returns steps and moments as ``optimizer.INDEX.NAME``, where parameters are counted through."""
        states = [state for one in self.trained.values() for state in one.optimizer_state()]
        return {f"optimizer.{index}.{name}": array for index, state in enumerate(states)
                for name, array in state.items()}

    def _set_optimizer_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        first = 0
        for one in self.trained.values():
            states = one.optimizer_state()
            one.set_optimizer_state([{name: arrays[f"optimizer.{index}.{name}"] for name in state}
                                     for index, state in enumerate(states, first)])
            first += len(states)

    def _normalisation(self, moments: RunningMoments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation, float32 ``[O]``, and the clip; ``[0]`` and neutral without normalisation."""
        clip = np.float32(self.settings.observation_clip) if self.settings.normalize_observations else _NO_CLIP
        return moments.mean.astype(np.float32), moments.std.astype(np.float32), np.asarray(clip)


@contextmanager
def _belonging() -> Iterator[None]:
    """Says of what does not fit a learner that it belongs to another one."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not fit this experiment's networks: {error}") from error


def _loss_means(found: Sequence[torch.Tensor], sample_count: int) -> LossMeans:
    """Puts together what the policy's and the critic's gradients were made of."""
    policy, critic = found
    return LossMeans(torch.cat([policy[:1], critic, policy[1:]]), sample_count)


@compiled
def clipped_surrogate(log_ratios: torch.Tensor, advantages: torch.Tensor, clip: float
                      ) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) and its derivative by log r; Schulman et al. 2017, equation 7."""
    ratios = torch.exp(log_ratios)
    free = ratios * advantages
    surrogate = torch.minimum(free, ratios.clamp(1.0 - clip, 1.0 + clip) * advantages)
    return surrogate, free * (free == surrogate)


@compiled
def truncated_surrogate(log_ratios: torch.Tensor, advantages: torch.Tensor, clip: float, log_caps: torch.Tensor
                        ) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the clipped surrogate of ratios that are cut at a cap, and its derivative by log r: 0 above the cap."""
    is_free = log_ratios <= log_caps
    ratios = torch.exp(torch.where(is_free, log_ratios, log_caps))
    free = ratios * advantages
    surrogate = torch.minimum(free, ratios.clamp(1.0 - clip, 1.0 + clip) * advantages)
    return surrogate, free * (free == surrogate) * is_free


@compiled
def _policy_means(surrogate: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    return torch.stack([-surrogate.mean(), entropies.mean()])


@compiled
def _taken(tensors: list[torch.Tensor], indices: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[indices] for tensor in tensors]


def adapted_kl_coefficient(kl_coefficient: float, *, kl: float, kl_target: float) -> float:
    """Adapts β as Schulman et al. 2017, §4, with RLlib's factors: ×1.5 above twice the target, ×0.5 below half."""
    if kl > 2.0 * kl_target:
        return kl_coefficient * 1.5
    if kl < 0.5 * kl_target:
        return kl_coefficient * 0.5
    return kl_coefficient
