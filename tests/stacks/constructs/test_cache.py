"""The cache in AWS: reachable from two places only, encrypted, bounded, and gone with the stack."""

from __future__ import annotations

import json
from unittest.mock import ANY

import pytest

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS
from lambda_actor.credentials import ElastiCacheTokens, connection_options
from tests.stacks.conftest import ACTOR_USER, NAME, Assembly, Synthesise, flat, variables

WEIGHTS_KIB = 273
"""Size of the policy's weights in the tests' experiment, rounded up."""
ACTORS = "<NitroNetwork:ExportsOutputFnGetAttActors3CD0DA6DGroupIdB050DC21>"


def rules(made: Assembly, kind: str) -> list[tuple[str, str, int, int]]:
    """(group, other group, from port, to port) of the stack's rules between groups."""
    other = "SourceSecurityGroupId" if kind == "Ingress" else "DestinationSecurityGroupId"
    found = [
        rule["Properties"] for rule in made.resources(f"AWS::EC2::SecurityGroup{kind}").values()
    ]
    return sorted(
        (flat(rule["GroupId"]), flat(rule[other]), rule["FromPort"], rule["ToPort"])
        for rule in found
    )


def group(made: Assembly, what: str) -> str:
    (name,) = [name for name in made.resources("AWS::EC2::SecurityGroup") if name.startswith(what)]
    return f"<{name}>"


def test_only_actors_and_the_learner_get_in(serverless: Assembly) -> None:
    made = serverless
    cache, learner = group(made, "Cache"), group(made, "Learner")
    assert rules(made, "Ingress") == sorted(
        [(cache, ACTORS, 6379, 6379), (cache, learner, 6379, 6379)]
    )
    assert rules(made, "Egress") == [(learner, cache, 6379, 6379)]
    assert all(
        "SecurityGroupIngress" not in found["Properties"]
        for found in made.resources("AWS::EC2::SecurityGroup").values()
    )


@pytest.mark.parametrize(
    "changes", [{"cache": "none"}, {"cache": "local"}, {"cache": "redis", "fleet__kind": "local"}]
)
def test_without_a_cache_there_is_none_and_no_port_is_open(
    synthesise: Synthesise, changes: dict[str, str]
) -> None:
    made = synthesise(**changes)
    assert (rules(made, "Ingress"), rules(made, "Egress")) == ([], [])
    assert not any(
        "ElastiCache" in found["Type"] for found in made.template()["Resources"].values()
    )
    told = variables(made)
    assert [
        told[f"NITRO_{name}"] for name in ("CACHE_URL", "CACHE_CREDENTIAL", "ACTOR_CREDENTIAL")
    ] == ["", "", ""]


def test_serverless_has_ceilings_and_keeps_nothing(serverless: Assembly) -> None:
    cache = serverless.only("AWS::ElastiCache::ServerlessCache")
    assert cache["CacheUsageLimits"] == {
        "DataStorage": {"Unit": "GB", "Maximum": 2},
        "ECPUPerSecond": {"Maximum": 6 * (1000 + WEIGHTS_KIB)},
    }
    assert (cache["Engine"], cache["MajorEngineVersion"], cache["SnapshotRetentionLimit"]) == (
        "valkey",
        "8",
        0,
    )
    assert "FinalSnapshotName" not in cache
    assert all("Isolated" in flat(subnet) for subnet in cache["SubnetIds"])
    assert [flat(found) for found in cache["SecurityGroupIds"]] == [group(serverless, "Cache")]


def test_its_ceilings_follow_the_experiment(synthesise: Synthesise) -> None:
    cache = synthesise(scaler__actors_max=64).only("AWS::ElastiCache::ServerlessCache")
    assert cache["CacheUsageLimits"] == {
        "DataStorage": {"Unit": "GB", "Maximum": 2},
        "ECPUPerSecond": {"Maximum": 64 * (1000 + WEIGHTS_KIB)},
    }


@pytest.mark.parametrize("environment", ["ALE/Qbert-v5", "nobody.has:it"])
def test_a_wave_of_games_is_not_throttled(synthesise: Synthesise, environment: str) -> None:
    """Also for environments that cannot be made on the deploying machine."""
    cache = synthesise(environment__id=environment, scaler__actors_max=32).only(
        "AWS::ElastiCache::ServerlessCache"
    )
    wave_kib = 125_542
    assert wave_kib < cache["CacheUsageLimits"]["ECPUPerSecond"]["Maximum"] < 2 * wave_kib


def test_learner_and_actors_are_users_without_a_password(serverless: Assembly) -> None:
    made = serverless
    users, group = (
        made.resources("AWS::ElastiCache::User"),
        made.only("AWS::ElastiCache::UserGroup"),
    )
    assert group["Engine"] == "valkey"
    assert sorted(flat(member) for member in group["UserIds"]) == sorted(
        f"<{name}>" for name in users
    )
    assert {user["Properties"]["UserId"]: user["Properties"] for user in users.values()} == {
        name: {
            "AuthenticationMode": {"Type": "iam"},
            "UserId": name,
            "UserName": name,
            "Engine": "valkey",
            "AccessString": rights,
            "Tags": ANY,
        }
        for name, rights in ((f"nitro-{NAME}", LEARNER_RIGHTS), (ACTOR_USER, ACTOR_RIGHTS))
    }
    assert made.name("AWS::ElastiCache::UserGroup") in str(
        made.only("AWS::ElastiCache::ServerlessCache")
    )


def needs(made: Assembly, name: str) -> set[str]:
    """Returns all resources that must exist before creation of this one begins."""
    resources = made.template()["Resources"]
    found = {
        other
        for other in resources
        if other != name
        and (
            other in resources[name].get("DependsOn", [])
            or f'"Ref": "{other}"' in json.dumps(resources[name])
            or f'"Fn::GetAtt": ["{other}"' in json.dumps(resources[name])
        )
    }
    return found.union(*(needs(made, other) for other in found))


def test_if_aws_refuses_their_rights_neither_cache_nor_instance_was_begun(
    serverless: Assembly,
) -> None:
    """Their access strings are not proven on ElastiCache."""
    made = serverless
    users = set(made.resources("AWS::ElastiCache::User"))
    assert len(users) == 2
    for what in (
        "AWS::ElastiCache::ServerlessCache",
        "AWS::EC2::LaunchTemplate",
        "AWS::AutoScaling::AutoScalingGroup",
    ):
        assert users <= needs(made, made.name(what)), what


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("NITRO_CACHE_CREDENTIAL", f"nitro-{NAME}"), ("NITRO_ACTOR_CREDENTIAL", ACTOR_USER)],
)
def test_the_credentials_uri_is_what_actors_and_learners_understand(
    serverless: Assembly,
    variable: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "A",
        "AWS_SECRET_ACCESS_KEY": "B",
        "AWS_DEFAULT_REGION": "r",
    }.items():
        monkeypatch.setenv(name, value)
    provider = connection_options(variables(serverless)[variable])["credential_provider"]
    assert isinstance(provider, ElastiCacheTokens)
    user, token = provider.get_credentials()
    assert user == expected
    cache = serverless.only("AWS::ElastiCache::ServerlessCache")["ServerlessCacheName"]
    assert token.startswith(f"{cache}/?")
    assert "ResourceType=ServerlessCache" in token
