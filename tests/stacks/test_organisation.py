"""What is refused of an organization's requirements; `tests.stacks.test_variants` has those that are met."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.errors import ExperimentError
from tests.stacks.conftest import Synthesise, flat

SUBNETS = ["subnet-0123456789abcdef0", "subnet-0fedcba987654321f"]
NETWORK = {"vpc": "vpc-0123456789abcdef0", "subnets": ",".join(SUBNETS)}


@pytest.mark.parametrize(
    ("cache", "context", "text"),
    [
        (
            "none",
            {"tags": "team"},
            "tags = 'team' is not allowed: 'team'; allowed: KEY=VALUE,KEY=VALUE, with keys",
        ),
        ("none", {"tags": "a=b,nitro:run=x"}, "is not allowed: 'nitro:run=x'"),
        ("none", {"tags": "AWS:x=y"}, "is not allowed: 'AWS:x=y'"),
        (
            "none",
            {**NETWORK, "subnets": f"{SUBNETS[0]},{SUBNETS[0]}"},
            "subnets = 'subnet-0123456789abcdef0,subnet-0123",
        ),
        (
            "none",
            {"vpc": "vpc-1", "subnets": SUBNETS[0]},
            "vpc = 'vpc-1' is not allowed; allowed: the id of the VPC",
        ),
        ("none", {"subnets": SUBNETS[0]}, "vpc = None is not allowed"),
        (
            "none",
            {"vpc": NETWORK["vpc"]},
            "subnets = None is not allowed; allowed: ids of subnets of vpc-0123",
        ),
        (
            "none",
            {**NETWORK, "subnets": "subnet-1 subnet-2"},
            "subnets = 'subnet-1 subnet-2' is not allowed",
        ),
        (
            "none",
            {"ebs_key": "arn:aws:iam::aws:policy/x"},
            "ebs_key = 'arn:aws:iam::aws:policy/x' is not allowed; ",
        ),
        (
            "redis",
            NETWORK,
            "cache.kind = redis with vpc = vpc-0123456789abcdef0: actors that reach a cache",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    synthesise: Synthesise, cache: str, context: dict[str, str], text: str
) -> None:
    with pytest.raises(ExperimentError) as refusal:
        synthesise(cache=cache, context=context)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        "acme-boundary",
        '{"name": "acme-boundary"}',
        {},
        ["acme-boundary"],
        {"nam": "acme-boundary"},
        {"name": ""},
        {"name": "a", "arn": "arn:aws:iam::aws:policy/a"},
    ],
    ids=str,
)
def test_a_boundary_that_the_cdk_would_leave_out_without_a_word_is_refused(
    synthesise: Synthesise, value: Any
) -> None:
    """The CDK also ignores a plain text, which is all that ``-c`` can give."""
    with pytest.raises(
        ExperimentError,
        match=r"^@aws-cdk/core:permissionsBoundary = .* is not allowed; allowed, in ",
    ):
        synthesise(context={"@aws-cdk/core:permissionsBoundary": value})


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (
            {"arn": "arn:aws:iam::aws:policy/PowerUserAccess"},
            "arn:aws:iam::aws:policy/PowerUserAccess",
        ),
        (
            {"name": "team/cdk-${Qualifier}"},
            "arn:<AWS::Partition>:iam::<AWS::AccountId>:policy/team/cdk-hnb659fds",
        ),
    ],
    ids=str,
)
def test_a_boundary_as_the_cdk_knows_it(
    synthesise: Synthesise, value: dict[str, str], policy: str
) -> None:
    made = synthesise(context={"@aws-cdk/core:permissionsBoundary": value})
    (role,) = made.resources("AWS::IAM::Role", "NitroGuard").values()
    assert flat(role["Properties"]["PermissionsBoundary"]) == policy
