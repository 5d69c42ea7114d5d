"""Error classes for calls to AWS."""

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

__all__ = [
    "AWS_ERRORS",
    "NEVER_SENT",
    "PERHAPS_DONE",
    "BotoCoreError",
    "ClientError",
    "NoCredentialsError",
    "PaginationError",
    "ResponseParserError",
    "code_of",
    "message_of",
]

AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""All errors of a call to AWS; the last one if something other than AWS answers."""
NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
"""The request was never received."""
PERHAPS_DONE = (HTTPClientError, IncompleteReadError, SSLError)
"""The request may have been executed, but no answer came."""


def code_of(error: BaseException | None) -> str:
    """Returns AWS's error code, such as ``ValidationError``; empty if AWS refused nothing."""
    return _said(error, "Code")


def message_of(error: BaseException | None) -> str:
    """Returns AWS's error message; empty if AWS refused nothing."""
    return _said(error, "Message")


def _said(error: BaseException | None, what: str) -> str:
    # A proxy's page is not an answer of AWS.
    answer: Any = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
    return str(answer.get(what, ""))
