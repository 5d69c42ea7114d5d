"""Checks of an account before anything is deployed, against moto's AWS."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import moto
import pytest

from runtime.aws.asking import AccountError
from runtime.config.loading import experiment_from_tree
from runtime.config.schema import Experiment
from runtime.errors import ExperimentError
from runtime.guard.limits import vcpu_quota
from runtime.names import GUARD_STACK, RESERVED_OUTPUT
from runtime.operations import quotas
from runtime.operations.quotas import read_account
from tests.simulators.aws.free_tier import FREE, PAID, FreeTier
from tests.simulators.aws.moto_types import BOOTSTRAP_PARAMETER

STACK = "Nitro-hopper"
TEMPLATE = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
ON_DEMAND = {"standard": "L-1216C47A", "graphics": "L-DB2E81BA", "training": "L-417A185B"}
SPOT = {"standard": "L-34B43A08", "graphics": "L-3819A6DF", "training": "L-7212CCBC"}


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, moto.mock_aws():
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        session().client("ssm").put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String")
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[FreeTier]:
    with FreeTier() as made:
        yield made


@pytest.fixture(autouse=True)
def free_tier(server: FreeTier, monkeypatch: pytest.MonkeyPatch) -> FreeTier:
    monkeypatch.setenv("AWS_ENDPOINT_URL_FREETIER", server.url)
    server.plan, server.failure = PAID, None
    return server


def session(region: str | None = "us-east-1", **credentials: str) -> boto3.Session:
    return boto3.Session(
        region_name=region,
        **{"aws_access_key_id": "test", "aws_secret_access_key": "test"} | credentials,
    )


def experiment(**learner: Any) -> Experiment:
    return experiment_from_tree(
        {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}, "learner": learner},
        source="test",
    ).resolved(is_deployed=True)


def read(
    of: Experiment, aws_session: boto3.Session | None = None, qualifier: str = "hnb659fds"
) -> Any:
    return read_account(aws_session or session(), of, stack=STACK, qualifier=qualifier)


def test_a_new_account(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "10")
    account = read(experiment(instance_types=["g4dn.xlarge", "g5.xlarge"]))
    assert (account.account_id, account.region, account.actor_concurrency) == (
        "123456789012",
        "us-east-1",
        10,
    )
    assert account.vcpus == {"g4dn.xlarge": (4, 64.0), "g5.xlarge": (4, 64.0)}
    assert account.usable_types == ["g4dn.xlarge", "g5.xlarge"]


def test_what_other_functions_have_reserved_is_not_there(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "200")
    role = (
        session()
        .client("iam")
        .create_role(RoleName="other", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    )
    client = session().client("lambda")
    client.create_function(
        FunctionName="other",
        Role=role,
        PackageType="Image",
        Code={"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/other:latest"},
    )
    client.put_function_concurrency(FunctionName="other", ReservedConcurrentExecutions=64)
    try:
        assert read(experiment()).actor_concurrency == 136
        # The guard's own are counted as free, so that a second deployment plans the same reservation.
        session().client("cloudformation").create_stack(
            StackName=GUARD_STACK,
            TemplateBody=json.dumps(
                {**json.loads(TEMPLATE), "Outputs": {RESERVED_OUTPUT: {"Value": "2"}}}
            ),
        )
        assert read(experiment()).actor_concurrency == 138
    finally:
        client.delete_function(FunctionName="other")
        session().client("cloudformation").delete_stack(StackName=GUARD_STACK)
        session().client("iam").delete_role(RoleName="other")


# Existing deployments


def test_a_stack_that_is_there_is_not_deployed_onto(aws: None) -> None:
    formation = session().client("cloudformation")
    formation.create_stack(StackName=f"{STACK}-2", TemplateBody=TEMPLATE)
    read(experiment())
    formation.create_stack(StackName=STACK, TemplateBody=TEMPLATE)
    with pytest.raises(AccountError) as error:
        read(experiment())
    assert str(error.value) == (
        "Nitro-hopper is deployed already (CREATE_COMPLETE); `python -m runtime stop` first: its results stay, and the "
        "run continues from them"
    )
    formation.delete_stack(StackName=STACK)
    read(experiment())
    formation.delete_stack(StackName=f"{STACK}-2")


@pytest.mark.parametrize(
    ("status", "is_there"),
    {
        "ROLLBACK_COMPLETE": False,
        "REVIEW_IN_PROGRESS": False,
        "DELETE_COMPLETE": False,
        "CREATE_IN_PROGRESS": True,
        "DELETE_FAILED": True,
        "ROLLBACK_FAILED": True,
        "UPDATE_ROLLBACK_COMPLETE": True,
    }.items(),
)
def test_a_stack_without_resources_is_none(
    aws: None, monkeypatch: pytest.MonkeyPatch, status: str, is_there: bool
) -> None:
    monkeypatch.setattr(
        quotas, "find_stack", lambda client, name: {"StackName": name, "StackStatus": status}
    )
    if is_there:
        with pytest.raises(AccountError, match=rf"{STACK} is deployed already \({status}\)"):
            read(experiment())
    else:
        read(experiment())


def test_a_stack_that_is_being_deleted_is_waited_for(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        quotas, "find_stack", lambda client, name: {"StackStatus": "DELETE_IN_PROGRESS"}
    )
    with pytest.raises(
        AccountError, match=f"{STACK} is being deleted, which takes about ten minutes"
    ):
        read(experiment())


# Quotas


def test_a_type_that_does_not_fit_is_passed_over(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_EC2_GPU_VCPU_QUOTA", "8")
    account = read(experiment(instance_types=["g4dn.4xlarge", "g4dn.2xlarge", "g4dn.xlarge"]))
    assert account.vcpus == {
        "g4dn.4xlarge": (16, 8.0),
        "g4dn.2xlarge": (8, 8.0),
        "g4dn.xlarge": (4, 8.0),
    }
    assert account.usable_types == ["g4dn.2xlarge", "g4dn.xlarge"]


@pytest.mark.parametrize(("market", "code"), [("on_demand", "L-DB2E81BA"), ("spot", "L-3819A6DF")])
def test_where_none_fits_the_quota_to_raise_is_named(
    aws: None, monkeypatch: pytest.MonkeyPatch, market: str, code: str
) -> None:
    monkeypatch.setenv("MOTO_EC2_GPU_VCPU_QUOTA", "0")
    with pytest.raises(AccountError) as error:
        read(experiment(instance_types=["g4dn.xlarge", "g5.2xlarge"], market=market))
    assert str(error.value) == (
        "learner.instance_types: none may be launched in account 123456789012, region us-east-1: g4dn.xlarge has 4 "
        f"vCPUs, the quota {code} allows 0; g5.2xlarge has 8 vCPUs, the quota {code} allows 0. Ask for more under "
        "Service Quotas, Amazon EC2"
    )


def test_an_account_without_the_cdk_is_told_what_to_run(aws: None) -> None:
    ssm = session().client("ssm")
    ssm.delete_parameter(Name=BOOTSTRAP_PARAMETER)
    try:
        with pytest.raises(
            AccountError, match="123456789012, region us-east-1; run once: make bootstrap"
        ):
            read(experiment())
        ssm.put_parameter(Name="/cdk-bootstrap/acme/version", Value="30", Type="String")
        read(experiment(), qualifier="acme")
        with pytest.raises(
            AccountError,
            match="region us-east-1, with the qualifier mine; run once: make bootstrap",
        ):
            read(experiment(), qualifier="mine")
    finally:
        ssm.put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String")


def test_a_key_with_which_no_instance_may_start_is_refused_unless_somebody_chose_it(
    aws: None,
) -> None:
    ec2, keys = session().client("ec2"), session().client("kms")
    assert read(experiment())
    own = keys.create_key()["KeyMetadata"]["Arn"]
    ec2.modify_ebs_default_kms_key_id(KmsKeyId=own)
    try:
        with pytest.raises(AccountError) as error:
            read(experiment())
        assert str(error.value) == (
            f"this account encrypts disks with its own key {own}, with which an Auto Scaling group starts no instance "
            "unless the key's policy admits it; allowed: -c ebs_key=alias/aws/ebs, which is AWS' key, or "
            f"-c ebs_key={own} if the policy admits AWSServiceRoleForAutoScaling. Nothing was deployed"
        )
        assert read_account(
            session(), experiment(), stack=STACK, qualifier="hnb659fds", has_disk_key=True
        )
        assert read(experiment(kind="function")), "it has no disk"
    finally:
        ec2.modify_ebs_default_kms_key_id(KmsKeyId="alias/aws/ebs")
    assert read(experiment())


def test_no_credentials(aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # moto sets some quotas.
    for name in [
        name
        for name in os.environ
        if name.startswith("AWS_") and name != "AWS_EC2_METADATA_DISABLED"
    ]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with pytest.raises(
        AccountError,
        match="^there are no AWS credentials: set AWS_ACCESS_KEY_ID and .* AWS_PROFILE$",
    ):
        read(experiment(), boto3.Session(region_name="us-east-1"))


def test_a_type_that_ec2_does_not_know(aws: None) -> None:
    with pytest.raises(AccountError, match=r"do not exist: \[g4dn.huge\]"):
        read(experiment(instance_types=["g5.xlarge", "g4dn.huge"]))


def test_a_type_of_a_family_with_a_quota_of_its_own(aws: None) -> None:
    with pytest.raises(
        ExperimentError, match="the quota of 'inf1.xlarge' is not known; allowed: .* VT, Z"
    ):
        read(experiment(instance_types=["inf1.xlarge"]))


# The Free plan


def test_a_paid_plan_and_an_account_without_one_are_not_restricted(
    aws: None, free_tier: FreeTier
) -> None:
    assert read(experiment()).plan == ""
    free_tier.failure = "ResourceNotFoundException"
    assert read(experiment()).plan == ""


def test_what_the_free_plan_does_not_start_is_refused_with_a_type_that_it_starts(
    aws: None, free_tier: FreeTier
) -> None:
    free_tier.plan = FREE
    with pytest.raises(AccountError) as error:
        read(experiment())
    text = str(error.value)
    assert text.startswith(
        "learner.instance_types: this account's Free plan does not start c7i.large, m7i.large, but "
        "in us-east-1 only c7i-flex.large, m7i-flex.large, t3.micro, t3.small, t4g.micro, "
    )
    assert text.endswith(
        "Nothing was deployed; allowed: learner.instance_types: [c7i-flex.large], or the Paid plan "
        "(Billing and Cost Management, Upgrade plan)"
    )
    with pytest.raises(
        AccountError,
        match=r"does not start c8g.large, but .* allowed: learner.instance_types: "
        r"\[t4g.micro\], or the Paid plan",
    ):
        read(experiment(instance_types=["c8g.large"]))
    with pytest.raises(AccountError, match=r"does not start g4dn.xlarge, but .*\[c7i-flex.large\]"):
        read(experiment(instance_types=["g4dn.xlarge"]))
    with pytest.raises(AccountError, match=r"does not start m7i.large, but"):
        read(experiment(instance_types=["c7i-flex.large", "m7i.large"]))


def test_what_the_free_plan_starts_is_taken_and_its_credits_are_told(
    aws: None, free_tier: FreeTier
) -> None:
    free_tier.plan = FREE
    account = read(experiment(instance_types=["c7i-flex.large", "m7i-flex.large"]))
    assert account.usable_types == ["c7i-flex.large", "m7i-flex.large"]
    assert account.plan == (
        "AWS' Free plan, $87.50 of credits left, until 2027-01-15. Which services it includes, AWS' API does not tell; "
        "cache.kind = none needs the fewest"
    )
    free_tier.plan = {"accountPlanType": "FREE"}
    assert read(experiment(instance_types=["t3.small"])).plan.startswith(
        "AWS' Free plan. Which services"
    )


@pytest.mark.parametrize("is_eligible", [True, False, None])
def test_an_image_that_the_free_plan_does_not_start_is_refused(
    aws: None, free_tier: FreeTier, monkeypatch: pytest.MonkeyPatch, is_eligible: bool | None
) -> None:
    """Quotas that AWS does not report, as in moto, refuse nothing."""
    free_tier.plan = FREE
    own = session()

    class Told:
        region_name = own.region_name

        def client(self, service: str, **options: Any) -> Any:
            client = own.client(service, **options)
            if service == "ec2" and is_eligible is not None:
                client.meta.events.register(
                    "before-call.ec2.DescribeImages",
                    lambda params, **_: (
                        SimpleNamespace(status_code=200),
                        {
                            "Images": [
                                {
                                    "ImageId": params["body"]["ImageId.1"],
                                    "FreeTierEligible": is_eligible,
                                }
                            ]
                        },
                    ),
                )
            return client

    flex = experiment(instance_types=["c7i-flex.large"])
    if is_eligible is False:
        with pytest.raises(
            AccountError,
            match="^the machine image is ami-[0-9a-z]+, which this account's Free plan does not start. "
            ".* learner.kind: function",
        ):
            read(flex, Told())
    else:
        read(flex, Told())


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "ThrottlingException", "InternalServerException"]
)
def test_a_plan_that_cannot_be_asked_for_refuses_nothing_and_is_told(
    aws: None, free_tier: FreeTier, code: str
) -> None:
    free_tier.failure = code
    assert read(experiment()).plan == (
        "whether it is on AWS' Free plan, which starts few instance types, could not be asked: the AWS account cannot "
        f"be asked: GetAccountPlanState: {code}: as asked for"
    )


@pytest.mark.parametrize(
    ("family", "types"),
    {
        "graphics": "g4dn.xlarge g4ad.4xlarge g5.xlarge g5g.xlarge g6.xlarge g6e.48xlarge gr6.4xlarge g6f.large "
        "vt1.3xlarge",
        "training": "p2.xlarge p3.2xlarge p3dn.24xlarge p4de.24xlarge p5.48xlarge p6-b200.48xlarge",
        "standard": "a1.large c5.4xlarge c7i.4xlarge c7g.4xlarge c7gn.large c6in.large d3en.xlarge h1.2xlarge "
        "i4i.large im4gn.large is4gen.medium m7g.large m7i-flex.large m5zn.metal r7iz.large t3.micro t4g.small "
        "z1d.large",
    }.items(),
)
def test_every_family_has_its_quota(family: str, types: str) -> None:
    for instance_type in types.split():
        assert vcpu_quota(instance_type, "on_demand") == ON_DEMAND[family], instance_type
        assert vcpu_quota(instance_type, "spot") == SPOT[family], instance_type


@pytest.mark.parametrize(
    "instance_type",
    [
        "x1e.xlarge",
        "x2gd.large",
        "x8g.large",
        "inf1.xlarge",
        "inf2.xlarge",
        "trn1.2xlarge",
        "trn1n.32xlarge",
        "dl1.24xlarge",
        "dl2q.24xlarge",
        "hpc7g.4xlarge",
        "hpc6a.48xlarge",
        "f1.2xlarge",
        "f2.6xlarge",
        "mac1.metal",
        "mac2-m2.metal",
        "u-6tb1.56xlarge",
        "u7i-12tb.224xlarge",
        "vtx1.large",
        "",
        ".large",
        "5g.xlarge",
        "G5.xlarge",
        "huge",
    ],
)
def test_a_family_with_another_quota_is_refused(instance_type: str) -> None:
    with pytest.raises(ExperimentError, match=f"the quota of {instance_type!r} is not known"):
        vcpu_quota(instance_type, "on_demand")
