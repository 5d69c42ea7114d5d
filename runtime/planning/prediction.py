"""Predicts time and dollars of every sensible way to run an experiment, from its sampled work.

Every way keeps the batch of a round in the experiment file. Ways differ in the number of actors that share it, and
therefore in the length of their fragments (Nitro §7, function profiling). The start is from `runtime.cost.start`,
and a vCPU counts as a core of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lambda_actor.trial import TriedEnvironment
from runtime.config.loading import experiment_from_tree
from runtime.config.resolved import FittedExperiment, ResolvedExperiment
from runtime.config.schema import Experiment
from runtime.cost.estimate import Ending, estimate
from runtime.cost.model import INIT_SECONDS_MAX, PROVISIONED_BLOCK_S, vcpu_share
from runtime.cost.sizes import weights_bytes
from runtime.cost.start import FIRST_LEG_S, start, start_of_legs
from runtime.errors import ExperimentError
from runtime.guard.times import LEG_ENDING_S, LEG_S
from runtime.planning.workload import WAIT
from runtime.ports.money import ACTOR, LEARNER, PriceTable
from runtime.settings.instances import has_gpu, shares_cores, vcpus
from runtime.settings.updater import COORDINATOR_MEMORY_MIB, functions_of
from runtime.training.costs import make_cost_model
from runtime.training.preflight import fit

INVOKE_S = 0.02
"""From the learner's request to a warm function's first line, and back. **Modelled.**"""
FAN_OUT_S = 0.0015
"""CPU seconds that fleet and cache use for each actor, in addition to the sampled work; from benchmarks/plan_check.py.
"""
HYPERTHREAD_SPEED = 0.62
"""Speed of a vCPU that shares its core with a busy one (`shares_cores`). **Modelled.**"""
REDUCE_MEMBER_S, REDUCE_BYTE_S = 3e-5, 3.3e-10
"""Seconds of one sum of gradients by instances: for each instance, and for each byte of a gradient; with ``mpr``, CPU
seconds of a member, from benchmarks/gmi_reduction.py. **Modelled** for more than eight instances."""
BUCKET_REQUEST_S = 0.1
"""Reading or writing a small object: S3's performance guide says 100 to 200 ms to the first byte. **Modelled.**"""
LEARNER_INIT_S = 1.9
"""CPU seconds of a learner function's start-up: importing torch and the learner. Measured 2026-11-23."""
LAMBDA_LEARNERS = ("c7i.large", "c7g.large", "c8g.large")
LOCAL_LEARNERS = (
    "c7g.large",
    "c7g.xlarge",
    *(
        f"{family}.{size}"
        for family in ("c7i", "c8g")
        for size in ("large", "xlarge", *(f"{times}xlarge" for times in (2, 4, 8, 12, 16, 24, 48)))
    ),
)
MEMORIES_MIB = (512, 884, 1769)
"""Memory of a function: slightly more than a quarter of a vCPU, a half, and one."""
ACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FRAGMENT_STEPS_MIN = 32
_CACHES = {
    "none": "no cache",
    "redis": "cache",
}
NO_CACHE = {"cache.kind": "none"}
"""Changes for a first deployment if its messages are small enough: no cache means a faster start and teardown."""
KINDS = (
    "all on one instance",
    "actors on Lambda",
    "actors on Lambda, learner with a GPU",
    "functions alone",
)


@dataclass(frozen=True)
class Way:
    """One way to run an experiment.

    Attributes:
        name: For people.
        kind: Location of its actors and its learner; one of `KINDS`.
        changes: Keys of the experiment file that select this way, with their values.
    """

    name: str
    kind: str
    changes: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """The changes as texts for ``--set``."""
        return [f"{key}={_text(value)}" for key, value in self.changes.items()]


@dataclass(frozen=True)
class Prediction:
    """A way's predicted time and cost until it has made its steps.

    Attributes:
        seconds: From ``make deploy``'s first billed second to the end.
        usd: Total cost, including the start.
        start_s, actors_s, learner_s: Parts of the seconds: the start, waiting for actors, and the learner's own work.
    """

    way: Way
    seconds: float
    usd: float
    start_s: float
    actors_s: float
    learner_s: float

    @property
    def bound(self) -> str:
        """The part that takes the most time."""
        parts = {"start": self.start_s, "actors": self.actors_s, "learner": self.learner_s}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Sample:
    """Measurements of an experiment's work on this machine.

    Attributes:
        units: CPU seconds of each unit; see `runtime.planning.workload.Workload.units`.
        message_bytes: Size of the weights and a trajectory.
        fragment_steps: Steps of that trajectory.
        has_unknown_waits: Whether the environment may have waited, for an unknown time.
    """

    units: Mapping[str, float]
    message_bytes: int
    fragment_steps: int
    has_unknown_waits: bool = False


def ways(experiment: ResolvedExperiment, prices: PriceTable) -> Iterator[Way]:
    """Yields all sensible ways, the file's own first; functions alone only if the file uses them."""
    is_on_learner, first = experiment.is_on_learner, experiment.learner.instance_types[0]
    has_instance = experiment.learner.has_instance
    yield Way(
        "the file as it is",
        KINDS[3] if not has_instance else KINDS[0] if is_on_learner else KINDS[1 + has_gpu(first)],
        {},
    )
    if has_instance and not is_on_learner and experiment.cache.kind != "none":
        yield Way("the file without a cache", KINDS[1 + has_gpu(first)], NO_CACHE)
    scaler = experiment.scaler
    fewest = (
        int(scaler.mean_actors)
        if scaler.kind in ("fixed", "max")
        else max(1, scaler.smallest_round)
    )
    batch = fewest * experiment.actor.fragment_steps
    splits = [
        (count, batch // count)
        for count in ACTORS
        if batch % count == 0 and (batch // count >= FRAGMENT_STEPS_MIN or count == 1)
    ]
    for count, steps in splits if not has_instance else ():
        for memory_mib in MEMORIES_MIB:
            for architecture in prices.functions:
                yield Way(
                    f"functions alone, {count} x {steps}, {architecture} {memory_mib} MiB",
                    KINDS[3],
                    {
                        **_actors(count, steps),
                        "actor.memory_mib": memory_mib,
                        "actor.architecture": architecture,
                        "actor.provisioned": 0,
                    },
                )
    caches = dict.fromkeys(("none", experiment.cache.kind))
    for instance_type in (name for name in LAMBDA_LEARNERS if name in prices.instance_hour_usd):
        for count, steps in splits:
            for memory_mib in MEMORIES_MIB:
                for architecture in prices.functions:
                    for provisioned in (0, count):
                        for cache_kind in caches:
                            yield Way(
                                f"{instance_type}, {count} x {steps}, {architecture} {memory_mib} MiB"
                                f"{' warm' * bool(provisioned)}, {_CACHES[cache_kind]}",
                                KINDS[1 + has_gpu(instance_type)],
                                {
                                    **_learner(instance_type),
                                    "fleet.kind": "auto",
                                    **_actors(count, steps),
                                    "actor.memory_mib": memory_mib,
                                    "actor.architecture": architecture,
                                    "actor.provisioned": provisioned,
                                    "cache.kind": cache_kind,
                                },
                            )
    for instance_type in (name for name in LOCAL_LEARNERS if name in prices.instance_hour_usd):
        processes = vcpus(instance_type)
        steps = math.ceil(batch / processes)
        count, steps = (processes, steps) if steps >= FRAGMENT_STEPS_MIN else splits[-1]
        for cache_kind in (
            "none",
            "redis",
        ):  # redis: for messages that are too long without a cache
            yield Way(
                f"all on one {instance_type}, {count} x {steps}{', cache beside it' * (cache_kind != 'none')}",
                KINDS[0],
                {
                    **_learner(instance_type),
                    "fleet.kind": "local",
                    "fleet.processes": processes,
                    **_actors(count, steps),
                    "actor.provisioned": 0,
                    "cache.kind": cache_kind,
                },
            )
        if not has_gpu(instance_type):
            yield Way(
                f"{count} instances on one {instance_type}, {count} x {steps}",
                KINDS[0],
                {
                    **_learner(instance_type),
                    "learner.kind": "gmi",
                    "fleet.kind": "local",
                    "learner.instances": count,
                    "learner.reduction": "mpr",
                    **_actors(count, steps),
                },
            )


def _learner(instance_type: str) -> dict[str, Any]:
    return {
        "learner.kind": "instance",
        "learner.instance_types": [instance_type],
    }


def _actors(count: int, steps: int) -> dict[str, Any]:
    return {"scaler.kind": "fixed", "scaler.actors_fixed": count, "actor.fragment_steps": steps}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(value)


def _tree(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes as a tree of sections."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def predict_all(
    base: Experiment,
    sample: Sample,
    environment: TriedEnvironment,
    prices: PriceTable,
    *,
    steps: int,
    seeds: int = 1,
) -> list[Prediction]:
    """Predicts all ways that may be deployed; the first is the file's own.

    Args:
        base: The experiment in its file.
        sample: Measurements of its work.
        environment: Its environment.
        prices: Prices for all parts.
        steps: Environment steps of each seed.
        seeds: Number of consecutive runs on one deployment.
    """
    found, tree = [], base.without_unused().model_dump(mode="json", exclude_unset=True)
    for way in ways(base.resolved(is_deployed=True), prices):
        try:
            experiment = experiment_from_tree(
                _tree(way.changes), base=tree, source=way.name
            ).resolved(is_deployed=True)
            fitted = fit(experiment, environment)
        except ExperimentError:
            if not way.changes:
                raise
            continue
        found.append(predict(way, fitted, sample, environment, prices, steps=steps, seeds=seeds))
    return found


@dataclass(frozen=True)
class Rounds:
    """Predicted durations of a run's rounds.

    Attributes:
        count: Number of rounds.
        actors: Mean number of actors in a round; boosted rounds have more, others and the last one fewer.
        actor_s: Seconds of one actor.
        collect_s: Seconds of each round until its actors are back, with the detector in parallel.
        learner_s: Seconds of each round in which the learner works and actors wait.
        functions: Invocations of the learner function in each round.
        function_s: Billed seconds of each of these.
        function_init_s: Seconds of a cold start.
    """

    count: int
    actors: float
    actor_s: float
    collect_s: float
    learner_s: float
    functions: int = 0
    function_s: float = 0.0
    function_init_s: float = 0.0


def rounds_of(
    experiment: FittedExperiment,
    sample: Sample,
    environment: TriedEnvironment,
    *,
    steps: int,
    parallel_speed: float | None,
) -> Rounds:
    """Predicts the rounds.

    Args:
        parallel_speed: Speed of each actor process; None if actors are on Lambda.
    """
    units, learner = sample.units, experiment.learner
    speed = 1.0 if learner.has_instance else vcpu_share(COORDINATOR_MEMORY_MIB)
    scaler, steps_each = experiment.scaler, experiment.actor.fragment_steps
    # The number of whole fragments is the same as with stop.max_steps; the last round may have fewer actors.
    fragments = max(1, steps // steps_each)
    count = math.ceil(fragments / scaler.mean_actors)
    actors = fragments / count
    batch = round(actors * steps_each)
    longest = min(environment.episode_steps_max or 1000, 1000)
    # On average, a replayed episode is half over, and half the maximum length.
    replayed = longest / 4 if experiment.environment.replay else 0.0
    fragment_s = units["invocation_s"] + (steps_each + replayed) * units["step_s"]
    waited_s = (steps_each + replayed) * units.get(WAIT, 0.0)
    if parallel_speed is None:
        actor_s = fragment_s / vcpu_share(experiment.actor.memory_mib) + waited_s
        collect_s = INVOKE_S + actor_s
    else:
        # Processes wait at the same time, and a process for one environment after the other.
        actor_s = fragment_s / (speed * parallel_speed) + waited_s
        lanes = learner.instances_at_once or experiment.fleet.processes
        collect_s = math.ceil(actors / lanes) * actor_s
    products = experiment.detector.lanczos_steps * bool(scaler.signals)
    detector_samples = products * min(experiment.detector.subset_size, batch)
    detect_s = detector_samples * units["product_sample_s"] / speed
    every, episodes = experiment.evaluation.every_rounds, experiment.evaluation.episodes
    evaluated_step_s = units["evaluated_step_s"] / speed + units.get(WAIT, 0.0)
    evaluate_s = round(episodes * longest / 2) * evaluated_step_s / every if every else 0.0
    between_s = (units["round_s"] + actors * (units["trajectory_s"] + FAN_OUT_S)) / speed
    settings = experiment.algorithm
    gradient_steps = settings.passes * math.ceil(batch / settings.minibatch_steps)
    fixed_s = gradient_steps * units["gradient_step_s"]
    update_s = fixed_s + settings.passes * batch * units["sample_s"]
    if instances := learner.instances_at_once:
        gradient_bytes = 2 * weights_bytes(environment.spaces, experiment.network.architecture)
        update_s = (fixed_s + (update_s - fixed_s) / instances) / (
            parallel_speed or 1.0
        ) + gradient_steps * (instances * REDUCE_MEMBER_S + gradient_bytes * REDUCE_BYTE_S)
    functions, function_s, function_init_s = 0, 0.0, 0.0
    if not learner.has_instance:
        # The function reads the batch and writes the result; the loop does the opposite.
        share, functions = vcpu_share(functions_of(learner).function_memory_mib), 1
        function_s = update_s / share + 2 * BUCKET_REQUEST_S
        function_init_s = min(INIT_SECONDS_MAX, LEARNER_INIT_S / share)
        update_s = function_s + 2 * BUCKET_REQUEST_S
    return Rounds(
        count,
        actors,
        actor_s,
        max(collect_s, detect_s),
        update_s + evaluate_s + between_s,
        functions,
        function_s,
        function_init_s,
    )


def predict(
    way: Way,
    experiment: FittedExperiment,
    sample: Sample,
    environment: TriedEnvironment,
    prices: PriceTable,
    *,
    steps: int,
    seeds: int = 1,
) -> Prediction:
    """Predicts one way, deployed; see `predict_all` for other arguments.

    Args:
        experiment: With the way's changes.
    """
    instance_type, has_cache = experiment.learner.instance_types[0], experiment.has_elasticache
    is_local, provisioned = experiment.is_on_learner, experiment.actor.provisioned
    model = make_cost_model(experiment, environment.spaces, prices, instance_type=instance_type)
    hourly = estimate(
        experiment.actor, experiment.learner, prices, has_cache=has_cache, ending=Ending(0.0, 0.0)
    )
    has_instance = experiment.learner.has_instance
    begins = (
        start(
            hourly,
            has_cache=has_cache,
            is_warm=provisioned > 0,
            has_gpu=has_gpu(instance_type),
            has_function=not is_local,
        )
        if has_instance
        else start_of_legs(hourly)
    )
    is_shared = shares_cores(instance_type) and vcpus(instance_type) > 1
    rounds = rounds_of(
        experiment,
        sample,
        environment,
        steps=steps,
        parallel_speed=(HYPERTHREAD_SPEED if is_shared else 1.0) if is_local else None,
    )
    cold_s = 0.0
    if not is_local and not provisioned:
        cold_s = sample.units["init_s"] / vcpu_share(experiment.actor.memory_mib)
    actors_s = seeds * rounds.count * rounds.collect_s + cold_s
    learner_s = seeds * (rounds.count * rounds.learner_s + rounds.function_init_s)
    if not has_instance:
        # Each later leg of the coordinator starts like the first one.
        learner_s += (actors_s + learner_s) // (LEG_S - LEG_ENDING_S - FIRST_LEG_S) * FIRST_LEG_S
    trained_s = actors_s + learner_s
    usd = (
        begins.usd
        + model.learner_usd(trained_s)
        + model.infrastructure_usd(trained_s)
        + model.kept_usd(trained_s)
    )
    usd += seeds * rounds.count * model.ledger_usd
    if not is_local:
        function = model.roles[ACTOR]
        bytes_each = round(
            sample.message_bytes * max(0.1, experiment.actor.fragment_steps / sample.fragment_steps)
        )
        usd += (
            seeds
            * rounds.count
            * rounds.actors
            * function.usd(
                is_provisioned=provisioned > 0, billed_s=rounds.actor_s, traffic_bytes=bytes_each
            )
        )
        usd += rounds.actors * (
            function.usd(is_provisioned=False, billed_s=cold_s, traffic_bytes=0) if cold_s else 0.0
        )
        usd += model.provisioned_usd(
            math.ceil(trained_s / PROVISIONED_BLOCK_S) if provisioned else 0
        )
    if not has_instance:
        learner, count = model.roles[LEARNER], rounds.count * rounds.functions
        cold = min(count, experiment.learner.functions_at_once)
        usd += seeds * sum(
            count * learner.usd(is_provisioned=False, billed_s=billed_s, traffic_bytes=0)
            for count, billed_s in (
                (count - cold, rounds.function_s),
                (cold, rounds.function_s + rounds.function_init_s),
            )
        )
    return Prediction(
        way, begins.expected_s + trained_s, usd, begins.expected_s, actors_s, learner_s
    )


def front(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Returns the predictions that no other beats in both time and dollars, the fastest first."""
    found: list[Prediction] = []
    for one in sorted(predictions, key=lambda one: (one.seconds, one.usd)):
        if not found or one.usd < found[-1].usd:
            found.append(one)
    return found


def picks(predictions: Sequence[Prediction]) -> dict[str, Prediction]:
    """Returns the cheapest, the fastest, and the knee, which is nearest to both.

    Distance is measured by factors: its seconds over the fastest's, and its dollars over the cheapest's.
    """
    best = front(predictions)
    fastest, cheapest = best[0], best[-1]
    knee = min(
        best,
        key=lambda one: math.hypot(
            math.log(one.seconds / fastest.seconds), math.log(one.usd / cheapest.usd)
        ),
    )
    return {"cheapest": cheapest, "fastest": fastest, "knee": knee}
