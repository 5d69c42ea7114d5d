"""What can happen to a deployment; each ends with nothing left but the bucket, and within the budget.

Every scenario is a function of a `Rehearsal`, which deploys, lets time pass, breaks something, and checks.
"""

from __future__ import annotations

import json
import os
import re
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
from tests.simulators.aws.moto_types import ACCOUNT
from tests.simulators.rehearsal.account import RUN, Deployment, RehearsalError, difference
from tests.simulators.rehearsal.attacker import ATTACKS, STORED
from tests.simulators.rehearsal.clock import SKEW_VARIABLE
from tests.simulators.rehearsal.recording import recorded_calls
from tests.simulators.rehearsal.rehearsal import (
    BUDGET_USD,
    Rehearsal,
    Trainer,
    cdk_context,
    experiment,
)

_CACHE, _ALIAS = "AWS::ElastiCache::ServerlessCache", "AWS::Lambda::Alias"
_NEVER_WARM = {
    "creation": {_ALIAS: [180.0, "Provisioned Concurrency configuration failed to be applied"]}
}
"""The fault of an account that keeps no actor warm, as `set_faults` takes it."""
_ROUNDS = 6
_LEG_S = 420.0
"""Of a coordinator, by the clock: room for some rounds, each of which may take 220 seconds."""
_AMPLE_USD = 2.0
"""More than a scenario needs that is not about the budget, on a slow machine too."""


@dataclass(frozen=True)
class Scenario:
    """Attributes:
    play: Does it, up to the end of every deployment.
    stop_reason: What the run's summary must say; null where there may be none.
    settings: More arguments of `Rehearsal`.
    """

    play: Callable[[Rehearsal], None]
    stop_reason: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line, for people."""
        return (self.play.__doc__ or "").splitlines()[0]


def _budget(world: Rehearsal) -> None:
    """The budget runs out: the learner ends, the guard takes everything down."""
    deployment = world.deploy()
    found = world.found_deployed
    for kind in (
        "instances",
        "auto scaling groups",
        "caches",
        "functions",
        "provisioned concurrency",
        "stacks",
    ):
        world.check(found.get(kind), f"Describe finds no {kind} of {deployment.stack}")
    world.until_gone()
    world.check(world.rounds() >= 2, "nothing was trained")
    world.check(world.record.has("report", "is gone"), "nobody was told that it is gone")


def _killed(world: Rehearsal) -> None:
    """kill -9 of the learner: systemd restarts it, and it continues from the bucket."""
    world.deploy(text=experiment(max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.after_rounds(2)
    world.record.tell("fault", "kill -9 of the learner")
    os.kill(world.machine().learner.pid, signal.SIGKILL)
    world.until_gone()
    world.check(world.record.has("instance", "again (2 of 5)"), "systemd did not start it again")
    _check_rounds(world)


def _no_cache(world: Rehearsal) -> None:
    """No cache, some invocations fail, and kill -9 of the learner: it continues from the bucket."""
    world.account.functions.trouble = 0.2
    world.deploy(text=experiment(cache="none", max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.check(not world.found_deployed.get("caches"), "there is a cache")
    world.after_rounds(2)
    world.record.tell("fault", "kill -9 of the learner")
    os.kill(world.machine().learner.pid, signal.SIGKILL)
    world.until_gone()
    _check_rounds(world)


def _all_local(world: Rehearsal) -> None:
    """Actors are processes of the learner, without function or cache. After kill -9 it continues from the bucket."""
    _on_one_instance(
        world,
        experiment(
            cache="none", fleet="local", instance_types="c7i.large", max_rounds=80, usd=_AMPLE_USD
        ),
    )


def _instances(world: Rehearsal) -> None:
    """Instances play and train on one machine, without function or cache. After kill -9 the learner continues."""
    _on_one_instance(
        world, experiment(learner="gmi", instance_types="c7i.large", max_rounds=80, usd=_AMPLE_USD)
    )
    rows = [
        json.loads(row)
        for row in world.account.objects("hopper/rehearsal/")["rounds.jsonl"].splitlines()
    ]
    world.check({row["instances"] for row in rows} == {2}, "no instance for each vCPU")


def _on_one_instance(world: Rehearsal, text: str) -> None:
    """Deploys an experiment that needs only an instance, and kills the learner."""
    world.deploy(text=text)
    for kind in ("functions", "provisioned concurrency", "caches"):
        world.check(not world.found_deployed.get(kind), f"there are {kind}")
    world.after_rounds(1)
    world.record.tell("fault", "kill -9 of the learner")
    os.kill(world.machine().learner.pid, signal.SIGKILL)
    world.until_gone()
    world.check(world.record.has("instance", "again (2 of 5)"), "systemd did not start it again")
    rows = [
        json.loads(row)
        for row in world.account.objects("hopper/rehearsal/")["rounds.jsonl"].splitlines()
    ]
    world.check({row["actors_cost_usd"] for row in rows} == {0.0}, "an actor was billed")
    calls = recorded_calls(world.account.calls)
    asked = [call for role, made in calls.items() if "Learner" in role for call in made]
    world.check(
        asked and not [call for call in asked if "lambda" in call], "the learner asked Lambda"
    )


def _no_instance(world: Rehearsal) -> None:
    """No instance: a coordinator runs the rounds in legs. One is killed, and the run continues from the bucket."""
    world.account.leg_s = _LEG_S
    deployment = world.deploy(
        text=experiment(
            cache="none",
            learner="function",
            provisioned=0,
            update_s=100,
            deadline_s=60,
            max_rounds=4 * _ROUNDS,
            usd=_AMPLE_USD,
        )
    )
    for kind in (
        "instances",
        "auto scaling groups",
        "volumes",
        "caches",
        "provisioned concurrency",
    ):
        world.check(not world.found_deployed.get(kind), f"there are {kind}")
    world.after_rounds(1)
    world.record.tell("fault", "kill -9 of the coordinator")
    for process in world.account.functions.process_ids(deployment.coordinator):
        os.kill(process, signal.SIGKILL)
    world.after_rounds(1)
    printed = " ".join(world.typed("status", "hopper")[1].split())
    world.check("executions RUNNING" in printed, f"status: {printed}")
    world.until_gone()
    _check_rounds(world, 4 * _ROUNDS)
    legs = [one for one, _ in world.account.functions.bills if one == deployment.coordinator]
    # The one that was killed, and as many more as this machine needs for the rounds.
    world.check(len(legs) >= 2, f"there was {len(legs)} leg")


def _plain(world: Rehearsal) -> None:
    """`cdk deploy` alone, twice, in a new account: the stack starts its rounds; a second run is refused meanwhile."""
    world.account.functions.account_concurrency = 10
    world.account.leg_s = _LEG_S
    text = experiment(
        cache="none",
        learner="function",
        provisioned=0,
        update_s=100,
        deadline_s=60,
        max_rounds=400,
        usd=_AMPLE_USD,
    )
    first = world.deploy(text=text)
    _after_bucket_rounds(world, "rehearsal", 1)
    _refuse_update(world, first, text)
    rows = world.account.objects("hopper/rehearsal/")["rounds.jsonl"].count(b"\n")
    _after_bucket_rounds(world, "rehearsal", rows + 1)
    _stop(world, "hopper")
    world.until_gone()


def _plain_instance(world: Rehearsal) -> None:
    """`cdk deploy` twice, with a learner on an instance: the second run is refused, and the first trains to its end."""
    text = experiment(
        cache="none", provisioned=0, instance_types="c7i.large", max_rounds=_ROUNDS, usd=_AMPLE_USD
    )
    first = world.deploy(text=text)
    world.after_rounds(1)
    _refuse_update(world, first, text)
    world.until_gone()
    world.check(len(world.machines.all) == 1, "there was a second instance")
    _check_rounds(world)


def _refuse_update(world: Rehearsal, first: Deployment, text: str) -> None:
    """Deploys another run into the stack of the first one, and checks that the first one goes on."""
    status = world.deploy_again("hopper", text.replace("seed: 3", "seed: 4"), "second")
    world.check(status == "UPDATE_ROLLBACK_COMPLETE", f"the update ended as {status}")
    entry = world.account.ledger.get(first.run)
    world.check(entry.is_open and entry.order is None, f"the first run ended: {entry.order}")
    world.check(world.account.ledger.get("hopper/second") is None, "the ledger has the second run")


def _after_bucket_rounds(world: Rehearsal, run: str, count: int) -> None:
    world.until(
        lambda: (
            world.account.objects(f"hopper/{run}/").get("rounds.jsonl", b"").count(b"\n") >= count
        ),
        f"round {count} of {run}",
    )


def _no_instance_budget(world: Rehearsal) -> None:
    """No instance, and the budget runs out: the last leg ends the run, the guard takes everything down."""
    world.account.leg_s = _LEG_S
    world.deploy(
        text=experiment(
            cache="none", learner="function", provisioned=0, update_s=100, deadline_s=60, usd=0.08
        )
    )
    world.until_gone()
    world.check(
        world.account.objects("hopper/rehearsal/").get("rounds.jsonl"), "nothing was trained"
    )


def _leg_hangs(world: Rehearsal) -> None:
    """No instance, and a leg hangs: the guard hears nothing and ends the execution. No leg follows."""
    deployment = world.deploy(
        text=experiment(
            cache="none",
            learner="function",
            provisioned=0,
            update_s=100,
            deadline_s=60,
            usd=_AMPLE_USD,
        )
    )
    world.after_rounds(1)
    world.record.tell("fault", "SIGSTOP of the coordinator")
    (leg,) = world.account.functions.process_ids(deployment.coordinator)
    os.kill(leg, signal.SIGSTOP)
    stopped_s = world.account.clock.now()
    world.is_hurried = True
    world.until(lambda: world.account.clock.now() > stopped_s + LEG_S, "Lambda's limit")
    world.check(
        world.record.has("guard", "has not reported"),
        "the guard did not end it before its leg ended",
    )
    # What Lambda does with what is still there.
    os.kill(leg, signal.SIGKILL)
    world.until_gone()
    legs = [one for one, _ in world.account.functions.bills if one == deployment.coordinator]
    world.check(len(legs) == 1, f"{len(legs) - 1} legs followed")


def _legs_fail(world: Rehearsal) -> None:
    """No instance, and every leg fails: the guard takes everything down.

    The state machine gives up and tells it, unless it has missed the learner before: the machine pauses between two
    tries by the clock on the wall.
    """
    deployment = world.deploy(
        text=experiment(
            cache="none",
            learner="function",
            provisioned=0,
            update_s=100,
            deadline_s=60,
            usd=_AMPLE_USD,
        )
    )
    world.after_rounds(1)
    _remove_files(world)
    world.record.tell("fault", "kill -9 of the coordinator")
    for process in world.account.functions.process_ids(deployment.coordinator):
        os.kill(process, signal.SIGKILL)
    world.until_gone()
    world.check(
        world.record.has("guard", "it has finished: a leg failed")
        or world.record.has("guard", "has not reported"),
        "the guard ended it for another reason",
    )


def _two_legs(world: Rehearsal) -> None:
    """No instance, and the rounds are started twice: the newer leg continues, the older one ends."""
    world.deploy(
        text=experiment(
            cache="none",
            learner="function",
            provisioned=0,
            update_s=100,
            deadline_s=60,
            max_rounds=2 * _ROUNDS,
            usd=_AMPLE_USD,
        )
    )
    world.after_rounds(1)
    machines = world.account.client("stepfunctions")
    (machine,) = machines.list_state_machines()["stateMachines"]
    world.record.tell("fault", "somebody begins the rounds again")
    machines.start_execution(stateMachineArn=machine["stateMachineArn"], name="again")
    world.until(
        lambda: (
            not machines.list_executions(
                stateMachineArn=machine["stateMachineArn"], statusFilter="RUNNING"
            )["executions"]
        ),
        "both executions' end",
    )
    legs = [
        one["status"]
        for one in machines.list_executions(stateMachineArn=machine["stateMachineArn"])[
            "executions"
        ]
    ]
    world.check(legs == ["SUCCEEDED", "SUCCEEDED"], f"the executions are {legs}")
    world.until_gone()
    _check_rounds(world, 2 * _ROUNDS)


def _external(world: Rehearsal) -> None:
    """No learner, but a pool in the user's process: kill -9, reopened, kill -9 again. The guard ends it."""
    text = experiment(cache="none", learner="external", deadline_s=60, usd=_AMPLE_USD)
    code, printed, context = world.make_deploy("hopper", text)
    world.check(code == 0, f"make deploy ({code}): {printed}")
    for words in ("your own process", "open it within 45 minutes"):
        world.check(words in " ".join(printed.split()), f"it does not say {words!r}: {printed}")
    deployment = world.deploy(text=text, context=context)
    for kind in ("instances", "auto scaling groups", "volumes", "caches", "state machines"):
        world.check(not world.found_deployed.get(kind), f"there are {kind}")
    for kind in ("functions", "provisioned concurrency"):
        world.check(
            world.found_deployed.get(kind), f"Describe finds no {kind} of {deployment.stack}"
        )
    first = world.trainer("hopper", calls=1000)
    _after_calls(world, first, 2)
    world.record.tell("fault", "kill -9 of the process that holds the pool")
    first.kill()
    promised_usd = world.entry().promised_usd
    second = world.trainer("hopper", calls=1000)
    _after_calls(world, second, 2)
    world.check(
        second.usd(0) >= promised_usd,
        f"opened again with {second.lines[0]}, and {promised_usd} was promised",
    )
    world.record.tell("fault", "kill -9 of the process that holds the pool")
    second.kill()
    _check_ended_quickly(world, "has not reported")


def _external_closed(world: Rehearsal) -> None:
    """No learner: a second pool takes over from the first and is closed. The guard ends the deployment."""
    world.deploy(
        text=experiment(
            cache="none", learner="external", provisioned=0, deadline_s=60, usd=_AMPLE_USD
        )
    )
    first = world.trainer("hopper", calls=1000)
    _after_calls(world, first, 1)
    second = world.trainer("hopper", calls=2, out="other")
    world.until(
        lambda: first.process.poll() is not None and second.process.poll() is not None,
        "the end of both",
    )
    world.check(
        "error: another learner or pool continues hopper/" in first.lines[-1],
        f"the first one says {first.lines}",
    )
    world.check(second.process.returncode == 0, f"the second one says {second.lines}")
    _check_ended_quickly(world, "it has finished: the pool was closed")


def _external_budget(world: Rehearsal) -> None:
    """No learner: warm actors use up the budget while the trainer trains. The guard ends it and tells the pool."""
    world.deploy(
        text=experiment(cache="none", learner="external", provisioned=6, deadline_s=60, usd=0.08)
    )
    training = world.directory / "pool.training"
    training.touch()
    trainer = world.trainer("hopper", calls=2)
    _after_calls(world, trainer, 1)
    _check_ended_quickly(world, "its budget is used up")
    training.unlink()
    world.until(lambda: trainer.process.poll() is not None, "the end of the pool")
    # By its own count, too, nothing more fits.
    world.check(
        trainer.lines[-1].startswith("error: the budget does not hold"),
        f"it says {trainer.lines[-1]}",
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


def _check_ended_quickly(world: Rehearsal, because: str) -> None:
    """Lets time pass until Describe finds nothing. From the order to the end, the guard looks at most twice."""
    world.is_hurried = True
    world.until(lambda: world.entry().order is not None, "the guard's order")
    ticks = len(world.record.ticks_s)
    world.until_gone()
    took = 1 + len(world.record.ticks_s) - ticks
    world.record.tell("guard", f"ended it in {took} looks")
    world.check(took <= 2, f"it was gone after {took} looks of the guard")
    world.check(
        world.record.has("guard", because),
        f"the guard ended it for another reason than {because!r}",
    )


def _stellaris(world: Rehearsal) -> None:
    """No instance, several learner functions at once: one is killed, one hangs, then the coordinator is killed."""
    text = experiment(
        cache="none",
        learner="stellaris, learners: 3, function_timeout_s: 20",
        provisioned=0,
        update_s=300,
        deadline_s=60,
        max_rounds=5 * _ROUNDS,
        usd=_AMPLE_USD,
    )
    deployment = world.deploy(
        text=text.replace("epochs: 10, minibatch_steps: 128", "epochs: 4, minibatch_steps: 256")
    )
    learner = f"{deployment.stack}-learner"
    world.check(learner in world.found_deployed["functions"], "Describe finds no learner function")
    for fault in (signal.SIGKILL, signal.SIGSTOP):
        world.after_rounds(1)
        world.until(lambda: world.account.functions.running(learner), "a gradient")
        world.record.tell("fault", f"{fault.name} of a learner function")
        os.kill(world.account.functions.process_ids(learner)[0], fault)
    world.after_rounds(1)
    world.record.tell("fault", "kill -9 of the coordinator, which holds the parameter function")
    for process in world.account.functions.process_ids(deployment.coordinator):
        os.kill(process, signal.SIGKILL)
    world.until_gone()
    _check_rounds(world, 5 * _ROUNDS)
    rows = [
        json.loads(row)
        for row in world.account.objects("hopper/rehearsal/")["rounds.jsonl"].splitlines()
    ]
    lost = [row["gradients_lost"] for row in rows]
    world.check(1 <= sum(lost) <= 2, f"the rounds lost {lost} gradients")
    world.check(
        any(row["gradient_staleness_mean"] for row in rows),
        "no gradient was computed beside another",
    )


def _remove_files(world: Rehearsal) -> None:
    """Returns the files that were uploaded with the templates, for learners that start."""
    world.record.tell("fault", "the learner's files are gone")
    store = world.account.client("s3")
    for bucket in store.list_buckets()["Buckets"]:
        if bucket["Name"].startswith("cdk-"):
            for one in store.list_objects_v2(Bucket=bucket["Name"])["Contents"]:
                store.delete_object(Bucket=bucket["Name"], Key=one["Key"])


def _hangs(world: Rehearsal) -> None:
    """The learner hangs in the middle of a round: the guard hears nothing and ends it."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.after_rounds(2)
    world.record.tell("fault", "SIGSTOP of the learner")
    os.kill(world.machine().learner.pid, signal.SIGSTOP)
    world.is_hurried = True
    world.until_gone()
    world.check(
        world.record.has("guard", "has not reported"), "the guard ended it for another reason"
    )


def _never_boots(world: Rehearsal) -> None:
    """An instance does nothing at all: its user data does not run, and no learner ever reports."""
    world.machines.is_dead_on_arrival = world.is_hurried = True
    world.deploy(text=experiment(usd=_AMPLE_USD))
    _check_taken_back(world, "Received 0 SUCCESS signal(s)")


def _never_reports(world: Rehearsal) -> None:
    """The learner's container hangs before it reports: CloudFormation does not wait longer than the start may take."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.until(lambda: world.machines.alive and world.machine().learner, "the learner")
    world.record.tell("fault", "SIGSTOP of the learner")
    os.kill(world.machine().learner.pid, signal.SIGSTOP)
    world.is_hurried = True
    _check_taken_back(world, "Received 0 SUCCESS signal(s)")


def _pull_fails(world: Rehearsal) -> None:
    """The learner's image cannot be pulled: the first instance reports it, and the stack rolls back at once."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    _forget_images(world)
    _check_taken_back(world, "Received 1 FAILURE signal(s)")
    world.check(
        any(
            name.endswith("-image.log") for name in world.account.objects("hopper/rehearsal/boot/")
        ),
        "the bucket does not tell which step failed",
    )


def _no_capacity(world: Rehearsal) -> None:
    """EC2 has no capacity: no learner ever exists, and none is billed."""
    _deploy_into(
        world,
        launches="We currently do not have sufficient g4dn.xlarge capacity in the zones requested",
    )
    _check_taken_back(world, "Received 0 SUCCESS signal(s)")
    world.check(not world.machines.all, "there was an instance")


def _unguarded(world: Rehearsal) -> None:
    """The guard's rule is disabled: CloudFormation asks the guard, and creates nothing for the experiment."""
    world.is_guarded = False
    world.record.tell("fault", "the guard's rule is disabled")
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.check(
        set(world.found_deployed) == {"stacks"},
        f"Describe finds {json.dumps(world.found_deployed)}",
    )
    world.is_guarded = world.is_hurried = True
    _check_taken_back(world, "the guard is not armed: it has never looked")


def _warm_fails(world: Rehearsal) -> None:
    """No actor can be kept warm: the stack rolls back before a learner exists."""
    _deploy_into(world, **_NEVER_WARM)
    _check_taken_back(world, "Provisioned Concurrency")
    world.check(not world.machines.all, "there was an instance")


def _cache_waits(world: Rehearsal) -> None:
    """The cache takes an hour to create and cannot be deleted meanwhile: the guard ends the parts that wait for it."""
    _deploy_into(world, creation={_CACHE: [3600.0, "the cache could not be made"]})
    world.until_gone()
    world.check(
        world.record.has("guard", "the first phase of its start"),
        "the guard ended it for another reason",
    )
    world.check(
        world.record.has("guard", "cache: it is creating"), "nobody was told what is waited for"
    )
    world.check(not world.machines.all, "there was an instance")
    _check_bill(world)


def _rollback_fails(world: Rehearsal) -> None:
    """A failed start cannot be rolled back: the guard lists the leftovers, and finally deletes them."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    _forget_images(world)
    world.until(
        lambda: world.record.has("report", "could not be deleted"), "a report of what is left"
    )
    world.check(world.is_free(), "something that costs money is left")
    world.check(world.record.has("report", "[Learner]"), "the report does not say what is left")
    world.until_gone()
    _check_bill(world)


def _deploy_into(world: Rehearsal, **faults: Any) -> None:
    """Deploys into an account with faults, as `set_faults` takes them, without waiting."""
    world.account.set_faults(**faults)
    world.is_hurried = True
    world.deploy(text=experiment(usd=_AMPLE_USD))


def _check_taken_back(world: Rehearsal, because: str) -> None:
    """Lets time pass until a failed start is gone. Users were notified, and pay only for the parts that existed."""
    world.until_gone()
    world.check(
        world.record.has("stack", "ROLLBACK_IN_PROGRESS"), "CloudFormation did not take it back"
    )
    world.check(world.record.has("stack", because), f"CloudFormation did not say {because!r}")
    world.check(world.record.has("report", "is gone"), "nobody was told that it is gone")
    world.check(world.rounds() == 0, "something was trained")
    _check_bill(world)


def _check_bill(world: Rehearsal) -> None:
    """Checks that the ledger bills only parts that existed, to within five minutes of all possible parts."""
    entry, deployment = world.entry(), world.deployments["hopper"]
    slack_usd = deployment.limit("burn-usd-per-hour") / 12
    world.check(
        entry.spent_usd <= world.counted_usd() + slack_usd,
        f"billed was ${entry.spent_usd:.4f}, and ${world.counted_usd():.4f} existed",
    )


def _forget_images(world: Rehearsal) -> None:
    world.record.tell("fault", "no image can be pulled")
    for image in world.account.images.iterdir():
        image.unlink()


def _boot_fails(world: Rehearsal) -> None:
    """An instance is taken away, and its replacements get no image: each ends itself, until the last gives up."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.after_rounds(1)
    world.record.tell("fault", "EC2 takes the instance away")
    _forget_images(world)
    world.account.client("ec2").terminate_instances(InstanceIds=[world.machine().id])
    world.until_gone()
    world.check(
        len(world.machines.all) == 4, f"{len(world.machines.all)} instances were launched, not 4"
    )


def deployer(world: Rehearsal) -> None:
    """A user with the documented policy deploys, looks and destroys, with every kind of learner."""
    text = experiment(usd=_AMPLE_USD)
    world.machines.is_dead_on_arrival = True
    _, printed = world.typed_deploy("hopper", text)
    world.check(
        "cdk deploy NitroResults" in printed,
        f"in an empty account it stops before the CDK: {printed}",
    )
    code, printed, context = world.make_deploy("hopper", text)
    world.check(code == 0, f"make deploy ({code}): {printed}")
    world.deploy(text=text, context=context)
    _look_and_stop(world, "hopper")
    world.deploy(
        "walker",
        experiment(
            cache="none",
            learner="function",
            provisioned=0,
            update_s=100,
            deadline_s=60,
            usd=_AMPLE_USD,
        ).replace("Hopper-v5", "Walker2d-v5"),
    )
    _look_and_stop(world, "walker")
    world.deploy(
        "hopper",
        experiment(cache="none", learner="external", provisioned=0, deadline_s=60, usd=_AMPLE_USD),
    )
    trainer = world.trainer("hopper", calls=1)
    world.until(lambda: trainer.process.poll() is not None, "the end of a pool")
    world.check(trainer.process.returncode == 0, f"the pool says {trainer.lines}")
    world.is_hurried = True
    world.until_gone("hopper")


def first_deployment(world: Rehearsal) -> None:
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
            *("--run", RUN, "--dated-prices", "--yes"),
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
        world.share(name, text)
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


def _look_and_stop(world: Rehearsal, name: str) -> None:
    _look(world, name)
    _stop(world, name)
    world.is_hurried = True
    world.until_gone(name)
    world.is_hurried = False
    _look(world, name)


def _look(world: Rehearsal, name: str) -> None:
    for words in (("status",), ("status", name), ("logs", name), ("results", name)):
        _, printed = world.typed(*words)
        world.check("not authorized" not in " ".join(printed.split()), f"{words[0]}: {printed}")


def _again(world: Rehearsal) -> None:
    """A run is repeated: it trains after a failed start, is refused without budget, and continues with more."""
    world.account.set_faults(**_NEVER_WARM)
    first = _deploy_again(world, experiment())
    world.account.set_faults()
    second = _deploy_again(
        world, experiment(), f"${first:.4f} of ${BUDGET_USD:.4f} by earlier deployments"
    )
    rounds = world.rounds()
    world.check(rounds >= 1, "nothing was trained")
    world.check(
        first < second <= BUDGET_USD,
        f"after ${first:.4f} the ledger has ${second:.4f} of ${BUDGET_USD:.4f}",
    )
    before = world.account.inventory()
    code, printed, _ = world.make_deploy("hopper", experiment())
    needed = re.search(r"allowed: budget.usd from ([0-9.]+)", printed)
    world.check(
        code == 2 and needed and "cdk deploy" not in printed, f"it was not refused: {printed}"
    )
    world.check(world.account.inventory() == before, "something was made before it was refused")
    enough = experiment(usd=float(needed[1]) if needed else _AMPLE_USD)
    third = _deploy_again(world, enough, f"${second:.4f} of")
    world.check(
        second < third <= float(needed[1]), f"after ${second:.4f} the ledger has ${third:.4f}"
    )
    world.check(
        world.record.has("learner", f"goes on after round {rounds}"),
        f"it does not go on after round {rounds}",
    )


def _deploy_again(world: Rehearsal, text: str, told: str = "") -> float:
    """Runs `make deploy` until the guard has taken it down. Returns the run's cost by then, in dollars."""
    code, printed, context = world.make_deploy("hopper", text)
    world.check(
        code == 0 and told in printed, f"make deploy ({code}) does not say {told!r}: {printed}"
    )
    world.deploy(text=text, context=context)
    world.until_gone()
    return world.entry().spent_usd


def _new_account(world: Rehearsal) -> None:
    """A new account (ten functions, two vCPUs, no GPU) refuses what does not fit, and trains the rest in waves."""
    world.account.functions.account_concurrency = 10
    text = experiment(max_rounds=3, usd=_AMPLE_USD, provisioned=8).replace(
        "actors_min: 2, actors_max: 6", "actors_min: 12, actors_max: 14"
    )
    code, printed, _ = world.make_deploy("hopper", text)
    world.check(
        code == 2
        and "the quota L-DB2E81BA allows 0" in printed
        and "cdk deploy Nitro-" not in printed,
        f"a GPU was not refused: {printed}",
    )
    text = text.replace("g4dn.xlarge", "c7i.xlarge, c7i.large")
    code, printed, context = world.make_deploy("hopper", text)
    told = "10 functions; none reserved for actors, 0 actors kept warm; waves per round: 2"
    world.check(told in " ".join(printed.split()), f"it does not say {told!r}: {printed}")
    world.check(code == 0, f"make deploy: {printed}")
    world.deploy(text=text, context=context)
    world.until_gone()
    rows = [
        json.loads(row)
        for row in world.account.objects("hopper/rehearsal/")["rounds.jsonl"].splitlines()
    ]
    world.check(
        [row["actors_returned"] for row in rows] == [row["actor_count"] for row in rows]
        and len(rows) == 3,
        "not all actors came back",
    )
    world.check(not world.record.has("guard", "failed"), "the guard found no room for itself")


def _one_hangs(world: Rehearsal) -> None:
    """Two are stopped, and Lambda does not answer for one: the other's end does not wait."""
    for name in ("hopper", "walker"):
        world.deploy(name, experiment(usd=_AMPLE_USD))
    for name in ("hopper", "walker"):
        world.after_rounds(1, name)
    world.record.tell("fault", "Lambda answers nothing any more about Nitro-hopper")
    world.account.api.fall_silent("Nitro-hopper")
    _order(world, "hopper")
    world.until(
        lambda: world.record.has("guard", "Nitro-hopper: TeardownError"), "a call that hangs"
    )
    _order(world, "walker")
    ticks = len(world.record.ticks_s)
    world.until(lambda: world.is_free("walker"), "the end of all that walker costs")
    took = len(world.record.ticks_s) - ticks
    # One sees the order, and waits for the learner's results.
    world.check(took <= 2 + 2, f"the other one's money ended after {took} looks of the guard")
    world.until_gone("walker")
    world.check(not world.is_gone("hopper"), "Lambda's silence held nothing up")
    world.record.tell("fault", f"after {took} looks Lambda answers again")
    world.account.api.fall_silent("")
    world.until_gone()


def _order(world: Rehearsal, name: str) -> None:
    """Orders the end of that deployment, as `stop` does, and leaves it to the guard."""
    deployment, now_s = world.deployments[name], world.account.clock.now()
    world.record.tell("people", f"order the end of {deployment.stack}")
    world.account.ledger.order(
        deployment.run, stack=deployment.stack_id, reason="somebody stopped it", now_s=now_s
    )


def _attack(world: Rehearsal) -> None:
    """One actor per round attacks: stores garbage, too much, and others' trajectories, and tries what is forbidden."""
    world.account.actor_handler = "tests.simulators.rehearsal.attacker.handler"
    world.deploy(text=experiment(max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.until_gone()
    tried = [json.loads(line) for line in (world.directory / "attacks").read_text().splitlines()]
    world.record.tell(
        "actors", f"{len(tried)} attacks: {', '.join(sorted({one['attack'] for one in tried}))}"
    )
    world.check({one["attack"] for one in tried} >= set(ATTACKS), "not all attacks were tried")
    allowed = [one["attack"] for one in tried if one["attack"] not in STORED and not one["refused"]]
    world.check(not allowed, f"the cache let through: {allowed}")
    words = "ForeignMessageError"
    world.check(
        world.record.has("learner", words), f"no trajectory was refused because of {words!r}"
    )
    _check_rounds(world)


def _interrupted(world: Rehearsal) -> None:
    """A spot instance is taken away: its replacement continues, and reaches the target."""
    world.deploy(text=experiment(max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.after_rounds(2)
    first = world.machine().id
    world.record.tell("fault", f"EC2 takes {first} away")
    world.account.client("ec2").terminate_instances(InstanceIds=[first])
    world.until_gone()
    world.check(world.machine().id != first, "nothing took its place")
    _check_rounds(world)


def _trouble(world: Rehearsal) -> None:
    """Three of ten invocations are throttled, fail, hang, or end without an answer."""
    world.account.functions.trouble = 0.3
    world.deploy(text=experiment(max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.until_gone()
    _check_rounds(world)


def _cache_restarts(world: Rehearsal) -> None:
    """The cache forgets everything in the middle of the run."""
    world.deploy(text=experiment(max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.after_rounds(2)
    world.record.tell("fault", "the cache is restarted, empty")
    world.account.cache.restart()
    world.until_gone()
    _check_rounds(world)


def _guard_dies(world: Rehearsal) -> None:
    """The guard's function is killed after each kind of call that changes anything. The next tick continues."""
    world.deploy(text=experiment(max_rounds=3, usd=_AMPLE_USD))
    world.until_gone()
    deaths = world.deaths.read_text().splitlines()
    world.record.tell("guard", f"died {len(deaths)} times, after: {'; '.join(deaths)}")
    for operation in (
        "SetDesiredCapacity",
        "DeleteServerlessCache",
        "PutFunctionConcurrency",
        "DeleteStack",
    ):
        world.check(
            any(death.startswith(operation) for death in deaths)
            or operation == "SetDesiredCapacity",
            f"it did not die after {operation}",
        )


def _guard_away(world: Rehearsal) -> None:
    """The guard is not called from the middle of the run until long after its end: the learner ends by itself."""
    world.deploy()
    world.after_rounds(2)
    world.record.tell("fault", "EventBridge calls the guard no more")
    world.is_guarded, world.guard_was_away = False, True
    world.until(lambda: world.entry().state == FINISHED, "the learner's own end")
    again_s = world.account.clock.now() + 600.0
    world.until(lambda: world.account.clock.now() > again_s, "the guard's return")
    world.check(not world.machines.alive, "an instance is still there")
    world.record.tell("fault", "EventBridge calls the guard again")
    world.is_guarded = True
    world.until_gone()


def _delete_fails(world: Rehearsal) -> None:
    """CloudFormation cannot delete the stack at first, and tries again."""
    world.deploy(text=experiment(max_rounds=3, usd=_AMPLE_USD))
    world.until_gone()
    world.check(world.record.has("report", "could not be deleted"), "nobody was told")


def _ahead(world: Rehearsal) -> None:
    """The learner's clock is ten minutes ahead of the guard's."""
    _with_skew(world, 600)


def _behind(world: Rehearsal) -> None:
    """The learner's clock is ten minutes behind the guard's."""
    _with_skew(world, -600)


def _with_skew(world: Rehearsal, skew_s: int) -> None:
    world.machines.variables[SKEW_VARIABLE] = str(skew_s)
    world.deploy()
    world.until_gone()
    world.check(world.rounds() >= 1, "nothing was trained")


def _two(world: Rehearsal) -> None:
    """Two experiments: one is stopped by command, the other remains untouched, and is then stopped."""
    world.deploy("hopper", experiment(usd=_AMPLE_USD))
    world.deploy("walker", experiment(usd=_AMPLE_USD).replace("Hopper-v5", "Walker2d-v5"))
    for name in ("hopper", "walker"):
        world.after_rounds(1, name)
    before = _of(world, "hopper")
    _stop(world, "walker")
    world.until_gone("walker")
    gone = difference({"all": before}, {"all": _of(world, "hopper")})
    world.check(not gone, f"of the other experiment: {gone}")
    world.check(not _of(world, "walker"), f"left: {_of(world, 'walker')}")
    rounds = world.rounds("hopper")
    world.after_rounds(1, "hopper")
    world.check(world.rounds("hopper") > rounds, "the other one does not go on")
    _stop(world, "hopper")
    world.until_gone()


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


def _check_rounds(world: Rehearsal, wanted: int = _ROUNDS) -> None:
    rows = world.account.objects("hopper/rehearsal/").get("rounds.jsonl", b"").splitlines()
    world.check(len(rows) == wanted, f"the bucket has {len(rows)} rounds, not {wanted}")


SCENARIOS = {
    "budget": Scenario(_budget, "budget", {"round_s": 120.0}),
    "killed": Scenario(_killed, "max_rounds"),
    "no-cache": Scenario(_no_cache, "max_rounds"),
    "all-local": Scenario(_all_local, "max_rounds"),
    "instances": Scenario(_instances, "max_rounds"),
    "no-instance": Scenario(_no_instance, "max_rounds"),
    "plain": Scenario(
        _plain, settings={"MOTO_LAMBDA_CONCURRENCY_QUOTA": "10", "MOTO_EC2_GPU_VCPU_QUOTA": "0"}
    ),
    "plain-instance": Scenario(_plain_instance),
    "no-instance-budget": Scenario(_no_instance_budget, "budget", {"rate": 30.0}),
    "legs-fail": Scenario(_legs_fail, settings={"rate": 4.0}),
    "leg-hangs": Scenario(_leg_hangs),
    "two-legs": Scenario(_two_legs, "max_rounds"),
    "stellaris": Scenario(_stellaris, "max_rounds"),
    "external": Scenario(_external),
    "external-closed": Scenario(_external_closed),
    "external-budget": Scenario(_external_budget),
    "hangs": Scenario(_hangs),
    "never-boots": Scenario(_never_boots),
    "never-reports": Scenario(_never_reports),
    "pull-fails": Scenario(_pull_fails),
    "no-capacity": Scenario(_no_capacity),
    "unguarded": Scenario(_unguarded),
    "warm-fails": Scenario(_warm_fails),
    "cache-waits": Scenario(_cache_waits),
    "rollback-fails": Scenario(
        _rollback_fails, settings={"MOTO_FAILING_DELETIONS": "Nitro-hopper=3"}
    ),
    "boot-fails": Scenario(_boot_fails),
    "deployer": Scenario(deployer),
    "first-deployment": Scenario(first_deployment, settings={"round_s": 20.0}),
    "again": Scenario(_again),
    "new-account": Scenario(
        _new_account,
        "max_rounds",
        {
            "MOTO_LAMBDA_CONCURRENCY_QUOTA": "10",
            "MOTO_EC2_GPU_VCPU_QUOTA": "0",
            "MOTO_EC2_VCPU_QUOTA": "2",
        },
    ),
    "attack": Scenario(_attack, "max_rounds"),
    "interrupted": Scenario(_interrupted, "max_rounds"),
    "trouble": Scenario(_trouble, "max_rounds"),
    "cache-restarts": Scenario(_cache_restarts, "max_rounds"),
    "guard-dies": Scenario(_guard_dies, "max_rounds", {"deaths": True}),
    "guard-away": Scenario(_guard_away, "budget"),
    "delete-fails": Scenario(
        _delete_fails, "max_rounds", {"MOTO_FAILING_DELETIONS": "Nitro-hopper=1"}
    ),
    "clock-ahead": Scenario(_ahead),
    "clock-behind": Scenario(_behind),
    "two": Scenario(_two),
    "one-hangs": Scenario(_one_hangs),
}


def rehearse(name: str, out: Any, **settings: Any) -> dict[str, Any]:
    """Plays one scenario. Returns the content of its ``rehearsal.json``.

    Raises:
        RehearsalError: It could not be played to its end.
    """
    scenario = SCENARIOS[name]
    with Rehearsal(name, out, **{**scenario.settings, **settings}) as world:
        world.record.tell("rehearsal", f"{name}: {scenario.summary}")
        scenario.play(world)
        if scenario.stop_reason is not None:
            for deployment in world.deployments:
                world.check(
                    world.stop_reason(deployment) == scenario.stop_reason,
                    f"the run's end is {world.stop_reason(deployment)!r}, not {scenario.stop_reason!r}",
                )
        return world.conclude()
