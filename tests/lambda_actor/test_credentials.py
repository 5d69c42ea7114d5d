"""The cache's credential in AWS: a signed token for each connection."""

from __future__ import annotations

import datetime
from pathlib import Path

import botocore.session
import pytest
from botocore.model import ServiceId
from botocore.signers import RequestSigner

from lambda_actor.cache import connection_options

REGION, USER = "eu-central-1", "nitro-actor"
NOON = datetime.datetime(2026, 11, 20, 12, 0, 0)


def test_a_token_is_what_the_sdks_presigner_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Follows the vendor's guide, with the variables that Lambda gives a function for its role."""
    for name, value in {
        "ACCESS_KEY_ID": "AKIDEXAMPLE",
        "SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        "SESSION_TOKEN": "IQoJb3JpZ2luX2Vj//+a=b&c==",
        "DEFAULT_REGION": REGION,
        "CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: NOON)
    session = botocore.session.get_session()
    signer = RequestSigner(
        ServiceId("elasticache"),
        REGION,
        "elasticache",
        "v4",
        session.get_credentials(),
        session.get_component("event_emitter"),
    )
    asked = f"https://hopper-cache/?Action=connect&User={USER}&ResourceType=ServerlessCache"
    url = signer.generate_presigned_url(
        {"method": "GET", "url": asked, "body": {}, "headers": {}, "context": {}},
        operation_name="connect",
        expires_in=900,
        region_name=REGION,
    )
    options = connection_options(f"elasticache-iam://{USER}@hopper-cache")
    token = url.removeprefix("https://")
    assert options["credential_provider"].get_credentials() == (USER, token)
    later = NOON + datetime.timedelta(hours=12)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: later)
    assert options["credential_provider"].get_credentials()[1] != token, "each connection's own"
