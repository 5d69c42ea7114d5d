"""The experiment file: one typed, frozen tree that validates itself.

Every field's description, unit, range and default is in this file alone; ``train --help`` and
docs/reference/experiment_file.md are made from it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic
import yaml
from pydantic import Field

from lambda_actor.cache import redacted
from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError, without_credentials

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**12)]


CHANGEABLE = ("budget", "stop", "fleet", "cache", "learner.update_timeout_s", "learner.instance_types",
              "learner.market", "learner.launches_max", "learner.image_parameter", "learner.volume_gib",
              "learner.device", "learner.processes", "actor.provisioned")
"""What may differ between a run and its resumption: none of it changes what a finished synchronous round
is."""


OFF_POLICY = ("impact", "impala")
"""Algorithms that may train on what older policies sampled; their settings have ``minibatch_steps``."""


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class EnvironmentSection(_Section):
    id: str = Field(min_length=1, description="Gymnasium id, or module:factory of your own environment")
    package: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="what a deployment installs into the actor image and on the learner so that the environment "
        "can be imported: a folder with a pyproject.toml, relative to the experiment file, or a pinned requirement "
        "such as my-envs==1.2.0")
    preprocessing: Literal["auto", "atari", "none"] = Field(
        "auto", description="atari = grey frames of 84×84, four to an action, three stacked; auto = that for games of "
        "the Arcade Learning Environment")
    clip_rewards: bool | None = Field(None, description="train on the sign of each reward; null = true with atari "
                                      "preprocessing. Returns are always told unclipped")
    truncate_at_fragment: bool = Field(False, description="abandon the open episode at the end of each fragment "
                                       "instead of letting a later actor continue it")


class NetworkSection(_Section):
    kind: Literal["auto", "mlp", "conv"] = Field(
        "auto", description="of policy and critic: mlp = 256 and 256 tanh units; conv = 16 of 8×8 by 4, 32 of 4×4 by "
        "2, 256 over what is left, ReLU; auto = conv for pixels")


class _LearningSection(_Section):
    """What all algorithms have; each with defaults of its own."""

    learning_rate: Positive = Field(3e-4, description="Adam's step size")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear goes to 0 at stop.max_steps or stop.max_rounds, whichever comes first")
    discount: Fraction = Field(0.99, description="γ, per step")
    entropy_coefficient: NonNegative = Field(0.0, description="weight of the entropy bonus")
    value_coefficient: NonNegative = Field(1.0, description="weight of the value loss ½(V − target)²")
    max_gradient_norm: Positive | None = Field(0.5, description="clips the gradient of the policy and that of the "
                                               "critic to this norm each; null = no clipping")
    normalize_observations: bool | None = Field(None, description="normalise observations by running moments; null = "
                                                "true for vectors, false for pixels, which are divided by 255")
    observation_clip: Positive = Field(10.0, description="normalised observations are clipped to ± this")


class PpoSection(_LearningSection):
    epochs: Count = Field(10, description="passes over a round's batch")
    minibatch_steps: Count = Field(256, description="samples per gradient step at most; the whole batch where that "
                                   "is smaller")
    gae_lambda: Fraction = Field(0.95, description="λ of generalised advantage estimation")
    clip: Positive = Field(0.2, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(0.0, description="initial β of the adaptive KL penalty; 0 = no penalty")
    kl_target: Positive = Field(0.01, description="KL per update that β is adapted to, in nats")
    normalize_advantages: bool = Field(True, description="scale a batch's advantages to mean 0 and variance 1")


class ImpactSection(_LearningSection):
    minibatch_steps: Count = Field(512, description="samples per gradient step at most, in whole fragments; one "
                                   "fragment at least")
    learning_rate: Positive = Field(5e-4, description="Adam's step size")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")
    clip: Positive = Field(0.4, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(1.0, description="initial β of the adaptive KL penalty towards the target "
                                        "network; 0 = no penalty")
    kl_target: Positive = Field(0.01, description="KL per update that β is adapted to, in nats")
    importance_clip: Positive = Field(2.0, description="μ/π_target is clipped to 0 … this")
    target_update_frequency: Positive = Field(
        1.0, description="the target network becomes the policy whenever so many times buffer_batches · uses_max · "
        "minibatch_steps samples were trained on")
    buffer_batches: Annotated[int, Field(ge=1, le=1000)] = Field(
        8, description="N, minibatches that are kept for being replayed; the oldest is dropped")
    uses_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="K, times that a minibatch is trained on at most, the first one included; once in synchronous "
        "rounds")


class ImpalaSection(_LearningSection):
    minibatch_steps: Count = Field(512, description="samples per gradient step at most, in whole fragments; one "
                                   "fragment at least")
    learning_rate: Positive = Field(6e-4, description="Adam's step size")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")
    value_coefficient: NonNegative = Field(0.5, description="weight of the value loss ½(V − target)²")


class AlgorithmSection(_Section):
    kind: Literal["ppo", "impact", "impala"] = Field("ppo", description="the training algorithm")
    rounds: Literal["synchronous", "asynchronous"] | None = Field(
        None, description="synchronous: a round's actors start with the new policy and the update awaits them; "
        "asynchronous: neither waits for the other; null = asynchronous for IMPACT and IMPALA, else synchronous")
    round_steps: Count | None = Field(
        None, description="environment steps of an asynchronous round at least, unless its deadline comes first; null "
        "= actor.fragment_steps times the most actors of a round")
    staleness_max: Count | None = Field(
        None, description="policy versions that a trajectory may be behind the policy it updates (asynchronous); "
        "actors that fall behind further are given up, and nothing older is replayed; null = four times the most "
        "actors of a round, 32 at least")
    ppo: PpoSection = Field(PpoSection(), description="settings of PPO")
    impact: ImpactSection = Field(ImpactSection(), description="settings of IMPACT")
    impala: ImpalaSection = Field(ImpalaSection(), description="settings of IMPALA")

    @property
    def chosen(self) -> PpoSection | ImpactSection | ImpalaSection:
        """The settings of the algorithm that ``kind`` names."""
        return getattr(self, self.kind)


class DetectorSection(_Section):
    objective: Literal["log_prob", "surrogate", "total_loss"] = Field(
        "log_prob", description="maximised objective whose Hessian is measured: mean log π·Â (Theorem 1), the "
        "algorithm's own surrogate, or its whole negated loss")
    subset_size: Count = Field(1024, description="samples of the last batch that it is measured on; all where the "
                               "batch is smaller")
    lanczos_steps: Annotated[int, Field(ge=2, le=1000)] = Field(
        40, description="Lanczos iterations at most; fewer where both eigenvalues have converged before")


class ScalerSection(_Section):
    kind: Literal["nitro", "fixed"] = Field("nitro", description="nitro boosts flat rounds; fixed never changes")
    actors_min: Annotated[int, Field(ge=1, le=10_000)] = Field(8, description="I_min, fewest actors of a round")
    actors_max: Annotated[int, Field(ge=1, le=10_000)] = Field(64, description="I_max, most actors of a round")
    actors_fixed: Annotated[int, Field(ge=1, le=10_000)] = Field(16, description="actors of every round (fixed)")
    window_rounds: Count = Field(6, description="n, rounds whose convexity ratios are compared (nitro)")
    decay_factor: Annotated[float, Field(gt=0, le=1)] = Field(0.96, description="d, the score's weight is d^k (nitro)")

    @property
    def most_actors(self) -> int:
        return self.actors_max if self.kind == "nitro" else self.actors_fixed

    @property
    def smallest_round(self) -> int:
        return self.actors_min if self.kind == "nitro" else min(self.actors_min, self.actors_fixed)


class ActorSection(_Section):
    fragment_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(256, description="steps one actor samples")
    memory_mib: Annotated[int, Field(ge=128, le=10_240)] = Field(
        1024, description="memory of the actor function, MiB; 1769 buy one vCPU")
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(60, description="an actor is ended after this, seconds")
    provisioned: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="actors kept warm by provisioned concurrency; 0 = none; null = as many as a round can have")
    architecture: Literal["x86_64", "arm64"] = Field("x86_64", description="processor of the actor function")


class LearnerSection(_Section):
    instance_types: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("g4dn.xlarge", "g5.xlarge", "g6.xlarge"), strict=False,
        description="EC2 types to try, in this order if on demand; the first one's price is what a run on one machine "
        "is billed")
    market: Literal["on_demand", "spot"] = Field("on_demand", description="how the instance is bought; spot may be "
                                                 "interrupted and is counted at the on-demand price")
    launches_max: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="instances that a deployment may launch, the first one and its replacements")
    image_parameter: str = Field(
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id", min_length=1,
        description="SSM parameter that names the instance's image, an Ubuntu with the AWS CLI, such as AWS' deep "
        "learning images; resolved once, at deployment")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the policy is trained; auto = cuda "
                                                   "where there is one")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="CPU threads of the update; more pay off for minibatches of thousands of samples only. Sums are "
        "rounded differently with another number, so it is part of what makes two runs equal")
    processes: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="processes that share each gradient step; null = one a GPU, and one without; the update is "
        "the same but for rounding")
    volume_gib: Annotated[int, Field(ge=1, le=16_384)] = Field(100, description="size of the gp3 volume, GiB")
    update_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        120, description="longest that detection, update and evaluation of one round may take together, seconds; in "
        "asynchronous rounds, what may follow their deadline; reserved in the budget, and the run ends if it is "
        "exceeded")


class FleetSection(_Section):
    kind: Literal["auto", "local", "lambda"] = Field(
        "auto", description="where actors run; auto = on AWS Lambda with a deployed learner, else on this machine")
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="actor processes of the local fleet; null = one a core; does not change what "
        "synchronous rounds hold")
    quorum: Fraction = Field(0.95, description="share of a round's actors that must return for it to be trained on "
                             "(synchronous)")
    round_deadline_s: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        None, description="actors and their replacements are awaited for so long, seconds; null = twice "
        "actor.timeout_s")
    attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="tries for each slot of a synchronous round: the first actor and its replacements; in "
        "asynchronous rounds, tries for an open episode whose continuation raises")
    failures_max: Count = Field(16, description="the run ends after so many failures with no success between them")


class CacheSection(_Section):
    kind: Literal["serverless", "node", "learner"] = Field(
        "serverless", description="what holds the trajectory cache in AWS: ElastiCache Serverless, an ElastiCache "
        "node, or the learner instance. On one machine only the price depends on it")
    url: str | None = Field(
        None, description="redis://, rediss:// or unix:// server to use instead of starting one; a password is "
        "better given in the variable CACHE_PASSWORD")
    memory_mib: Annotated[int, Field(ge=16, le=1_048_576)] = Field(
        1024, description="most that a round's waiting trajectories may take, MiB")


class BudgetSection(_Section):
    usd: Annotated[float, Field(gt=0, le=100_000)] = Field(
        description="dollars that the whole run may cost, spent and reserved together; in AWS with the teardown")
    lifetime_hours: Annotated[float, Field(gt=0, le=8760)] = Field(
        24.0, description="longest that a deployment may exist, hours; then the guard ends it, and the instance itself")


class StopSection(_Section):
    max_rounds: Count | None = Field(None, description="rounds; null = no limit")
    max_steps: Count | None = Field(None, description="environment steps; null = no limit")
    target_return: float | None = Field(None, description="mean evaluation return that ends the run; null = none. Of a "
                                        "file whose environment.id is overridden it is not taken over")


class EvaluationSection(_Section):
    every_rounds: Annotated[int, Field(ge=0, le=10**9)] = Field(
        5, description="rounds between evaluations; also after the last round of stop.max_rounds or stop.max_steps; "
        "0 = never")
    episodes: Annotated[int, Field(ge=1, le=10_000)] = Field(5, description="episodes of an evaluation")


class Experiment(_Section):
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
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="everything random follows from it; asynchronous rounds also depend on when actors come back")

    @pydantic.model_validator(mode="after")
    def _no_contradictions(self) -> Experiment:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self

    def resolved(self, *, is_deployed: bool = False, provisioned: int | None = None) -> Experiment:
        """The same experiment with every null that stands for a computed default filled in.

        Args:
            is_deployed: Whether it will run, or runs, on a learner deployed to AWS.
            provisioned: Actors that a deployment really keeps warm, where that is known.
        """
        kind = self.fleet.kind
        if kind == "auto":
            kind = "lambda" if is_deployed else "local"
        is_off_policy = self.algorithm.kind in OFF_POLICY
        return self.model_copy(update={
            "algorithm": self.algorithm.model_copy(update={
                "rounds": _or(self.algorithm.rounds, "asynchronous" if is_off_policy else "synchronous"),
                "round_steps": _or(self.algorithm.round_steps, self.actor.fragment_steps * self.scaler.most_actors),
                "staleness_max": _or(self.algorithm.staleness_max, max(32, 4 * self.scaler.most_actors))}),
            "actor": self.actor.model_copy(update={
                "provisioned": _or(provisioned, _or(self.actor.provisioned, self.scaler.most_actors))}),
            "fleet": self.fleet.model_copy(update={
                "kind": kind,
                "processes": _or(self.fleet.processes, _cores()),
                "round_deadline_s": _or(self.fleet.round_deadline_s, 2 * self.actor.timeout_s)}),
        })

    def fitted(self, spaces: Spaces, *, preprocessing: str) -> Experiment:
        """The same experiment with what follows from its environment filled in.

        Args:
            spaces, preprocessing: The environment's; preprocessing is ``atari`` or ``none``.

        Raises:
            ExperimentError: The network cannot take such observations.
        """
        kind = self.network.kind
        if kind == "auto":
            kind = "conv" if spaces.is_pixels else "mlp"
        if kind == "conv" and not spaces.is_pixels:
            raise ExperimentError(f"network.kind = 'conv': {self.environment.id} is observed as a vector of "
                                  f"{spaces.observation_size} numbers, not as pixels; allowed: auto | mlp")
        settings = self.algorithm.chosen
        settings = settings.model_copy(update={
            "normalize_observations": _or(settings.normalize_observations, not spaces.is_pixels)})
        if settings.normalize_observations and spaces.is_pixels:
            raise ExperimentError(f"algorithm.{self.algorithm.kind}.normalize_observations = true: the observations of "
                                  f"{self.environment.id} are pixels, which are divided by 255; allowed: false | null")
        return self.model_copy(update={
            "environment": self.environment.model_copy(update={
                "preprocessing": preprocessing,
                "clip_rewards": _or(self.environment.clip_rewards, preprocessing == "atari")}),
            "network": self.network.model_copy(update={"kind": kind}),
            "algorithm": self.algorithm.model_copy(update={self.algorithm.kind: settings})})

    def waves(self, concurrency: int) -> int:
        """How many times its deadline a round may take where only so many actors run at once."""
        return math.ceil(self.scaler.most_actors / concurrency)

    @property
    def identity(self) -> str:
        """A digest of all that decides what a run's rounds are; equal for a run and its resumption."""
        return hashlib.sha256(json.dumps(unchangeable(self), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """The whole tree as YAML, without the password that ``cache.url`` may hold."""
        tree = self.model_dump(mode="json")
        if tree["cache"]["url"]:
            tree["cache"]["url"] = redacted(tree["cache"]["url"])
        return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def unchangeable(experiment: Experiment) -> dict[str, Any]:
    """What may not differ between a run and its resumption, by dotted path."""
    return {path: value for path, value in _leaves(experiment.model_dump(mode="json"))
            if not any(path == one or path.startswith(f"{one}.") for one in CHANGEABLE)}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _contradictions(experiment: Experiment) -> Iterable[str]:
    scaler, stop = experiment.scaler, experiment.stop
    if scaler.actors_min > scaler.actors_max:
        yield (f"scaler.actors_min = {scaler.actors_min} is larger than scaler.actors_max = {scaler.actors_max}; "
               f"allowed: 1 to {scaler.actors_max}")
    if experiment.actor.provisioned is not None and experiment.actor.provisioned > scaler.most_actors:
        yield (f"actor.provisioned = {experiment.actor.provisioned} is more than the {scaler.most_actors} actors that "
               f"a round can have; allowed: 0 to {scaler.most_actors}")
    deadline_s = experiment.fleet.round_deadline_s
    if deadline_s is not None and deadline_s < experiment.actor.timeout_s:
        yield (f"fleet.round_deadline_s = {deadline_s} is shorter than actor.timeout_s = "
               f"{experiment.actor.timeout_s}; allowed: {experiment.actor.timeout_s} to 3600")
    if stop.target_return is not None and experiment.evaluation.every_rounds == 0:
        yield (f"stop.target_return = {stop.target_return} is never looked at with evaluation.every_rounds = 0; "
               "allowed: evaluation.every_rounds from 1, or stop.target_return = null")
    algorithm = experiment.algorithm
    if algorithm.kind not in OFF_POLICY and algorithm.rounds == "asynchronous":
        yield (f"algorithm.rounds = 'asynchronous': {algorithm.kind} trains on what its newest policy sampled, and on "
               f"nothing else; allowed: synchronous | null, or algorithm.kind = {' | '.join(OFF_POLICY)}")
    if (algorithm.chosen.learning_rate_schedule == "linear"
            and stop.max_rounds is None and stop.max_steps is None):
        yield (f"algorithm.{algorithm.kind}.learning_rate_schedule = linear needs an end: set stop.max_steps or "
               "stop.max_rounds")


def load_experiment(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in ``path``, with ``section.key=value`` overrides applied, validated but not resolved.

    The file's ``stop.target_return`` is that of its environment: with another one, it is not taken over.

    Raises:
        ExperimentError: The file cannot be read, or something in it is wrong; the text names every field, its value
            and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tree = _parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise ExperimentError(f"{path}: is not a mapping of sections such as environment: and budget:")
    environment = _value_at(tree, "environment", "id")
    for override in overrides:
        _apply_override(tree, override)
    if (_value_at(tree, "environment", "id") != environment and isinstance(tree.get("stop"), dict)
            and not any(override.strip().startswith("stop.target_return") for override in overrides)):
        # It was chosen for another environment.
        tree["stop"].pop("target_return", None)
    return experiment_from_tree(tree, source=str(path))


def experiment_from_tree(tree: Mapping[str, Any], *, source: str) -> Experiment:
    """Raises: ExperimentError: as `load_experiment`."""
    try:
        return Experiment.model_validate(tree)
    except pydantic.ValidationError as error:
        lines = [_explain(problem, tree) for problem in error.errors()]
        raise ExperimentError("\n".join([f"{source}: {len(lines)} problem{'s' * (len(lines) > 1)}:"]
                                        + [f"  {line}" for line in lines])) from None


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as users expect it: 5e-5 is a number, and a key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value
                if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice",
                                                        node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would read as a number."""


for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+0123456789."),
    )


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Not the error's own text, which quotes the line: there may be a password in it.
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ExperimentError(f"{source}: is not YAML: {error.problem or error.context}{where}") from None
    except Exception as error:
        # Its constructors raise whatever Python raises on a tag's nonsense.
        raise ExperimentError(f"{source}: is not YAML: {type(error).__name__}") from None


def _value_at(tree: Mapping[str, Any], section: str, key: str) -> Any:
    found = tree.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _apply_override(tree: dict, override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ExperimentError(f"--set {override}: is not section.key=value")
    value = _parse_yaml(text, f"--set {override}")
    *sections, key = path.strip().split(".")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise ExperimentError(f"--set {override}: {section!r} is a value, not a section")
    tree[key] = value


def _explain(problem: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    location = [str(part) for part in problem["loc"]]
    name = ".".join(location) or "experiment"
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return f"{name} is not a known key{_nearest(location)}"
    if kind == "missing":
        return f"{name} is missing: {_description(location)}"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    allowed = allowed_values(location) or problem["msg"]
    return f"{name} = {_shown(value)} is not allowed; allowed: {allowed}"


def _shown(value: Any) -> str:
    try:
        text = "null" if value is None else without_credentials(repr(value))
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else text[:97] + "..."


def _nearest(location: list[str]) -> str:
    known = {path: path.rsplit(".", 1)[-1] for path, _ in walk_fields()}
    section = ".".join(location[:-1])
    siblings = [path for path in known if path.rpartition(".")[0] == section]
    matches = difflib.get_close_matches(location[-1], [known[path] for path in siblings], 1, 0.5)
    if matches:
        return f"; did you mean {'.'.join([*location[:-1], matches[0]])}?"
    elsewhere = difflib.get_close_matches(location[-1], known.values(), 1, 0.75)
    if elsewhere:
        return f"; did you mean {next(path for path, key in known.items() if key == elsewhere[0])}?"
    return f"; known there: {', '.join(known[path] for path in siblings) or 'nothing'}"


def walk_fields(model: type[pydantic.BaseModel] = Experiment, prefix: str = ""):
    """Every field as (dotted path, pydantic's FieldInfo), sections before what they hold."""
    for name, info in model.model_fields.items():
        yield prefix + name, info
        if _is_section(info.annotation):
            yield from walk_fields(info.annotation, f"{prefix}{name}.")


def _field(location: list[str]):
    """The field info nearest to a location, which may run on into a list's index or a union's member."""
    fields = dict(walk_fields())
    for end in range(len(location), 0, -1):
        info = fields.get(".".join(location[:end]))
        if info is not None:
            return info
    return None


def _description(location: list[str]) -> str:
    info = _field(location)
    return info.description if info is not None else ""


def allowed_values(location: list[str]) -> str:
    """What a field takes, in words: its choices, or its type and range, and null where that is allowed."""
    info = _field(location)
    if info is None:
        return ""
    if _is_section(info.annotation):
        return "a section of keys: " + ", ".join(info.annotation.model_fields)
    return _allowed(info.annotation, info.metadata)


def default_text(info: pydantic.fields.FieldInfo) -> str:
    """A field's default as it would stand in the file."""
    if info.is_required():
        return "required"
    default = info.default
    return json.dumps(list(default) if isinstance(default, tuple) else default).strip('"')


def _allowed(annotation: Any, metadata: Iterable[Any]) -> str:
    if get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        return _allowed(annotation, [*metadata, *extra])
    arguments = get_args(annotation)
    if get_origin(annotation) in (types.UnionType,) or str(get_origin(annotation)) == "typing.Union":
        return " or ".join("null" if a is types.NoneType else _allowed(a, metadata) for a in arguments)
    if get_origin(annotation) is Literal:
        return " | ".join(str(a) for a in arguments)
    if get_origin(annotation) is tuple:
        return "a list of at least one name"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[annotation]
    bounds = {}
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:
            for bound in ("ge", "gt", "le", "lt"):
                if getattr(part, bound, None) is not None:
                    bounds[bound] = getattr(part, bound)
    low = f"from {bounds['ge']:,}" if "ge" in bounds else f"above {bounds['gt']:,}" if "gt" in bounds else ""
    high = f"to {bounds['le']:,}" if "le" in bounds else f"below {bounds['lt']:,}" if "lt" in bounds else ""
    return " ".join(part for part in (words, low, high) if part)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
