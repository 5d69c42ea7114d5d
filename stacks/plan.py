"""The plan of a deployment: one experiment, with the checks that only a deployment needs."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws_cdk import FileSystem

from runtime.aws.guard.needs import UNRESERVABLE_CONCURRENCY, Needs
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import has_gpu, is_burstable, processor
from runtime.experiment.loading import self_contained
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.estimate import (
    Ending,
    Estimate,
    Start,
    estimate,
    start,
    start_of_legs,
    start_of_pool,
)
from runtime.money.meter import BETWEEN_ROUNDS_S
from runtime.money.prices import (
    PRICES,
    PriceTable,
    elsewhere,
    prices_from_json,
    prices_to_json,
)
from runtime.names import ACTOR_SUFFIX, CACHE_PREFIX, experiment_name, run_key, run_name, stack_name
from runtime.records.trust import load_trusted_experiment
from runtime.times import (
    CACHE_DELETION_S,
    INTERVAL_S,
    LEG_BEGINNING_S,
    LEG_ENDING_S,
    LEG_S,
    STOP_GRACE_S,
    TERMINATION_S,
)
from stacks.constructs.staging import LEFT_OUT

GUARD_EXECUTIONS = 2
"""Executions that the guard reserves where the account allows it: two ticks may overlap."""
REGION_VARIABLES = ("CDK_DEFAULT_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
"""The CDK's command line sets the first to the region that it deploys to. Without it, the others say what is meant."""
RUN_CHARACTERS = 8
ENDING = Ending(learner_s=3 * INTERVAL_S + STOP_GRACE_S + TERMINATION_S, cache_s=CACHE_DELETION_S)
"""Time for the guard to look (one tick may be lost), the learner to save its results, its instance to end (another tick
may be lost), and the cache to be deleted."""
POOL_ENDING = Ending(learner_s=3 * INTERVAL_S + STOP_GRACE_S, cache_s=0.0)
"""For a deployment with an external trainer: only warm actors cost money."""
LEG_ENDING = Ending(learner_s=3 * INTERVAL_S + STOP_GRACE_S + LEG_S, cache_s=0.0)
"""For a deployment without an instance: a leg that hangs ends at Lambda's limit, and nothing else costs money."""
ROUND_S_MAX = LEG_S - LEG_BEGINNING_S - BETWEEN_ROUNDS_S - LEG_ENDING_S
"""Longest possible round with a coordinator: each leg has room for one."""
LAUNCHES_MAX = 3
"""Most instances that a deployment launches; without an instance, tries of each leg of the coordinator."""
_ELASTICACHE_NAME_CHARACTERS = 40
_ENVIRONMENT_ID = re.compile(r"[\w./:-]{1,200}")
_FUNCTION_HOURS_MAX = 96
"""Longest lifetime with a coordinator: 30 legs an hour, of seven events each, make 20,160 events. The rest of Step
Functions' 25,000 are left for legs that fail."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One deployment: an experiment, a run, its place and its prices.

    Attributes:
        experiment: Resolved, as a deployed learner resolves it.
        name: The experiment's name.
        run: The run's name.
        file: The experiment file, byte for byte. If it extends others, all their settings in one.
        package: ``environment.package``; a folder's path is relative to the experiment file's folder.
        actor_concurrency: Concurrent executions that the account has left for the guard and for functions without a
            reservation. If it is unknown (None), nothing is reserved, and the guard's check refuses what does not fit.
        prices: The prices that count.
    """

    experiment: ResolvedExperiment
    name: str
    run: str
    file: bytes
    package: str | None = None
    actor_concurrency: int | None = None
    prices: PriceTable = PRICES

    @classmethod
    def from_context(cls, context: Callable[[str], Any]) -> Plan:
        """Returns the plan that the CDK context describes.

        Args:
            context: Returns the value of a key; None if it is not set.

        Raises:
            ExperimentError: A key is missing or wrong, or the experiment cannot be deployed.
        """
        path = context("experiment")
        if not path:
            raise ExperimentError("which experiment? Name its file: -c experiment=FILE.yaml")
        path = Path(path)
        experiment = load_trusted_experiment(path).resolved(is_deployed=True)
        prices = read_prices(context("prices"))
        _check(experiment)
        tail_usd = expected_cost(experiment, prices).tail_usd
        if experiment.budget.usd <= tail_usd:
            raise ExperimentError(
                f"budget.usd = {experiment.budget.usd:g} does not even hold what taking the deployment "
                f"down can cost; allowed: budget.usd above {math.ceil(tail_usd * 100) / 100:.2f}"
            )
        package = experiment.environment.package
        if package and (path.parent / package).is_dir():
            package = str(path.parent / package)
        run = context("run")
        if run is None:
            run = _identity(experiment, package)[:RUN_CHARACTERS]
        return cls(
            experiment=experiment,
            name=experiment_name(path.stem),
            run=run_name(str(run)),
            file=self_contained(path),
            package=package,
            actor_concurrency=_whole_number("actor_concurrency", context("actor_concurrency")),
            prices=prices,
        )

    @property
    def estimate(self) -> Estimate:
        """The deployment's possible cost."""
        return expected_cost(self.experiment, self.prices)

    @property
    def lifetime_hours(self) -> float:
        """Hours until its instances end themselves, or Step Functions ends its rounds, if the guard does not.

        This is ``budget.lifetime_hours``, or the time in which the running resources cost ``budget.usd``, if that is
        shorter: the guard never lets it live longer.
        """
        budget = self.experiment.budget
        return min(budget.lifetime_hours, budget.usd / self.estimate.floor_usd_per_hour)

    @property
    def has_function(self) -> bool:
        """Whether actors are a function, not processes of the learner."""
        return not self.experiment.is_on_learner

    @property
    def has_instance(self) -> bool:
        """Whether the learner is an instance."""
        return self.experiment.learner.has_instance

    @property
    def is_external(self) -> bool:
        """Whether the trainer is the user's own process: then only actors are deployed."""
        return self.experiment.learner.is_external

    @property
    def has_coordinator(self) -> bool:
        """Whether a function runs the rounds."""
        return not self.has_instance and not self.is_external

    @property
    def has_gpu(self) -> bool:
        """Whether the learner has a GPU."""
        return self.has_instance and has_gpu(self.experiment.learner.instance_types[0])

    @property
    def is_burstable(self) -> bool:
        """Whether the learner earns CPU credits. It may not buy more, because their cost would not be counted."""
        return self.has_instance and is_burstable(self.experiment.learner.instance_types[0])

    @property
    def processor(self) -> str:
        """The learner's processor."""
        experiment = self.experiment
        return (
            processor(experiment.learner.instance_types[0])
            if self.has_instance
            else experiment.actor.architecture
        )

    @property
    def concurrency(self) -> int | None:
        """How many actors may run at once; None means all of a round."""
        if not self.has_function:
            return self.experiment.fleet.processes
        if self.actor_concurrency is None:
            return None
        unreserved = self.actor_concurrency - (self.reserved_for_guard or 0)
        if self.has_coordinator and not self._is_reserved:
            return max(0, unreserved - self._others)
        return unreserved

    @property
    def _others(self) -> int:
        """Functions that run beside the actors, as `AwsBackend` counts them: the guard, and those of the learner."""
        return 1 + (1 + self.experiment.learner.functions_at_once if self.has_coordinator else 0)

    @property
    def waves(self) -> int:
        """How many deadlines a round may take because not all its actors run at once."""
        return self.experiment.scaler.waves(self.concurrency)

    @property
    def start(self) -> Start:
        """The phases of the start, until training begins."""
        if self.is_external:
            return start_of_pool(self.estimate, is_warm=self.provisioned_actors > 0)
        if self.has_coordinator:
            return start_of_legs(self.estimate)
        return start(
            self.estimate,
            has_cache=self.experiment.has_elasticache,
            is_warm=self.provisioned_actors > 0,
            has_gpu=self.has_gpu,
            has_function=self.has_function,
        )

    @property
    def stack_name(self) -> str:
        return stack_name(self.name)

    @property
    def function_name(self) -> str:
        """Name of the actor function."""
        return self.stack_name + ACTOR_SUFFIX

    @property
    def key(self) -> str:
        """Key of the run's entry in the ledger."""
        return run_key(self.name, self.run)

    @property
    def prefix(self) -> str:
        """The prefix of the run's keys in the results bucket."""
        return f"{self.key}/"

    @property
    def cache_name(self) -> str:
        """Name of the cache, the learner's user and the user group.

        ElastiCache allows 40 characters. Longer names are cut and get a digest.
        """
        name = CACHE_PREFIX + self.name
        return name if len(name) <= _ELASTICACHE_NAME_CHARACTERS else _with_digest(name, name)

    @property
    def actor_user(self) -> str:
        """Name of the cache's other user, as which actors log in."""
        name = CACHE_PREFIX + self.name
        return _with_digest(name, f"actors of {name}")

    @property
    def reserved_for_guard(self) -> int | None:
        """The guard's reserved concurrency; None if the account is unknown, or too small to reserve it."""
        is_large = (self.actor_concurrency or 0) >= UNRESERVABLE_CONCURRENCY + GUARD_EXECUTIONS
        return GUARD_EXECUTIONS if is_large else None

    @property
    def reserved_actors(self) -> int | None:
        """The function's reserved concurrency, which caps its fan-out for every caller.

        None if the account is unknown, or too small to reserve it: then the account's limit is the cap.
        """
        return self.experiment.scaler.most_actors if self._is_reserved else None

    @property
    def reserved_learners(self) -> int | None:
        """The learner function's reserved concurrency; None as for actors."""
        return self.experiment.learner.functions_at_once if self._is_reserved else None

    @property
    def _is_reserved(self) -> bool:
        """Whether the account is known to have room to reserve the concurrency of all functions that fan out."""
        if self.actor_concurrency is None:
            return False
        wanted = self.experiment.scaler.most_actors + self.experiment.learner.functions_at_once
        return wanted <= self._reservable(wanted)

    @property
    def provisioned_actors(self) -> int:
        """The experiment's warm actors, limited to what the account can provide."""
        return self._reservable(self.experiment.actor.provisioned)

    def _reservable(self, wanted: int) -> int:
        if self.actor_concurrency is None:
            return wanted
        unreserved = self.actor_concurrency - (self.reserved_for_guard or 0)
        return min(wanted, max(0, unreserved - UNRESERVABLE_CONCURRENCY))

    @property
    def needs(self) -> Needs:
        """What the guard checks before anything is made."""
        experiment = self.experiment
        reserved = (self.reserved_actors or 0) + (self.reserved_learners or 0)
        settings = self.run.encode() + self.file + prices_to_json(self.prices)
        return Needs(
            region=self.prices.region,
            actors_min=str(self._actors_at_once_min if self.has_function else 0),
            others=str(self._others),
            held=str(max(reserved, self.provisioned_actors) if self.has_function else 0),
            instance_types=",".join(experiment.learner.instance_types) if self.has_instance else "",
            market=experiment.learner.market,
            settings=hashlib.sha256(settings).hexdigest()[:16],
        )

    @property
    def _actors_at_once_min(self) -> int:
        """The fewest actors at once with which the longest round fits into a leg; without legs, one is enough."""
        experiment = self.experiment
        if not self.has_coordinator:
            return 1
        waves = (
            ROUND_S_MAX - experiment.learner.update_timeout_s
        ) // experiment.fleet.round_deadline_s
        return math.ceil(experiment.scaler.most_actors / waves)


def _with_digest(name: str, what: str) -> str:
    digest = hashlib.sha256(what.encode()).hexdigest()[:8]
    return f"{name[: _ELASTICACHE_NAME_CHARACTERS - 9].rstrip('-')}-{digest}"


def _identity(experiment: ResolvedExperiment, package: str | None) -> str:
    """Returns everything that decides the run's rounds: the experiment, and the code of an environment in a folder."""
    if package is None or not Path(package).is_dir():
        return experiment.identity
    code = FileSystem.fingerprint(package, exclude=list(LEFT_OUT))
    return hashlib.sha256(f"{experiment.identity} {code}".encode()).hexdigest()


def read_prices(path: str | None) -> PriceTable:
    """Reads the prices of a file, or returns the dated table for the region that the CDK gives the app.

    Raises:
        ExperimentError: It is not a file of prices.
    """
    if path is None:
        named = [os.environ[name] for name in REGION_VARIABLES if os.environ.get(name)]
        return elsewhere(PRICES, [*named, PRICES.region][0])
    try:
        return prices_from_json(Path(path).read_bytes())
    except OSError as error:
        raise ExperimentError(
            f"prices = {path!r} cannot be read: {error.strerror or error}"
        ) from None


def _whole_number(name: str, value: Any) -> int | None:
    """Returns ``value`` of the context key ``name`` as a number. The command line passes text.

    Raises:
        ExperimentError: It is not a whole number from 0.
    """
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,9}", str(value), re.ASCII):
        raise ExperimentError(f"{name} = {value!r} is not allowed; allowed: a whole number from 0")
    return int(value)


def _check(experiment: ResolvedExperiment) -> None:
    """Checks that the experiment can run in AWS.

    Raises:
        ExperimentError: It only runs on one machine.
    """
    if experiment.fleet.kind not in ("lambda", "local"):
        raise ExperimentError(
            f"fleet.kind = {experiment.fleet.kind} is for runs on one machine; allowed in a "
            "deployment: auto | lambda | local"
        )
    if key := experiment.scaler.file_read:
        raise ExperimentError(
            f"scaler.{key} = {getattr(experiment.scaler, key)!r} is a file of this machine, which a "
            "deployed learner does not have; allowed in a deployment: a scheduler by name, whose "
            "file is in runtime/scaler/schedulers/, or another scaler, such as scaler.kind = "
            "schedule with the same counts"
        )
    # A named scheduler must exist before anything is deployed.
    experiment.scaler.make()
    if experiment.cache.url:
        raise ExperimentError(
            "cache.url is for runs on one machine: a deployment brings its own cache (cache.kind), "
            "and would upload a password that the URL holds; allowed: null"
        )
    if not _ENVIRONMENT_ID.fullmatch(experiment.environment.id):
        raise ExperimentError(
            f"environment.id = {experiment.environment.id!r} cannot be deployed; allowed: letters, "
            "digits and . _ / : -"
        )
    if experiment.learner.has_instance:
        _check_processors(experiment)
    else:
        _check_without_instance(experiment)


def expected_cost(experiment: ResolvedExperiment, prices: PriceTable = PRICES) -> Estimate:
    """Returns the possible cost of deploying this resolved experiment.

    Raises:
        ExperimentError: An instance type has no price.
    """
    learner = experiment.learner
    ending = ENDING if learner.has_instance else POOL_ENDING if learner.is_external else LEG_ENDING
    return estimate(experiment, prices, ending)


def _check_without_instance(experiment: ResolvedExperiment) -> None:
    """Checks the extra rules of a learner without an instance.

    Raises:
        ExperimentError: It would have to be in the deployment's network, or have processes; or something would cost
            money between a coordinator's rounds, or one of them could take longer than a leg.
    """
    kind = experiment.learner.kind
    if experiment.cache.kind != "none":
        raise ExperimentError(
            f"cache.kind = {experiment.cache.kind} with learner.kind = {kind}: a cache lies in the deployment's "
            "network, which your process does not reach, and a coordinator only with endpoints that are paid for by "
            "the hour; allowed: none, which returns trajectories of up to 6 MiB in Lambda's responses"
        )
    if experiment.fleet.kind != "lambda":
        raise ExperimentError(
            f"fleet.kind = {experiment.fleet.kind} with learner.kind = {kind}: "
            "there is no instance whose processes actors could be; allowed: auto | lambda"
        )
    if experiment.learner.is_external:
        return
    if experiment.actor.provisioned:
        raise ExperimentError(
            f"actor.provisioned = {experiment.actor.provisioned} with learner.kind = {kind}: "
            "nothing may cost money between rounds, not even warm actors; allowed: 0"
        )
    if experiment.budget.lifetime_hours > _FUNCTION_HOURS_MAX:
        raise ExperimentError(
            f"budget.lifetime_hours = {experiment.budget.lifetime_hours:g} with learner.kind = "
            f"{kind}: Step Functions ends an execution after 25,000 events; allowed: up to "
            f"{_FUNCTION_HOURS_MAX}"
        )
    check_round(experiment, waves=1)


def check_round(experiment: ResolvedExperiment, *, waves: int) -> None:
    """Checks that each leg of a coordinator has room for the longest possible round.

    Args:
        waves: How many deadlines a round may take.

    Raises:
        ExperimentError: It does not.
    """
    fleet, learner = experiment.fleet, experiment.learner
    round_s = waves * fleet.round_deadline_s + learner.update_timeout_s
    if not learner.has_instance and not learner.is_external and round_s > ROUND_S_MAX:
        raise ExperimentError(
            f"a round may take {round_s} s ({waves} x fleet.round_deadline_s = {fleet.round_deadline_s}, "
            f"learner.update_timeout_s = {learner.update_timeout_s}); with learner.kind = {learner.kind} it must end "
            f"within one invocation of the coordinator; allowed: {ROUND_S_MAX:.0f} s together"
        )


def _check_processors(experiment: ResolvedExperiment) -> None:
    """Checks that one machine image, one container image and one launch template start all instance types.

    Raises:
        ExperimentError: They do not, or no machine image exists.
    """
    names = experiment.learner.instance_types
    kinds = {(processor(name), has_gpu(name), is_burstable(name)) for name in names}
    if len(kinds) > 1:
        raise ExperimentError(
            f"learner.instance_types = {', '.join(names)} mixes x86_64 and arm64, types with a GPU and without, or "
            "types that earn CPU credits (t3, t4g) and others; allowed: types of one kind, since one image and one "
            "launch template start them all"
        )
    if processor(names[0]) == "arm64" and has_gpu(names[0]):
        raise ExperimentError(
            f"learner.instance_types = {', '.join(names)}: there is no machine image for GPUs of arm64; "
            "allowed: g4dn.xlarge, g5.xlarge, g6.xlarge and others of x86_64"
        )
