"""The instance signs its requests to AWS as botocore would. The simulator refuses all others."""

from __future__ import annotations

import io
import json
import socket
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from stacks.components import boot_aws
from tests.simulators.aws.front_door import FrontDoor
from tests.simulators.aws.loopback import LoopbackServer, QuietHandler
from tests.simulators.aws.metadata import InstanceMetadata

FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:Nitro-one-actor"


class _Service(QuietHandler):
    """Answers each request with the next of these statuses, then with "done"."""

    statuses: list[int] = []

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(self.statuses.pop(0) if self.statuses else 200, b"done")

    do_GET = do_PUT = do_POST = do_DELETE = _answer


@pytest.fixture
def calls() -> list[str]:
    """Calls that passed the front door."""
    return []


@pytest.fixture
def metadata() -> Iterator[InstanceMetadata]:
    with InstanceMetadata({}) as running:
        yield running


@pytest.fixture
def door(
    metadata: InstanceMetadata, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FrontDoor]:
    _Service.statuses = []
    with LoopbackServer(_Service) as service, FrontDoor(service.url, calls.append) as running:
        running.credentials = {metadata.credentials["AccessKeyId"]: metadata.credentials}
        for name, value in {
            "REGION": "us-east-1",
            "DOMAIN": "amazonaws.com",
            "METADATA": metadata.url,
            "AWS": running.url,
            "PAUSE_S": "0",
        }.items():
            monkeypatch.setenv(f"BOOT_{name}", value)
        yield running


@pytest.mark.parametrize(
    ("service", "operation", "values", "body"),
    [
        (
            "autoscaling",
            "SetDesiredCapacity",
            {"AutoScalingGroupName": "one & two", "DesiredCapacity": "0"},
            None,
        ),
        (
            "cloudformation",
            "SignalResource",
            {
                "StackName": "arn:aws:x:y/z",
                "LogicalResourceId": "LearnerGroup",
                "UniqueId": "i-1-first actors",
                "Status": "FAILURE",
            },
            None,
        ),
        (
            "cloudwatch",
            "PutMetricData",
            {"Namespace": "Nitro", "MetricData.member.1.MetricName": "+ %41 ~"},
            None,
        ),
        ("dynamodb", "GetItem", {}, b'{"TableName": "t", "Key": {"run": {"S": "\xc3\xa4"}}}'),
        ("ecr", "GetAuthorizationToken", {}, None),
        (
            "lambda",
            "DeleteProvisionedConcurrencyConfig",
            {"FunctionName": FUNCTION, "Qualifier": "li ve"},
            None,
        ),
        ("logs", "CreateLogStream", {"logGroupName": "g/\u00e4", "logStreamName": "s"}, None),
        ("s3", "GetObject", {"Bucket": "b", "Key": "a/b+c d=e&f~(1)/\u00e4.json"}, None),
        ("s3", "ListObjectsV2", {"Bucket": "b", "Prefix": "a b/+~*/"}, None),
        ("s3", "PutObject", {"Bucket": "b", "Key": "k"}, b"\x00bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_call_is_let_in_as_it_was_meant(
    door: FrontDoor,
    calls: list[str],
    service: str,
    operation: str,
    values: dict[str, str],
    body: bytes | None,
) -> None:
    assert boot_aws.ask(boot_aws.call_of(service, operation, values, body)) == b"done"
    if body and service != "s3":
        values = {
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in json.loads(body).items()
        }
    assert calls == [
        " ".join(
            [f"aws {service} {operation}", *(f"{name}={value}" for name, value in values.items())]
        )
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"SecretAccessKey": "another"}, "SignatureDoesNotMatch"),
        ({"Token": "another"}, "InvalidClientTokenId"),
        ({"AccessKeyId": "ASIAANOTHER"}, "UnrecognizedClientException"),
    ],
)
def test_the_stand_in_refuses_the_credentials_of_others(
    door: FrontDoor, metadata: InstanceMetadata, calls: list[str], change: dict[str, str], code: str
) -> None:
    metadata.values["iam/security-credentials/learner"] = json.dumps(metadata.credentials | change)
    with pytest.raises(boot_aws.RefusedError, match=code):
        boot_aws.ask(boot_aws.call_of("s3", "GetObject", {"Bucket": "b", "Key": "k"}, None))
    assert calls == []


@pytest.mark.parametrize(
    "answer", ['{"Code": "AssumeRoleUnauthorizedAccess"}', "[]", "null", "<html>", "{"]
)
def test_metadata_without_credentials_are_asked_again_and_told_in_a_line(
    door: FrontDoor, metadata: InstanceMetadata, calls: list[str], answer: str
) -> None:
    metadata.values["iam/security-credentials/learner"] = answer
    with pytest.raises(SystemExit, match="^aws ecr GetAuthorizationToken: "):
        boot_aws.main(["ecr", "GetAuthorizationToken"])
    assert metadata.asked.count("iam/security-credentials/learner") == 3
    assert calls == []


@pytest.mark.parametrize(
    "code",
    ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"],
)
def test_all_that_asks_for_patience_gets_it(code: str) -> None:
    content = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}"}).encode()
    assert boot_aws.RefusedError(400, "Bad Request", content).is_passing
    assert not boot_aws.RefusedError(400, "Bad Request", b"ValidationException").is_passing


@pytest.mark.parametrize(
    ("late_s", "path", "body", "left_out", "code"),
    [
        (0, "/k", b"content", "", ""),
        (-301, "/k", b"content", "", "RequestExpired"),
        (0, "/other", b"content", "", "SignatureDoesNotMatch"),
        (0, "/k", b"other", "", "XAmzContentSHA256Mismatch"),
        (0, "/k", b"content", "Authorization", "MissingAuthenticationToken"),
    ],
)
def test_the_stand_in_refuses_what_was_altered_or_is_late(
    door: FrontDoor,
    metadata: InstanceMetadata,
    late_s: float,
    path: str,
    body: bytes,
    left_out: str,
    code: str,
) -> None:
    call = boot_aws.call_of("s3", "PutObject", {"Bucket": "b", "Key": "k"}, b"content")
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + late_s))
    headers = boot_aws.signed(
        call, "b.s3.us-east-1.amazonaws.com", "us-east-1", metadata.credentials, date
    )
    headers.pop(left_out, None)
    connection = HTTPConnection(urlsplit(door.url).netloc)
    connection.request("PUT", path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert (answer.status, json.loads(text)["__type"] if code else text) == (
        (403, code) if code else (200, "done")
    )


def test_the_stand_in_refuses_parameters_that_aws_does_not_know(
    door: FrontDoor, calls: list[str]
) -> None:
    for values, problem in (
        ({"logGroup": "g"}, "has no parameter logGroup"),
        ({"logGroupName": "g"}, "needs logStreamName"),
    ):
        with pytest.raises(boot_aws.RefusedError, match=problem):
            boot_aws.ask(boot_aws.call_of("logs", "CreateLogStream", values, None))
    assert calls == []


@pytest.mark.parametrize(
    ("statuses", "is_answered", "asked"),
    [([503, 429], True, 3), ([500, 500, 500], False, 3), ([400], False, 1)],
)
def test_only_bad_moments_are_asked_again(
    door: FrontDoor, calls: list[str], statuses: list[int], is_answered: bool, asked: int
) -> None:
    _Service.statuses = list(statuses)
    call = boot_aws.call_of("ecr", "GetAuthorizationToken", {}, None)
    if is_answered:
        assert boot_aws.ask(call) == b"done"
    else:
        with pytest.raises(boot_aws.RefusedError, match="done"):
            boot_aws.ask(call)
    assert len(calls) == asked


def test_what_does_not_answer_is_not_waited_for(
    door: FrontDoor, metadata: InstanceMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_aws, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("BOOT_AWS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TimeoutError):
            boot_aws.ask(boot_aws.call_of("ecr", "GetAuthorizationToken", {}, None))
    assert metadata.asked.count("iam/security-credentials/learner") == 3, (
        "with fresh credentials each time"
    )


def test_a_call_by_its_words(
    door: FrontDoor,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"TableName": "t", "Key": {}}'))
    )
    boot_aws.main(["dynamodb", "GetItem", "-"])
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"done"
    assert calls == ["aws dynamodb GetItem TableName=t Key={}"]
    with pytest.raises(SystemExit, match="sqs DeleteQueue is not known here"):
        boot_aws.main(["sqs", "DeleteQueue"])
