"""The experiment file as written: one typed, frozen tree that validates itself.

Descriptions, units, ranges and defaults are only here and in the settings of the kinds of algorithms, scalers, fleets
and updaters (`runtime.registry`). ``python -m runtime explain`` and docs/reference/experiment_file.md are
generated from them. `runtime.experiment.resolved` fills in open values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, SerializeAsAny

from lambda_actor.errors import describe_error, meant_path
from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.algorithm import ALGORITHMS, AlgorithmSettings
from runtime.experiment.fleet import FLEETS, FleetSettings
from runtime.experiment.kinds import Kinds, is_import_path, load
from runtime.experiment.learner import UPDATERS, UpdaterSettings
from runtime.experiment.scaler import SCALERS, ScalerSettings
from runtime.experiment.section import Count, Field, Json, Section

if TYPE_CHECKING:
    from runtime.experiment.resolved import ResolvedExperiment

CHANGEABLE = (
    "budget",
    "stop",
    "fleet",
    "cache",
    "learner.function_memory_mib",
    "learner.function_timeout_s",
    "learner.update_timeout_s",
    "learner.instance_types",
    "learner.market",
    "learner.device",
    "learner.backend",
    "learner.environments",
    "actor.provisioned",
)
"""Keys that may change when a run is resumed, because they do not affect finished synchronous rounds. ``learner.kind``
may also change among `equal_updaters`."""
KIND = "learner.kind"

_SIMULATED = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
"""Environments that ``environment.backend = warp`` simulates."""


ImportPaths = Annotated[tuple[str | dict[str, dict[str, Json] | None], ...], Field(strict=False)]
"""Import paths to call: ``package.module:Name``, alone or with a mapping of keyword arguments."""


def with_arguments(written: Sequence[str | Mapping[str, dict[str, Any] | None]]) -> list[list[Any]]:
    """Returns import paths as pairs of path and keyword arguments."""
    return [
        [path, arguments or {}]
        for item in written
        for path, arguments in ({item: None} if isinstance(item, str) else item).items()
    ]


class EnvironmentSection(Section):
    """The environment to train on."""

    id: str = Field(
        min_length=1,
        description="Gymnasium id; module:id imports a module first; module:factory is your own "
        "environment",
    )
    kwargs: dict[str, Json] = Field({}, description="its keyword arguments")
    wrappers: ImportPaths = Field(
        (),
        description="innermost first, such as gymnasium.wrappers:FilterObservation: {filter_keys: "
        "[position]}",
    )
    max_episode_steps: Count | None = Field(
        None, description="longest episode; null = Gymnasium's limit"
    )
    package: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="what a deployment installs: a folder with a pyproject.toml, relative to this file, "
        "or a pinned requirement such as my-envs==1.2.0",
    )
    preprocessing: Literal["auto", "atari", "none"] = Field(
        "auto",
        description="atari = 84×84 gray frames, four per action, three stacked; auto = atari for its games",
    )
    frame_stack: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None,
        description="pixel frames in each observation; null = 3 with atari preprocessing, else 1",
    )
    rescale_actions: bool = Field(
        True,
        description="policies act between -1 and 1, rescaled to a bounded Box; false = clipped to the "
        "Box. Your own trainer and backend torch get neither",
    )
    truncate_at_fragment: bool = Field(
        False,
        description="cut open episodes at the end of each fragment instead of continuing them",
    )
    backend: Literal["gymnasium", "warp", "torch"] = Field(
        "gymnasium",
        description="warp = Gymnasium's MuJoCo tasks in MuJoCo Warp on learner.device, evaluated by "
        "gymnasium; torch = your own batched environment there, made by module:factory; both "
        "need learner.kind = gmi",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _batches_take_actions_as_they_are(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("backend") == "torch":
            return {"rescale_actions": False, **data}
        return data

    @property
    def has_worlds(self) -> bool:
        """Whether its environments are worlds of one batch on the learner's device."""
        return self.backend != "gymnasium"

    @property
    def worlds(self) -> dict[str, Any]:
        """Returns how to make its worlds; see `runtime.gmi.worlds.batched.make_worlds`."""
        names = ("backend", "id", "kwargs", "max_episode_steps", "rescale_actions")
        return {name: getattr(self, name) for name in names}

    @property
    def options(self) -> dict[str, Any]:
        """Returns how to make it, apart from id and preprocessing; see `lambda_actor.making.OPTIONS`."""
        options = {
            "kwargs": self.kwargs,
            "wrappers": self.wrappers,
            "max_episode_steps": self.max_episode_steps,
            "frame_stack": self.frame_stack,
            "rescale_actions": self.rescale_actions,
        }
        return {name: value for name, value in options.items() if value}


class NetworkSection(Section):
    """The networks of policy and critic."""

    kind: Literal["auto", "mlp", "conv", "combined"] = Field(
        "auto",
        description="mlp = fully connected; conv = 16 8×8 filters with stride 4, 32 4×4 with stride 2, "
        "256 units, ReLU; combined = an mlp on these 256 units and the numbers beside a "
        "picture; auto = by the observations",
    )
    hidden_sizes: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=16_384)], ...], Field(min_length=1, strict=False)
        ]
        | None
    ) = Field(
        None,
        description="units of each hidden layer (mlp, combined); null = 256 and 256",
    )
    activation: Literal["tanh", "relu"] | None = Field(
        None, description="activation of hidden units (mlp, combined); null = tanh"
    )
    initialisation: Literal["orthogonal", "normc", "pytorch"] = Field(
        "orthogonal",
        description="initial weights; normc = as in RLlib's old API stack; pytorch = torch's own",
    )
    initial_std: Annotated[float, Field(gt=0, le=10)] = Field(
        1.0, description="initial standard deviation of continuous actions"
    )


class DetectorSection(Section):
    """How rounds worth boosting are detected."""

    objective: Literal["log_prob", "surrogate", "total_loss"] = Field(
        "log_prob",
        description="maximized objective whose Hessian is measured; log_prob = mean log π·Â (Theorem 1); "
        "surrogate = the algorithm's; total_loss = its negated loss",
    )
    subset_size: Count = Field(1024, description="most samples of the last batch to measure on")
    lanczos_steps: Annotated[int, Field(ge=2, le=1000)] = Field(
        40, description="most Lanczos iterations; fewer once both eigenvalues converge"
    )


class ActorSection(Section):
    """The actor function."""

    fragment_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        256, description="steps that an actor samples"
    )
    memory_mib: Annotated[int, Field(ge=128, le=10_240)] = Field(
        1024, description="memory of the actor function, MiB; 1769 buys one vCPU"
    )
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(60, description="time limit, seconds")
    provisioned: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="actors kept warm (provisioned concurrency)"
    )
    architecture: Literal["x86_64", "arm64"] = Field(
        "x86_64", description="processor of actor and learner functions"
    )


KINDS: Mapping[str, Kinds[Any]] = {
    kinds.section: kinds for kinds in (ALGORITHMS, SCALERS, UPDATERS, FLEETS)
}
"""Choices for each section with a key ``kind``."""


class CacheSection(Section):
    """The trajectory cache."""

    kind: Literal["redis", "none"] = Field(
        "redis",
        description="redis = ElastiCache Serverless for actors on Lambda, a Redis or Valkey server for "
        "processes; none = weights and trajectories travel in requests and responses, up to 6 "
        "MiB each",
    )
    url: str | None = Field(
        None,
        description="your own server, redis://, rediss:// or unix://; its password belongs in "
        "CACHE_PASSWORD",
    )


class BudgetSection(Section):
    """The money."""

    usd: Annotated[float, Field(gt=0, le=100_000)] = Field(
        description="most dollars that the run may cost, spent and reserved together; in AWS with the teardown"
    )
    lifetime_hours: Annotated[float, Field(gt=0, le=8760)] = Field(
        24.0,
        description="longest life of a deployment, hours; then the guard and the instance itself end it",
    )


class StopSection(Section):
    """When to stop, apart from the budget."""

    max_rounds: Count | None = Field(None, description="most rounds; null = no limit")
    max_steps: Count | None = Field(
        None,
        description="most environment steps, never exceeded: the last round has fewer actors; null = no limit",
    )
    target_return: float | None = Field(
        None,
        description="mean evaluation return that ends the run; dropped if environment.id is overridden",
    )


class EvaluationSection(Section):
    """How progress is measured."""

    every_rounds: Annotated[int, Field(ge=0)] = Field(
        5,
        description="rounds between evaluations; 0 = never. They also run at stop.max_rounds and "
        "stop.max_steps, and back to back if a training episode of the last every_rounds rounds came "
        "halfway to stop.target_return",
    )
    episodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        5,
        description="per evaluation; reaching the target must be confirmed by the same number of new ones",
    )
    actions: Literal["deterministic", "stochastic"] = Field(
        "deterministic",
        description="deterministic = the mean or most likely action; stochastic = sampled as in "
        "training, which suits Atari games",
    )


class Experiment(Section):
    """One experiment: what to train, how, and with what money."""

    environment: EnvironmentSection = Field(description="what to train on")
    network: NetworkSection = Field(NetworkSection(), description="networks of policy and critic")
    algorithm: Annotated[SerializeAsAny[AlgorithmSettings], BeforeValidator(ALGORITHMS.choose)] = (
        Field({}, validate_default=True, description="how to train")
    )
    detector: DetectorSection = Field(
        DetectorSection(), description="detection of rounds worth boosting"
    )
    scaler: Annotated[SerializeAsAny[ScalerSettings], BeforeValidator(SCALERS.choose)] = Field(
        {}, validate_default=True, description="actors per round"
    )
    actor: ActorSection = Field(ActorSection(), description="actors")
    learner: Annotated[SerializeAsAny[UpdaterSettings], BeforeValidator(UPDATERS.choose)] = Field(
        {}, validate_default=True, description="learner"
    )
    fleet: Annotated[SerializeAsAny[FleetSettings], BeforeValidator(FLEETS.choose)] = Field(
        {}, validate_default=True, description="where actors run"
    )
    cache: CacheSection = Field(CacheSection(), description="trajectory cache")
    budget: BudgetSection = Field(description="money")
    stop: StopSection = Field(StopSection(), description="when to stop")
    evaluation: EvaluationSection = Field(EvaluationSection(), description="evaluations")
    callbacks: ImportPaths = Field(
        (),
        description="subclasses of nitro_rl.Callback that see each round, and may stop the run, such as "
        "my_package.plateau.Plateau: {patience: 5}",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0,
        description="seed of all randomness; asynchronous rounds also depend on when actors return",
    )

    @pydantic.model_validator(mode="after")
    def _no_contradictions(self) -> Experiment:
        if problems := "\n".join(_contradictions(self)):
            raise ValueError(problems)
        return self

    def resolved(
        self, *, is_deployed: bool = False, provisioned: int | None = None
    ) -> ResolvedExperiment:
        """Returns the experiment with every computed default filled in.

        Args:
            is_deployed: Whether it runs on a learner deployed to AWS.
            provisioned: Actors that a deployment actually keeps warm, if known.
        """
        from runtime.experiment.resolved import resolve

        return resolve(self, is_deployed=is_deployed, provisioned=provisioned)

    @property
    def identity(self) -> str:
        """Returns a digest of everything that determines a run's rounds; equal for a run and its resumption."""
        return hashlib.sha256(json.dumps(unchangeable(self), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """Returns the tree as YAML that makes the same experiment again, but the password in ``cache.url``."""
        return self._yaml()

    def given_yaml(self) -> str:
        """Returns as YAML the values that the file and the command line set, unless they are defaults."""
        return self._yaml(exclude_unset=True, exclude_defaults=True)

    def _yaml(self, **choice: Any) -> str:
        """Returns as YAML what `model_dump` chooses, without passwords."""
        return yaml_text.dump(self._tree(**choice))

    def _tree(self, **choice: Any) -> dict[str, Any]:
        """Returns what `model_dump` chooses, without passwords."""
        from lambda_actor.cache import redacted

        tree = self.model_dump(mode="json", **choice)
        if url := tree.get("cache", {}).get("url"):
            tree["cache"]["url"] = redacted(url)
        return tree

    @property
    def changeable(self) -> dict[str, Any]:
        """Returns by dotted path the values that may change when a run is resumed, without passwords."""
        return {
            path: value
            for path, value in leaves(self._tree())
            if is_below(path, (*CHANGEABLE, KIND))
        }


def add_kind(path: str, chosen_by: str | None = None) -> str:
    """Registers a kind by its import path.

    Args:
        path: ``package.module:Settings``, which is imported; its base class decides the section.
        chosen_by: The section that names it, or None.

    Returns:
        The section that may choose it.

    Raises:
        ExperimentError: The import fails, or the class has another base.
    """
    key = f"{chosen_by}.kind = {path!r}" if chosen_by else path
    try:
        settings = load(path)
    except (Exception, SystemExit) as error:
        # The module may raise anything.
        raise ExperimentError(f"{key} cannot be imported: {describe_error(error)}") from error
    allowed = {name: kinds.base for name, kinds in KINDS.items() if chosen_by in (None, name)}
    name = next(
        (
            name
            for name, base in allowed.items()
            if isinstance(settings, type) and issubclass(settings, base) and settings is not base
        ),
        None,
    )
    if name is None:
        raise ExperimentError(
            f"{key} is not allowed; allowed: a subclass of "
            + " | ".join(f"nitro_rl.{base.__name__}" for base in allowed.values())
        )
    KINDS[name].settings[path] = settings
    return name


def equal_updaters() -> list[str]:
    """Returns the kinds of updaters with bit-identical results; a run may switch among them."""
    return [kind for kind, settings in UPDATERS.settings.items() if settings.is_exact]


def unchangeable(experiment: Experiment) -> dict[str, Any]:
    """Returns by dotted path the values that must not change between a run and its resumption."""
    values = {
        path: value
        for path, value in leaves(experiment.model_dump(mode="json"))
        if not is_below(path, CHANGEABLE)
    }
    equal = equal_updaters()
    return values | (
        {KIND: " | ".join(kind for kind in equal if not is_import_path(kind))}
        if values[KIND] in equal
        else {}
    )


def changes(new: Mapping[str, Any], old: Mapping[str, Any], where: str) -> list[str]:
    """Returns in words which values differ, written as JSON.

    Args:
        new: Unchangeable values of the given experiment.
        old: Those of the earlier one.
        where: Where the earlier one is.
    """
    return [
        f"{path} is {now} now, {before} {where}"
        for path, (before, now) in differing(new, old).items()
    ]


def differing(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns the old and the new value, as JSON, wherever they differ; keys may differ as well."""

    def texts(values: Mapping[str, Any]) -> dict[str, str]:
        return {path: json.dumps(value, sort_keys=True) for path, value in values.items()}

    now, before = texts(new), texts(old)
    return {
        path: (before.get(path, "missing"), now.get(path, "missing"))
        for path in before | now
        if now.get(path) != before.get(path)
    }


def is_below(path: str, sections: Iterable[str]) -> bool:
    """Returns whether a dotted path is in ``sections``, or inside one of them."""
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _contradictions(experiment: Experiment) -> Iterator[str]:
    scaler = experiment.scaler
    stop = experiment.stop
    for key, written, example in (
        (
            "environment.wrappers",
            experiment.environment.wrappers,
            "gymnasium.wrappers:FlattenObservation",
        ),
        ("callbacks", experiment.callbacks, "my_package.plateau:Plateau"),
    ):
        for item in written:
            paths = [item] if isinstance(item, str) else list(item)
            if len(paths) != 1 or not is_import_path(paths[0]):
                meant = meant_path(paths[0]) if len(paths) == 1 else ""
                yield (
                    f"{key} = {item!r} is not allowed; allowed: an import path such as {example}, alone or with its "
                    f"keyword arguments, each in its own item of the list{meant}"
                )
    yield from scaler.contradictions()
    if scaler.needs_target and stop.target_return is None:
        yield (
            f"scaler.kind = {scaler.kind} compares returns with stop.target_return = null; allowed: a number there, "
            "or another scaler"
        )
    if experiment.actor.provisioned > scaler.most_actors:
        yield (
            f"actor.provisioned = {experiment.actor.provisioned} is more than the {scaler.most_actors} actors that "
            f"a round can have; allowed: 0 to {scaler.most_actors}"
        )
    yield from experiment.fleet.contradictions(experiment)
    deadline_s = experiment.fleet.round_deadline_s
    if deadline_s is not None and deadline_s < experiment.actor.timeout_s:
        yield (
            f"fleet.round_deadline_s = {deadline_s} is shorter than actor.timeout_s = "
            f"{experiment.actor.timeout_s}; allowed: {experiment.actor.timeout_s} to 3600"
        )
    if stop.target_return is not None and experiment.evaluation.every_rounds == 0:
        yield (
            f"stop.target_return = {stop.target_return} is never looked at with evaluation.every_rounds = 0; "
            "allowed: evaluation.every_rounds from 1, or stop.target_return = null"
        )
    if stop.max_steps is not None and stop.max_steps < experiment.actor.fragment_steps:
        yield (
            f"stop.max_steps = {stop.max_steps} has no room for a fragment of actor.fragment_steps = "
            f"{experiment.actor.fragment_steps}; allowed: {experiment.actor.fragment_steps} or more, or a smaller "
            "actor.fragment_steps"
        )
    if experiment.environment.has_worlds and (problems := list(_not_in_worlds(experiment))):
        # What else instances allow would be wrong advice for worlds.
        yield from problems
        return
    yield from experiment.learner.contradictions(experiment)
    yield from experiment.algorithm.contradictions(experiment)


def _not_in_worlds(experiment: Experiment) -> Iterator[str]:
    """Yields a message for each setting that worlds do not support."""
    section = experiment.environment
    backend = f"environment.backend = {section.backend}"
    is_warp = section.backend == "warp"
    choices: list[tuple[str, str, tuple[str, ...]]] = [
        ("learner.kind", experiment.learner.kind, ("gmi",)),
        ("algorithm.kind", experiment.algorithm.kind, ("ppo",)),
    ]
    if is_warp:
        choices.insert(0, ("environment.id", section.id, _SIMULATED))
    for key, value, allowed in choices:
        if value not in allowed:
            yield (
                f"{key} = {value} is not possible with {backend}; allowed: {' | '.join(allowed)}, or "
                "environment.backend = gymnasium"
            )
    for key in (
        ("kwargs", "wrappers")
        if is_warp
        else ("wrappers", "max_episode_steps", "frame_stack", "rescale_actions")
    ):
        if value := getattr(section, key):
            yield (
                f"environment.{key} = {value} is not possible with {backend}; leave it out, or set "
                "environment.backend = gymnasium"
            )
    if not is_warp and not is_import_path(section.id):
        yield (
            f"environment.id = {section.id} is no import path, which {backend} needs; allowed: module:factory"
        )
