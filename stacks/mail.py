"""Mail from the guard. ``--mail ADDRESS`` creates it, and it remains.

It is a separate stack, so a later deployment without the option does not unsubscribe anyone.
"""

from __future__ import annotations

import re

from aws_cdk import Stack
from aws_cdk import aws_sns as sns
from constructs import Construct

from runtime.errors import ExperimentError
from stacks.guard import GuardStack

_ADDRESS = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", re.ASCII)


class MailStack(Stack):
    """A mail subscription to the guard's reports and to all alarms."""

    def __init__(
        self, scope: Construct, construct_id: str, *, guard: GuardStack, address: str
    ) -> None:
        """Composes it.

        Args:
            scope: The app.
            construct_id: The stack's name.
            guard: Owner of the topic to subscribe to.
            address: A checked address.
        """
        super().__init__(scope, construct_id, description="Nitro: mail from the guard")
        sns.CfnSubscription(
            self, "Reports", topic_arn=guard.reports.topic_arn, protocol="email", endpoint=address
        )


def checked_address(text: object) -> str:
    """Returns ``text`` if it is a mail address. A context key may hold anything.

    Raises:
        ExperimentError: It is not an address.
    """
    if not isinstance(text, str) or not _ADDRESS.fullmatch(text):
        raise ExperimentError(
            f"mail = {text!r} is not allowed; allowed: one address such as you@example.org"
        )
    return text
