"""The learner that a stack brought up: AWS as the place where a run takes place.

The systemd unit that `stacks/components/learner_boot.sh` writes runs

    python -m runtime.backends.aws.learner EXPERIMENT.yaml DIR
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lambda_actor.cache import TrajectoryCache
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import ActorError, CacheError
from runtime.aws.clients import clients, environment_session
from runtime.aws.failures import AWS_ERRORS, BotoCoreError, ClientError, ResponseParserError
from runtime.backends.aws.deployment import Deployment
from runtime.backends.aws.heartbeat import Figures, Heartbeat
from runtime.backends.aws.metrics import Metrics
from runtime.backends.aws.results_bucket import ResultsBucket, ResultsError, SupersededError
from runtime.backends.cache_server import LearnerServer
from runtime.backends.this_machine import cache_ttl_s, make_cost_model, open_cache
from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment
from runtime.cost.budget import Budget
from runtime.cost.meter import BETWEEN_ROUNDS_S, Meter, WallClockMeter, steady_clock
from runtime.cost.model import INIT_SECONDS_MAX
from runtime.cost.prices import PRICES, PriceTable
from runtime.display.table import make_display, summary_lines
from runtime.errors import (
    ActorsKeepFailingError,
    ExperimentError,
    FleetError,
    GuardError,
    RunError,
    ServerError,
)
from runtime.fleet import FleetSetup, make_fleet
from runtime.fleet.aws_lambda import available_concurrency
from runtime.guard.ledger import Ledger, LedgerError, LostRunError, TeardownOrderedError
from runtime.interfaces import Fleet, Sampler
from runtime.names import CACHE_PORT
from runtime.records import layout
from runtime.records.events import EventLog
from runtime.records.files import to_json
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.sampling.prewarm import prewarm
from runtime.training.run import train
from runtime.training.signals import Interrupted, Signals

GUARD_SILENT_S = 1800.0
"""A learner does not begin where the guard has not looked for longer."""
_REASON_CHARACTERS = 500
TRY_AGAIN, SUPERSEDED = 74, 75
"""Exit codes: the unit starts it again, a few times an hour; the unit ends the instance."""
_PASSING = (ResultsError, LedgerError, ServerError, FleetError, CacheError)
"""Of AWS and the network, not of the experiment: the run goes on from the bucket."""
_GPU_TYPE = re.compile(r"(?:g|gr|p)\d")


class OnAws:
    """Actors are Lambda invocations, the cache is the deployment's, and what stands is paid for by the clock."""

    cost_basis = "metered"

    def __init__(
        self, experiment: Experiment, signals: Signals, *, deployment: Deployment,
        prices: PriceTable = PRICES, now: Callable[[], float] | None = None,
    ) -> None:
        """Args:
            prices: Those that were taken when it was deployed.
            now: Seconds since 1970; null = a clock that is not moved when somebody sets the system's.

        Raises:
            ExperimentError: It cannot run there, or the region's prices are not known.
        """
        if experiment.fleet.kind != "lambda":
            raise ExperimentError(f"fleet.kind = {experiment.fleet.kind!r} is for runs on one machine; allowed on a "
                                  "deployed learner: auto | lambda")
        if experiment.cache.url:
            raise ExperimentError("cache.url is for runs on one machine; allowed on a deployed learner: null")
        session = environment_session()
        if session.region_name != prices.region:
            raise ExperimentError(f"region {session.region_name!r}: its prices are not known; allowed: "
                                  f"{prices.region}")
        self._client = clients(session)
        self.prices = prices
        self._experiment, self._deployment, self._signals = experiment, deployment, signals
        self._now = now or steady_clock()
        self._ledger = Ledger(self._client("dynamodb"), deployment.ledger_table)
        self.heartbeat = Heartbeat(self._ledger, deployment, now=self._now, ended=_end_this_process)
        self._url = deployment.cache_url
        self._concurrency = 0
        self._is_announced = False

    def download(self, directory: RunDirectory) -> None:
        """Takes the run over, too, unless nobody would end it."""
        _check_guard(self._ledger, self._now())
        self._entry = self.heartbeat.take_over()
        self._results = ResultsBucket(
            self._client("s3"), self._deployment.results_bucket,
            self._deployment.results_prefix, directory.path)
        self._results.download()

    def open_cache(self, run_id: str, stack: ExitStack, events: EventLog) -> TrajectoryCache:
        self._events = events
        self._metrics = Metrics(self._client("cloudwatch", is_quick=True), self._deployment,
                                lambda error: events.append("metrics_lost", error=error))
        if not self._url:
            self._start_server(stack)
        cache = open_cache(self._experiment, self._url, run_id, stack, credential=self._deployment.cache_credential)
        stack.callback(self.heartbeat.close)
        self.heartbeat.start(json.dumps({
            "stop": True, "run_id": run_id, "cache_ttl_s": cache_ttl_s(self._experiment),
            "cache_bytes_max": self._experiment.cache.memory_mib * 2**20, **self.event_fields()}))
        # Whatever becomes of this process, its actors see that nobody waits for them any more.
        stack.callback(self._stop_actors, cache, events)
        return cache

    def event_fields(self) -> dict[str, Any]:
        return {"cache_url": self._url, "cache_credential": self._deployment.cache_credential}

    def facts(self) -> dict[str, str]:
        deployment = self._deployment
        return {"server": self._url, "actors": f"{deployment.actor_function}, {self._concurrency} at once",
                "learner": f"{deployment.instance_type} {deployment.instance_id} of {deployment.image_id}",
                "kept": f"s3://{deployment.results_bucket}/{deployment.results_prefix}",
                "bill": f"what is used, at {self.prices.source} of {self.prices.region}, {self.prices.as_of}"}

    def open_fleet(self, directory: RunDirectory) -> Fleet:
        actor, arn = self._experiment.actor, self._deployment.actor_function
        most_actors = self._experiment.scaler.most_actors
        self._concurrency = available_concurrency(self._client("lambda"), arn, most_actors)
        return make_fleet("lambda", FleetSetup(
            concurrency=self._concurrency, timeout_s=actor.timeout_s, memory_mib=actor.memory_mib,
            log_path=directory.actors_log_path, function_arn=arn))

    def open_meter(self, environment: ActorEnvironment, fleet: Fleet) -> Meter:
        model = make_cost_model(self._experiment, environment, self.prices,
                                instance_type=self._deployment.instance_type,
                                waves=self._experiment.scaler.waves(fleet.concurrency))
        # What is kept for the teardown is not the learner's to spend.
        usable_usd = max(0.0, self._experiment.budget.usd - float(self._deployment.tail_usd))
        return WallClockMeter(model, Budget(usable_usd), billed_since_s=float(self._deployment.billed_since),
                              now=self._now)

    def spent_usd(self) -> float:
        return self._entry.spent_usd

    def begin(
        self, sampler: Sampler, meter: Meter, events: EventLog, event_fields: Mapping[str, Any],
        save_ledger: Callable[[], None],
    ) -> None:
        """Proves that actors start and reach the cache; only then does the stack hear that its learner is up."""
        actors = min(sampler.concurrency, self._experiment.scaler.smallest_round)
        settings = {"actors": actors, "event": event_fields, "timeout_s": self._experiment.actor.timeout_s,
                    "save_ledger": save_ledger}
        try:
            prewarm(sampler, meter, events, **settings)
        except ActorsKeepFailingError:
            # Once more: that few actors may all have had bad luck.
            prewarm(sampler, meter, events, **settings)
        self.heartbeat.trains()
        self._is_announced = tell_stack(self._deployment, is_up=True)

    def ledger_changed(self, ledger: bytes, meter: WallClockMeter) -> None:
        is_new = self._results.save_ledger(ledger, promised_usd=meter.spent_usd + meter.reserved_usd,
                                           is_idle=meter.reserved_usd == 0.0)
        actor_s = self._experiment.actor.timeout_s + INIT_SECONDS_MAX
        self._figures = Figures(meter.spent_usd, meter.reserved_usd, meter.burn_usd_per_hour, meter.covered_until_s,
                                self._experiment.budget.usd)
        self.heartbeat.promise(self._figures, is_written=is_new, due_s=BETWEEN_ROUNDS_S + max(
            meter.covered_until_s, self._now() + 2 * actor_s))

    def round_saved(self, row: RoundRow) -> None:
        try:
            self._results.round_finished()
        except SupersededError:
            raise
        except ResultsError as error:
            # The rounds since the last upload stay in the directory, and go with the next one.
            self._events.append("upload_postponed", error=str(error))
        self._metrics.round_finished(row)
        if not self._is_announced:
            # Else the stack would take a learner back that trains.
            self._is_announced = tell_stack(self._deployment, is_up=True)

    def end(self) -> None:
        self._metrics.flush()
        self._results.finish()
        self.heartbeat.promise(self._figures, due_s=self._now() + BETWEEN_ROUNDS_S)

    def _start_server(self, stack: ExitStack) -> None:
        deployment = self._deployment
        with self._signals.shield():
            server = LearnerServer(self._experiment.cache.memory_mib, address=deployment.private_address,
                                   port=CACHE_PORT)
            stack.callback(server.close)
        self._url = server.url
        self._results.put(deployment.cache_credential.rpartition("/")[2], server.credential)

    def _stop_actors(self, cache: TrajectoryCache, events: EventLog) -> None:
        try:
            cache.stop()
        except ActorError as error:
            events.append("actors_not_stopped", error=str(error), time_out_after_s=self._experiment.actor.timeout_s)


def tell_stack(deployment: Deployment, *, is_up: bool) -> bool:
    """Ends the wait of the stack's creation for its learner, if it waits; False where it could not be reached."""
    client = clients()("cloudformation")
    try:
        client.signal_resource(
            StackName=deployment.stack, LogicalResourceId=deployment.learner_resource,
            UniqueId=deployment.instance_id, Status="SUCCESS" if is_up else "FAILURE")
    except ClientError as error:
        # It answered: a stack that is there already waits for nobody.
        print(f"the stack was not told: {error}", flush=True)
    except (BotoCoreError, ResponseParserError) as error:
        print(f"the stack cannot be told: {error}", flush=True)
        return False
    return True


def release(deployment: Deployment) -> None:
    """Keeps no actor warm any more, ends this instance, and lets no other take its place.

    Raises:
        ClientError: The instance could not be ended.
    """
    function, _, alias = deployment.actor_function.rpartition(":")
    if int(deployment.provisioned):
        try:
            clients()("lambda").delete_provisioned_concurrency_config(
                FunctionName=function, Qualifier=alias)
        except AWS_ERRORS as error:
            print(f"the warm actors stay, and cost money, until the stack is destroyed: {error}", flush=True)
    clients()("autoscaling").set_desired_capacity(
        AutoScalingGroupName=deployment.learner_group, DesiredCapacity=0, HonorCooldown=False)


def _check_guard(ledger: Ledger, now_s: float) -> None:
    """Raises: GuardError: Nobody would take this deployment down."""
    looked_at_s = ledger.last_tick_s()
    if looked_at_s is None or now_s - looked_at_s > GUARD_SILENT_S:
        since = "never looked" if looked_at_s is None else f"not looked for {(now_s - looked_at_s) / 60:.0f} minutes"
        raise GuardError(f"the guard has {since}: nothing would end this deployment by itself. See the alarms and the "
                         "log of the stack NitroGuard")


def _end_this_process() -> None:
    """As if the instance was being shut down: the round ends, everything is kept."""
    os.kill(os.getpid(), signal.SIGTERM)


def run(
    experiment_path: Path, out: Path, deployment: Deployment, now: Callable[[], float] | None = None
) -> int:
    """Trains, or continues to, and ends this instance for good when there is nothing left to do.

    Args:
        now: Seconds since 1970; null = this machine's steady clock.

    Returns:
        0; above 128 where it was interrupted, `TRY_AGAIN` where AWS or the network failed: it is to be continued;
        `SUPERSEDED` where another learner goes on.

    Raises:
        ClientError: The instance could not be ended.
    """
    places: list[OnAws] = []

    def make_place(experiment: Experiment, signals: Signals) -> OnAws:
        places.append(OnAws(experiment, signals, deployment=deployment, prices=prices, now=now))
        return places[-1]

    prices = PRICES
    try:
        prices = _frozen_prices(experiment_path.with_name(layout.PRICES))
        experiment = load_experiment(experiment_path).resolved(
            is_deployed=True, provisioned=int(deployment.provisioned))
        experiment = _on_its_gpu(experiment, deployment)
        summary, code = train(
            experiment, out, resume=True, display=make_display(experiment), name=deployment.experiment,
            make_place=make_place, prices=prices)
        print("\n".join(summary_lines(summary, str(out))), flush=True)
    except Interrupted as interrupt:
        summary, code = {"stop_reason": "interrupted", "error": None}, 128 + interrupt.signal_number
    except (RunError, ActorError, OSError) as error:
        summary, code = {"stop_reason": "refused", "error": f"{type(error).__name__}: {error}"}, 2
        print(f"error: {error}", flush=True)
    failure = (summary["error"] or "").partition(":")[0]
    if places and places[0].heartbeat.order_reason:
        summary, code = summary | {"stop_reason": f"taken down: {places[0].heartbeat.order_reason}"}, 0
    elif code > 128:
        if places:
            places[0].heartbeat.pauses()
        return code
    elif failure in (SupersededError.__name__, LostRunError.__name__):
        return SUPERSEDED
    elif code and failure in _names(_PASSING) - {TeardownOrderedError.__name__}:
        return TRY_AGAIN
    end(deployment, stop_reason=summary["stop_reason"], error=summary["error"], exit_code=code)
    return 0


def _frozen_prices(path: Path) -> PriceTable:
    """Those that were taken when it was deployed; of templates that were made without asking, the dated table's."""
    return PriceTable.from_json(path.read_bytes()) if path.exists() else PRICES


def _names(errors: Iterable[type[Exception]]) -> set[str]:
    """Of these errors, and of those that are made from them."""
    return {name for error in errors for name in (error.__name__, *_names(error.__subclasses__()))}


def _on_its_gpu(experiment: Experiment, deployment: Deployment) -> Experiment:
    """With ``auto``, an instance that is paid for its GPU uses it, or the run is refused."""
    if experiment.learner.device != "auto" or not _GPU_TYPE.match(deployment.instance_type):
        return experiment
    return experiment.model_copy(update={"learner": experiment.learner.model_copy(update={"device": "cuda"})})


def end(deployment: Deployment, *, stop_reason: str, error: str | None, exit_code: int) -> None:
    """Leaves word in the bucket, and ends this instance for good."""
    record = {"stop_reason": stop_reason, "error": error, "exit_code": exit_code, "stack": deployment.stack,
              "instance_id": deployment.instance_id, "instance_type": deployment.instance_type,
              "image_id": deployment.image_id, "ended_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        clients()("s3").put_object(
            Bucket=deployment.results_bucket, Body=to_json(record),
            # A run that ended is not changed by one that was refused.
            Key=deployment.results_prefix + (layout.REFUSED if stop_reason == "refused" else layout.ENDED))
    except AWS_ERRORS as failure:
        print(f"{layout.ENDED}: {failure}", flush=True)
    _tell_ledger(deployment, stop_reason if error is None else f"{stop_reason}: {error}")
    # Also where all went well: of a run that was finished before, the stack has not heard yet.
    tell_stack(deployment, is_up=not exit_code)
    release(deployment)


def _tell_ledger(deployment: Deployment, reason: str) -> None:
    """Lets the guard take the deployment down at once; it would, later, without being told."""
    try:
        Ledger(clients()("dynamodb"), deployment.ledger_table).finish(
            deployment.key, stack=deployment.stack, reason=reason[:_REASON_CHARACTERS])
    except LedgerError as error:
        print(f"the guard was not told: {error}", flush=True)


def main(arguments: list[str], now: Callable[[], float] | None = None) -> int:
    """Returns the exit code: 2 where this is no deployed learner.

    Args:
        now: Seconds since 1970; null = this machine's steady clock.
    """
    try:
        deployment = Deployment.from_environment(os.environ)
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if deployment is None or len(arguments) != 2:
        print("usage, on a deployed learner: python -m runtime.backends.aws.learner EXPERIMENT.yaml DIR",
              file=sys.stderr)
        return 2
    return run(Path(arguments[0]), Path(arguments[1]), deployment, now)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
