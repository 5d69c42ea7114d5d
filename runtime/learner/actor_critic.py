"""What all algorithms are made of: policy, critic, optimiser, observation moments, and one gradient step.

An algorithm says what it trains on and in which order (`update`), and what it maximises (`_surrogate`). The loss

    − mean surrogate + c_v·½·mean (V − target)² − c_H·mean H + β·mean KL(old ‖ π)

is the same for all of them; an algorithm without a penalty leaves β at 0.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from lambda_actor import wire
from lambda_actor.spaces import Spaces
from runtime.config.schema import AlgorithmSection
from runtime.errors import CheckpointError
from runtime.interfaces import Batch, CurvatureProblem, DetectorSamples, State, Update, UpdateMetrics
from runtime.learner.adam import Adam
from runtime.learner.advantages import explained_variance
from runtime.learner.distributions import make_distribution
from runtime.learner.networks import PolicyNetwork, ValueNetwork, layer_arrays
from runtime.learner.normaliser import RunningMoments

_NO_CLIP = np.float32(3.0e38)
_OPTIMIZER = "optimizer."
_PIXEL_SAMPLES = 1024
"""Pixels are looked at in parts of so many observations where no gradient is asked for: features are large."""

Tensors = Mapping[str, torch.Tensor]
"""Samples by name, each ``[N, …]``: the fields of `DetectorSamples`, observations as the networks take them."""


class Group(Protocol):
    """Processes that make the same calls on the same data and share each gradient step."""

    rank: int
    size: int

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the group, in place."""


class ActorCritic(ABC):
    """The base of the algorithms."""

    kl_coefficient = 0.0
    """β, weight of the KL penalty."""
    _counters: tuple[str, ...] = ("policy_version", "kl_coefficient")
    """Numbers that belong to a state, by attribute."""

    def __init__(
        self,
        spaces: Spaces,
        algorithm: AlgorithmSection,
        *,
        network: str = "mlp",
        seed: int,
        device: str = "cpu",
        threads: int = 1,
        group: Group | None = None,
    ) -> None:
        """Args:
        algorithm: Fitted to the environment.
        network: ``mlp`` or ``conv``.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of the update.
        group: The processes that share each gradient step; null = this one alone.

        Raises:
            ValueError: The algorithm was not fitted.
        """
        self._algorithm, self._settings = algorithm, algorithm.chosen
        if self._settings.normalize_observations is None:
            raise ValueError("normalize_observations is open: fit the experiment to its environment first")
        self._seed, self._device, self._threads, self._group = seed, torch.device(device), threads, group
        self._distribution = make_distribution(spaces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = PolicyNetwork(spaces, network).to(self._device)
            self.critic = ValueNetwork(spaces, network).to(self._device)
        self._network = network
        self._optimizer = Adam([*self.policy.parameters(), *self.critic.parameters()],
                               learning_rate=self._settings.learning_rate, epsilon=1e-5)
        self.moments = RunningMoments(spaces.observation_size if self._settings.normalize_observations else 0)
        self.policy_version = 0

    # What an algorithm gives

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Update:
        """See `runtime.interfaces.Learner.update`."""

    @abstractmethod
    def _surrogate(self, outputs: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """What is maximised, of each sample, ``[N]``, where the policy gives ``outputs`` ``[N, D]``."""

    def replay(self, *, progress: float) -> Update | None:
        """See `runtime.interfaces.Learner.replay`; null unless the algorithm replays."""
        return None

    # Steps of an update

    def _begin(self, progress: float, batches: Sequence[Batch]) -> float:
        """Sets threads and learning rate; returns the latter.

        What these batches show goes into the moments first, so that what is trained is the very function of the raw
        observation that acts next. Merged afterwards, they would move it as far as an update does, and nothing would
        correct that (docs/decisions/0010-off-policy.md).

        Args:
            batches: Of this update, but those that an earlier one has seen.
        """
        torch.set_num_threads(self._threads)
        if self._settings.normalize_observations:
            for batch in batches:
                self.moments.merge(flat(batch.observations))
        learning_rate = self._settings.learning_rate
        if self._settings.learning_rate_schedule == "linear":
            learning_rate *= max(0.0, 1.0 - progress)
        self._optimizer.learning_rate = learning_rate
        return learning_rate

    def _finish(
        self,
        means: Sequence[torch.Tensor],
        samples: DetectorSamples,
        *,
        values: np.ndarray,
        kl: float,
        learning_rate: float,
        policy_versions: np.ndarray,
        is_replay: bool = False,
    ) -> Update:
        """Moves to the next version.

        Args:
            means: What the gradient steps returned, each weighted by its share of the samples.
            values: V of the samples before they were trained on.
            policy_versions: Of the trajectories, ``[B]``.
        """
        staleness = self.policy_version - policy_versions
        self.policy_version += 1
        policy_loss, value_loss, entropy = torch.stack(list(means), dim=1).sum(1).tolist()
        return Update(UpdateMetrics(
            policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, kl=kl,
            explained_variance=explained_variance(values.reshape(-1), samples.value_targets),
            learning_rate=learning_rate), samples, staleness, is_replay)

    def _values(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """V of each observation and V of the one that followed, float32 ``[T, B]``."""
        values = self._evaluated(self.critic, flat(batch.observations)).reshape(batch.rewards.shape)
        next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
        next_values.T[batch.bootstrap_mask.T] = self._evaluated(self.critic, batch.bootstrap_observations)
        return values, next_values

    def _evaluated(
        self, network: torch.nn.Module, observations: np.ndarray, moments: RunningMoments | None = None
    ) -> np.ndarray:
        """What the network gives for raw observations ``[N, …]``, without a gradient."""
        inputs = self._inputs(observations, moments)
        with torch.no_grad():
            parts = inputs.split(_PIXEL_SAMPLES) if inputs.dtype == torch.uint8 else [inputs]
            return torch.cat([network(part) for part in parts]).cpu().numpy()

    def _tensors(self, samples: DetectorSamples) -> dict[str, torch.Tensor]:
        tensors = {name: torch.from_numpy(array).to(self._device)
                   for name, array in vars(samples).items() if name != "observations"}
        return tensors | {"observations": self._inputs(samples.observations)}

    def _loss(
        self, outputs: torch.Tensor, values: torch.Tensor, samples: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss, and what of it is told: mean policy loss, value loss and entropy, ``[3]``."""
        surrogate = self._surrogate(outputs, samples).mean()
        value_loss = 0.5 * (values - samples["value_targets"]).square().mean()
        entropy = self._distribution.entropy(outputs).mean()
        loss = (-surrogate + self._settings.value_coefficient * value_loss
                - self._settings.entropy_coefficient * entropy)
        if self.kl_coefficient > 0.0:
            loss = loss + self.kl_coefficient * self._distribution.kl(samples["old_outputs"], outputs).mean()
        return loss, torch.stack([-surrogate, value_loss, entropy]).detach()

    def _train(self, samples: Tensors, indices: torch.Tensor) -> torch.Tensor:
        """One gradient step on these samples; returns their part of the loss that is told, from before it, ``[3]``."""

        def loss_of(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            minibatch = {name: tensor[indices] for name, tensor in samples.items()}
            return self._loss(self.policy(minibatch["observations"]), self.critic(minibatch["observations"]), minibatch)

        return self._descend(loss_of, indices)

    def _descend(
        self, loss_of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], indices: torch.Tensor
    ) -> torch.Tensor:
        """The one place where a gradient step is made; the group shares the samples and sums the gradients.

        Args:
            loss_of: Indices → their mean loss, and means to tell, ``[M]``.

        Returns:
            The means over all ``indices``, ``[M]``.
        """
        self._optimizer.zero_grad()
        if self._group is None:
            loss, means = loss_of(indices)
            loss.backward()
        else:
            means = self._descend_together(loss_of, indices, self._group)
        if self._settings.max_gradient_norm is not None:
            for network in (self.policy, self.critic):
                torch.nn.utils.clip_grad_norm_(network.parameters(), self._settings.max_gradient_norm)
        self._optimizer.step()
        return means

    def _descend_together(
        self, loss_of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], indices: torch.Tensor, group: Group
    ) -> torch.Tensor:
        """Leaves the whole group's gradient; a process may have no sample at all."""
        share = indices[group.rank::group.size]
        weight = len(share) / len(indices)
        means = torch.zeros(3, device=self._device)
        if len(share):
            loss, own = loss_of(share)
            (loss * weight).backward()
            means += own * weight
        parameters = [*self.policy.parameters(), *self.critic.parameters()]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        group.sum([*(parameter.grad for parameter in parameters), means])
        return means

    def _mean_at_present(
        self, function: Callable[[torch.Tensor, Tensors], torch.Tensor], samples: Tensors
    ) -> float:
        """The mean over all samples of a function of the present policy's outputs, ``[N, D]`` → ``[N]``."""
        rank, size = (0, 1) if self._group is None else (self._group.rank, self._group.size)
        count = len(samples["observations"])
        step = _PIXEL_SAMPLES if samples["observations"].dtype == torch.uint8 else count
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        share = {name: tensor[rank::size] for name, tensor in samples.items()}
        with torch.no_grad():
            for start in range(0, len(share["observations"]), step):
                part = {name: tensor[start: start + step] for name, tensor in share.items()}
                values = function(self.policy(part["observations"]), part)
                total += values.mean().double() * len(values)
        if self._group is not None:
            self._group.sum([total])
        return float(total) / count

    def _kl_at_present(self, samples: Tensors) -> float:
        """Mean KL(old ‖ π) over all samples."""
        return self._mean_at_present(
            lambda outputs, part: self._distribution.kl(part["old_outputs"], outputs), samples)

    def _adapt_kl_coefficient(self, kl: float) -> None:
        """Schulman et al. 2017, §4, with RLlib's factors: ×1.5 above twice the target, ×0.5 below half of it."""
        if kl > 2.0 * self._settings.kl_target:
            self.kl_coefficient *= 1.5
        elif kl < 0.5 * self._settings.kl_target:
            self.kl_coefficient *= 0.5

    # What others see of it

    def weights(self) -> bytes:
        """The policy as a WEIGHTS message."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in layer_arrays(self.policy).items()}
        log_std = self.policy.log_std
        mean, std, clip = self._normalisation(self.moments)
        return wire.encode(wire.Kind.WEIGHTS, {
            "policy_version": np.int64(self.policy_version), "network": wire.text_field(self._network),
            "distribution": wire.text_field(self._distribution.name), **arrays,
            "log_std": np.empty(0, np.float32) if log_std is None else log_std.detach().cpu().numpy(),
            "observation_mean": mean, "observation_std": std, "observation_clip": clip,
        })

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """The maximised objective at the present policy, on a copy of the networks.

        ``log_prob``: mean log π(a|s)·Â, w.r.t. the policy's parameters. Paper: Nitro Theorem 1.
        ``surrogate``: the algorithm's own, w.r.t. the policy's parameters.
        ``total_loss``: −(the whole loss), w.r.t. policy and critic, as the authors' code has.

        Raises:
            ValueError: Another objective.
        """
        tensors = self._tensors(samples)
        # Free of this learner, which may go on while the problem is being solved.
        frozen = copy.copy(self)

        def log_prob(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
            return (frozen._distribution.log_prob(outputs, tensors["actions"]) * tensors["advantages"]).mean()

        def surrogate(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
            return frozen._surrogate(outputs, tensors).mean()

        def total_loss(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
            loss, _ = frozen._loss(outputs[:, :-1], outputs[:, -1], tensors)
            return -loss

        criteria = {"log_prob": log_prob, "surrogate": surrogate, "total_loss": total_loss}
        if objective not in criteria:
            raise ValueError(f"objective {objective!r}; known: {', '.join(criteria)}")
        policy = copy.deepcopy(self.policy)
        module = _PolicyAndCritic(policy, copy.deepcopy(self.critic)) if objective == "total_loss" else policy
        return CurvatureProblem(module, criteria[objective], tensors["observations"], tensors["value_targets"])

    def get_state(self) -> State:
        arrays = {f"{name}.{key}": tensor.detach().cpu().numpy().copy()
                  for name, network in self._networks().items() for key, tensor in network.state_dict().items()}
        arrays |= {_OPTIMIZER + name: array for name, array in self._optimizer.get_state().items()}
        values = {"algorithm": self._algorithm.kind} | {name: getattr(self, name) for name in self._counters}
        for name, moments in self._all_moments().items():
            arrays |= {f"{name}.mean": moments.mean.copy(), f"{name}.variance": moments.variance.copy()}
            values[f"{name}_count"] = moments.count
        return State(arrays, values)

    def set_state(self, state: State) -> None:
        """Raises: CheckpointError: The state belongs to another network or algorithm."""
        try:
            if state.values["algorithm"] != self._algorithm.kind:
                raise ValueError(f"it is {state.values['algorithm']}'s, not {self._algorithm.kind}'s")
            for name, network in self._networks().items():
                network.load_state_dict({key: torch.from_numpy(state.arrays[f"{name}.{key}"].copy())
                                         for key in network.state_dict()})
            self._optimizer.set_state({name.removeprefix(_OPTIMIZER): array for name, array in state.arrays.items()
                                       if name.startswith(_OPTIMIZER)})
            for name, moments in self._all_moments().items():
                moments.mean = state.arrays[f"{name}.mean"].copy()
                moments.variance = state.arrays[f"{name}.variance"].copy()
                moments.count = int(state.values[f"{name}_count"])
            for name in self._counters:
                setattr(self, name, type(getattr(self, name))(state.values[name]))
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not fit this experiment's networks: {error}") from error

    def _networks(self) -> dict[str, torch.nn.Module]:
        """Everything that a state holds the parameters of."""
        return {"policy": self.policy, "critic": self.critic}

    def _all_moments(self) -> dict[str, RunningMoments]:
        return {"moments": self.moments}

    def _normalisation(self, moments: RunningMoments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation, float32 ``[O]``, and the clip; ``[0]`` and neutral without normalisation."""
        clip = np.float32(self._settings.observation_clip) if self._settings.normalize_observations else _NO_CLIP
        return moments.mean.astype(np.float32), moments.std.astype(np.float32), np.asarray(clip)

    def _inputs(self, observations: np.ndarray, moments: RunningMoments | None = None) -> torch.Tensor:
        """Raw observations as the networks take them: normalised by these moments, or the present ones."""
        inputs = torch.from_numpy(observations).to(self._device)
        if not self._settings.normalize_observations:
            return inputs
        mean, std, clip = self._normalisation(moments or self.moments)
        inverse = torch.from_numpy(1.0 / std).to(inputs)
        return ((inputs - torch.from_numpy(mean).to(inputs)) * inverse).clamp(-float(clip), float(clip))


def flat(array: np.ndarray) -> np.ndarray:
    """``[T, B, …]`` → ``[N, …]``."""
    return array.reshape(-1, *array.shape[2:])


def flat_samples(
    batch: Batch, *, advantages: np.ndarray, value_targets: np.ndarray, old_outputs: np.ndarray
) -> DetectorSamples:
    """The batch flattened to ``[N, …]``, with estimates ``[T, B]`` and distributions to stay close to, ``[N, D]``."""
    return DetectorSamples(
        observations=flat(batch.observations), actions=flat(batch.actions), log_probs=flat(batch.log_probs),
        advantages=flat(advantages).astype(np.float32), value_targets=flat(value_targets).astype(np.float32),
        old_outputs=old_outputs)


class _PolicyAndCritic(torch.nn.Module):
    def __init__(self, policy: torch.nn.Module, critic: torch.nn.Module) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.policy(observations), self.critic(observations).unsqueeze(1)], dim=-1)
