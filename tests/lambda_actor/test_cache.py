"""The trajectory cache against real servers."""

from __future__ import annotations

import string
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lambda_actor.cache import ACCEPTED, DUPLICATE, LATE, TrajectoryCache, redacted
from lambda_actor.errors import CacheError, CacheFullError, CacheMissError, CacheUnavailableError
from tests.conftest import (
    PASSWORD,
    PATIENCE_S,
    USER_PASSWORD,
    USERNAME,
    AuthServer,
    TcpServer,
    TlsServer,
    wait_until,
)

FUZZ = settings(deadline=None, derandomize=True, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
TTL_S = 900


@pytest.fixture
def other(server_url: str, run_id: str):
    """The cache of another run whose name starts with this one's."""
    made = TrajectoryCache(server_url, run_id + "0")
    yield made
    made.remove_run()
    made.close()


def keys_of(raw: redis.Redis, run_id: str) -> set[str]:
    return {key.decode() for key in raw.scan_iter(count=1000) if key.decode().startswith(f"{{{run_id}}}:")}


# Each trajectory in exactly once


def test_a_trajectory_is_taken_exactly_once_however_often_submitted(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    assert cache.submit("a", b"first") == ACCEPTED
    assert cache.submit("a", b"again") == DUPLICATE
    assert cache.take(1.0) == ("a", b"first")
    assert cache.submit("a", b"and again") == DUPLICATE
    assert cache.take(0.02) is None


def test_trajectories_are_taken_in_the_order_of_their_coming(cache: TrajectoryCache) -> None:
    cache.expect(["a", "b"])
    cache.expect(["c"])
    for invocation_id in ("b", "c", "a"):
        assert cache.submit(invocation_id, invocation_id.encode() * 2) == ACCEPTED
    assert [cache.take(1.0) for _ in range(3)] == [("b", b"bb"), ("c", b"cc"), ("a", b"aa")]


def test_any_bytes_arrive_as_they_were(cache: TrajectoryCache) -> None:
    payload = bytes(range(256)) * 5000
    cache.expect(["a", "empty"])
    cache.submit("a", payload)
    cache.submit("empty", b"")
    assert cache.take(1.0) == ("a", payload)
    assert cache.take(1.0) == ("empty", b"")


def test_whom_nobody_expects_is_late(cache: TrajectoryCache) -> None:
    cache.expect([])
    assert cache.submit("stranger", b"x") == LATE
    assert cache.take(0.02) is None
    assert cache.forget([]) == 1


def test_a_cancelled_invocation_is_late(cache: TrajectoryCache) -> None:
    cache.expect(["a", "b"])
    assert cache.cancel("a") is True
    assert cache.submit("a", b"x") == LATE
    assert cache.submit("b", b"y") == ACCEPTED
    assert cache.take(1.0) == ("b", b"y")
    assert cache.take(0.02) is None


def test_cancelling_what_is_already_in_fails_and_loses_nothing(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    cache.submit("a", b"x")
    assert cache.cancel("a") is False
    assert cache.take(1.0) == ("a", b"x")
    assert cache.cancel("a") is False


def test_cancelling_twice_changes_nothing(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    assert cache.cancel("a") is True
    assert cache.cancel("a") is True
    assert cache.submit("a", b"x") == LATE


def test_late_ones_are_counted_once(cache: TrajectoryCache) -> None:
    cache.expect(["a", "b", "c"])
    cache.submit("a", b"x")
    assert cache.take(1.0) == ("a", b"x")
    assert cache.forget(["a", "b", "c"]) == 0
    assert [cache.submit(invocation_id, b"y") for invocation_id in ("b", "c", "a")] == [LATE, LATE, LATE]
    cache.expect(["d"])
    assert cache.submit("d", b"z") == ACCEPTED
    assert cache.take(1.0) == ("d", b"z")
    assert cache.forget(["d"]) == 3
    assert cache.forget([]) == 0


def test_a_new_round_takes_nothing_of_the_one_before(cache: TrajectoryCache, raw: redis.Redis, run_id: str) -> None:
    cache.expect(["old"])
    cache.submit("old", b"nobody took it")
    cache.forget(["old"])
    cache.expect(["new"])
    assert cache.take(0.02) is None
    assert not [key for key in keys_of(raw, run_id) if ":trajectory:" in key], "it would hold memory, uncounted"


def test_of_many_submits_at_once_one_is_accepted(server_url: str, run_id: str, cache: TrajectoryCache) -> None:
    threads, rounds = 8, 20
    clients = [TrajectoryCache(server_url, run_id) for _ in range(threads)]
    cache.expect(f"i{number}" for number in range(rounds))
    barrier = threading.Barrier(threads)

    def submit_all(number: int) -> list[str]:
        statuses = []
        for turn in range(rounds):
            barrier.wait(PATIENCE_S)
            statuses.append(clients[number].submit(f"i{turn}", f"{turn} of {number}".encode()))
        return statuses

    with ThreadPoolExecutor(threads) as pool:
        by_client = list(pool.map(submit_all, range(threads)))
    winners = {}
    for turn, statuses in enumerate(zip(*by_client, strict=True)):
        assert sorted(statuses) == [ACCEPTED] + [DUPLICATE] * (threads - 1)
        winners[f"i{turn}"] = f"{turn} of {statuses.index(ACCEPTED)}".encode()
    assert dict(cache.take(1.0) for _ in range(rounds)) == winners
    assert cache.take(0.02) is None
    for client in clients:
        client.close()


def test_one_cache_serves_several_threads(cache: TrajectoryCache) -> None:
    ids = [f"i{number}" for number in range(200)]
    cache.expect(ids)
    with ThreadPoolExecutor(8) as pool:
        takers = [pool.submit(lambda: [cache.take(PATIENCE_S) for _ in range(50)]) for _ in range(4)]
        assert set(pool.map(lambda name: cache.submit(name, name.encode()), ids)) == {ACCEPTED}
        taken = [pair for taker in takers for pair in taker.result(PATIENCE_S)]
    assert sorted(taken) == sorted((name, name.encode()) for name in ids)


# Blocking takes


def is_somebody_waiting(raw: redis.Redis) -> bool:
    return any("b" in client["flags"] for client in raw.client_list())


def test_take_waits_on_the_server_until_somebody_submits(cache: TrajectoryCache, raw: redis.Redis) -> None:
    cache.expect(["a"])
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(cache.take, PATIENCE_S)
        wait_until(lambda: is_somebody_waiting(raw), "the taker to wait")
        asked = raw.info("commandstats").get("cmdstat_blpop", {"calls": 0})["calls"]
        assert not taking.done()
        cache.submit("a", b"x")
        assert taking.result(PATIENCE_S) == ("a", b"x")
        assert raw.info("commandstats")["cmdstat_blpop"]["calls"] <= asked + 1, "it waits, it does not poll"


@pytest.mark.parametrize("timeout_s", [0.0, 0.05, -1.0])
def test_take_gives_up(cache: TrajectoryCache, timeout_s: float) -> None:
    cache.expect(["a"])
    assert cache.take(timeout_s) is None


def test_take_takes_what_is_there_even_without_time(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    cache.submit("a", b"x")
    assert cache.take(0.0) == ("a", b"x")


def test_take_goes_on_where_a_trajectory_has_expired(cache: TrajectoryCache, raw: redis.Redis, run_id: str) -> None:
    cache.expect(["a", "b"])
    cache.submit("a", b"x")
    cache.submit("b", b"y")
    raw.delete(f"{{{run_id}}}:trajectory:a")
    assert cache.take(1.0) == ("b", b"y")


# Weights and episodes


def test_forgetting_one_wave_leaves_another_alone(cache: TrajectoryCache) -> None:
    cache.expect(["a1", "a2", "b1", "b2"])
    cache.submit("a1", b"x")
    cache.submit("b1", b"y")
    cache.forget(["a1", "a2"])
    assert cache.submit("a2", b"z") == LATE
    assert cache.take(1.0) == ("b1", b"y")
    assert cache.submit("b2", b"w") == ACCEPTED
    assert cache.take(1.0) == ("b2", b"w")


def test_weights_are_fetched_by_version_until_they_are_forgotten(cache: TrajectoryCache) -> None:
    cache.publish_weights(3, b"three")
    assert cache.fetch_weights(3) == b"three"
    cache.publish_weights(4, b"four")
    assert (cache.fetch_weights(3), cache.fetch_weights(4)) == (b"three", b"four")
    cache.forget_weights(3)
    assert cache.fetch_weights(4) == b"four"
    with pytest.raises(CacheMissError, match="weights:3"):
        cache.fetch_weights(3)


def test_episodes_are_fetched_until_they_are_discarded(cache: TrajectoryCache) -> None:
    cache.publish_episodes({"e1": b"one", "e2": b"two"})
    cache.publish_episodes({})
    assert [cache.fetch_episode("e1"), cache.fetch_episode("e1"), cache.fetch_episode("e2")] == [b"one", b"one", b"two"]
    cache.discard_episodes(["e1", "never there"])
    cache.discard_episodes([])
    with pytest.raises(CacheMissError, match="episode:e1"):
        cache.fetch_episode("e1")
    assert cache.fetch_episode("e2") == b"two"


def test_what_was_never_published_is_a_miss(cache: TrajectoryCache) -> None:
    with pytest.raises(CacheMissError):
        cache.fetch_weights(0)
    with pytest.raises(CacheMissError):
        cache.fetch_episode("e")


def test_an_invocation_is_wanted_while_the_learner_waits_for_it(cache: TrajectoryCache, other: TrajectoryCache) -> None:
    cache.expect(["a", "b"])
    assert cache.is_wanted("a")
    assert not other.is_wanted("a")
    cache.cancel("a")
    assert not cache.is_wanted("a")
    cache.forget(["b"])
    assert not cache.is_wanted("b")


def test_once_the_run_is_stopped_none_of_its_actors_is_wanted(
    cache: TrajectoryCache, other: TrajectoryCache, server_url: str, run_id: str
) -> None:
    actor = TrajectoryCache(server_url, run_id)
    for one in (cache, other):
        one.expect(["a", "b"])
    assert actor.is_wanted("a")
    cache.stop()
    assert not actor.is_wanted("a")
    assert not actor.is_wanted("b")
    cache.expect(["c"])
    assert not actor.is_wanted("c"), "not even one that starts later"
    assert other.is_wanted("a")
    cache.stop()
    actor.close()


def test_what_was_in_when_the_run_stopped_can_be_taken(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    cache.submit("a", b"x")
    cache.stop()
    assert cache.take(1.0) == ("a", b"x")


# What is left on the server


def fill(cache: TrajectoryCache) -> None:
    """Makes a key of every kind."""
    cache.publish_weights(1, b"w")
    cache.publish_episodes({"e": b"e"})
    cache.expect(["a", "b", "c"])
    cache.submit("a", b"x")
    cache.submit("b", b"y")
    cache.submit("stranger", b"z")
    cache.stop()


KEYS = {"weights:1", "episode:e", "invocations", "trajectory:a", "trajectory:b", "ready", "bytes", "late", "stop"}


def test_nothing_remains_of_a_run_and_nothing_is_missing_of_others(
    cache: TrajectoryCache, other: TrajectoryCache, raw: redis.Redis, run_id: str
) -> None:
    fill(cache)
    fill(other)
    raw.set("somebody-elses", 1, ex=60)
    assert keys_of(raw, run_id) == {f"{{{run_id}}}:{name}" for name in KEYS}
    before = {key for key in raw.scan_iter() if not key.startswith(f"{{{run_id}}}".encode())}
    cache.remove_run()
    assert set(raw.scan_iter()) == before
    assert other.fetch_weights(1) == b"w"
    assert other.take(1.0) == ("a", b"x")
    raw.delete("somebody-elses")


def test_everything_has_a_time_to_live(server_url: str, run_id: str, raw: redis.Redis) -> None:
    cache = TrajectoryCache(server_url, run_id, ttl_s=TTL_S)

    def without_ttl() -> dict[str, int]:
        found = {key: raw.ttl(key) for key in keys_of(raw, run_id)}
        return {key: ttl for key, ttl in found.items() if not 0 < ttl <= TTL_S}

    fill(cache)
    assert keys_of(raw, run_id) == {f"{{{run_id}}}:{name}" for name in KEYS}
    assert without_ttl() == {}
    cache.take(1.0)
    cache.cancel("c")
    assert without_ttl() == {}
    cache.forget(["a", "b", "c"])
    assert without_ttl() == {}
    cache.remove_run()
    cache.close()


def test_what_waits_is_bounded_and_taking_makes_room(server_url: str, run_id: str) -> None:
    cache = TrajectoryCache(server_url, run_id, bytes_max=100)
    cache.expect(["a", "b", "c", "d"])
    assert cache.submit("a", b"x" * 60) == ACCEPTED
    with pytest.raises(CacheFullError, match="100 bytes"):
        cache.submit("b", b"y" * 41)
    assert cache.submit("c", b"z" * 40) == ACCEPTED
    assert cache.take(1.0) == ("a", b"x" * 60)
    assert cache.submit("b", b"y" * 41) == ACCEPTED, "a refused trajectory may come again"
    assert [cache.take(1.0)[0] for _ in range(2)] == ["c", "b"]
    assert cache.submit("d", b"w" * 100) == ACCEPTED
    cache.forget(["a", "b", "c", "d"])
    cache.expect(["e"])
    assert cache.submit("e", b"v" * 100) == ACCEPTED, "forgetting makes room too"
    cache.remove_run()
    cache.close()


def test_a_server_without_memory_is_named(tcp_server: TcpServer, run_id: str) -> None:
    with redis.Redis(port=tcp_server.port) as raw:
        raw.config_set("maxmemory", 1)
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id)
    with pytest.raises(CacheFullError, match="out of memory"):
        cache.publish_weights(1, b"w" * 1000)
    cache.close()


# Connections


def errors_text(error: BaseException | None) -> str:
    """All that a traceback or a log could show of ``error``."""
    parts = []
    while error is not None:
        parts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def exercise(cache: TrajectoryCache) -> None:
    cache.ping()
    cache.publish_weights(1, b"w" * 100_000)
    assert cache.fetch_weights(1) == b"w" * 100_000
    cache.expect(["a"])
    assert cache.submit("a", b"x") == ACCEPTED
    assert cache.take(1.0) == ("a", b"x")
    cache.remove_run()
    cache.close()


@pytest.mark.parametrize("make", [
    pytest.param(lambda server, run: TrajectoryCache(server.default_url, run), id="password in the URL"),
    pytest.param(lambda server, run: TrajectoryCache(server.user_url, run), id="user and password in the URL"),
    pytest.param(lambda server, run: TrajectoryCache(server.url, run, username=USERNAME, password=USER_PASSWORD),
                 id="user and password as arguments"),
    pytest.param(lambda server, run: TrajectoryCache(server.url, run, password=PASSWORD), id="password as argument"),
])
def test_redis_urls_with_auth(
    tcp_server_with_auth: AuthServer, run_id: str, make: Callable[[AuthServer, str], TrajectoryCache]
) -> None:
    exercise(make(tcp_server_with_auth, run_id))


def test_rediss_urls_with_auth(tls_server: TlsServer, run_id: str) -> None:
    exercise(TrajectoryCache(tls_server.url, run_id))


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_server: TlsServer, run_id: str) -> None:
    cache = TrajectoryCache(tls_server.untrusting_url, run_id, connect_attempts=0)
    with pytest.raises(CacheUnavailableError, match="(?i)certificate"):
        cache.ping()
    cache.close()


@pytest.mark.parametrize("credentials", ["", ":wr0ng-secret@", "nobody:wr0ng-secret@", f"{USERNAME}:wr0ng-secret@"])
def test_a_wrong_password_is_refused_without_being_shown(
    tcp_server_with_auth: AuthServer, run_id: str, credentials: str
) -> None:
    url = tcp_server_with_auth.url.replace("redis://", f"redis://{credentials}")
    cache = TrajectoryCache(url, run_id, connect_attempts=0)
    with pytest.raises(CacheError, match=f"127.0.0.1:{tcp_server_with_auth.port}") as caught:
        cache.ping()
    assert "wr0ng-secret" not in errors_text(caught.value)
    cache.close()


@pytest.mark.parametrize("options", [{}, {"password": "s3cret"}, {"username": "me", "password": "s3cret"}], ids=str)
def test_a_dead_server_is_named_without_the_password(tcp_server: TcpServer, run_id: str, options: dict) -> None:
    tcp_server.stop()
    url = f"redis://me:s3cret@127.0.0.1:{tcp_server.port}"
    cache = TrajectoryCache(url, run_id, connect_attempts=0, **options)
    for call in (cache.ping, lambda: cache.submit("a", b"x"), lambda: cache.take(1.0), lambda: cache.fetch_weights(1)):
        with pytest.raises(CacheUnavailableError, match=f"127.0.0.1:{tcp_server.port}") as caught:
            call()
        assert "s3cret" not in errors_text(caught.value)
    cache.close()


def test_a_server_that_restarts_between_two_commands_is_met_again(tcp_server: TcpServer, run_id: str) -> None:
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id)
    cache.publish_weights(1, b"w")
    cache.expect(["a"])
    cache.submit("a", b"x")
    tcp_server.stop()
    tcp_server.start()
    with pytest.raises(CacheMissError):
        cache.fetch_weights(1)
    assert cache.submit("a", b"x") == LATE, "the new server knows neither the scripts nor the round"
    exercise(cache)


def test_a_command_waits_for_a_server_that_is_coming_back(tcp_server: TcpServer, run_id: str) -> None:
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id, connect_attempts=1000)
    cache.ping()
    tcp_server.stop()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(cache.publish_weights, 2, b"w")
        tcp_server.start()
        publishing.result(PATIENCE_S)
    assert cache.fetch_weights(2) == b"w"
    cache.close()


@pytest.mark.parametrize("url", [
    "http://me:s3cret@host", "me:s3cret@host:6379", "redis://:s3cret@host:port", "redis://me:s3/cret-s3cret@host",
    "redis://:s3cret#s3cret@host:6379", "rediss://:s3cret?s3cret@host", "redis://:s3cret@[::1",
    "redis://host:6379/0?password=s3cret&socket_timeout=soon",
])
def test_an_odd_url_is_refused_without_showing_its_password(url: str) -> None:
    try:
        cache = TrajectoryCache(url, "run")
    except CacheUnavailableError as error:
        assert "s3cret" not in str(error)
        assert "s3cret" not in errors_text(error.__cause__)
    else:
        cache.close()


@pytest.mark.parametrize("url", ["", "nonsense", "http://localhost:6379", "localhost:6379"])
def test_a_url_of_no_known_scheme_is_refused(url: str) -> None:
    with pytest.raises(CacheUnavailableError, match="redis://"):
        TrajectoryCache(url, "run")


# Passwords in URLs


@pytest.mark.parametrize(("url", "shown"), [
    ("redis://localhost:6379/0", "redis://localhost:6379/0"),
    ("redis://me@localhost:6379", "redis://me@localhost:6379"),
    ("redis://:pw@localhost:6379/2", "redis://:***@localhost:6379/2"),
    ("rediss://me:pw@host.example:6380/0?ssl_cert_reqs=none", "rediss://me:***@host.example:6380/0?ssl_cert_reqs=none"),
    ("redis://me:a@b@host", "redis://me:***@host"),
    ("redis://me:@host", "redis://me:***@host"),
    ("unix:///tmp/server.sock", "unix:///tmp/server.sock"),
    ("unix://me:pw@/tmp/server.sock?db=1", "unix://me:***@/tmp/server.sock?db=1"),
])
def test_only_the_password_is_replaced(url: str, shown: str) -> None:
    assert redacted(url) == shown


SECRET = "hUnt3r2"
TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=6)
USERS = st.text(string.ascii_letters, max_size=5)
HOSTS = st.sampled_from(["localhost", "127.0.0.1:6379", "[::1]:6380", "cache.example.com:port", "[broken", ""])
SCHEMES = st.sampled_from(["redis", "rediss", "unix", "http", "REDIS"])
TAILS = st.sampled_from(["", "/", "/0", "/0?db=1", "#there", "?ssl_cert_reqs=none"])


@given(SCHEMES, USERS, TEXT, TEXT, HOSTS, TAILS)
@example("redis", "", "", "/", "localhost", "")
@example("redis", "", "\t", "", "localhost", "")
@FUZZ
def test_no_part_of_a_password_is_shown(
    scheme: str, user: str, before: str, after: str, host: str, tail: str
) -> None:
    for password in (before + SECRET + after, quote(before, safe="") + SECRET + quote(after, safe="")):
        assert SECRET not in redacted(f"{scheme}://{user}:{password}@{host}{tail}")


@given(SCHEMES, USERS, TEXT, st.sampled_from(["localhost:6379", "[::1]:6380"]))
@FUZZ
def test_a_password_among_the_options_is_not_shown(scheme: str, user: str, before: str, host: str) -> None:
    password = quote(before, safe="") + SECRET
    assert SECRET not in redacted(f"{scheme}://{user}@{host}/0?db=1&password={password}&ssl_cert_reqs=none")


def test_redis_does_read_a_password_among_the_options(tcp_server_with_auth: AuthServer, run_id: str) -> None:
    """Why the test above matters."""
    exercise(TrajectoryCache(f"{tcp_server_with_auth.url}?password={PASSWORD}", run_id))


@given(st.text(max_size=40))
@FUZZ
def test_any_text_can_be_redacted(url: str) -> None:
    assert isinstance(redacted(url), str)
