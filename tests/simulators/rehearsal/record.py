"""What happened in a rehearsal, when, and what it cost: by two counts that know nothing of each other."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.aws.guard.teardown import GONE
from runtime.aws.ledger import Entry
from runtime.money.prices import HOURS_PER_MONTH, PRICES
from tests.simulators.rehearsal.account import Account, Deployment
from tests.simulators.rehearsal.clock import Clock

_HOUR_S = 3600.0
_INDENT = 28
"""Characters before what happened."""
_PROVISIONED_BLOCK_S = 300.0
_EVENTS = {
    "run_started": "begins a run, or goes on with it",
    "actor_failed": "slot {slot}, try {attempt}: {error:.150}",
    "actor_replaced": "slot {slot} is tried again",
    "budget_exhausted": "the budget does not hold round {round_index}",
    "run_ended": "the run is over: {stop_reason} {error}",
    "reservation_forfeited": "what was reserved counts as spent: ${usd:.4f}",
    "standing_billed": "what stood until now is billed: ${usd:.4f}",
    "round_rejected": "round {round_index} is repeated",
}


class Record:
    """The events, printed as they come, and the dollars over time."""

    def __init__(self, clock: Clock, *, is_quiet: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.dollars: list[dict[str, Any]] = []
        self.ticks_s: list[float] = []
        """When the guard looked."""
        self._clock, self._is_quiet = clock, is_quiet
        self._began_s, self._wall_s = clock.now(), time.time()
        self._is_deployed = False

    def deployed(self) -> None:
        """From here on minutes are counted; what was before gets minutes below zero."""
        before_s, self._began_s, self._is_deployed = self._began_s, self._clock.now(), True
        for event in self.events:
            event["at_s"] = round(event["at_s"] + before_s - self._began_s, 1)

    def tell(self, who: str, what: str, *, usd: float | None = None, **fields: Any) -> None:
        """Args: usd: What the run has spent by then."""
        event = {
            "at_s": round(self._clock.now() - self._began_s, 1),
            "wall_s": round(time.time() - self._wall_s, 2),
            "who": who,
            "what": what.strip(),
            **({} if usd is None else {"usd": usd}),
            **fields,
        }
        self.events.append(event)
        if not self._is_quiet:
            # Before there is a deployment, nobody knows when it will be.
            print(text_of(event if self._is_deployed else {**event, "at_s": None}), flush=True)

    def note_tick(self) -> None:
        self.ticks_s.append(round(self._clock.now() - self._began_s, 1))

    def note_dollars(self, deployment: Deployment, entry: Entry) -> None:
        """What the ledger holds, if it has changed."""
        row = {
            "stack": deployment.stack,
            "spent_usd": entry.spent_usd,
            "reserved_usd": entry.reserved_usd,
        }
        if not any({**one, "at_s": 0} == {**row, "at_s": 0} for one in self.dollars[-1:]):
            self.dollars.append({"at_s": round(self._clock.now() - self._began_s, 1), **row})

    def has(self, who: str, words: str) -> bool:
        return any(event["who"] == who and words in event["what"] for event in self.events)


def text_of(event: Mapping[str, Any]) -> str:
    """An event for people: minutes and seconds since the deployment, who, what was spent by then, and what.

    Lines have 120 characters at most, unless a word is longer.
    """
    at_s = event["at_s"]
    usd = f"${event['usd']:.4f}" if "usd" in event else ""
    clock = " --:--" if at_s is None else f" {int(at_s) // 60:02}:{int(at_s) % 60:02}"
    lines = [
        part
        for text in event["what"].splitlines()
        for part in textwrap.wrap(
            text, 120 - _INDENT, break_on_hyphens=False, break_long_words=False
        )
    ]
    return f"{clock}  {event['who']:<9} {usd:>8}  " + f"\n{' ' * _INDENT}".join(lines)


class Watch:
    """Tells a record what the bucket's owner would see: files, the ledger, the guard's answers, reports."""

    def __init__(self, account: Account, record: Record) -> None:
        self._account, self._record = account, record
        self._read: dict[tuple[Path, int], int] = {}
        self._known: dict[str, Any] = {}
        self.problems: list[str] = []
        self.last_sign_s = 0.0
        """When a learner finished something last, on the wall."""

    def files(self, machine: Any) -> None:
        """Of one machine: its boot's steps, the run's events and its rounds."""
        for text in self._new_lines(machine.log):
            if text[:2] == "20" and text[19:20] == "Z":
                self._record.tell("instance", f"boot: {text[21:]}")
        for text in self._new_lines(machine.run_directory / "events.jsonl"):
            event = json.loads(text)
            words = _EVENTS.get(event["event"])
            self.last_sign_s = time.time()
            said = {name: "" if value is None else value for name, value in event.items()}
            self._record.tell(
                "learner", words.format(**said) if words else event["event"], event=event["event"]
            )
        self.rounds(machine.run_directory)

    def rounds(self, directory: Path) -> None:
        """Of a run, or the calls of a pool."""
        for text in self._new_lines(directory / "rounds.jsonl"):
            row = json.loads(text)
            self.last_sign_s = time.time()
            self._record.tell(
                "actors",
                f"round {row['round_index']}: {row['actors_returned']} of {row['actor_count']} actors"
                + (
                    f", return {row['episode_return_mean']:.0f}"
                    if row["episode_return_mean"] is not None
                    else ""
                ),
                usd=row["spent_usd"],
                round_index=row["round_index"],
                actor_count=row["actor_count"],
                round_s=row["round_s"],
            )

    def stack(self, deployment: Deployment) -> None:
        """What CloudFormation says of it."""
        (found,) = self._account.client("cloudformation").describe_stacks(
            StackName=deployment.stack_id
        )["Stacks"]
        said = (found["StackStatus"], found.get("StackStatusReason", ""))
        if self._is_new(f"stack {deployment.stack_id}", said):
            self._record.tell("stack", f"{deployment.stack}: {' '.join(said)}", status=said[0])

    def ledger(self, deployment: Deployment) -> Entry | None:
        entry = self._account.entry(deployment)
        if entry is None or not self._is_new(f"entry {deployment.stack_id}", entry):
            return entry
        self._record.note_dollars(deployment, entry)
        if self._is_new(f"state {deployment.stack_id}", (entry.state, entry.instance_id)):
            self._record.tell(
                "ledger",
                f"{deployment.run}: {entry.state} {entry.reason}",
                usd=entry.spent_usd,
                state=entry.state,
            )
        order = entry.order_for(deployment.stack_id)
        for step in order.steps if order else ():
            if self._is_new(f"step {deployment.stack_id} {step}", True):
                # Until its last part is gone, a deployment's dollars still change.
                sum_up = f": all in all ${entry.spent_usd:.4f}" if step == "bill" else ""
                self._record.tell("teardown", f"{deployment.stack}: {step} done{sum_up}", step=step)
                if step == GONE and deployment.stack in self._account.stacks():
                    self.problems.append(
                        f"{deployment.stack} is gone for the guard, not for Describe"
                    )
        return entry

    def guard(self, answer: Mapping[str, Any]) -> None:
        self._record.note_tick()
        if "failed" in answer:
            self._record.tell(
                "guard", f"failed: {answer.get('errorType')} {answer.get('errorMessage', '')[:300]}"
            )
            return
        for one in answer["experiments"]:
            said = (one["decision"], one["waiting_for"], one.get("error", ""))
            if self._is_new(f"guard {one['stack']}", said) and any(said):
                self._record.tell(
                    "guard",
                    f"{one['stack']}: {one['decision']}"
                    + (f"; waits for {said[1]}" if said[1] else "")
                    + (f"; {said[2]}" if said[2] else ""),
                )

    def reports(self) -> None:
        for subject, text in self._account.reports():
            self._record.tell("report", f"{subject}: {text}")

    def _is_new(self, key: str, value: Any) -> bool:
        is_new = self._known.get(key) != value
        self._known[key] = value
        return is_new

    def _new_lines(self, path: Path) -> list[str]:
        """Whole lines that were added since the last call, but those that a replacement has fetched from the bucket."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            # A file that was replaced is read again; what of it was told before is not told again.
            which = (path, os.fstat(file.fileno()).st_ino)
            data = file.read()
        end = data.rfind(b"\n") + 1
        start = min(self._read.get(which, 0), end)
        self._read[which] = end
        lines = data[start:end].decode(errors="replace").splitlines()
        return [
            text for text in lines if path.suffix == ".log" or self._is_new(f"line {text}", True)
        ]


class Bill:
    """What existed, for how long by the rehearsal's clock, at list price: bounds that ask only Describe.

    It knows nothing of the ledger and the meter. Transfers and requests to S3 are left out: millionths of a cent.
    """

    def __init__(self, account: Account, stack: str) -> None:
        """Args:
        stack: Name of the deployment's.
        """
        self._account, self._stack = account, stack
        self._seen: dict[str, float] = {}
        self._at_s = account.clock.now()
        self._standing_usd = self._blocks_usd = self._surely_usd = 0.0
        self._functions_from = len(account.functions.bills)

    def look(self) -> None:
        """To be called often: as often, as exact."""
        now_s, there = self._account.clock.now(), self._priced()
        self._blocks_usd += (
            sum(
                usd
                for name, usd in there.items()
                if name.startswith("warm") and (name not in self._seen)
            )
            * _PROVISIONED_BLOCK_S
            / _HOUR_S
        )
        hours = (now_s - self._at_s) / _HOUR_S
        self._standing_usd += sum({**self._seen, **there}.values()) * hours
        self._surely_usd += sum(usd for name, usd in there.items() if name in self._seen) * hours
        self._at_s, self._seen = now_s, there

    @property
    def is_over(self) -> bool:
        return not self._seen

    @property
    def least_usd(self) -> float:
        """What it cost at least. A part that was there at two looks was there between them."""
        return self._surely_usd + self._blocks_usd + self._functions_usd()

    @property
    def most_usd(self) -> float:
        """The same, if a part that one of two looks found was there all the time between."""
        return self._standing_usd + self._blocks_usd + self._functions_usd()

    def _functions_usd(self) -> float:
        gib_s = [
            used
            for name, used in self._account.functions.bills[self._functions_from :]
            if name in (f"{self._stack}-actor", f"{self._stack}-learner")
        ]
        return sum(gib_s) * PRICES.functions["x86_64"].on_demand_usd + (
            len(gib_s) * PRICES.request_usd
        )

    def _priced(self) -> dict[str, float]:
        """What is there, in dollars an hour."""
        machines, caches = self._account.client("ec2"), self._account.client("elasticache")
        found = {}
        for group in machines.describe_instances(
            Filters=[
                {"Name": "tag:aws:autoscaling:groupName", "Values": [f"{self._stack}-learner"]}
            ]
        )["Reservations"]:
            for one in group["Instances"]:
                if one["State"]["Name"] != "terminated":
                    found[one["InstanceId"]] = (
                        PRICES.instance_hour_usd[one["InstanceType"]] + PRICES.public_ipv4_hour_usd
                    )
        for volume in machines.describe_volumes()["Volumes"]:
            if any(one["InstanceId"] in found for one in volume["Attachments"]):
                found[volume["VolumeId"]] = (
                    volume["Size"] * PRICES.volume_gib_month_usd / HOURS_PER_MONTH
                )
        for one in caches.describe_serverless_caches()["ServerlessCaches"]:
            if one["ServerlessCacheName"] == self._stack.lower():
                found[f"cache {one['ServerlessCacheName']}"] = (
                    PRICES.serverless_cache_gib_min * PRICES.serverless_cache_gib_hour_usd
                )
        if running := self._account.functions.running(f"{self._stack}-coordinator"):
            settings = self._account.client("lambda").get_function_configuration(
                FunctionName=f"{self._stack}-coordinator"
            )
            found["coordinator"] = (
                running
                * settings["MemorySize"]
                / 1024
                * _HOUR_S
                * (PRICES.functions["x86_64"].on_demand_usd)
            )
        return found | self._warm()

    def _warm(self) -> dict[str, float]:
        functions = self._account.client("lambda")
        for one in functions.list_functions()["Functions"]:
            if one["FunctionName"] == f"{self._stack}-actor":
                warm = functions.list_provisioned_concurrency_configs(
                    FunctionName=one["FunctionName"]
                )
                return {
                    f"warm {config['FunctionArn']}": config[
                        "RequestedProvisionedConcurrentExecutions"
                    ]
                    * one["MemorySize"]
                    / 1024
                    * PRICES.functions["x86_64"].provisioned_capacity_usd
                    * _HOUR_S
                    for config in warm["ProvisionedConcurrencyConfigs"]
                }
        return {}
