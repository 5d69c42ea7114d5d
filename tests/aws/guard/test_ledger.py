"""The ledger's writes, against a real client and moto's DynamoDB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import moto
import pytest

from runtime.aws.guard.ledger import (
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
from runtime.aws.learner.heartbeat import figures_of

RUN, TABLE = "hopper/first", "ledger"


@pytest.fixture
def client() -> Iterator[Any]:
    with moto.mock_aws():
        made = boto3.client("dynamodb", region_name="us-east-1")
        made.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "run", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "run", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield made


@pytest.fixture
def ledger(client: Any) -> Ledger:
    return Ledger(client, TABLE)


def take_over(ledger: Ledger, writer: str = "w1", stack: str = "one") -> Entry:
    return ledger.take_over(RUN, stack=stack, writer=writer, instance_id="i-1", now_s=1.5)


def test_what_is_written_is_read(ledger: Ledger) -> None:
    assert ledger.get(RUN) is None
    assert ledger.entries() == []
    take_over(ledger)
    figures = {
        "state": TRAINING,
        "spent_usd": 0.1 + 0.2,
        "reserved_usd": 1e-11,
        "covered_until_s": 1_763_725_346.25,
        "burn_usd_per_hour": 1.0,
        "heartbeat_at_s": 2.5,
        "budget_usd": 3.0,
        "stop_event": "{}",
    }
    written = ledger.record(RUN, writer="w1", **figures)
    assert (
        written
        == ledger.get(RUN)
        == Entry(RUN, stack="one", writer="w1", instance_id="i-1", **figures)
    )
    ledger.tick(7.0)
    assert (ledger.last_tick_s(), ledger.entries()) == (7.0, [written])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_refused_here(ledger: Ledger, value: float) -> None:
    take_over(ledger)
    with pytest.raises(LedgerError, match="cannot be written"):
        ledger.record(RUN, writer="w1", spent_usd=value)


def test_of_two_learners_only_the_newer_writes(ledger: Ledger) -> None:
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=1.0, state=TRAINING, stop_event="old")
    found = take_over(ledger, "w2")
    assert (found.spent_usd, found.state, found.stop_event) == (1.0, STARTING, "")
    with pytest.raises(LostRunError):
        ledger.record(RUN, writer="w1", spent_usd=9.0)
    assert ledger.record(RUN, writer="w2", spent_usd=2.0).spent_usd == 2.0


def test_the_first_order_holds_and_a_learner_hears_of_it(ledger: Ledger) -> None:
    take_over(ledger)
    first = ledger.order(RUN, stack="one", reason="its budget", now_s=5.0)
    assert first.order == Order("one", "its budget", 5.0)
    assert ledger.order(RUN, stack="one", reason="by hand", now_s=6.0) == first
    assert ledger.record(RUN, writer="w1", spent_usd=1.0).order_for("one") == first.order
    with pytest.raises(TeardownOrderedError):
        take_over(ledger, "w2")
    # This order does not apply to a later deployment of the run.
    assert take_over(ledger, "w3", "two").order_for("two") is None
    with pytest.raises(LostRunError):
        ledger.finish(RUN, stack="one", reason="late")
    with pytest.raises(LostRunError):
        ledger.close(RUN, stack="one", spent_usd=9.0, now_s=9.0)
    assert ledger.order(RUN, stack="two", reason="again", now_s=7.0).order == Order(
        "two", "again", 7.0
    )


def test_a_deployment_that_nobody_wrote_about_can_be_ordered_down(ledger: Ledger) -> None:
    assert (
        ledger.order(RUN, stack="one", reason="silence", now_s=5.0).order_for("one").reason
        == "silence"
    )
    ledger.close(RUN, stack="one", spent_usd=0.5, now_s=9.0)
    entry = ledger.get(RUN)
    assert (entry.state, entry.spent_usd, entry.covered_until_s) == (FINISHED, 0.5, 9.0)


def test_each_step_is_noted_once_and_each_failure_counted(ledger: Ledger) -> None:
    ledger.order(RUN, stack="one", reason="silence", now_s=5.0)
    ledger.step_done(RUN, "stop key", stack="one", now_s=6.0)
    assert ledger.step_done(RUN, "stop key", stack="one", now_s=8.0).order.steps == {
        "stop key": 6.0
    }
    assert ledger.step_done(RUN, "learner", stack="one", now_s=9.0).order.steps == {
        "stop key": 6.0,
        "learner": 9.0,
    }
    assert [ledger.count_failure(RUN, stack="one"), ledger.count_failure(RUN, stack="one")] == [
        1,
        2,
    ]
    for late in (
        lambda: ledger.step_done(RUN, "cache", stack="two", now_s=9.0),
        lambda: ledger.count_failure(RUN, stack="two"),
    ):
        with pytest.raises(LostRunError):
            late()
    assert ledger.get(RUN).order.failures == 2


def test_the_guards_writes_and_the_learners_do_not_touch_each_other(ledger: Ledger) -> None:
    take_over(ledger)
    ledger.saw(RUN, heartbeat_at_s=1.5, spent_usd=0.5, now_s=4.0)
    ledger.order(RUN, stack="one", reason="its budget", now_s=5.0)
    entry = ledger.record(RUN, writer="w1", spent_usd=1.0, heartbeat_at_s=6.0)
    assert (entry.seen_heartbeat_s, entry.seen_at_s, entry.order.reason) == (1.5, 4.0, "its budget")
    assert (entry.seen_spent_usd, entry.promised_usd) == (0.5, 1.0)
    ledger.finish(RUN, stack="one", reason="taken down")
    entry = ledger.get(RUN)
    assert (entry.state, entry.reason, entry.spent_usd, entry.order.reason) == (
        FINISHED,
        "taken down",
        1.0,
        "its budget",
    )


def test_when_a_stack_began_is_noted_once(ledger: Ledger) -> None:
    take_over(ledger)
    for at_s in (5.0, 4.0, 6.0):
        ledger.begin(RUN, stack="one", began_at_s=at_s)
    entry = ledger.get(RUN)
    assert (entry.began_s("one"), entry.began_s("two")) == (5.0, None)
    ledger.missed(RUN, ["learner", "cache"], stack="one", now_s=6.0)
    ledger.missed(RUN, ["learner"], stack="one", now_s=6.5)
    ledger.missed(RUN, ["learner"], stack="two", now_s=9.0)
    seen = {"learner_from_s": 6.5, "cache_from_s": 6.0, "provisioned_from_s": 0.0}
    assert ledger.get(RUN).from_s("one") == seen
    assert ledger.get(RUN).from_s("two") == dict.fromkeys(seen, 0.0)
    ledger.begin(RUN, stack="two", began_at_s=7.0)
    assert ledger.get(RUN).began_s("two") == 7.0


@pytest.mark.parametrize(
    ("figures", "damage"),
    [
        ({"spent_usd": -1.0}, "spent_usd"),
        ({"reserved_usd": -1e-9}, "reserved_usd"),
        ({"burn_usd_per_hour": -9.0}, "burn_usd_per_hour"),
        ({"covered_until_s": -5.0}, "covered_until_s"),
        ({"spent_usd": 1e13}, "spent_usd"),
        ({"heartbeat_at_s": 9e11}, "heartbeat_at_s"),
    ],
)
def test_what_cannot_be_is_damage_and_gives_no_money_back(
    ledger: Ledger, figures: dict[str, float], damage: str
) -> None:
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=2.0, reserved_usd=0.5)
    ledger.saw(RUN, heartbeat_at_s=1.5, spent_usd=2.0, now_s=4.0)
    entry = ledger.record(RUN, writer="w1", **figures)
    assert entry.damage.startswith(f"{damage} = ")
    assert entry.promised_usd >= 2.0


def test_a_close_settles_what_was_reserved(ledger: Ledger) -> None:
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=1.0, reserved_usd=0.5)
    assert ledger.get(RUN).is_open
    ledger.close(RUN, stack="one", spent_usd=1.4, now_s=9.0)
    entry = ledger.get(RUN)
    assert (entry.spent_usd, entry.reserved_usd, entry.is_open) == (1.4, 0.0, False)
    assert entry.before_usd == 1.4
    # Anything that an ending learner reports now is too late.
    with pytest.raises(LostRunError):
        ledger.record(RUN, writer="w1", spent_usd=1.1)


def test_a_deployment_is_noticed_once_the_one_before_is_closed(ledger: Ledger) -> None:
    first = ledger.notice(RUN, stack="one", created_at_s=5.0)
    assert (first.stack, first.covered_until_s, first.is_open) == ("one", 5.0, True)
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=1.0, burn_usd_per_hour=9.0, heartbeat_at_s=7.0)
    assert ledger.notice(RUN, stack="two", created_at_s=8.0).stack == "one"
    ledger.close(RUN, stack="one", spent_usd=1.4, now_s=9.0)
    second = ledger.notice(RUN, stack="two", created_at_s=8.0)
    assert (
        second.stack,
        second.state,
        second.spent_usd,
        second.burn_usd_per_hour,
        second.heartbeat_at_s,
    ) == ("two", "", 1.4, 0.0, 0.0)


def test_a_table_that_is_not_there_and_an_item_that_is_damaged(client: Any, ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="the ledger nowhere: .*not found"):
        Ledger(client, "nowhere").get(RUN)
    client.put_item(
        TableName=TABLE,
        Item={
            "run": {"S": RUN},
            "spent_usd": {"S": "much"},
            "state": {"B": b"1"},
            "teardown": {"M": {"stack": {"S": "one"}}},
            "reserved_usd": {"N": "2"},
        },
    )
    (entry,) = ledger.entries()
    assert (entry.reserved_usd, entry.order) == (2.0, None)
    assert (
        entry.damage
        == "state = {'B': b'1'}; spent_usd = {'S': 'much'}; teardown = {'M': {'stack': {'S': 'one'}}}"
    )


def test_a_learner_names_nothing_in_its_writes_but_what_its_role_may(
    client: Any, ledger: Ledger
) -> None:
    """Also in conditions: DynamoDB counts attributes that a condition names as attributes of the request."""
    named: set[str] = set()
    client.meta.events.register(
        "provide-client-params.dynamodb.UpdateItem",
        lambda params, **_: named.update(
            params["Key"], params["ExpressionAttributeNames"].values()
        ),
    )
    take_over(ledger)
    meter = SimpleNamespace(
        spent_usd=0.1, reserved_usd=0.2, burn_usd_per_hour=0.3, covered_until_s=4.0
    )
    ledger.record(
        RUN,
        writer="w1",
        state=TRAINING,
        heartbeat_at_s=1.0,
        stop_event="{}",
        **figures_of(meter, 5.0),
    )
    ledger.finish(RUN, stack="one", reason="budget")
    assert named == set(LEARNER_ATTRIBUTES)
    named.clear()
    ledger.order(RUN, stack="one", reason="silence", now_s=5.0)
    ledger.saw(RUN, heartbeat_at_s=1.0, spent_usd=0.1, now_s=6.0)
    ledger.begin(RUN, stack="one", began_at_s=6.0)
    ledger.missed(RUN, PARTS, stack="one", now_s=6.0)
    ledger.serve(RUN, now_s=6.0)
    ledger.close(RUN, stack="one", spent_usd=1.0, now_s=7.0)
    assert named - set(LEARNER_ATTRIBUTES) == {
        "teardown",
        "seen_heartbeat_s",
        "seen_at_s",
        "seen_spent_usd",
        "before_usd",
        "began_stack",
        "began_at_s",
        "learner_from_s",
        "cache_from_s",
        "provisioned_from_s",
        "served_at_s",
        "closed_stack",
    }


def test_an_item_that_is_full_can_still_be_ordered_down(ledger: Ledger) -> None:
    take_over(ledger)
    # moto's limit; DynamoDB's is 4,600 bytes higher.
    room = 405_000 - 600
    ledger.record(
        RUN, writer="w1", reason="x" * (room // 2), stop_event="x" * (room // 2), spent_usd=1.0
    )
    entry = ledger.order(RUN, stack="one", reason="y" * 500, now_s=5.0)
    assert entry.order_for("one").reason == "y" * 500
    assert (entry.spent_usd, entry.reason) == (1.0, "too long")


@pytest.mark.parametrize(
    ("character", "attributes"),
    [
        ("😀", ("reason", "stop_event", "instance_id", "state", "writer", "budget_usd")),
        ("x", tuple(set(LEARNER_ATTRIBUTES) - {"run", "stack"})),
    ],
)
def test_a_learner_cannot_fill_an_item_up_in_any_way(
    client: Any, ledger: Ledger, character: str, attributes: tuple[str, ...]
) -> None:
    take_over(ledger)
    ledger.record(RUN, writer="w1", spent_usd=0.7, covered_until_s=900.0)

    def fill() -> None:
        """Leaves less room than the guard's next write needs, whatever that is."""
        left = 404_900 - sum(
            len(name) + len(str(next(iter(value.values()))).encode())
            for name, value in client.get_item(TableName=TABLE, Key=key)["Item"].items()
            if name not in attributes
        )
        each = (left // len(attributes) - 20) // len(character.encode())
        client.update_item(
            TableName=TABLE,
            Key=key,
            UpdateExpression="SET " + ", ".join(f"#{name} = :long" for name in attributes),
            ExpressionAttributeNames={f"#{name}": name for name in attributes},
            ExpressionAttributeValues={":long": {"S": character * each}},
        )

    key = {"run": {"S": RUN}}
    fill()
    entry = ledger.order(RUN, stack="one", reason=character * 200_000, now_s=5.0)
    assert entry.order_for("one").reason == character * 500
    if "spent_usd" not in attributes:
        assert entry.spent_usd == 0.7
    fill()
    assert ledger.saw(RUN, heartbeat_at_s=1.0, spent_usd=0.9, now_s=6.0) is None
    assert ledger.get(RUN).promised_usd >= 0.9
    assert "budget_usd" in ledger.get(RUN).damage


def test_texts_that_no_stack_has_for_a_name_are_cut_too(client: Any, ledger: Ledger) -> None:
    take_over(ledger)
    client.update_item(
        TableName=TABLE,
        Key={"run": {"S": RUN}},
        UpdateExpression="SET #stack = :long",
        ExpressionAttributeNames={"#stack": "stack"},
        ExpressionAttributeValues={":long": {"S": "x" * 404_700}},
    )
    assert ledger.order(RUN, stack="one", reason="y" * 500, now_s=5.0).order_for("one") is not None
