"""The cache's credential against real servers: signed tokens."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from lambda_actor.credentials import connection_options

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


# IAM tokens


def test_a_token_is_what_the_sdks_presigner_makes(
    role: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follows the vendor's guide."""
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: NOON)
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
    provider = connection_options(TOKENS)["credential_provider"]
    assert provider.get_credentials() == (USER, url.removeprefix("https://"))
    later = NOON + datetime.timedelta(hours=12)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: later)
    assert provider.get_credentials()[1] != url.removeprefix("https://"), "each connection's own"
