"""One rehearsal: an account, deployments in it, and the loop in which their time passes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runtime.aws.ledger import FINISHED, Entry
from tests.helpers import ROOT
from tests.simulators.aws.moto_types import update
from tests.simulators.rehearsal.account import (
    DEPLOYER_POLICY,
    RUN,
    SHARED_STACKS,
    Account,
    Deployment,
    RehearsalError,
    difference,
    let_in,
)
from tests.simulators.rehearsal.machines import Machine, Machines
from tests.simulators.rehearsal.record import Bill, Record, Watch
from tests.stacks.iam import decisions

RATE = 60.0
"""Highest rate of the clock: its seconds per wall-clock second."""
PATIENCE_S = 1800.0
"""Upper bound, in wall-clock seconds, of waits that normally end much sooner."""
_BOOTING, _ENDING = 12.0, 20.0
"""Factors by which the clock slows down while a machine does work that takes as much time here as it does in AWS."""
_COUNTED = 0.1
"""Rate of the clock while a machine works, if rounds have a length of their own."""
_LIVELY_S = 3.0
"""After this many seconds of silence, a learner counts as working, and the clock waits for it."""
STEP_S = 0.2
"""Pause between two steps. Events between them count as if they happened at the second."""
EXPERIMENT = """\
environment: {{id: Hopper-v5}}
algorithm: {{kind: ppo, epochs: 10, minibatch_steps: 128}}
detector: {{subset_size: 128, lanczos_steps: 6}}
scaler: {{kind: nitro, actors_min: 2, actors_max: 6, window_rounds: 3, decay_factor: 0.99}}
actor: {{fragment_steps: 256, timeout_s: 30, provisioned: {provisioned}}}
learner: {{kind: {learner}, device: cpu, threads: 1, update_timeout_s: {update_s}{instance}}}
fleet: {{round_deadline_s: {deadline_s}}}
cache: {{kind: {cache}}}
budget: {{usd: {usd}}}
stop: {{max_rounds: {max_rounds}}}
evaluation: {{every_rounds: 10, episodes: 1}}
seed: 3
"""
"""A small experiment. Its limits allow for rounds that take ten seconds on the wall clock."""
BUDGET_USD = 0.4


def experiment(
    *,
    cache: str = "redis",
    usd: float = BUDGET_USD,
    max_rounds: int | None = None,
    provisioned: int = 2,
    instance_types: str = "g4dn.xlarge",
    learner: str = "instance",
    update_s: int = 300,
    deadline_s: int = 600,
) -> str:
    """Returns the text of the rehearsed experiment file."""
    text = EXPERIMENT.format(
        cache=cache,
        usd=usd,
        max_rounds="null" if max_rounds is None else max_rounds,
        provisioned=provisioned,
        instance=f", instance_types: [{instance_types}]" if learner == "instance" else "",
        learner=learner,
        update_s=update_s,
        deadline_s=deadline_s,
    )
    # Without a learner here, there is no training.
    return text.replace(", device: cpu, threads: 1", "") if learner == "external" else text


@dataclass(frozen=True)
class Trainer:
    """A user's process that holds a pool.

    Attributes:
        process: The process.
        output: File with its output.
        directory: The pool's directory.
    """

    process: subprocess.Popen
    output: Path
    directory: Path

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def calls(self) -> int:
        """Number of calls that have ended."""
        return sum(line.startswith("call ") for line in self.lines)

    def usd(self, line: int = -1) -> float:
        """Dollars spent according to one of its lines."""
        return float(self.lines[line].rpartition(" ")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Rehearsal:
    """Deployments in an account, from the first template to the last Describe.

    Attributes:
        account: The account.
        machines: Their learners' instances.
        record: The events.
        deployments: All deployments so far, by name.
        bills: What each has cost so far, counted from Describe.
        is_hurried: Whether the clock runs at its full rate even if a machine works. For machines that do nothing.
        found_deployed: Resources of the newest deployment, found with Describe.
        is_guarded: Whether EventBridge runs the guard each minute.
        deployer_policy: The people's policy: the one that the docs recommend.
        guard_was_away: Whether the guard was off so long that nothing recorded when resources ended.
    """

    def __init__(
        self,
        name: str,
        out: Path,
        *,
        round_s: float = 0.0,
        is_quiet: bool = False,
        **moto_variables: str,
    ) -> None:
        """Args:
        name: The scenario's.
        out: Folder for ``rehearsal.json`` and the run's ``rounds.jsonl``.
        round_s: Seconds that the clock skips after each round. If there are any, it almost stands still while a machine
            works, so that the number of rounds in a budget does not depend on this machine's speed.
        moto_variables: See `tests.simulators.aws.moto_types`.
        """
        self.name, self.out, self._round_s = name, out, round_s
        self._rounds_skipped = 0
        self._is_quiet, self._moto_variables = is_quiet, moto_variables
        self._stack = ExitStack()
        self.directory = Path(
            self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="rehearsal-", ignore_cleanup_errors=True)
            )
        )
        self.deployments: dict[str, Deployment] = {}
        self.bills: dict[str, Bill] = {}
        self._problems: list[str] = []
        self.deployer_policy = DEPLOYER_POLICY.read_text()
        self.is_hurried, self.is_guarded, self.guard_was_away = False, True, False
        self._is_shared = False
        self._next_tick_s = 0.0
        self._trainers: list[Trainer] = []
        self._typed: list[subprocess.Popen] = []

    def __enter__(self) -> Self:
        self._wall_s = time.time()
        with ExitStack() as stack:
            stack.push(self._stack.pop_all())
            self.account = stack.enter_context(Account(self.directory, **self._moto_variables))
            self.record = Record(self.account.clock, is_quiet=self._is_quiet)
            self._watch = Watch(self.account, self.record)
            self.machines = Machines(
                self.directory / "machines",
                self.account.moto,
                self.account.clock,
                self.record.tell,
                {**self.account.variables, "IMAGES": str(self.account.images)},
                self.account.session_of_instance,
            )
            stack.callback(self.machines.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for trainer in self._trainers:
            trainer.kill()
        self._stack.close()

    # Actions of scenarios

    def deploy(
        self, name: str = "hopper", text: str = "", context: Mapping[str, str] | None = None
    ) -> Deployment:
        """Deploys an experiment, perhaps again. The first call also deploys the shared stacks and arms the guard.

        Args:
            context: See `Account.synthesise`.
        """
        self.account.clock.set_rate(1.0)
        assembly = self.account.synthesise(name, text or experiment(), context)
        self.share(assembly)
        # Skip the ticks of the time that this took: EventBridge did not wait, and there was nothing new.
        if self.is_guarded:
            self.tick()
        for bill in self.bills.values():
            bill.look()
        if name not in self.bills:
            self.bills[name] = Bill(self.account, f"Nitro-{name}")
        made = self.deployments[name] = self.account.deploy(assembly, name)
        self._next_tick_s = self.account.clock.now() + 60.0
        self.record.tell(
            "stack",
            f"{made.stack} is begun: budget ${made.limit('budget-usd'):g}, of it "
            f"${made.limit('tail-usd'):.4f} for taking it down",
            stack=made.stack,
        )
        self.found_deployed = difference(self.account.inventory(), self._found_before)
        return made

    def deploy_again(self, name: str, text: str, run: str) -> str:
        """Types a second `cdk deploy`, whose file makes another run; returns the stack's status."""
        self.account.clock.set_rate(1.0)
        self.record.tell("people", f"cdk deploy Nitro-{name}, again, for run {run}")
        assembly = self.account.synthesise(name, text, {"run": run})
        self.deployments[name] = self.account.deploy(assembly, name, update)
        self._next_tick_s = self.account.clock.now() + 60.0
        status = self.status(name)
        self.record.tell("stack", f"Nitro-{name} is {status}")
        return status

    def share(self, assembly: Path) -> None:
        """Deploys the shared stacks, unless they exist."""
        if self.deployments or self._is_shared:
            return
        self._found_first = self.account.inventory()
        self.account.deploy_shared(assembly)
        self._found_before = self.account.inventory()
        self._is_shared = True
        self.record.tell("stack", f"{', '.join(SHARED_STACKS)} are there")
        self.record.deployed()

    def make_deploy(self, name: str, text: str) -> tuple[int, str, dict[str, str]]:
        """Runs `make deploy` up to the CDK, without creating the experiment's stack. The shared stacks exist by then.

        Returns:
            Its exit code, its output, and the context that it hands to the CDK; empty if it refuses.
        """
        self.account.clock.set_rate(1.0)
        self.share(self.account.synthesise(name, text))
        self.record.tell("people", f"make deploy EXPERIMENT={name}.yaml ARGS=--yes")
        code, printed = self.typed_deploy(name, text)
        words = next(
            (line for line in printed.splitlines() if line.startswith(f"cdk deploy Nitro-{name} ")),
            "",
        )
        label = ""
        for line in printed.splitlines():
            label = line.split(" ")[0] or label
            if label in ("spent", "account", "error:"):
                self.record.tell("people", line)
        return code, printed, cdk_context(words)

    def typed_deploy(self, name: str, text: str) -> tuple[int, str]:
        """Runs the command behind `make deploy` in the account; returns its exit code and output."""
        self.account.bootstrap()
        return self.typed(
            "deploy",
            str(self.account.write(name, text)),
            "--run",
            RUN,
            "--yes",
        )

    def typed(self, *words: str) -> tuple[int, str]:
        """Runs a typed command to its end; returns its exit code and output."""
        with self.people(*words) as asked:
            printed = asked.communicate()[0]
        return asked.returncode, printed

    def people(
        self, *words: str, stdin: Any = None, stdout: Any = subprocess.PIPE, **variables: str
    ) -> subprocess.Popen:
        """Starts a typed command, see `tests.simulators.rehearsal.people`. Its output goes to a pipe."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.rehearsal.people", *words],
            cwd=ROOT,
            text=True,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=self._people() | variables,
        )
        self._typed.append(process)
        return process

    def _people(self) -> dict[str, str]:
        """Returns the environment of typed commands, with the rights of the deployer's policy."""
        return {
            **os.environ,
            **self.account.variables,
            **let_in(self.account.client, self.deployer_policy),
            "PYTHONPATH": str(ROOT),
            "CDK_DOCKER": "true",
        }

    def trainer(self, name: str, calls: int, out: str = "pool") -> Trainer:
        """Starts a user's process with a pool of that deployment; see `tests.simulators.rehearsal.pool`."""
        number = len(self._trainers)
        with (self.directory / f"trainer-{number}").open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.simulators.rehearsal.pool",
                    str(self.account.directory / f"{name}.yaml"),
                    str(self.directory / out),
                    str(calls),
                ],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._people(),
            )
        self._trainers.append(
            Trainer(process, self.directory / f"trainer-{number}", self.directory / out)
        )
        return self._trainers[-1]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Lets time pass until ``condition()`` holds.

        Raises:
            RehearsalError: It never did.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise RehearsalError(f"waited in vain for {what}")
            self.step()

    def until_gone(self, *names: str) -> None:
        """Lets time pass until the guard has ended these deployments, or all of them."""
        for name in names or tuple(self.deployments):
            self.until(lambda name=name: self.is_gone(name), f"the end of {name}")
        self.until(
            lambda: not any(machine.is_running for machine in self.ended_machines()),
            "the last processes",
        )
        self.until(lambda: not any(self._legs()), "the last leg")
        self.step()

    def step(self) -> None:
        """Does everything that is due, and records it."""
        clock = self.account.clock
        clock.set_rate(self._rate_now())
        self.machines.step()
        for bill in self.bills.values():
            bill.look()
        if self.is_guarded and clock.now() >= self._next_tick_s:
            self.tick()
        for machine in self.machines.all.values():
            self._watch.files(machine)
        for trainer in self._trainers:
            self._watch.rounds(trainer.directory)
        for deployment in self.deployments.values():
            self._watch.stack(deployment)
            self._watch.ledger(deployment)
        self._watch.reports()
        if self._round_s:
            rounds = sum(event["who"] == "actors" for event in self.record.events)
            clock.advance(self._round_s * (rounds - self._rounds_skipped))
            self._rounds_skipped = rounds
        if self._is_idle():
            clock.advance(max(0.0, self._next_tick_s - clock.now()))
        else:
            time.sleep(STEP_S)

    def tick(self) -> dict[str, Any]:
        """Runs the guard at the wall clock's rate, because it takes no longer than in AWS."""
        clock = self.account.clock
        clock.set_rate(1.0)
        self._next_tick_s = clock.now() + 60.0
        answer = self.account.tick()
        self._watch.guard(answer)
        return answer

    def entry(self, name: str = "hopper") -> Entry | None:
        return self.account.entry(self.deployments[name])

    def is_gone(self, name: str = "hopper") -> bool:
        """Whether the guard has found that nothing is left of it."""
        entry, deployment = self.entry(name), self.deployments[name]
        order = entry.order_for(deployment.stack_id) if entry else None
        return order is not None and "gone" in order.steps

    def machine(self, name: str = "hopper") -> Machine:
        """Returns the newest instance of that deployment."""
        group = self.deployments[name].group
        return [machine for machine in self.machines.all.values() if machine.group == group][-1]

    def ended_machines(self) -> list[Machine]:
        alive = self.machines.alive
        return [machine for machine in self.machines.all.values() if machine not in alive]

    def rounds(self, name: str = "hopper") -> int:
        """Returns the number of finished rounds on the newest instance."""
        group = self.deployments[name].group
        if not any(machine.group == group for machine in self.machines.all.values()):
            # A coordinator's rounds are only in the bucket.
            return self.account.objects(self._prefix(name)).get("rounds.jsonl", b"").count(b"\n")
        path = self.machine(name).run_directory / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def status(self, name: str = "hopper") -> str:
        """Returns CloudFormation's status of that deployment's stack."""
        stack = self.deployments[name].stack_id
        found = self.account.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        return str(found[0]["StackStatus"])

    def stop_reason(self, name: str = "hopper") -> str | None:
        """Returns the bucket's reason for the run's end; None if it has none."""
        return json.loads(self.account.objects(self._prefix(name)).get("summary.json", b"{}")).get(
            "stop_reason"
        )

    def after_rounds(self, count: int, name: str = "hopper") -> None:
        """Lets time pass until this many more rounds are finished."""
        wanted = self.rounds(name) + count
        self.until(lambda: self.rounds(name) >= wanted, f"round {wanted}")

    def check(self, is_so: Any, what: str) -> None:
        """Records a problem if ``is_so`` is false."""
        if not is_so:
            self._problems.append(what)
            self.record.tell("PROBLEM", what)

    def check_bill(self, name: str = "hopper") -> None:
        """Checks that the ledger bills only parts that existed, to within five minutes of all possible parts."""
        spent_usd, counted_usd = self.entry(name).spent_usd, self.bills[name].most_usd
        self.check(
            spent_usd <= counted_usd + self.deployments[name].limit("burn-usd-per-hour") / 12,
            f"billed was ${spent_usd:.4f}, and ${counted_usd:.4f} existed",
        )

    # The end

    def conclude(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Records leftovers and costs. If nothing is left, also deletes the shared stacks.

        Returns:
            The contents of ``rehearsal.json``: ``events`` with ``at_s`` by the fast clock and ``wall_s`` by the wall
            clock, the resources that Describe found before and after, the keys in the ``bucket``, and ``spend`` by
            experiment. In ``spend``, ``run_usd`` is the learner's count, ``ledger_usd`` the guard's,
            and ``counted_usd`` and ``counted_least_usd`` are an independent upper and lower bound. The result is ``ok``
            only if nothing is left, IAM denied nothing, ledger and upper bound are within the budget, and the ledger is
            not below the lower bound.
        """
        names = names or tuple(self.deployments)
        for problem in self._watch.problems:
            self.check(False, problem)
        left = difference(self.account.inventory(), self._found_before)
        self.check(not left, f"left: {json.dumps(left)}")
        for one in decisions.recorded(self.account.calls):
            self.check(
                one.allowed,
                f"IAM denies {one.role} {one.action} on {one.resource} with {one.context}",
            )
        spend = {name: self._spend(name) for name in names}
        if not left:
            self.account.remove_shared()
            self.record.tell(
                "people",
                f"{', '.join(SHARED_STACKS)} are removed, too; in AWS they stay until you remove them: "
                "docs/guides/deploy.md, Remove the shared stacks",
            )
        found = difference(self.account.inventory(), self._found_first)
        self.check(
            left or set(found) <= {"buckets"}, f"left of what is shared: {json.dumps(found)}"
        )
        kinds = [kind for kind in self.account.inventory() if kind not in found]
        self.record.tell("stack", f"Describe finds no {', '.join(kinds)}")
        for kind, names_left in found.items():
            self.record.tell("stack", f"Describe finds {kind}: {', '.join(names_left)}")
        result = {
            "scenario": self.name,
            "result": "failed" if self._problems else "ok",
            "problems": self._problems,
            "wall_s": round(time.time() - self._wall_s, 1),
            "clock_s": self.record.events[-1]["at_s"],
            "found_before": self.found_deployed,
            "found_after": {kind: found.get(kind, []) for kind in self.account.inventory()},
            "spend": spend,
            "bucket": {name: sorted(self.account.objects(self._prefix(name))) for name in names},
            "dollars": self.record.dollars,
            "ticks_s": self.record.ticks_s,
            "events": self.record.events,
            "note": "Dollars are modelled from list prices; minutes are those of a clock that goes faster than the "
            "one on the wall.",
        }
        self._write(result, names)
        return result

    def _spend(self, name: str) -> dict[str, Any]:
        deployment, entry = self.deployments[name], self.entry(name)
        ended = json.loads(self.account.objects(self._prefix(name)).get("summary.json", b"{}"))
        counted_usd, least_usd = self.bills[name].most_usd, self.bills[name].least_usd
        budget_usd = deployment.limit("budget-usd")
        found = {
            "budget_usd": budget_usd,
            "tail_usd": deployment.limit("tail-usd"),
            "run_usd": ended.get("spent_usd"),
            "ledger_usd": entry.spent_usd if entry else None,
            "counted_usd": counted_usd,
            "counted_least_usd": least_usd,
            "stop_reason": ended.get("stop_reason"),
            "rounds": ended.get("rounds"),
        }
        self.check(
            entry is not None and entry.state == FINISHED,
            f"{name}: the ledger has not recorded its end",
        )
        # While the guard was away, the ledger charges everything that may have existed: an upper bound, not real costs.
        self.check(
            entry is not None and (self.guard_was_away or entry.spent_usd <= budget_usd),
            f"{name}: the ledger's dollars are more than ${budget_usd:g}",
        )
        # The upper bound is coarse if a tick of the guard takes long, because nothing is counted meanwhile.
        self.check(
            entry is not None and least_usd <= 1.01 * entry.spent_usd,
            f"{name}: at least ${least_usd:.4f} were counted, more than the ledger's dollars",
        )
        self.check(
            counted_usd <= budget_usd,
            f"{name}: ${counted_usd:.4f} were counted, more than ${budget_usd:g}",
        )
        self.check(self.bills[name].is_over, f"{name}: something that costs money is still there")
        return found

    def _prefix(self, name: str) -> str:
        return f"{name}/{RUN}/"

    def _write(self, result: Mapping[str, Any], names: Sequence[str]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "rehearsal.json").write_text(json.dumps(result, indent=1) + "\n")
        decisions.write(decisions.recorded(self.account.calls), self.out / "decisions.json")
        for name in names:
            rounds = self.account.objects(self._prefix(name)).get("rounds.jsonl")
            if rounds:
                path = self.out / ("rounds.jsonl" if len(names) == 1 else f"{name}-rounds.jsonl")
                path.write_bytes(rounds)
        for machine in self.machines.all.values():
            shutil.copy(machine.log, self.out / f"{machine.id}.log")

    # The clock

    def _is_idle(self) -> bool:
        """Whether nothing happens here before the guard looks again."""
        working = [*self._typed, *(trainer.process for trainer in self._trainers)]
        if not self.is_guarded or any(process.poll() is None for process in working):
            return False
        if self.is_hurried:
            return True
        entries = [self.entry(name) for name in self.deployments]
        return (
            all(entry is not None and entry.state == FINISHED for entry in entries)
            and not any(self._legs())
            and not any(machine.is_running for machine in self.machines.all.values())
        )

    def _legs(self) -> Iterator[int]:
        """Yields the number of running legs of each deployment."""
        for deployment in self.deployments.values():
            yield self.account.functions.running(deployment.coordinator)

    def _rate_now(self) -> float:
        """Returns the full rate, or a slow one during work that takes as much time here as it does in AWS."""
        if self.is_hurried:
            return RATE
        slower = [1.0]
        alive = self.machines.alive
        for machine in self.machines.all.values():
            has_learner = machine.learner is not None
            if self._round_s and machine.is_running:
                return _COUNTED
            if machine not in alive and machine.is_running:
                slower.append(_ENDING)
            elif (
                machine.is_busy or has_learner and time.time() - self._watch.last_sign_s > _LIVELY_S
            ):
                slower.append(_BOOTING)
        if any(self._legs()):
            slower.append(_BOOTING)
        if any(trainer.process.poll() is None for trainer in self._trainers):
            slower.append(_BOOTING)
        return max(1.0, RATE / max(slower))


def cdk_context(command: str) -> dict[str, str]:
    """Returns the context on the CDK's command line, without the temporary file of prices: they are the dated ones."""
    words = shlex.split(command)
    context = dict(
        word.split("=", 1) for flag, word in zip(words, words[1:], strict=False) if flag == "-c"
    )
    context.pop("prices", None)
    return context
