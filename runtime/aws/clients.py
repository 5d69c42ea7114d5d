"""Sessions and clients: our identity in AWS, and time limits for answers."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
    create_assume_role_refresher,
)
from botocore.session import get_session

from runtime.aws.asking import AccountError, ask
from runtime.aws.failures import BotoCoreError
from runtime.names import DEFAULT_REGION

PATIENT = Config(
    connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 5}
)
"""Outlasts network hiccups."""
PROMPT = Config(
    connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2}
)
"""For the guard: a hanging call takes a quarter of a minute, and failures are tried again a minute later."""
QUICK = Config(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 1})
"""For calls that must not delay anything."""


class Session(Protocol):
    """Credentials and a region.

    Attributes:
        region_name: None = not set.
    """

    region_name: str | None

    def client(self, service: str, **options: Any) -> Any:
        """Returns a client of that service."""


class Client(Protocol):
    """Supplies clients of AWS services."""

    def __call__(self, service: str, *, is_quick: bool = False) -> Any:
        """Returns a client of that service; with ``is_quick``, one that gives up soon."""


def clients(session: Session | None = None, *, patience: Config = PATIENT) -> Client:
    """Clients of a session, each made once.

    Args:
        session: None = from the environment.
        patience: Default time limits.
    """
    chosen = session or environment_session()

    @cache
    def client(service: str, *, is_quick: bool = False) -> Any:
        return chosen.client(service, config=QUICK if is_quick else patience)

    return client


def environment_session() -> Session:
    """Returns a session from the environment, or from the role of an instance or function."""
    session: Session = boto3.Session()
    return session


def assumed_session(session: Session, role_arn: str, name: str) -> Session:
    """Returns a session of a role, which renews itself while the caller may assume the role.

    Args:
        session: Its credentials assume the role, at the first call and each hour.
        role_arn: ARN of the role.
        name: Name in AWS's logs.
    """
    role = {"RoleArn": role_arn, "RoleSessionName": name}
    refresh = create_assume_role_refresher(session.client("sts"), role)

    class Provider(CredentialProvider):  # type: ignore[misc]  # botocore has no types
        METHOD = "assume-role"

        def load(self) -> Any:
            return DeferredRefreshableCredentials(refresh_using=refresh, method=self.METHOD)

    core = get_session()
    core.register_component("credential_provider", CredentialResolver([Provider()]))
    assumed: Session = boto3.Session(botocore_session=core, region_name=session.region_name)
    return assumed


def waiting_client(
    service: str,
    *,
    region: str,
    connect_timeout_s: float,
    read_timeout_s: float,
    connections: int,
    session: Session | None = None,
) -> Any:
    """Returns a client that waits long for each answer, and never repeats a request by itself.

    Args:
        connections: Requests at once.
        session: None = from the environment.

    Raises:
        BotoCoreError or ValueError: boto3 refuses the settings.
    """
    return (session or environment_session()).client(
        service,
        region_name=region,
        config=Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": 1},
            tcp_keepalive=True,
            max_pool_connections=connections,
        ),
    )


def open_session() -> Session:
    """Returns a session with the region that the CDK would use, because boto3 ignores AWS_REGION.

    Its clients are `PATIENT` by default.

    Raises:
        AccountError: No region is set, or there is no such profile.
    """
    try:
        core = get_session()
        core.set_default_client_config(PATIENT)
        session: Session = boto3.Session(
            botocore_session=core, region_name=os.environ.get("AWS_REGION") or None
        )
    except BotoCoreError as error:
        raise AccountError(str(error)) from error
    if not session.region_name:
        raise AccountError(f"no region is set: set AWS_DEFAULT_REGION={DEFAULT_REGION}")
    return session


def identify(session: Session) -> str:
    """Returns the account's number.

    Raises:
        AccountError: There are no usable credentials, or no such region.
    """
    return str(ask(lambda: session.client("sts").get_caller_identity()["Account"]))
