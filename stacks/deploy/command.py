"""``python -m stacks.deploy EXPERIMENT.yaml``: shows a deployment's possible cost, checks the account, and deploys.

Arguments after ``--`` go to the CDK's command line.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lambda_actor.errors import ActorError
from runtime.aws.asking import AccountError
from runtime.aws.clients import Session, clients, identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.errors import ExperimentError, RunError
from runtime.money.prices import ELSEWHERE, PRICES, PriceTable, elsewhere, prices_to_json
from runtime.names import EXECUTIONS_PARAMETER, GUARD_STACK, MAIL_STACK, SHARED_STACKS
from runtime.show.terminal import confirm, has_terminal, laid_out
from runtime.times import MISSING_S
from stacks.deploy.account import (
    check_account,
    check_bootstrap,
    check_version,
    free_concurrency,
    has_mail,
)
from stacks.deploy.cdk import TEMPLATES, check_tools, context_value, run_cdk, synthesise
from stacks.deploy.costs import check_budget, check_spent, limits
from stacks.deploy.price_list import PRICE_LIST_REGION, choose_prices
from stacks.mail import checked_address
from stacks.plan import Plan

_APPROVAL = "--require-approval"


def main(arguments: Sequence[str] | None = None) -> int:
    """Deploys an experiment, and returns the exit code.

    The code is the CDK's, 2 if nothing was deployed, 130 after Ctrl-C or a signal, or 1 if this machine fails, such as
    with a full disk.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    more = words[len(own) + 1 :]
    parser = _parser()
    options = parser.parse_args(own)
    if options.synth_only and more:
        parser.error(
            "arguments after -- go to the CDK's command line, which --synth-only does not use"
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A CDK that outlives this command would continue to deploy. Ignored signals, as under nohup, remain ignored.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return _synthesise(options) if options.synth_only else _deploy(options, more)
    except (RunError, ActorError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was deployed", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _synthesise(options: argparse.Namespace) -> int:
    context = _context(options)
    plan = Plan.from_context(context.get)
    _show(limits(plan))
    _show({"expected": check_budget(plan)[1]})
    if synthesise(context):
        raise ExperimentError("the templates could not be made")
    _show({"templates": f"{TEMPLATES}: {plan.stack_name}.template.json and the shared stacks'"})
    return 0


def _deploy(options: argparse.Namespace, more: Sequence[str]) -> int:
    context = _context(options)
    plan = Plan.from_context(context.get)
    session = open_session()
    account_id, client = identify(session), clients(session)
    check_tools()
    check_bootstrap(client)
    check_version(client)
    prices, remark = _prices(session, plan, options.prices)
    plan = replace(plan, prices=prices, actor_concurrency=free_concurrency(client))
    _show(limits(plan) | {"remark": remark})
    needed_usd, expected = check_budget(plan)
    _show({"expected": expected, "spent": check_spent(plan, needed_usd, client)})
    check_account(plan, session, context_value(more, "ebs_key"))
    _show({"account": f"{account_id}, {session.region_name}"})
    if not options.mail and not has_mail(client):
        _show({"mail": "nobody gets the guard's reports and alarms; --mail ADDRESS subscribes one"})
    approval = _ask(options, more)
    shared = [*SHARED_STACKS, *([MAIL_STACK] if options.mail else [])]
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "prices.json"
            path.write_bytes(prices_to_json(prices))
            context |= {"prices": str(path), "actor_concurrency": plan.actor_concurrency}
            words = [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
            if plan.reserved_for_guard:
                value = f"{GUARD_STACK}:{EXECUTIONS_PARAMETER}={plan.reserved_for_guard}"
                words += ["--parameters", value]
            # The experiment's stack makes nothing unless the guard says that it guards.
            for names in (shared, [plan.stack_name]):
                arguments = ["deploy", *names, *words, *approval, *more]
                code = run_cdk(arguments, region=session.region_name)
                if code:
                    return code
    except KeyboardInterrupt:
        print(
            "\ninterrupted: CloudFormation continues what it has begun, and a learner that it starts trains. "
            f"The guard ends a deployment that does not train. `python -m runtime status {plan.name}` shows what "
            f"exists, `python -m runtime stop {plan.name}` ends it",
            file=sys.stderr,
        )
        return 130
    text = (
        f"python -m runtime status {plan.name}; to end it before it ends itself: python -m runtime "
        f"stop {plan.name}"
    )
    if plan.is_external:
        text = f"open the pool within {MISSING_S / 60:.0f} minutes; {text}"
    _show({"next": text})
    return 0


def _show(facts: Mapping[str, str]) -> None:
    """Prints facts, without those whose text is empty."""
    for line in laid_out(facts):
        print(line, flush=True)


def _ask(options: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """Asks once whether to deploy. Returns the arguments that keep the CDK from asking again.

    The CDK would ask after it has made the change set, and fail without a terminal.

    Args:
        options: The options of the command line.
        more: The caller's arguments for the CDK; they take precedence.

    Raises:
        RunError: The answer is no, or there is no terminal.
    """
    is_chosen = any(word.startswith(_APPROVAL) for word in more)
    if not options.yes and (has_terminal() or not is_chosen):
        confirm("Deploy this?", "nothing was deployed")
    return [] if is_chosen else [_APPROVAL, "never"]


def _prices(session: Session, plan: Plan, file: str | None) -> tuple[PriceTable, str]:
    """Returns the prices of the user's file, or today's, or the dated table, with a remark for the user.

    Raises:
        RunError: The prices are unknown.
    """
    region = str(session.region_name)
    if file and plan.prices.region != region:
        raise AccountError(
            f"--prices {file}: has the prices of {plan.prices.region}; allowed: those of {region}"
        )
    if file:
        return plan.prices, ""
    client = session.client("pricing", region_name=PRICE_LIST_REGION)
    today = datetime.date.today().isoformat()
    return choose_prices(client, plan.experiment, elsewhere(PRICES, region), today)


def _context(options: argparse.Namespace) -> dict[str, object]:
    """Returns the app's context from the command line."""
    given = {
        "experiment": os.path.abspath(options.experiment),
        "run": options.run,
        "mail": options.mail and checked_address(options.mail),
        "prices": options.prices and os.path.realpath(options.prices),
    }
    return {key: value for key, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stacks.deploy",
        description="Deploy one experiment to AWS.",
        epilog="Arguments after -- go to the CDK's command line.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT.yaml", help="the experiment file")
    parser.add_argument(
        "--run",
        metavar="NAME",
        help="name of the run (default: derived from the experiment, so "
        "that the same experiment continues its run)",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        help="count with these prices of your region (default: the Price List API's, or if it "
        f"lacks one {PRICES.region}'s of {PRICES.as_of}, times {ELSEWHERE:g} in another region)",
    )
    parser.add_argument(
        "--mail",
        metavar="ADDRESS",
        help="let AWS send the guard's reports and all alarms to this address, also later",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask before deploying")
    how.add_argument(
        "--synth-only",
        action="store_true",
        help="write the templates to cdk.out and deploy nothing; needs no account and no Docker",
    )
    return parser
