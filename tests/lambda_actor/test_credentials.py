"""The cache's credential against real servers: signed tokens."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import redis

from lambda_actor.cache import TrajectoryCache
from lambda_actor.credentials import connection_options
from lambda_actor.errors import CacheError
from lambda_actor.events import ACCEPTED
from tests.conftest import USER_PASSWORD, USERNAME, AuthServer, TcpServer
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


def everything_shown(error: BaseException) -> str:
    """Returns everything that a log could show of the error: its traceback, and all texts in it."""
    parts = traceback.format_exception(error)
    while error is not None:
        parts += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(parts)


# IAM tokens


def signature_by_the_book(host: str, query: list[tuple[str, str]], date: str, key: str) -> str:
    """Returns Signature Version 4 of a presigned GET, from its specification.

    Args:
        query: All parameters except the signature, not encoded.
        date: As in ``X-Amz-Date``.
    """

    def encoded(text: str) -> str:
        return quote(text, safe="-_.~")

    def keyed(secret: bytes, text: str) -> bytes:
        return hmac.new(secret, text.encode(), hashlib.sha256).digest()

    canonical_query = "&".join(
        f"{name}={value}"
        for name, value in sorted((encoded(name), encoded(value)) for name, value in query)
    )
    nothing = hashlib.sha256(b"").hexdigest()
    canonical_request = f"GET\n/\n{canonical_query}\nhost:{host}\n\nhost\n{nothing}"
    scope = f"{date[:8]}/{REGION}/elasticache/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical_request.encode()).hexdigest()}"
    signing_key = keyed(
        keyed(keyed(keyed(f"AWS4{key}".encode(), date[:8]), REGION), "elasticache"), "aws4_request"
    )
    return hmac.new(signing_key, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("with_session", [True, False])
def test_a_token_is_a_presigned_request(
    role: None,
    clock: SigningClock,
    monkeypatch: pytest.MonkeyPatch,
    with_session: bool,
) -> None:
    session = {"X-Amz-Security-Token": SESSION_TOKEN} if with_session else {}
    if not with_session:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    user, token = token_of(TOKENS)
    assert user == USER
    host, slash, query = token.partition("/?")
    assert (host, slash) == ("hopper-cache", "/?"), "neither scheme nor port"
    parameters = [tuple(map(unquote, part.split("=", 1))) for part in query.split("&")]
    assert dict(parameters[:-1]) == {
        "Action": "connect",
        "User": USER,
        "ResourceType": "ServerlessCache",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/20261120/{REGION}/elasticache/aws4_request",
        "X-Amz-Date": "20261120T120000Z",
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        **session,
    }
    assert len(parameters) == len(dict(parameters))
    assert parameters[-1] == (
        "X-Amz-Signature",
        signature_by_the_book("hopper-cache", parameters[:-1], "20261120T120000Z", KEY),
    )


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


def test_each_connection_gets_a_token_of_its_own(role: None, clock: SigningClock) -> None:
    provider = connection_options(TOKENS)["credential_provider"]
    first = provider.get_credentials()
    clock.now += datetime.timedelta(hours=12)
    second = provider.get_credentials()
    assert first != second
    assert "X-Amz-Date=20261121T000000Z" in second[1]


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


def test_a_token_that_the_server_refuses_is_not_shown(
    role: None, clock: SigningClock, guarded_server: redis.Redis, tcp_server: TcpServer, run_id: str
) -> None:
    let_in(guarded_server, "another")
    cache = TrajectoryCache(
        f"redis://127.0.0.1:{tcp_server.port}", run_id, credential=TOKENS, connect_attempts=0
    )
    with pytest.raises(CacheError, match="refuses us") as caught:
        cache.ping()
    assert "X-Amz-Signature" not in everything_shown(caught.value)
    cache.close()


# Choice of credential


@pytest.mark.parametrize(
    "uri",
    [
        "nonsense",
        "https://cache.example/credential",
        "elasticache-iam://",
        "elasticache-iam://cache",
        "elasticache-iam://user@",
        "elasticache-iam:user@cache",
        "s3://bucket/key",
        "elasticache-iam://[user@cache",
    ],
)
def test_an_unknown_uri_is_refused(role: None, uri: str) -> None:
    with pytest.raises(CacheError, match="is not elasticache-iam://USER@CACHE"):
        TrajectoryCache("redis://127.0.0.1:6379", "run", credential=uri)


def test_a_credential_takes_the_place_of_user_and_password(
    tcp_server_with_auth: AuthServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lambda_actor.cache.connection_options",
        lambda uri: {"username": USERNAME, "password": USER_PASSWORD},
    )
    cache = TrajectoryCache(
        tcp_server_with_auth.url, run_id, username="nobody", password="wrong", credential="any"
    )
    cache.ping()
    cache.close()


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
