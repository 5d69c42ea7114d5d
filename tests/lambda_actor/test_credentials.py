"""The cache's credential against real servers: signed tokens, and an object in a bucket."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import boto3
import pytest
import redis
from moto.server import ThreadedMotoServer

from lambda_actor.cache import TrajectoryCache
from lambda_actor.credentials import connection_options, credential_object
from lambda_actor.errors import CacheError, CacheUnavailableError
from lambda_actor.events import ACCEPTED
from tests.conftest import USER_PASSWORD, USERNAME, AuthServer, TcpServer, TlsServer, _self_signed
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
BUCKET, OBJECT = "results-bucket", "hopper/run-1/cache-credential.json"
SECRET = "hUnt3r2-s3cret"


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
@pytest.mark.parametrize(
    ("ending", "more"),
    [
        ("", {}),
        ("?serverless=false", {}),
        ("?serverless=true", {"ResourceType": "ServerlessCache"}),
    ],
)
def test_a_token_is_a_presigned_request(
    role: None,
    clock: SigningClock,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    more: dict[str, str],
    with_session: bool,
) -> None:
    session = {"X-Amz-Security-Token": SESSION_TOKEN} if with_session else {}
    if not with_session:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    user, token = token_of(TOKENS + ending)
    assert user == USER
    host, slash, query = token.partition("/?")
    assert (host, slash) == ("hopper-cache", "/?"), "neither scheme nor port"
    parameters = [tuple(map(unquote, part.split("=", 1))) for part in query.split("&")]
    assert dict(parameters[:-1]) == {
        "Action": "connect",
        "User": USER,
        **more,
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
    assert token_of(f"{TOKENS}?serverless=true")[1] == url.removeprefix("https://")


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
    for uri in (TOKENS, f"{TOKENS}?serverless=true"):
        with pytest.raises(CacheError, match="no AWS credentials or no region"):
            TrajectoryCache("rediss://cache.example:6380", "run", credential=uri)


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


# An object in the bucket


@pytest.fixture(scope="module")
def object_store() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(role: None, object_store: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the object that `BUCKET_URI` names."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", object_store)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield lambda data: client.put_object(Bucket=BUCKET, Key=OBJECT, Body=data)
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    client.delete_bucket(Bucket=BUCKET)
    client.close()


BUCKET_URI = f"s3://{BUCKET}/{OBJECT}"


def test_the_object_holds_what_a_client_needs(bucket: Any) -> None:
    bucket(credential_object(username="u", password="p", ca_certificate="c"))
    assert connection_options(BUCKET_URI) == {"username": "u", "password": "p", "ssl_ca_data": "c"}


def test_tls_with_the_certificate_from_the_object(
    bucket: Any, tls_server: TlsServer, run_id: str
) -> None:
    bucket(
        credential_object(
            username=USERNAME,
            password=USER_PASSWORD,
            ca_certificate=tls_server.certificate.read_text(),
        )
    )
    for host in ("127.0.0.1", "localhost"):
        cache = TrajectoryCache(f"rediss://{host}:{tls_server.port}", run_id, credential=BUCKET_URI)
        cache.expect(["a"])
        assert cache.submit("a", b"x" * 100_000) == ACCEPTED
        assert cache.take("a") == b"x" * 100_000
        cache.remove_run()
        cache.close()


def test_another_servers_certificate_is_refused(
    bucket: Any, tls_server: TlsServer, run_id: str, tmp_path: Path
) -> None:
    _, other = _self_signed(tmp_path)
    bucket(
        credential_object(
            username=USERNAME, password=USER_PASSWORD, ca_certificate=other.read_text()
        )
    )
    cache = TrajectoryCache(
        f"rediss://127.0.0.1:{tls_server.port}", run_id, credential=BUCKET_URI, connect_attempts=0
    )
    with pytest.raises(CacheUnavailableError, match="(?i)certificate") as caught:
        cache.ping()
    assert USER_PASSWORD not in everything_shown(caught.value)
    cache.close()


def test_a_wrong_password_in_the_object_is_refused_and_not_shown(
    bucket: Any, tls_server: TlsServer, run_id: str
) -> None:
    bucket(
        credential_object(
            username=USERNAME, password=SECRET, ca_certificate=tls_server.certificate.read_text()
        )
    )
    cache = TrajectoryCache(
        f"rediss://127.0.0.1:{tls_server.port}", run_id, credential=BUCKET_URI, connect_attempts=0
    )
    with pytest.raises(CacheError, match="refuses us") as caught:
        cache.ping()
    assert SECRET not in everything_shown(caught.value)
    cache.close()


GOOD = {"username": "u", "password": SECRET, "ca_certificate": "c"}
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "not JSON": SECRET.encode(),
    "cut": json.dumps(GOOD).encode()[:-3],
    "not UTF-8": b"\xff" + SECRET.encode(),
    "a list": json.dumps([SECRET]).encode(),
    "a text": json.dumps(SECRET).encode(),
    "a number": b"5",
    "null": b"null",
    "too deep": json.dumps({"credential": GOOD}).encode(),
    "too large": json.dumps(GOOD | {"more": "x" * 70_000}).encode(),
    **{
        f"without {name}": json.dumps(
            {key: value for key, value in GOOD.items() if key != name}
        ).encode()
        for name in GOOD
    },
}


@pytest.mark.parametrize("name", MALFORMED)
def test_an_object_that_is_none_of_ours_is_refused_without_its_secret(
    bucket: Any, name: str
) -> None:
    bucket(MALFORMED[name])
    with pytest.raises(
        CacheError, match=f"{re.escape(BUCKET_URI)} is not what a learner writes"
    ) as caught:
        TrajectoryCache("rediss://cache.example:6380", "run", credential=BUCKET_URI)
    assert SECRET not in everything_shown(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        GOOD,
        GOOD | {"ca_certificate": SECRET},
        GOOD | {"password": [SECRET]},
        GOOD | {"username": {"a": SECRET}},
    ],
    ids=["no PEM", "secret as PEM", "password a list", "user a mapping"],
)
def test_fields_that_no_client_can_use_end_as_an_error_of_the_cache(
    bucket: Any, tls_server: TlsServer, run_id: str, fields: dict[str, Any]
) -> None:
    bucket(json.dumps(fields).encode())
    url = f"rediss://127.0.0.1:{tls_server.port}"
    with (
        pytest.raises(CacheError) as caught,
        closing(TrajectoryCache(url, run_id, credential=BUCKET_URI, connect_attempts=0)) as cache,
    ):
        cache.ping()
    assert SECRET not in everything_shown(caught.value)


@pytest.mark.parametrize(
    "uri", [f"s3://{BUCKET}/no/such/key", f"s3://no-such-bucket/{OBJECT}", f"s3://X/{OBJECT}"]
)
def test_an_object_that_is_not_there_is_named(bucket: Any, uri: str) -> None:
    with pytest.raises(CacheError, match=f"{re.escape(uri)} cannot be read"):
        TrajectoryCache("rediss://cache.example:6380", "run", credential=uri)


def test_without_keys_no_object_is_read(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CacheError, match="cannot be read"):
        TrajectoryCache("rediss://cache.example:6380", "run", credential=BUCKET_URI)


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
        "s3://",
        "s3://bucket",
        "s3://bucket/",
        "s3:///key",
        "file:///etc/passwd",
        "S4://bucket/key",
    ],
)
def test_an_unknown_uri_is_refused(role: None, uri: str) -> None:
    with pytest.raises(
        CacheError, match="neither elasticache-iam://USER@CACHE nor s3://BUCKET/KEY"
    ):
        TrajectoryCache("redis://127.0.0.1:6379", "run", credential=uri)


def test_a_uri_that_is_none_is_refused(role: None) -> None:
    with pytest.raises(CacheError, match="neither"):
        TrajectoryCache("redis://127.0.0.1:6379", "run", credential="s3://[bucket/key")


def test_a_credential_takes_the_place_of_user_and_password(
    bucket: Any, tcp_server_with_auth: AuthServer, run_id: str, monkeypatch: pytest.MonkeyPatch
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
