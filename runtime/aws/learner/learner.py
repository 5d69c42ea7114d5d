"""The process of a deployed learner: trains, and ends its instance when nothing is left to do.

The container started by `stacks/constructs/learner_boot.sh` runs

    python -m runtime.aws.learner.learner DIR
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime.aws.clients import clients
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.learner.attempt import Then, attempt, leave_word
from runtime.aws.learner.deployment import Deployment, fetch_files
from runtime.aws.learner.instance import created_at_s, read_identity, release, tell_stack
from runtime.aws.learner.log import LOG, log_to_standard_output
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import has_gpu
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment

REFUSED, TRY_AGAIN, END_INSTANCE = 2, 74, 75
"""Exit codes: this is no learner; the service restarts it, a few times an hour; the service ends the instance."""


def run(
    experiment_path: Path, out: Path, deployment: Deployment, now: Callable[[], float] | None = None
) -> int:
    """Trains, or continues to, and ends this instance for good when nothing is left to do.

    Args:
        experiment_path: The experiment file.
        out: The run's directory.
        deployment: The deployment.
        now: Seconds since 1970; None = this machine's steady clock.

    Returns:
        0; above 128 if it was interrupted; `TRY_AGAIN` if AWS or the network failed, so the run must be continued;
        `END_INSTANCE` if another learner continues.

    Raises:
        ClientError: The instance could not be ended.
    """
    ended = attempt(
        experiment_path,
        out,
        deployment,
        resolve=lambda: _resolve(experiment_path, deployment),
        now=now,
        announce=lambda: tell_stack(deployment, is_up=True),
    )
    if ended.then is not Then.END:
        return {Then.GO_ON: ended.exit_code, Then.AGAIN: TRY_AGAIN, Then.GIVE_WAY: END_INSTANCE}[
            ended.then
        ]
    leave_word(deployment, ended)
    # Also after success: the stack has not yet heard of a run that finished earlier.
    tell_stack(deployment, is_up=not ended.exit_code)
    release(deployment)
    return 0


def main(arguments: list[str], now: Callable[[], float] | None = None) -> int:
    """Runs the process.

    Args:
        arguments: The run's directory.
        now: Seconds since 1970; None = this machine's steady clock.

    Returns:
        The exit code of `run`, or `REFUSED` if this is not a deployed learner.
    """
    log_to_standard_output()
    with TemporaryDirectory() as folder:
        try:
            deployment = Deployment.from_environment(os.environ, billed_since="", **read_identity())
            deployment = replace(deployment, billed_since=str(created_at_s(deployment.stack)))
            path = fetch_files(clients()("s3"), deployment.files, Path(folder))
        except ExperimentError as error:
            LOG.error("error: %s", error)
            return REFUSED
        except (OSError, *AWS_ERRORS) as error:
            LOG.error("error: %s", error)
            return TRY_AGAIN
        return run(path, Path(arguments[0]), deployment, now)


def _resolve(path: Path, deployment: Deployment) -> ResolvedExperiment:
    """Makes ``auto`` use a paid GPU, or refuses the run."""
    experiment = load_experiment(path).resolved(
        is_deployed=True, provisioned=int(deployment.provisioned)
    )
    if experiment.learner.device != "auto" or not has_gpu(deployment.instance_type):
        return experiment
    return experiment.model_copy(
        update={"learner": experiment.learner.model_copy(update={"device": "cuda"})}
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
