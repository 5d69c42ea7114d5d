"""``python -m stacks.deploy EXPERIMENT.yaml``: shows a deployment's possible cost, checks the account, and deploys.

Arguments after ``--`` go to the CDK's command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from lambda_actor.errors import ActorError
from runtime.aws.asking import AccountError, ask, ask_if_there, pages_of
from runtime.aws.clients import QUICK, Client, Session, clients, identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.aws.guard.needs import unreserved_concurrency
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.ledger import Entry, find_ledger
from runtime.aws.stacks import WITHOUT_RESOURCES, find_stack, outputs_of
from runtime.errors import EnvironmentNotHereError, ExperimentError, RunError
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    as_learner_functions,
)
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.estimate import rounds_of
from runtime.money.model import CostModel, vcpu_share
from runtime.money.prices import ELSEWHERE, PRICES, PriceTable, elsewhere, prices_to_json
from runtime.money.work import LEARNER
from runtime.names import GUARD_STACK, MAIL_STACK, RESERVED_OUTPUT, SHARED_STACKS
from runtime.show.terminal import confirm, has_terminal, laid_out, spent_of
from runtime.times import INTERVAL_S, LATE_S, LEG_S, MISSING_S, STARTING_S
from runtime.training.preflight import smallest_budget_usd, try_experiment
from stacks.deploy.arming import check_guard, check_mail, check_version
from stacks.deploy.building import check_tools
from stacks.deploy.cdk import TEMPLATES, context_value, run_cdk, synthesise
from stacks.deploy.price_list import (
    PRICE_LIST_REGION,
    PriceListError,
    PricesUnreachableError,
    choose_prices,
)
from stacks.deploy.service_roles import make_service_roles
from stacks.mail import checked_address
from stacks.plan import LAUNCHES_MAX, Plan, check_round, read_prices

_APPROVAL = "--require-approval"
_NOT_DEPLOYED = (*WITHOUT_RESOURCES, "ROLLBACK_COMPLETE")
"""Statuses of a stack that a deployment creates again."""
_FREE_TIER_REGION = "us-east-1"
"""The only region of the Free Tier API."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Deploys an experiment, and returns the exit code.

    The code is the CDK's, 2 if nothing was deployed, 130 after Ctrl-C or a signal, or 1 if this machine fails, such as
    with a full disk.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    parser = _parser()
    options = parser.parse_args(own)
    if options.synth_only and words[len(own) + 1 :]:
        parser.error(
            "arguments after -- go to the CDK's command line, which --synth-only does not use"
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A CDK that outlives this command would continue to deploy. Ignored signals, as under nohup, remain ignored.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return (
            _synthesise(options) if options.synth_only else _deploy(options, words[len(own) + 1 :])
        )
    except (RunError, ActorError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was deployed", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _deploy(options: argparse.Namespace, more: Sequence[str]) -> int:
    context = _context(options)
    if any(word.partition("=")[0] in ("-t", "--tags") for word in more):
        raise AccountError(
            "--tags would replace the tags by which the guard finds the deployment. Nothing was "
            "deployed; allowed: -c tags=KEY=VALUE,KEY=VALUE"
        )
    experiment = load_experiment(options.experiment).resolved(is_deployed=True)
    session = open_session()
    with TemporaryDirectory() as folder:
        prices, remark = _prices(
            session, experiment, context.get("prices"), is_dated=options.dated_prices
        )
        path = Path(folder) / "prices.json"
        path.write_bytes(prices_to_json(prices))
        context |= {"prices": str(path)}
        plan, needed_usd = _checked_plan(context)
        _tell({"remark": remark})
        account_id, client = identify(session), clients(session)
        _tell({"remark": check_tools(plan)})
        check_version(client)
        if options.mail is None and not options.no_mail:
            check_mail(client)
        _check_not_deployed(plan, client)
        _check_spent(plan, needed_usd, client, time.time())
        deployed = dataclasses.replace(plan, actor_concurrency=_free_concurrency(client))
        _check_account(deployed, session, context_value(more, "ebs_key"))
        _tell({"account": f"{account_id}, {session.region_name}", "at once": at_once(deployed)})
        _check_budget(deployed)
        approval = _ask(options, more)
        context |= {"actor_concurrency": deployed.actor_concurrency}
        given = [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
        try:
            return _deploy_stacks(
                plan, session, [*given, *approval, *more], has_mail="mail" in context
            )
        except KeyboardInterrupt:
            print(
                "\ninterrupted: CloudFormation continues what it has begun, and a learner that it starts trains. "
                f"The guard ends a deployment that does not train. `python -m runtime status {plan.name}` shows what "
                f"exists, `python -m runtime stop {plan.name}` ends it",
                file=sys.stderr,
            )
            return 130


def _tell(facts: Mapping[str, str]) -> None:
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


def _prices(
    session: Session, experiment: ResolvedExperiment, path: object, *, is_dated: bool
) -> tuple[PriceTable, str]:
    """Returns today's prices, or the user's file, or the dated table, with a remark for the user.

    Raises:
        RunError: The prices are unknown.
    """
    region = str(session.region_name)
    other = read_prices(str(path)) if path else elsewhere(PRICES, region)
    if other.region != region:
        raise AccountError(
            f"--prices {path}: has the prices of {other.region}; allowed: those of {region}"
        )
    caution = (
        ""
        if path or region == PRICES.region
        else (
            f"These are {PRICES.region}'s times {ELSEWHERE:g}, above any region's that we know, so AWS' bill will be "
            "lower, and the budget ends the run early. --prices FILE counts with your own"
        )
    )
    if is_dated:
        return other, caution
    try:
        prices, remark = choose_prices(
            session.client("pricing", region_name=PRICE_LIST_REGION),
            experiment.actor.architecture,
            experiment.learner.instance_types,
            other,
            datetime.date.today().isoformat(),
        )
    except (PriceListError, PricesUnreachableError) as error:
        raise AccountError(
            f"{error}. --prices FILE counts with your own, and --dated-prices with the table of "
            f"{PRICES.as_of}, for what the API does not tell"
        ) from error
    return prices, f"{remark}. {caution}".rstrip(" .") if remark else ""


def _deploy_stacks(plan: Plan, session: Session, words: Sequence[str], *, has_mail: bool) -> int:
    """Deploys the guard first, and nothing that costs money unless the guard works."""
    remark = make_service_roles(
        clients(session),
        has_cache=plan.experiment.has_elasticache,
        market=plan.experiment.learner.market if plan.has_instance else None,
    )
    _tell({"roles": remark})
    code = run_cdk(
        ["deploy", *SHARED_STACKS, *([MAIL_STACK] if has_mail else []), *words],
        region=session.region_name,
    )
    if code:
        return code
    _tell(check_guard(clients(session), plan.stack_name))
    code = run_cdk(["deploy", plan.stack_name, *words], region=session.region_name)
    if not code and plan.is_external:
        _tell(
            {
                "pool": f"open it within {MISSING_S / 60:.0f} minutes: nitro_rl.ActorPool(FILE, "
                'overrides=["fleet.kind=lambda"])'
            }
        )
    if not code:
        _tell(
            {
                "next": f"python -m runtime status {plan.name}; "
                f"to end it before it ends itself: python -m runtime stop {plan.name}"
            }
        )
    return code


def _synthesise(options: argparse.Namespace) -> int:
    context = _context(options)
    plan, _ = _checked_plan(context)
    if synthesise(context):
        raise ExperimentError("the templates could not be made")
    print(
        f"templates    {TEMPLATES}: {plan.stack_name}.template.json and those of the shared stacks"
    )
    return 0


def _context(options: argparse.Namespace) -> dict[str, object]:
    """Returns the app's context from the command line."""
    return {
        "experiment": os.path.abspath(options.experiment),
        **({"run": options.run} if options.run is not None else {}),
        **({"mail": checked_address(options.mail)} if options.mail is not None else {}),
        **({"prices": os.path.realpath(options.prices)} if options.prices else {}),
    }


def _checked_plan(context: Mapping[str, object]) -> tuple[Plan, float]:
    """Prints the limits of the deployment. Returns its plan, and the dollars that it needs at least.

    Raises:
        RunError: The file is wrong, or its budget is too small.
    """
    plan = Plan.from_context(context.get)
    print("\n".join(limits(plan)), flush=True)
    return plan, _check_budget(plan)


def limits(plan: Plan) -> list[str]:
    """Returns lines that describe the deployment's parts, limits and costs."""
    experiment, learner, actor = plan.experiment, plan.experiment.learner, plan.experiment.actor
    expected, usd = plan.estimate, experiment.budget.usd
    start = plan.start
    burn_usd = expected.burn_usd_per_hour
    actors_usd = _hour_usd(plan, experiment.scaler.most_actors, actor.memory_mib)
    learners_usd = (
        _hour_usd(
            plan, learner.functions_at_once, as_learner_functions(learner).function_memory_mib
        )
        if learner.functions_at_once
        else 0.0
    )
    functions = (
        f", and at most ${(actors_usd + learners_usd) * plan.lifetime_hours:.2f} for "
        f"{'actors' if plan.has_instance else 'functions'} at work"
        if plan.has_function
        else ""
    )
    return laid_out(
        {
            "deployment": f"{plan.stack_name}, run {plan.run}; kept under {plan.prefix} in the results bucket",
            **({} if learner.is_external else {"learner": _learner(plan)}),
            "actors": f"at most {experiment.scaler.most_actors} of {actor.memory_mib} MiB, {actor.timeout_s} s each; "
            f"{plan.provisioned_actors} kept warm"
            if plan.has_function
            else f"at most {experiment.scaler.most_actors}, {actor.timeout_s} s each, {experiment.fleet.processes} at "
            "once: processes of the learner; no function",
            "cache": experiment.cache.kind,
            "budget": f"${usd:g}, also if the learner hangs or dies, as long as the guard runs: the learner may spend "
            f"${usd - expected.tail_usd:.2f}, of which about ${start.counted_usd:.2f} go into the start; "
            f"${expected.tail_usd:.2f} are kept for taking everything down",
            "an hour": f"${burn_usd:.3f} at most for running resources, with disk, address, "
            f"dashboard, alarms, metrics and images: learner ${expected.learner_usd_per_hour:.3f} ({_dearest(plan)}), "
            f"cache ${expected.cache_usd_per_hour:.3f}, "
            f"warm actors ${expected.provisioned_usd_per_hour:.3f}; "
            + (
                f"actors at work come on top, all of them all the time ${actors_usd:.2f}"
                if plan.has_function
                else "actors at work cost nothing beside it"
            )
            + (f", learner functions ${learners_usd:.2f}" if plan.has_coordinator else ""),
            **({"promised": _promised(plan)} if plan.has_coordinator else {}),
            "start": f"about {_minutes(start.expected_s)} minutes with images that are pushed: "
            + ", ".join(f"{phase.name} {_minutes(phase.expected_s)}" for phase in start.phases)
            + f"; it costs ${start.usd:.3f}, counted as ${start.counted_usd:.3f}: to whole minutes",
            "guard": f"looks every {INTERVAL_S:.0f} s, and deletes the stack when the run has ended, "
            f"when ${usd:g} less ${expected.tail_usd:.2f} can have been spent, when the learner is "
            f"silent for {LATE_S / 60:.0f} minutes ({STARTING_S / 60:.0f} while it boots, "
            f"{MISSING_S / 60:.0f} from the beginning), or "
            f"after budget.lifetime_hours = {experiment.budget.lifetime_hours:g}",
            "no guard": f"if the guard fails too, {_end_without_guard(plan)} after {plan.lifetime_hours:.1f} hours"
            f"{_whence(plan)}: "
            f"${burn_usd * plan.lifetime_hours:.2f} in all{functions}; then "
            f"${expected.cache_usd_per_hour:.3f} an hour for the cache until you stop it; two alarms "
            "notify the subscribers of its reports",
            "after that": "results, $0.023 a GB and month, and images, $0.10 a GB and month, until you delete them",
            "shared": "network, guard and results bucket: about $0.60 a month",
            "prices": f"{plan.prices.source} for {plan.prices.region}, {plan.prices.as_of}; AWS' bill is what counts",
            **(_pool_limits(plan) if plan.is_external else {}),
        }
    )


def _pool_limits(plan: Plan) -> dict[str, str]:
    """Returns the lines that differ if the trainer is the user's own process."""
    expected, budget = plan.estimate, plan.experiment.budget
    warm_usd = expected.provisioned_usd_per_hour
    actors_usd = _hour_usd(
        plan, plan.experiment.scaler.most_actors, plan.experiment.actor.memory_mib
    )
    return {
        "deployment": f"{plan.stack_name}, run {plan.run}",
        "learner": "none: your own process, which samples with nitro_rl.ActorPool and fleet.kind = lambda",
        "budget": f"${budget.usd:g}, also if your process hangs or dies, as long as the guard runs: the pool may spend "
        f"${budget.usd - expected.tail_usd:.4f}; ${expected.tail_usd:.4f} are kept for taking everything "
        "down",
        "an hour": f"${expected.burn_usd_per_hour:.4f} for running resources: warm actors ${warm_usd:.3f}, the rest "
        "is the image and the heartbeat; actors at work come on top, all of them all the time "
        f"${actors_usd:.2f}",
        "guard": f"looks every {INTERVAL_S:.0f} s, and deletes the stack when the pool is closed, when ${budget.usd:g} "
        f"less ${expected.tail_usd:.4f} can have been spent, when the pool is silent for {LATE_S / 60:.0f} "
        f"minutes, when none was opened in {MISSING_S / 60:.0f}, or after budget.lifetime_hours = "
        f"{budget.lifetime_hours:g}",
        "no guard": f"if the guard fails too, the pool still ends at its budget, and AWS ends the warm actors, "
        f"${warm_usd:.3f} an hour, after {plan.lifetime_hours:.1f} hours; two alarms notify the "
        "subscribers of its reports",
        "after that": "the image, $0.10 a GB and month, until you delete it; results are on your disk",
    }


def expected_text(plan: Plan, step_s: float) -> str:
    """Describes what a run is expected to cost, without its teardown.

    Args:
        plan: The deployment.
        step_s: Seconds of an environment step in the trial. How long a step's training takes is not known; it counts
            as one more.
    """
    experiment, actor, start = plan.experiment, plan.experiment.actor, plan.start
    rounds, actors = rounds_of(experiment)
    fragment_s, hour_usd = actor.fragment_steps * step_s, plan.estimate.burn_usd_per_hour
    if plan.has_function:
        fragment_s /= vcpu_share(actor.memory_mib)
        work_usd = _hour_usd(plan, 1, actor.memory_mib) / 3600 * fragment_s
        round_usd, turns = actors * (work_usd + plan.prices.request_usd), 1
    else:
        round_usd, turns = 0.0, math.ceil(actors / experiment.fleet.processes)
    begins = f"${start.usd:.4f} for the start, ${hour_usd:.3f} for an idle hour, "
    by = f"by the trial's {1e6 * step_s:.0f} us a step on this machine"
    if plan.is_external:
        return f"{begins}${round_usd:.6f} for a call of {actors:.3g} actors, {by}"
    round_s = turns * fragment_s + actors * actor.fragment_steps * step_s
    round_usd += round_s * hour_usd / 3600
    total_usd = start.usd + rounds * round_usd
    limit = "; budget.usd ends it earlier" if total_usd > experiment.budget.usd else ""
    return (
        f"${total_usd:.4f} without the teardown{limit}: {begins}${round_usd:.6f} for each of {rounds:,} rounds of "
        f"{actors:.3g} actors, {by}, where training on a step counts as another; `python -m runtime plan` measures it"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _hour_usd(plan: Plan, functions: int, memory_mib: int) -> float:
    """Returns the on-demand price of an hour of functions that run without a pause."""
    return (
        3600
        * functions
        * memory_mib
        / 1024
        * plan.prices.functions[plan.experiment.actor.architecture].on_demand_usd
    )


def _promised(plan: Plan) -> str:
    """Describes the most that learner functions can cost before their bills are known."""
    model = CostModel(plan.experiment, plan.prices)
    each_usd, many = model.roles[LEARNER].worst_case_usd(), model.functions_promised
    return (
        f"${many * each_usd:.4f} of the budget with each round to the learner function, {many} invocations of "
        f"${each_usd:.5f}: until its time limit after the longest start. More are reserved before they start"
    )


def _learner(plan: Plan) -> str:
    learner = plan.experiment.learner
    if plan.has_instance:
        return (
            f"one of {', '.join(learner.instance_types)}, {learner.market.replace('_', ' ')}; at most "
            f"{LAUNCHES_MAX} launches"
        )
    function = as_learner_functions(learner)
    many = f"{function.function_memory_mib} MiB"
    work = (
        f"a function of {many} makes the updates"
        if learner.kind == "function"
        else (f"up to {learner.functions_at_once} functions of {many} at once compute gradients")
    )
    return (
        f"no instance: {work}, {function.function_timeout_s} s each; a "
        f"coordinator of {COORDINATOR_MEMORY_MIB} MiB runs the rounds, in legs of up to {LEG_S / 60:.0f} "
        f"minutes, each of which is tried {LAUNCHES_MAX} times"
    )


def _end_without_guard(plan: Plan) -> str:
    if plan.has_instance:
        warm = " and the warm actors" if plan.provisioned_actors else ""
        return f"the instance ends itself, and AWS ends it{warm},"
    return "Step Functions ends the rounds"


def _whence(plan: Plan) -> str:
    if plan.lifetime_hours == plan.experiment.budget.lifetime_hours:
        return ""
    return ", when running resources have cost at least budget.usd"


def _dearest(plan: Plan) -> str:
    if not plan.has_instance:
        return "the coordinator, while a leg runs"
    return max(
        plan.experiment.learner.instance_types, key=plan.prices.instance_hour_usd.__getitem__
    )


def at_once(plan: Plan) -> str:
    """Describes what the account's concurrency allows; empty if actors are no functions."""
    if not plan.has_function:
        return ""
    return (
        f"{plan.actor_concurrency} functions; {plan.reserved_actors or 'none'} reserved for actors, "
        f"{plan.provisioned_actors} actors kept warm; waves per round: {plan.waves}"
    )


def _check_not_deployed(plan: Plan, client: Client) -> None:
    """Checks that there is no such stack: an update would not replace the learner.

    Raises:
        AccountError: There is one.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), plan.stack_name))
    # The CDK removes the rest of a failed creation, and the guard bills it.
    if stack is not None and stack["StackStatus"] not in _NOT_DEPLOYED:
        raise AccountError(
            f"{plan.stack_name} is deployed already ({stack['StackStatus']}). Nothing was deployed; `python -m runtime "
            f"stop {plan.name}` ends it and waits until it is gone: its results stay, and the run continues from them"
        )


def _free_concurrency(client: Client) -> int:
    """Returns how many executions no function but the guard has reserved."""
    guard = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    return unreserved_concurrency(client) + int(outputs_of(guard or {}).get(RESERVED_OUTPUT, 0))


def _check_account(plan: Plan, session: Session, disk_key: object) -> None:
    """Checks what the guard checks again before the stack makes anything, and whether AWS' Free plan allows it.

    Raises:
        AccountError: The account cannot run the experiment.
        ExperimentError: The quota of an instance type is unknown.
    """
    needs = dataclasses.replace(plan.needs, disk_key=str(disk_key or ""))
    refusal = needs.refusal(clients(session), str(session.region_name)) or (
        _free_plan_refusal(session, plan.experiment.learner.instance_types)
        if plan.has_instance
        else ""
    )
    if refusal:
        raise AccountError(f"{refusal}. Nothing was deployed")


def _free_plan_refusal(session: Session, names: Sequence[str]) -> str:
    """Returns why an account on AWS' Free plan cannot start these instance types; empty if it can.

    Raises:
        AccountError: EC2 does not answer.
    """
    client = session.client("freetier", region_name=_FREE_TIER_REGION, config=QUICK)
    try:
        found = ask_if_there(client.get_account_plan_state)
    except AccountError as error:
        _tell({"remark": f"whether the account is on AWS' Free plan is not known: {error}"})
        return ""
    # Accounts from before July 2025 have no plan.
    if found is None or found["accountPlanType"] != "FREE":
        return ""
    eligible = [
        one["InstanceType"]
        for one in pages_of(
            session.client("ec2"),
            "describe_instance_types",
            "InstanceTypes",
            Filters=[{"Name": "free-tier-eligible", "Values": ["true"]}],
        )
    ]
    refused = [name for name in names if name not in eligible]
    if not refused:
        return ""
    return (
        f"learner.instance_types: this account's Free plan does not start {', '.join(refused)}; allowed: "
        f"{', '.join(sorted(eligible))}, or others on the Paid plan"
    )


def _check_budget(plan: Plan) -> float:
    """Checks that the budget holds a start, a round and the teardown. Returns their worst-case cost in dollars.

    The round has at most the actors that the account can run at once, if that number is known.

    Raises:
        AccountError: The budget is too small.
    """
    check_round(plan.experiment, waves=plan.waves)
    expected, start = plan.estimate, plan.start
    needed_usd, and_round = start.counted_usd + expected.tail_usd, ""
    concurrency, waves = plan.concurrency, plan.waves
    try:
        environment = try_experiment(plan.experiment)
        needed_usd += max(
            smallest_budget_usd(
                plan.experiment,
                environment,
                plan.prices,
                instance_type=name,
                concurrency=concurrency,
            )
            for name in (plan.experiment.learner.instance_types if plan.has_instance else (None,))
        )
        and_round = ", and one round's worst case" + (
            f" in {waves} waves of {concurrency} actors, all that "
            f"{'the account runs' if plan.has_function else 'run'} at once"
            if waves > 1
            else ""
        )
        if plan.actor_concurrency is None:
            _tell({"expected": expected_text(plan, environment.step_s)})
    except EnvironmentNotHereError as error:
        if plan.experiment.environment.package is None:
            raise
        if plan.actor_concurrency is None:
            _tell(
                {
                    "remark": f"the budget is not checked against a round's worst case: {error}. "
                    "With the environment's package in a folder, PYTHONPATH=FOLDER lets it be checked"
                }
            )
    if plan.experiment.budget.usd < needed_usd:
        raise AccountError(
            f"budget.usd = {plan.experiment.budget.usd:g} cannot hold the "
            f"{_minutes(start.expected_s)} minutes that a start takes, what taking everything down can "
            f"cost{and_round}; allowed: budget.usd from {_rounded_up(needed_usd)}"
        )
    return needed_usd


def _check_spent(plan: Plan, needed_usd: float, client: Client, now_s: float) -> None:
    """Prints the cost of the run's earlier deployments, and checks that the budget holds another one.

    Args:
        plan: The deployment.
        needed_usd: The least that it needs.
        client: Makes the client of a service.
        now_s: Seconds since 1970.

    Raises:
        AccountError: The budget is too small.
        LedgerError: The ledger cannot be read.
    """
    ledger = find_ledger(client)
    entry = ledger.get(plan.key) if ledger else None
    if entry is None:
        return
    spent_usd, budget_usd = _spent_usd(entry, client, now_s), plan.experiment.budget.usd
    still_open = (
        ", its last deployment's end, which is not settled yet, included" if entry.is_open else ""
    )
    left_usd = max(0.0, budget_usd - spent_usd)
    _tell(
        {
            "spent": f"{spent_of(spent_usd, budget_usd)} by earlier deployments of run {plan.key}{still_open}; "
            f"${left_usd:.4f} are left, and this one needs ${_rounded_up(needed_usd)} at least"
        }
    )
    if left_usd < needed_usd:
        raise AccountError(
            f"run {plan.key} has spent ${spent_usd:.2f} of budget.usd = {budget_usd:g}{still_open}, and another "
            f"deployment needs ${_rounded_up(needed_usd)} at least: its start, a round's worst case, and taking it "
            f"down. Nothing was deployed; allowed: budget.usd from {_rounded_up(spent_usd + needed_usd)}"
        )


def _spent_usd(entry: Entry, client: Client, now_s: float) -> float:
    """Returns the most that a run's deployments can have cost, including the teardown of one that is still open."""
    if not entry.is_open:
        return entry.promised_usd
    stack = ask(lambda: find_stack(client("cloudformation"), entry.stack))
    deployed = read_deployment(stack) if stack else None
    if deployed is None:
        return entry.promised_usd
    return deployed.begun(entry, 0.0).projected_usd(entry, now_s) + deployed.tail_usd


def _rounded_up(usd: float) -> str:
    """Rounds up to whole cents, so that the amount in a message is accepted."""
    return f"{math.ceil(usd * 100) / 100:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stacks.deploy",
        usage="%(prog)s EXPERIMENT.yaml [--run NAME] [--mail ADDRESS | --no-mail] [--prices FILE] [--dated-prices] "
        "[--yes | --synth-only] [-- ARGUMENT ...]",
        description="Deploy one experiment to AWS.",
        epilog="Arguments after -- go to the CDK's command line.",
    )
    parser.add_argument(
        "experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file"
    )
    parser.add_argument(
        "--run",
        metavar="NAME",
        help="name of the run (default: derived from the experiment, so "
        "that the same experiment continues its run)",
    )
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="prices of your region, for what the Price List "
        f"API does not list (default: {PRICES.region}'s of {PRICES.as_of}, times "
        f"{ELSEWHERE:g} in another region)",
    )
    parser.add_argument(
        "--dated-prices",
        action="store_true",
        help="do not ask the Price List API, and use those prices (default: ask it)",
    )
    mail = parser.add_mutually_exclusive_group()
    mail.add_argument(
        "--mail",
        metavar="ADDRESS",
        help="let AWS send the guard's reports and all alarms to this "
        "address; one of the two is needed until somebody is subscribed",
    )
    mail.add_argument("--no-mail", action="store_true", help="let nobody know")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask before deploying")
    how.add_argument(
        "--synth-only",
        action="store_true",
        help="write the templates to cdk.out and deploy nothing; needs no account and no Docker",
    )
    return parser
