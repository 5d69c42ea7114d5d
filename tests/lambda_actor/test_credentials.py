"""The cache's credential against real servers: signed tokens."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lambda_actor.cache import TrajectoryCache
from lambda_actor.credentials import connection_options
from lambda_actor.errors import CacheError
from lambda_actor.inline import ACCEPTED
from tests.conftest import TcpServer
from tests.helpers import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
KEY_ID, KEY, SESSION_TOKEN = (
    "AKIDEXAMPLE",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "IQoJb3JpZ2luX2Vj//+a=b&c==",
)
REGION = "eu-central-1"
NOON = datetime.datetime(2026, 11, 20, 12, 0, 0)
USER = "nitro-actor"
TOKENS = f"elasticache-iam://{USER}@hopper-cache"


@pytest.fixture(autouse=True)
def _no_aws_but_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variables that Lambda gives a function for its role."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
        "AWS_DEFAULT_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)


class SigningClock:
    """The signer's clock."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self, remove_tzinfo: bool = True) -> datetime.datetime:
        return self.now if remove_tzinfo else self.now.replace(tzinfo=datetime.UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SigningClock:
    made = SigningClock()
    monkeypatch.setattr("botocore.auth.get_current_datetime", made)
    return made


def token_of(uri: str) -> tuple[str, str]:
    return connection_options(uri)["credential_provider"].get_credentials()


# IAM tokens


def test_a_token_is_what_the_sdks_presigner_makes(role: None, clock: SigningClock) -> None:
    """Follows the vendor's guide."""
    import botocore.session
    from botocore.model import ServiceId
    from botocore.signers import RequestSigner

    session = botocore.session.get_session()
    signer = RequestSigner(
        ServiceId("elasticache"),
        REGION,
        "elasticache",
        "v4",
        session.get_credentials(),
        session.get_component("event_emitter"),
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"https://hopper-cache/?Action=connect&User={USER}&ResourceType=ServerlessCache",
            "body": {},
            "headers": {},
            "context": {},
        },
        operation_name="connect",
        expires_in=900,
        region_name=REGION,
    )
    assert token_of(TOKENS)[1] == url.removeprefix("https://")


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION"])
def test_without_keys_or_region_there_is_no_token(
    role: None, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(CacheError, match="no AWS credentials or no region"):
        TrajectoryCache("rediss://cache.example:6379", "run", credential=TOKENS)


@pytest.fixture
def guarded_server(tcp_server: TcpServer) -> Iterator[redis.Redis]:
    """A server that admits only this administrator. Actors have no password yet."""
    with redis.Redis(port=tcp_server.port) as administrator:
        administrator.acl_setuser(
            "boss", enabled=True, passwords=["+boss"], keys=["*"], categories=["+@all"]
        )
        administrator.acl_setuser("default", enabled=False)
    with redis.Redis(port=tcp_server.port, username="boss", password="boss") as boss:
        yield boss


def let_in(boss: redis.Redis, token: str) -> None:
    boss.acl_setuser(
        USER,
        enabled=True,
        reset_passwords=True,
        passwords=[f"+{token}"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
    )


def test_a_real_server_takes_the_token_and_a_new_one_when_it_drops_us(
    role: None, clock: SigningClock, guarded_server: redis.Redis, tcp_server: TcpServer, run_id: str
) -> None:
    let_in(guarded_server, token_of(TOKENS)[1])
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id, credential=TOKENS)
    cache.expect(["a"])
    assert cache.submit("a", b"x") == ACCEPTED
    # After twelve hours the server ends the connection, and no longer accepts old tokens.
    clock.now += datetime.timedelta(hours=12)
    let_in(guarded_server, token_of(TOKENS)[1])
    guarded_server.execute_command("CLIENT", "KILL", "USER", USER)
    assert cache.take("a") == b"x"
    cache.close()


# Choice of credential


@pytest.mark.parametrize(
    "uri",
    [
        "https://user@cache",
        "elasticache-iam://cache",
        "elasticache-iam://user@",
    ],
)
def test_an_unknown_uri_is_refused(role: None, uri: str) -> None:
    with pytest.raises(CacheError, match="is not elasticache-iam://USER@CACHE"):
        TrajectoryCache("redis://127.0.0.1:6379", "run", credential=uri)


_LOADED = """
import json, sys
from lambda_actor.cache import TrajectoryCache
import lambda_actor.handler
before = sorted(sys.modules)
TrajectoryCache("redis://127.0.0.1:6379", "run", username="me", password="secret")
without = sorted(sys.modules)
TrajectoryCache("redis://127.0.0.1:6379", "run", credential="elasticache-iam://user@cache")
print("LOADED", json.dumps([before, without, sorted(sys.modules)]))
"""


def test_the_aws_library_is_loaded_only_where_a_credential_needs_it(role: None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, without, with_credential = json.loads(done.stdout.partition("LOADED")[2])
    for modules in (before, without):
        assert "lambda_actor.credentials" in modules
        assert not [name for name in modules if name.split(".")[0] in ("botocore", "boto3")]
    assert "botocore.session" in with_credential
    assert "boto3" not in with_credential
