"""The trajectory cache: sends weights to actors and takes each trajectory exactly once. Only this module uses redis.

All keys of a run share the hash tag ``{run_id}``, so a clustered server keeps them in one slot:

    {run}:weights:<version>     WEIGHTS message of a policy version
    {run}:episode:<id>          EPISODE message of an open episode that this round continues
    {run}:trajectory:<id>       a submission: empty while it is awaited, then a TRAJECTORY message, keyed
                                by the invocation id (paper §4). An actor whose key is gone gives up

Everything has a time to live, so that nothing outlives a killed run for long. There is no queue and no script, which
would need rights to write data that the learner trusts. The learner makes the key, later reads and deletes it in one
transaction, and reads no more than a trajectory may have.

Actors run foreign code, so learner and actors are different users of the server. A hostile actor can store junk, which
is never read and expires. At worst it fills the server's memory, and the run fails within its budget. It can store a
false trajectory under its own invocation id, or under another's, which it can guess, and overwrite the weights and
episodes that other actors of the run read.

When the learner ends a run, it takes the submissions of all actors in flight. Each of them checks its key once a
second, and gives up if the key is gone or the server does not answer. A learner that is killed takes nothing, and a
hostile actor can make a key again: then an actor plays until its fragment's end or its time limit, which is reserved.

On one machine, actors are processes of the same user, and the server has no users of its own.

For ElastiCache, events name a credential by a URI without its secret, since events, a function's variables and
templates are logged or can be read:

    elasticache-iam://USER@CACHE    a token signed with the function's own role, valid for 15 minutes

See docs/decisions/cache.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from lambda_actor.errors import (
    CacheError,
    CacheMissError,
    CacheUnavailableError,
)
from lambda_actor.inline import ACCEPTED, LATE

LEARNER_RIGHTS = "on ~{*}:* -@all +ping +set +getrange +del +scan +multi +exec"
"""The learner's rights in AWS, as an ACL of Redis 6: the commands that it uses."""
ACTOR_RIGHTS = "on ~{*}:weights:* ~{*}:episode:* ~{*}:trajectory:* -@all +ping +get +exists +set"
"""The actors' rights: they read weights and episodes, and store trajectories.

ElastiCache has Redis 6's access control, where a key is for reading and writing. So a hostile actor may also
overwrite weights and episodes of its own run, and read trajectories: the round's other actors then play another policy.
"""

_SOCKET_TIMEOUT_S = 6.0
_SILENCE_S = 10.0
"""For this long after a time-out nothing is asked."""
_TOKEN_LIFETIME_S = 900
_READ_BYTES = 2**18
"""Bytes per read. Weights for pixels have four million bytes, which the default splits into sixty pieces."""


class TrajectoryCache:
    """A run's namespace on a Redis or Valkey server. Reconnects with jitter.

    One instance may be used by several threads.
    """

    def __init__(
        self,
        url: str,
        run_id: str,
        *,
        username: str | None = None,
        password: str | None = None,
        credential: str = "",
        ttl_s: int = 3600,
        connect_attempts: int = 3,
    ) -> None:
        """Configures the connection; connects on first use.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
            run_id: Namespace of the run; letters, digits and dashes.
            username, password: Override the URL's.
            credential: Where to find credentials instead; a URI as in this module's docstring.
            ttl_s: Seconds after which untouched data expires.
            connect_attempts: Tries of each command while the connection fails, with growing jittered pauses ≤ 1 s.

        Raises:
            CacheUnavailableError: The URL cannot be understood.
            CacheError: The credential cannot be obtained.
        """
        self._prefix = f"{{{run_id}}}:"
        self._ttl_s = ttl_s
        options: dict[str, Any] = {"username": username, "password": password}
        if credential:
            options = connection_options(credential)
        if not url.startswith("unix:"):
            options["socket_keepalive"] = True
        try:
            # redis's types do not say that all answers are bytes.
            self._redis: Any = redis.Redis.from_url(
                url,
                retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), connect_attempts),
                retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
                socket_connect_timeout=5,
                socket_read_size=_READ_BYTES,
                socket_timeout=_SOCKET_TIMEOUT_S,
                # Otherwise the client sends its name, which Redis 7.0 does not understand.
                driver_info=None,
                **options,
            )
        except ValueError:
            raise CacheUnavailableError(_not_a_url(url)) from None
        self._url = redacted(url)
        self._silent_until_s = 0.0

    # Methods for actors

    def fetch_weights(self, policy_version: int) -> bytes:
        """Returns the WEIGHTS message of this policy version.

        Raises:
            CacheMissError: That version was never published, or has expired.
        """
        return self._fetch(f"weights:{policy_version}")

    def fetch_episode(self, episode_id: str) -> bytes:
        """Returns the EPISODE message of this open episode.

        Raises:
            CacheMissError: No such open episode.
        """
        return self._fetch(f"episode:{episode_id}")

    def submit(self, invocation_id: str, trajectory: bytes) -> str:
        """Submits one trajectory. Safe to repeat.

        Returns:
            ``accepted``; ``late`` if the learner no longer waits for it.

        Raises:
            CacheError: The server has no room for it.
        """
        with self._translated():
            # Only if the key exists. Storing again after an unanswered try does no harm.
            is_stored = self._redis.set(
                self._key(f"trajectory:{invocation_id}"), trajectory, xx=True, keepttl=True
            )
        return ACCEPTED if is_stored else LATE

    def is_wanted(self, invocation_id: str) -> bool:
        """Whether the learner still waits for this invocation. If not, its actor may give up."""
        with self._translated():
            return bool(self._redis.exists(self._key(f"trajectory:{invocation_id}")))

    # Methods for the learner

    def ping(self) -> None:
        """Checks that the server answers.

        Raises:
            CacheUnavailableError: The server does not answer.
        """
        with self._translated():
            self._redis.ping()

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Makes a policy version available to actors."""
        self._put({f"weights:{policy_version}": weights})

    def forget_weights(self, policy_version: int) -> None:
        """Removes a version that no actor will fetch any more."""
        self._delete([f"weights:{policy_version}"])

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None:
        """Makes the open episodes of this round available to actors."""
        self._put({f"episode:{episode_id}": data for episode_id, data in episodes.items()})

    def discard_episodes(self, episode_ids: Iterable[str]) -> None:
        """Removes open episodes."""
        self._delete(f"episode:{episode_id}" for episode_id in episode_ids)

    def expect(self, invocation_ids: Iterable[str]) -> None:
        """Lets each of these invocations submit one trajectory."""
        self._put({f"trajectory:{invocation_id}": b"" for invocation_id in invocation_ids})

    def take(self, invocation_id: str) -> bytes | None:
        """Ends an invocation's submission for good. Returns its trajectory, or None if none was accepted."""
        key = self._key(f"trajectory:{invocation_id}")
        with self._translated():
            pipe = self._redis.pipeline(transaction=True)
            pipe.getrange(key, 0, -1)
            pipe.delete(key)
            trajectory: bytes = pipe.execute()[0]
        return trajectory or None

    def remove_run(self) -> None:
        """Deletes every key of the run. Running actors then give up."""
        with self._translated():
            for key in self._redis.scan_iter(match=self._prefix + "*", count=1000):
                self._redis.delete(key)

    def close(self) -> None:
        self._redis.close()

    def _fetch(self, name: str) -> bytes:
        with self._translated():
            value = self._redis.get(self._key(name))
        if value is None:
            raise CacheMissError(f"{name} is not in the cache")
        data: bytes = value
        return data

    def _put(self, values: Mapping[str, bytes]) -> None:
        with self._translated():
            pipe = self._redis.pipeline(transaction=False)
            for name, value in values.items():
                pipe.set(self._key(name), value, ex=self._ttl_s)
            pipe.execute()

    def _delete(self, names: Iterable[str]) -> None:
        if keys := [self._key(name) for name in names]:
            with self._translated():
                self._redis.delete(*keys)

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextmanager
    def _translated(self) -> Iterator[None]:
        # A hung server costs half a minute a command, and a run that ends has one for each actor in flight.
        if time.monotonic() < self._silent_until_s:
            raise CacheUnavailableError(f"the server at {self._url} has just not answered")
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise CacheError(
                f"the server at {self._url} refuses us: {error}; user and password belong into the "
                "variables CACHE_USERNAME and CACHE_PASSWORD"
            ) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if isinstance(error, redis.TimeoutError):
                self._silent_until_s = time.monotonic() + _SILENCE_S
            raise CacheUnavailableError(
                f"the server at {self._url} does not answer: {error}"
            ) from error
        except TypeError as error:
            raise CacheUnavailableError(
                f"{self._url}: an option of this URL is not known: {error}"
            ) from error
        except redis.RedisError as error:
            raise CacheError(f"the server at {self._url} refused a command: {error}") from error


def connection_options(uri: str) -> dict[str, Any]:
    """Returns options of a redis client that authenticate it, for a ``uri`` as in this module's docstring.

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


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """Returns ``url`` without credentials, wherever they are in it, the user name and the password.

    Raises:
        CacheUnavailableError: The URL cannot be understood.
    """
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]  # redis does not type it
    except ValueError:
        raise CacheUnavailableError(_not_a_url(url)) from None
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    bare = re.sub(
        r"(?i)(?<=[?&])(?:username|password)=[^&#]*&?",
        "",
        f"{authority.rpartition('@')[2]}{slash}{path}",
    )
    return (
        f"{scheme}{separator}{bare.rstrip('?&')}",
        options.get("username"),
        options.get("password"),
    )


def redacted(url: str) -> str:
    """Returns ``url`` with any password replaced by ``***``, fit for logs and records.

    Hides too much rather than too little: everything between the user name and the last ``@`` counts as password.
    """
    url = re.sub(r"(?i)([?&]password=)[^&#]*", r"\1***", url)
    return re.sub(r"(?s)^((?:[^:]*://)?[^:]*):(?!//).*@", r"\1:***@", url)


def _not_a_url(url: str) -> str:
    # Do not use the parser's message, which may contain a part of the password.
    return (
        f"cache URL {redacted(url)!r} is not redis://[user[:password]@]host[:port][/db], the same with rediss:// "
        "for TLS, or unix://path"
    )
