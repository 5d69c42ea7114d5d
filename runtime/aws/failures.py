"""What a call to AWS may end with, in classes that callers tell apart."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PaginationError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError

__all__ = ["AWS_ERRORS", "NEVER_SENT", "PERHAPS_DONE", "BotoCoreError", "ClientError", "CredentialsLostError",
           "NoCredentialsError", "PaginationError", "ResponseParserError", "code_of", "message_of"]

AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""All that a call to AWS may end with; the last one if what answers is not AWS."""
NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
"""Nothing received the request."""
PERHAPS_DONE = (HTTPClientError, IncompleteReadError, SSLError)
"""The request may have been carried out, though no answer came."""


class CredentialsLostError(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """A role cannot be assumed, or not any more. Whoever handles AWS' errors handles this one."""

    fmt = ("the role {role} cannot be assumed. If your AWS credentials have expired, sign in and open the pool again, "
           "which continues: {why}")


def code_of(error: BaseException | None) -> str:
    """AWS' code of the refusal, such as ``ValidationError``; empty if AWS refused nothing."""
    return _said(error, "Code")


def message_of(error: BaseException | None) -> str:
    """AWS' words of the refusal; empty if AWS refused nothing."""
    return _said(error, "Message")


def _said(error: BaseException | None, what: str) -> str:
    # A proxy's page is no answer of AWS'.
    answer: Any = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
    return str(answer.get(what, ""))
