"""One attempt at a deployed run, by an instance or a function; continues from the files in the bucket."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lambda_actor.errors import ActorError, CacheError
from lambda_actor.output import limited_output
from runtime.aws.clients import clients
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.learner.backend import AwsBackend
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.log import LOG
from runtime.aws.ledger import (
    Ledger,
    LedgerError,
    LostRunError,
    TeardownOrderedError,
)
from runtime.aws.run_files import ResultsError
from runtime.errors import FleetError, Interrupted, RunError, ServerError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.learner.functions.store import StoreError
from runtime.money.prices import PRICES, PriceTable, prices_from_json
from runtime.records import layout
from runtime.records.files import to_json
from runtime.show.display import RunDisplay
from runtime.show.end_text import summary_lines
from runtime.training.run import RunResult, train

_REASON_CHARACTERS = 500
_OUTPUT_CHARACTERS_MAX = 100_000
"""Limit for prints of libraries and the environment in one process; the rest is dropped."""
_PASSING = (ResultsError, LedgerError, ServerError, FleetError, CacheError, StoreError)
"""Errors of AWS and the network, not of the experiment: the run continues from the bucket."""


class Then(Enum):
    """What must follow an attempt."""

    END = "nothing is left to do"
    GO_ON = "it was interrupted, and continues from the bucket"
    AGAIN = "AWS or the network failed: it continues from the bucket"
    GIVE_WAY = "another learner continues"


@dataclass(frozen=True)
class Attempt:
    """How an attempt ended.

    Attributes:
        then: What must follow.
        stop_reason: Why it ended.
        error: What went wrong, or None.
        exit_code: Exit code of the training; 0 if the stack may remain, above 128 if interrupted.
        rounds_begun: Attempts at rounds.
    """

    then: Then
    stop_reason: str
    error: str | None
    exit_code: int
    rounds_begun: int


def attempt(
    experiment_path: Path,
    out: Path,
    deployment: Deployment,
    *,
    resolve: Callable[[], ResolvedExperiment],
    **settings: Any,
) -> Attempt:
    """Trains, or continues to, for as long as it may.

    Args:
        experiment_path: The experiment file; the deployment's prices are next to it.
        out: The run's directory.
        deployment: The deployment.
        resolve: Reads and resolves the file for this place.
        settings: More arguments of `AwsBackend`.
    """
    backend: AwsBackend | None = None
    try:
        experiment = resolve()
        backend = AwsBackend(
            deployment=deployment, prices=_frozen_prices(experiment_path), **settings
        )
        display = RunDisplay(experiment)
        # Only affects prints of the evaluation environment; display and log keep their streams.
        with limited_output(_OUTPUT_CHARACTERS_MAX):
            result = train(
                experiment,
                out,
                backend=backend,
                resume=True,
                display=display,
                name=deployment.experiment,
            )
        LOG.info("%s", "\n".join(summary_lines(result.summary, str(out))))
    except Interrupted as interrupt:
        result = RunResult({"stop_reason": "interrupted", "error": None}, interrupt.exit_code)
    except (RunError, ActorError, OSError) as error:
        result = RunResult(
            {"stop_reason": "refused", "error": f"{type(error).__name__}: {error}"}, 2, error
        )
        LOG.error("error: %s", error)
    begun = backend.rounds_begun if backend is not None else 0
    stop_reason, text, code = (
        result.summary["stop_reason"],
        result.summary["error"],
        result.exit_code,
    )
    if backend is not None and backend.heartbeat.order_reason:
        return Attempt(Then.END, f"taken down: {backend.heartbeat.order_reason}", text, 0, begun)
    if code > 128:
        if backend is not None:
            backend.heartbeat.pauses()
        return Attempt(Then.GO_ON, stop_reason, text, code, begun)
    then = Then.END
    if isinstance(result.error, LostRunError):
        then = Then.GIVE_WAY
    elif isinstance(result.error, _PASSING) and not isinstance(result.error, TeardownOrderedError):
        then = Then.AGAIN
    return Attempt(then, stop_reason, text, code, begun)


def leave_word(deployment: Deployment, ended: Attempt) -> None:
    """Records in the bucket and in the ledger that nothing is left to do, and why."""
    record = {
        "stop_reason": ended.stop_reason,
        "error": ended.error,
        "exit_code": ended.exit_code,
        "stack": deployment.stack,
        "instance_id": deployment.instance_id,
        "instance_type": deployment.instance_type,
        "image_id": deployment.image_id,
        "container_image": deployment.container_image,
        "ended_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        clients()("s3").put_object(
            Bucket=deployment.results_bucket,
            Body=to_json(record),
            # A refused run does not change one that has ended.
            Key=deployment.results_prefix
            + (layout.REFUSED if ended.stop_reason == "refused" else layout.ENDED),
        )
    except AWS_ERRORS as failure:
        LOG.warning("%s: %s", layout.ENDED, failure)
    reason = ended.stop_reason if ended.error is None else f"{ended.stop_reason}: {ended.error}"
    try:
        # The guard takes the deployment down at once; otherwise it would do so later.
        Ledger(clients()("dynamodb"), deployment.ledger_table).finish(
            deployment.key, stack=deployment.stack, reason=reason[:_REASON_CHARACTERS]
        )
    except LedgerError as failure:
        LOG.warning("the guard was not told: %s", failure)


def _frozen_prices(experiment_path: Path) -> PriceTable:
    """Returns the deployment's prices, or the dated table for templates made without asking AWS."""
    path = experiment_path.with_name(layout.PRICES)
    return prices_from_json(path.read_bytes()) if path.exists() else PRICES
