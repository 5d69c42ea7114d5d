"""The cache in AWS: reachable from two places only, encrypted, bounded, and gone with the stack."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS, ElastiCacheTokens, connection_options
from tests.stacks.conftest import ACTOR_USER, NAME, Assembly, Synthesise, flat, variables

WEIGHTS_KIB = 273
"""Size of the policy's weights in the tests' experiment, rounded up."""


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
    (group,) = [
        name for name in serverless.resources("AWS::EC2::SecurityGroup") if name.startswith("Cache")
    ]
    assert [flat(found) for found in cache["SecurityGroupIds"]] == [f"<{group}>"]


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
