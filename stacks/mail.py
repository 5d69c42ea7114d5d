"""Mail from the guard, and a second limit that does not depend on it. ``--mail ADDRESS`` creates it, and it remains.

It is a separate stack, so a later deployment without the option does not unsubscribe anyone.
"""

from __future__ import annotations

import math
import re

from aws_cdk import Stack
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_sns as sns
from constructs import Construct

from runtime.errors import ExperimentError
from stacks.guard import GuardStack

SHARED_USD = 1.0
"""A month of the shared stacks, in dollars, rounded up."""
SHARES = (80, 100)
"""Percentages of the budget at which AWS sends mail."""
_ADDRESS = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", re.ASCII)


class MailStack(Stack):
    """A mail subscription to the guard's reports and alarms, and an AWS Budget for the whole account.

    The budget has no filter. A tag filter counts nothing until the tag is activated for cost allocation, and then only
    costs from the next day on. A limit that silently does not apply would be worse than none.
    """

    def __init__(self, scope: Construct, construct_id: str, *, guard: GuardStack, address: str, usd: float) -> None:
        """Composes them.

        Args:
            scope: The app.
            construct_id: The stack's name.
            guard: Owner of the topic to subscribe to.
            address: A checked address.
            usd: The experiment's budget. The monthly budget adds the shared stacks, in whole dollars.
        """
        super().__init__(scope, construct_id, description="Nitro: mail from the guard, and a budget beside it")
        sns.CfnSubscription(self, "Reports", topic_arn=guard.reports.topic_arn, protocol="email", endpoint=address)
        budget = budgets.CfnBudget
        budget(self, "Budget", budget=budget.BudgetDataProperty(
            budget_type="COST", time_unit="MONTHLY",
            budget_limit=budget.SpendProperty(amount=math.ceil(usd + SHARED_USD), unit="USD")),
            notifications_with_subscribers=[budget.NotificationWithSubscribersProperty(
                notification=budget.NotificationProperty(
                    notification_type="ACTUAL", comparison_operator="GREATER_THAN", threshold=share,
                    threshold_type="PERCENTAGE"),
                subscribers=[budget.SubscriberProperty(subscription_type="EMAIL", address=address)])
                for share in SHARES])


def checked_address(text: object) -> str:
    """Returns ``text`` if it is a mail address. A context key may hold anything.

    Raises:
        ExperimentError: It is not an address.
    """
    if not isinstance(text, str) or not _ADDRESS.fullmatch(text):
        raise ExperimentError(f"mail = {text!r} is not allowed; allowed: one address such as you@example.org")
    if text.lower() == "you@example.org":
        raise ExperimentError(f"mail = {text!r} is the guide's example; allowed: an address at which you read mail")
    return text
