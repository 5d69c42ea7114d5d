"""What a learner finds out on its instance before it trains, and when EC2 takes the instance back."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.cloudformation.models import cloudformation_backends

from runtime.aws.learner import learner
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.instance import ENDPOINT_VARIABLE
from tests.aws.learner.test_deployment import WHOLE
from tests.simulators.aws.metadata import InstanceMetadata

CREATED = datetime(2026, 11, 25, 9, 30, tzinfo=UTC)
IDENTITY = {"instance-id": "i-1", "instance-type": "c7i.large", "ami-id": "ami-1"}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[InstanceMetadata]:
    with InstanceMetadata(IDENTITY) as running:
        monkeypatch.setenv(ENDPOINT_VARIABLE, running.url)
        yield running


@pytest.fixture
def ran(metadata: InstanceMetadata, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A deployed stack, of which everything but the training is played; yields what `learner.run` is given."""
    given: list[Any] = []

    def run(path: Path, out: Path, deployment: Deployment, now: object) -> int:
        given.extend((path.read_text(), out, deployment))
        return 7

    monkeypatch.setattr(learner, "run", run)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        template = '{"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}}'
        stack = boto3.client("cloudformation").create_stack(
            StackName="Nitro-small", TemplateBody=template
        )["StackId"]
        cloudformation_backends["123456789012"]["us-east-1"].stacks[stack].creation_time = CREATED
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as files:
            files.writestr("experiment.yaml", "seed: 3")
        boto3.client("s3").create_bucket(Bucket="files")
        boto3.client("s3").put_object(Bucket="files", Key="k.zip", Body=packed.getvalue())
        known = {**WHOLE, "NITRO_STACK": stack, "NITRO_FILES": "s3://files/k.zip"}
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        for name in ("INSTANCE_ID", "INSTANCE_TYPE", "IMAGE_ID", "BILLED_SINCE"):
            monkeypatch.delenv(f"NITRO_{name}")
        yield given


def test_it_finds_its_instance_its_files_and_since_when_its_stack_is_billed(
    ran: list[Any], tmp_path: Path
) -> None:
    assert learner.main([str(tmp_path)]) == 7
    text, out, deployment = ran
    assert (text, out) == ("seed: 3", tmp_path)
    assert (deployment.instance_id, deployment.instance_type, deployment.image_id) == tuple(
        IDENTITY.values()
    )
    assert float(deployment.billed_since) == CREATED.timestamp()


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        (ENDPOINT_VARIABLE, "http://127.0.0.1:9", learner.TRY_AGAIN),
        ("NITRO_STACK", "another", learner.TRY_AGAIN),
        ("NITRO_FILES", "s3://files/other.zip", learner.TRY_AGAIN),
        ("NITRO_RUN", None, learner.REFUSED),
    ],
)
def test_what_it_cannot_find_it_looks_for_again_unless_it_is_no_learner(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, code: int
) -> None:
    monkeypatch.delenv(variable)
    if value is not None:
        monkeypatch.setenv(variable, value)
    assert learner.main(["out"]) == code
    assert ran == []
