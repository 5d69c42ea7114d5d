"""The trajectory cache: weights out to the actors, each trajectory in exactly once. The only door to redis.

All keys of a run share the hash tag ``{run_id}``, so that a clustered server keeps them in one slot and a script may
touch several of them:

    {run}:weights:<version>     WEIGHTS message of a policy version
    {run}:episode:<id>          EPISODE message of an open episode that this round continues
    {run}:invocations           hash: invocation id -> "expected" | "accepted"; an actor that is not in it gives up
    {run}:trajectory:<id>       TRAJECTORY message, keyed by the invocation id (paper §4)
    {run}:ready                 list of accepted invocation ids, for blocking takes
    {run}:stop                  there once the run has ended: every actor gives up
    {run}:bytes, {run}:late     counters

Everything carries a time to live, so that nothing outlives a killed run for long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from lambda_actor.credentials import connection_options
from lambda_actor.errors import CacheError, CacheFullError, CacheMissError, CacheUnavailableError

ACCEPTED, DUPLICATE, LATE = "accepted", "duplicate", "late"

_SOCKET_TIMEOUT_S = 6.0
_IDS_PER_COMMAND = 1000

_SUBMIT = """
local state = redis.call('HGET', KEYS[1], ARGV[1])
if state == 'accepted' then return 'duplicate' end
if state ~= 'expected' then
  redis.call('INCR', KEYS[5])
  redis.call('EXPIRE', KEYS[5], ARGV[3])
  return 'late'
end
local bytes = tonumber(redis.call('GET', KEYS[4]) or '0')
if bytes + #ARGV[2] > tonumber(ARGV[4]) then return 'full' end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
redis.call('INCRBY', KEYS[4], #ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], 'accepted')
redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
redis.call('EXPIRE', KEYS[4], ARGV[3])
return 'accepted'
"""
_CANCEL = """
if redis.call('HGET', KEYS[1], ARGV[1]) == 'accepted' then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
"""
_TAKE = """
local payload = redis.call('GET', KEYS[1])
if payload then
  redis.call('DEL', KEYS[1])
  redis.call('DECRBY', KEYS[2], #payload)
end
return payload
"""


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
        bytes_max: int = 2**30,
        connect_attempts: int = 3,
    ) -> None:
        """Connects to the server, lazily.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
            run_id: Namespace of the run; letters, digits and dashes.
            username, password: Override what the URL says.
            credential: Where to find credentials instead; see `lambda_actor.credentials`.
            ttl_s: How long anything may stay on the server untouched.
            bytes_max: Largest sum of the trajectories that wait to be taken.
            connect_attempts: Tries of each command while the connection fails, with growing jittered pauses ≤ 1 s.

        Raises:
            CacheUnavailableError: The URL cannot be understood.
            CacheError: The credential cannot be had.
        """
        self._prefix = f"{{{run_id}}}:"
        self._ttl_s = ttl_s
        self._bytes_max = bytes_max
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
                socket_timeout=_SOCKET_TIMEOUT_S,
                health_check_interval=30,
                **options,
            )
        except ValueError:
            raise CacheUnavailableError(_not_a_url(url)) from None
        self._url = redacted(url)
        self._submit = self._redis.register_script(_SUBMIT)
        self._cancel = self._redis.register_script(_CANCEL)
        self._take = self._redis.register_script(_TAKE)

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
            ``accepted``; ``duplicate`` if this invocation's trajectory was accepted before; ``late`` if the
            round no longer waits for it.

        Raises:
            CacheFullError: The trajectories waiting would exceed ``bytes_max``.
        """
        with self._translated():
            status: str = self._submit(
                keys=[self._key(name) for name in
                      ("invocations", f"trajectory:{invocation_id}", "ready", "bytes", "late")],
                args=[invocation_id, trajectory, self._ttl_s, self._bytes_max],
            ).decode()
        if status == "full":
            raise CacheFullError(f"trajectories of {self._bytes_max} bytes already wait for the learner")
        return status

    def is_wanted(self, invocation_id: str) -> bool:
        """Whether the learner still waits for this invocation; else its actor may as well give up."""
        with self._translated():
            pipe = self._redis.pipeline(transaction=False)
            pipe.exists(self._key("stop"))
            pipe.hexists(self._key("invocations"), invocation_id)
            is_stopped, is_expected = pipe.execute()
            return bool(is_expected) and not is_stopped

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
        ids = list(invocation_ids)
        if not ids:
            return
        key = self._key("invocations")
        self._pipelined(lambda pipe: [*(pipe.hset(key, mapping=dict.fromkeys(some, "expected"))
                                        for some in _batched(ids)), pipe.expire(key, self._ttl_s)])

    def cancel(self, invocation_id: str) -> bool:
        """Closes the door for one invocation; False if its trajectory is already in and will be taken."""
        with self._translated():
            return bool(self._cancel(keys=[self._key("invocations")], args=[invocation_id]))

    def take(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next accepted trajectory with its invocation id, waiting for it without polling.

        Returns:
            None after ``timeout_s`` without one.
        """
        deadline = time.monotonic() + timeout_s
        with self._translated():
            while True:
                remaining_s = deadline - time.monotonic()
                # Shorter than the socket's own timeout, and never 0, which would wait for ever.
                slice_s = min(max(remaining_s, 0.01), _SOCKET_TIMEOUT_S / 2)
                popped = self._redis.blpop([self._key("ready")], timeout=slice_s)
                if popped is None:
                    if remaining_s <= 0:
                        return None
                    continue
                invocation_id = popped[1].decode(errors="replace")
                payload = self._take(keys=[self._key(f"trajectory:{invocation_id}"), self._key("bytes")])
                if payload is not None:
                    return invocation_id, payload

    def forget(self, invocation_ids: Iterable[str]) -> int:
        """Closes the door for these invocations for good, and drops what of theirs was never taken.

        Returns:
            How many trajectories came too late, of whatever invocation, since the last call.
        """
        ids = list(invocation_ids)
        with self._translated():
            # The door first: what is submitted from now on is late.
            for some in _batched(ids):
                self._redis.hdel(self._key("invocations"), *some)
            pipe = self._redis.pipeline(transaction=False)
            for invocation_id in ids:
                self._take(keys=[self._key(f"trajectory:{invocation_id}"), self._key("bytes")], client=pipe)
            pipe.get(self._key("late"))
            pipe.delete(self._key("late"))
            return int(pipe.execute()[-2] or 0)

    def stop(self) -> None:
        """Ends the run for its actors: each that still runs gives up within about a second."""
        with self._translated():
            self._redis.set(self._key("stop"), b"1", ex=self._ttl_s)

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


def _batched(ids: list[str]) -> Iterator[list[str]]:
    """``ids`` in as many as fit into one command: ElastiCache Serverless refuses more than 3,999 arguments."""
    return (ids[i:i + _IDS_PER_COMMAND] for i in range(0, len(ids), _IDS_PER_COMMAND))


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
