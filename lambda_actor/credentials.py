"""How actors and the learner authenticate to the cache. The event names the credential by a URI and never contains it.

    elasticache-iam://USER@CACHE[?serverless=true]  a token signed with the function's own role, valid for 15 minutes
    s3://BUCKET/KEY                                 an object from the learner: user, password, its server's CA

Events, a function's variables and templates are logged or can be read, so they hold no secret. The learner draws new
passwords at each start and overwrites the object. See docs/decisions/0006-cache-credentials.md.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import redis

from lambda_actor.errors import CacheError

_TOKEN_LIFETIME_S = 900
_OBJECT_BYTES_MAX = 65_536
_OBJECT_FIELDS = ("username", "password", "ca_certificate")


def connection_options(uri: str) -> dict[str, Any]:
    """Returns options of a redis client that authenticate it, for a ``uri`` as above.

    Raises:
        CacheError: The URI is of no known kind, its object cannot be read, or there is nothing to sign with.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "elasticache-iam" and parts.username and parts.hostname:
        is_serverless = parse_qs(parts.query).get("serverless") == ["true"]
        return {
            "credential_provider": ElastiCacheTokens(
                parts.username, parts.hostname, is_serverless=is_serverless
            )
        }
    if parts.scheme == "s3" and parts.netloc and parts.path.strip("/"):
        return read_credential_object(parts.netloc, parts.path.removeprefix("/"))
    raise CacheError(
        "the cache credential is neither elasticache-iam://USER@CACHE nor s3://BUCKET/KEY"
    )


class ElastiCacheTokens(redis.CredentialProvider):
    """IAM authentication tokens of ElastiCache: a fresh one for every connection.

    A token is a presigned request without its ``https://``, which is never sent as a request. AWS ends connections
    after 12 hours. The client then reconnects with a new token.

    Source: Amazon ElastiCache User Guide, "Authenticating with IAM".
    """

    def __init__(self, user: str, cache_name: str, *, is_serverless: bool) -> None:
        # Imported only here, because a learner on one machine needs no AWS library.
        import botocore.session

        session = botocore.session.get_session()
        self._user, self._cache_name, self._is_serverless = user, cache_name, is_serverless
        self._region = session.get_config_variable("region")
        self._credentials = session.get_credentials()
        if self._credentials is None or not self._region:
            raise CacheError(
                "no AWS credentials or no region are here to sign the cache's token with"
            )

    def get_credentials(self) -> tuple[str, str]:
        """Returns user and token."""
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        query = {"Action": "connect", "User": self._user}
        if self._is_serverless:
            query["ResourceType"] = "ServerlessCache"
        request = AWSRequest("GET", f"https://{self._cache_name}/?{urlencode(query)}")
        SigV4QueryAuth(
            self._credentials.get_frozen_credentials(),
            "elasticache",
            self._region,
            expires=_TOKEN_LIFETIME_S,
        ).add_auth(request)
        return self._user, request.prepare().url.removeprefix("https://")


def read_credential_object(bucket: str, key: str) -> dict[str, Any]:
    """Reads user, password and certificate from an object in a bucket.

    Raises:
        CacheError: The object cannot be read, or was not made by `credential_object`.
    """
    import botocore.exceptions
    import botocore.session
    from botocore.config import Config

    try:
        client = botocore.session.get_session().create_client(
            "s3",
            config=Config(
                connect_timeout=5,
                read_timeout=5,
                retries={"total_max_attempts": 3, "mode": "standard"},
            ),
        )
        data = client.get_object(Bucket=bucket, Key=key)["Body"].read(_OBJECT_BYTES_MAX)
        fields = json.loads(data)
        username, password, certificate = (fields[name] for name in _OBJECT_FIELDS)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise CacheError(
            f"the cache's credential s3://{bucket}/{key} cannot be read: {error}"
        ) from error
    except (ValueError, KeyError, TypeError):
        # Do not use the parser's message, which may quote the secret.
        raise CacheError(
            f"the cache's credential s3://{bucket}/{key} is not what a learner writes"
        ) from None
    return {"username": username, "password": password, "ssl_ca_data": certificate}


def credential_object(*, username: str, password: str, ca_certificate: str) -> bytes:
    """Returns the object for the actors of a learner with its own server. ``ca_certificate`` is PEM."""
    return json.dumps(
        dict(zip(_OBJECT_FIELDS, (username, password, ca_certificate), strict=True))
    ).encode()
