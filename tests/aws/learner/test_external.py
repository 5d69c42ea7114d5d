"""A pool on its own deployment: its ledger entries, and what happens when others write to the ledger."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from runtime.aws import clients
from runtime.aws.asking import AccountError
from runtime.aws.guard.stacks import GuardedStack
from runtime.aws.learner import external
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.external import FoundPool, PoolBackend, find_pool
from runtime.aws.ledger import (
    FINISHED,
    TRAINING,
    Ledger,
    LedgerError,
    LostRunError,
    TeardownOrderedError,
)
from runtime.errors import ExperimentError, GuardError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.prices import POOL_USD_PER_HOUR, PRICES, prices_to_json
from runtime.money.work import ACTOR, Work
from runtime.pool.pool import ActorPool
from runtime.training.opening import Resources
from tests.helpers import create_ledger_table, wait_for
from tests.learner.learning import VECTORS

TABLE, RUN, STACK = "ledger", "mine/first", "arn:aws:cloudformation:us-east-1:1:stack/Nitro-mine/1"
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:Nitro-mine-actor:live"
CREATED_S = 1.8e9
TAIL_USD = 0.25
TREE: dict[str, Any] = {
    "environment": {"id": "some:thing"},
    "learner": {"kind": "external"},
    "fleet": {"kind": "lambda"},
    "scaler": {"kind": "fixed", "actors_fixed": 4},
    "actor": {"timeout_s": 30},
    "budget": {"usd": 2.0},
}


class Functions:
    """AWS Lambda, with the calls that a pool makes before it samples."""

    def get_function_concurrency(self, FunctionName: str) -> dict[str, int]:
        assert FunctionName == FUNCTION.removesuffix(":live")
        return {"ReservedConcurrentExecutions": 3}

    def close(self) -> None:
        return


@dataclass
class World:
    """An account with deployed actors, and a clock.

    Attributes:
        refusal: The error that AWS answers every call with; None for normal answers.
        writes: How often the ledger was written.
    """

    now_s: float = CREATED_S + 600.0
    refusal: Exception | None = None
    writes: int = 0
    region_name: str | None = "us-east-1"
    stack: ExitStack = field(default_factory=ExitStack)

    def client(self, service: str, **_: Any) -> Any:
        if service == "lambda":
            return Functions()
        made = boto3.client(service, region_name="us-east-1")
        made.meta.events.register("before-call.*.*", self._asked)
        return made

    def _asked(self, model: Any, **_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.writes += model.name == "UpdateItem"

    @property
    def ledger(self) -> Ledger:
        return Ledger(boto3.client("dynamodb", region_name="us-east-1"), TABLE)

    def found(self, **changed: Any) -> FoundPool:
        told = {
            **dict.fromkeys((one.name for one in fields(Deployment)), ""),
            "experiment": "mine",
            "run": "first",
            "stack": STACK,
            "actor_function": FUNCTION,
            "provisioned": "0",
            "ledger_table": TABLE,
            "files": "s3://files/1.zip",
        }
        deployed = GuardedStack(
            run=RUN,
            stack=STACK,
            name="Nitro-mine",
            status="CREATE_COMPLETE",
            created_at_s=CREATED_S,
            **{"budget_usd": 2.0, "tail_usd": TAIL_USD, **changed},
        )
        return FoundPool(Deployment(**told), deployed, self)

    def backend(self, tree: dict[str, Any] | None = None, **changed: Any) -> PoolBackend:
        experiment = experiment_from_tree(tree or TREE, source="test").resolved()
        return PoolBackend(experiment, self.found(**changed), now=lambda: self.now_s)

    def open(self, backend: PoolBackend | None = None) -> Resources:
        """A pool's resources, once it may sample."""
        backend = backend or self.backend()
        backend.fetch(SimpleNamespace())
        fitted = (
            experiment_from_tree(TREE, source="test")
            .resolved()
            .fitted(VECTORS, preprocessing="none")
        )
        resources = backend.open(
            SimpleNamespace(
                experiment=fitted,
                spaces=VECTORS,
                stack=self.stack,
                shield=nullcontext,
                events=None,
                run_id="r",
            )
        )
        resources.elsewhere.begins()
        return resources


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        create_ledger_table(boto3.client("dynamodb", region_name="us-east-1"), TABLE)
        store = boto3.client("s3", region_name="us-east-1")
        store.create_bucket(Bucket="files")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as files:
            # As typed: what else it resolves to differs between a function and a pool's process.
            typed = {name: section for name, section in TREE.items() if name != "fleet"}
            files.writestr("experiment.yaml", json.dumps(typed))
            files.writestr("prices.json", prices_to_json(PRICES))
        store.put_object(Bucket="files", Key="1.zip", Body=packed.getvalue())
        made = World()
        made.ledger.tick(made.now_s)
        made.ledger.notice(RUN, stack=STACK, began_at_s=CREATED_S)
        with made.stack:
            yield made


def reserve(resources: Resources, actors: int) -> None:
    """Reserves a call's worst case in the ledger, as a pool does."""
    assert resources.meter.open_standing()
    assert resources.meter.reserve([Work(ACTOR, slot) for slot in range(actors)]) == actors
    resources.elsewhere.ledger_changed(b"")


def test_what_is_promised_is_in_the_ledger_before_it_is_used_and_less_is_not_written_at_once(
    world: World,
) -> None:
    resources = world.open()
    assert (
        world.ledger.get(RUN).state,
        resources.fleet.concurrency,
        resources.elsewhere.spent_usd(),
    ) == (TRAINING, 3, 0.0)
    reserve(resources, 2)
    entry, writes = world.ledger.get(RUN), world.writes
    assert entry.promised_usd == resources.meter.spent_usd + resources.meter.reserved_usd > 0.0
    assert (entry.budget_usd, entry.burn_usd_per_hour) == (2.0, pytest.approx(POOL_USD_PER_HOUR))
    resources.meter.cancel(Work(ACTOR, 0))
    resources.elsewhere.ledger_changed(b"")
    assert world.writes == writes
    assert resources.meter.reserve([Work(ACTOR, 0, 1)]) == 1
    resources.elsewhere.ledger_changed(b"")
    assert world.writes == writes + 1
    # Ten minutes have passed, and the table is paid for each of these two writes.
    assert resources.meter.close_round(0.0).infrastructure_cost_usd == pytest.approx(
        POOL_USD_PER_HOUR / 6 + 2 * PRICES.put_usd / 2
    )


def test_what_the_teardown_needs_is_not_the_pools_nor_is_more_than_was_deployed(
    world: World,
) -> None:
    assert world.open().meter.free_usd == pytest.approx(2.0 - TAIL_USD)
    world.backend(budget_usd=3.0)
    with pytest.raises(
        ExperimentError, match="budget.usd = 2, but Nitro-mine was deployed with 1; allowed: up to"
    ):
        world.backend(budget_usd=1.0)


def test_a_pool_that_is_opened_again_counts_what_the_one_before_had_promised(world: World) -> None:
    first = world.open()
    reserve(first, 3)
    promised_usd, covered_s = world.ledger.get(RUN).promised_usd, first.meter.covered_until_s
    world.now_s = covered_s + 3600.0
    world.ledger.tick(world.now_s)
    second = world.open()
    assert second.elsewhere.spent_usd() == pytest.approx(promised_usd)
    # Time that the ledger covers is not billed again. Time since then is.
    assert second.meter.catch_up() == pytest.approx(POOL_USD_PER_HOUR)


def test_of_two_pools_the_older_one_spends_no_more_and_its_end_is_not_the_others(
    world: World,
) -> None:
    first, second = world.open(), world.open()
    with pytest.raises(LostRunError, match=f"^another learner or pool continues {RUN}$"):
        reserve(first, 1)
    first.elsewhere.on_end({})
    assert world.ledger.get(RUN).state == TRAINING
    reserve(second, 1)
    second.elsewhere.on_end({})
    entry = world.ledger.get(RUN)
    assert (entry.state, entry.reason) == (FINISHED, "the pool was closed")
    second.elsewhere.ledger_changed(b"")
    assert world.ledger.get(RUN) == entry


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pool_that_is_taken_down_says_so_before_it_samples_and_the_guard_need_not_wait(
    world: World, is_gone: bool
) -> None:
    resources = world.open()
    world.ledger.order(RUN, stack=STACK, reason="its budget is used up", now_s=world.now_s)
    if is_gone:
        # This machine may have slept, for example: the account is closed, and the run accepts no more writes.
        world.ledger.close(RUN, stack=STACK, spent_usd=1.0, now_s=world.now_s)
    with pytest.raises(
        TeardownOrderedError, match="^the deployment is taken down: its budget is used"
    ):
        reserve(resources, 1)
    assert world.ledger.get(RUN).state == FINISHED
    with pytest.raises(TeardownOrderedError):
        world.open()


def test_the_heartbeat_goes_on_however_long_the_trainer_trains(world: World) -> None:
    reserve(world.open(), 1)
    for _ in range(2):
        world.now_s += 20 * 3600.0
        wait_for(lambda: world.ledger.get(RUN).heartbeat_at_s == world.now_s, "a heartbeat")


def test_nothing_is_opened_while_nobody_would_end_it(world: World) -> None:
    world.now_s += 3600.0
    with pytest.raises(GuardError, match="not looked for 60 minutes"):
        world.open()
    assert world.ledger.get(RUN).writer == ""


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        (
            "actor",
            "memory_mib",
            2048,
            "actor.memory_mib = 2048, but Nitro-mine was deployed with 1024",
        ),
        (
            "cache",
            "kind",
            "redis",
            "cache.kind = 'redis', but Nitro-mine has no cache; allowed: none",
        ),
        (
            "environment",
            "id",
            "other:thing",
            "environment.id = 'other:thing', but Nitro-mine was deployed with",
        ),
        (
            "environment",
            "kwargs",
            {"a": 1},
            "environment.kwargs = {'a': 1}, but Nitro-mine was deployed with {}",
        ),
    ],
)
def test_another_experiment_than_the_one_that_was_deployed_is_refused(
    world: World, section: str, key: str, value: Any, text: str
) -> None:
    with pytest.raises(ExperimentError) as refused:
        world.backend({**TREE, section: {**TREE.get(section, {}), key: value}})
    assert text in str(refused.value)
    # Settings that do not concern the function may differ.
    world.backend({**TREE, "actor": {**TREE["actor"], "fragment_steps": 16}, "seed": 7})


# Credentials


def lost() -> ClientError:
    error = {"Error": {"Code": "ExpiredToken", "Message": "the token has expired"}}
    return ClientError(error, "AssumeRole")


def test_lost_credentials_are_told_in_a_line_and_the_pool_is_opened_again_with_what_it_had_spent(
    world: World,
) -> None:
    resources = world.open()
    reserve(resources, 2)
    promised_usd = world.ledger.get(RUN).promised_usd
    world.refusal = lost()
    assert resources.meter.reserve([Work(ACTOR, 3)]) == 1
    with pytest.raises(LedgerError) as told:
        resources.elsewhere.ledger_changed(b"")
    assert str(told.value).endswith("calling the AssumeRole operation: the token has expired")
    # The pool cannot report closing it either, and the guard will notice. The reason for closing is still shown.
    resources.elsewhere.on_end({})
    assert resources.meter.reserve([Work(ACTOR, 2)]) == 1
    resources.elsewhere.ledger_changed(b"")
    with pytest.raises(AccountError, match="AssumeRole: ExpiredToken: the token has expired"):
        world.backend()
    world.refusal = None
    assert world.ledger.get(RUN).state == TRAINING
    assert world.open().elsewhere.spent_usd() == pytest.approx(promised_usd)


class Tokens:
    """STS, whose first credentials end within a minute."""

    region_name = "us-east-1"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def client(self, service: str, **_: Any) -> Any:
        return self

    def assume_role(self, **arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        lasts = datetime.timedelta(seconds=60 if len(self.asked) == 1 else 3600)
        return {
            "Credentials": {
                "AccessKeyId": f"A{len(self.asked)}",
                "SecretAccessKey": "s",
                "SessionToken": "t",
                "Expiration": datetime.datetime.now(datetime.UTC) + lasts,
            }
        }


def test_a_session_is_renewed_before_it_ends() -> None:
    tokens, role = Tokens(), "arn:aws:iam::1:role/Nitro-mine-PoolRole1"
    session: Any = clients.assumed_session(tokens, role, "pool-7")
    assert (tokens.asked, session.region_name) == ([], "us-east-1")
    keys = [session.get_credentials().get_frozen_credentials().access_key for _ in range(3)]
    assert keys == ["A1", "A2", "A2"]
    assert tokens.asked[0] == {"RoleArn": role, "RoleSessionName": "pool-7"}


# Finding it


@pytest.mark.parametrize(
    ("status", "outputs", "text"),
    [
        ("", {}, "Nitro-my-hopper in region us-east-1 has no pool, and is not there; deploy"),
        ("CREATE_COMPLETE", {"ActorFunction": "f"}, "has no pool, and is CREATE_COMPLETE"),
        ("DELETE_IN_PROGRESS", {"PoolRole": "r"}, "has no pool, and is DELETE_IN_PROGRESS"),
    ],
)
def test_where_there_is_no_pool_it_is_said(
    monkeypatch: pytest.MonkeyPatch, status: str, outputs: dict[str, str], text: str
) -> None:
    stack = {
        "StackName": "Nitro-my-hopper",
        "StackId": STACK,
        "StackStatus": status,
        "CreationTime": datetime.datetime.now(datetime.UTC),
        "Tags": [{"Key": "nitro:experiment", "Value": "my-hopper"}],
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
    }
    monkeypatch.setattr(external, "open_session", lambda: Tokens())
    monkeypatch.setattr(external, "find_stack", lambda client, name: stack if status else None)
    with pytest.raises(AccountError) as refused:
        find_pool("my_hopper")
    assert text in str(refused.value)


def test_a_pools_file_names_its_deployment_and_a_dict_names_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def find(name: str) -> FoundPool:
        asked.append(name)
        raise AccountError("no stack")

    monkeypatch.setattr(external, "find_pool", find)
    (path := tmp_path / "slow.yaml").write_text(json.dumps(TREE))
    with pytest.raises(AccountError, match="no stack"):
        ActorPool(path)
    with pytest.raises(
        ExperimentError, match="a dict names no deployment; allowed: the experiment file"
    ):
        ActorPool(TREE)
    assert asked == ["slow"]
