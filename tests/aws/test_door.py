"""The door to boto3: the identity that AWS sees, and answers that are not valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from runtime.aws.asking import AccountError, ask, ask_if_there
from runtime.aws.clients import PATIENT, PROMPT, clients, open_session
from runtime.aws.failures import code_of, message_of
from runtime.money.prices import PRICES
from runtime.names import DEFAULT_REGION


def refuse(error: Exception) -> None:
    raise error


def test_without_a_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(AccountError, match="^no region is set: set AWS_DEFAULT_REGION=us-east-1$"):
        open_session()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert open_session().region_name == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert open_session().region_name == "eu-west-1"
    # boto3's own client waits a minute for a connection, five times.
    assert open_session().client("sts").meta.config.connect_timeout == PATIENT.connect_timeout


PAGE = "<html>\n" + "no way\n" * 500


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "403", "Message": PAGE}}, "GetCallerIdentity"),
        ResponseParserError(PAGE),
    ],
    ids=["error", "unparsed"],
)
def test_a_page_instead_of_an_answer_is_shortened_to_a_line(error: Exception) -> None:
    with pytest.raises(
        AccountError, match=r"cannot be asked: (GetCallerIdentity: 403: )?<html> no way no.*…$"
    ) as end:
        ask(lambda: refuse(error))
    assert len(str(end.value)) < 300


def test_what_does_not_exist_is_an_answer_and_a_refusal_is_none() -> None:
    def error(code: str) -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetParameter")

    assert ask_if_there(lambda: refuse(error("ParameterNotFound"))) is None
    with pytest.raises(AccountError, match="GetParameter: AccessDenied: no"):
        ask_if_there(lambda: refuse(error("AccessDenied")))
    assert (code_of(error("Throttled")), message_of(error("Throttled"))) == ("Throttled", "no")
    assert (code_of(ValueError("no")), message_of(None)) == ("", "")


def test_a_client_is_made_once_and_a_quick_one_gives_up_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", DEFAULT_REGION)
    client = clients()
    assert client("sqs") is client("sqs")
    quick, patient = client("sqs", is_quick=True).meta.config, client("sqs").meta.config
    assert quick.read_timeout < patient.read_timeout
    assert quick.retries["total_max_attempts"] == 1 < patient.retries["total_max_attempts"]
    assert (
        clients(patience=PROMPT)("sqs").meta.config.read_timeout
        == PROMPT.read_timeout
        < quick.read_timeout
    )


def test_the_region_that_is_advised_has_prices() -> None:
    assert PRICES.region == DEFAULT_REGION
