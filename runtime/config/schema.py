"""The experiment file as it is written: one typed, frozen tree that validates itself.

Descriptions, units, ranges and defaults stand here and in the settings of the kinds of algorithms, scalers, fleets and
updaters (`runtime.registry`), and nowhere else: ``python -m runtime explain`` and docs/reference/experiment_file.md are
made from them. What is open here is filled in by `runtime.config.resolved`.
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
from runtime.config.variants import Fields, flat_fields, give_fields, nested_fields, refresh_defaults
from runtime.errors import ExperimentError
from runtime.settings.algorithm import ALGORITHMS, AlgorithmSettings
from runtime.settings.fleet import FLEETS, FleetSettings, RaySection
from runtime.settings.kinds import Kinds, is_import_path, load
from runtime.settings.scaler import SCALERS, ScalerSettings
from runtime.settings.section import Count, Field, Json, Section
from runtime.settings.updater import UPDATERS, LearnerFunctionSection, StellarisSection, UpdaterSettings

if TYPE_CHECKING:
    from runtime.config.resolved import ResolvedExperiment

CHANGEABLE = ("budget", "stop", "fleet", "cache", "learner.function", "learner.stellaris.place",
              "learner.update_timeout_s", "learner.instance_types", "learner.market", "learner.launches_max",
              "learner.image_parameter", "learner.device", "learner.gmi.backend", "learner.gmi.environments",
              "actor.provisioned", "environment.vector")
"""What may differ between a run and its resumption: none of it changes what a finished synchronous round is. So may
``learner.kind``, between `equal_updaters`."""
REMOVED: Mapping[str, tuple[Any, str]] = {
    "cache.memory_mib": (1024, "a run's own cache has 1 GiB for waiting trajectories; your own is named by cache.url"),
    "fleet.attempts": (3, "each slot of a round is tried three times"),
    "fleet.failures_max": (16, "a run ends after 16 failures with no success between them"),
    "learner.processes": (None, "each process trains in an instance of its own: learner.kind = gmi, "
                          "learner.gmi.instances = 2, say"),
    "fleet.quorum": (0.95, "a round counts if 95 % of its actors return, replacements included"),
    "learner.volume_gib": (100, "a learner's volume has 100 GiB")}
"""Keys of earlier versions: the value that counts for all runs now, and what to say of it. Files that have it are
read, those of runs too."""
_KIND = "learner.kind"
_OWN = "or package.module:Settings of your own, docs/design/add-a-part.md"
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

_SIMULATED = ("Ant-v5", "Humanoid-v5")
"""What ``environment.backend = warp`` simulates."""
_OFF_POLICY = [settings for settings in ALGORITHMS.settings.values() if settings.is_off_policy]


ImportPaths = Annotated[tuple[str | dict[str, dict[str, Json] | None], ...], Field(strict=False)]
"""What is imported and called: ``package.module.Name``, alone or with a mapping of its keyword arguments."""


def with_arguments(written: Sequence[str | Mapping[str, dict[str, Any] | None]]) -> list[list[Any]]:
    """Returns import paths as pairs of path and keyword arguments."""
    return [[path, arguments or {}] for one in written
            for path, arguments in ({one: None} if isinstance(one, str) else one).items()]


class EnvironmentSection(Section):
    """What is learned."""

    id: str = Field(min_length=1, description="Gymnasium id, after module: if importing that registers it; or "
                    "module:factory of your own environment")
    kwargs: dict[str, Json] = Field({}, description="keyword arguments that it is made with")
    wrappers: ImportPaths = Field(
        (), description="what is put around it, the innermost first: import paths, each alone or with its keyword "
        "arguments, such as gymnasium.wrappers.FilterObservation: {filter_keys: [position]}")
    max_episode_steps: Count | None = Field(
        None, description="an episode is cut after so many steps, at most; replaces the limit that Gymnasium has for "
        "the id; null = that limit")
    package: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="what a deployment installs into the actor image and on the learner so that the environment "
        "can be imported: a folder with a pyproject.toml, relative to the experiment file, or a pinned requirement "
        "such as my-envs==1.2.0")
    preprocessing: Literal["auto", "atari", "none"] = Field(
        "auto", description="atari = grey frames of 84×84, four to an action, three stacked; auto = that for games of "
        "the Arcade Learning Environment")
    frame_stack: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="frames of pixels that a policy sees at once, the last ones; null = 3 with atari "
        "preprocessing, else 1")
    clip_rewards: bool | None = Field(None, description="train on the sign of each reward; null = true with atari "
                                      "preprocessing. Returns are always told unclipped")
    truncate_at_fragment: bool = Field(False, description="abandon the open episode at the end of each fragment "
                                       "instead of letting a later actor continue it")
    vector: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto", description="environments that one process of the local fleet plays in lock-step, each an actor's, at "
        "most; auto = the most actors of a round over fleet.processes, 16 at most, and 1 in asynchronous rounds; does "
        "not change what synchronous rounds hold")
    backend: Literal["gymnasium", "warp"] = Field(
        "gymnasium", description="what simulates it: gymnasium = the environment itself; warp = MuJoCo Warp simulates "
        f"{' or '.join(_SIMULATED)} on learner.device, all environments of an instance together (learner.kind = gmi); "
        "evaluations play the environment itself")

    @property
    def options(self) -> dict[str, Any]:
        """How it is made besides id and preprocessing; see `lambda_actor.making.OPTIONS`."""
        options = {"kwargs": self.kwargs, "wrappers": with_arguments(self.wrappers),
                   "max_episode_steps": self.max_episode_steps, "frame_stack": self.frame_stack}
        return {name: value for name, value in options.items() if value}


class NetworkSection(Section):
    """The networks of policy and critic."""

    kind: Literal["auto", "mlp", "conv", "combined"] = Field(
        "auto", description="of policy and critic: mlp = fully connected; conv = 16 of 8×8 by 4, 32 of 4×4 by "
        "2, 256 over what is left, ReLU; combined = mlp over these 256 and the numbers beside a picture; auto = conv "
        "for pixels, combined for a picture beside numbers, else mlp")
    hidden_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=16_384)], ...], Field(
        min_length=1, strict=False)] | None = Field(
        None, description="units of each hidden layer, the first one first (mlp, combined); null = 256 and 256")
    activation: Literal["tanh", "relu"] | None = Field(
        None, description="of the hidden units (mlp, combined); null = tanh")
    initialisation: Literal["orthogonal", "default"] = Field(
        "orthogonal", description="of the weights; orthogonal = with gain √2, at the end 0.01 (policy) and 1 (critic), "
        "biases 0; default = PyTorch's")
    initial_std: Annotated[float, Field(gt=0, le=10)] = Field(
        1.0, description="standard deviation of continuous actions before the first update; discrete ones have none")


class AlgorithmSection(Section):
    """How the policy is trained; the settings of each algorithm are a section of their own."""

    kind: str = Field("ppo", description=f"the training algorithm; {_OWN}")
    rounds: Literal["synchronous", "asynchronous"] | None = Field(
        None, description="synchronous: a round's actors start with the new policy and the update awaits them; "
        "asynchronous: neither waits for the other; null = asynchronous for "
        f"{' and '.join(settings.title for settings in _OFF_POLICY)}, else synchronous")
    round_steps: Count | None = Field(
        None, description="environment steps of an asynchronous round, unless its deadline comes first; null = a "
        "fragment of each of the actors that the scaler gives the round")
    staleness_max: Count | None = Field(
        None, description="policy versions that a trajectory may be behind the policy it updates (asynchronous); "
        "actors that fall behind further are given up, and nothing older is replayed; null = four times the most "
        "actors of a round, 32 at least")

    @property
    def chosen(self) -> AlgorithmSettings:
        """The settings of the algorithm that ``kind`` names."""
        settings: AlgorithmSettings = getattr(self, self.chosen_key)
        return settings

    @property
    def chosen_key(self) -> str:
        """Under which key these settings stand."""
        return ALGORITHMS.key(self.kind)

    @property
    def is_asynchronous(self) -> bool:
        """Whether its rounds are asynchronous."""
        return self.rounds == "asynchronous" or (self.rounds is None and self.chosen.is_off_policy)


class DetectorSection(Section):
    """How boostable rounds are detected."""

    objective: Literal["log_prob", "surrogate", "total_loss"] = Field(
        "log_prob", description="maximised objective whose Hessian is measured: mean log π·Â (Theorem 1), the "
        "algorithm's own surrogate, or its whole negated loss")
    subset_size: Count = Field(1024, description="samples of the last batch that it is measured on; all where the "
                               "batch is smaller")
    lanczos_steps: Annotated[int, Field(ge=2, le=1000)] = Field(
        40, description="Lanczos iterations at most; fewer where both eigenvalues have converged before")


class ScalerSection(Section):
    """How many actors a round gets; holds the keys of all scalers, of which those of ``kind`` count."""

    kind: str = Field("fixed", description="; ".join(
        [*(f"{kind} {settings.about}" for kind, settings in SCALERS.settings.items()), _OWN]))
    actors_min: int = 0
    actors_max: int = 0

    @property
    def chosen(self) -> ScalerSettings:
        """The settings of the scaler that ``kind`` names."""
        settings = SCALERS.settings[self.kind]
        return settings.model_construct(**{name: getattr(self, name) for name in settings.model_fields})

    @property
    def most_actors(self) -> int:
        """Most actors that a round can have."""
        return self.chosen.most_actors

    @property
    def smallest_round(self) -> int:
        """Fewest actors that a round may be shrunk to when the budget gets short."""
        return self.chosen.smallest_round

    def waves(self, concurrency: int) -> int:
        """Returns how many times its deadline a round may take if only so many actors run at once."""
        return math.ceil(self.most_actors / concurrency)


class ActorSection(Section):
    """The actor function."""

    fragment_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(256, description="steps one actor samples")
    memory_mib: Annotated[int, Field(ge=128, le=10_240)] = Field(
        1024, description="memory of the actor function, MiB; 1769 buy one vCPU")
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(60, description="an actor is ended after this, seconds")
    provisioned: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="actors kept warm by provisioned concurrency; 0 = none")
    architecture: Literal["x86_64", "arm64"] = Field("x86_64", description="processor of the actor function, "
                                                   "and of the learner's functions")


class LearnerSection(Section):
    """The learner: where the policy is trained, and how long that may take."""

    kind: str = Field(
        "instance", description="where the policy is trained; instance = on an EC2 instance, which also runs the loop; "
        "function = each update is one invocation of a function, and another function runs the loop: then keys of "
        "instances do not count, and the results are equal; stellaris = as function, but each gradient is one "
        "invocation, of which several run at once; gmi = in several instances of one machine, each of which plays and "
        f"trains; {_OWN}")
    function: LearnerFunctionSection = Field(
        LearnerFunctionSection(), description="the functions of kind = function or stellaris; they have the processor "
        "actor.architecture")
    stellaris: StellarisSection = Field(
        StellarisSection(), description="learner functions of kind = stellaris, and what is done with their gradients")
    instance_types: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = Field(
        None, description="EC2 types to try, in this order if on demand; the first one's price is what a run on one "
        f"machine is billed; null = {', '.join(CPU_TYPES)}, or {', '.join(GPU_TYPES)} for Atari games and with "
        "network.kind = conv or combined")
    market: Literal["on_demand", "spot"] = Field("on_demand", description="how the instance is bought; spot may be "
                                                 "interrupted and is counted at the on-demand price")
    launches_max: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="instances that a deployment may launch, the first one and its replacements; with kind = "
        "function, tries of a leg of the coordinator")
    image_parameter: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="SSM parameter that names the machine image, an Amazon Linux 2023 with Docker, and for GPUs "
        "with NVIDIA's driver and container toolkit; null = AWS' image for containers that fits the instance types; "
        "resolved once, at deployment")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the policy is trained; auto = cuda "
                                                   "where there is one")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        2, description="CPU threads of the update; with two or more, policy and critic are trained beside each other. "
        "One and two give equal results with fully connected networks; otherwise sums may be rounded differently, so "
        "it is part of what makes two runs equal. With kind = gmi, those of each instance, and 1 by default")
    update_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        120, description="longest that detection, update and evaluation of one round may take together, seconds; in "
        "asynchronous rounds, what may follow their deadline; reserved in the budget, and the run ends if it is "
        "exceeded")

    @property
    def chosen(self) -> UpdaterSettings:
        """The settings of the updater that ``kind`` names."""
        settings: UpdaterSettings = getattr(self, UPDATERS.key(self.kind), None) or UPDATERS.settings[self.kind]()
        return settings

    @property
    def has_instance(self) -> bool:
        """Whether an instance stands; else the learner is a function, and another function runs the loop."""
        return self.chosen.has_instance


class FleetSection(Section):
    """Where actors run, and what happens if they fail."""

    kind: str = Field(
        "auto", description="where actors run; auto = on AWS Lambda with a deployed learner, else on this machine; "
        "local = on this machine, in a deployment on the learner's instance: then there is no actor function; ray = on "
        f"a Ray cluster of your own; {_OWN}")
    ray: RaySection = Field(RaySection(), description="the cluster of kind = ray")
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="actor processes of the local fleet, or CPUs of a Ray cluster that is started here; null = "
        "one a core, in a deployment one a vCPU of the smallest of learner.instance_types; does not change what "
        "synchronous rounds hold")
    round_deadline_s: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        None, description="actors and their replacements are awaited for so long, seconds; null = twice "
        "actor.timeout_s")

    @property
    def chosen(self) -> FleetSettings:
        """The settings of the fleet that ``kind`` names; those of none if it is ``auto``."""
        settings: FleetSettings | None = getattr(self, FLEETS.key(self.kind), None)
        return settings or FLEETS.settings.get(self.kind, FleetSettings)()


_CHOOSING: Mapping[str, tuple[type[Section], Kinds[Any], Callable[[type[Section], Kinds[Any]], Fields]]] = {
    "algorithm": (AlgorithmSection, ALGORITHMS, nested_fields), "scaler": (ScalerSection, SCALERS, flat_fields),
    "learner": (LearnerSection, UPDATERS, nested_fields), "fleet": (FleetSection, FLEETS, nested_fields)}
KINDS = {name: kinds for name, (_, kinds, _) in _CHOOSING.items()}
"""What may be chosen in the sections that have a key ``kind``, whose settings are not theirs."""
for _chosen in _CHOOSING.values():
    give_fields(*_chosen)


class CacheSection(Section):
    """The trajectory cache."""

    kind: Literal["serverless", "node", "learner", "none"] = Field(
        "serverless", description="what holds the trajectory cache in AWS: ElastiCache Serverless, an ElastiCache "
        "node, or the learner instance; none = there is none: weights travel in the request to an actor, its "
        "trajectory in the response, of up to 6 MiB each. A deployment with fleet.kind = local takes learner or none. "
        "On one machine only the price depends on it, and whether a server is started")
    url: str | None = Field(
        None, description="redis://, rediss:// or unix:// server to use instead of starting one; a password is "
        "better given in the variable CACHE_PASSWORD")


class BudgetSection(Section):
    """The money."""

    usd: Annotated[float, Field(gt=0, le=100_000)] = Field(
        description="dollars that the whole run may cost, spent and reserved together; in AWS with the teardown")
    lifetime_hours: Annotated[float, Field(gt=0, le=8760)] = Field(
        24.0, description="longest that a deployment may exist, hours; then the guard ends it, and the instance itself")


class StopSection(Section):
    """When to stop, besides the budget."""

    max_rounds: Count | None = Field(None, description="rounds; null = no limit")
    max_steps: Count | None = Field(
        None, description="environment steps; null = no limit. Never exceeded: the last round gets as many actors as "
        "whole fragments fit, and the run ends when none fits any more")
    target_return: float | None = Field(None, description="mean evaluation return that ends the run; null = none. Of a "
                                        "file whose environment.id is overridden it is not taken over")


class EvaluationSection(Section):
    """How progress is measured."""

    every_rounds: Annotated[int, Field(ge=0, le=10**9)] = Field(
        5, description="rounds between evaluations, which run beside the training and decide a quarter of that later; "
        "with stop.target_return they begin when a training episode has got half-way there, and then follow each "
        "other; also after the last round of stop.max_rounds or stop.max_steps; 0 = never")
    episodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        5, description="episodes of an evaluation, and as many fresh ones that must confirm a hit")
    actions: Literal["deterministic", "stochastic"] = Field(
        "deterministic", description="deterministic = the Gaussian's mean, or the most probable action; stochastic = "
        "sampled, as in training, which suits Atari games")


class Experiment(Section):
    """One experiment: what to train, how, and with what money."""

    environment: EnvironmentSection = Field(description="what is learned")
    network: NetworkSection = Field(NetworkSection(), description="the networks")
    algorithm: AlgorithmSection = Field(AlgorithmSection(), description="how it is learned")
    detector: DetectorSection = Field(DetectorSection(), description="how boostable rounds are detected")
    scaler: ScalerSection = Field(ScalerSection(), description="how many actors a round gets")
    actor: ActorSection = Field(ActorSection(), description="the actor function")
    learner: LearnerSection = Field(LearnerSection(), description="the learner")
    fleet: FleetSection = Field(FleetSection(), description="where actors run")
    cache: CacheSection = Field(CacheSection(), description="the trajectory cache")
    budget: BudgetSection = Field(description="the money")
    stop: StopSection = Field(StopSection(), description="when to stop, besides the budget")
    evaluation: EvaluationSection = Field(EvaluationSection(), description="how progress is measured")
    callbacks: ImportPaths = Field(
        (), description="what is told of each round, and may stop the run or change environment.kwargs: import paths "
        "of subclasses of nitro_rl.Callback, each alone or with its keyword arguments, such as "
        "my_package.curriculum.Longer: {most: 500}")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="everything random follows from it; asynchronous rounds also depend on when actors come back")

    @pydantic.model_validator(mode="after")
    def _no_contradictions(self) -> Experiment:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    def resolved(self, *, is_deployed: bool = False, provisioned: int | None = None) -> ResolvedExperiment:
        """Returns the same experiment with every None that stands for a computed default filled in.

        Args:
            is_deployed: Whether it will run, or runs, on a learner deployed to AWS.
            provisioned: Actors that a deployment really keeps warm, if that is known.
        """
        from runtime.config.resolved import resolve

        return resolve(self, is_deployed=is_deployed, provisioned=provisioned)

    @property
    def unused(self) -> Mapping[str, Sequence[str]]:
        """Keys that are set although a run never reads them, by the reason, such as ``scaler.kind = fixed``."""
        found: dict[str, list[str]] = {}
        for one in unused(self):
            if keys := [key for key in one.keys if is_set(self, key)]:
                found.setdefault(reason(self, one), []).extend(keys)
        return found

    @property
    def unused_text(self) -> str:
        """The same for people; empty if there are none."""
        return "; ".join(f"{', '.join(keys)} ({why})" for why, keys in self.unused.items())

    def without_unused(self) -> Experiment:
        """Returns the same experiment with their defaults for all keys that a run never reads."""
        keys = [key for keys in self.unused.values() for key in keys]
        return Experiment.model_validate(without_keys(self.model_dump(exclude_unset=True), keys)) if keys else self

    @property
    def identity(self) -> str:
        """A digest of all that decides what a run's rounds are; equal for a run and its resumption."""
        return hashlib.sha256(json.dumps(unchangeable(self), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """Returns the tree as YAML, which makes the same experiment again.

        It lacks what a run never reads, such as the settings of other algorithms than its own, and the password that
        ``cache.url`` may hold.
        """
        return self._yaml()

    def given_yaml(self) -> str:
        """Returns as YAML what the file and the command line give, where that is no default and something reads it."""
        return self._yaml(exclude_unset=True, exclude_defaults=True)

    def _yaml(self, **choice: Any) -> str:
        """Returns as YAML what `model_dump` chooses and something reads, without a password."""
        from lambda_actor.cache import redacted

        tree = self.model_dump(mode="json", **choice)
        if url := tree.get("cache", {}).get("url"):
            tree["cache"]["url"] = redacted(url)
        return yaml_text.dump(without_keys(tree, (key for found in unused(self) for key in found.keys)))


def add_kind(path: str, chosen_by: str | None = None) -> str:
    """Makes a kind known that an import path names: its keys are those of built-in kinds from now on.

    Args:
        path: ``package.module:Settings``, which is imported; its base class says what it is a kind of.
        chosen_by: The section that names it; None if none does.

    Returns:
        The section that may choose it.

    Raises:
        ExperimentError: It cannot be imported, is no such class, or its keys are others' already.
    """
    key = f"{chosen_by}.kind = {path!r}" if chosen_by else path
    try:
        settings = load(path)
    except (Exception, SystemExit) as error:
        # Whatever somebody else's module raises.
        raise ExperimentError(f"{key} cannot be imported: {told(error)}") from error
    allowed = {name: kinds.base for name, kinds in KINDS.items() if chosen_by in (None, name)}
    name = next((name for name, base in allowed.items()
                 if isinstance(settings, type) and issubclass(settings, base) and settings is not base), None)
    if name is None:
        raise ExperimentError(f"{key} is not allowed; allowed: a subclass of "
                              + " | ".join(f"nitro_rl.{base.__name__}" for base in allowed.values()))
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
    """Returns the kinds of updaters whose results are equal, to the bit: a run may go on with another one of them."""
    return [kind for kind, settings in UPDATERS.settings.items() if settings.is_exact]


def unchangeable(experiment: Experiment) -> dict[str, Any]:
    """Returns what may not differ between a run and its resumption, by dotted path."""
    # Runs that were made when there were no callbacks, instances or simulators go on, too.
    left_out = (*CHANGEABLE, *_added_keys(experiment), *(() if experiment.callbacks else ("callbacks",)),
                *(() if experiment.learner.kind == "gmi" else ("learner.gmi",)),
                *(() if experiment.environment.backend == "warp" else ("environment.backend",)))
    found = {path: value for path, value in leaves(experiment.model_dump(mode="json")) if not is_below(path, left_out)}
    equal = equal_updaters()
    return found | ({_KIND: " | ".join(kind for kind in equal if not is_import_path(kind))} if found[_KIND] in equal
                    else {})


def _added_keys(experiment: Experiment) -> Iterator[str]:
    """Yields the keys of kinds that were added and are not chosen: the process of a resumption may not know them."""
    for name, kinds in KINDS.items():
        def keys(kind: str, kinds: Kinds[Any] = kinds) -> set[str]:
            return set(kinds.settings[kind].model_fields) if kinds is SCALERS else {kinds.key(kind)}

        chosen = getattr(experiment, name).kind
        added = {kind for kind in kinds.settings if is_import_path(kind) and kind != chosen}
        known = {key for kind in kinds.settings if kind not in added for key in keys(kind)}
        yield from sorted(f"{name}.{key}" for kind in added for key in keys(kind) - known)


def changes(new: Mapping[str, Any], old: Mapping[str, Any], where: str) -> list[str]:
    """Returns in words which values differ, as JSON has them; ``environment.kwargs`` may have other keys, too.

    Args:
        new: What is unchangeable of the experiment that is given now.
        old: Of the one before.
        where: Where that is.
    """
    def texts(values: Mapping[str, Any]) -> dict[str, str]:
        return {path: json.dumps(value, sort_keys=True) for path, value in values.items()}

    now, before = texts(new), texts(old)
    return [f"{path} is {now.get(path, 'missing')} now, {before.get(path, 'missing')} {where}"
            for path in before | now if now.get(path) != before.get(path)]


def is_below(path: str, sections: Iterable[str]) -> bool:
    """Whether a dotted path is one of ``sections``, or in one of them."""
    return any(path == one or path.startswith(f"{one}.") for one in sections)


def without_keys(tree: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Returns a copy of a tree without some dotted keys, nor the sections that are empty without them."""
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
            ("environment.wrappers", experiment.environment.wrappers, "gymnasium.wrappers.FlattenObservation"),
            ("callbacks", experiment.callbacks, "my_package.curriculum.Longer")):
        for one in written:
            paths = [one] if isinstance(one, str) else list(one)
            if len(paths) != 1 or not _IMPORT_PATH.fullmatch(paths[0]):
                yield (f"{key} = {one!r} is not allowed; allowed: an import path such as {example}, alone or with its "
                       "keyword arguments, each in its own item of the list")
    yield from scaler.chosen.contradictions()
    if scaler.chosen.needs_target and stop.target_return is None:
        yield (f"scaler.kind = {scaler.kind} compares returns with stop.target_return = null; allowed: a number there, "
               "or another scaler")
    if experiment.actor.provisioned > scaler.most_actors:
        yield (f"actor.provisioned = {experiment.actor.provisioned} is more than the {scaler.most_actors} actors that "
               f"a round can have; allowed: 0 to {scaler.most_actors}")
    yield from experiment.fleet.chosen.contradictions(experiment)
    deadline_s = experiment.fleet.round_deadline_s
    if deadline_s is not None and deadline_s < experiment.actor.timeout_s:
        yield (f"fleet.round_deadline_s = {deadline_s} is shorter than actor.timeout_s = "
               f"{experiment.actor.timeout_s}; allowed: {experiment.actor.timeout_s} to 3600")
    if stop.target_return is not None and experiment.evaluation.every_rounds == 0:
        yield (f"stop.target_return = {stop.target_return} is never looked at with evaluation.every_rounds = 0; "
               "allowed: evaluation.every_rounds from 1, or stop.target_return = null")
    if stop.max_steps is not None and stop.max_steps < experiment.actor.fragment_steps:
        yield (f"stop.max_steps = {stop.max_steps} has no room for a fragment of actor.fragment_steps = "
               f"{experiment.actor.fragment_steps}; allowed: {experiment.actor.fragment_steps} or more, or a smaller "
               "actor.fragment_steps")
    if experiment.environment.backend == "warp":
        yield from _not_simulated(experiment)
    yield from experiment.learner.chosen.contradictions(experiment)
    yield from experiment.algorithm.chosen.contradictions(experiment)


def _not_simulated(experiment: Experiment) -> Iterator[str]:
    """Yields what MuJoCo Warp cannot have."""
    backend = "environment.backend = warp"
    for key, value, allowed in (
            ("environment.id", experiment.environment.id, _SIMULATED),
            ("learner.kind", experiment.learner.kind, ("gmi",)),
            ("algorithm.kind", experiment.algorithm.kind, ("ppo",))):
        if value not in allowed:
            yield (f"{key} = {value} is not simulated by {backend}; allowed: {' | '.join(allowed)}, or "
                   "environment.backend = gymnasium")
    for key in ("kwargs", "wrappers"):
        if value := getattr(experiment.environment, key):
            yield (f"environment.{key} = {value}: {backend} simulates {experiment.environment.id} as it is registered; "
                   f"allowed: none, or environment.backend = gymnasium")
