"""AWS as the backend of a pool in a user's process: actors are Lambda invocations, and nothing else runs.

The process assumes the pool's role, and reports to the guard through the ledger that it is alive and what it has
reserved. If it ends, goes silent or uses up its budget, the guard takes the deployment down.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Session, assumed_session, clients, open_session
from runtime.aws.guard.stacks import GuardedStack, read_deployment
from runtime.aws.learner.deployment import Deployment, fetch_files
from runtime.aws.learner.heartbeat import Heartbeat, check_guard
from runtime.aws.learner.log import LOG
from runtime.aws.learner.records import LedgerRecords
from runtime.aws.ledger import (
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
    TeardownOrderedError,
)
from runtime.aws.stacks import find_stack, outputs_of
from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import EnvironmentSection, Experiment
from runtime.fleet.aws_lambda import LambdaFleet, available_concurrency, lambda_client
from runtime.fleet.inline import InlineFleet
from runtime.fleet.opening import Opening
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter, steady_clock
from runtime.money.prices import prices_from_json
from runtime.names import (
    FILES_OUTPUT,
    FUNCTION_OUTPUT,
    LEDGER_OUTPUT,
    POOL_ROLE_OUTPUT,
    WARM_OUTPUT,
    experiment_name,
    stack_name,
)
from runtime.records import layout
from runtime.records.run_directory import RunDirectory
from runtime.times import LATE_S
from runtime.training.backends.cache import NO_CACHE
from runtime.training.costs import make_cost_model
from runtime.training.opening import Backend, Resources

_CLOSED = "the pool was closed"
_HOST_CHARACTERS = 60


@dataclass(frozen=True)
class FoundPool:
    """A pool's deployment.

    Attributes:
        deployment: As described to a learner.
        deployed: As the guard sees it.
        session: Session of the pool's role, which renews itself.
    """

    deployment: Deployment
    deployed: GuardedStack
    session: Session


def find_pool(name: str) -> FoundPool:
    """Finds the deployment of an experiment with an external trainer.

    Args:
        name: The stem of the experiment's file.

    Raises:
        ExperimentError: The stem cannot be the name of a deployment.
        AccountError: There is no such deployment, or it has no pool; or AWS does not answer.
    """
    experiment = experiment_name(name)
    stack, session = stack_name(experiment), open_session()
    found = ask(lambda: find_stack(session.client("cloudformation"), stack))
    deployed = read_deployment(found) if found else None
    outputs = outputs_of(found or {})
    if (
        found is None
        or deployed is None
        or POOL_ROLE_OUTPUT not in outputs
        or "DELETE" in deployed.status
    ):
        state = found["StackStatus"] if found else "not there"
        raise AccountError(
            f"fleet.kind = lambda: {stack} in region {session.region_name} has no pool, and is {state}; deploy its "
            "experiment file, with learner.kind = external: make deploy EXPERIMENT=FILE.yaml"
        )
    holder = f"{socket.gethostname()[:_HOST_CHARACTERS]}:{os.getpid()}"
    known = {
        "experiment": experiment,
        "run": deployed.run.partition("/")[2],
        "stack": deployed.stack,
        "actor_function": outputs[FUNCTION_OUTPUT],
        "provisioned": outputs[WARM_OUTPUT],
        "files": outputs[FILES_OUTPUT],
        "ledger_table": outputs[LEDGER_OUTPUT],
        "instance_id": holder,
    }
    return FoundPool(
        Deployment(**{**dict.fromkeys((one.name for one in fields(Deployment)), ""), **known}),
        deployed,
        assumed_session(session, outputs[POOL_ROLE_OUTPUT], f"pool-{os.getpid()}"),
    )


class PoolBackend(Backend):
    """Deployed actors as a place for a pool.

    Attributes:
        prices: The deployment's prices.
    """

    is_billed = True
    is_deployed = True

    def __init__(
        self,
        experiment: ResolvedExperiment,
        found: FoundPool,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Reads the deployment; starts nothing yet.

        Args:
            experiment: Resolved.
            found: The deployment.
            now: Seconds since 1970; None = a clock that ignores changes of the system time.

        Raises:
            AccountError: The role cannot be assumed, or the deployment's files cannot be read.
            ExperimentError: Another experiment was deployed.
        """
        self._found = found
        self._deployment = found.deployment
        self._client = clients(found.session)
        self._now = now or steady_clock()
        with TemporaryDirectory() as folder:
            store = self._client("s3")
            path = ask(lambda: fetch_files(store, self._deployment.files, Path(folder)))
            deployed = load_experiment(path)
            self.prices = prices_from_json(path.with_name(layout.PRICES).read_bytes())
        _check_same(experiment, deployed, found.deployed)
        self._ledger = Ledger(self._client("dynamodb"), self._deployment.ledger_table)
        self._heartbeat = Heartbeat(self._ledger, self._deployment, now=self._now, ended=self._end)
        self._entry: Entry | None = None

    def fetch(self, directory: RunDirectory) -> None:
        """Takes the deployment over from any earlier pool, if the guard is watching.

        Raises:
            GuardError: The guard is silent.
            LedgerError: The deployment is being taken down, or the ledger cannot be written.
        """
        check_guard(self._ledger, self._now())
        self._entry = self._heartbeat.take_over()

    def open(self, opening: Opening) -> Resources:
        """Starts the heartbeat, and determines how many actors may run at once.

        Raises:
            FleetError: The actor function cannot be used.
        """
        if self._entry is None:
            raise RuntimeError("fetch() comes before open()")
        opening.stack.callback(self._heartbeat.close)
        self._heartbeat.start()
        experiment, function = opening.experiment, self._deployment.actor_function
        concurrency = available_concurrency(
            self._client("lambda"), function, experiment.scaler.most_actors
        )
        timeout_s = experiment.actor.timeout_s
        client = lambda_client(
            function, timeout_s=timeout_s, concurrency=concurrency, session=self._found.session
        )
        fleet = LambdaFleet(function, timeout_s=timeout_s, concurrency=concurrency, client=client)
        opening.stack.callback(fleet.close)
        inline = InlineFleet(fleet)
        meter = self._meter(opening, self._entry, concurrency)
        records = PoolRecords(
            self._entry,
            self._heartbeat,
            meter,
            # A trainer may train for any time between two calls; running resources are billed, within a limit.
            due_s=lambda: math.inf,
            budget_usd=experiment.budget.usd,
        )
        return Resources(
            inline,
            inline,
            meter,
            {},
            {
                "server": NO_CACHE,
                "actors": f"{function}, {concurrency} at once",
                "guard": f"takes {self._found.deployed.name} down when the pool is closed, or silent for "
                f"{LATE_S / 60:.0f} minutes",
                "bill": f"what is used, at {self.prices.source} for {self.prices.region}, {self.prices.as_of}",
            },
            records,
        )

    def _meter(self, opening: Opening, entry: Entry, concurrency: int) -> Meter:
        """Bills running resources from the end of the ledger's figures, which include them until then."""
        experiment, here_s = opening.experiment, self._now()
        deployed = self._found.deployed.begun(entry, 0.0)
        since_s = min(here_s, max(deployed.created_at_s, entry.covered_until_s))
        actor = experiment.actor.model_copy(
            update={"provisioned": int(self._deployment.provisioned)}
        )
        model = make_cost_model(
            experiment.model_copy(update={"actor": actor}),
            opening.spaces,
            self.prices,
            concurrency=concurrency,
            is_deployed=True,
        )
        # The pool may not spend the money reserved for the teardown.
        usable_usd = max(0.0, experiment.budget.usd - deployed.tail_usd)
        clock = BillingClock(
            since_s,
            now=self._now,
            provisioned_from_s=min(here_s, entry.provisioned_from_s),
        )
        return Meter(model, Budget(usable_usd), clock=clock)

    def _end(self) -> None:
        """Records that the deployment is being taken down, so the guard need not wait for this pool."""
        self._heartbeat.finishes(self._heartbeat.order_reason)


class PoolRecords(LedgerRecords):
    """Reports a pool's costs and reservations to the guard, before it uses what it reserves."""

    _has_ended = False

    def ledger_changed(self, ledger: bytes) -> None:
        """Writes the ledger if it has new reservations.

        Raises:
            TeardownOrderedError: The deployment is being taken down.
            LostRunError: Another pool was opened on it.
            LedgerError: The ledger cannot be written.
        """
        if self._has_ended:
            return
        super().ledger_changed(ledger)
        if reason := self._heartbeat.order_reason:
            raise TeardownOrderedError(
                f"the deployment is taken down: {reason}. To continue, deploy it again, and open the pool again"
            )

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Tells the guard that nothing is left to do; if that fails, the pool simply goes silent."""
        self._has_ended = True
        if self._heartbeat.order_reason:
            return
        try:
            self._heartbeat.finishes(_CLOSED)
        except LostRunError:
            # Another process must report it.
            return
        except LedgerError as error:
            LOG.warning("the guard was not told that the pool has ended: %s", error)


def _check_same(experiment: ResolvedExperiment, deployed: Experiment, stack: GuardedStack) -> None:
    """Checks that the deployed function plays the pool's experiment, within the budget.

    Args:
        experiment: The pool's.
        deployed: As its file says.
        stack: As the guard sees it.

    Raises:
        ExperimentError: It does not.
    """
    keys = [f"environment.{name}" for name in EnvironmentSection.model_fields]
    keys += ["actor.memory_mib", "actor.timeout_s", "actor.architecture"]
    for key in keys:
        own, other = attrgetter(key)(experiment), attrgetter(key)(deployed)
        if own != other:
            raise ExperimentError(
                f"{key} = {own!r}, but {stack.name} was deployed with {other!r}; allowed: the same, or deploy again"
            )
    if experiment.cache.kind != "none":
        raise ExperimentError(
            f"cache.kind = {experiment.cache.kind!r}, but {stack.name} has no cache; allowed: none"
        )
    if experiment.budget.usd > stack.budget_usd:
        raise ExperimentError(
            f"budget.usd = {experiment.budget.usd:g}, but {stack.name} was deployed with "
            f"{stack.budget_usd:g}; allowed: up to that, or deploy again"
        )
