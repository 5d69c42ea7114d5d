"""Resolved experiments: after `resolve`, and after `ResolvedExperiment.fitted` to the environment.

Fields have the names of `runtime.experiment.schema`, and each `runtime.experiment.section.Open` one has a value. These
stay: ``learner.device`` and the ``backend`` and ``reduction`` of gmi are ``auto`` until the learner starts, and a None
that stands for a default, such as that of ``network.hidden_sizes``, is read where it is used.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from lambda_actor.policy import HIDDEN_SIZES, Architecture, default_network
from lambda_actor.replay import REPLAYS
from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import CPU_TYPES, GPU_TYPES, vcpus
from runtime.experiment.schema import (
    KINDS,
    ActorSection,
    EnvironmentSection,
    Experiment,
    NetworkSection,
)
from runtime.experiment.section import Field, Section

Resolved = TypeVar("Resolved", bound=Section)
VECTOR_MAX = 16
"""Most environments in lockstep; more save little."""
_GAME = re.compile(r"ALE/|\w+(?:NoFrameskip|Deterministic)-v\d+$")
"""Registered names of Arcade Learning Environment games."""


class ResolvedEnvironment(EnvironmentSection):
    """The environment, and how many a process plays."""

    vector: int = Field(1, exclude=True)
    """Most environments, one per actor, that a process of the local fleet plays in lockstep."""

    @property
    def batch(self) -> int:
        """Returns how many environments take no longer together than one alone."""
        return self.vector if self.backend == "warp" else 1


class FittedEnvironment(ResolvedEnvironment):
    """The environment, and its preprocessing."""

    preprocessing: Literal["atari", "none"]
    replay: Literal[*REPLAYS] = Field("", exclude=True)  # type: ignore[valid-type]  # of the actor
    """How open episodes are replayed; "" if they are saved, or never continued."""
    replay_steps_max: int = Field(0, exclude=True)
    """The most steps that an actor replays."""
    step_s: float = Field(0.0, exclude=True)
    """Seconds of a step in the trial."""
    make_s: float = Field(0.0, exclude=True)
    """Seconds that the trial took to import and make it."""
    dropped_because: str = Field("", exclude=True)
    """Why the unfinished episode at the end of a fragment is dropped; "" if it is not."""

    @property
    def clip_rewards(self) -> bool:
        """Returns whether to train on the sign of each reward. Reported returns are never clipped."""
        return self.preprocessing == "atari"


class FittedNetwork(NetworkSection):
    """The networks of policy and critic."""

    kind: Literal["mlp", "conv", "combined"]

    @property
    def architecture(self) -> str:
        """Returns the text of a `lambda_actor.policy.Architecture`."""
        return str(
            Architecture(self.kind, self.hidden_sizes or HIDDEN_SIZES, self.activation or "tanh")
        )


class ResolvedExperiment(Experiment):
    """An experiment whose computed defaults are filled in, except those that depend on its environment."""

    environment: ResolvedEnvironment
    is_on_learner: bool = Field(False, exclude=True)
    """Whether actors are processes of a deployed learner or of its instances, at no extra cost. Otherwise a run on one
    machine is billed as if its actors were functions."""

    @property
    def has_elasticache(self) -> bool:
        """Whether ElastiCache Serverless carries its messages in AWS."""
        return self.cache.kind == "redis" and not self.is_on_learner

    def fitted(self, spaces: Spaces, *, preprocessing: str) -> FittedExperiment:
        """Returns the experiment with the values that depend on its environment.

        Args:
            spaces: The environment's.
            preprocessing: The environment's, ``atari`` or ``none``.

        Raises:
            ExperimentError: The network cannot take such observations.
        """
        network: str = self.network.kind
        if network == "auto":
            network = default_network(spaces)
        if (network == "combined") != spaces.is_combined or (
            network == "conv" and not spaces.is_pixels
        ):
            observed = (
                f"a picture {'×'.join(map(str, spaces.beside_shape))} beside {spaces.vector_size} numbers"
                if spaces.is_combined
                else "pixels"
                if spaces.is_pixels
                else f"a vector of {spaces.observation_size} numbers, not as pixels"
            )
            allowed = (
                "combined" if spaces.is_combined else "mlp | conv" if spaces.is_pixels else "mlp"
            )
            raise ExperimentError(
                f"network.kind = '{network}': {self.environment.id} is observed as {observed}; "
                f"allowed: auto | {allowed}"
            )
        for name in ("hidden_sizes", "activation"):
            if network == "conv" and (value := getattr(self.network, name)) is not None:
                raise ExperimentError(
                    f"network.{name} = {value}: the convolutional network's layers are given; "
                    "allowed: null, or network.kind = mlp"
                )
        algorithm = _as(
            type(self.algorithm),
            self.algorithm,
            {
                "normalize_observations": _or(
                    self.algorithm.normalize_observations,
                    spaces.vector_size > 0 and not spaces.is_binary,
                )
            },
        )
        if algorithm.normalize_observations and not spaces.vector_size:
            raise ExperimentError(
                "algorithm.normalize_observations = true: the observations of "
                f"{self.environment.id} are pixels, which are divided by 255; allowed: false | null"
            )
        return _as(
            FittedExperiment,
            self,
            {
                "environment": _as(
                    FittedEnvironment,
                    self.environment,
                    {"preprocessing": preprocessing},
                ),
                "network": _as(FittedNetwork, self.network, {"kind": network}),
                "algorithm": algorithm,
            },
        )


class FittedExperiment(ResolvedExperiment):
    """An experiment whose computed defaults are all filled in."""

    environment: FittedEnvironment
    network: FittedNetwork


def resolve(
    experiment: Experiment, *, is_deployed: bool = False, provisioned: int | None = None
) -> ResolvedExperiment:
    """Fills in every computed default that does not need the environment; see `Experiment.resolved`."""
    experiment = experiment.without_unused()
    algorithm, actor, learner, fleet = (
        experiment.algorithm,
        experiment.actor,
        experiment.learner,
        experiment.fleet,
    )
    most_actors = experiment.scaler.most_actors
    instance_types = _or(
        learner.instance_types, GPU_TYPES if _is_convolved(experiment) else CPU_TYPES
    )
    kind, has_instances = fleet.kind, learner.has_actors
    if kind == "auto":
        kind = "lambda" if is_deployed and not has_instances else "local"
    is_on_learner = has_instances or (is_deployed and kind == "local")
    # In a deployment, the smallest learner that may be launched decides, not this machine.
    cores = min(map(vcpus, instance_types)) if is_deployed and is_on_learner else _cores()
    processes = _or(fleet.processes, cores)
    is_batched = experiment.environment.backend == "warp"
    if is_deployed and is_batched:
        raise ExperimentError(
            "environment.backend = warp is for this machine: the images of a deployment have no "
            "mujoco-warp; allowed there: gymnasium"
        )
    layout = (
        _layout(
            learner,
            cores,
            most_actors,
            environments_max=most_actors if is_batched else VECTOR_MAX,
        )
        if has_instances
        else {}
    )
    return _as(
        ResolvedExperiment,
        experiment,
        {
            "environment": _as(
                ResolvedEnvironment,
                experiment.environment,
                {
                    "vector": layout["environments"]
                    if layout
                    else _vector(experiment, processes)
                    if kind == "local"
                    else 1
                },
            ),
            "algorithm": _as(
                type(algorithm),
                algorithm,
                {
                    "rounds": "asynchronous" if algorithm.is_asynchronous else "synchronous",
                    "staleness_max": _or(algorithm.staleness_max, max(32, 4 * most_actors)),
                },
            ),
            "actor": _as(
                ActorSection,
                actor,
                {"provisioned": 0 if is_on_learner else _or(provisioned, actor.provisioned)},
            ),
            "learner": type(learner).model_construct(
                # A computed layout does not count as set: `runtime.gmi.settling` may know a better one.
                learner.model_fields_set
                - {key for key in layout if getattr(learner, key) == "auto"},
                **{
                    **dict(learner),
                    "device": learner.device if learner.has_instance else "cpu",
                    "instance_types": instance_types,
                    **learner.resolved(is_deployed=is_deployed),
                    **layout,
                },
            ),
            "fleet": _as(
                KINDS["fleet"].settings[kind],
                fleet,
                {
                    "kind": kind,
                    "processes": processes,
                    "round_deadline_s": _or(fleet.round_deadline_s, 2 * actor.timeout_s),
                },
            ),
            "is_on_learner": is_on_learner,
            **(
                {"cache": _as(type(experiment.cache), experiment.cache, {"kind": "none"})}
                if layout
                or (learner.is_external and "kind" not in experiment.cache.model_fields_set)
                else {}
            ),
        },
    )


def _vector(experiment: Experiment, processes: int) -> int:
    """Returns the most environments that a process of the local fleet plays at once."""
    # All environments of a process would return at once, leaving it idle until others start.
    if experiment.algorithm.is_asynchronous:
        return 1
    return min(VECTOR_MAX, math.ceil(experiment.scaler.most_actors / processes))


def _layout(gmi: Any, cores: int, most_actors: int, *, environments_max: int) -> dict[str, int]:
    """Returns the number of instances, and of environments that each plays at once."""
    instances = gmi.instances
    if instances == "auto":
        is_holistic = gmi.layout == "holistic"
        instances = min(cores, most_actors) if is_holistic else max(2, min(cores, most_actors + 1))
    play = gmi.model_copy(update={"instances": instances}).instances_at_once
    share = min(environments_max, math.ceil(most_actors / play))
    return {
        "instances": instances,
        "environments": share if gmi.environments == "auto" else gmi.environments,
    }


def _is_convolved(experiment: Experiment) -> bool:
    """Returns whether the policy has convolutions, as far as the file tells without making the environment."""
    environment, network = experiment.environment, experiment.network.kind
    is_game = environment.preprocessing == "atari" or _GAME.match(environment.id) is not None
    return network in ("conv", "combined") or (network == "auto" and is_game)


def _as(kind: type[Resolved], section: Section, values: Mapping[str, Any]) -> Resolved:
    """Returns the section as that kind, with these values, which must have been checked.

    Values of the file remain distinguishable from computed ones; see `Experiment.given_yaml`.
    """
    values = {**dict(section), **values}
    return kind.model_construct(section.model_fields_set, **values)  # type: ignore[return-value]  # the plugin takes the type variable's bound


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
