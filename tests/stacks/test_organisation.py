"""Requirements of organizations on all stacks, as in docs/guides/deploy.md: each context key, synthesized."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.aws.guard.check import CHECK_TYPE
from runtime.errors import ExperimentError
from tests.stacks.conftest import STACK, Assembly, Synthesise, flat

ALL = ("NitroResults", "NitroNetwork", "NitroGuard", "NitroMail", STACK)
BOUNDARY = {"@aws-cdk/core:permissionsBoundary": {"name": "acme-boundary"}}
QUALIFIER = {"@aws-cdk/core:bootstrapQualifier": "acme"}
SUBNETS = ["subnet-0123456789abcdef0", "subnet-0fedcba987654321f"]
NETWORK = {"vpc": "vpc-0123456789abcdef0", "subnets": ",".join(SUBNETS)}
TAGS = {"tags": "team=rl,cost-center=42"}
MAIL = {"mail": "me@x.org"}
TAGGED = {
    f"AWS::{kind}"
    for kind in (
        "IAM::Role",
        "Lambda::Function",
        "DynamoDB::Table",
        "S3::Bucket",
        "EC2::LaunchTemplate",
        "EC2::VPC",
        "SNS::Topic",
        "AutoScaling::AutoScalingGroup",
        "ElastiCache::ServerlessCache",
        "Logs::LogGroup",
    )
}


def resources(made: Assembly, stack: str) -> dict[str, dict[str, Any]]:
    return made.template(stack)["Resources"]


@pytest.mark.parametrize("cache", ["redis", "none", "function"])
def test_a_permissions_boundary_bounds_every_role(synthesise: Synthesise, cache: str) -> None:
    made = synthesise(cache=cache, context=BOUNDARY)
    roles = {
        f"{stack}/{name}": resource["Properties"]
        for stack in ("NitroNetwork", "NitroGuard", STACK)
        for name, resource in resources(made, stack).items()
        if resource["Type"] == "AWS::IAM::Role"
    }
    assert len(roles) >= 5
    assert {flat(one["PermissionsBoundary"]) for one in roles.values()} == {
        "arn:<AWS::Partition>:iam::<AWS::AccountId>:policy/acme-boundary"
    }
    kinds = {
        one["Type"]
        for stack in ("NitroNetwork", "NitroGuard", "NitroResults", STACK)
        for one in resources(made, stack).values()
    }
    assert "AWS::IAM::User" not in kinds


def test_a_bootstrap_qualifier_is_used_everywhere(synthesise: Synthesise) -> None:
    made = synthesise(context={**QUALIFIER, **MAIL})
    texts = {path.name: path.read_text() for path in made.directory.glob("*.json")}
    assert [name for name, text in texts.items() if "hnb659fds" in text] == []
    for stack in ALL:
        assert (
            made.template(stack)["Parameters"]["BootstrapVersion"]["Default"]
            == "/cdk-bootstrap/acme/version"
        )
    assert "cdk-acme-deploy-role-" in texts["manifest.json"]
    assert "cdk-acme-container-assets-" in texts[f"{STACK}.assets.json"]


def test_tags_are_on_all_stacks_and_all_that_knows_tags_and_replace_none(
    synthesise: Synthesise,
) -> None:
    made = synthesise(context={**TAGS, **MAIL})
    own = {"team": "rl", "cost-center": "42"}
    manifest = json.loads((made.directory / "manifest.json").read_text())["artifacts"]
    for stack in ALL:
        found = manifest[stack]["properties"]["tags"]
        assert own.items() <= found.items(), stack
        assert ("nitro:experiment" in found) == (stack == STACK)
    plain = synthesise(context=MAIL)
    for stack in ALL:
        for name, resource in resources(made, stack).items():
            # Every resource with tags has these, and keeps the ones it had.
            before, now = (
                json.dumps(one) for one in (resources(plain, stack).get(name, {}), resource)
            )
            assert '"nitro:experiment"' not in before or '"nitro:experiment"' in now, name
            if resource["Type"] in TAGGED:
                assert '"cost-center"' in now, name


@pytest.mark.parametrize(("cache", "name"), [("none", "none"), ("local", "local")])
def test_in_a_network_that_is_there_nothing_has_a_public_address(
    synthesise: Synthesise, cache: str, name: str
) -> None:
    made = synthesise(cache=cache, context=NETWORK)
    kinds = {one["Type"] for one in resources(made, "NitroNetwork").values()}
    assert kinds == {"AWS::IAM::Role", "AWS::IAM::Policy"}, "no network is made"
    (interface,) = made.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False
    assert made.only("AWS::AutoScaling::AutoScalingGroup")["VPCZoneIdentifier"] == SUBNETS
    group = made.only("AWS::EC2::SecurityGroup")
    assert (group["VpcId"], "SecurityGroupIngress" in group) == (NETWORK["vpc"], False)
    assert [
        (rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
        for rule in group["SecurityGroupEgress"]
    ] == [("tcp", 443, 443), ("udp", 53, 53), ("tcp", 53, 53)], (
        "its name servers may be the organisation's"
    )
    assert not any(
        "VpcConfig" in one["Properties"] for one in made.resources("AWS::Lambda::Function").values()
    )


def test_otherwise_the_learner_has_one(each_kind: Assembly) -> None:
    (interface,) = each_kind.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"][
        "NetworkInterfaces"
    ]
    assert interface["AssociatePublicIpAddress"] is True


def test_without_an_instance_nothing_is_in_a_network(synthesise: Synthesise) -> None:
    made = synthesise(cache="function")
    assert not any(one["Type"].startswith("AWS::EC2::") for one in resources(made, STACK).values())
    assert not any(
        "VpcConfig" in one["Properties"] for one in made.resources("AWS::Lambda::Function").values()
    )


@pytest.mark.parametrize(
    "key",
    [
        "alias/aws/ebs",
        "1234abcd-12ab-34cd-56ef-1234567890ab",
        "arn:aws:kms:eu-west-1:123456789012:key/mrk-1234abcd",
    ],
)
def test_the_disk_has_the_key_that_was_chosen(synthesise: Synthesise, key: str) -> None:
    def disk(made: Assembly) -> dict[str, Any]:
        (device,) = made.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"][
            "BlockDeviceMappings"
        ]
        return device["Ebs"]

    assert disk(synthesise(cache="none", context={"ebs_key": key})) == {
        **disk(synthesise(cache="none")),
        "KmsKeyId": key,
    }
    assert "KmsKeyId" not in disk(synthesise(cache="none")), "the account's default"
    told = [
        synthesise(cache="none", context=context).only(CHECK_TYPE)["DiskKey"]
        for context in (None, {"ebs_key": key})
    ]
    assert told == ["", key], "the guard checks the default"


def test_all_of_it_at_once(synthesise: Synthesise) -> None:
    made = synthesise(cache="none", context={**BOUNDARY, **QUALIFIER, **TAGS, **NETWORK, **MAIL})
    (role,) = [
        one for name, one in made.resources("AWS::IAM::Role").items() if name.startswith("Learner")
    ]
    assert "PermissionsBoundary" in role["Properties"]
    assert {"Key": "team", "Value": "rl"} in role["Properties"]["Tags"]


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
            {"tags": "team=a,Team=b"},
            "'Team' is in it twice; IAM does not distinguish upper from lower case",
        ),
        (
            "none",
            {"tags": ",".join(f"key{number}=x" for number in range(41))},
            "41 tags; allowed: up to 40",
        ),
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


def test_as_many_tags_as_are_allowed_are_within_awss_limit(synthesise: Synthesise) -> None:
    made = synthesise(context={"tags": ",".join(f"key{number}=x" for number in range(40)), **MAIL})
    manifest = json.loads((made.directory / "manifest.json").read_text())["artifacts"]
    counts = [len(manifest[stack]["properties"]["tags"]) for stack in ALL]
    counts += [
        len(tags)
        for stack in ALL
        for one in resources(made, stack).values()
        if isinstance(tags := one.get("Properties", {}).get("Tags"), list | dict)
    ]
    assert 40 < max(counts) <= 50


@pytest.mark.parametrize(
    "value",
    [
        "acme-boundary",
        '{"name": "acme-boundary"}',
        {},
        ["acme-boundary"],
        {"nam": "acme-boundary"},
        {"name": ""},
        {"name": 5},
        {"name": "a b"},
        {"arn": "acme-boundary"},
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
