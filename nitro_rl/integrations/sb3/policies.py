"""Policies of stable-baselines3's models for actors: layers in NumPy, or otherwise an ONNX graph."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from gymnasium import spaces
from onnx import numpy_helper
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from nitro_rl import OnnxPolicy, RunError, numpy_policy

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}
_OPSET = 17
Normalizing = dict[str, Any]
"""Mean, standard deviation and clip of observations for `numpy_policy`; may be empty."""


def actor_critic(model: BaseAlgorithm) -> Callable[[Normalizing], Any]:
    """Returns a function that makes a policy for `ActorPool.sample` from the model's current actor.

    Raises:
        RunError: Actors cannot act as the model does.
    """
    policy: Any = model.policy
    if getattr(policy, "use_sde", False):
        raise RunError("actors cannot act with use_sde: its noise lasts for several steps")
    is_gaussian = isinstance(model.action_space, spaces.Box)
    choices = (
        tuple(map(int, model.action_space.nvec))
        if isinstance(model.action_space, spaces.MultiDiscrete)
        else ()
    )
    modules = [*getattr(policy.mlp_extractor, "policy_net", ()), policy.action_net]
    layers = modules[::2]
    activations = {type(layer) for layer in modules[1::2]}
    is_plain = (
        type(policy.pi_features_extractor) is FlattenExtractor
        and len(activations) == 1
        and {type(layer) for layer in layers} == {nn.Linear}
        and activations <= _ACTIVATIONS.keys()
    )
    if not is_plain:
        graph = _PolicyGraph(
            _ActorCritic(policy, has_std=is_gaussian),
            model,
            ("mean", "log_std") if is_gaussian else ("logits",),
        )
        return lambda normalizing: graph(
            normalizing, act="gaussian" if is_gaussian else "categorical"
        )
    activation = _ACTIVATIONS[activations.pop()]
    return lambda normalizing: numpy_policy(
        [(_numbers(layer.weight), _numbers(layer.bias)) for layer in layers],
        activation=activation,
        log_std=_numbers(policy.log_std) if is_gaussian else None,
        choices=choices,
        **normalizing,
    )


def squashed_gaussian(model: BaseAlgorithm) -> Callable[..., Any]:
    """As `actor_critic`, for SAC. With ``is_random``, actions are uniform between the bounds, as before learning."""
    graph = _PolicyGraph(_SquashedActor(model.policy.actor), model, ("mean", "log_std"))  # type: ignore[union-attr]
    return lambda normalizing, *, is_random: graph(
        normalizing, act="uniform" if is_random else "squashed_gaussian"
    )


def epsilon_greedy(model: Any) -> Callable[..., Any]:
    """As `squashed_gaussian`, for DQN."""
    graph = _PolicyGraph(model.policy.q_net, model, ("q_values",))
    return lambda normalizing, *, is_random: graph(
        normalizing, act="epsilon_greedy", epsilon=1.0 if is_random else model.exploration_rate
    )


class _ActorCritic(nn.Module):
    """The actor of PPO's policy."""

    def __init__(self, policy: Any, *, has_std: bool) -> None:
        super().__init__()
        self.policy = policy
        self._has_std = has_std

    def forward(self, observations: torch.Tensor) -> Any:
        policy = self.policy
        features = BaseModel.extract_features(policy, observations, policy.pi_features_extractor)
        outputs = policy.action_net(policy.mlp_extractor.forward_actor(features))
        return (outputs, policy.log_std.expand_as(outputs)) if self._has_std else outputs


class _SquashedActor(nn.Module):
    """SAC's actor."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observations: torch.Tensor) -> Any:
        return self.actor.get_action_dist_params(observations)[:2]


class _Normalized(nn.Module):
    """A network behind VecNormalize."""

    observation_mean: torch.Tensor
    observation_std: torch.Tensor

    def __init__(self, network: nn.Module, shape: Sequence[int], clip: float) -> None:
        super().__init__()
        self.network = network
        self._clip = clip
        self.register_buffer("observation_mean", torch.zeros(tuple(shape)))
        self.register_buffer("observation_std", torch.ones(tuple(shape)))

    def forward(self, observations: torch.Tensor) -> Any:
        normalized = (observations - self.observation_mean) / self.observation_std
        return self.network(torch.clamp(normalized, -self._clip, self._clip))


class _PolicyGraph:
    """An exported network. Each policy replaces its numbers, because exporting takes longer than a call."""

    def __init__(self, network: nn.Module, model: BaseAlgorithm, outputs: Sequence[str]) -> None:
        self._network = network
        self._model = model
        self._outputs = outputs
        self._exported: onnx.ModelProto | None = None

    def __call__(self, normalizing: Normalizing, *, act: str, epsilon: float = 0.0) -> Any:
        """Returns a policy with the network's current numbers."""
        if self._exported is None:
            self._exported = self._export(normalizing)
        numbers: dict[str, Any] = dict(self._network.state_dict())
        if normalizing:
            shape = self._model.observation_space.shape
            assert shape is not None
            numbers = {f"network.{name}": value for name, value in numbers.items()} | {
                name: torch.as_tensor(normalizing[name].reshape(shape), dtype=torch.float32)
                for name in ("observation_mean", "observation_std")
            }
        for initializer in self._exported.graph.initializer:
            if initializer.name in numbers:
                initializer.CopyFrom(
                    numpy_helper.from_array(_numbers(numbers[initializer.name]), initializer.name)
                )
        return OnnxPolicy(self._exported.SerializeToString(), act=act, epsilon=epsilon)

    def _export(self, normalizing: Normalizing) -> onnx.ModelProto:
        shape = self._model.observation_space.shape
        assert shape is not None
        network = copy.deepcopy(self._network).cpu()
        if normalizing:
            network = _Normalized(network, shape, normalizing["observation_clip"])
        # A generator of its own, so that a resumed training, which exports again, draws the same numbers.
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in (*network.parameters(), *network.buffers()):
                # Equal arrays would be exported as one.
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.0, generator=generator)
        file = io.BytesIO()
        with warnings.catch_warnings():
            # Ignore the warning that this exporter is old. The new one needs another library.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(),
                (torch.zeros(1, *shape),),
                file,
                dynamo=False,
                opset_version=_OPSET,
                do_constant_folding=False,
                input_names=["observation"],
                output_names=[*self._outputs],
            )
        return onnx.load_from_string(file.getvalue())


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return array
