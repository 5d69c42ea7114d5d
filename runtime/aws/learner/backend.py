"""AWS as a backend: actors are Lambda invocations or processes of the learner; other resources cost by the clock."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.aws.clients import clients, environment_session
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.heartbeat import Heartbeat, check_guard
from runtime.aws.learner.metrics import Metrics
from runtime.aws.learner.records import AwsRecords
from runtime.aws.learner.results_bucket import ResultsBucket
from runtime.aws.ledger import Entry, Ledger
from runtime.aws.run_files import RunFiles
from runtime.errors import ExperimentError
from runtime.experiment.learner import as_learner_functions
from runtime.fleet.aws_lambda import available_concurrency
from runtime.fleet.inline import InlineFleet
from runtime.fleet.interfaces import Cache
from runtime.fleet.opening import Opening, open_fleet
from runtime.fleet.settings import LambdaSettings
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter, steady_clock
from runtime.money.prices import PriceTable
from runtime.records import layout
from runtime.records.run_directory import RunDirectory
from runtime.training.backends.cache import (
    NO_CACHE,
    actor_event,
    open_cache,
)
from runtime.training.backends.this_machine import MakeMeter, open_here
from runtime.training.costs import make_cost_model
from runtime.training.opening import Backend, LearnerFunctions, Resources


class AwsBackend(Backend):
    """A deployment as a place for its learner's run.

    Attributes:
        prices: The deployment's prices.
        heartbeat: Reports the learner to the guard.
        rounds_begun: Attempts at rounds for which there was time.
    """

    is_billed = True
    is_deployed = True

    def __init__(
        self,
        *,
        deployment: Deployment,
        prices: PriceTable,
        now: Callable[[], float] | None = None,
        announce: Callable[[], bool] = lambda: True,
        ends_by_s: float = math.inf,
    ) -> None:
        """Starts nothing yet; the deployment has already checked the experiment.

        Args:
            deployment: The deployment.
            prices: Prices of its region.
            now: Seconds since 1970; None = a clock that ignores changes of the system time.
            announce: Reports that training has begun; False if that failed.
            ends_by_s: The run is interrupted before a round that could last longer; seconds since 1970.

        Raises:
            ExperimentError: The region's prices are unknown.
        """
        session = environment_session()
        if session.region_name != prices.region:
            raise ExperimentError(
                f"region {session.region_name!r}: its prices are not known; allowed: "
                f"{prices.region}"
            )
        self._client = clients(session)
        self.prices = prices
        self._deployment = deployment
        self._now = now or steady_clock()
        self._announce = announce
        self._ends_by_s = ends_by_s
        self.rounds_begun = 0
        self._ledger = Ledger(self._client("dynamodb"), deployment.ledger_table)
        self.heartbeat = Heartbeat(self._ledger, deployment, now=self._now, ended=_end_this_process)
        self._entry: Entry | None = None
        self._results: ResultsBucket | None = None

    def fetch(self, directory: RunDirectory) -> None:
        """Takes the run over from any earlier learner and downloads it, if the guard is watching.

        Raises:
            GuardError: The guard is silent.
            LedgerError: The deployment is being taken down, or the ledger cannot be written.
            ResultsError: The bucket cannot be read.
        """
        check_guard(self._ledger, self._now())
        self._entry = self.heartbeat.take_over()
        deployment = self._deployment
        files = RunFiles(self._client("s3"), deployment.results_bucket, deployment.results_prefix)
        self._results = ResultsBucket(files, directory.path, self.heartbeat.check_owner)
        self._results.download(self._entry.ledger)

    def open(self, opening: Opening) -> Resources:
        """Opens the deployment's cache, if any, and determines how many actors may run at once.

        Raises:
            ServerError: The cache does not answer.
            FleetError: The actor function cannot be used, or the actors' processes cannot be started.
        """
        if self._entry is None or self._results is None:
            raise RuntimeError("fetch() comes before open()")
        experiment, deployment = opening.experiment, self._deployment
        metrics = Metrics(
            self._client("cloudwatch", is_quick=True),
            deployment,
            lambda error: opening.events.append("metrics_lost", error=error),
        )
        if experiment.is_on_learner:
            # The actors die with this process.
            self._beat_while_it_runs(opening)
            opened = open_here(opening, partial(self._meter, opening, self._entry))
        else:
            opened = self._reach_functions(opening, partial(self._meter, opening, self._entry))
        concurrency = opened.fleet.concurrency
        records = AwsRecords(
            experiment,
            self._entry,
            self.heartbeat,
            opened.meter,
            announce=self._announce,
            results=self._results,
            metrics=metrics,
            events=opening.events,
            now=self._now,
        )
        return replace(
            opened,
            facts={**opened.facts, **self._facts(concurrency)},
            elsewhere=records,
            learner=opened.learner or self._reach_learner(opening, self._results),
        )

    def _reach_functions(self, opening: Opening, make_meter: MakeMeter) -> Resources:
        """Opens the resources for actors on Lambda."""
        experiment, function = opening.experiment, self._deployment.actor_function
        cache, event = self._connect(opening)
        # The coordinator runs next to its actors, and learner functions need room when these have ended.
        learners = experiment.learner.functions_at_once
        concurrency = available_concurrency(
            self._client("lambda"),
            function,
            experiment.scaler.most_actors,
            others=1 + learners if learners else 0,
        )
        fleet = open_fleet(
            opening,
            LambdaSettings().make,
            concurrency=concurrency,
            timeout_s=experiment.actor.timeout_s,
            memory_mib=experiment.actor.memory_mib,
            function=function,
        )
        meter = make_meter(concurrency)
        if cache is not None:
            return Resources(cache, fleet, meter, event, {"server": event["cache_url"]})
        inline = InlineFleet(fleet)
        return Resources(inline, inline, meter, event, {"server": NO_CACHE})

    def _reach_learner(self, opening: Opening, results: ResultsBucket) -> LearnerFunctions | None:
        """Opens the resources for a learner that is a function; None if it is an instance."""
        deployment, learner = self._deployment, opening.experiment.learner
        if not deployment.learner_function:
            return None
        # Left by an earlier leg, which may have been killed.
        store = results.clear(layout.KEPT_UPDATES)
        fleet = open_fleet(
            opening,
            LambdaSettings().make,
            concurrency=learner.functions_at_once,
            timeout_s=as_learner_functions(learner).function_timeout_s,
            memory_mib=as_learner_functions(learner).function_memory_mib,
            function=deployment.learner_function,
        )
        return LearnerFunctions(fleet, store)

    def _connect(self, opening: Opening) -> tuple[Cache | None, dict[str, Any]]:
        """Opens the cache, if any, and starts the heartbeat.

        Returns:
            The cache, and the cache fields of the actors' events.
        """
        self._beat_while_it_runs(opening)
        if opening.experiment.cache.kind == "none":
            return None, {}
        deployment = self._deployment
        cache = open_cache(opening, deployment.cache_url, credential=deployment.cache_credential)
        return cache, actor_event(deployment.cache_url, deployment.actor_credential)

    def _beat_while_it_runs(self, opening: Opening) -> None:
        opening.stack.callback(self.heartbeat.close)
        self.heartbeat.start()

    def _meter(self, opening: Opening, entry: Entry, concurrency: int) -> Meter:
        experiment, deployment = opening.experiment, self._deployment
        # The stack may have been prepared long before its creation was executed, as the guard has seen. All of it
        # exists by now, whatever other clocks say; waiting for this clock to catch up would leave it unbilled.
        here_s = self._now()
        since_s = min(here_s, max(float(deployment.billed_since), entry.began_at_s))
        from_s = {f"{part}_from_s": min(here_s, at_s) for part, at_s in entry.parts_from_s.items()}
        model = make_cost_model(
            experiment,
            opening.spaces,
            self.prices,
            instance_type=deployment.instance_type,
            concurrency=concurrency,
            is_deployed=True,
        )
        # The learner may not spend the money reserved for the teardown.
        usable_usd = max(0.0, experiment.budget.usd - float(deployment.tail_usd))
        clock = BillingClock(since_s, now=self._now, begins=self._round_begins, **from_s)
        return Meter(model, Budget(usable_usd), clock=clock)

    def _round_begins(self, ends_at_s: float) -> None:
        if ends_at_s > self._ends_by_s:
            _end_this_process()
        self.rounds_begun += 1

    def _facts(self, concurrency: int) -> dict[str, str]:
        deployment = self._deployment
        return {
            "actors": f"{deployment.actor_function or 'processes of the learner'}, {concurrency} at once",
            "learner": f"{deployment.instance_type} {deployment.instance_id} of {deployment.image_id}, "
            f"in {deployment.container_image}",
            "kept": f"s3://{deployment.results_bucket}/{deployment.results_prefix}",
            "bill": f"what is used, at {self.prices.source} for {self.prices.region}, {self.prices.as_of}",
        }


def _end_this_process() -> None:
    """Ends the round and keeps everything, as if the instance were being shut down."""
    os.kill(os.getpid(), signal.SIGTERM)
