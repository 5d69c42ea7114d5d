"""Service-linked roles, in moto's IAM."""

from __future__ import annotations

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from runtime.aws.clients import clients
from stacks.deploy.service_roles import make_service_roles


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        yield


def services() -> set[str]:
    return {role["Path"].split("/")[2] for role in boto3.client("iam").list_roles()["Roles"]}


def test_a_fresh_account_gets_those_that_the_deployment_uses_once() -> None:
    said = make_service_roles(clients(), has_cache=False, market="on_demand")
    assert said == "made the service-linked roles of autoscaling.amazonaws.com"
    assert services() == {"autoscaling.amazonaws.com"}
    said = make_service_roles(clients(), has_cache=True, market="spot")
    assert said == "made the service-linked roles of spot.amazonaws.com, elasticache.amazonaws.com"
    assert services() == {
        "autoscaling.amazonaws.com",
        "spot.amazonaws.com",
        "elasticache.amazonaws.com",
    }
    assert make_service_roles(clients(), has_cache=True, market="spot") == ""


def test_whoever_may_not_is_not_stopped() -> None:
    client = clients()
    client("iam").meta.events.register("before-call.iam", refuse)
    assert "could not be looked up or made" in make_service_roles(
        client, has_cache=True, market="spot"
    )
    assert services() == set()


def refuse(**_: object) -> None:
    raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListRoles")
