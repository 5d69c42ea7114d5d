"""The CDK app: the shared stacks, and the stacks of the experiment that the context names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from runtime.names import GUARD_STACK, MAIL_STACK, NETWORK_STACK, RESULTS_STACK
from stacks.experiment import ExperimentStack
from stacks.guard import GuardStack
from stacks.mail import MailStack, checked_address
from stacks.network import NetworkStack
from stacks.organisation import OwnNetwork, add_tags, check_boundary, disk_key
from stacks.plan import Plan
from stacks.results import ResultsStack


def make_app(settings: Mapping[str, Any]) -> cdk.App:
    """Returns the app, ready for synthesis.

    Its context has ``experiment``, the experiment file, and may have

    - ``run``: the run's name; by default derived from everything that decides the run's rounds,
    - ``actor_concurrency``: concurrent executions that the account has left for the guard and for functions without a
      reservation,
    - ``mail``: an address that gets the guard's reports and alarms,
    - ``tags``, ``vpc``, ``subnets``, ``ebs_key``: see `stacks.organisation`.

    Args:
        settings: The context of cdk.json. The CDK command line passes it on by itself, along with ``-c`` options, which
            take precedence. Passing it here makes `python app.py` alone write the same templates.

    Raises:
        ExperimentError: The context does not name a deployable experiment.
    """
    app = cdk.App(context=settings)
    context = app.node.try_get_context
    plan = Plan.from_context(context)
    check_boundary(context)
    results = ResultsStack(app, RESULTS_STACK)
    network = NetworkStack(
        app,
        NETWORK_STACK,
        region=plan.prices.region,
        own=OwnNetwork.from_context(context, plan),
    )
    guard = GuardStack(app, GUARD_STACK)
    experiment = ExperimentStack(
        app,
        plan.stack_name,
        plan=plan,
        network=network,
        results=results,
        guard=guard,
        disk_key=disk_key(context("ebs_key")),
    )
    if (address := context("mail")) is not None:
        # So that a deployment of the experiment alone makes the subscription, too.
        experiment.add_dependency(
            MailStack(app, MAIL_STACK, guard=guard, address=checked_address(address))
        )
    add_tags(app, context("tags"))
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return app
