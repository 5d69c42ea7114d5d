"""What can happen to a deployment; each ends with nothing left but the bucket, and within the budget.

Every scenario is a function of a `Rehearsal`, which deploys, lets time pass, breaks something, and checks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.guard.ledger import FINISHED
from tests.helpers import ROOT
from tests.simulators.rehearsal.account import difference
from tests.simulators.rehearsal.clock import SKEW_VARIABLE
from tests.simulators.rehearsal.rehearsal import Rehearsal, experiment

_ROUNDS = 6
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
    for kind in ("instances", "auto scaling groups", "caches", "functions", "provisioned concurrency", "stacks"):
        world.check(found.get(kind), f"Describe finds no {kind} of {deployment.stack}")
    world.until_gone()
    world.check(world.rounds() >= 3, "hardly anything was trained")
    world.check(world.record.has("learner", "the budget does not hold"), "the budget did not run out")
    world.check(world.record.has("report", "is gone"), "nobody was told that it is gone")


def _killed(world: Rehearsal) -> None:
    """kill -9 of a learner that holds the cache: systemd starts it again, and it goes on from the bucket."""
    world.deploy(text=experiment(cache="learner", max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.after_rounds(2)
    world.record.tell("fault", "kill -9 of the learner")
    os.kill(world.machine().learner.pid, signal.SIGKILL)
    world.until_gone()
    world.check(world.record.has("instance", "again (2 of 5)"), "systemd did not start it again")
    _check_rounds(world)


def _no_cache(world: Rehearsal) -> None:
    """No cache, some invocations fail, and kill -9 of the learner: it goes on from the bucket."""
    world.account.functions.trouble = 0.2
    world.deploy(text=experiment(cache="none", max_rounds=_ROUNDS, usd=_AMPLE_USD))
    world.check(not world.found_deployed.get("caches"), "there is a cache")
    world.after_rounds(2)
    world.record.tell("fault", "kill -9 of the learner")
    os.kill(world.machine().learner.pid, signal.SIGKILL)
    world.until_gone()
    _check_rounds(world)


def _hangs(world: Rehearsal) -> None:
    """The learner stops for ever in the middle of a round: the guard hears nothing and ends it."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.after_rounds(2)
    world.record.tell("fault", "SIGSTOP of the learner")
    os.kill(world.machine().learner.pid, signal.SIGSTOP)
    world.is_hurried = True
    world.until_gone()
    world.check(world.record.has("guard", "has not been heard of"), "the guard ended it for another reason")


def _never_boots(world: Rehearsal) -> None:
    """An instance that does nothing at all: no user data run, no learner is ever heard of."""
    world.machines.is_dead_on_arrival = world.is_hurried = True
    world.deploy(text=experiment(usd=_AMPLE_USD))
    world.until_gone()
    world.check(world.record.has("guard", "never heard of"), "the guard ended it for another reason")


def _boot_fails(world: Rehearsal) -> None:
    """The learner's files cannot be fetched: each instance ends itself, until the group stays empty."""
    world.deploy(text=experiment(usd=_AMPLE_USD))
    store = world.account.client("s3")
    for bucket in store.list_buckets()["Buckets"]:
        if bucket["Name"].startswith("cdk-"):
            for one in store.list_objects_v2(Bucket=bucket["Name"])["Contents"]:
                store.delete_object(Bucket=bucket["Name"], Key=one["Key"])
    world.until_gone()
    world.check(len(world.machines.all) == 4, f"{len(world.machines.all)} instances were launched, not 4")


def _bare(world: Rehearsal) -> None:
    """A stack, and never an instance: no heartbeat, and no learner that could end anything."""
    world.is_hurried = True
    deployment = world.deploy(text=experiment(usd=_AMPLE_USD))
    world.account.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=deployment.outputs["LearnerGroupName"], DesiredCapacity=0)
    world.machines.is_dead_on_arrival = True
    world.until_gone()
    world.check(world.record.has("guard", "never heard of"), "the guard ended it for another reason")


def _interrupted(world: Rehearsal) -> None:
    """A spot instance is taken away: its replacement goes on, and reaches the target."""
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
    """The guard's function is killed after each kind of call that changes anything; the next tick goes on."""
    world.deploy(text=experiment(max_rounds=3, usd=_AMPLE_USD))
    world.until_gone()
    deaths = world.deaths.read_text().splitlines()
    world.record.tell("guard", f"died {len(deaths)} times, after: {'; '.join(deaths)}")
    for operation in ("UpdateAutoScalingGroup", "DeleteServerlessCache", "PutFunctionConcurrency", "DeleteStack"):
        world.check(any(death.startswith(operation) for death in deaths) or operation == "UpdateAutoScalingGroup",
                    f"it did not die after {operation}")


def _guard_away(world: Rehearsal) -> None:
    """Nobody calls the guard from the middle of the run until long after its end: the learner ends by itself."""
    world.deploy()
    world.after_rounds(2)
    world.record.tell("fault", "EventBridge calls the guard no more")
    world.is_guarded = False
    world.until(lambda: world.entry().state == FINISHED, "the learner's own end")
    again_s = world.account.clock.now() + 600.0
    world.until(lambda: world.account.clock.now() > again_s, "the guard's return")
    world.check(not world.machines.alive, "an instance is still there")
    world.record.tell("fault", "EventBridge calls the guard again")
    world.is_guarded = True
    world.until_gone()


def _delete_fails(world: Rehearsal) -> None:
    """CloudFormation cannot delete the stack at first; it is tried again."""
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
    """Two experiments; one is stopped by command, the other is not touched; then that one, too."""
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
    """``python -m runtime stop NAME``, while time passes."""
    world.record.tell("people", f"python -m runtime stop {name}")
    with subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.rehearsal.people", "stop", name, "--yes"], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **world.account.variables, "PYTHONPATH": str(ROOT)}) as stop:
        world.until(lambda: stop.poll() is not None, f"stop {name} to end")
        printed = stop.stdout.read()
    world.check(stop.returncode == 0, f"stop {name}: {printed}")


def _of(world: Rehearsal, name: str) -> list[str]:
    """All that Describe finds which bears that experiment's name."""
    return sorted(found for kind, names in world.account.inventory().items() if kind != "buckets"
                  for found in names if f"nitro-{name}" in found.lower())


def _check_rounds(world: Rehearsal) -> None:
    rows = world.account.objects("hopper/rehearsal/").get("rounds.jsonl", b"").splitlines()
    world.check(len(rows) == _ROUNDS, f"the bucket has {len(rows)} rounds, not {_ROUNDS}")


SCENARIOS = {
    "budget": Scenario(_budget, "budget"),
    "killed": Scenario(_killed, "max_rounds"),
    "no-cache": Scenario(_no_cache, "max_rounds"),
    "hangs": Scenario(_hangs),
    "never-boots": Scenario(_never_boots),
    "boot-fails": Scenario(_boot_fails),
    "bare": Scenario(_bare),
    "interrupted": Scenario(_interrupted, "max_rounds"),
    "trouble": Scenario(_trouble, "max_rounds"),
    "cache-restarts": Scenario(_cache_restarts, "max_rounds"),
    "guard-dies": Scenario(_guard_dies, "max_rounds", {"deaths": True}),
    "guard-away": Scenario(_guard_away, "budget"),
    "delete-fails": Scenario(_delete_fails, "max_rounds", {"MOTO_FAILING_DELETIONS": "Nitro-hopper=1"}),
    "clock-ahead": Scenario(_ahead),
    "clock-behind": Scenario(_behind),
    "two": Scenario(_two),
}


def rehearse(name: str, out: Any, **settings: Any) -> dict[str, Any]:
    """Plays one scenario; returns what its ``rehearsal.json`` holds.

    Raises:
        RehearsalError: It could not be played to its end.
    """
    scenario = SCENARIOS[name]
    with Rehearsal(name, out, **{**scenario.settings, **settings}) as world:
        world.record.tell("rehearsal", f"{name}: {scenario.summary}")
        scenario.play(world)
        if scenario.stop_reason is not None:
            for deployment in world.deployments:
                world.check(world.stop_reason(deployment) == scenario.stop_reason,
                            f"the run's end is {world.stop_reason(deployment)!r}, not {scenario.stop_reason!r}")
        return world.conclude()
