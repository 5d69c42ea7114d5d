"""Nitro's detector and scaler for RLlib's PPO. RLlib's interpreter then also needs PyHessian."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback

from nitro_rl.integrations.rllib import ServerlessEnvRunner
from runtime.detector.convexity import ConvexityDetector
from runtime.errors import RunError
from runtime.learner.advantages import generalized_advantages
from runtime.learner.interfaces import CurvatureProblem
from runtime.pool.trajectory import Array, Trajectory
from runtime.scaler.interfaces import RoundView
from runtime.scaler.nitro import NitroSettings


class NitroScaling(RLlibCallback):  # type: ignore[misc]
    """Chooses the actors of each call of PPO's `ServerlessEnvRunner`, which needs ``fragment_steps``.

    After each iteration it measures the convexity ratio of the newest policy on samples of the last call. Iterations
    must be one call each: a batch of at most ``actors_min`` fragments. A restored training begins with a new window.

    Attributes:
        settings: The scaler's settings. The pool must allow at least ``actors_max`` actors.
        subset_size: Number of samples for the ratio.
        lanczos_steps: See `runtime.detector.convexity.extreme_eigenvalues`.

    Paper: Nitro §5.
    """

    settings = NitroSettings()
    subset_size = 1024
    lanczos_steps = 30

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """Chooses the actors of the first call.

        Raises:
            RunError: The algorithm cannot be scaled.
        """
        runner = algorithm.env_runner
        self._learner = algorithm.learner_group._learner
        if (
            not isinstance(runner, ServerlessEnvRunner)
            or not runner.fragment_steps
            or self._learner is None
            or type(algorithm).__name__ != "PPO"
        ):
            raise RunError(
                "NitroScaling is not for this; allowed: PPO with num_learners = 0, and with a "
                "ServerlessEnvRunner that has fragment_steps"
            )
        self._detector = ConvexityDetector(
            "log_prob", self.subset_size, self.lanczos_steps, seed=algorithm.config.seed or 0
        )
        self._scaler = self.settings.make()
        self._round = 0
        self._decide(runner, None)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        """Chooses the actors of the next call, and adds the measurement to the result."""
        runner = algorithm.env_runner
        module = self._learner.module["default_policy"].unwrapped()
        ratio = self._detector.measure(
            self.problem(module, runner, algorithm.config)
        ).convexity_ratio
        result["nitro"] = {
            "convexity_ratio": ratio,
            "boosting_score": self._decide(runner, ratio),
            "actors": runner.actors,
        }

    def _decide(self, runner: ServerlessEnvRunner, ratio: float | None) -> float | None:
        self._round += 1
        decision = self._scaler.decide(RoundView(self._round, signals={"convexity_ratio": ratio}))
        runner.actors = decision.actor_count
        return decision.boosting_score

    def problem(self, module: Any, runner: ServerlessEnvRunner, config: Any) -> CurvatureProblem:
        """Returns mean log π(a|s)·Â of the last call's samples, by the policy's parameters. Paper: Nitro Theorem 1."""

        def values(observations: Array) -> Array:
            with torch.no_grad():
                estimates: Array = module.compute_values(
                    {"obs": torch.from_numpy(observations)}
                ).numpy()
            return estimates[:, None]

        def estimated(trajectory: Trajectory) -> Array:
            cut = np.zeros((len(trajectory), 1), bool)
            cut[trajectory.bootstrap_steps] = True
            return generalized_advantages(
                trajectory.rewards[:, None],
                values(trajectory.observations),
                values(trajectory.next_observations),
                trajectory.terminated[:, None],
                cut,
                discount=config.gamma,
                gae_lambda=config.lambda_,
            )[:, 0]

        policy = runner._policy()
        observations, actions, advantages = (
            torch.from_numpy(np.concatenate(arrays))
            for arrays in zip(
                *(
                    (
                        trajectory.observations,
                        policy.sampled(trajectory)[0],
                        estimated(trajectory).astype(np.float32),
                    )
                    for trajectory in runner.sampled
                ),
                strict=True,
            )
        )
        advantages = (advantages - advantages.mean()) / advantages.std().clamp(min=1e-4)
        chosen = torch.from_numpy(
            np.sort(
                np.random.default_rng(self._detector.seed).choice(
                    len(advantages), min(self.subset_size, len(advantages)), replace=False
                )
            )
        )
        distribution = module.get_exploration_action_dist_cls()

        def log_prob(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            mean: torch.Tensor = (
                distribution.from_logits(outputs).logp(actions[chosen]) * targets
            ).mean()
            return mean

        return CurvatureProblem(_Policy(module), log_prob, observations[chosen], advantages[chosen])


class _Policy(torch.nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        encoder = getattr(module.encoder, "encoder", None) or module.encoder.actor_encoder
        self.net = copy.deepcopy(torch.nn.Sequential(*encoder.net.mlp, *module.pi.net.mlp))
        self.log_std = copy.deepcopy(getattr(module.pi, "log_std", None))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(observations)
        return (
            outputs
            if self.log_std is None
            else torch.cat([outputs, self.log_std.expand_as(outputs)], dim=-1)
        )
