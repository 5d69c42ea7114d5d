"""The cache in AWS: reachable from two places only, encrypted, bounded, and gone with the stack."""

from __future__ import annotations

import json
from unittest.mock import ANY

import pytest

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS
from lambda_actor.credentials import ElastiCacheTokens, connection_options
from runtime.names import CACHE_PORT
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


@pytest.mark.parametrize(("kind", "port"), [("serverless", 6379), ("node", CACHE_PORT)])
def test_only_actors_and_the_learner_get_in(synthesise: Synthesise, kind: str, port: int) -> None:
    made = synthesise(cache=kind)
    cache, learner = group(made, "Cache"), group(made, "Learner")
    assert rules(made, "Ingress") == sorted(
        [(cache, ACTORS, port, port), (cache, learner, port, port)]
    )
    assert rules(made, "Egress") == [(learner, cache, port, port)]
    assert all(
        "SecurityGroupIngress" not in found["Properties"]
        for found in made.resources("AWS::EC2::SecurityGroup").values()
    )


def test_a_cache_on_the_learner_opens_one_port_to_the_actors(synthesise: Synthesise) -> None:
    made = synthesise(cache="learner")
    assert rules(made, "Ingress") == [(group(made, "Learner"), ACTORS, CACHE_PORT, CACHE_PORT)]
    assert rules(made, "Egress") == []
    assert not any(
        "ElastiCache" in found["Type"] for found in made.template()["Resources"].values()
    )


@pytest.mark.parametrize(
    "changes", [{"cache": "none"}, {"cache": "local"}, {"cache": "learner", "fleet__kind": "local"}]
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


def test_the_node_is_small_encrypted_and_never_evicts(synthesise: Synthesise) -> None:
    made = synthesise(cache="node")
    node = made.only("AWS::ElastiCache::ReplicationGroup")
    assert (node["CacheNodeType"], node["NumCacheClusters"], node["Engine"]) == (
        "cache.t4g.small",
        1,
        "valkey",
    )
    assert (node["TransitEncryptionEnabled"], node["TransitEncryptionMode"]) == (True, "required")
    assert node["AtRestEncryptionEnabled"] is True
    assert (node["Port"], node["SnapshotRetentionLimit"]) == (CACHE_PORT, 0)
    assert (node["MultiAZEnabled"], node["AutomaticFailoverEnabled"]) == (False, False)
    parameters = made.only("AWS::ElastiCache::ParameterGroup")
    assert parameters["Properties"] == {"maxmemory-policy": "noeviction"}
    assert (
        parameters["CacheParameterGroupFamily"]
        == f"valkey{node['EngineVersion'].partition('.')[0]}"
    )
    assert all(
        "Isolated" in flat(subnet)
        for subnet in made.only("AWS::ElastiCache::SubnetGroup")["SubnetIds"]
    )


@pytest.mark.parametrize("kind", ["serverless", "node"])
def test_learner_and_actors_are_users_without_a_password(synthesise: Synthesise, kind: str) -> None:
    made = synthesise(cache=kind)
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
    cache = "ServerlessCache" if kind == "serverless" else "ReplicationGroup"
    assert made.name("AWS::ElastiCache::UserGroup") in str(made.only(f"AWS::ElastiCache::{cache}"))


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


@pytest.mark.parametrize(
    ("kind", "cache"), [("serverless", "ServerlessCache"), ("node", "ReplicationGroup")]
)
def test_if_aws_refuses_their_rights_neither_cache_nor_instance_was_begun(
    synthesise: Synthesise, kind: str, cache: str
) -> None:
    """Their access strings are not proven on ElastiCache."""
    made = synthesise(cache=kind)
    users = set(made.resources("AWS::ElastiCache::User"))
    assert len(users) == 2
    for what in (
        f"AWS::ElastiCache::{cache}",
        "AWS::EC2::LaunchTemplate",
        "AWS::AutoScaling::AutoScalingGroup",
    ):
        assert users <= needs(made, made.name(what)), what


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("NITRO_CACHE_CREDENTIAL", f"nitro-{NAME}"), ("NITRO_ACTOR_CREDENTIAL", ACTOR_USER)],
)
@pytest.mark.parametrize(("kind", "is_serverless"), [("serverless", True), ("node", False)])
def test_the_credentials_uri_is_what_actors_and_learners_understand(
    synthesise: Synthesise,
    kind: str,
    is_serverless: bool,
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
    made = synthesise(cache=kind)
    provider = connection_options(variables(made)[variable])["credential_provider"]
    assert isinstance(provider, ElastiCacheTokens)
    user, token = provider.get_credentials()
    assert user == expected
    cache = (
        made.only("AWS::ElastiCache::ServerlessCache")["ServerlessCacheName"]
        if is_serverless
        else made.only("AWS::ElastiCache::ReplicationGroup")["ReplicationGroupId"]
    )
    assert token.startswith(f"{cache}/?")
    assert ("ResourceType=ServerlessCache" in token) is is_serverless
