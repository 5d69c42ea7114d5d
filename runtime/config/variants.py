"""The registry of algorithms and scalers: which there are, and what the settings of each must offer.

A variant's settings stand beside the variant. One line here makes it known: its keys then appear in the experiment
file's reference, in ``python -m runtime explain`` and in messages by themselves. A line names a class by its module,
because configuration is below the rooms that it names; none of these modules may import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import pydantic

from runtime.config.section import Actors, Count, Field, NonNegative, Positive, Section, Share

if TYPE_CHECKING:
    from runtime.ports.scaling import Scaler

CURVATURE_SIGNALS = frozenset({"convexity_ratio", "eigenvalue_min", "eigenvalue_max"})
NOISE_SIGNALS = frozenset({"noise_scale", "gradient_noise", "gradient_square"})
"""What scalers may read, by the measurement that it takes."""


class AlgorithmSettings(Section):
    """What all algorithms have; each may give a key another default, and adds keys of its own.

    Attributes:
        title: The algorithm's name for people.
        learner: Where its learner is, as ``module:class``; imported when a learner is made, and no earlier.
        is_off_policy: Whether it may train on what older policies sampled.
    """

    title: ClassVar[str]
    learner: ClassVar[str]
    is_off_policy: ClassVar[bool] = False

    learning_rate: Positive = Field(3e-4, description="Adam's step size")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear goes to 0 at stop.max_steps or stop.max_rounds, whichever comes first")
    discount: Share = Field(0.99, description="γ, per step")
    minibatch_steps: Count = Field(256, description="samples per gradient step at most")
    entropy_coefficient: NonNegative = Field(0.0, description="weight of the entropy bonus")
    value_coefficient: NonNegative = Field(1.0, description="weight of the value loss ½(V − target)²")
    max_gradient_norm: Positive | None = Field(0.5, description="clips the gradient of the policy and that of the "
                                               "critic to this norm each; null = no clipping")
    normalize_observations: bool | None = Field(None, description="normalise observations by running moments, but for "
                                                "what is 0 or 1 by its space; null = true for vectors that have more, "
                                                "also beside a picture; false for pixels, which are divided by 255")
    normalize_rewards: bool = Field(False, description="divide rewards by the running deviation of the discounted sum "
                                    "of an episode's rewards so far, and clip them to ± 10; returns are always told as "
                                    "they are")
    observation_clip: Positive = Field(10.0, description="normalised observations are clipped to ± this")

    @property
    def passes(self) -> int:
        """How often an update trains on each of its samples."""
        return 1


class ScalerSettings(Section):
    """What all scalers share; each adds keys of its own.

    Attributes:
        about: What the scaler does, in a few words.
        needs_target: Whether it reads `RoundView.target_return`, which then must be given by ``stop.target_return``.
        signals: Names of the signals that it reads; what nobody reads is neither measured nor shown.
        has_score: Whether its decisions have a `ScalingDecision.score`.
    """

    about: ClassVar[str]
    signals: ClassVar[frozenset[str]] = frozenset()
    has_score: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    actors_min: Actors = Field(8, description="I_min, fewest actors of a round")
    actors_max: Actors = Field(64, description="I_max, most actors of a round")

    @property
    def most_actors(self) -> int:
        """Most actors that the scaler gives a round."""
        return self.actors_max

    @property
    def smallest_round(self) -> int:
        """Fewest actors that a round may be shrunk to when the budget gets short."""
        return self.actors_min

    @property
    def file_read(self) -> str | None:
        """The key that names a file of the machine on which it is made, which a deployment does not have; or None."""
        return None

    @property
    def mean_actors(self) -> float:
        """Actors of a round, on average, as far as the settings tell: plans are made with it."""
        return (self.smallest_round + self.most_actors) / 2

    def unused(self) -> Mapping[str, tuple[Sequence[str], str]]:
        """Returns the scaler's keys that do not count with these values.

        By key: the keys that decide it, besides ``kind``, and what would have the key count.
        """
        return {}

    def contradictions(self) -> Iterator[str]:
        """Yields what is wrong with values that are each allowed."""
        if self.actors_min > self.actors_max:
            yield (f"scaler.actors_min = {self.actors_min} is larger than scaler.actors_max = {self.actors_max}; "
                   f"allowed: 1 to {self.actors_max}")

    def make(self) -> Scaler:
        """Makes the scaler that has these settings."""
        raise NotImplementedError


S = TypeVar("S", bound=Section)


class Variants(Generic[S]):
    """The variants that a section chooses from by its key ``kind``.

    Args:
        places: By kind, the settings' class as ``module:class``. The first one is the default.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    @cached_property
    def settings(self) -> dict[str, type[S]]:
        """Classes of settings, by kind."""
        found: dict[str, type[S]] = {}
        for kind, place in self._places.items():
            module, _, name = place.partition(":")
            found[kind] = getattr(import_module(module), name)
        return found

    def kind_field(self, description: str) -> tuple[Any, Any]:
        """Returns the type and the field of the key ``kind``."""
        kinds = tuple(self._places)
        return Literal[kinds], Field(kinds[0], description=description)


ALGORITHMS: Variants[AlgorithmSettings] = Variants({
    "ppo": "runtime.learner.ppo_settings:PpoSettings",
    "impact": "runtime.learner.impact_settings:ImpactSettings",
    "impala": "runtime.learner.impala_settings:ImpalaSettings",
})

SCALERS: Variants[ScalerSettings] = Variants({
    "fixed": "runtime.scaler.fixed:FixedSettings",
    "nitro": "runtime.scaler.nitro:NitroSettings",
    "kungfu": "runtime.scaler.kungfu:KungFuSettings",
    "noise-scale": "runtime.scaler.noise_scale:NoiseScaleSettings",
    "max": "runtime.scaler.maximal:MaxSettings",
    "permuted": "runtime.scaler.permuted:PermutedSettings",
    "hydrozoa": "runtime.scaler.hydrozoa:HydrozoaSettings",
    "minions-adapt": "runtime.scaler.minions_adapt:MinionsAdaptSettings",
    "schedule": "runtime.scaler.schedule:ScheduleSettings",
    "random": "runtime.scaler.random:RandomSettings",
    "minions": "runtime.scaler.minions:MinionsSettings",
})


def nested(variants: Variants[Any], description: str) -> Callable[[type[S]], type[S]]:
    """Gives a section the key ``kind`` and, by each kind's name, a section of that kind's settings."""
    def assemble(section: type[S]) -> type[S]:
        fields = {kind: (settings, Field(settings(), description=f"settings of {settings.title}"))
                  for kind, settings in variants.settings.items()}
        return _extended(section, {"kind": variants.kind_field(description), **fields})
    return assemble


def flat(variants: Variants[Any], shared: type[Section]) -> Callable[[type[S]], type[S]]:
    """Gives a section the key ``kind`` and all keys of all kinds' settings.

    Args:
        variants: Kinds may share a key if they mean the same by it, with the same default.
        shared: The base of their settings; the descriptions of all other keys name their kinds.

    Raises:
        TypeError: Two kinds mean different things by one key.
    """
    def assemble(section: type[S]) -> type[S]:
        owners: dict[str, list[str]] = {}
        fields: dict[str, tuple[Any, Any]] = {
            name: (info.annotation, info) for name, info in shared.model_fields.items()}
        for kind, settings in variants.settings.items():
            for name, info in settings.model_fields.items():
                if name in fields and repr(fields[name][1]) != repr(info):
                    raise TypeError(f"scaler.{name} means one thing to {' and '.join(owners.get(name, ['all']))}, and "
                                    f"another to {kind}: name it otherwise")
                fields[name] = (info.annotation, info)
                if name not in shared.model_fields:
                    owners.setdefault(name, []).append(kind)
        for name, kinds in owners.items():
            annotation, info = fields[name]
            fields[name] = (annotation, info.merge_field_infos(
                info, description=f"{info.description} ({', '.join(kinds)})"))
        about = "; ".join(f"{kind} {settings.about}" for kind, settings in variants.settings.items())
        return _extended(section, {"kind": variants.kind_field(about), **fields})
    return assemble


def _extended(section: type[S], fields: Mapping[str, tuple[Any, Any]]) -> type[S]:
    extended: type[S] = pydantic.create_model(  # type: ignore[call-overload]  # the fields are known at run time only
        section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields)
    return extended
