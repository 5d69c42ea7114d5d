"""The ledger: what a deployed run has spent and reserved, who owns it, its learner's heartbeat, and its teardown.

A DynamoDB table with one item for each run, which outlives the run's deployments. A learner writes before it uses the
money, on the condition that it is still the item's `writer`: whoever took the run over last. The item has the sums for
the guard and, until the account is closed, the text of ``ledger.json``, from which a replacement continues. It is some
30 bytes for each actor of a round; DynamoDB holds 400 KB. The guard writes which stack the run has, what it saw, and
what it ordered. Neither writes the other's attributes, so the order of their
writes does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from runtime.aws.asking import ask, list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, code_of
from runtime.aws.stacks import find_stack, outputs_of
from runtime.errors import RunError
from runtime.names import GUARD_STACK

STARTING, TRAINING, FINISHED = "starting", "training", "finished"
GUARD_KEY = "guard"
"""Key of the item with the guard's last tick. Keys of runs contain a slash."""
_REASON_CHARACTERS = 500
PARTS = ("learner", "cache", "provisioned")
"""Parts of a deployment that are billed by the hour: the learner's group, the cache, and warm actors."""
LEARNER_ATTRIBUTES = (
    "run",
    "stack",
    "writer",
    "state",
    "reason",
    "instance_id",
    "ledger",
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
    """One run's item.

    Attributes:
        run: ``EXPERIMENT/RUN``.
        stack: Id of the stack of the run's deployment, as the guard noticed it.
        closed_stack: Id of the last stack that is no longer billed and whose cost is in the item.
        writer: The only one allowed to write figures.
        state: ``starting`` (from the instance's boot), ``training``, or ``finished``; empty before the first write.
        reason: Why it finished.
        instance_id: The learner's instance.
        ledger: Contents of ``ledger.json``; empty before the first, and once the account is closed.
        spent_usd, reserved_usd: Since the run began. The reservation is the worst case of all work in progress.
        burn_usd_per_hour: Hourly cost of all parts that exist, even if idle; 0 before the first write.
        covered_until_s: Spent and reserved cover all existing parts until then, in seconds since 1970. A learner whose
            clock is slow covers less, and the guard counts the difference.
        heartbeat_at_s: The learner's last heartbeat, by its clock.
        budget_usd: Budget of the whole run.
        seen_heartbeat_s, seen_at_s: The newest heartbeat that the guard has seen, and when it first saw it, by the
            guard's clock.
        before_usd: Cost of all closed deployments.
        began_at_s: The earliest time that the stack's creation can have been executed, as the guard saw it.
        learner_from_s, cache_from_s, provisioned_from_s: The last time the guard saw that this part of the stack had
            not been begun; 0 if it never did.
        order: The order to take the deployment down; None if there is none.
    """

    run: str
    stack: str = ""
    closed_stack: str = ""
    writer: str = ""
    state: str = ""
    reason: str = ""
    instance_id: str = ""
    ledger: str = ""
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    burn_usd_per_hour: float = 0.0
    covered_until_s: float = 0.0
    heartbeat_at_s: float = 0.0
    budget_usd: float = 0.0
    seen_heartbeat_s: float = 0.0
    seen_at_s: float = 0.0
    before_usd: float = 0.0
    began_at_s: float = 0.0
    learner_from_s: float = 0.0
    cache_from_s: float = 0.0
    provisioned_from_s: float = 0.0
    order: Order | None = None

    @property
    def is_open(self) -> bool:
        """Whether a deployment's final cost is still unknown."""
        return bool(self.stack) and self.stack != self.closed_stack

    @property
    def promised_usd(self) -> float:
        """Dollars spent and reserved. A learner cannot lower what earlier deployments cost."""
        return max(self.spent_usd, self.before_usd) + self.reserved_usd

    @property
    def parts_from_s(self) -> dict[str, float]:
        """When each of `PARTS` can have begun to cost money; 0 if unknown."""
        return {part: getattr(self, f"{part}_from_s") for part in PARTS}

    def order_for(self, stack: str) -> Order | None:
        """Returns the order to take that stack down; None if there is none."""
        return self.order if self.order is not None and self.order.stack == stack else None


_ATTRIBUTES = [one.name for one in fields(Entry)]
_OF_LEARNER: dict[str, str | float] = {
    "writer": "",
    "state": "",
    "reason": "",
    "instance_id": "",
    "ledger": "",
    "burn_usd_per_hour": 0.0,
    "heartbeat_at_s": 0.0,
    "seen_heartbeat_s": 0.0,
    **{f"{part}_from_s": 0.0 for part in PARTS},
}
"""Attributes that begin anew with each deployment."""
_SAME_STACK = "#stack = :this"
_SAME_ORDER = "teardown.#stack = :this"


class Ledger:
    """The guard's DynamoDB table: one item for each run, and one for the guard's last tick.

    Every method raises `LedgerError` if the table cannot be read or written.
    """

    def __init__(self, client: Any, table: str) -> None:
        """Opens the table without a request.

        Args:
            client: DynamoDB client.
            table: Its name.
        """
        self._client = client
        self._table = table

    def get(self, run: str) -> Entry | None:
        """Reads a run's item; None if there is none."""
        item = self._call(self._client.get_item, Key=_key(run), ConsistentRead=True).get("Item")
        return _entry(item) if item else None

    def entries(self) -> list[Entry]:
        """Returns the items of all runs there ever were, by name."""
        items = self._call(
            lambda **table: list_all(self._client, "scan", "Items", **table), ConsistentRead=True
        )
        entries = [_entry(item) for item in items if "/" in item["run"]["S"]]
        return sorted(entries, key=lambda entry: entry.run)

    # Written by the learner

    def take_over(
        self, run: str, *, stack: str, writer: str, instance_id: str, now_s: float
    ) -> Entry:
        """Makes ``writer`` the only one who may write figures of the run; returns the run's new entry.

        Raises:
            TeardownOrderedError: The deployment is being taken down.
            LedgerError: The guard has not noticed this deployment, or has noticed a later one.
        """
        # A learner's role may not name the order even in a condition, so the answer to the write tells whether there is
        # one. The write does not change a teardown.
        entry = self._update(
            run,
            {
                "writer": writer,
                "state": STARTING,
                "reason": "",
                "instance_id": instance_id,
                "heartbeat_at_s": now_s,
            },
            condition=_SAME_STACK,
            this=stack,
            refused=LedgerError(
                f"the guard has not noticed this deployment of {run}, or knows a later one"
            ),
        )
        if entry.order_for(stack) is not None:
            raise TeardownOrderedError(f"the deployment of {run} is being taken down")
        return entry

    def record(self, run: str, *, writer: str, **figures: str | float) -> Entry:
        """Writes figures; returns the new entry.

        Args:
            run: ``EXPERIMENT/RUN``.
            writer: The caller, which must have taken the run over.
            figures: Attributes of `Entry`.

        Raises:
            LostRunError: Another learner took the run over, or its account is closed.
        """
        return self._update(
            run,
            figures,
            condition="#writer = :this",
            this=writer,
            refused=LostRunError(f"another learner or pool continues {run}"),
        )

    def finish(self, run: str, *, stack: str, reason: str) -> None:
        """Records that the deployment has nothing left to do.

        Raises:
            LostRunError: A later deployment has begun.
        """
        self._update(
            run,
            {"state": FINISHED, "reason": reason},
            condition=_SAME_STACK,
            this=stack,
            refused=_late(run),
        )

    # Written by the guard

    def notice(self, run: str, *, stack: str, began_at_s: float) -> Entry:
        """Opens the account of a deployment if the run has no other open one; returns the run's entry.

        Args:
            run: ``EXPERIMENT/RUN``.
            stack: Id of its stack.
            began_at_s: When its creation can have been executed at the earliest, in seconds since 1970.
        """
        figures: dict[str, str | float] = {
            "stack": stack,
            "began_at_s": began_at_s,
            "covered_until_s": began_at_s,
        }
        try:
            return self._update(
                run,
                {**_OF_LEARNER, **figures},
                condition="attribute_not_exists(#stack) OR #stack = closed_stack",
                refused=_HeldError(),
            )
        except _HeldError:
            return self._known(run)

    def saw(self, run: str, *, stack: str, **figures: float) -> None:
        """Records what the guard has seen of a deployment: attributes of `Entry`. Nothing if a later one has begun."""
        with suppress(_HeldError):
            self._update(run, figures, condition=_SAME_STACK, this=stack, refused=_HeldError())

    def order(self, run: str, *, stack: str, reason: str, now_s: float) -> Entry:
        """Orders the teardown unless it is ordered already; returns the entry with the order that holds."""
        order = {
            "stack": stack,
            "reason": reason[:_REASON_CHARACTERS],
            "ordered_at_s": now_s,
            "steps": {},
            "failures": 0,
        }
        try:
            return self._update(
                run,
                {"teardown": order},
                condition="attribute_not_exists(teardown) OR teardown.#stack <> :this",
                this=stack,
                refused=_HeldError(),
            )
        except _HeldError:
            return self._known(run)

    def step_done(self, run: str, step: str, *, stack: str, now_s: float) -> Entry:
        """Records when a step of the teardown was done.

        Raises:
            LostRunError: The order is for a later deployment.
        """
        return self._update(
            run,
            {f"teardown.steps.{step}": now_s},
            condition=_SAME_ORDER,
            this=stack,
            refused=_late(run),
        )

    def count_failures(self, run: str, failures: int, *, stack: str) -> None:
        """Records how often deleting the stack has failed.

        Raises:
            LostRunError: The order is for a later deployment.
        """
        self._update(
            run,
            {"teardown.failures": failures},
            condition=_SAME_ORDER,
            this=stack,
            refused=_late(run),
        )

    def close(self, run: str, *, stack: str, spent_usd: float, now_s: float) -> None:
        """Records the run's final cost once the deployment is no longer billed; its learner cannot write after that.

        Raises:
            LostRunError: A later deployment has begun.
        """
        self._update(
            run,
            {
                "closed_stack": stack,
                "writer": "",
                "state": FINISHED,
                "ledger": "",
                "spent_usd": spent_usd,
                "before_usd": spent_usd,
                "reserved_usd": 0.0,
                "covered_until_s": now_s,
            },
            condition=_SAME_STACK,
            this=stack,
            refused=_late(run),
        )

    def tick(self, now_s: float) -> None:
        """Records that the guard has looked at every deployment and has ordered every teardown that is due."""
        self._update(GUARD_KEY, {"heartbeat_at_s": now_s})

    def last_tick_s(self) -> float | None:
        """Returns when the guard last looked, in seconds since 1970; None if it never did."""
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
        figures: Mapping[str, Any],
        *,
        condition: str = "",
        this: str = "",
        refused: Exception | None = None,
    ) -> Entry:
        """Sets attributes, by name or path, if the condition holds; raises ``refused`` if it does not.

        In the condition, ``#stack`` and ``#writer`` are these attributes, and ``:this`` is ``this``.
        """
        named = {f"#{name}": name for name in ("stack", "writer") if f"#{name}" in condition}
        given = {":this": _value(this)} if ":this" in condition else {}
        changes = []
        for number, (path, value) in enumerate(figures.items()):
            names = {f"#f{number}_{depth}": name for depth, name in enumerate(path.split("."))}
            named |= names
            given[f":f{number}"] = _value(value)
            changes.append(f"{'.'.join(names)} = :f{number}")
        request: dict[str, Any] = {
            "Key": _key(run),
            "UpdateExpression": "SET " + ", ".join(changes),
            "ReturnValues": "ALL_NEW",
            "ExpressionAttributeNames": named,
            "ExpressionAttributeValues": given,
        }
        if condition:
            request["ConditionExpression"] = condition
        try:
            return _entry(self._call(self._client.update_item, **request)["Attributes"])
        except LedgerError as error:
            is_refused = code_of(error.__cause__) == "ConditionalCheckFailedException"
            if refused is not None and is_refused:
                raise refused from None
            raise

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


def _late(run: str) -> LostRunError:
    return LostRunError(f"a later deployment of {run} has begun")


def _key(run: str) -> dict[str, Any]:
    return {"run": {"S": run}}


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"M": {name: _value(one) for name, one in value.items()}}
    return {"S": value} if isinstance(value, str) else {"N": repr(value)}


def _plain(value: Mapping[str, Any]) -> Any:
    ((kind, held),) = value.items()
    if kind == "M":
        return {name: _plain(one) for name, one in held.items()}
    return held if kind == "S" else float(held)


def _entry(item: Mapping[str, Any]) -> Entry:
    # An older guard wrote attributes that this one does not use.
    values = {name: _plain(one) for name, one in item.items() if name in (*_ATTRIBUTES, "teardown")}
    if order := values.pop("teardown", None):
        values["order"] = Order(**{**order, "failures": int(order["failures"])})
    return Entry(**values)
