"""How actors and the learner authenticate to ElastiCache. The event names the credential by a URI, without its secret.

    elasticache-iam://USER@CACHE    a token signed with the function's own role, valid for 15 minutes

Events, a function's variables and templates are logged or can be read, so they hold no secret. See
docs/decisions/cache.md.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

import redis

from lambda_actor.errors import CacheError

_TOKEN_LIFETIME_S = 900


def connection_options(uri: str) -> dict[str, Any]:
    """Returns options of a redis client that authenticate it, for a ``uri`` as above.

    Raises:
        CacheError: The URI is of another kind, or there is nothing to sign with.
    """
    parts = urlsplit(uri)
    if parts.scheme != "elasticache-iam" or not parts.username or not parts.hostname:
        raise CacheError("the cache credential is not elasticache-iam://USER@CACHE")
    return {"credential_provider": ElastiCacheTokens(parts.username, parts.hostname)}


class ElastiCacheTokens(redis.CredentialProvider):
    """IAM authentication tokens of ElastiCache Serverless: a fresh one for every connection.

    A token is a presigned request without its ``https://``, which is never sent as a request. AWS ends connections
    after 12 hours. The client then reconnects with a new token.

    Source: Amazon ElastiCache User Guide, "Authenticating with IAM".
    """

    def __init__(self, user: str, cache_name: str) -> None:
        # Imported only here, because a learner on one machine needs no AWS library.
        import botocore.session

        session = botocore.session.get_session()
        self._user = user
        self._cache_name = cache_name
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

        query = {"Action": "connect", "User": self._user, "ResourceType": "ServerlessCache"}
        request = AWSRequest("GET", f"https://{self._cache_name}/?{urlencode(query)}")
        SigV4QueryAuth(
            self._credentials.get_frozen_credentials(),
            "elasticache",
            self._region,
            expires=_TOKEN_LIFETIME_S,
        ).add_auth(request)
        return self._user, request.prepare().url.removeprefix("https://")
