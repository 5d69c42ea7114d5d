"""The experiment file as written: one typed, frozen tree that validates itself.

Descriptions, units, ranges and defaults are only here and in the settings of the kinds of algorithms, scalers, fleets
and updaters (`runtime.registry`). ``python -m runtime explain`` and docs/reference/experiment_file.md are generated
from them. `runtime.config.resolved` fills in open values.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from lambda_actor.errors import told
from runtime.config import yaml_text
from runtime.config.instances import CPU_TYPES, GPU_TYPES
from runtime.config.unused import is_set, reason, unused
from runtime.config.variants import (
    Fields,
    flat_fields,
    give_fields,
    nested_fields,
    refresh_defaults,
)
from runtime.errors import ExperimentError
from runtime.settings.algorithm import ALGORITHMS, AlgorithmSettings
from runtime.settings.fleet import FLEETS, FleetSettings, RaySection
from runtime.settings.kinds import Kinds, is_import_path, load
from runtime.settings.scaler import SCALERS, ScalerSettings
from runtime.settings.section import Count, Field, Json, Section
from runtime.settings.updater import (
    UPDATERS,
    LearnerFunctionSection,
    StellarisSection,
    UpdaterSettings,
)

if TYPE_CHECKING:
    from runtime.config.resolved import ResolvedExperiment

CHANGEABLE = (
    "budget",
    "stop",
    "fleet",
    "cache",
    "learner.function",
    "learner.stellaris.place",
    "learner.update_timeout_s",
    "learner.instance_types",
    "learner.market",
    "learner.device",
    "learner.gmi.backend",
    "learner.gmi.environments",
    "actor.provisioned",
)
"""Keys that may change when a run is resumed, because they do not affect finished synchronous rounds. ``learner.kind``
may also change among `equal_updaters`."""
KIND = "learner.kind"
_OWN = "or package.module:Settings (docs/design/add-a-part.md)"
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

_SIMULATED = ("Ant-v5", "Humanoid-v5")
"""Environments that ``environment.backend = warp`` simulates."""
_OFF_POLICY = [settings for settings in ALGORITHMS.settings.values() if settings.is_off_policy]


ImportPaths = Annotated[tuple[str | dict[str, dict[str, Json] | None], ...], Field(strict=False)]
"""Import paths to call: ``package.module.Name``, alone or with a mapping of keyword arguments."""


def with_arguments(written: Sequence[str | Mapping[str, dict[str, Any] | None]]) -> list[list[Any]]:
    """Returns import paths as pairs of path and keyword arguments."""
    return [
        [path, arguments or {}]
        for one in written
        for path, arguments in ({one: None} if isinstance(one, str) else one).items()
    ]


class EnvironmentSection(Section):
    """The environment to train on."""

    id: str = Field(
        min_length=1,
        description="Gymnasium id; module:id imports a module first; module:factory is an environment of "
        "your own",
    )
    kwargs: dict[str, Json] = Field({}, description="keyword arguments to make it with")
    wrappers: ImportPaths = Field(
        (),
        description="wrappers, innermost first, such as gymnasium.wrappers.FilterObservation: {filter_keys: "
        "[position]}",
    )
    max_episode_steps: Count | None = Field(
        None, description="longest episode in steps; null = Gymnasium's limit"
    )
    package: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="package to install in a deployment: a folder with a pyproject.toml, relative to this file, "
        "or a pinned requirement such as my-envs==1.2.0",
    )
    preprocessing: Literal["auto", "atari", "none"] = Field(
        "auto",
        description="atari = 84×84 gray frames, four per action, three stacked; auto = atari for its games",
    )
    frame_stack: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None,
        description="latest pixel frames in each observation; null = 3 with atari preprocessing, else 1",
    )
    truncate_at_fragment: bool = Field(
        False,
        description="cut open episodes at the end of each fragment, instead of continuing them later",
    )
    backend: Literal["gymnasium", "warp"] = Field(
        "gymnasium",
        description=f"simulator; warp = MuJoCo Warp on learner.device, for {' or '.join(_SIMULATED)} with "
        "learner.kind = gmi. Evaluations always use gymnasium",
    )

    @property
    def options(self) -> dict[str, Any]:
        """Returns how to make it, apart from id and preprocessing; see `lambda_actor.making.OPTIONS`."""
        options = {
            "kwargs": self.kwargs,
            "wrappers": with_arguments(self.wrappers),
            "max_episode_steps": self.max_episode_steps,
            "frame_stack": self.frame_stack,
        }
        return {name: value for name, value in options.items() if value}


class NetworkSection(Section):
    """The networks of policy and critic."""

    kind: Literal["auto", "mlp", "conv", "combined"] = Field(
        "auto",
        description="mlp = fully connected; conv = 16 8×8 filters with stride 4, 32 4×4 with stride 2, 256 "
        "units, ReLU; combined = an mlp on these 256 units and the numbers next to a picture; auto = whichever fits "
        "the observations",
    )
    hidden_sizes: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=16_384)], ...], Field(min_length=1, strict=False)
        ]
        | None
    ) = Field(
        None,
        description="units of each hidden layer, first to last (mlp, combined); null = 256 and 256",
    )
    activation: Literal["tanh", "relu"] | None = Field(
        None, description="activation of hidden units (mlp, combined); null = tanh"
    )
    initialisation: Literal["orthogonal", "default"] = Field(
        "orthogonal",
        description="initial weights; orthogonal = gain √2, last layer 0.01 (policy) and 1 (critic), "
        "zero biases; default = PyTorch's",
    )
    initial_std: Annotated[float, Field(gt=0, le=10)] = Field(
        1.0, description="initial standard deviation of continuous actions"
    )


class AlgorithmSection(Section):
    """How the policy is trained; each algorithm's settings are a section of their own."""

    kind: str = Field("ppo", description=f"training algorithm, {_OWN}")
    rounds: Literal["synchronous", "asynchronous"] | None = Field(
        None,
        description="synchronous = all actors start with the newest policy, and the update waits for them; "
        "asynchronous = neither waits; null = asynchronous for "
        f"{' and '.join(settings.title for settings in _OFF_POLICY)}, else synchronous",
    )
    round_steps: Count | None = Field(
        None,
        description="environment steps of an asynchronous round, unless its deadline comes first; null = one "
        "fragment per actor",
    )
    staleness_max: Count | None = Field(
        None,
        description="most policy versions that a trajectory may lag in asynchronous rounds; staler ones are not "
        "trained on, and their actors abandoned; null = four times a round's most actors, at least 32",
    )

    @property
    def chosen(self) -> AlgorithmSettings:
        """Returns the settings of the algorithm that ``kind`` names."""
        settings: AlgorithmSettings = getattr(self, self.chosen_key)
        return settings

    @property
    def chosen_key(self) -> str:
        """Returns the key of these settings."""
        return ALGORITHMS.key(self.kind)

    @property
    def is_asynchronous(self) -> bool:
        """Returns whether rounds are asynchronous."""
        return self.rounds == "asynchronous" or (self.rounds is None and self.chosen.is_off_policy)


class DetectorSection(Section):
    """How rounds worth boosting are detected."""

    objective: Literal["log_prob", "surrogate", "total_loss"] = Field(
        "log_prob",
        description="maximized objective whose Hessian is measured; log_prob = mean log π·Â (Theorem 1); "
        "surrogate = the algorithm's; total_loss = its negated loss",
    )
    subset_size: Count = Field(1024, description="most samples of the last batch to measure on")
    lanczos_steps: Annotated[int, Field(ge=2, le=1000)] = Field(
        40, description="most Lanczos iterations; stops once both eigenvalues converge"
    )


class ScalerSection(Section):
    """How many actors a round gets. Has the keys of all scalers; a run reads the keys of ``kind``."""

    kind: str = Field(
        "fixed",
        description="; ".join(
            [*(f"{kind} {settings.about}" for kind, settings in SCALERS.settings.items()), _OWN]
        ),
    )
    actors_min: int = 0
    actors_max: int = 0

    @property
    def chosen(self) -> ScalerSettings:
        """Returns the settings of the scaler that ``kind`` names."""
        settings = SCALERS.settings[self.kind]
        return settings.model_construct(
            **{name: getattr(self, name) for name in settings.model_fields}
        )

    @property
    def most_actors(self) -> int:
        """Returns the most actors of a round."""
        return self.chosen.most_actors

    @property
    def smallest_round(self) -> int:
        """Returns the fewest actors to which a short budget may shrink a round."""
        return self.chosen.smallest_round

    def waves(self, concurrency: int) -> int:
        """Returns how many deadlines a round may take with this concurrency."""
        return math.ceil(self.most_actors / concurrency)


class ActorSection(Section):
    """The actor function."""

    fragment_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        256, description="steps that an actor samples"
    )
    memory_mib: Annotated[int, Field(ge=128, le=10_240)] = Field(
        1024, description="memory of the actor function, MiB; 1769 buys one vCPU"
    )
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(
        60, description="time limit of an actor, seconds"
    )
    provisioned: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="actors kept warm by provisioned concurrency"
    )
    architecture: Literal["x86_64", "arm64"] = Field(
        "x86_64", description="processor of actor and learner functions"
    )


class LearnerSection(Section):
    """The learner: where the policy is trained, and its time limits."""

    kind: str = Field(
        "instance",
        description="where the policy is trained; instance = on an EC2 instance that also runs the loop; "
        "function = in one function per update, while another runs the loop (same results); stellaris = in several "
        "functions that compute gradients in parallel; gmi = in several instances that share one machine and also "
        f"play; external = in your own trainer, which samples with nitro_rl.ActorPool; {_OWN}",
    )
    function: LearnerFunctionSection = Field(
        LearnerFunctionSection(), description="functions of kind = function or stellaris"
    )
    stellaris: StellarisSection = Field(
        StellarisSection(), description="parallel learner functions of kind = stellaris"
    )
    instance_types: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = Field(
        None,
        description="EC2 types to try, in this order if on demand; the first one's price also bills runs on one "
        f"machine; null = {', '.join(CPU_TYPES)}, or {', '.join(GPU_TYPES)} for Atari games and conv or combined "
        "networks",
    )
    market: Literal["on_demand", "spot"] = Field(
        "on_demand",
        description="how to buy the instance; spot may be interrupted, and counts at the on-demand price",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device for training; auto = cuda if available"
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        2,
        description="CPU threads of an update; from two on, policy and critic train in parallel. With fully "
        "connected networks, one and two give equal results; otherwise rounding may differ. With kind = gmi, per "
        "instance, by default 1",
    )
    update_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        120,
        description="time limit for detection, update and evaluation of a round (asynchronous: after its "
        "deadline), seconds. Reserved in the budget; exceeding it ends the run",
    )

    @property
    def chosen(self) -> UpdaterSettings:
        """Returns the settings of the updater that ``kind`` names."""
        settings: UpdaterSettings = (
            getattr(self, UPDATERS.key(self.kind), None) or UPDATERS.settings[self.kind]()
        )
        return settings

    @property
    def has_instance(self) -> bool:
        """Returns whether there is a learner instance; see `UpdaterSettings.has_instance`."""
        return self.chosen.has_instance


class FleetSection(Section):
    """Where actors run, and how failures are handled."""

    kind: str = Field(
        "auto",
        description="where actors run; local = on this machine, or the learner's instance in a deployment; "
        f"lambda = on AWS Lambda; ray = on your Ray cluster; auto = lambda with a deployed learner, else local; {_OWN}",
    )
    ray: RaySection = Field(RaySection(), description="cluster of kind = ray")
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="actor processes of the local fleet, or CPUs of a Ray cluster started here; null = one per "
        "core, in a deployment per vCPU of the smallest instance type. Does not change synchronous results",
    )
    round_deadline_s: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        None,
        description="seconds to wait for actors and their replacements; null = twice actor.timeout_s",
    )

    @property
    def chosen(self) -> FleetSettings:
        """Returns the settings of the fleet that ``kind`` names; the base settings for ``auto``."""
        settings: FleetSettings | None = getattr(self, FLEETS.key(self.kind), None)
        return settings or FLEETS.settings.get(self.kind, FleetSettings)()


_CHOOSING: Mapping[
    str, tuple[type[Section], Kinds[Any], Callable[[type[Section], Kinds[Any]], Fields]]
] = {
    "algorithm": (AlgorithmSection, ALGORITHMS, nested_fields),
    "scaler": (ScalerSection, SCALERS, flat_fields),
    "learner": (LearnerSection, UPDATERS, nested_fields),
    "fleet": (FleetSection, FLEETS, nested_fields),
}
KINDS = {name: kinds for name, (_, kinds, _) in _CHOOSING.items()}
"""Choices for each section with a key ``kind``."""
for _chosen in _CHOOSING.values():
    give_fields(*_chosen)


class CacheSection(Section):
    """The trajectory cache."""

    kind: Literal["redis", "none"] = Field(
        "redis",
        description="redis = ElastiCache Serverless for actors on Lambda, a Redis or Valkey server beside actors that "
        "are processes; none = weights travel in requests and trajectories in responses, up to 6 MiB each",
    )
    url: str | None = Field(
        None,
        description="redis://, rediss:// or unix:// server to use instead of starting one; its password belongs "
        "in CACHE_PASSWORD",
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
        description="mean evaluation return that ends the run; null = none. Dropped if environment.id is "
        "overridden",
    )


class EvaluationSection(Section):
    """How progress is measured."""

    every_rounds: Annotated[int, Field(ge=0, le=10**9)] = Field(
        5,
        description="rounds between evaluations, which also run at stop.max_rounds and stop.max_steps; 0 = never. "
        "Training continues meanwhile, and a result counts a quarter of this later. With stop.target_return they start "
        "once a training episode gets halfway there, then run back to back",
    )
    episodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        5,
        description="episodes per evaluation; reaching the target must be confirmed by as many new ones",
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
    algorithm: AlgorithmSection = Field(AlgorithmSection(), description="how to train")
    detector: DetectorSection = Field(
        DetectorSection(), description="detection of rounds worth boosting"
    )
    scaler: ScalerSection = Field(ScalerSection(), description="actors per round")
    actor: ActorSection = Field(ActorSection(), description="actors")
    learner: LearnerSection = Field(LearnerSection(), description="learner")
    fleet: FleetSection = Field(FleetSection(), description="where actors run")
    cache: CacheSection = Field(CacheSection(), description="trajectory cache")
    budget: BudgetSection = Field(description="money")
    stop: StopSection = Field(StopSection(), description="when to stop")
    evaluation: EvaluationSection = Field(EvaluationSection(), description="evaluations")
    callbacks: ImportPaths = Field(
        (),
        description="subclasses of nitro_rl.Callback that see each round, and may stop the run or change "
        "environment.kwargs, such as my_package.curriculum.Longer: {most: 500}",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0,
        description="seed of all randomness; asynchronous rounds also depend on when actors return",
    )

    @pydantic.model_validator(mode="after")
    def _no_contradictions(self) -> Experiment:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    def resolved(
        self, *, is_deployed: bool = False, provisioned: int | None = None
    ) -> ResolvedExperiment:
        """Returns the experiment with every computed default filled in.

        Args:
            is_deployed: Whether it runs on a learner deployed to AWS.
            provisioned: Actors that a deployment actually keeps warm, if known.
        """
        from runtime.config.resolved import resolve

        return resolve(self, is_deployed=is_deployed, provisioned=provisioned)

    @property
    def unused(self) -> Mapping[str, Sequence[str]]:
        """Returns keys that are set but never read, by the reason, such as ``scaler.kind = fixed``."""
        found: dict[str, list[str]] = {}
        for one in unused(self):
            if keys := [key for key in one.keys if is_set(self, key)]:
                found.setdefault(reason(self, one), []).extend(keys)
        return found

    @property
    def unused_text(self) -> str:
        """Returns the same as text; empty if there are none."""
        return "; ".join(f"{', '.join(keys)} ({why})" for why, keys in self.unused.items())

    def without_unused(self) -> Experiment:
        """Returns the experiment with defaults for all keys that the run never reads."""
        keys = [key for keys in self.unused.values() for key in keys]
        return (
            Experiment.model_validate(without_keys(self.model_dump(exclude_unset=True), keys))
            if keys
            else self
        )

    @property
    def identity(self) -> str:
        """Returns a digest of everything that determines a run's rounds; equal for a run and its resumption."""
        return hashlib.sha256(json.dumps(unchangeable(self), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """Returns the tree as YAML that makes the same experiment again.

        Leaves out what the run never reads, such as settings of other algorithms, and the password in ``cache.url``.
        """
        return self._yaml()

    def given_yaml(self) -> str:
        """Returns as YAML the values that the file and the command line set, unless they are defaults or unused."""
        return self._yaml(exclude_unset=True, exclude_defaults=True)

    def _yaml(self, **choice: Any) -> str:
        """Returns as YAML what `model_dump` chooses, without unused keys and passwords."""
        from lambda_actor.cache import redacted

        tree = self.model_dump(mode="json", **choice)
        if url := tree.get("cache", {}).get("url"):
            tree["cache"]["url"] = redacted(url)
        return yaml_text.dump(
            without_keys(tree, (key for found in unused(self) for key in found.keys))
        )


def add_kind(path: str, chosen_by: str | None = None) -> str:
    """Registers a kind by its import path, which adds its keys to the built-in ones.

    Args:
        path: ``package.module:Settings``, which is imported; its base class decides the section.
        chosen_by: The section that names it, or None.

    Returns:
        The section that may choose it.

    Raises:
        ExperimentError: The import fails, the class has another base, or its keys are already taken.
    """
    key = f"{chosen_by}.kind = {path!r}" if chosen_by else path
    try:
        settings = load(path)
    except (Exception, SystemExit) as error:
        # The module may raise anything.
        raise ExperimentError(f"{key} cannot be imported: {told(error)}") from error
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
    section, kinds, fields_of = _CHOOSING[name]
    if path not in kinds.settings:
        kinds.settings[path] = settings
        try:
            give_fields(section, kinds, fields_of)
        except Exception:
            del kinds.settings[path]
            raise
        refresh_defaults(Experiment)
    return name


def equal_updaters() -> list[str]:
    """Returns the kinds of updaters with bit-identical results; a run may switch among them."""
    return [kind for kind, settings in UPDATERS.settings.items() if settings.is_exact]


def unchangeable(experiment: Experiment) -> dict[str, Any]:
    """Returns by dotted path the values that must not change between a run and its resumption."""
    # Runs from before callbacks, instances or simulators must remain resumable.
    left_out = (
        *CHANGEABLE,
        *_added_keys(experiment),
        *(() if experiment.callbacks else ("callbacks",)),
        *(() if experiment.learner.kind == "gmi" else ("learner.gmi",)),
        *(() if experiment.environment.backend == "warp" else ("environment.backend",)),
    )
    found = {
        path: value
        for path, value in leaves(experiment.model_dump(mode="json"))
        if not is_below(path, left_out)
    }
    equal = equal_updaters()
    return found | (
        {KIND: " | ".join(kind for kind in equal if not is_import_path(kind))}
        if found[KIND] in equal
        else {}
    )


def _added_keys(experiment: Experiment) -> Iterator[str]:
    """Yields the keys of added kinds that are not chosen; the resuming process may not know these kinds."""
    for name, kinds in KINDS.items():

        def keys(kind: str, kinds: Kinds[Any] = kinds) -> set[str]:
            return set(kinds.settings[kind].model_fields) if kinds is SCALERS else {kinds.key(kind)}

        chosen = getattr(experiment, name).kind
        added = {kind for kind in kinds.settings if is_import_path(kind) and kind != chosen}
        known = {key for kind in kinds.settings if kind not in added for key in keys(kind)}
        yield from sorted(f"{name}.{key}" for kind in added for key in keys(kind) - known)


def changes(new: Mapping[str, Any], old: Mapping[str, Any], where: str) -> list[str]:
    """Returns in words which values differ, written as JSON; keys of ``environment.kwargs`` may differ as well.

    Args:
        new: Unchangeable values of the given experiment.
        old: Those of the earlier one.
        where: Where the earlier one is.
    """

    def texts(values: Mapping[str, Any]) -> dict[str, str]:
        return {path: json.dumps(value, sort_keys=True) for path, value in values.items()}

    now, before = texts(new), texts(old)
    return [
        f"{path} is {now.get(path, 'missing')} now, {before.get(path, 'missing')} {where}"
        for path in before | now
        if now.get(path) != before.get(path)
    ]


def is_below(path: str, sections: Iterable[str]) -> bool:
    """Returns whether a dotted path is in ``sections``, or inside one of them."""
    return any(path == one or path.startswith(f"{one}.") for one in sections)


def without_keys(tree: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Returns a copy of a tree without some dotted keys and without sections that this empties."""
    tree = dict(tree)
    for section, found in groupby(sorted(keys), lambda key: key.partition(".")[0]):
        inner = [key.partition(".")[2] for key in found]
        if section in tree and "" in inner:
            del tree[section]
        elif isinstance(tree.get(section), Mapping):
            tree[section] = without_keys(tree[section], inner)
            if not tree[section]:
                del tree[section]
    return tree


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _contradictions(experiment: Experiment) -> Iterator[str]:
    scaler, stop = experiment.scaler, experiment.stop
    for key, written, example in (
        (
            "environment.wrappers",
            experiment.environment.wrappers,
            "gymnasium.wrappers.FlattenObservation",
        ),
        ("callbacks", experiment.callbacks, "my_package.curriculum.Longer"),
    ):
        for one in written:
            paths = [one] if isinstance(one, str) else list(one)
            if len(paths) != 1 or not _IMPORT_PATH.fullmatch(paths[0]):
                yield (
                    f"{key} = {one!r} is not allowed; allowed: an import path such as {example}, alone or with its "
                    "keyword arguments, each in its own item of the list"
                )
    yield from scaler.chosen.contradictions()
    if scaler.chosen.needs_target and stop.target_return is None:
        yield (
            f"scaler.kind = {scaler.kind} compares returns with stop.target_return = null; allowed: a number there, "
            "or another scaler"
        )
    if experiment.actor.provisioned > scaler.most_actors:
        yield (
            f"actor.provisioned = {experiment.actor.provisioned} is more than the {scaler.most_actors} actors that "
            f"a round can have; allowed: 0 to {scaler.most_actors}"
        )
    yield from experiment.fleet.chosen.contradictions(experiment)
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
    if experiment.environment.backend == "warp":
        yield from _not_simulated(experiment)
    yield from experiment.learner.chosen.contradictions(experiment)
    yield from experiment.algorithm.chosen.contradictions(experiment)


def _not_simulated(experiment: Experiment) -> Iterator[str]:
    """Yields a message for each setting that MuJoCo Warp does not support."""
    backend = "environment.backend = warp"
    for key, value, allowed in (
        ("environment.id", experiment.environment.id, _SIMULATED),
        ("learner.kind", experiment.learner.kind, ("gmi",)),
        ("algorithm.kind", experiment.algorithm.kind, ("ppo",)),
    ):
        if value not in allowed:
            yield (
                f"{key} = {value} is not simulated by {backend}; allowed: {' | '.join(allowed)}, or "
                "environment.backend = gymnasium"
            )
    for key in ("kwargs", "wrappers"):
        if value := getattr(experiment.environment, key):
            yield (
                f"environment.{key} = {value}: {backend} simulates {experiment.environment.id} as it is registered; "
                f"allowed: none, or environment.backend = gymnasium"
            )
