"""``python -m stacks.deploy EXPERIMENT.yaml``: tells what a deployment may cost, asks the account, and deploys.

What follows ``--`` goes to the CDK's command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError

from lambda_actor.errors import ActorError
from runtime.cost.account import Account, AccountError, read_account
from runtime.cost.estimate import START_S, START_S_MAX, Estimate, estimate
from runtime.cost.meter import BETWEEN_ROUNDS_S
from runtime.cost.prices import PRICES
from runtime.errors import ExperimentError, RunError
from runtime.train import smallest_budget_usd
from stacks.cdk import run_cdk
from stacks.plan import Plan

_COLUMNS, _INDENT = 96, 13


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: that of the CDK, or 2 where nothing was deployed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[:words.index("--")] if "--" in words else words
    options = _parser().parse_args(own)
    context = {"experiment": str(options.experiment.resolve()), "run": options.run}
    try:
        plan = Plan.from_context(context.get)
        expected = estimate(plan.experiment)
        print("\n".join(limits(plan, expected)), flush=True)
        _check_budget(plan, expected)
        _check_tools()
        account = read_account(_session(), plan.experiment, function=plan.function_name)
    except (RunError, ActorError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(account_lines(plan, account)), flush=True)
    return run_cdk(["deploy", "--all", *_context_arguments(context | {"actor_concurrency": account.actor_concurrency}),
                    *words[len(own) + 1:]], region=account.region)


def limits(plan: Plan, expected: Estimate) -> list[str]:
    """What will exist, what bounds it, and what it costs, for people."""
    experiment, learner, actor = plan.experiment, plan.experiment.learner, plan.experiment.actor
    start_usd = expected.burn_usd_per_hour * START_S / 3600
    burn_usd, idle_usd = expected.burn_usd_per_hour, expected.idle_usd_per_hour
    return _laid_out({
        "deployment": f"{plan.stack_name}, run {plan.run}; kept under {plan.prefix} in the results bucket",
        "learner": f"one of {', '.join(learner.instance_types)}, {learner.market.replace('_', ' ')}; at most "
                   f"{learner.launches_max} launches",
        "actors": f"at most {experiment.scaler.most_actors} of {actor.memory_mib} MiB, {actor.timeout_s} s each; "
                  f"{plan.provisioned_actors} kept warm",
        "cache": experiment.cache.kind,
        "budget": f"${experiment.budget.usd:g}; the learner stops before it spends more, and ends its instance. About "
                  f"${start_usd:.2f} of it goes into the start",
        "an hour": f"${burn_usd:.3f}: learner ${expected.learner_usd_per_hour:.3f}, cache "
                   f"${expected.cache_usd_per_hour:.3f}, warm actors ${expected.provisioned_usd_per_hour:.3f}; "
                   "actors at work come on top",
        "after that": f"${idle_usd:.3f} an hour until `make destroy`, for cache and warm actors",
        "worst case": f"a learner that hangs costs ${burn_usd:.3f} an hour until `make destroy`: nothing outside it "
                      f"ends it yet. ${burn_usd * experiment.budget.lifetime_hours:.2f} in budget.lifetime_hours = "
                      f"{experiment.budget.lifetime_hours:g}. One that is not up within {START_S_MAX / 60:.0f} "
                      "minutes is taken back",
        "shared": "network and results bucket: what the results take, $0.023 a GB and month",
        "prices": f"list prices of {PRICES.region}, {PRICES.as_of}; AWS' bill is what counts",
    })


def _laid_out(facts: Mapping[str, str]) -> list[str]:
    indent = " " * _INDENT
    return [line for label, text in facts.items() for line in textwrap.wrap(
        text, _COLUMNS, initial_indent=label.ljust(_INDENT), subsequent_indent=indent, break_on_hyphens=False)]


def account_lines(plan: Plan, account: Account) -> list[str]:
    """What of it the account restricts, for people."""
    learner = plan.experiment.learner
    refused = [name for name in learner.instance_types if name not in account.usable_types]
    deployed = dataclasses.replace(plan, actor_concurrency=account.actor_concurrency)
    lines = [f"account      {account.account_id}, {account.region}"]
    if account.actor_concurrency < plan.experiment.scaler.most_actors:
        lines.append(f"             {account.actor_concurrency} functions may run at once: rounds of more actors take "
                     "longer. Ask for more under Service Quotas, AWS Lambda, Concurrent executions")
    if deployed.reserved_actors is None:
        lines.append(f"             of its concurrency of {account.actor_concurrency} none can be reserved for actors: "
                     "nothing but that number caps how many run at once")
    if deployed.provisioned_actors < plan.provisioned_actors:
        lines.append(f"             that leaves room for {deployed.provisioned_actors} warm actors, not "
                     f"{plan.provisioned_actors}")
    if refused:
        lines.append(f"             the vCPU quota refuses {', '.join(refused)}")
    return lines


def _check_budget(plan: Plan, expected: Estimate) -> None:
    """Raises: AccountError: The start would use the budget up."""
    needed_usd, and_round = expected.burn_usd_per_hour * START_S / 3600, ""
    try:
        needed_usd += expected.burn_usd_per_hour * BETWEEN_ROUNDS_S / 3600 + max(
            smallest_budget_usd(plan.experiment, instance_type=name)
            for name in plan.experiment.learner.instance_types)
        and_round = " and one round's worst case"
    except ExperimentError as error:
        if plan.experiment.environment.package is None:
            raise
        print(f"             the budget is not checked against a round's worst case: {error}", flush=True)
    if plan.experiment.budget.usd < needed_usd:
        # Rounded up: what is printed must be accepted.
        raise AccountError(f"budget.usd = {plan.experiment.budget.usd:g} cannot hold the {START_S / 60:.0f} minutes "
                           f"that a start takes{and_round}; allowed: budget.usd from "
                           f"{math.ceil(needed_usd * 100) / 100:.2f}")


def _session() -> boto3.Session:
    """With the region that the CDK's command line would take: boto3 does not know AWS_REGION."""
    return boto3.Session(region_name=os.environ.get("AWS_REGION") or None)


def _check_tools() -> None:
    """Raises: AccountError: The actor image cannot be built here."""
    program = os.environ.get("CDK_DOCKER", "docker")
    if shutil.which(program) is None:
        raise AccountError(f"{program} is not on PATH: the actor image is built with it; install Docker, or name "
                           "another program that understands its commands in the variable CDK_DOCKER")


def _context_arguments(context: dict[str, object]) -> list[str]:
    return [word for key, value in context.items() if value is not None for word in ("-c", f"{key}={value}")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stacks.deploy", usage="%(prog)s EXPERIMENT.yaml [--run NAME] [-- ARGUMENT ...]",
        description="Deploy one experiment to AWS.", epilog="What follows -- goes to the CDK's command line.")
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file")
    parser.add_argument("--run", metavar="NAME", help="name of the run (default: it follows from the experiment, so "
                        "that the same experiment continues its run)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
