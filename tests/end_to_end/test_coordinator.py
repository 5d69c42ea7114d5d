"""A run without an instance: the coordinator runs in legs on Lambda, and actors and updates are functions."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.ledger import FINISHED
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    LearnerFunctionSettings,
)
from runtime.experiment.schema import ActorSection
from runtime.times import LEG_S
from stacks.constructs.coordinator import HANDLER, SCRATCH_MIB, UPDATE_HANDLER
from tests.end_to_end.test_deployed import BUCKET, PREFIX, TABLE, TAIL_USD, Account, aws  # noqa: F401
from tests.fleet.lambda_fleets import ACTOR_ENVIRONMENT
from tests.fleet.lambda_fleets import client as lambda_client
from tests.helpers import SMALL_EXPERIMENT, results_only, wait_for
from tests.simulators.aws.lambda_endpoint import why_unlimited
from tests.simulators.aws.moto_server import CREDENTIALS, REGION

TEXT = (
    SMALL_EXPERIMENT.replace("learner: {", "learner: {kind: function, ")
    .replace("fleet: {processes: 2}", "cache: {kind: none}")
    .replace("timeout_s: 200", "timeout_s: 30")
)
EMPTY = (
    "NITRO_CACHE_URL",
    "NITRO_CACHE_CREDENTIAL",
    "NITRO_ACTOR_CREDENTIAL",
    "NITRO_LEARNER_GROUP",
    "NITRO_LEARNER_RESOURCE",
    "NITRO_IMAGE_ID",
)
ONE_LEARNER = (
    "kind: stellaris, learners: 1, staleness_decay: null, learning_rate_root: null, "
    "truncation: null"
)
"""Stellaris without its mechanisms: PPO, one gradient at a time."""


@pytest.fixture
def account(aws: Account) -> Iterator[Account]:  # noqa: F811
    aws.forget()
    texts = {
        "coordinator": TEXT,
        "hasty": TEXT,
        "stellaris": TEXT.replace("kind: function", ONE_LEARNER).replace(
            "max_rounds: 5", "max_rounds: 2"
        ),
    }
    for name, text in texts.items():
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as files:
            files.writestr("experiment.yaml", text)
        aws.moto.client("s3").put_object(Bucket=BUCKET, Key=f"{name}.zip", Body=packed.getvalue())
    reached = {
        **CREDENTIALS,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": aws.moto.url,
        "AWS_ENDPOINT_URL_LAMBDA": aws.functions.url,
    }
    learner = aws.functions.add_function(
        "Nitro-small-learner", handler=UPDATE_HANDLER, environment=reached, concurrency=1
    )
    variables = dict.fromkeys(EMPTY, "") | {
        "NITRO_EXPERIMENT": "small",
        "NITRO_RUN": "first",
        "NITRO_STACK": "Nitro-small",
        "NITRO_ACTOR_FUNCTION": aws.function,
        "NITRO_LEARNER_FUNCTION": learner,
        "NITRO_PROVISIONED": "0",
        "NITRO_RESULTS_BUCKET": BUCKET,
        "NITRO_RESULTS_PREFIX": PREFIX,
        "NITRO_LEDGER_TABLE": TABLE,
        "NITRO_TAIL_USD": str(TAIL_USD),
        "NITRO_INSTANCE_TYPE": "1769 MiB",
        "NITRO_CONTAINER_IMAGE": "learner",
    }
    for name in texts:
        is_limited = name == "stellaris" and not why_unlimited()
        if is_limited:
            variables |= _limited_functions(aws, reached)
        aws.functions.add_function(
            f"Nitro-small-{name}",
            handler=HANDLER,
            timeout_s=200.0 if name == "hasty" else LEG_S,
            is_limited=is_limited,
            memory_mib=COORDINATOR_MEMORY_MIB,
            scratch_mib=SCRATCH_MIB,
            environment={
                **ACTOR_ENVIRONMENT,
                **reached,
                **variables,
                "NITRO_FILES": f"s3://{BUCKET}/{name}.zip",
            },
        )
    yield aws
    aws.forget()


def _limited_functions(account: Account, reached: dict[str, str]) -> dict[str, str]:
    """Adds an actor and a learner function with only the resources that Lambda gives; returns the coordinator's
    variables.
    """
    actor = account.functions.add_function(
        "Nitro-small-limited-actor",
        is_limited=True,
        concurrency=2,
        memory_mib=ActorSection().memory_mib,
        environment={**ACTOR_ENVIRONMENT, **reached},
    )
    learner = account.functions.add_function(
        "Nitro-small-limited-learner",
        is_limited=True,
        concurrency=2,
        memory_mib=LearnerFunctionSettings().function_memory_mib,
        handler=UPDATE_HANDLER,
        environment=reached,
    )
    return {"NITRO_ACTOR_FUNCTION": actor, "NITRO_LEARNER_FUNCTION": learner}


def leg(account: Account, name: str = "Nitro-small-coordinator") -> dict[str, Any]:
    """Returns one leg's answer, with ``failed`` set if it raised."""
    with closing(lambda_client(account.functions.url)) as functions:
        began_at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        answer = functions.invoke(
            FunctionName=name, Payload=json.dumps({"started_at": began_at}).encode()
        )
        return json.loads(answer["Payload"].read()) | (
            {"failed": True} if "FunctionError" in answer else {}
        )


def last_leg(account: Account, name: str = "Nitro-small-coordinator") -> dict[str, Any]:
    """Returns the answer of the leg that ends the run. A slow machine needs more than one."""
    while (answer := leg(account, name)).get("done") is False:
        pass
    return answer


def test_a_killed_leg_is_followed_by_one_that_ends_the_run_as_on_one_machine(
    account: Account, reference: Path
) -> None:
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(leg, account)
        wait_for(lambda: "rounds.jsonl" in account.names() or first.done(), "a round")
        for process in account.functions.process_ids("Nitro-small-coordinator"):
            os.kill(process, signal.SIGKILL)
        # If the leg had ended, its process was idle, and the next leg must not find it dying.
        wait_for(
            lambda: not account.functions.process_ids("Nitro-small-coordinator"),
            "the end of its process",
        )
        assert first.result().get("failed") or first.result()["done"]
    assert last_leg(account) == {"done": True, "stop_reason": "max_rounds"}
    rows = [json.loads(row) for row in account.kept("rounds.jsonl").splitlines()]
    expected = [json.loads(row) for row in (reference / "rounds.jsonl").read_text().splitlines()]
    assert results_only(rows) == results_only(expected)
    assert all(0.0 < row["learner_cost_usd"] < 0.01 for row in rows)
    assert (account.entry.state, account.entry.reason) == (FINISHED, "max_rounds")
    assert json.loads(account.kept("ended.json"))["exit_code"] == 0
    assert not [name for name in account.names() if name.startswith("updates/")]


def test_one_learner_function_of_stellaris_without_its_mechanisms_trains_as_an_instance_does(
    account: Account, reference: Path
) -> None:
    """Runs within Lambda's limits where possible: only /tmp is writable, and memory is as requested."""
    assert last_leg(account, "Nitro-small-stellaris") == {"done": True, "stop_reason": "max_rounds"}
    of_instance = (reference / "rounds.jsonl").read_text().splitlines()
    for found, expected in zip(
        map(json.loads, account.kept("rounds.jsonl").splitlines()),
        map(json.loads, of_instance),
        strict=False,
    ):
        assert found["gradients"] == 2 * math.ceil(found["env_steps"] / 128)
        for key in (
            "convexity_ratio",
            "actor_count",
            "episode_return_mean",
            "policy_loss",
            "value_loss",
            "kl",
        ):
            assert found[key] == expected[key], key
    assert not [name for name in account.names() if name.startswith("updates/")]


def test_a_leg_with_no_time_for_a_round_fails_and_leaves_the_run_as_it_was(
    account: Account,
) -> None:
    answer = leg(account, "Nitro-small-hasty")
    assert answer["failed"], answer
    assert "no round was begun in this leg" in answer["errorMessage"]
    assert account.entry.state != FINISHED
    assert "rounds.jsonl" not in account.names()
