"""Sessions of an assumed role that renew themselves while the caller's own credentials last."""

from __future__ import annotations

from typing import Any

from runtime.aws.clients import Session, renewed_session
from runtime.aws.failures import AWS_ERRORS, CredentialsLostError
from runtime.errors import one_line

_SESSION_S = 3600
"""Longest session of a role that another role assumes."""


def assume(session: Session, role_arn: str, session_name: str) -> Session:
    """Returns a session of a role; the first call assumes it.

    Args:
        session: Its credentials assume the role, at first and each hour.
        role_arn: ARN of the role.
        session_name: Name in AWS's logs.

    Returns:
        A session whose clients raise `CredentialsLostError` once the role cannot be assumed.
    """

    def fetch() -> dict[str, Any]:
        try:
            found = session.client("sts").assume_role(
                RoleArn=role_arn, RoleSessionName=session_name, DurationSeconds=_SESSION_S
            )["Credentials"]
        except AWS_ERRORS as error:
            raise CredentialsLostError(
                role=role_arn.rpartition("/")[2], why=one_line(str(error))
            ) from error
        return {
            "access_key": found["AccessKeyId"],
            "secret_key": found["SecretAccessKey"],
            "token": found["SessionToken"],
            "expiry_time": found["Expiration"].isoformat(),
        }

    return renewed_session(fetch, region=str(session.region_name))
