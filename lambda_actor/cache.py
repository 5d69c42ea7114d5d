"""The trajectory cache: weights out to the actors, each trajectory in exactly once. The only door to redis.

All keys of a run share the hash tag ``{run_id}``, so that a clustered server keeps them in one slot:

    {run}:weights:<version>     WEIGHTS message of a policy version
    {run}:episode:<id>          EPISODE message of an open episode that this round continues
    {run}:trajectory:<id>       the door of an invocation: empty while it is awaited, then its TRAJECTORY message, keyed
                                by the invocation id (paper §4); an actor whose door is gone gives up
    {run}:stop                  holds the run's stop word once the run has ended: every actor gives up

Everything carries a time to live, so that nothing outlives a killed run for long. Actors and the learner are different
users of the server. There is no queue and no script: the learner asks for the one trajectory that it awaits, and reads
no more of it than a trajectory may have. So whatever else an actor stores costs the learner nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from lambda_actor.credentials import connection_options
from lambda_actor.errors import (
    CacheError,
    CacheFullError,
    CacheMissError,
    CacheUnavailableError,
    OversizedMessageError,
)
from lambda_actor.wire import MESSAGE_BYTES_MAX

ACCEPTED, LATE = "accepted", "late"

LEARNER_RIGHTS = "on ~{*}:* -@all +ping +set +getrange +del +scan +multi +exec"
"""The learner's rights on a server of its own or of AWS, as an ACL of Valkey or of Redis 7: what it sends."""
ACTOR_RIGHTS = ("on %R~{*}:weights:* %R~{*}:episode:* %W~{*}:trajectory:* ~{*}:stop -@all +ping +get +getrange +exists "
                "+set")
"""The actors' rights: they read weights and episodes, and store trajectories, which they cannot read.

They may write the stop key, since the guard stops actors through one of them; without the run's stop word that stops
nobody.
"""

_SOCKET_TIMEOUT_S = 6.0
_READ_BYTES = 2**18
"""At once: weights for pixels have four million, of which the default makes sixty pieces."""
_STOP_WORD_BYTES_MAX = 64


def stop_digest(stop_word: str) -> str:
    """What actors are told of the run's stop word: enough to know it, not enough to say it."""
    return sha256(stop_word.encode()).hexdigest()


class TrajectoryCache:
    """A run's namespace on a Redis or Valkey server; connects at first use, and again, with jitter, when it must.

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
        bytes_max: int = MESSAGE_BYTES_MAX,
        digest: str = "",
        connect_attempts: int = 3,
    ) -> None:
        """Connects to the server, lazily.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
            run_id: Namespace of the run; letters, digits and dashes.
            username, password: Override what the URL says.
            credential: Where to find credentials instead; see `lambda_actor.credentials`.
            ttl_s: How long anything may stay on the server untouched.
            bytes_max: Largest trajectory that the learner takes.
            digest: The `stop_digest` of the word that stops the run's actors.
            connect_attempts: Tries of each command while the connection fails, with growing jittered pauses ≤ 1 s.

        Raises:
            CacheUnavailableError: The URL cannot be understood.
            CacheError: The credential cannot be had.
        """
        self._prefix = f"{{{run_id}}}:"
        self._ttl_s = ttl_s
        self._bytes_max, self._digest = bytes_max, digest
        options: dict[str, Any] = {
            name: value for name, value in (("username", username), ("password", password)) if value}
        if credential:
            options = connection_options(credential)
        if not url.startswith("unix:"):
            options["socket_keepalive"] = True
        try:
            # Its types do not know that all answers are bytes.
            self._redis: Any = redis.Redis.from_url(
                url,
                retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), connect_attempts),
                retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
                socket_connect_timeout=5,
                socket_read_size=_READ_BYTES,
                socket_timeout=_SOCKET_TIMEOUT_S,
                health_check_interval=30,
                # Else its name is told, which Redis 7.0 does not understand.
                driver_info=None,
                **options,
            )
        except ValueError:
            raise CacheUnavailableError(_not_a_url(url)) from None
        self._url = redacted(url)

    # What actors do

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
        """Hands one trajectory in, safely repeatable.

        Returns:
            ``accepted``; ``late`` if the learner no longer waits for it.

        Raises:
            CacheFullError: The server has no room for it.
        """
        with self._translated():
            # Only where there is a door. What an unanswered try has stored is stored again.
            is_stored = self._redis.set(self._key(f"trajectory:{invocation_id}"), trajectory, xx=True, keepttl=True)
        return ACCEPTED if is_stored else LATE

    def is_wanted(self, invocation_id: str) -> bool:
        """Whether the learner still waits for this invocation; else its actor may as well give up."""
        with self._translated():
            pipe = self._redis.pipeline(transaction=False)
            pipe.getrange(self._key("stop"), 0, _STOP_WORD_BYTES_MAX)
            pipe.exists(self._key(f"trajectory:{invocation_id}"))
            word, is_awaited = pipe.execute()
        return bool(is_awaited) and sha256(word).hexdigest() != self._digest

    # What learner functions do

    def put_object(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a name that is new; False, and nothing changed, if the name is taken."""
        with self._translated():
            return bool(self._redis.set(self._key(f"object:{name}"), data, nx=True, ex=self._ttl_s))

    def get_object(self, name: str) -> bytes | None:
        """Returns what was kept under that name; None if nothing was."""
        with self._translated():
            found: bytes | None = self._redis.get(self._key(f"object:{name}"))
            return found

    def delete_objects(self, names: Iterable[str]) -> None:
        """Removes these, if they are there."""
        self._pipelined(lambda pipe: [pipe.delete(self._key(f"object:{name}")) for name in names])

    # What the learner does

    def ping(self) -> None:
        """Asks the server for an answer.

        Raises:
            CacheUnavailableError: The server does not answer.
        """
        with self._translated():
            self._redis.ping()

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Makes a policy version fetchable."""
        with self._translated():
            self._redis.set(self._key(f"weights:{policy_version}"), weights, ex=self._ttl_s)

    def forget_weights(self, policy_version: int) -> None:
        """Removes a version that no actor will ask for any more."""
        with self._translated():
            self._redis.delete(self._key(f"weights:{policy_version}"))

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None:
        """Makes the open episodes that this round continues fetchable."""
        self._pipelined(lambda pipe: [pipe.set(self._key(f"episode:{episode_id}"), data, ex=self._ttl_s)
                                      for episode_id, data in episodes.items()])

    def discard_episodes(self, episode_ids: Iterable[str]) -> None:
        ids = list(episode_ids)
        self._pipelined(lambda pipe: [pipe.delete(self._key(f"episode:{episode_id}")) for episode_id in ids])

    def expect(self, invocation_ids: Iterable[str]) -> None:
        """Opens the door for these invocations' trajectories, one each."""
        self._pipelined(lambda pipe: [pipe.set(self._key(f"trajectory:{one}"), b"", ex=self._ttl_s)
                                      for one in invocation_ids])

    def take(self, invocation_id: str) -> bytes | None:
        """Closes the door of one invocation, for good.

        Returns:
            Its trajectory, if it has been accepted.

        Raises:
            OversizedMessageError: It is larger than any trajectory may be.
        """
        key = self._key(f"trajectory:{invocation_id}")
        with self._translated():
            pipe = self._redis.pipeline(transaction=True)
            # One byte more than it may have, which tells that there are more.
            pipe.getrange(key, 0, self._bytes_max)
            pipe.delete(key)
            found: bytes = pipe.execute()[0]
        if len(found) > self._bytes_max:
            raise OversizedMessageError(f"more than the {self._bytes_max} bytes that a trajectory may have here")
        return found or None

    def stop(self, stop_word: str) -> None:
        """Ends the run for its actors: each that still runs gives up within about a second.

        Args:
            stop_word: The run's, whose digest they know.
        """
        with self._translated():
            self._redis.set(self._key("stop"), stop_word.encode(), ex=self._ttl_s)

    def remove_run(self) -> None:
        """Deletes every key of the run; actors that still run give up then."""
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
        found: bytes = value
        return found

    def _pipelined(self, fill: Callable[[Any], object]) -> None:
        with self._translated():
            pipe = self._redis.pipeline(transaction=False)
            fill(pipe)
            pipe.execute()

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise CacheError(f"the server at {self._url} refuses us: {error}; user and password belong into the "
                             "variables CACHE_USERNAME and CACHE_PASSWORD") from error
        except redis.OutOfMemoryError as error:
            raise CacheFullError(f"the server at {self._url} is out of memory: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise CacheUnavailableError(f"the server at {self._url} does not answer: {error}") from error
        except TypeError as error:
            raise CacheUnavailableError(f"{self._url}: an option of this URL is not known: {error}") from error
        except redis.RedisError as error:
            raise CacheError(f"the server at {self._url} refused a command: {error}") from error


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """``url`` without credentials, wherever they stand in it, and the user's name and the password.

    Raises:
        CacheUnavailableError: The URL cannot be understood.
    """
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]  # redis does not type it
    except ValueError:
        raise CacheUnavailableError(_not_a_url(url)) from None
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    bare = re.sub(r"(?i)(?<=[?&])(?:username|password)=[^&#]*&?", "", f"{authority.rpartition('@')[2]}{slash}{path}")
    return f"{scheme}{separator}{bare.rstrip('?&')}", options.get("username"), options.get("password")


def redacted(url: str) -> str:
    """``url`` with any password replaced by ``***``; fit for logs and records.

    Errs on the side of hiding: all between the user's name and the last ``@`` counts as password.
    """
    url = re.sub(r"(?i)([?&]password=)[^&#]*", r"\1***", url)
    credentials, at, rest = url.rpartition("@")
    scheme, separator, userinfo = credentials.partition("://")
    if not separator:
        scheme, userinfo = "", credentials
    user, colon, _ = userinfo.partition(":")
    return f"{scheme}{separator}{user}:***@{rest}" if at and colon else url


def _not_a_url(url: str) -> str:
    # Not the parser's own words, which may repeat a part of the password.
    return (f"cache URL {redacted(url)!r} is not redis://[user[:password]@]host[:port][/db], the same with rediss:// "
            "for TLS, or unix://path")
