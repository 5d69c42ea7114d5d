"""Serverless actors for RLlib's PPO, APPO and IMPALA, on its new API stack.

RLlib needs another version of Gymnasium than this project. So this file runs in RLlib's interpreter, and its pool in
this project's. See docs/guides/rllib.md.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import DefaultAPPOTorchRLModule
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import nn

from nitro_rl.integrations.remote_pool import RemotePool
from runtime.errors import BudgetError, RunError
from runtime.pool.policies import Layer, numpy_policy
from runtime.pool.trajectory import Array, Trajectory

POOL = "nitro_pool"
_ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu"}


@dataclass(frozen=True, eq=False)
class ModulePolicy:
    """An RLModule's policy in NumPy.

    Attributes:
        layers: Layers for `numpy_policy`.
        activation: Activation between them, ``tanh`` or ``relu``.
        log_std: log σ of continuous actions, ``[A]``; None for discrete ones.
        choices: Number of values of each part of an action with several discrete parts, otherwise empty.
        low, half: The environment gets ``low + (a + 1) · half`` for an action ``a``, float64 ``[A]``.
    """

    layers: list[Layer]
    activation: str
    log_std: Array | None = None
    choices: tuple[int, ...] = ()
    low: Array | float = -1.0
    half: Array | float = 1.0

    @classmethod
    def of(cls, module: Any, action_space: Any, *, is_unsquashed: bool) -> ModulePolicy:
        """Copies the weights of an RLModule.

        Args:
            is_unsquashed: RLlib's ``normalize_actions``.

        Raises:
            RunError: Actors cannot run this RLModule; see the message.
        """
        if type(module) not in (DefaultPPOTorchRLModule, DefaultAPPOTorchRLModule):
            raise RunError(
                f"RLModule {type(module).__name__} cannot be converted; allowed: the default one of PPO, "
                "APPO or IMPALA, with torch"
            )
        encoder: Any = getattr(module.encoder, "encoder", None) or getattr(
            module.encoder, "actor_encoder", None
        )
        is_continuous = isinstance(action_space, gymnasium.spaces.Box)
        if type(encoder) is not TorchMLPEncoder:
            raise RunError(
                f"RLModule's encoder {type(encoder).__name__} cannot be converted; allowed: fcnet_hiddens "
                "over a vector, without LSTM"
            )
        if type(module.pi) is not (TorchFreeLogStdMLPHead if is_continuous else TorchMLPHead):
            raise RunError(
                f"RLModule's head {type(module.pi).__name__} cannot be converted; allowed for continuous "
                "actions: model_config=DefaultModelConfig(free_log_std=True, …)"
            )
        parts = [*encoder.net.mlp, *module.pi.net.mlp]
        hidden = {type(part) for part in parts[1::2]}
        if (
            len(parts) < 3
            or {type(part) for part in parts[::2]} != {nn.Linear}
            or len(hidden) != 1
            or (not hidden <= _ACTIVATIONS.keys())
            or any(part.bias is None for part in parts[::2])
        ):
            raise RunError(
                f"RLModule's layers {[type(part).__name__ for part in parts]} cannot be converted; allowed: "
                "linear ones with biases, and either tanh or relu between all, also of the head"
            )
        layers = [(_array(part.weight), _array(part.bias)) for part in parts[::2]]
        activation = _ACTIVATIONS[hidden.pop()]
        if not is_continuous:
            return cls(
                layers, activation, choices=tuple(map(int, getattr(action_space, "nvec", ())))
            )
        log_std = _array(module.pi.log_std)
        if module.pi.clip_log_std:
            most = float(module.pi.log_std_clip_param_const)
            log_std = np.clip(log_std, -most, most)
        if not is_unsquashed or not action_space.is_bounded("both"):
            return cls(layers, activation, log_std)
        low, high = (
            np.asarray(bound, np.float64) for bound in (action_space.low, action_space.high)
        )
        return cls(layers, activation, log_std, low=low, half=(high - low) / 2.0)

    def message(self) -> bytes:
        """Returns the actors' policy, which gives the environment's actions."""
        *hidden, (weight, bias) = self.layers
        if self.log_std is None or not self._is_scaled:
            return numpy_policy(
                self.layers, activation=self.activation, log_std=self.log_std, choices=self.choices
            )
        half = np.asarray(self.half)
        return numpy_policy(
            [*hidden, (weight * half[:, None], self.low + (bias + 1.0) * half)],
            activation=self.activation,
            log_std=self.log_std + np.log(half),
        )

    def outputs(self, observations: Array) -> Array:
        """Returns RLlib's ``action_dist_inputs``, float32 ``[T, D]``, for observations ``[T, O]``."""
        *hidden, (last, last_bias) = self.layers
        for weight, bias in hidden:
            observations = observations @ weight.T + bias
            observations = (
                np.tanh(observations) if self.activation == "tanh" else np.maximum(observations, 0)
            )
        outputs = observations @ last.T + last_bias
        if self.log_std is not None:
            outputs = np.concatenate(
                [outputs, np.broadcast_to(self.log_std, outputs.shape)], axis=1
            )
        return outputs.astype(np.float32)

    def sampled(self, trajectory: Trajectory) -> tuple[Array, Array]:
        """Returns a trajectory's actions as the RLModule would have sampled them, and their log-probabilities."""
        if not self._is_scaled:
            return trajectory.actions, trajectory.log_probs
        actions = (trajectory.actions.astype(np.float64) - self.low) / self.half - 1.0
        return actions.astype(np.float32), (trajectory.log_probs + np.log(self.half).sum()).astype(
            np.float32
        )

    @property
    def _is_scaled(self) -> bool:
        return bool(np.any(self.low != -1.0) or np.any(self.half != 1.0))


class ServerlessEnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """Samples training steps with a pool's actors. Everything else, such as evaluation, is local as in RLlib.

    Use a subclass with ``pool`` in ``config.env_runners(env_runner_cls=…, num_env_runners=0)``. With APPO and IMPALA,
    the next call samples while the learner learns. Callbacks may change ``actors`` of ``env_runner`` at any time.

    Attributes:
        pool: The arguments of `RemotePool`.
        actors: Actors of each call. They share the steps that RLlib requests, rounded up to the same number for each.
    """

    pool: Mapping[str, Any] = {}
    actors = 8

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        """Checks the configuration and opens the pool. Costs nothing.

        Raises:
            RunError: The pool does not support the configuration; see the message.
        """
        self._remote: RemotePool | None = None
        # RLlib only logs what its remote runners raise.
        is_remote = bool(kwargs.get("worker_index")) and config.create_local_env_runner
        if config.num_env_runners and not config.in_evaluation and not is_remote:
            raise RunError(
                f"num_env_runners = {config.num_env_runners} is not allowed with a pool of actors; allowed: "
                "0, and more actors of the pool"
            )
        super().__init__(config=config, **kwargs)
        self._open: dict[str, SingleAgentEpisode] = {}
        self._finished: list[tuple[int, float, float]] = []
        self._ahead: tuple[ModulePolicy, int] | None = None
        self._held: list[Trajectory] = []
        if self.config.in_evaluation or is_remote:
            return
        spaces = self.env.single_observation_space, self.env.single_action_space
        _check(self.config, self._callbacks, *spaces)
        self._policy()
        self._remote = RemotePool(**self.pool)
        bounds = self._remote.spaces["action_bounds"]
        if bounds and not np.allclose(np.transpose(bounds), [spaces[1].low, spaces[1].high]):
            self._remote.close()
            raise RunError(
                f"the pool's actions have the bounds {bounds}, RLlib's {spaces[1]}; they must be the same"
            )

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Samples with the pool for training; see `SingleAgentEnvRunner.sample`.

        Raises:
            BudgetError: The budget does not hold the call. Nothing was started, and the algorithm can be saved.
            RunError: Actors or the pool's process fail.
        """
        if self._remote is None or num_timesteps is None or random_actions or not explore:
            local: list[SingleAgentEpisode] = super()._sample(
                num_timesteps=num_timesteps,
                num_episodes=num_episodes,
                explore=explore,
                random_actions=random_actions,
                force_reset=force_reset,
            )
            return local
        if force_reset:
            raise RunError(
                "force_reset = True is not allowed with a pool: actors continue their episodes"
            )
        steps = -(-num_timesteps // self.actors)
        began_s = time.monotonic()
        if isinstance(self.config, IMPALAConfig):
            policy, version = self._ahead or self._submit(self._remote, steps)
            trajectories = self._held or self._remote.collect()
            self._held = []
            self._ahead = None
            # If the budget does not hold it, the next call raises, after this call's steps were used.
            with suppress(BudgetError):
                self._ahead = self._submit(self._remote, steps)
        else:
            policy = self._policy()
            version = self._weights_seq_no
            trajectories = self._remote.sample(policy.message(), actors=self.actors, steps=steps)
        total = sum(map(len, trajectories))
        second_s = (time.monotonic() - began_s) / total
        self._finished += [
            (int(length), float(episode_return), float(length * second_s))
            for trajectory in trajectories
            for length, episode_return in zip(
                trajectory.episode_lengths, trajectory.episode_returns, strict=True
            )
        ]
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=total)
        self._increase_sampled_metrics(
            total, sum(len(trajectory.episode_lengths) for trajectory in trajectories)
        )
        self.metrics.log_value("pool_spent_usd", self._remote.spent_usd, window=1)
        return [
            episode
            for trajectory in trajectories
            for episode in self._episodes(trajectory, policy, version)
        ]

    def _submit(self, remote: RemotePool, steps: int) -> tuple[ModulePolicy, int]:
        policy = self._policy()
        remote.submit(policy.message(), actors=self.actors, steps=steps)
        return policy, self._weights_seq_no

    def _policy(self) -> ModulePolicy:
        return ModulePolicy.of(
            self.module, self.env.single_action_space, is_unsquashed=self.config.normalize_actions
        )

    def _episodes(
        self, trajectory: Trajectory, policy: ModulePolicy, version: int
    ) -> list[SingleAgentEpisode]:
        """Splits a trajectory into episodes. The first may continue an earlier one."""
        observation_space = self.env.single_observation_space
        action_space = self.env.single_action_space
        before, after = (
            array.astype(observation_space.dtype)
            for array in (trajectory.observations, trajectory.next_observations)
        )
        # Actors do not send the observations after these, and nothing is learned from them. But RLlib standardizes
        # advantages with their values, so the values must be plausible.
        after[trajectory.terminated] = before[trajectory.terminated]
        outputs = policy.outputs(trajectory.observations)
        (actions, log_probs) = policy.sampled(trajectory)
        episode = self._open.pop(trajectory.continued_episode, None)
        episodes: list[SingleAgentEpisode] = []
        for step in range(len(trajectory)):
            if episode is None:
                episode = SingleAgentEpisode(
                    observation_space=observation_space, action_space=action_space
                )
                episode.add_env_reset(observation=before[step], infos={})
            episode.add_env_step(
                observation=after[step],
                action=actions[step],
                reward=float(trajectory.rewards[step]),
                infos={},
                terminated=bool(trajectory.terminated[step]),
                truncated=bool(trajectory.truncated[step]),
                extra_model_outputs={
                    Columns.ACTION_DIST_INPUTS: outputs[step],
                    Columns.ACTION_LOGP: log_probs[step],
                    WEIGHTS_SEQ_NO: version,
                },
            )
            if episode.is_done or step == len(trajectory) - 1:
                if not episode.is_done:
                    self._open[f"{trajectory.call}-{trajectory.slot}"] = episode.cut(
                        len_lookback_buffer=self.config.episode_lookback_horizon
                    )
                episodes.append(episode.to_numpy() if self.episodes_to_numpy else episode)
                episode = None
        return episodes

    def get_metrics(self) -> dict[str, Any]:
        """As `SingleAgentEnvRunner.get_metrics`; the pool's episodes count when they end."""
        for finished in self._finished:
            self._log_episode_metrics(*finished)
        self._finished.clear()
        metrics: dict[str, Any] = super().get_metrics()
        return metrics

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As `SingleAgentEnvRunner.get_state`, with the pool's state."""
        state: dict[str, Any] = super().get_state(
            components, not_components=not_components, **kwargs
        )
        if self._remote is not None and self._check_component(POOL, components, not_components):
            # Without a call ahead, it is the rest of a failed call, which is not learned from.
            held = self._held or self._remote.collect()
            self._held = held if self._ahead is not None else []
            state[POOL] = self._remote.state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """As `SingleAgentEnvRunner.set_state`; open episodes continue under new ids."""
        if self._remote is not None and POOL in state:
            if not self._held:
                self._remote.collect()
            self._ahead = None
            self._held = []
            self._open = {}
            self._remote.load_state(state[POOL])
        super().set_state(state)

    def stop(self) -> None:
        """Also closes the pool."""
        if self._remote is not None:
            self._remote.close()
        super().stop()


def _check(
    config: AlgorithmConfig,
    callbacks: list[RLlibCallback],
    observation_space: gymnasium.Space[Any],
    action_space: Any,
) -> None:
    """Raises if actors would behave differently from RLlib's own runner.

    Raises:
        RunError: See the message.
    """
    box = gymnasium.spaces.Box
    own_steps = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
    bounded = isinstance(action_space, box) and bool(
        np.isfinite([action_space.low, action_space.high]).any()
    )
    refused = {
        f"batch_mode = {config.batch_mode!r}; allowed: 'truncate_episodes'": config.batch_mode
        != "truncate_episodes",
        "env_to_module_connector and module_to_env_connector; allowed: RLlib's default ones": (
            config._env_to_module_connector is not None
            or config._module_to_env_connector is not None
            or not config.add_default_connectors_to_env_to_module_pipeline
            or not config.add_default_connectors_to_module_to_env_pipeline
        ),
        f"{', '.join(own_steps)} of callbacks; allowed: the others, such as on_sample_end": any(
            getattr(config, f"callbacks_{name}")
            or getattr(type(callback), name) is not getattr(RLlibCallback, name)
            for name in own_steps
            for callback in callbacks
        ),
        f"observations {observation_space}; allowed: vectors of floats": not (
            isinstance(observation_space, box)
            and len(observation_space.shape) == 1
            and np.issubdtype(observation_space.dtype, np.floating)
        ),
        f"actions {action_space}; allowed: vectors of floats, Discrete and MultiDiscrete from 0": not (
            len(action_space.shape) == 1 and np.issubdtype(action_space.dtype, np.floating)
            if isinstance(action_space, box)
            else isinstance(
                action_space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete
            )
            and not np.any(action_space.start)
        ),
        "normalize_actions = False and clip_actions = False, with bounded actions; allowed: one of them": (
            bounded and not config.normalize_actions and not config.clip_actions
        ),
        "normalize_actions = True, with actions bounded on one side; allowed: clip_actions = True instead": (
            bounded and config.normalize_actions and not action_space.is_bounded("both")
        ),
    }
    for what, is_refused in refused.items():
        if is_refused:
            raise RunError(f"a pool of actors cannot have {what}")


def _array(parameter: Any) -> Array:
    return np.array(parameter.detach().cpu(), np.float32)
