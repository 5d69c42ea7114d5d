"""The ledger: a deployment's spending and reservations, its learner's last heartbeat, and its teardown's progress.

A DynamoDB table with one item for each run, which outlives the run's deployments. The learner writes its figures before
it uses the money they cover, on the condition that no newer learner has taken over. The guard writes what it saw and
ordered. Neither writes the other's attributes, so the order of their writes does not matter. The run's ``ledger.json``
in the bucket lists every reservation, for a learner that resumes; this table has only sums. Of the two, the higher
figure counts.
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
"""Key of the item with the guard's last tick. Keys of runs contain a slash."""
_ORDER = "teardown"
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 500
"""Limit for a teardown's reason, which a learner may have written."""
_TEXT_BYTES_MAX = 2048
"""More than a learner writes in one attribute; an item holds 400 KB."""
_TOO_LONG = "too long"
_FIGURE_MAX = 2e11
"""Larger than any real number of dollars or seconds since 1970 (the year 8307)."""
PARTS = ("learner", "cache", "provisioned")
"""Parts of a deployment that are billed by the hour: the learner's group, the cache, and warm actors."""
LEARNER_ATTRIBUTES = (
    "run",
    "stack",
    "writer",
    "state",
    "reason",
    "instance_id",
    "stop_event",
    "spent_usd",
    "reserved_usd",
    "burn_usd_per_hour",
    "covered_until_s",
    "heartbeat_at_s",
    "budget_usd",
)
"""All attributes that a learner's role may name in a write, conditions included. Only the guard may name the others."""


class LedgerError(RunError):
    """The ledger cannot be read or written."""


class LostRunError(LedgerError):
    """Another learner continues this run, so this one must not spend any more."""


class TeardownOrderedError(LedgerError):
    """The deployment is being taken down, so there is nothing left to do in it."""


@dataclass(frozen=True)
class Order:
    """An order to take a deployment down, and its progress.

    Attributes:
        stack: Id of the stack to take down; a later deployment of the run is not affected.
        reason: Why, for people.
        ordered_at_s: Seconds since 1970.
        steps: When each step was done, by name, in seconds since 1970.
        failures: How often deleting the stack failed.
    """

    stack: str
    reason: str
    ordered_at_s: float
    steps: Mapping[str, float] = field(default_factory=dict)
    failures: int = 0


@dataclass(frozen=True)
class Entry:
    """One run's ledger entry.

    Attributes:
        run: ``EXPERIMENT/RUN``.
        stack: Id of the current deployment's stack: the latest that the guard noticed or that wrote here.
        closed_stack: Id of the last stack that is no longer billed and whose cost is in the entry.
        writer: The only one allowed to write the learner's attributes.
        state: ``starting`` (from the instance's boot), ``training``, or ``finished``; empty before the first write.
        reason: Why it finished.
        instance_id: The learner's instance.
        stop_event: Event that makes the actor function stop running actors; empty if unknown or already sent.
        spent_usd, reserved_usd: Since the run began. The reservation is the worst case of all work in progress.
        burn_usd_per_hour: Hourly cost of all parts that exist, even if idle; 0 before the first write.
        covered_until_s: Spent and reserved cover all existing parts until then, in seconds since 1970. A learner whose
            clock is slow covers less, and the guard counts the difference.
        heartbeat_at_s: The learner's last heartbeat, by its clock.
        budget_usd: Budget of the whole run.
        seen_heartbeat_s, seen_at_s: The newest heartbeat that the guard has seen, and when it first saw it, by the
            guard's clock.
        seen_spent_usd: The highest ``spent_usd`` that the guard has seen.
        before_usd: Cost of all closed deployments.
        began_stack, began_at_s: A stack, and the earliest time that its creation can have been executed, as the guard
            saw it.
        learner_from_s, cache_from_s, provisioned_from_s: The last time the guard saw that this part of the same stack
            had not been begun; 0 if it never did.
        served_at_s: When a tick last worked on a teardown of the run.
        order: The order to take the deployment down; None if there is none.
        damage: Attributes that cannot be read; empty if there are none.
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
        """Whether a deployment's final cost is still unknown."""
        return bool(self.stack) and self.stack != self.closed_stack

    @property
    def promised_usd(self) -> float:
        """Dollars spent and reserved. A learner cannot lower what was once spent or closed."""
        return max(self.spent_usd, self.seen_spent_usd, self.before_usd) + self.reserved_usd

    def began_s(self, stack: str) -> float | None:
        """Returns when that stack's creation was executed, in seconds since 1970; None before the guard saw it."""
        return self.began_at_s if self.began_stack == stack else None

    def from_s(self, stack: str) -> dict[str, float]:
        """Returns when each of `PARTS` can have begun to cost money, as ``PART_from_s``; 0 if unknown."""
        return {
            f"{part}_from_s": getattr(self, f"{part}_from_s") if self.began_stack == stack else 0.0
            for part in PARTS
        }

    def order_for(self, stack: str) -> Order | None:
        """Returns the order to take that stack down; None if there is none."""
        return self.order if self.order is not None and self.order.stack == stack else None


_TEXTS = [
    one.name for one in fields(Entry) if one.type == "str" and one.name not in ("run", "damage")
]
_NUMBERS = [one.name for one in fields(Entry) if one.type == "float"]


class Ledger:
    """The guard's DynamoDB table: one item for each run, and one for the guard's last tick."""

    def __init__(self, client: Any, table: str) -> None:
        """Opens the table without a request.

        Args:
            client: DynamoDB client.
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
        """Returns the entries of all runs there ever were, by name.

        Raises:
            LedgerError: They cannot be read.
        """
        items = self._call(
            lambda **table: list_all(self._client, "scan", "Items", **table), ConsistentRead=True
        )
        return sorted(
            (_entry(item) for item in items if "/" in item["run"]["S"]), key=lambda entry: entry.run
        )

    # Written by the learner

    def take_over(
        self, run: str, *, stack: str, writer: str, instance_id: str, now_s: float
    ) -> Entry:
        """Makes ``writer`` the only one who may write for the run; returns the run's new entry.

        Raises:
            TeardownOrderedError: The deployment is being taken down.
            LedgerError: The ledger cannot be written.
        """
        # A learner's role may not name the order even in a condition, so the answer to the write tells whether there is
        # one. The write does not change a teardown.
        entry = self._update(
            run,
            {
                "stack": stack,
                "writer": writer,
                "state": STARTING,
                "reason": "",
                "stop_event": "",
                "instance_id": instance_id,
                "heartbeat_at_s": now_s,
            },
        )
        if entry.order_for(stack) is not None:
            raise TeardownOrderedError(f"the deployment of {run} is being taken down")
        return entry

    def record(self, run: str, *, writer: str, **figures: str | float) -> Entry:
        """Writes the learner's figures; returns the new entry.

        Args:
            run: ``EXPERIMENT/RUN``.
            writer: The caller, which must have taken the run over.
            figures: Attributes of `Entry`.

        Raises:
            LostRunError: Another learner took the run over.
            LedgerError: The ledger cannot be written.
        """
        return self._update(
            run,
            figures,
            condition="#writer = :this",
            this=writer,
            refused=LostRunError(f"another learner continues {run}: it has taken over the ledger"),
        )

    def finish(self, run: str, *, stack: str, reason: str) -> None:
        """Records that the deployment has nothing left to do and that its actors have been stopped.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        self._update(
            run,
            {"stack": stack, "state": FINISHED, "reason": reason, "stop_event": ""},
            condition=_NOT_ANOTHERS,
            this=stack,
            refused=_late(run),
        )

    # Written by the guard

    def notice(self, run: str, *, stack: str, created_at_s: float) -> Entry:
        """Opens the account of a deployment that has written nothing yet; returns the run's new entry.

        Args:
            run: ``EXPERIMENT/RUN``.
            stack: Id of its stack.
            created_at_s: When it began to cost money, in seconds since 1970.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        figures: dict[str, str | float] = {
            "stack": stack,
            "writer": "",
            "state": "",
            "reason": "",
            "stop_event": "",
            "instance_id": "",
            "burn_usd_per_hour": 0.0,
            "covered_until_s": created_at_s,
            "heartbeat_at_s": 0.0,
            "seen_heartbeat_s": 0.0,
        }
        try:
            return self._update(
                run,
                figures,
                condition="attribute_not_exists(#stack) OR #stack = #closed_stack",
                refused=_HeldError(),
            )
        except _HeldError:
            known = self._known(run)
        if known.stack:
            return known
        # The entry's stack is unreadable: start over, but keep the record of the damage.
        return replace(self._update(run, figures), damage=known.damage)

    def begin(self, run: str, *, stack: str, began_at_s: float) -> None:
        """Records when a stack's creation was executed; the first call counts.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with suppress(_HeldError):
            self._update(
                run,
                {"began_stack": stack, "began_at_s": began_at_s},
                this=stack,
                refused=_HeldError(),
                condition="attribute_not_exists(#began_stack) OR #began_stack <> :this",
            )

    def reclaim(self, run: str, *, stack: str) -> Entry:
        """Gives the entry back to ``stack``, which the guard saw begin last; returns the new entry.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        return self._update(
            run, {"stack": stack}, condition=_BEGAN_LAST, this=stack, refused=_late(run)
        )

    def missed(self, run: str, parts: Collection[str], *, stack: str, now_s: float) -> None:
        """Records that these of a stack's `PARTS` had not been begun at that time.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with suppress(_HeldError):
            self._update(
                run,
                {f"{part}_from_s": now_s for part in parts},
                condition=_BEGAN_LAST,
                this=stack,
                refused=_HeldError(),
            )

    def saw(self, run: str, *, heartbeat_at_s: float, spent_usd: float, now_s: float) -> None:
        """Records the newest heartbeat that the guard has seen, when it saw it, and the highest spending.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        self._update(
            run,
            {"seen_heartbeat_s": heartbeat_at_s, "seen_at_s": now_s, "seen_spent_usd": spent_usd},
        )

    def serve(self, run: str, *, now_s: float) -> Entry:
        """Records that the guard is working on a teardown of the run; returns the new entry.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        return self._update(run, {"served_at_s": now_s})

    def order(self, run: str, *, stack: str, reason: str, now_s: float) -> Entry:
        """Orders the deployment's teardown unless it is ordered already; returns the entry with the order that holds.

        An order that cannot be read does not hold.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        order = {
            "M": {
                "stack": {"S": stack},
                "reason": {"S": reason[:_REASON_CHARACTERS]},
                "ordered_at_s": _number(now_s),
                "steps": {"M": {}},
                "failures": _number(0),
            }
        }
        try:
            return self._update(
                run,
                {},
                more="#teardown = :order",
                values={":order": order},
                condition=_NOT_ORDERED,
                this=stack,
                refused=_HeldError(),
            )
        except _HeldError:
            known = self._known(run)
        if known.order_for(stack):
            return known
        return self._update(run, {}, more="#teardown = :order", values={":order": order})

    def step_done(self, run: str, step: str, *, stack: str, now_s: float) -> Entry:
        """Records when a step of the teardown was done; the first call counts.

        Raises:
            LostRunError: The order is for a later deployment.
            LedgerError: The ledger cannot be written.
        """
        return self._update(
            run,
            {},
            more="#teardown.#steps.#step = if_not_exists(#teardown.#steps.#step, :at)",
            names={"#step": step},
            values={":at": _number(now_s)},
            condition=_ORDERED,
            this=stack,
            refused=_late(run),
        )

    def count_failure(self, run: str, *, stack: str) -> int:
        """Counts one more failed deletion; returns the total.

        Raises: See `step_done`.
        """
        entry = self._update(
            run,
            {},
            more="#teardown.#failures = #teardown.#failures + :one",
            values={":one": _number(1)},
            condition=_ORDERED,
            this=stack,
            refused=_late(run),
        )
        return entry.order.failures if entry.order else 0

    def close(self, run: str, *, stack: str, spent_usd: float, now_s: float) -> None:
        """Records the run's final cost once the deployment is no longer billed; its learner cannot write after that.

        Raises:
            LostRunError: A later deployment has begun.
            LedgerError: The ledger cannot be written.
        """
        self._update(
            run,
            {
                "stack": stack,
                "closed_stack": stack,
                "writer": "",
                "state": FINISHED,
                "spent_usd": spent_usd,
                "seen_spent_usd": spent_usd,
                "before_usd": spent_usd,
                "reserved_usd": 0.0,
                "covered_until_s": now_s,
            },
            condition=_NOT_ANOTHERS,
            this=stack,
            refused=_late(run),
        )

    def tick(self, now_s: float) -> None:
        """Records that the guard has looked at every deployment and has ordered every teardown that is due.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        self._update(GUARD_KEY, {"heartbeat_at_s": now_s})

    def last_tick_s(self) -> float | None:
        """Returns when the guard last looked, in seconds since 1970; None if it never did.

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

        In both, ``#name`` is the attribute of that name unless ``names`` maps it to another, and ``:this`` is ``this``.
        """
        named = {name: name[1:] for name in re.findall(r"#\w+", f"{more} {condition}")} | {
            **(names or {})
        }
        given = {**(values or {}), **({":this": {"S": this}} if ":this" in condition else {})}

        def update(figures: Mapping[str, str | float]) -> Entry:
            parts = [f"#f_{name} = :f_{name}" for name in figures] + ([more] if more else [])
            return _entry(
                self._call(
                    self._client.update_item,
                    Key=_key(run),
                    UpdateExpression="SET " + ", ".join(parts),
                    ReturnValues="ALL_NEW",
                    ExpressionAttributeNames={**{f"#f_{name}": name for name in figures}, **named},
                    ExpressionAttributeValues={
                        **{f":f_{name}": _value(value) for name, value in figures.items()},
                        **given,
                    },
                    **({"ConditionExpression": condition} if condition else {}),
                )["Attributes"]
            )

        try:
            try:
                return update(figures)
            except LedgerError as error:
                if "size" not in message_of(error.__cause__):
                    raise
                # A learner has filled the item. Shortening it in the same write leaves no gap for another write of the
                # learner's.
                return update({**self._shortened(run), **figures})
        except LedgerError as error:
            if (
                refused is not None
                and code_of(error.__cause__) == "ConditionalCheckFailedException"
            ):
                raise refused from None
            raise

    def _shortened(self, run: str) -> dict[str, str | float]:
        """Returns all that a learner may have written, with long texts cut; an unreadable number stays damaged."""
        item = self._call(self._client.get_item, Key=_key(run), ConsistentRead=True).get("Item", {})

        def short(name: str) -> str | float:
            if name not in item:
                return "" if name in _TEXTS else 0.0
            try:
                if name in _NUMBERS:
                    return _figure(item[name]["N"])
                return (
                    str(item[name]["S"])
                    if len(item[name]["S"].encode()) <= _TEXT_BYTES_MAX
                    else _TOO_LONG
                )
            except (KeyError, ValueError):
                return _TOO_LONG

        return {name: short(name) for name in LEARNER_ATTRIBUTES if name != "run"}

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(TableName=self._table, **arguments)
        except AWS_ERRORS as error:
            raise LedgerError(f"the ledger {self._table}: {error}") from error


def find_ledger(client: Client) -> Ledger | None:
    """Returns the account's ledger; None if there is no guard.

    Args:
        client: Makes boto3 clients by service name.

    Raises:
        AccountError: CloudFormation cannot be reached.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    outputs = outputs_of(stack or {})
    return Ledger(client("dynamodb"), outputs["LedgerTable"]) if "LedgerTable" in outputs else None


class _HeldError(Exception):
    """The write's condition did not hold."""


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
    # DynamoDB stores 38 digits and refuses exponents beyond 125.
    return {"N": "0" if abs(value) < 1e-100 else repr(value)}


def _entry(item: Mapping[str, Any]) -> Entry:
    """Reads the readable parts of an item: one run's damage must not hide the other runs."""
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
        ValueError: It is not a number, negative, or so large that sums with it may overflow.
    """
    value = float(text)
    if not 0.0 <= value <= _FIGURE_MAX:
        raise ValueError(text)
    return value


def _order(values: Mapping[str, Any]) -> Order:
    return Order(
        values["stack"]["S"],
        values["reason"]["S"],
        _figure(values["ordered_at_s"]["N"]),
        {name: _figure(at["N"]) for name, at in values["steps"]["M"].items()},
        int(values["failures"]["N"]),
    )
