"""The learner: trains the policy on what the actors bring back. The only door to torch besides the detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import ExperimentError
from runtime.settings.kinds import load

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.config.schema import AlgorithmSection
    from runtime.ports.learning import Learner


LEARNER_HANDLER = "runtime.learner.remote.handler:handler"
"""The learner function, as fleets take it."""


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is made of, the same in each of its processes.

    Attributes:
        algorithm: Resolved and fitted to the environment.
        spaces: The environment's.
        network: The text of a `lambda_actor.policy.Architecture`.
        seed: Of the networks and of all that is drawn later.
        threads: CPU threads of the update.
        initialisation: Of the networks, ``orthogonal`` or ``default``.
        initial_std: Of continuous actions, before the first update.
    """

    algorithm: AlgorithmSection
    spaces: Spaces
    network: str = "mlp"
    seed: int = 0
    threads: int = 1
    initialisation: str = "orthogonal"
    initial_std: float = 1.0


def make_learner(spec: LearnerSpec, *, device: str) -> Learner:
    """Makes the learner that the experiment names; torch is imported here and no earlier.

    Args:
        spec: What it is made of.
        device: ``cpu`` or ``cuda``.
    """
    learner: Learner = load(spec.algorithm.chosen.learner)(spec, device=device)
    return learner


def device_of(wanted: str) -> str:
    """Returns where a policy is trained here, ``cpu`` or ``cuda``.

    Args:
        wanted: ``learner.device``.

    Raises:
        ExperimentError: There is no GPU that torch can use.
    """
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise ExperimentError("learner.device = 'cuda': no usable GPU is here; allowed: cpu | auto")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
