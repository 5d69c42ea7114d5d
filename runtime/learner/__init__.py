"""The learner trains the policy on the actors' trajectories. Only the learner and the detector import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError
from runtime.experiment.algorithm import ALGORITHMS, AlgorithmSettings
from runtime.experiment.kinds import is_import_path, load
from runtime.experiment.schema import add_kind

if TYPE_CHECKING:
    from runtime.learner.interfaces import Learner


LEARNER_HANDLER = "runtime.learner.functions.handler:handler"
"""The learner function, in the form that fleets take."""


@dataclass(frozen=True)
class LearnerSpec:
    """Specifies a learner; every one of its processes gets the same.

    Attributes:
        algorithm: Resolved and fitted to the environment.
        spaces: The environment's.
        network: The text of a `lambda_actor.policy.Architecture`.
        seed: Seeds the networks and all later draws.
        threads: CPU threads of the update.
        initial_std: σ of continuous actions before the first update.
        initialisation: Kind of initial weights.
    """

    algorithm: AlgorithmSettings
    spaces: Spaces
    network: str = "mlp"
    seed: int = 0
    threads: int = 1
    initial_std: float = 1.0
    initialisation: str = "orthogonal"


def spec_values(spec: LearnerSpec) -> dict[str, Any]:
    """Returns a learner's specification as JSON values, for other processes."""
    return {
        **vars(spec),
        "algorithm": spec.algorithm.model_dump(mode="json"),
        "spaces": asdict(spec.spaces),
    }


def spec_of(values: Mapping[str, Any]) -> LearnerSpec:
    """Returns a learner's specification, given the result of `spec_values`."""
    if is_import_path(kind := values["algorithm"]["kind"]):
        add_kind(kind)
    spaces = Spaces.from_json(values["spaces"])
    algorithm = ALGORITHMS.choose(values["algorithm"])
    return LearnerSpec(**{**values, "algorithm": algorithm, "spaces": spaces})


def make_learner(spec: LearnerSpec, *, device: str) -> Learner:
    """Makes the experiment's learner. Imports torch, which nothing does before.

    Args:
        spec: The specification.
        device: ``cpu`` or ``cuda``.
    """
    learner: Learner = load(spec.algorithm.learner)(spec, device=device)
    return learner


def device_of(wanted: str) -> str:
    """Returns the device that trains policies here, ``cpu`` or ``cuda``.

    Args:
        wanted: ``learner.device``.

    Raises:
        ExperimentError: There is no GPU that torch can use.
    """
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        why = "no usable GPU is here"
        if torch.version.cuda is None:
            why = (
                f"torch {torch.__version__} is a build without CUDA; python -m pip install "
                "--force-reinstall torch brings one"
            )
        raise ExperimentError(f"learner.device = 'cuda': {why}; allowed: cpu | auto")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
