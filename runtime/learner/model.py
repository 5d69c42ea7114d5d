"""Makes, evaluates, sends and saves policy, critic and moments, without training them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch

from lambda_actor import wire
from runtime.errors import CheckpointError
from runtime.learner import LearnerSpec
from runtime.learner.distributions import make_distribution
from runtime.learner.networks import (
    PolicyNetwork,
    ValueNetwork,
    layer_arrays,
    vectors_beside,
    with_vectors,
)
from runtime.learner.normaliser import RunningMoments
from runtime.ports.learning import DetectorSamples, State
from runtime.settings.algorithm import AlgorithmSettings

OBSERVATION_CLIP = 10.0
"""Normalized observations are clipped to ± this."""
_NO_CLIP = np.float32(3.0e38)
PIXEL_SAMPLES = 1024
"""Observations per pass through a pixel network without gradients. Features are large."""

Settings = TypeVar("Settings", bound=AlgorithmSettings)


class Model(Generic[Settings]):
    """Networks and moments that a learner trains, and that a remote learner starts from.

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
    """

    counters: tuple[str, ...] = ("policy_version",)

    def __init__(self, spec: LearnerSpec, *, device: str = "cpu") -> None:
        """Makes fresh networks.

        Args:
            spec: The specification. Its algorithm is fitted to the environment.
            device: ``cpu`` or ``cuda``.

        Raises:
            ValueError: The algorithm was not fitted.
        """
        spaces, network, algorithm, seed = spec.spaces, spec.network, spec.algorithm, spec.seed
        self.settings = cast(Settings, algorithm)
        if self.settings.normalize_observations is None:
            raise ValueError(
                "normalize_observations is open: fit the experiment to its environment first"
            )
        self.kind, self.seed, self.device = algorithm.kind, seed, torch.device(device)
        self._network, self._spaces = network, spaces
        self.distribution = make_distribution(spaces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = PolicyNetwork(
                spaces, network, initialisation=spec.initialisation, initial_std=spec.initial_std
            )
            self.critic = ValueNetwork(spaces, network, initialisation=spec.initialisation)
        self.policy.to(self.device)
        self.critic.to(self.device)
        self.moments = RunningMoments(
            spaces.vector_size if self.settings.normalize_observations else 0,
            spaces.binary_parts if self.settings.normalize_observations else (),
        )
        self.acting_moments = self.moments.copy()
        self.return_moments = RunningMoments(1)
        self.policy_version = 0

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
            parts = torch.split(inputs, PIXEL_SAMPLES) if inputs.dtype == torch.uint8 else [inputs]
            outputs: Any = torch.cat([network(part) for part in parts])
        found: np.ndarray = (
            outputs if isinstance(observations, torch.Tensor) else outputs.cpu().numpy()
        )
        return found

    def inputs(self, observations: Any, moments: RunningMoments | None = None) -> torch.Tensor:
        """Returns network inputs for raw observations, normalized by these moments or the current ones."""
        inputs = torch.as_tensor(observations, device=self.device)
        if not self.settings.normalize_observations:
            return inputs
        mean, std, clip = self._normalisation(moments or self.moments)
        raw = vectors_beside(inputs, self._spaces) if self._spaces.is_combined else inputs
        inverse = torch.from_numpy(1.0 / std).to(raw)
        vectors = ((raw - torch.from_numpy(mean).to(raw)) * inverse).clamp(
            -float(clip), float(clip)
        )
        return with_vectors(inputs, vectors, self._spaces) if self._spaces.is_combined else vectors

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

    def load_snapshot(self, snapshot: State) -> None:
        """Loads a snapshot and leaves the optimizer unchanged.

        Raises:
            CheckpointError: The snapshot belongs to another network or algorithm.
        """
        with belonging():
            self._load(snapshot.arrays, snapshot.values)

    def _load(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Loads everything except the optimizer's state."""
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


@contextmanager
def belonging() -> Iterator[None]:
    """Turns errors of state that does not fit a learner into a CheckpointError."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint does not fit this experiment's networks: {error}"
        ) from error
