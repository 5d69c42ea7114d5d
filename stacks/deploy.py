"""``python -m stacks.deploy EXPERIMENT.yaml``: tells what a deployment may cost, asks the account, and deploys.

What follows ``--`` goes to the CDK's command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError

from lambda_actor.errors import ActorError
from runtime.cost.account import Account, AccountError, open_session, read_account
from runtime.cost.estimate import START_S, START_S_MAX, Estimate, estimate
from runtime.cost.meter import BETWEEN_ROUNDS_S
from runtime.cost.prices import PRICES
from runtime.errors import ExperimentError, RunError
from runtime.train import smallest_budget_usd
from stacks.cdk import TEMPLATES, run_cdk, synthesise
from stacks.plan import Plan
from stacks.terminal import is_confirmed, laid_out

TOOL_TIMEOUT_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: that of the CDK, or 2 where nothing was deployed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[:words.index("--")] if "--" in words else words
    parser = _parser()
    options = parser.parse_args(own)
    if options.synth_only and words[len(own) + 1:]:
        parser.error("what follows -- goes to the CDK's command line, which --synth-only does without")
    try:
        return _synthesise(options) if options.synth_only else _deploy(options, words[len(own) + 1:])
    except (RunError, ActorError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _deploy(options: argparse.Namespace, more: Sequence[str]) -> int:
    context = _context(options)
    plan = _checked_plan(context)
    _check_tools()
    account = read_account(open_session(), plan.experiment, stack=plan.stack_name)
    print("\n".join(account_lines(plan, account)), flush=True)
    if not options.yes and sys.stdin.isatty() and not is_confirmed("Deploy this?"):
        raise AccountError("nothing was deployed")
    context |= {"actor_concurrency": account.actor_concurrency, "zones": ",".join(account.zones)}
    given = [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
    return run_cdk(["deploy", "--all", *given, *more], region=account.region)


def _synthesise(options: argparse.Namespace) -> int:
    context = _context(options)
    plan = _checked_plan(context)
    if synthesise(context):
        raise ExperimentError("the templates could not be made")
    print(f"templates    {TEMPLATES}: {plan.stack_name}.template.json and those of the shared stacks")
    return 0


def _context(options: argparse.Namespace) -> dict[str, object]:
    """What the app is told of the command line."""
    return {"experiment": str(options.experiment.resolve()), **({"run": options.run} if options.run else {})}


def _checked_plan(context: Mapping[str, object]) -> Plan:
    """Tells the limits of what is to be deployed.

    Raises:
        RunError: The file is wrong, or its budget too small.
    """
    plan = Plan.from_context(context.get)
    expected = estimate(plan.experiment)
    print("\n".join(limits(plan, expected)), flush=True)
    _check_budget(plan, expected)
    return plan


def limits(plan: Plan, expected: Estimate) -> list[str]:
    """What will exist, what bounds it, and what it costs, for people."""
    experiment, learner, actor = plan.experiment, plan.experiment.learner, plan.experiment.actor
    start_usd = expected.burn_usd_per_hour * START_S / 3600
    burn_usd = expected.burn_usd_per_hour
    return laid_out({
        "deployment": f"{plan.stack_name}, run {plan.run}; kept under {plan.prefix} in the results bucket",
        "learner": f"one of {', '.join(learner.instance_types)}, {learner.market.replace('_', ' ')}; at most "
                   f"{learner.launches_max} launches",
        "actors": f"at most {experiment.scaler.most_actors} of {actor.memory_mib} MiB, {actor.timeout_s} s each; "
                  f"{plan.provisioned_actors} kept warm",
        "cache": experiment.cache.kind,
        "budget": f"${experiment.budget.usd:g}; the learner stops before it spends more, and ends its instance. About "
                  f"${start_usd:.2f} of it goes into the start; not in it: what stays after the run",
        "an hour": f"at most ${burn_usd:.3f}: learner ${expected.learner_usd_per_hour:.3f} "
                   f"({_dearest(learner.instance_types)}), cache ${expected.cache_usd_per_hour:.3f}, "
                   f"warm actors ${expected.provisioned_usd_per_hour:.3f}; "
                   "actors at work come on top",
        "after that": _after(expected.idle_usd_per_hour),
        "worst case": f"${burn_usd * experiment.budget.lifetime_hours:.2f}: a learner that hangs, until its instance "
                      f"ends itself after budget.lifetime_hours = {experiment.budget.lifetime_hours:g}. Nothing "
                      "outside the instance ends it yet, but `make destroy`. One that is not up within "
                      f"{START_S_MAX / 60:.0f} minutes is taken back",
        "shared": "network and results bucket: what the results take, $0.023 a GB and month",
        "prices": f"list prices of {PRICES.region}, {PRICES.as_of}; AWS' bill is what counts",
    })


def _dearest(instance_types: Sequence[str]) -> str:
    return max(instance_types, key=PRICES.instance_hour_usd.__getitem__)


def _after(idle_usd_per_hour: float) -> str:
    if not idle_usd_per_hour:
        return "nothing but what the results take"
    return (f"${idle_usd_per_hour:.3f} an hour until `make destroy`, for the cache, "
            f"${24 * idle_usd_per_hour:.2f} a day")


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
        remark = (f"the budget is not checked against a round's worst case: {error}. With the environment's package in "
                  "a folder, PYTHONPATH=FOLDER lets it be checked")
        print("\n".join(laid_out({"remark": remark})), flush=True)
    if plan.experiment.budget.usd < needed_usd:
        # Rounded up: what is printed must be accepted.
        raise AccountError(f"budget.usd = {plan.experiment.budget.usd:g} cannot hold the {START_S / 60:.0f} minutes "
                           f"that a start takes{and_round}; allowed: budget.usd from "
                           f"{math.ceil(needed_usd * 100) / 100:.2f}")


def _check_tools() -> None:
    """Raises: AccountError: The actor image cannot be built here."""
    program = os.environ.get("CDK_DOCKER", "docker")
    if shutil.which(program) is None:
        raise AccountError(f"{program} is not on PATH: the actor image is built with it; install Docker, or name "
                           "another program that understands its commands in the variable CDK_DOCKER")
    try:
        done = subprocess.run([program, "info"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=TOOL_TIMEOUT_S, check=False)
        problem = done.returncode and (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
    except subprocess.TimeoutExpired:
        problem = f"no answer in {TOOL_TIMEOUT_S:g} s"
    except OSError as error:
        problem = error.strerror
    if problem:
        raise AccountError(f"`{program} info` fails, so the actor image cannot be built: {problem}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stacks.deploy",
        usage="%(prog)s EXPERIMENT.yaml [--run NAME] [--yes | --synth-only] [-- ARGUMENT ...]",
        description="Deploy one experiment to AWS.", epilog="What follows -- goes to the CDK's command line.")
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file")
    parser.add_argument("--run", metavar="NAME", help="name of the run (default: it follows from the experiment, so "
                        "that the same experiment continues its run)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask before deploying")
    how.add_argument("--synth-only", action="store_true",
                     help="write the templates to cdk.out and deploy nothing; needs no account and no Docker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
