"""Resolved experiments: `resolve` fills in what the file leaves open, `fitted` what depends on the environment.

Fields have the names of `runtime.experiment.schema`, and each `runtime.experiment.section.Open` one has a value. These
stay: ``network.kind`` and ``environment.preprocessing`` are ``auto`` until `ResolvedExperiment.fitted`,
``learner.device`` and the ``backend`` and ``reduction`` of gmi until the learner starts, and a None that stands for a
default, such as that of ``network.hidden_sizes``, is read where it is used.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from lambda_actor.policy import HIDDEN_SIZES, Architecture, default_network
from lambda_actor.spaces import Spaces
from runtime import machine
from runtime.errors import ExperimentError
from runtime.experiment.fleet import FLEETS, FleetSettings
from runtime.experiment.instance_types import CPU_TYPES, GPU_TYPES, vcpus
from runtime.experiment.schema import EnvironmentSection, Experiment, NetworkSection
from runtime.experiment.section import Field, Section

VECTOR_MAX = 16
"""Most environments in lockstep; more save little."""
_SLOW_STEP_S = 0.002
_GAME = re.compile(r"ALE/|\w+(?:NoFrameskip|Deterministic)-v\d+$")
"""Registered names of Arcade Learning Environment games."""


@dataclass(frozen=True)
class TrialFacts:
    """What a trial of the environment has shown; all as if nothing was found before it.

    Attributes:
        replay: How open episodes are replayed: in an environment that is ``reset``, or in one made ``anew`` for each,
            because its earlier episodes affect it; "" if they are saved, or never continued.
        replay_steps_max: The most steps that an actor replays.
        dropped_because: Why the unfinished episode at the end of a fragment is dropped; "" if it is not.
        step_s: Seconds of a step, CPU and waits.
        wait_s: Those of them in which it waits.
        make_s: Seconds until it was imported and made.
    """

    replay: str = ""
    replay_steps_max: int = 0
    dropped_because: str = ""
    step_s: float = 0.0
    wait_s: float = 0.0
    make_s: float = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether a policy's share of a step's time is negligible."""
        return self.step_s >= _SLOW_STEP_S

    def replayed_steps(self, fragment_steps: int) -> float:
        """Returns how many steps an actor replays first, on average, if all episodes last until their limit.

        Fragments then begin at multiples of their common divisor, at each equally often.
        """
        if not self.replay:
            return 0.0
        limit = self.replay_steps_max + 1
        return (limit - math.gcd(limit, fragment_steps)) / 2


class ResolvedEnvironment(EnvironmentSection):
    """The environment, and how a process plays it."""

    vector: int = Field(1, exclude=True)
    """Most environments, one per actor, that a process of the local fleet plays in lockstep."""

    @property
    def batch(self) -> int:
        """Returns how many environments take no longer together than one alone."""
        return self.vector if self.has_worlds else 1

    @property
    def clip_rewards(self) -> bool:
        """Returns whether to train on the sign of each reward. Reported returns are never clipped."""
        return self.preprocessing == "atari"


class ResolvedNetwork(NetworkSection):
    """The networks of policy and critic."""

    @property
    def architecture(self) -> str:
        """Returns the text of a `lambda_actor.policy.Architecture`, once the kind is known."""
        return str(
            Architecture(self.kind, self.hidden_sizes or HIDDEN_SIZES, self.activation or "tanh")
        )


class ResolvedExperiment(Experiment):
    """An experiment whose computed defaults are filled in; `fitted` also those that depend on its environment."""

    environment: ResolvedEnvironment
    network: ResolvedNetwork
    trial: TrialFacts = Field(TrialFacts(), exclude=True)
    is_on_learner: bool = Field(False, exclude=True)
    """Whether actors are processes of a deployed learner or of its instances, at no extra cost. Otherwise a run on one
    machine is billed as if its actors were functions."""

    @property
    def steps_together(self) -> int:
        """Returns the steps that are trained on together or not at all: a fragment, or a round of worlds."""
        worlds = self.scaler.most_actors if self.environment.has_worlds else 1
        return self.actor.fragment_steps * worlds

    @property
    def has_elasticache(self) -> bool:
        """Whether ElastiCache Serverless carries its messages in AWS."""
        return self.cache.kind == "redis" and not self.is_on_learner

    def fitted(self, spaces: Spaces, *, preprocessing: str) -> ResolvedExperiment:
        """Returns the experiment with the values that depend on its environment.

        Args:
            spaces: The environment's.
            preprocessing: The environment's, ``atari`` or ``none``.

        Raises:
            ExperimentError: The network cannot take such observations.
        """
        kind = default_network(spaces) if self.network.kind == "auto" else self.network.kind
        allowed = ("combined",) if spaces.is_combined else ("mlp", "conv")[: 1 + spaces.is_pixels]
        if kind not in allowed:
            raise ExperimentError(
                f"network.kind = '{kind}': {self.environment.id} is observed as {_observed(spaces)}; "
                f"allowed: auto | {' | '.join(allowed)}"
            )
        for name in ("hidden_sizes", "activation"):
            if kind == "conv" and (value := getattr(self.network, name)) is not None:
                raise ExperimentError(
                    f"network.{name} = {value}: the convolutional network's layers are given; "
                    "allowed: null, or network.kind = mlp"
                )
        normalizes = _or(
            self.algorithm.normalize_observations,
            spaces.vector_size > 0 and not spaces.is_binary,
        )
        if normalizes and not spaces.vector_size:
            raise ExperimentError(
                "algorithm.normalize_observations = true: the observations of "
                f"{self.environment.id} are pixels, which are divided by 255; allowed: false | null"
            )
        fitted: ResolvedExperiment = with_values(
            self,
            environment=with_values(self.environment, preprocessing=preprocessing),
            network=with_values(self.network, kind=kind),
            algorithm=with_values(self.algorithm, normalize_observations=normalizes),
        )
        return fitted


def _observed(spaces: Spaces) -> str:
    """Describes observations in words."""
    if spaces.is_combined:
        picture = "×".join(map(str, spaces.beside_shape))
        return f"a picture {picture} beside {spaces.vector_size} numbers"
    if spaces.is_pixels:
        return "pixels"
    return f"a vector of {spaces.observation_size} numbers, not as pixels"


def resolve(
    experiment: Experiment, *, is_deployed: bool = False, provisioned: int | None = None
) -> ResolvedExperiment:
    """Fills in every computed default that does not need the environment; see `Experiment.resolved`."""
    actor = experiment.actor
    learner = experiment.learner
    if is_deployed and experiment.environment.has_worlds:
        raise ExperimentError(
            f"environment.backend = {experiment.environment.backend} is for this machine; allowed in a deployment: "
            "gymnasium"
        )
    types = _or(learner.instance_types, GPU_TYPES if _is_convolved(experiment) else CPU_TYPES)
    fleet_kind = experiment.fleet.kind
    if fleet_kind == "auto":
        fleet_kind = "lambda" if is_deployed and not learner.has_actors else "local"
    is_on_learner = learner.has_actors or (is_deployed and fleet_kind == "local")
    # In a deployment, the smallest learner that may be launched decides, not this machine.
    cores = min(map(vcpus, types)) if is_deployed and is_on_learner else machine.cores()
    fleet = _fleet(experiment, fleet_kind, cores)
    filled_in = learner.filled_in(experiment, is_deployed=is_deployed, cores=cores)
    vector = filled_in.get("environments", _vector(experiment, fleet))
    resolved: ResolvedExperiment = with_values(
        experiment,
        ResolvedExperiment,
        environment=with_values(experiment.environment, ResolvedEnvironment, vector=vector),
        network=with_values(experiment.network, ResolvedNetwork),
        algorithm=_algorithm(experiment),
        actor=with_values(
            actor, provisioned=0 if is_on_learner else _or(provisioned, actor.provisioned)
        ),
        learner=with_values(
            learner,
            device=learner.device if learner.has_instance else "cpu",
            instance_types=types,
            **filled_in,
        ),
        fleet=fleet,
        cache=_cache(experiment),
        is_on_learner=is_on_learner,
    )
    return resolved


def _algorithm(experiment: Experiment) -> Any:
    algorithm = experiment.algorithm
    staleness_max = _or(algorithm.staleness_max, max(32, 4 * experiment.scaler.most_actors))
    return with_values(
        algorithm,
        rounds="asynchronous" if algorithm.is_asynchronous else "synchronous",
        staleness_max=staleness_max,
    )


def _fleet(experiment: Experiment, kind: str, cores: int) -> FleetSettings:
    fleet = experiment.fleet
    resolved: FleetSettings = with_values(
        fleet,
        FLEETS.settings[kind],
        kind=kind,
        processes=_or(fleet.processes, cores),
        round_deadline_s=_or(fleet.round_deadline_s, 2 * experiment.actor.timeout_s),
    )
    return resolved


def _cache(experiment: Experiment) -> Any:
    cache = experiment.cache
    learner = experiment.learner
    is_open = learner.is_external and "kind" not in cache.model_fields_set
    return with_values(cache, kind="none") if learner.has_actors or is_open else cache


def _vector(experiment: Experiment, fleet: FleetSettings) -> int:
    """Returns the most environments that a process of the local fleet plays at once."""
    # All environments of a process would return at once, leaving it idle until others start.
    if fleet.kind != "local" or experiment.algorithm.is_asynchronous:
        return 1
    return min(VECTOR_MAX, math.ceil(experiment.scaler.most_actors / fleet.processes))


def _is_convolved(experiment: Experiment) -> bool:
    """Returns whether the policy has convolutions, as far as the file tells without making the environment."""
    environment = experiment.environment
    network = experiment.network.kind
    is_game = environment.preprocessing == "atari" or _GAME.match(environment.id) is not None
    return network in ("conv", "combined") or (network == "auto" and is_game)


def with_values(section: Section, as_class: Any = None, /, **values: Any) -> Any:
    """Returns the section, of another class if given, with these values, which must have been checked.

    Values of the file remain distinguishable from computed ones; see `Experiment.given_yaml`.
    """
    written = section.model_fields_set - {
        name for name in values if getattr(section, name, None) == "auto"
    }
    return (as_class or type(section)).model_construct(written, **{**dict(section), **values})


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
