"""The cache in AWS: reachable from two places only, encrypted, bounded, and gone with the stack."""

from __future__ import annotations

import pytest

from lambda_actor.credentials import ElastiCacheTokens, connection_options
from runtime.names import CACHE_PORT
from tests.stacks.conftest import Assembly, Synthesise, flat, variables

ACTORS = "<NitroNetwork:ExportsOutputFnGetAttActors3CD0DA6DGroupIdB050DC21>"


def rules(made: Assembly, kind: str) -> list[tuple[str, str, int, int]]:
    """(group, other group, from port, to port) of the stack's rules between groups."""
    other = "SourceSecurityGroupId" if kind == "Ingress" else "DestinationSecurityGroupId"
    found = [rule["Properties"] for rule in made.resources(f"AWS::EC2::SecurityGroup{kind}").values()]
    return sorted((flat(rule["GroupId"]), flat(rule[other]), rule["FromPort"], rule["ToPort"]) for rule in found)


def group(made: Assembly, what: str) -> str:
    (name,) = [name for name in made.resources("AWS::EC2::SecurityGroup") if name.startswith(what)]
    return f"<{name}>"


@pytest.mark.parametrize(("kind", "port"), [("serverless", 6379), ("node", CACHE_PORT)])
def test_only_actors_and_the_learner_get_in(synthesise: Synthesise, kind: str, port: int) -> None:
    made = synthesise(cache=kind)
    cache, learner = group(made, "Cache"), group(made, "Learner")
    assert rules(made, "Ingress") == sorted([(cache, ACTORS, port, port), (cache, learner, port, port)])
    assert rules(made, "Egress") == [(learner, cache, port, port)]
    assert all("SecurityGroupIngress" not in found["Properties"]
               for found in made.resources("AWS::EC2::SecurityGroup").values())


def test_a_cache_on_the_learner_opens_one_port_to_the_actors(synthesise: Synthesise) -> None:
    made = synthesise(cache="learner")
    assert rules(made, "Ingress") == [(group(made, "Learner"), ACTORS, CACHE_PORT, CACHE_PORT)]
    assert rules(made, "Egress") == []
    assert not any("ElastiCache" in found["Type"] for found in made.template()["Resources"].values())


def test_serverless_has_ceilings_and_keeps_nothing(serverless: Assembly) -> None:
    cache = serverless.only("AWS::ElastiCache::ServerlessCache")
    assert cache["CacheUsageLimits"] == {"DataStorage": {"Unit": "GB", "Maximum": 2},
                                         "ECPUPerSecond": {"Maximum": 6000}}
    assert (cache["Engine"], cache["MajorEngineVersion"], cache["SnapshotRetentionLimit"]) == ("valkey", "8", 0)
    assert "FinalSnapshotName" not in cache
    assert all("Isolated" in flat(subnet) for subnet in cache["SubnetIds"])
    assert [flat(found) for found in cache["SecurityGroupIds"]] == [group(serverless, "Cache")]


def test_its_ceilings_follow_the_experiment(synthesise: Synthesise) -> None:
    cache = synthesise(scaler__actors_max=64, cache__memory_mib=1500).only("AWS::ElastiCache::ServerlessCache")
    assert cache["CacheUsageLimits"] == {"DataStorage": {"Unit": "GB", "Maximum": 3},
                                         "ECPUPerSecond": {"Maximum": 64_000}}


def test_the_node_is_small_encrypted_and_never_evicts(synthesise: Synthesise) -> None:
    made = synthesise(cache="node")
    node = made.only("AWS::ElastiCache::ReplicationGroup")
    assert (node["CacheNodeType"], node["NumCacheClusters"], node["Engine"]) == ("cache.t4g.small", 1, "valkey")
    assert (node["TransitEncryptionEnabled"], node["TransitEncryptionMode"]) == (True, "required")
    assert node["AtRestEncryptionEnabled"] is True
    assert (node["Port"], node["SnapshotRetentionLimit"]) == (CACHE_PORT, 0)
    assert (node["MultiAZEnabled"], node["AutomaticFailoverEnabled"]) == (False, False)
    parameters = made.only("AWS::ElastiCache::ParameterGroup")
    assert parameters["Properties"] == {"maxmemory-policy": "noeviction"}
    assert parameters["CacheParameterGroupFamily"] == f"valkey{node['EngineVersion'].partition('.')[0]}"
    assert all("Isolated" in flat(subnet) for subnet in made.only("AWS::ElastiCache::SubnetGroup")["SubnetIds"])


@pytest.mark.parametrize("kind", ["serverless", "node"])
def test_one_user_without_a_password(synthesise: Synthesise, kind: str) -> None:
    made = synthesise(cache=kind)
    user, users = made.only("AWS::ElastiCache::User"), made.only("AWS::ElastiCache::UserGroup")
    assert user["AuthenticationMode"] == {"Type": "iam"}
    assert user["UserId"] == user["UserName"] == user["UserId"].lower()
    assert "Passwords" not in user
    assert "NoPasswordRequired" not in user
    assert (user["Engine"], users["Engine"]) == ("valkey", "valkey")
    assert [flat(member) for member in users["UserIds"]] == [f"<{made.name('AWS::ElastiCache::User')}>"]
    cache = "ServerlessCache" if kind == "serverless" else "ReplicationGroup"
    assert made.name("AWS::ElastiCache::UserGroup") in str(made.only(f"AWS::ElastiCache::{cache}"))


@pytest.mark.parametrize(("kind", "is_serverless"), [("serverless", True), ("node", False)])
def test_the_credentials_uri_is_what_actors_understand(
    synthesise: Synthesise, kind: str, is_serverless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_DEFAULT_REGION": "r"}.items():
        monkeypatch.setenv(name, value)
    made = synthesise(cache=kind)
    provider = connection_options(variables(made)["NITRO_CACHE_CREDENTIAL"])["credential_provider"]
    assert isinstance(provider, ElastiCacheTokens)
    user, token = provider.get_credentials()
    assert user == made.only("AWS::ElastiCache::User")["UserId"]
    cache = (made.only("AWS::ElastiCache::ServerlessCache")["ServerlessCacheName"] if is_serverless
             else made.only("AWS::ElastiCache::ReplicationGroup")["ReplicationGroupId"])
    assert token.startswith(f"{cache}/?")
    assert ("ResourceType=ServerlessCache" in token) is is_serverless
