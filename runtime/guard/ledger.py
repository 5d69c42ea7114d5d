"""The ledger: what a deployment has spent and promised, when its learner was last heard of, and how far its end is.

One item of a DynamoDB table for each run, which outlives the deployments that continue it. The learner writes what it
knows, each time on the condition that no newer learner has taken the run over; the guard writes what it saw and what it
does. Neither writes what is the other's, so that no order of their writes loses any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from runtime.aws.asking import ask, list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, code_of, message_of
from runtime.aws.stacks import find_stack, outputs_of
from runtime.errors import RunError
from runtime.names import GUARD_STACK

STARTING, TRAINING, FINISHED = "starting", "training", "finished"
GUARD_KEY = "guard"
"""Key of the item that says when the guard last looked; a run's key has a slash in it."""
_ORDER = "teardown"
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 500
"""Of why a deployment is taken down, which may be what its learner wrote."""
_TEXT_BYTES_MAX = 2048
"""More than a learner has to say in one attribute; an item holds 400 KB."""
_TOO_LONG = "too long"
_FIGURE_MAX = 2e11
"""More than any dollars, and any seconds since 1970, that somebody could mean; of the latter, in the year 8307."""
PARTS = ("learner", "cache", "provisioned")
"""Of a deployment, what costs money by the hour: the learner's group, the cache, and the actors that are kept warm."""
LEARNER_ATTRIBUTES = ("run", "stack", "writer", "state", "reason", "instance_id", "stop_event", "spent_usd",
                      "reserved_usd", "burn_usd_per_hour", "covered_until_s", "heartbeat_at_s", "budget_usd")
"""All that a learner's role may name in a write, in a condition too; the rest is the guard's alone."""


class LedgerError(RunError):
    """The ledger cannot be read or written."""


class LostRunError(LedgerError):
    """Another learner continues this run: this one must not spend any more."""


class TeardownOrderedError(LedgerError):
    """The deployment is being taken down: there is nothing left to do in it."""


@dataclass(frozen=True)
class Order:
    """That a deployment is to be taken down, and how far that is.

    Attributes:
        stack: Id of the stack that it is about; a later deployment of the run is not meant.
        reason: Why, for people.
        ordered_at_s: Seconds since 1970.
        steps: When each step was done, by name, seconds since 1970.
        failures: How often the stack could not be deleted.
    """

    stack: str
    reason: str
    ordered_at_s: float
    steps: Mapping[str, float] = field(default_factory=dict)
    failures: int = 0


@dataclass(frozen=True)
class Entry:
    """What the ledger holds of one run.

    Attributes:
        run: ``EXPERIMENT/RUN``.
        stack: Id of the stack of the deployment that it is about: the one that the guard noticed, or that wrote, last.
        closed_stack: Id of the last stack that nothing is billed of any more, and whose dollars are in the entry.
        writer: Who may write the learner's part.
        state: ``starting`` (from the instance's boot on), ``training``, or ``finished``; empty if nobody wrote.
        reason: Why it finished.
        instance_id: Of the learner.
        stop_event: What the actor function is to be invoked with so that running actors give up; empty while unknown,
            and when they were told.
        spent_usd, reserved_usd: Since the run began; what is reserved is the worst case of what was promised.
        burn_usd_per_hour: What exists costs so much, whether anything is trained or not; 0 if nobody wrote it.
        covered_until_s: Up to then, spent and reserved hold all that exists; seconds since 1970.
        heartbeat_at_s: When the learner was last there, by its clock.
        budget_usd: Of the whole run.
        seen_heartbeat_s, seen_at_s: The newest heartbeat that the guard has seen, and when it first saw that one, by
            the guard's clock.
        seen_spent_usd: The most that the guard has seen in ``spent_usd``.
        before_usd: What all deployments cost that are closed.
        began_stack, began_at_s: When the creation of that stack was executed at the earliest, as the guard saw it.
        learner_from_s, cache_from_s, provisioned_from_s: When the guard last saw, of the same stack, that this part had
            not been begun; 0 if it never did.
        served_at_s: When a tick of the guard last worked on a teardown of the run.
        order: To take the deployment down; None if there is none.
        damage: What in the item cannot be read; empty if everything can.
    """

    run: str
    stack: str = ""
    closed_stack: str = ""
    writer: str = ""
    state: str = ""
    reason: str = ""
    instance_id: str = ""
    stop_event: str = ""
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    burn_usd_per_hour: float = 0.0
    covered_until_s: float = 0.0
    heartbeat_at_s: float = 0.0
    budget_usd: float = 0.0
    seen_heartbeat_s: float = 0.0
    seen_at_s: float = 0.0
    seen_spent_usd: float = 0.0
    before_usd: float = 0.0
    began_stack: str = ""
    began_at_s: float = 0.0
    learner_from_s: float = 0.0
    cache_from_s: float = 0.0
    provisioned_from_s: float = 0.0
    served_at_s: float = 0.0
    order: Order | None = None
    damage: str = ""

    @property
    def is_open(self) -> bool:
        """Whether there is a deployment whose last dollars are not known yet."""
        return bool(self.stack) and self.stack != self.closed_stack

    @property
    def promised_usd(self) -> float:
        """What is spent and reserved. What was once spent, or closed, stays spent, whatever a learner writes later."""
        return max(self.spent_usd, self.seen_spent_usd, self.before_usd) + self.reserved_usd

    def began_s(self, stack: str) -> float | None:
        """When the creation of that stack was executed, seconds since 1970; None if the guard has not seen it yet."""
        return self.began_at_s if self.began_stack == stack else None

    def from_s(self, stack: str) -> dict[str, float]:
        """For each of `PARTS`, from when on it can have cost money, as ``PART_from_s``; 0 if that is not known."""
        return {f"{part}_from_s": getattr(self, f"{part}_from_s") if self.began_stack == stack else 0.0
                for part in PARTS}

    def order_for(self, stack: str) -> Order | None:
        """The order to take that stack down; None if there is none."""
        return self.order if self.order is not None and self.order.stack == stack else None


_TEXTS = [one.name for one in fields(Entry) if one.type == "str" and one.name not in ("run", "damage")]
_NUMBERS = [one.name for one in fields(Entry) if one.type == "float"]


class Ledger:
    """The guard's table in DynamoDB: one item for each run, and one that tells when the guard last looked."""

    def __init__(self, client: Any, table: str) -> None:
        """Opens the table; asks nothing yet.

        Args:
            client: Of DynamoDB.
            table: Its name.
        """
        self._client, self._table = client, table

    def get(self, run: str) -> Entry | None:
        """Reads a run's item; None if there is none.

        Raises:
            LedgerError: It cannot be read.
        """
        item = self._call(self._client.get_item, Key=_key(run), ConsistentRead=True).get("Item")
        return _entry(item) if item else None

    def entries(self) -> list[Entry]:
        """The entries of all runs there ever were, by name.

        Raises:
            LedgerError: They cannot be read.
        """
        items = self._call(lambda **table: list_all(self._client, "scan", "Items", **table), ConsistentRead=True)
        return sorted((_entry(item) for item in items if "/" in item["run"]["S"]), key=lambda entry: entry.run)

    # What the learner writes

    def take_over(self, run: str, *, stack: str, writer: str, instance_id: str, now_s: float) -> Entry:
        """Makes ``writer`` the only one who may write for the run; returns what the run's entry is now.

        Raises:
            TeardownOrderedError: The deployment is being taken down.
            LedgerError: The ledger cannot be written.
        """
        # Its role may not even name the order in a condition: what it wrote changes nothing about a teardown.
        entry = self._update(
            run, {"stack": stack, "writer": writer, "state": STARTING, "reason": "", "stop_event": "",
                  "instance_id": instance_id, "heartbeat_at_s": now_s})
        if entry.order_for(stack) is not None:
            raise TeardownOrderedError(f"the deployment of {run} is being taken down")
        return entry

    def record(self, run: str, *, writer: str, **figures: str | float) -> Entry:
        """Writes what the learner knows; returns the entry as it is then.

        Args:
            run: ``EXPERIMENT/RUN``.
            writer: Who writes; only the one who took the run over may.
            figures: Attributes of `Entry`.

        Raises:
            LostRunError: Another learner took the run over.
            LedgerError: The ledger cannot be written.
        """
        return self._update(
            run, figures, condition="#writer = :this", this=writer,
            refused=LostRunError(f"another learner continues {run}: it has taken over the ledger"))

    def finish(self, run: str, *, stack: str, reason: str) -> None:
        """Says that the deployment has nothing left to do, and that its actors were told to stop.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        self._update(
            run, {"stack": stack, "state": FINISHED, "reason": reason, "stop_event": ""}, condition=_NOT_ANOTHERS,
            this=stack, refused=_late(run))

    # What the guard writes

    def notice(self, run: str, *, stack: str, created_at_s: float) -> Entry:
        """Begins the account of a deployment that nobody wrote about yet; returns the run's entry as it is then.

        Args:
            run: ``EXPERIMENT/RUN``.
            stack: Id of its stack.
            created_at_s: Since when it costs money, seconds since 1970.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        figures: dict[str, str | float] = {
            "stack": stack, "writer": "", "state": "", "reason": "", "stop_event": "", "instance_id": "",
            "burn_usd_per_hour": 0.0, "covered_until_s": created_at_s, "heartbeat_at_s": 0.0, "seen_heartbeat_s": 0.0}
        try:
            return self._update(
                run, figures, condition="attribute_not_exists(#stack) OR #stack = #closed_stack", refused=_HeldError())
        except _HeldError:
            known = self._known(run)
        if known.stack:
            return known
        # Nobody can tell which stack it is about: it begins anew, and is still known to be damaged.
        return replace(self._update(run, figures), damage=known.damage)

    def begin(self, run: str, *, stack: str, began_at_s: float) -> None:
        """Notes when the creation of a stack was executed; the first time counts.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with suppress(_HeldError):
            self._update(run, {"began_stack": stack, "began_at_s": began_at_s}, this=stack, refused=_HeldError(),
                         condition="attribute_not_exists(#began_stack) OR #began_stack <> :this")

    def reclaim(self, run: str, *, stack: str) -> Entry:
        """Makes the entry that of ``stack`` again, which the guard saw begin last; returns the entry as it is then.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        return self._update(run, {"stack": stack}, condition=_BEGAN_LAST, this=stack, refused=_late(run))

    def missed(self, run: str, parts: Collection[str], *, stack: str, now_s: float) -> None:
        """Notes that these of a stack's `PARTS` had not been begun at that time.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with suppress(_HeldError):
            self._update(run, {f"{part}_from_s": now_s for part in parts}, condition=_BEGAN_LAST, this=stack,
                         refused=_HeldError())

    def saw(self, run: str, *, heartbeat_at_s: float, spent_usd: float, now_s: float) -> None:
        """Notes the newest heartbeat that the guard has seen, and when, and the most that was spent.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        self._update(run, {"seen_heartbeat_s": heartbeat_at_s, "seen_at_s": now_s, "seen_spent_usd": spent_usd})

    def serve(self, run: str, *, now_s: float) -> Entry:
        """Notes that the guard works on a teardown of the run now; returns the entry as it is then.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        return self._update(run, {"served_at_s": now_s})

    def order(self, run: str, *, stack: str, reason: str, now_s: float) -> Entry:
        """Orders that the deployment be taken down, if nobody has; returns the entry with the order that holds.

        An order that cannot be read does not hold.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        order = {"M": {"stack": {"S": stack}, "reason": {"S": reason[:_REASON_CHARACTERS]},
                       "ordered_at_s": _number(now_s), "steps": {"M": {}}, "failures": _number(0)}}
        try:
            return self._update(run, {}, more="#teardown = :order", values={":order": order}, condition=_NOT_ORDERED,
                                this=stack, refused=_HeldError())
        except _HeldError:
            known = self._known(run)
        if known.order_for(stack):
            return known
        return self._update(run, {}, more="#teardown = :order", values={":order": order})

    def step_done(self, run: str, step: str, *, stack: str, now_s: float) -> Entry:
        """Notes when a step of the teardown was done; the first time counts.

        Raises:
            LostRunError: The order is for a later deployment.
            LedgerError: The ledger cannot be written.
        """
        return self._update(
            run, {}, more="#teardown.#steps.#step = if_not_exists(#teardown.#steps.#step, :at)", names={"#step": step},
            values={":at": _number(now_s)}, condition=_ORDERED, this=stack, refused=_late(run))

    def count_failure(self, run: str, *, stack: str) -> int:
        """Counts one more deletion that failed; returns how many there were.

        Raises: As `step_done`.
        """
        entry = self._update(run, {}, more="#teardown.#failures = #teardown.#failures + :one",
                             values={":one": _number(1)}, condition=_ORDERED, this=stack, refused=_late(run))
        return entry.order.failures if entry.order else 0

    def close(self, run: str, *, stack: str, spent_usd: float, now_s: float) -> None:
        """Notes what the run has cost when nothing of the deployment is billed any more; its learner writes no more.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        self._update(
            run, {"stack": stack, "closed_stack": stack, "writer": "", "state": FINISHED, "spent_usd": spent_usd,
                  "seen_spent_usd": spent_usd, "before_usd": spent_usd, "reserved_usd": 0.0, "covered_until_s": now_s},
            condition=_NOT_ANOTHERS, this=stack, refused=_late(run))

    def tick(self, now_s: float) -> None:
        """Notes that the guard has looked at every deployment, and has ordered what must end.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        self._update(GUARD_KEY, {"heartbeat_at_s": now_s})

    def last_tick_s(self) -> float | None:
        """When the guard last looked, seconds since 1970; None if it never did.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        entry = self.get(GUARD_KEY)
        return entry.heartbeat_at_s if entry else None

    def _known(self, run: str) -> Entry:
        entry = self.get(run)
        if entry is None:
            raise LedgerError(f"the ledger has lost {run}")
        return entry

    def _update(
        self,
        run: str,
        figures: Mapping[str, str | float],
        *,
        more: str = "",
        condition: str = "",
        this: str = "",
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        refused: Exception | None = None,
    ) -> Entry:
        """Sets ``figures``, and ``more``, if the condition holds; raises ``refused`` if it does not.

        In both, ``#name`` is the attribute of that name, unless ``names`` says otherwise, and ``:this`` is ``this``.
        """
        named = {name: name[1:] for name in re.findall(r"#\w+", f"{more} {condition}")} | {**(names or {})}
        given = {**(values or {}), **({":this": {"S": this}} if ":this" in condition else {})}

        def update(figures: Mapping[str, str | float]) -> Entry:
            parts = [f"#f_{name} = :f_{name}" for name in figures] + ([more] if more else [])
            return _entry(self._call(
                self._client.update_item, Key=_key(run), UpdateExpression="SET " + ", ".join(parts),
                ReturnValues="ALL_NEW",
                ExpressionAttributeNames={**{f"#f_{name}": name for name in figures}, **named},
                ExpressionAttributeValues={**{f":f_{name}": _value(value) for name, value in figures.items()}, **given},
                **({"ConditionExpression": condition} if condition else {}))["Attributes"])

        try:
            try:
                return update(figures)
            except LedgerError as error:
                if "size" not in message_of(error.__cause__):
                    raise
                # A learner has filled the item up. Room is made by the same write: none of its own can come between.
                return update({**self._shortened(run), **figures})
        except LedgerError as error:
            if refused is not None and code_of(error.__cause__) == "ConditionalCheckFailedException":
                raise refused from None
            raise

    def _shortened(self, run: str) -> dict[str, str | float]:
        """All that a learner may have written, as it is, but for what is too long; what is no number stays damaged."""
        item = self._call(self._client.get_item, Key=_key(run), ConsistentRead=True).get("Item", {})

        def short(name: str) -> str | float:
            if name not in item:
                return "" if name in _TEXTS else 0.0
            try:
                if name in _NUMBERS:
                    return _figure(item[name]["N"])
                return str(item[name]["S"]) if len(item[name]["S"].encode()) <= _TEXT_BYTES_MAX else _TOO_LONG
            except (KeyError, ValueError):
                return _TOO_LONG

        return {name: short(name) for name in LEARNER_ATTRIBUTES if name != "run"}

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(TableName=self._table, **arguments)
        except AWS_ERRORS as error:
            raise LedgerError(f"the ledger {self._table}: {error}") from error


def find_ledger(client: Client) -> Ledger | None:
    """The account's ledger; None if there is no guard.

    Args:
        client: Of any service.

    Raises:
        AccountError: CloudFormation cannot be asked.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    outputs = outputs_of(stack or {})
    return Ledger(client("dynamodb"), outputs["LedgerTable"]) if "LedgerTable" in outputs else None


class _HeldError(Exception):
    """Somebody was there before."""


_NOT_ORDERED = "attribute_not_exists(#teardown) OR #teardown.#stack <> :this"
_ORDERED, _BEGAN_LAST = "#teardown.#stack = :this", "#began_stack = :this"
_NOT_ANOTHERS = "attribute_not_exists(#stack) OR #stack = :this"


def _late(run: str) -> LostRunError:
    return LostRunError(f"a later deployment of {run} has begun")


def _key(run: str) -> dict[str, Any]:
    return {"run": {"S": run}}


def _value(value: str | float) -> dict[str, str]:
    return {"S": value} if isinstance(value, str) else _number(value)


def _number(value: float) -> dict[str, str]:
    if not math.isfinite(value):
        raise LedgerError(f"{value} cannot be written to the ledger")
    # DynamoDB keeps 38 digits, and refuses exponents beyond 125.
    return {"N": "0" if abs(value) < 1e-100 else repr(value)}


def _entry(item: Mapping[str, Any]) -> Entry:
    """What can be read of it; one run's damage must not keep anybody from the others."""
    damaged: list[str] = []

    def read(name: str, kind: str, convert: Callable[[Any], Any]) -> Any:
        try:
            return convert(item[name][kind])
        except (KeyError, TypeError, ValueError, AttributeError):
            damaged.append(f"{name} = {item[name]!r:.{_SHOWN_CHARACTERS}}")
            return None

    values = {name: read(name, "S", str) for name in _TEXTS if name in item}
    values |= {name: read(name, "N", _figure) for name in _NUMBERS if name in item}
    if _ORDER in item:
        values["order"] = read(_ORDER, "M", _order)
    known = {name: value for name, value in values.items() if value is not None}
    return Entry(item["run"]["S"], **known, damage="; ".join(damaged))


def _figure(text: str) -> float:
    """Reads a number.

    Raises:
        ValueError: It is no number, or negative, or so large that what is reckoned from it may be none.
    """
    value = float(text)
    if not 0.0 <= value <= _FIGURE_MAX:
        raise ValueError(text)
    return value


def _order(values: Mapping[str, Any]) -> Order:
    return Order(values["stack"]["S"], values["reason"]["S"], _figure(values["ordered_at_s"]["N"]),
                 {name: _figure(at["N"]) for name, at in values["steps"]["M"].items()}, int(values["failures"]["N"]))
