"""What can happen to a deployment; each ends with nothing left but the bucket, and within the budget.

A scenario is data: an experiment, what goes wrong and when, and what must then be seen. Those in which people act have
a function instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.aws.ledger import FINISHED
from runtime.times import LEG_S
from stacks.deploy.first_deployment import EXPERIMENT
from tests.helpers import ROOT
from tests.simulators.aws.moto_types import ACCOUNT, CACHE_TYPE
from tests.simulators.rehearsal.account import RUN, RehearsalError, difference
from tests.simulators.rehearsal.file import ROUNDS, play, read
from tests.simulators.rehearsal.rehearsal import Rehearsal, Trainer, cdk_context, experiment

_ROUNDS = 6
_AMPLE_USD = 2.0
"""More than a scenario needs that is not about the budget, on a slow machine too."""
_WITHOUT_INSTANCE: Mapping[str, Any] = {
    "cache": "none",
    "provisioned": 0,
    "update_s": 100,
    "deadline_s": 60,
    "usd": _AMPLE_USD,
}
_KINDS = ("instances", "auto scaling groups", "caches", "functions", "provisioned concurrency")
"""What Describe finds of an experiment that uses all of AWS that there is."""


def _kill(world: Rehearsal) -> None:
    os.kill(world.machine().learner.pid, signal.SIGKILL)


def _hang(world: Rehearsal) -> None:
    os.kill(world.machine().learner.pid, signal.SIGSTOP)
    world.is_hurried = True


def _take_instance(world: Rehearsal) -> None:
    world.account.client("ec2").terminate_instances(InstanceIds=[world.machine().id])


def _forget_images(world: Rehearsal) -> None:
    for image in world.account.images.iterdir():
        image.unlink()


def _hold_cache_up(world: Rehearsal) -> None:
    world.account.set_faults({CACHE_TYPE: [3600.0, "the cache could not be made"]})
    world.is_hurried = True


def _leave_guard_out(world: Rehearsal) -> None:
    """EventBridge does not call it from now until ten minutes after the learner's own end."""
    world.is_guarded, world.guard_was_away = False, True
    world.until(lambda: world.entry().state == FINISHED, "the learner's own end")
    again_s = world.account.clock.now() + 600.0
    world.until(lambda: world.account.clock.now() > again_s, "the guard's return")
    world.check(not world.machines.alive, "an instance is still there")
    world.is_guarded = True


def _at_coordinator(number: signal.Signals) -> Callable[[Rehearsal], None]:
    def send(world: Rehearsal) -> None:
        for process in world.account.functions.process_ids(world.deployments["hopper"].coordinator):
            os.kill(process, number)

    return send


def _hang_coordinator(world: Rehearsal) -> None:
    """Until Lambda's limit, at which Lambda ends it."""
    _at_coordinator(signal.SIGSTOP)(world)
    stopped_s = world.account.clock.now()
    world.is_hurried = True
    world.until(lambda: world.account.clock.now() > stopped_s + LEG_S, "Lambda's limit")
    world.check(world.record.has("guard", "has not reported"), "its leg ended before the guard did")
    _at_coordinator(signal.SIGKILL)(world)


def _at_learner_function(number: signal.Signals) -> Callable[[Rehearsal], None]:
    def send(world: Rehearsal) -> None:
        learner = f"{world.deployments['hopper'].stack}-learner"
        world.until(lambda: world.account.functions.running(learner), "a gradient")
        os.kill(world.account.functions.process_ids(learner)[0], number)

    return send


FAULTS: Mapping[str, Callable[[Rehearsal], None]] = {
    "kill -9 of the learner": _kill,
    "the learner hangs": _hang,
    "EC2 takes the instance away": _take_instance,
    "no image can be pulled": _forget_images,
    "the cache takes an hour, and then fails": _hold_cache_up,
    "the guard is not called": _leave_guard_out,
    "the coordinator hangs": _hang_coordinator,
    "kill -9 of the coordinator": _at_coordinator(signal.SIGKILL),
    "kill -9 of a learner function": _at_learner_function(signal.SIGKILL),
    "a learner function hangs": _at_learner_function(signal.SIGSTOP),
}


@dataclass(frozen=True)
class Scenario:
    """One deployment of Hopper, unless ``play`` says otherwise.

    Attributes:
        summary: One line, for people.
        experiment: Arguments of `experiment`.
        faults: Names of `FAULTS`, each with the number of rounds that are awaited before it; None comes before the
            deployment, and 0 right after it.
        stop_reason: What the run's summary must say; None where there may be none.
        rounds: Rounds that the bucket must have in the end; None if it may be any number.
        found: Kinds of resources that Describe must find right after the deployment.
        seen: Words that the record must have, with who says them.
        instances: Number of instances that EC2 must have launched in all.
        settings: More arguments of `Rehearsal`.
        play: Does all of it instead, up to the end of every deployment.
    """

    summary: str
    experiment: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[tuple[int | None, str], ...] = ()
    stop_reason: str | None = None
    rounds: int | None = None
    found: tuple[str, ...] = ()
    seen: tuple[tuple[str, str], ...] = ()
    instances: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    play: Callable[[Rehearsal], None] | None = None


def _play(world: Rehearsal, scenario: Scenario) -> None:
    faults = list(scenario.faults)
    while faults and faults[0][0] is None:
        _cause(world, faults.pop(0)[1])
    deployment = world.deploy(text=experiment(**scenario.experiment))
    for kind in scenario.found:
        world.check(
            world.found_deployed.get(kind), f"Describe finds no {kind} of {deployment.stack}"
        )
    for rounds, fault in faults:
        if rounds:
            world.after_rounds(rounds)
        _cause(world, fault)
    world.until_gone()


def _cause(world: Rehearsal, fault: str) -> None:
    world.record.tell("fault", fault)
    FAULTS[fault](world)


def _check(world: Rehearsal, scenario: Scenario) -> None:
    for who, words in (*scenario.seen, ("report", "is gone")):
        world.check(world.record.has(who, words), f"the {who} did not say {words!r}")
    for name in world.deployments:
        reason = world.stop_reason(name)
        world.check(
            scenario.stop_reason in (None, reason),
            f"the run's end is {reason!r}, not {scenario.stop_reason!r}",
        )
    rows = world.account.objects(f"hopper/{RUN}/").get("rounds.jsonl", b"").splitlines()
    world.check(
        scenario.rounds in (None, len(rows)),
        f"the bucket has {len(rows)} rounds, not {scenario.rounds}",
    )
    launched = len(world.machines.all)
    world.check(
        scenario.instances in (None, launched),
        f"{launched} instances were launched, not {scenario.instances}",
    )


# What people do


def _boot_fails(world: Rehearsal) -> None:
    text = experiment(usd=_AMPLE_USD)
    world.deploy(text=text)
    _cause(world, "no image can be pulled")
    world.until_gone()
    world.check(world.record.has("stack", "Received 1 FAILURE signal(s)"), "no instance told it")
    boots = world.account.objects(f"hopper/{RUN}/boot/")
    world.check(
        any(name.endswith("-image.log") for name in boots), "the bucket does not say which step"
    )
    world.check_bill()
    world.deploy(text=text)
    world.after_rounds(1)
    _cause(world, "no image can be pulled")
    _cause(world, "EC2 takes the instance away")
    world.until_gone()


def _deploy_fails(world: Rehearsal) -> None:
    _play(world, SCENARIOS["deploy-fails"])
    world.check(world.bills["hopper"].is_over, "something that costs money is left")
    world.check_bill()


def _stop_one_of_two(world: Rehearsal) -> None:
    text = experiment(usd=_AMPLE_USD)
    _, printed = world.typed_deploy("hopper", text)
    world.check(
        "cdk deploy NitroResults" in printed, f"in an empty account it does not begin: {printed}"
    )
    code, printed, context = world.make_deploy("hopper", text)
    world.check(code == 0, f"make deploy ({code}): {printed}")
    world.deploy(text=text, context=context)
    world.deploy(
        "walker",
        experiment(learner="function", **_WITHOUT_INSTANCE).replace("Hopper-v5", "Walker2d-v5"),
    )
    for name in ("hopper", "walker"):
        world.after_rounds(1, name)
    before = _of(world, "hopper")
    _look(world, "walker")
    _stop(world, "walker")
    world.until_gone("walker")
    _look(world, "walker")
    gone = difference({"all": before}, {"all": _of(world, "hopper")})
    world.check(not gone, f"of the other experiment: {gone}")
    world.check(not _of(world, "walker"), f"left: {_of(world, 'walker')}")
    world.after_rounds(1, "hopper")
    _look(world, "hopper")
    _stop(world, "hopper")
    world.until_gone()
    spent_usd = world.entry("hopper").spent_usd
    code, printed = world.typed_deploy("hopper", experiment(usd=spent_usd + 0.1))
    world.check(
        code == 2 and "allowed: budget.usd from" in printed and "cdk deploy" not in printed,
        f"with too little left it is deployed: {printed}",
    )


def _look(world: Rehearsal, name: str) -> None:
    for words in (("status",), ("status", name), ("logs", name), ("results", name)):
        _, printed = world.typed(*words)
        world.check("not authorized" not in " ".join(printed.split()), f"{words[0]}: {printed}")


def _stop(world: Rehearsal, name: str) -> None:
    """Runs ``python -m runtime stop NAME`` while time passes."""
    world.record.tell("people", f"python -m runtime stop {name}")
    with world.people("stop", name, "--yes") as stop:
        world.until(lambda: stop.poll() is not None, f"stop {name} to end")
        printed = stop.stdout.read()
    world.check(stop.returncode == 0, f"stop {name}: {printed}")


def _of(world: Rehearsal, name: str) -> list[str]:
    """Returns everything with that experiment's name that Describe finds."""
    return sorted(
        found
        for kind, names in world.account.inventory().items()
        if kind != "buckets"
        for found in names
        if f"nitro-{name}" in found.lower()
    )


def _deploy_another_run(world: Rehearsal) -> None:
    text = experiment(
        cache="none", provisioned=0, instance_types="c7i.large", max_rounds=_ROUNDS, usd=_AMPLE_USD
    ).replace("fleet: {", "fleet: {kind: local, ")
    first = world.deploy(text=text)
    world.after_rounds(1)
    status = world.deploy_again("hopper", text.replace("seed: 3", "seed: 4"), "second")
    world.check(status == "UPDATE_ROLLBACK_COMPLETE", f"the update ended as {status}")
    entry = world.account.ledger.get(first.run)
    world.check(entry.is_open and entry.order is None, f"the first run ended: {entry.order}")
    world.check(world.account.ledger.get("hopper/second") is None, "the ledger has the second run")
    world.until_gone()


def _open_pools(world: Rehearsal) -> None:
    text = experiment(cache="none", learner="external", provisioned=6, deadline_s=60, usd=0.15)
    code, printed, context = world.make_deploy("hopper", text)
    world.check(
        code == 0 and "open the pool within 45 minutes" in " ".join(printed.split()),
        f"make deploy ({code}): {printed}",
    )
    world.deploy(text=text, context=context)
    for kind in ("instances", "auto scaling groups", "volumes", "caches", "state machines"):
        world.check(not world.found_deployed.get(kind), f"there are {kind}")
    first = world.trainer("hopper", calls=1000)
    _after_calls(world, first, 1)
    world.record.tell("fault", "kill -9 of the process that holds the pool")
    first.kill()
    promised_usd = world.entry().promised_usd
    second = world.trainer("hopper", calls=1000)
    _after_calls(world, second, 1)
    world.check(
        second.usd(0) >= promised_usd,
        f"opened again with {second.lines[0]}, and {promised_usd} was promised",
    )
    training = world.directory / "pool.training"
    training.touch()
    _after_calls(world, second, 2)
    world.is_hurried = True
    world.until_gone()
    training.unlink()
    world.until(lambda: second.process.poll() is not None, "the end of the pool")
    world.check(
        second.lines[-1].startswith("error: the budget does not hold"),
        f"it says {second.lines[-1]}",
    )


def _after_calls(world: Rehearsal, trainer: Trainer, count: int) -> None:
    """Lets time pass until a pool has made a number of calls.

    Raises:
        RehearsalError: Its process ended before.
    """
    world.until(
        lambda: trainer.calls() >= count or trainer.process.poll() is not None,
        f"call {count} of a pool",
    )
    if trainer.calls() < count:
        raise RehearsalError(f"the pool ended: {trainer.lines[-3:]}")


def _first_deployment(world: Rehearsal) -> None:
    """`make first-deployment`: five cents are used up on purpose, and its report says that nothing is left."""
    report, output = world.directory / "report", world.directory / "typed"
    name, text = EXPERIMENT.stem, EXPERIMENT.read_text()
    with world.people("first-deployment", FIRST_DEPLOYMENT_REPORT=str(report)) as typed:
        printed = typed.communicate()[0]
    world.check(
        typed.returncode == 2 and "`make bootstrap` once" in printed, f"not bootstrapped: {printed}"
    )
    world.account.bootstrap()
    with (
        output.open("wb") as written,
        world.people(
            "first-deployment",
            *("--run", RUN, "--yes"),
            stdin=subprocess.PIPE,
            stdout=written,
            FIRST_DEPLOYMENT_REPORT=str(report),
        ) as typed,
    ):

        def cdk_commands() -> list[str]:
            lines = output.read_text(errors="replace").splitlines()
            return [line for line in lines if line.startswith("cdk deploy ")]

        def await_cdk(count: int) -> str:
            world.until(
                lambda: len(cdk_commands()) >= count or typed.poll() is not None,
                "the CDK's command",
            )
            return cdk_commands()[count - 1]

        def answer(code: int) -> None:
            typed.stdin.write(f"{code}\n")
            typed.stdin.flush()

        # Without an account's stacks, no time passes there.
        while not cdk_commands() and typed.poll() is None:
            time.sleep(0.1)
        world.check("NitroGuard" in await_cdk(1), "the guard is not deployed first")
        world.share(world.account.synthesise(name, text))
        answer(0)
        context = cdk_context(await_cdk(2))
        world.deploy(name, text, context)
        world.until(lambda: world.status(name) != "CREATE_IN_PROGRESS", "the stack")
        answer(int(world.status(name) != "CREATE_COMPLETE"))
        world.until_gone(name)
        world.until(lambda: typed.poll() is not None, "the end of the command")
    world.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(report, world.out / "report.txt")
    told = report.read_text()
    world.check(typed.returncode == 0, f"the command ended with {typed.returncode}: {told}")
    for words in (
        "nothing is left, and the budget held",
        "NitroGuard",
        "== as promised",
        "LearnerGroup AWS::AutoScaling::AutoScalingGroup CREATE_IN_PROGRESS",
        "-- boot of i-",
        '"event": "run_ended"',
    ):
        world.check(words in told, f"the report lacks {words!r}")
    for secret in (ACCOUNT, "ASIA", "AKIA"):
        world.check(secret not in told, f"the report has {secret}")


SCENARIOS = {
    "first-deployment": Scenario(
        "`make first-deployment`: five cents are used up on purpose, and its report says that nothing is left.",
        play=_first_deployment,
        settings={"round_s": 20.0},
    ),
    "budget": Scenario(
        "The budget runs out: the learner ends, the guard takes everything down.",
        found=_KINDS,
        stop_reason="budget",
        settings={"round_s": 120.0},
    ),
    "learner-hangs": Scenario(
        "The learner hangs in the middle of a round: the guard hears nothing and ends it.",
        {"usd": _AMPLE_USD},
        ((2, "the learner hangs"),),
        seen=(("guard", "has not reported"),),
    ),
    "learner-lost": Scenario(
        "The learner is killed, then its instance: it goes on from the bucket.",
        {"max_rounds": _ROUNDS, "usd": _AMPLE_USD},
        (
            (2, "kill -9 of the learner"),
            (1, "EC2 takes the instance away"),
        ),
        stop_reason="max_rounds",
        rounds=_ROUNDS,
        seen=(("instance", "again (2 of 5)"),),
        instances=2,
    ),
    "guard-away": Scenario(
        "The guard is not called from the middle of the run until long after its end: the learner ends by itself.",
        faults=((2, "the guard is not called"),),
        stop_reason="budget",
    ),
    "boot-fails": Scenario(
        "No image can be pulled: the stack rolls back. Deployed again, the run trains, and then no replacement boots.",
        play=_boot_fails,
        instances=1 + 4,
    ),
    "deploy-fails": Scenario(
        "The stack's cache takes an hour: the guard ends the parts that wait.",
        {"usd": _AMPLE_USD},
        ((None, "the cache takes an hour, and then fails"),),
        rounds=0,
        seen=(
            ("guard", "the first phase of its start"),
            ("guard", "cache: it is creating"),
        ),
        instances=0,
        play=_deploy_fails,
    ),
    "stop": Scenario(
        "A user with the documented policy deploys two experiments, looks, and stops one: the other remains untouched.",
        play=_stop_one_of_two,
    ),
    "superseded": Scenario(
        "`cdk deploy` twice, without functions: the second run is refused while the first one runs to its end.",
        play=_deploy_another_run,
        rounds=_ROUNDS,
        instances=1,
    ),
    "external-pool": Scenario(
        "No learner, but a pool in the user's process: kill -9, opened again, and its warm actors use up the budget.",
        play=_open_pools,
        seen=(("guard", "its budget is used up"),),
    ),
    "function-learner": Scenario(
        "No instance, several learner functions: one is killed, one hangs, then the coordinator is killed.",
        {
            **_WITHOUT_INSTANCE,
            "learner": "stellaris, learners: 3, function_timeout_s: 20",
            "update_s": 300,
            "max_rounds": 2 * _ROUNDS,
        },
        (
            (1, "kill -9 of a learner function"),
            (1, "a learner function hangs"),
            (1, "kill -9 of the coordinator"),
        ),
        stop_reason="max_rounds",
        rounds=2 * _ROUNDS,
        found=("state machines", "functions"),
        instances=0,
    ),
    "coordinator-hangs": Scenario(
        "No instance, and a leg hangs: the guard hears nothing and ends the execution. No leg follows.",
        {**_WITHOUT_INSTANCE, "learner": "function"},
        ((1, "the coordinator hangs"),),
        seen=(("guard", "has not reported"),),
        instances=0,
    ),
}
NITRO = "nitro"
"""Of `rehearse`, too: experiments/nitro.yaml, as `make rehearse` plays it."""


def rehearse(name: str, out: Any, **settings: Any) -> dict[str, Any]:
    """Plays one scenario. Returns the content of its ``rehearsal.json``.

    Raises:
        RehearsalError: It could not be played to its end.
    """
    if name == NITRO:
        return play(read(ROOT / "experiments" / "nitro.yaml", ROUNDS), out, **settings)
    scenario = SCENARIOS[name]
    with Rehearsal(name, out, **{**scenario.settings, **settings}) as world:
        world.record.tell("rehearsal", f"{name}: {scenario.summary}")
        if scenario.play:
            scenario.play(world)
        else:
            _play(world, scenario)
        _check(world, scenario)
        return world.conclude()
