"""Finds a pool's deployment by name, with the rights of the caller, who assumes the pool's role."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Session, assumed_session, open_session
from runtime.aws.guard.stacks import GuardedStack, read_deployment
from runtime.aws.learner.deployment import Deployment
from runtime.aws.stacks import find_stack, outputs_of
from runtime.names import (
    FILES_OUTPUT,
    FUNCTION_OUTPUT,
    LEDGER_OUTPUT,
    POOL_ROLE_OUTPUT,
    WARM_OUTPUT,
    experiment_name,
    stack_name,
)

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
    if found is None or deployed is None:
        raise AccountError(
            f"fleet.kind = lambda: no stack {stack} in region {session.region_name}; deploy its "
            "experiment file first, with learner.kind = external: make deploy EXPERIMENT=FILE.yaml"
        )
    outputs = outputs_of(found)
    if POOL_ROLE_OUTPUT not in outputs or "DELETE" in deployed.status:
        raise AccountError(
            f"fleet.kind = lambda: {stack} is {deployed.status}, and "
            + ("is being taken down" if POOL_ROLE_OUTPUT in outputs else "has no pool")
            + "; allowed: a deployment with learner.kind = external that is there"
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
