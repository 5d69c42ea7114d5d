"""The roles by which AWS' services act in an account, made before anything needs them.

Each service makes its own when it is used first, and then uses it at once: in a fresh account that may fail, because
IAM takes seconds to know a role everywhere. Made before the shared stacks, they are known by the experiment's time.
"""

from __future__ import annotations

from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client


def make_service_roles(client: Client, *, cache_kind: str, market: str | None) -> str:
    """Makes those that a deployment uses and the account has not; they cost nothing and stay.

    Args:
        client: Of any service.
        cache_kind: ``cache.kind``.
        market: ``learner.market``; None if the learner is no instance.

    Returns:
        What people should know of it; empty if all are there. Whoever may not make roles is not stopped: the services
        try it themselves.
    """
    needed = [*(["autoscaling.amazonaws.com"] if market else []), *(["spot.amazonaws.com"] if market == "spot" else []),
              *(["elasticache.amazonaws.com"] if cache_kind in ("serverless", "node") else [])]
    try:
        made = [service for service in needed if _make(client("iam"), service)]
    except AccountError as error:
        return (f"the service-linked roles of {', '.join(needed)} could not be looked up or made: {error}. If the "
                "first deployment in this account fails for lack of one, deploy again")
    return f"made the service-linked roles of {', '.join(made)}" if made else ""


def _make(client: Any, service: str) -> bool:
    """Returns whether it was not there."""
    if ask(lambda: client.list_roles(PathPrefix=f"/aws-service-role/{service}/"))["Roles"]:
        return False
    ask(lambda: client.create_service_linked_role(AWSServiceName=service))
    return True
