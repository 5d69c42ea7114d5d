"""The coordinator: a function that runs a deployed run's rounds in legs of less than 15 minutes.

Each leg takes the run over through ledger and bucket, like an instance that replaces another. It starts no round that
could outlast it, and saves everything. A state machine invokes the legs: `stacks/constructs/coordinator.py`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from runtime.aws.clients import clients
from runtime.aws.learner.attempt import Then, attempt, leave_word
from runtime.aws.learner.deployment import Deployment, fetch_files
from runtime.aws.learner.log import LOG, log_to_standard_output
from runtime.errors import RunError
from runtime.experiment.loading import load_experiment
from runtime.money.meter import steady_clock
from runtime.times import LEG_ENDING_S


class LegError(RunError):
    """A leg failed. The state machine tries again, within the allowed number of failures."""


def handler(
    event: Mapping[str, Any],
    context: Any,
    *,
    now: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """Runs one leg.

    Args:
        event: ``started_at``, when the execution of the state machine began, in Step Functions' format: before that,
            nothing in the deployment cost money.
        context: The Lambda context.
        now: Seconds since 1970; None = a clock that ignores changes of the system time.

    Returns:
        ``done``: whether nothing is left to do; ``stop_reason``: why it ended.

    Raises:
        LegError: AWS or the network failed, or there was no time for a round.
        ExperimentError: This is not a coordinator.
    """
    log_to_standard_output()
    now = now or steady_clock()
    ends_by_s = now() + context.get_remaining_time_in_millis() / 1000 - LEG_ENDING_S
    deployment = Deployment.from_environment(
        os.environ,
        billed_since=str(_since_s(event["started_at"])),
        instance_id=context.aws_request_id,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = fetch_files(clients()("s3"), deployment.files, Path(folder) / "files")
        ended = attempt(
            path,
            Path(folder) / "run",
            deployment,
            now=now,
            ends_by_s=ends_by_s,
            resolve=lambda: load_experiment(path).resolved(is_deployed=True, provisioned=0),
        )
    LOG.info(
        "the leg ends: %s; %s, %d rounds begun",
        ended.stop_reason,
        ended.then.value,
        ended.rounds_begun,
    )
    if ended.then is Then.AGAIN:
        raise LegError(f"{ended.stop_reason}: {ended.error}")
    if ended.then is Then.GO_ON and not ended.rounds_begun:
        raise LegError(
            "no round was begun in this leg: one could have gone on for longer than what was left of it. "
            "Lower fleet.round_deadline_s, actor.timeout_s or learner.update_timeout_s"
        )
    if ended.then is Then.END:
        leave_word(deployment, ended)
    return {"done": ended.then is not Then.GO_ON, "stop_reason": ended.stop_reason}


def _since_s(started_at: str) -> float:
    return datetime.fromisoformat(started_at).timestamp()
