"""PPO, to be read from top to bottom.

Schulman et al. 2017 with GAE, the clipped surrogate, an adaptive KL penalty, and separate networks for policy and
critic.

Paper: Nitro §8.2.1 and Table 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lambda_actor import wire
from runtime.config import AlgorithmSection
from runtime.errors import CheckpointError
from runtime.interfaces import Batch, CurvatureProblem, DetectorSamples, LearnerState, UpdateMetrics
from runtime.learner.advantages import explained_variance, generalized_advantages
from runtime.learner.networks import (
    GaussianPolicyNetwork,
    ValueNetwork,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)
from runtime.learner.normaliser import RunningMoments

_SHUFFLE_STREAM = 0x5EED
_NO_CLIP = np.float32(3.0e38)


class Ppo:
    """The PPO learner; `update` trains on one round's batch."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        settings: AlgorithmSection,
        *,
        seed: int,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        """Args:
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of the update.
        """
        self._settings, self._ppo = settings, settings.ppo
        self._seed, self._device, self._threads = seed, torch.device(device), threads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = GaussianPolicyNetwork(observation_size, action_size).to(self._device)
            self.critic = ValueNetwork(observation_size).to(self._device)
        self._optimizer = torch.optim.Adam(
            [*self.policy.parameters(), *self.critic.parameters()], lr=self._ppo.learning_rate, eps=1e-5, fused=True)
        self.moments = RunningMoments(observation_size)
        self.kl_coefficient = self._ppo.kl_coefficient
        self.policy_version = 0

    # One update

    def update(self, batch: Batch, *, progress: float) -> tuple[UpdateMetrics, DetectorSamples]:
        """See `runtime.interfaces.Learner.update`."""
        torch.set_num_threads(self._threads)
        learning_rate = self._set_learning_rate(progress)
        samples, values = self._samples(batch)
        tensors = {name: torch.from_numpy(getattr(samples, name)).to(self._device) for name in (
            "observations", "actions", "log_probs", "advantages", "value_targets", "old_means", "old_log_stds")}
        tensors["observations"] = self._normalised(tensors["observations"])
        policy_losses, value_losses, entropies = [], [], []
        for epoch in range(self._settings.epochs):
            is_last = epoch == self._settings.epochs - 1
            for indices in self._minibatches(batch, epoch):
                minibatch = {name: tensor[indices] if name != "old_log_stds" else tensor
                             for name, tensor in tensors.items()}
                policy_loss, value_loss, entropy = self._step(minibatch)
                if is_last:
                    weight = len(indices) / batch.env_steps
                    policy_losses.append(policy_loss * weight)
                    value_losses.append(value_loss * weight)
                    entropies.append(entropy * weight)
        kl = self._kl_after_update(tensors)
        self._adapt_kl_coefficient(kl)
        if self._ppo.normalize_observations:
            self.moments.merge(samples.observations)
        self.policy_version += 1
        metrics = UpdateMetrics(
            policy_loss=float(torch.stack(policy_losses).sum()), value_loss=float(torch.stack(value_losses).sum()),
            entropy=float(torch.stack(entropies).sum()), kl=kl,
            explained_variance=explained_variance(values, samples.value_targets), learning_rate=learning_rate)
        return metrics, samples

    def _samples(self, batch: Batch) -> tuple[DetectorSamples, np.ndarray]:
        """The batch flattened to ``[N, …]`` with advantages, value targets and the acting policy's Gaussian."""
        shape = batch.rewards.shape
        observations = batch.observations.reshape(batch.env_steps, -1)
        with torch.no_grad():
            normalised = self._normalised(torch.from_numpy(observations).to(self._device))
            values = self.critic(normalised).cpu().numpy().reshape(shape)
            means, log_stds = self.policy(normalised).chunk(2, dim=-1)
            bootstrap = self._normalised(torch.from_numpy(batch.bootstrap_observations).to(self._device))
            bootstrap_values = self.critic(bootstrap).cpu().numpy()
        next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
        next_values.T[batch.bootstrap_mask.T] = bootstrap_values
        advantages = generalized_advantages(
            batch.rewards, values, next_values, batch.terminated, batch.bootstrap_mask,
            discount=self._ppo.discount, gae_lambda=self._ppo.gae_lambda)
        targets = advantages + values
        if self._ppo.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        samples = DetectorSamples(
            observations=observations,
            actions=batch.actions.reshape(batch.env_steps, -1),
            log_probs=batch.log_probs.reshape(-1),
            advantages=advantages.reshape(-1).astype(np.float32),
            value_targets=targets.reshape(-1).astype(np.float32),
            old_means=means.cpu().numpy(),
            old_log_stds=log_stds[0].cpu().numpy().copy(),
        )
        return samples, values.reshape(-1)

    def _minibatches(self, batch: Batch, epoch: int) -> list[torch.Tensor]:
        """A permutation of all samples in parts of nearly equal size, none over ``minibatch_steps``."""
        stream = np.random.default_rng((_SHUFFLE_STREAM, self._seed, batch.policy_version, epoch))
        order = stream.permutation(batch.env_steps)
        parts = math.ceil(batch.env_steps / self._settings.minibatch_steps)
        return [torch.from_numpy(part).to(self._device) for part in np.array_split(order, parts)]

    def _step(self, minibatch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One gradient step; returns the policy loss, the value loss and the entropy before it."""
        means, log_stds = self.policy(minibatch["observations"]).chunk(2, dim=-1)
        surrogate = self._surrogate(means, log_stds, minibatch).mean()
        value_loss = 0.5 * (self.critic(minibatch["observations"]) - minibatch["value_targets"]).square().mean()
        entropy = gaussian_entropy(log_stds).mean()
        loss = (-surrogate + self._ppo.value_coefficient * value_loss
                - self._ppo.entropy_coefficient * entropy)
        if self.kl_coefficient > 0.0:
            kl = gaussian_kl(minibatch["old_means"], minibatch["old_log_stds"], means, log_stds).mean()
            loss = loss + self.kl_coefficient * kl
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self._ppo.max_gradient_norm is not None:
            for network in (self.policy, self.critic):
                torch.nn.utils.clip_grad_norm_(network.parameters(), self._ppo.max_gradient_norm)
        self._optimizer.step()
        return -surrogate.detach(), value_loss.detach(), entropy.detach()

    def _surrogate(
        self, means: torch.Tensor, log_stds: torch.Tensor, samples: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Schulman et al. 2017, equation 7, per sample: min(r·Â, clip(r, 1 − ε, 1 + ε)·Â), ``[N]``."""
        log_probs = gaussian_log_prob(means, log_stds, samples["actions"])
        ratio = torch.exp(log_probs - samples["log_probs"])
        clipped = ratio.clamp(1.0 - self._ppo.clip, 1.0 + self._ppo.clip)
        return torch.minimum(ratio * samples["advantages"], clipped * samples["advantages"])

    def _kl_after_update(self, tensors: Mapping[str, torch.Tensor]) -> float:
        with torch.no_grad():
            means, log_stds = self.policy(tensors["observations"]).chunk(2, dim=-1)
            return float(gaussian_kl(tensors["old_means"], tensors["old_log_stds"], means, log_stds).mean())

    def _adapt_kl_coefficient(self, kl: float) -> None:
        """Schulman et al. 2017, §4, with RLlib's factors: ×1.5 above twice the target, ×0.5 below half of it."""
        if kl > 2.0 * self._ppo.kl_target:
            self.kl_coefficient *= 1.5
        elif kl < 0.5 * self._ppo.kl_target:
            self.kl_coefficient *= 0.5

    def _set_learning_rate(self, progress: float) -> float:
        learning_rate = self._ppo.learning_rate
        if self._ppo.learning_rate_schedule == "linear":
            learning_rate *= max(0.0, 1.0 - progress)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        return learning_rate

    # What others see of it

    def weights(self) -> bytes:
        """The policy as a GAUSSIAN_WEIGHTS message."""
        mean, std, clip = self._normalisation()
        arrays = {name: parameter.detach().cpu().numpy() for name, parameter in self.policy.state_dict().items()}
        layers = {f"weight_{i}": arrays[f"mean.{2 * i}.weight"] for i in range(3)}
        layers |= {f"bias_{i}": arrays[f"mean.{2 * i}.bias"] for i in range(3)}
        return wire.encode(wire.Kind.GAUSSIAN_WEIGHTS, {
            "policy_version": np.int64(self.policy_version), **layers, "log_std": arrays["log_std"],
            "observation_mean": mean, "observation_std": std, "observation_clip": clip,
        })

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """The maximised objective at the present policy, on a copy of the networks.

        ``log_prob``: mean log π(a|s)·Â, w.r.t. the policy's parameters. Paper: Nitro Theorem 1.
        ``surrogate``: PPO's clipped surrogate, w.r.t. the policy's parameters.
        ``total_loss``: −(the whole loss that `_step` minimises), w.r.t. policy and critic, as the authors' code has.

        Raises:
            ValueError: Another objective.
        """
        action_size = samples.actions.shape[1]
        inputs = self._normalised(torch.from_numpy(samples.observations).to(self._device))
        columns = {"actions": samples.actions, "log_probs": samples.log_probs[:, None],
                   "advantages": samples.advantages[:, None], "value_targets": samples.value_targets[:, None],
                   "old_means": samples.old_means}
        targets = torch.from_numpy(np.concatenate(list(columns.values()), axis=1)).to(self._device)
        widths = [array.shape[1] for array in columns.values()]
        old_log_stds = torch.from_numpy(samples.old_log_stds).to(self._device)

        def unpacked(packed: torch.Tensor) -> dict[str, torch.Tensor]:
            parts = dict(zip(columns, packed.split(widths, dim=1), strict=True))
            return {name: part if name in ("actions", "old_means") else part.squeeze(1)
                    for name, part in parts.items()}

        def log_prob(outputs: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
            named = unpacked(packed)
            means, log_stds = outputs.chunk(2, dim=-1)
            return (gaussian_log_prob(means, log_stds, named["actions"]) * named["advantages"]).mean()

        def surrogate(outputs: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
            return self._surrogate(*outputs.chunk(2, dim=-1), unpacked(packed)).mean()

        def total_loss(outputs: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
            named = unpacked(packed)
            means, log_stds, values = outputs.split([action_size, action_size, 1], dim=-1)
            value_loss = 0.5 * (values.squeeze(1) - named["value_targets"]).square().mean()
            kl = gaussian_kl(named["old_means"], old_log_stds, means, log_stds).mean()
            return (self._surrogate(means, log_stds, named).mean() - self._ppo.value_coefficient * value_loss
                    + self._ppo.entropy_coefficient * gaussian_entropy(log_stds).mean() - self.kl_coefficient * kl)

        criteria = {"log_prob": log_prob, "surrogate": surrogate, "total_loss": total_loss}
        if objective not in criteria:
            raise ValueError(f"objective {objective!r}; known: {', '.join(criteria)}")
        policy = copy.deepcopy(self.policy)
        module = _PolicyAndCritic(policy, copy.deepcopy(self.critic)) if objective == "total_loss" else policy
        return CurvatureProblem(module, criteria[objective], inputs, targets)

    def get_state(self) -> LearnerState:
        arrays = {f"{name}.{key}": tensor.detach().cpu().numpy().copy()
                  for name, network in (("policy", self.policy), ("critic", self.critic))
                  for key, tensor in network.state_dict().items()}
        for index, state in self._optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer.{index}.{key}": tensor.detach().cpu().numpy().copy()
                       for key, tensor in state.items()}
        arrays |= {"moments.mean": self.moments.mean, "moments.variance": self.moments.variance}
        return LearnerState(arrays, {"policy_version": self.policy_version, "kl_coefficient": self.kl_coefficient,
                                     "moments_count": self.moments.count})

    def set_state(self, state: LearnerState) -> None:
        """Raises: CheckpointError: The state belongs to another network or algorithm."""
        try:
            for name, network in (("policy", self.policy), ("critic", self.critic)):
                network.load_state_dict({key: torch.from_numpy(state.arrays[f"{name}.{key}"].copy())
                                         for key in network.state_dict()})
            self._optimizer.load_state_dict({
                "state": _optimizer_state(state.arrays), "param_groups": self._optimizer.state_dict()["param_groups"]})
            self.moments.mean = state.arrays["moments.mean"].copy()
            self.moments.variance = state.arrays["moments.variance"].copy()
            self.moments.count = int(state.values["moments_count"])
            self.kl_coefficient = float(state.values["kl_coefficient"])
            self.policy_version = int(state.values["policy_version"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not fit this experiment's networks: {error}") from error

    def _normalisation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation, float32 ``[O]``, and the clip; neutral without normalisation."""
        clip = np.float32(self._ppo.observation_clip) if self._ppo.normalize_observations else _NO_CLIP
        return self.moments.mean.astype(np.float32), self.moments.std.astype(np.float32), np.asarray(clip)

    def _normalised(self, observations: torch.Tensor) -> torch.Tensor:
        mean, std, clip = self._normalisation()
        inverse = torch.from_numpy(1.0 / std).to(observations)
        return ((observations - torch.from_numpy(mean).to(observations)) * inverse).clamp(-float(clip), float(clip))


class _PolicyAndCritic(torch.nn.Module):
    def __init__(self, policy: torch.nn.Module, critic: torch.nn.Module) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.policy(observations), self.critic(observations).unsqueeze(1)], dim=-1)


def _optimizer_state(arrays: Mapping[str, np.ndarray]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = torch.from_numpy(array.copy())
    return state
