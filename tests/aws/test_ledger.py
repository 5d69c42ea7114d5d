"""The ledger's writes, against a real client and moto's DynamoDB."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import boto3
import moto
import pytest

from runtime.aws.ledger import (
    FINISHED,
    LEARNER_ATTRIBUTES,
    PARTS,
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
    Order,
    TeardownOrderedError,
)
from tests.helpers import create_ledger_table

RUN, TABLE = "hopper/first", "ledger"


@pytest.fixture
def client() -> Iterator[Any]:
    with moto.mock_aws():
        made = boto3.client("dynamodb", region_name="us-east-1")
        create_ledger_table(made, TABLE)
        yield made


@pytest.fixture
def ledger(client: Any) -> Ledger:
    made = Ledger(client, TABLE)
    made.notice(RUN, stack="one", began_at_s=1.0)
    return made


def take_over(ledger: Ledger, writer: str = "w1", stack: str = "one") -> Entry:
    return ledger.take_over(RUN, stack=stack, writer=writer, instance_id="i-1", now_s=1.5)


def test_what_is_written_is_read(ledger: Ledger) -> None:
    assert ledger.get("hopper/none") is None
    take_over(ledger)
    figures: dict[str, Any] = {
        "state": TRAINING,
        "ledger": '{"budget": {"spent": 7}}',
        "spent_usd": 0.1 + 0.2,
        "reserved_usd": 1e-11,
        "covered_until_s": 1_763_725_346.25,
        "burn_usd_per_hour": 1.0,
        "heartbeat_at_s": 2.5,
        "budget_usd": 3.0,
    }
    written = ledger.record(RUN, writer="w1", **figures)
    assert written == ledger.get(RUN)
    assert written == Entry(
        RUN, stack="one", writer="w1", instance_id="i-1", began_at_s=1.0, **figures
    )
    ledger.tick(7.0)
    assert (ledger.last_tick_s(), ledger.entries()) == (7.0, [written])
    with pytest.raises(LedgerError, match="the ledger nowhere: .*not found"):
        Ledger(ledger._client, "nowhere").get(RUN)


def test_the_one_that_took_the_run_over_last_writes_and_no_other(ledger: Ledger) -> None:
    """Random histories against an oracle that is a few variables."""
    draw = random.Random(3)
    owner, spent_usd, text, stack, is_closed, ordered = "", 0.0, "", "one", False, False
    for step in range(150):
        writer = draw.choice(["w1", "w2", "w3"])
        action = draw.choices(["take", "record", "order", "close", "notice"], [6, 12, 1, 1, 3])[0]
        if action == "take":
            try:
                entry = take_over(ledger, writer, stack)
                assert (entry.spent_usd, entry.ledger, ordered) == (spent_usd, text, False)
                assert entry.state == STARTING
            except TeardownOrderedError:
                assert ordered
            owner = writer
            with pytest.raises(LedgerError, match="has not noticed"):
                take_over(ledger, writer, "another")
        elif action == "record":
            try:
                ledger.record(RUN, writer=writer, spent_usd=float(step), ledger=f"of {step}")
                assert writer == owner
                spent_usd, text = float(step), f"of {step}"
            except LostRunError:
                assert writer != owner
        elif action == "order":
            ordered = True
            first = ledger.order(RUN, stack=stack, reason=f"first {step}", now_s=5.0).order
            again = ledger.order(RUN, stack=stack, reason="again", now_s=6.0).order
            assert first == again
        elif action == "close" and ordered:
            ledger.close(RUN, stack=stack, spent_usd=spent_usd + 1.0, now_s=9.0)
            owner, spent_usd, text, is_closed = "", spent_usd + 1.0, "", True
        elif action == "notice":
            newer = f"{step}"
            entry = ledger.notice(RUN, stack=newer, began_at_s=8.0)
            assert (entry.stack == newer) == is_closed
            if is_closed:
                stack, owner, text, is_closed, ordered = newer, "", "", False, False
        found = ledger.get(RUN)
        assert found is not None
        assert (found.spent_usd, found.ledger, found.is_open) == (spent_usd, text, not is_closed)
        assert (found.order_for(stack) is not None) == ordered


def test_a_teardowns_progress_is_noted_for_its_own_deployment(ledger: Ledger) -> None:
    assert ledger.order(RUN, stack="one", reason="why", now_s=5.0).order == Order("one", "why", 5.0)
    ledger.step_done(RUN, "provisioned capacity", stack="one", now_s=6.0)
    ledger.count_failures(RUN, 2, stack="one")
    order = ledger.order(RUN, stack="one", reason="again", now_s=8.0).order
    assert order == Order("one", "why", 5.0, {"provisioned capacity": 6.0}, 2)
    for late in (
        lambda: ledger.step_done(RUN, "cache", stack="two", now_s=9.0),
        lambda: ledger.count_failures(RUN, 1, stack="two"),
        lambda: ledger.finish(RUN, stack="two", reason="late"),
        lambda: ledger.close(RUN, stack="two", spent_usd=9.0, now_s=9.0),
    ):
        with pytest.raises(LostRunError):
            late()


def test_a_close_settles_what_was_reserved(ledger: Ledger) -> None:
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=1.0, reserved_usd=0.5, ledger="{}")
    ledger.saw(RUN, stack="one", learner_from_s=9.0)
    ledger.saw(RUN, stack="two", learner_from_s=8.0)
    ledger.close(RUN, stack="one", spent_usd=1.4, now_s=9.0)
    entry = ledger.get(RUN)
    assert entry is not None
    assert (entry.spent_usd, entry.reserved_usd, entry.before_usd) == (1.4, 0.0, 1.4)
    assert (entry.state, entry.covered_until_s, entry.is_open) == (FINISHED, 9.0, False)
    assert entry.parts_from_s == {
        "learner": 9.0,
        "cache": 0.0,
        "provisioned": 0.0,
    }
    again = ledger.notice(RUN, stack="two", began_at_s=10.0)
    assert (again.promised_usd, again.covered_until_s, again.heartbeat_at_s) == (1.4, 10.0, 0.0)
    assert set(again.parts_from_s.values()) == {0.0}
    take_over(ledger, stack="two")
    forgetful = ledger.record(RUN, writer="w1", spent_usd=0.0, reserved_usd=0.1)
    assert forgetful.promised_usd == pytest.approx(1.5)


def test_a_learner_names_nothing_in_its_writes_but_what_its_role_may(
    client: Any, ledger: Ledger
) -> None:
    """Also in conditions: DynamoDB counts attributes that a condition names as attributes of the request."""
    named: set[str] = set()

    def note(params: dict[str, Any], **_: Any) -> None:
        words = f"{params['UpdateExpression']} {params.get('ConditionExpression', '')}"
        names = params.get("ExpressionAttributeNames", {})
        named.update(params["Key"], names.values())
        named.update({"teardown", "closed_stack"} & set(words.replace(".", " ").split()))

    client.meta.events.register("provide-client-params.dynamodb.UpdateItem", note)
    take_over(ledger)
    figures = ("spent_usd", "reserved_usd", "budget_usd", "burn_usd_per_hour", "covered_until_s")
    ledger.record(
        RUN,
        writer="w1",
        ledger="{}",
        heartbeat_at_s=1.0,
        **dict.fromkeys(figures, 1.0),
    )
    ledger.finish(RUN, stack="one", reason="budget")
    assert named == set(LEARNER_ATTRIBUTES)
    named.clear()
    ledger.order(RUN, stack="one", reason="silence", now_s=5.0)
    seen = {name: 6.0 for name in ("seen_heartbeat_s", "seen_at_s")}
    ledger.saw(RUN, stack="one", **seen, **{f"{part}_from_s": 6.0 for part in PARTS})
    ledger.close(RUN, stack="one", spent_usd=1.0, now_s=7.0)
    ledger.notice(RUN, stack="two", began_at_s=8.0)
    assert named - set(LEARNER_ATTRIBUTES) == {
        "teardown",
        "seen_heartbeat_s",
        "seen_at_s",
        "before_usd",
        "began_at_s",
        "learner_from_s",
        "cache_from_s",
        "provisioned_from_s",
        "closed_stack",
    }
