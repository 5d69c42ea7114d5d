"""boto3 calls the local Lambda endpoint and finds the service that our fleet will meet."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.fleet.aws_lambda import parse_report
from tests.fleet.lambda_fleets import client
from tests.helpers import PATIENCE_S, ROOT, is_alive, wait_for
from tests.simulators.aws.lambda_endpoint import PAYLOAD_BYTES_MAX, LambdaEndpoint, why_unlimited

HANDLER = "tests.simulators.aws.sample_functions.handler"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[LambdaEndpoint]:
    with LambdaEndpoint() as made:
        made.add_function("sample", handler=HANDLER, environment={"GREETING": "hello"})
        yield made


@pytest.fixture(scope="module")
def lambda_client(endpoint: LambdaEndpoint) -> Any:
    return client(endpoint.url)


def invoke(
    lambda_client: Any, event: Any, name: str = "sample", **more: Any
) -> tuple[Any, str, dict[str, Any]]:
    """Returns payload, log tail, and the answer itself."""
    answer = lambda_client.invoke(
        FunctionName=name, LogType="Tail", Payload=json.dumps(event).encode(), **more
    )
    return (
        json.loads(answer["Payload"].read()),
        base64.b64decode(answer["LogResult"]).decode(),
        answer,
    )


def error_code(call: Any) -> str:
    with pytest.raises(ClientError) as raised:
        call()
    return raised.value.response["Error"]["Code"]


def test_a_log_tail_ends_with_the_bill_and_only_a_cold_start_shows_its_start_up(
    endpoint: LambdaEndpoint,
):
    endpoint.add_function("fresh", handler=HANDLER, memory_mib=512)
    lambda_client = client(endpoint.url)
    _, cold, answer = invoke(lambda_client, {"do": "print", "text": "printed here"}, "fresh")
    _, warm, _ = invoke(lambda_client, {"do": "echo"}, "fresh")
    request_id = answer["ResponseMetadata"]["RequestId"]
    found = re.fullmatch(
        rf"INIT_START .*\nSTART RequestId: {request_id} Version: \$LATEST\nprinted here\nEND RequestId: {request_id}\n"
        rf"REPORT RequestId: {request_id}\tDuration: ([\d.]+) ms\tBilled Duration: (\d+) ms\tMemory Size: 512 MB\t"
        r"Max Memory Used: \d+ MB\tInit Duration: ([\d.]+) ms\t\n",
        cold,
    )
    duration_ms, billed_ms, init_ms = (float(number) for number in found.groups())
    assert 0 <= billed_ms - (duration_ms + init_ms) < 1.02
    assert parse_report(cold, request_id).init_s == pytest.approx(init_ms / 1000)
    assert "INIT_START" not in warm
    assert "Init Duration" not in warm
    assert "printed here" not in warm


def test_provisioned_environments_start_before_their_first_use_with_their_own_variables(
    endpoint: LambdaEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LEARNERS_SECRET", "tooth-brush")
    arn = endpoint.add_function(
        "provisioned", handler=HANDLER, provisioned=2, environment={"GREETING": "hello"}
    )
    before = set(endpoint.process_ids("provisioned"))
    payload, log, answer = invoke(client(endpoint.url), {"do": "tell"}, arn)
    variables = payload["variables"]
    assert (payload["process_id"] in before, "Init Duration" in log) == (True, False)
    assert (payload["arn"], answer["ExecutedVersion"]) == (arn, "1")
    assert variables["AWS_LAMBDA_INITIALIZATION_TYPE"] == "provisioned-concurrency"
    assert variables["GREETING"] == "hello"
    assert "LEARNERS_SECRET" not in variables
    assert 0 < payload["remaining_ms"] <= 1000 * PATIENCE_S


def test_an_answer_that_is_too_large_is_a_failure(lambda_client: Any):
    event = {"do": "print", "text": "", "answer_bytes": PAYLOAD_BYTES_MAX}
    payload, log, answer = invoke(lambda_client, event)
    assert answer["FunctionError"] == "Unhandled"
    assert payload["errorType"] == "Function.ResponseSizeTooLarge"
    assert "exceeded" in payload["errorMessage"]
    assert parse_report(log, answer["ResponseMetadata"]["RequestId"]) is not None
    assert invoke(lambda_client, {"do": "echo"})[0] == {"do": "echo"}


def test_payloads_that_are_too_large_or_no_json_and_unknown_aliases_are_refused(lambda_client: Any):
    payload = {"do": "length", "text": "x" * (PAYLOAD_BYTES_MAX - 100)}
    assert invoke(lambda_client, payload)[0] == {"length": PAYLOAD_BYTES_MAX - 100}
    assert (
        error_code(lambda: invoke(lambda_client, "x" * PAYLOAD_BYTES_MAX))
        == "RequestTooLargeException"
    )
    assert error_code(lambda: lambda_client.invoke(FunctionName="sample", Payload=b"{")) == (
        "InvalidRequestContentException"
    )
    assert error_code(lambda: invoke(lambda_client, {}, "sample:other")) == (
        "ResourceNotFoundException"
    )


def test_nothing_outlives_a_killed_endpoint(tmp_path: Path):
    program = (
        "import sys; from tests.simulators.aws.lambda_endpoint import LambdaEndpoint\n"
        f"made = LambdaEndpoint(); made.add_function('sample', handler='{HANDLER}', provisioned=2)\n"
        "print(made.url, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lambda_client = client(parent.stdout.readline().strip())
        process_id = invoke(lambda_client, {"do": "tell"})[0]["process_id"]
        with ThreadPoolExecutor() as pool:
            hanging = pool.submit(
                invoke,
                lambda_client,
                {"do": "hold the lock", "seconds": 9000, "path": str(tmp_path / "mark")},
            )
            wait_for((tmp_path / "mark").exists, "a worker that holds its interpreter's lock")
            parent.kill()
            assert hanging.exception() is not None
        wait_for(lambda: not is_alive(process_id), "the worker's end")
    finally:
        parent.kill()
        parent.communicate()


# Limits of a sandbox


@pytest.fixture(scope="module")
def sandboxed(endpoint: LambdaEndpoint) -> str:
    if reason := why_unlimited():
        pytest.skip(reason)
    endpoint.add_function(
        "sandboxed", handler=HANDLER, is_limited=True, memory_mib=128, scratch_mib=2
    )
    return "sandboxed"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"do": "write", "path": "/written", "bytes": 1}, "/written: Read-only file system"),
        (
            {"do": "write", "path": str(ROOT / "written"), "bytes": 1},
            f"{ROOT}/written: Read-only file system",
        ),
        (
            {"do": "write", "path": "/dev/shm/written", "bytes": 1},
            "/dev/shm/written: Read-only file system",
        ),
        ({"do": "lock"}, "OSError"),
        (
            {"do": "write", "path": "/tmp/written", "bytes": 3 * 2**20},
            "/tmp/written: No space left on device",
        ),
        ({"do": "write", "path": "/tmp/written", "bytes": 2**20}, ""),
    ],
    ids=["root", "code", "shm", "lock", "large", "tmp"],
)
def test_a_sandbox_can_write_its_own_tmp_and_nothing_else(
    lambda_client: Any, sandboxed: str, event: dict[str, Any], said: str
) -> None:
    payload, _, answer = invoke(lambda_client, event, sandboxed)
    assert ("FunctionError" in answer, payload) == (False, said)
    assert not Path("/tmp/written").exists(), "it is the sandbox' own"


def test_a_sandbox_that_takes_more_memory_than_it_has_is_killed(
    lambda_client: Any, sandboxed: str
) -> None:
    event = {"do": "take memory", "mib": 128}
    payload, log, answer = invoke(lambda_client, event, sandboxed)
    assert answer["FunctionError"] == "Unhandled"
    assert (payload["errorType"], payload["errorMessage"].partition("Error: ")[2]) == (
        "Runtime.ExitError",
        "Runtime exited with error: signal: killed",
    )
    assert int(re.search(r"Max Memory Used: (\d+) MB", log)[1]) > 128
    assert "INIT_START" in invoke(lambda_client, {"do": "take memory", "mib": 16}, sandboxed)[1], (
        "another one"
    )
