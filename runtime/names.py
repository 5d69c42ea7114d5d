"""Names that several parts of a deployment must agree on, once: stacks, tags, variables, metrics and ports.

CloudFormation, the guard, the learner and the user's commands find each other by these names alone.
"""

from __future__ import annotations

import re

from runtime.errors import ExperimentError

DEFAULT_REGION = "us-east-1"
"""The region that the shipped price table is of."""

OURS = "Nitro"
"""What the names of all stacks begin with, the shared ones too."""
RESULTS_STACK, NETWORK_STACK, GUARD_STACK = f"{OURS}Results", f"{OURS}Network", f"{OURS}Guard"
MAIL_STACK = f"{OURS}Mail"
"""Made by ``make deploy ARGS="--mail ADDRESS"``."""
VERSION_OUTPUT = "Version"
RESERVED_OUTPUT, EXECUTIONS_PARAMETER = "ReservedExecutions", "Executions"
"""Of the guard's stack: what the guard understands, see `runtime.aws.guard.check`; and the executions reserved for it,
with the parameter that says how many."""
LEDGER_OUTPUT = "LedgerTable"
"""Of the guard's stack, and of an experiment's whose trainer is somebody's own: name of the ledger."""
FUNCTION_OUTPUT, WARM_OUTPUT = "ActorFunction", "WarmActors"
POOL_ROLE_OUTPUT, FILES_OUTPUT = "PoolRole", "PoolFiles"
"""Of an experiment's stack whose trainer is somebody's own: ARN of the alias of its actor function, and how many actors
are kept warm; ARN of the role that a pool assumes, and the ``s3://`` URL of the experiment file and the prices as they
were deployed."""
SHARED_STACKS = (RESULTS_STACK, NETWORK_STACK, GUARD_STACK)
"""In the order in which they are deployed."""
STACK_PREFIX = f"{OURS}-"
"""Of an experiment's stack; what follows is the experiment's name."""
ACTOR_SUFFIX, LEARNER_SUFFIX, COORDINATOR_SUFFIX = "-actor", "-learner", "-coordinator"
"""What follows a stack's name in the names of its actor function; of its learner's Auto Scaling group or function; and
of the function that runs the rounds where no instance does, and its state machine."""
CACHE_PREFIX = "nitro-"
"""Of an experiment's cache; ElastiCache allows lower case only."""

TAG_PREFIX = "nitro:"
EXPERIMENT_TAG, RUN_TAG = f"{TAG_PREFIX}experiment", f"{TAG_PREFIX}run"
STACK_ID_TAG = "aws:cloudformation:stack-id"
GROUP_TAG = "aws:autoscaling:groupName"

ENVIRONMENT_PREFIX = "NITRO_"
"""Of the variables that a stack sets for its learner and for the guard."""
LEDGER_TABLE_VARIABLE = f"{ENVIRONMENT_PREFIX}LEDGER_TABLE"
REPORTS_TOPIC_VARIABLE = f"{ENVIRONMENT_PREFIX}REPORTS_TOPIC"
METRIC_NAMESPACE = OURS

CACHE_PORT = 6379
"""ElastiCache Serverless cannot listen elsewhere."""

_EXPERIMENT = re.compile(r"[a-z][a-z0-9-]{0,39}")
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def stack_name(experiment: str) -> str:
    """Name of an experiment's stack."""
    return STACK_PREFIX + experiment


def run_key(experiment: str, run: str) -> str:
    """Key of a run: of its entry in the ledger, and, with a slash behind it, of its objects in the results bucket."""
    return f"{experiment}/{run}"


def experiment_name(stem: str) -> str:
    """The name under which the experiment file ``stem``.yaml is deployed: stacks, functions and keys bear it.

    Raises:
        ExperimentError: The stem cannot be made one.
    """
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not _EXPERIMENT.fullmatch(name):
        raise ExperimentError(
            f"the experiment file's name {stem!r} cannot name a stack; allowed: letters, digits and "
            "dashes, beginning with a letter, at most 40"
        )
    return name


def run_name(text: str) -> str:
    """``text`` itself, if it can name a run.

    Raises:
        ExperimentError: It cannot.
    """
    if not _RUN.fullmatch(text):
        raise ExperimentError(
            f"run = {text!r} is not allowed; allowed: 1 to 40 lower-case letters, digits and dashes, "
            "no dash first"
        )
    return text
