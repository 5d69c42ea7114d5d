"""The service-linked roles of AWS' services, created before anything needs them.

Each service creates its own at its first use, and uses it at once. In a new account that may fail, because a new IAM
role takes seconds to spread. Created before the shared stacks, they are ready for the experiment.
"""

from __future__ import annotations

from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client


def make_service_roles(client: Client, *, has_cache: bool, market: str | None) -> str:
    """Creates the roles that a deployment needs and the account lacks. They cost nothing and remain.

    Args:
        client: Makes the client of a service.
        has_cache: Whether it has ElastiCache Serverless.
        market: ``learner.market``; None if the learner is not an instance.

    Returns:
        A remark for the user; empty if all roles exist. A user without the right to create roles is not stopped,
        because the services try it themselves.
    """
    needed = [
        *(["autoscaling.amazonaws.com"] if market else []),
        *(["spot.amazonaws.com"] if market == "spot" else []),
        *(["elasticache.amazonaws.com"] if has_cache else []),
    ]
    try:
        made = [service for service in needed if _make(client("iam"), service)]
    except AccountError as error:
        return (
            f"the service-linked roles of {', '.join(needed)} could not be looked up or made: {error}. If the "
            "first deployment in this account fails for lack of one, deploy again"
        )
    return f"made the service-linked roles of {', '.join(made)}" if made else ""


def _make(client: Any, service: str) -> bool:
    """Returns whether the role was created."""
    if ask(lambda: client.list_roles(PathPrefix=f"/aws-service-role/{service}/"))["Roles"]:
        return False
    ask(lambda: client.create_service_linked_role(AWSServiceName=service))
    return True
