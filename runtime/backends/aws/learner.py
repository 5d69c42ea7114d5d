"""The process of a learner that a stack brought up: trains, and ends its instance when nothing is left to do.

The container that `stacks/components/learner_boot.sh` starts runs

    python -m runtime.backends.aws.learner EXPERIMENT.yaml DIR
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lambda_actor.errors import ActorError, CacheError
from lambda_actor.output import limited_output
from runtime.aws.clients import clients
from runtime.aws.failures import AWS_ERRORS
from runtime.backends.aws.backend import AwsBackend
from runtime.backends.aws.deployment import Deployment
from runtime.backends.aws.log import LOG, log_to_standard_output
from runtime.backends.aws.results_bucket import ResultsError, SupersededError
from runtime.backends.aws.stack import release, tell_stack
from runtime.config.instances import has_gpu
from runtime.config.loading import load_experiment
from runtime.config.resolved import ResolvedExperiment
from runtime.cost.prices import PRICES, PriceTable
from runtime.display.table import make_display, summary_lines
from runtime.errors import ExperimentError, FleetError, RunError, ServerError
from runtime.guard.ledger import Ledger, LedgerError, LostRunError, TeardownOrderedError
from runtime.records import layout
from runtime.records.files import to_json
from runtime.training.run import RunResult, train
from runtime.training.signals import Interrupted

TRY_AGAIN, SUPERSEDED = 74, 75
"""Exit codes: the unit starts it again, a few times an hour; the unit ends the instance."""
_REASON_CHARACTERS = 500
_OUTPUT_CHARACTERS_MAX = 100_000
"""What libraries and the environment may print in one life of the process; the rest is dropped."""
_PASSING = (ResultsError, LedgerError, ServerError, FleetError, CacheError)
"""Of AWS and the network, not of the experiment: the run goes on from the bucket."""


def run(
    experiment_path: Path, out: Path, deployment: Deployment, now: Callable[[], float] | None = None
) -> int:
    """Trains, or continues to, and ends this instance for good when there is nothing left to do.

    Args:
        experiment_path: The experiment file.
        out: The run's directory.
        deployment: Where it runs.
        now: Seconds since 1970; None for this machine's steady clock.

    Returns:
        0; above 128 if it was interrupted, `TRY_AGAIN` if AWS or the network failed: it is to be continued;
        `SUPERSEDED` if another learner goes on.

    Raises:
        ClientError: The instance could not be ended.
    """
    backend: AwsBackend | None = None
    try:
        experiment = _resolve(experiment_path, deployment)
        backend = AwsBackend(experiment, deployment=deployment, prices=_frozen_prices(experiment_path), now=now)
        display = make_display(experiment)
        # The display and the log keep their streams: this is about the environment that evaluations play in.
        with limited_output(_OUTPUT_CHARACTERS_MAX):
            result = train(experiment, out, backend=backend, resume=True, display=display, name=deployment.experiment)
        LOG.info("%s", "\n".join(summary_lines(result.summary, str(out))))
    except Interrupted as interrupt:
        result = RunResult({"stop_reason": "interrupted", "error": None}, 128 + interrupt.signal_number)
    except (RunError, ActorError, OSError) as error:
        result = RunResult({"stop_reason": "refused", "error": f"{type(error).__name__}: {error}"}, 2, error)
        LOG.error("error: %s", error)
    summary, code = result.summary, result.exit_code
    if backend is not None and backend.heartbeat.order_reason:
        summary, code = {**summary, "stop_reason": f"taken down: {backend.heartbeat.order_reason}"}, 0
    elif code > 128:
        if backend is not None:
            backend.heartbeat.pauses()
        return code
    elif isinstance(result.error, SupersededError | LostRunError):
        return SUPERSEDED
    elif isinstance(result.error, _PASSING) and not isinstance(result.error, TeardownOrderedError):
        return TRY_AGAIN
    end(deployment, stop_reason=summary["stop_reason"], error=summary["error"], exit_code=code)
    return 0


def end(deployment: Deployment, *, stop_reason: str, error: str | None, exit_code: int) -> None:
    """Leaves word in the bucket, and ends this instance for good.

    Args:
        deployment: Where it runs.
        stop_reason: Why the run ended.
        error: What went wrong; None if nothing did.
        exit_code: Of the training; 0 if the stack may stay.

    Raises:
        ClientError: The instance could not be ended.
    """
    record = {"stop_reason": stop_reason, "error": error, "exit_code": exit_code, "stack": deployment.stack,
              "instance_id": deployment.instance_id, "instance_type": deployment.instance_type,
              "image_id": deployment.image_id, "container_image": deployment.container_image,
              "ended_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        clients()("s3").put_object(
            Bucket=deployment.results_bucket, Body=to_json(record),
            # A run that ended is not changed by one that was refused.
            Key=deployment.results_prefix + (layout.REFUSED if stop_reason == "refused" else layout.ENDED))
    except AWS_ERRORS as failure:
        LOG.warning("%s: %s", layout.ENDED, failure)
    _tell_ledger(deployment, stop_reason if error is None else f"{stop_reason}: {error}")
    # Also where all went well: of a run that was finished before, the stack has not heard yet.
    tell_stack(deployment, is_up=not exit_code)
    release(deployment)


def main(arguments: list[str], now: Callable[[], float] | None = None) -> int:
    """Runs the process.

    Args:
        arguments: The experiment file and the run's directory.
        now: Seconds since 1970; None for this machine's steady clock.

    Returns:
        The exit code: that of `run`, or 2 if this is no deployed learner.
    """
    log_to_standard_output()
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


def _resolve(path: Path, deployment: Deployment) -> ResolvedExperiment:
    """With ``auto``, an instance that is paid for its GPU uses it, or the run is refused."""
    experiment = load_experiment(path).resolved(is_deployed=True, provisioned=int(deployment.provisioned))
    if experiment.learner.device != "auto" or not has_gpu(deployment.instance_type):
        return experiment
    return experiment.model_copy(update={"learner": experiment.learner.model_copy(update={"device": "cuda"})})


def _frozen_prices(experiment_path: Path) -> PriceTable:
    """Those that were taken when it was deployed; of templates that were made without asking, the dated table's."""
    path = experiment_path.with_name(layout.PRICES)
    return PriceTable.from_json(path.read_bytes()) if path.exists() else PRICES


def _tell_ledger(deployment: Deployment, reason: str) -> None:
    """Lets the guard take the deployment down at once; it would, later, without being told."""
    try:
        Ledger(clients()("dynamodb"), deployment.ledger_table).finish(
            deployment.key, stack=deployment.stack, reason=reason[:_REASON_CHARACTERS])
    except LedgerError as error:
        LOG.warning("the guard was not told: %s", error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
