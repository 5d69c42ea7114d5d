"""One moto server for all tests of the commands; every test gets an empty account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.operations.accounts import Account
from tests.simulators.aws.moto_server import CREDENTIALS, MotoServer


@pytest.fixture(scope="package")
def server() -> Iterator[MotoServer]:
    with MotoServer() as running:
        yield running


@pytest.fixture
def aws(
    server: MotoServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Account:
    """An empty account."""
    server.reset()
    for name in ("AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": server.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    account = Account(server, tmp_path, capsys)
    monkeypatch.setattr(time, "time", lambda: account.now_s)
    return account
