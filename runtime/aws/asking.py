"""Queries to an AWS account, with one error class meant for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from runtime.aws.failures import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ResponseParserError,
    code_of,
    message_of,
)
from runtime.errors import RunError, one_line

T = TypeVar("T")


class AccountError(RunError):
    """The account does not answer, or lacks something that a deployment needs."""


def ask(question: Callable[[], T]) -> T:
    """Returns the answer of an AWS service.

    Raises:
        AccountError: There is no answer.
    """
    try:
        return question()
    except NoCredentialsError as error:
        raise AccountError(
            "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE"
        ) from error
    except ClientError as error:
        raise AccountError(
            f"the AWS account cannot be asked: {error.operation_name}: {code_of(error)}: "
            + one_line(message_of(error))
        ) from error
    except (BotoCoreError, ResponseParserError) as error:
        raise AccountError(f"the AWS account cannot be asked: {one_line(str(error))}") from error


def ask_if_there(question: Callable[[], T]) -> T | None:
    """Returns the answer; None if the object does not exist.

    Raises:
        AccountError: There is no answer.
    """
    return ask(lambda: find(question))


def find(question: Callable[[], T]) -> T | None:
    """Returns the answer; None if AWS says that the object does not exist. AWS's own errors pass through."""
    try:
        return question()
    except ClientError as error:
        if "NotFound" in code_of(error) or "NoSuch" in code_of(error):
            return None
        raise


def pages_of(client: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Returns all items of a paginated operation.

    Raises:
        AccountError: There is no answer.
    """
    return ask(lambda: list_all(client, operation, key, **arguments))


def list_all(client: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Returns all items of a paginated operation; AWS's own errors pass through.

    Raises:
        ClientError or BotoCoreError: There is no answer.
    """
    pages = client.get_paginator(operation).paginate(**arguments)
    return [one for page in pages for one in page.get(key, [])]
