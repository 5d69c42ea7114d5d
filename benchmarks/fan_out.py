"""Measures how a round's time and the learner's costs grow, from 8 to 1,000 actors.

    python benchmarks/fan_out.py [PICTURE]

It measures the whole path except for the actors themselves: publishing weights, opening doors, invocations over HTTP by
the Lambda fleet, and for each answer taking the trajectory from a real cache, decoding and checking it, then making
one batch. A separate process plays Lambda: it answers each invocation after 2 or 5 seconds, having submitted a
trajectory of Hopper's 256 steps. All actors end at once, which is the worst case. It uses plain HTTP, so the cost of
TLS is missing. Prints JSON and draws PICTURE. Keep both under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import redis  # noqa: E402

from benchmarks.provenance import origin  # noqa: E402
from lambda_actor import wire  # noqa: E402
from lambda_actor.cache import TrajectoryCache  # noqa: E402
from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.handler import trajectory_fields  # noqa: E402
from lambda_actor.rollout import roll_out  # noqa: E402
from lambda_actor.trial import random_policy, random_weights  # noqa: E402

ACTORS = (8, 32, 100, 250, 500, 1000)
DELAYS_S = (2.0, 5.0)
REPEATS = 10
STEPS, TIMEOUT_S = 256, 60.0
ENVIRONMENT_ID = "Hopper-v5"
ARN = "arn:aws:lambda:us-east-1:123456789012:function:actors:live"
EVENT: dict[str, Any] = {
    "run_id": "fan-out",
    "policy_version": 0,
    "fragment_steps": STEPS,
    "round_index": 1,
    "environment_id": ENVIRONMENT_ID,
    "seed": 0,
    "slot": 0,
    "episode_id": "",
}


def encoder() -> Callable[[dict[str, Any]], bytes]:
    """Returns a function from an invocation's event to its trajectory, encoded. All have the same steps."""
    environment = make_environment(ENVIRONMENT_ID)
    fragment = roll_out(
        environment, random_policy(environment), fragment_steps=STEPS, seed=0, round_index=1, slot=0
    )
    return lambda event: wire.encode(fragment.kind, trajectory_fields(event, fragment))


async def play_lambda(cache_url: str, delay_s: float) -> None:
    """Prints its port, and answers each invocation after the delay, when it has submitted a trajectory.

    Ends when standard input closes.
    """
    encoded, cache = encoder(), TrajectoryCache(cache_url, EVENT["run_id"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split()[0])
                event = json.loads(await reader.readexactly(length))
                due_s = time.monotonic() + delay_s
                name, trajectory = event["invocation_id"], encoded(event)
                await asyncio.sleep(due_s - time.monotonic())
                status = cache.submit(name, trajectory)
                body = json.dumps({"invocation_id": name, "status": status})
                writer.write(
                    f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                    f"x-amzn-RequestId: r1\r\n\r\n{body}".encode()
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


class Settled:
    """A fake meter."""

    spent_usd = 0.0

    def settle(self, work: object, outcome: object, **moved_bytes: int) -> float:
        return 0.0


class Silent:
    """Fake events; any is a failure."""

    def append(self, kind: str, **fields: object) -> None:
        raise AssertionError(f"{kind}: {fields}")


def measure(actors: int, delay_s: float, cache_url: str) -> dict[str, Any]:
    from runtime.fleet.actors import ActorSpec
    from runtime.fleet.aws_lambda import LambdaFleet
    from runtime.fleet.episodes import OpenEpisodes
    from runtime.fleet.failures import Failures, Patience
    from runtime.fleet.flight import Flight, Group
    from runtime.learner.batch import assemble_batch
    from runtime.money.work import ACTOR, Work

    spaces = make_environment(ENVIRONMENT_ID).spaces
    weights, server = random_weights(spaces), redis.Redis.from_url(cache_url)
    fleet = LambdaFleet(ARN, timeout_s=TIMEOUT_S, concurrency=actors)
    cache = TrajectoryCache(cache_url, EVENT["run_id"])
    events: Any = Silent()
    failures = Failures(events, OpenEpisodes(events), Patience())
    flight = Flight(fleet, cache, Settled(), failures, events, lambda: None)  # type: ignore[arg-type]
    spec = ActorSpec(event=EVENT, spaces=spaces, timeout_s=TIMEOUT_S, weights_bytes=len(weights))
    cache_bytes = stored_bytes(cache, server, actors)
    found: dict[str, list[float]] = {name: [] for name in ("round_s", "cpu_ms")}
    for number in range(REPEATS + 1):
        started_cpu_s, started_s = time.process_time(), time.perf_counter()
        flight.publish(0, weights)
        group = Group(f"r{number}")
        works = [Work(ACTOR, slot) for slot in range(actors)]
        flight.start(group, spec, works, range(actors))
        flight.finish(time.monotonic() + TIMEOUT_S, "the time-out passed")
        assert len(group.came) == actors, group.tally.last_error
        collected_s = time.perf_counter()
        assemble_batch(sorted(group.came, key=lambda one: int(one["slot"])), spaces)
        if number > 0:  # the first connects and starts the threads
            found["round_s"].append(round(collected_s - started_s, 4))
            found["cpu_ms"].append(1000 * (time.process_time() - started_cpu_s) / actors)
    fleet.close()
    cache.close()
    beyond_s = statistics.median(found["round_s"]) - delay_s
    return {
        "delay_s": delay_s,
        "actors": actors,
        "round_s": found["round_s"],
        "collect_beyond_the_actors_s": round(beyond_s, 4),
        "learner_cpu_ms_per_trajectory": round(statistics.median(found["cpu_ms"]), 3),
        "cache_kib_if_none_were_taken": round(cache_bytes / 1024),
    }


def stored_bytes(cache: TrajectoryCache, server: redis.Redis, actors: int) -> int:
    """Returns the bytes that this number of trajectories takes in the cache if the learner takes none meanwhile."""
    encoded = encoder()
    names = [f"r-{slot}" for slot in range(actors)]
    messages = {name: encoded({**EVENT, "invocation_id": name}) for name in names}
    empty = server.info("memory")["used_memory"]
    cache.expect(messages)
    for invocation_id, message in messages.items():
        cache.submit(invocation_id, message)
    stored = server.info("memory")["used_memory"]
    for invocation_id in messages:
        cache.take(invocation_id)
    return int(stored - empty)


def rounds(actors: int, delay_s: float) -> dict[str, Any]:
    from runtime.fleet.cache_server import EmbeddedServer

    with (
        closing(EmbeddedServer()) as server,
        subprocess.Popen(
            [sys.executable, __file__, "--serve", server.url, str(delay_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as stub,
    ):
        assert stub.stdout is not None
        os.environ.update(
            AWS_ENDPOINT_URL_LAMBDA=f"http://127.0.0.1:{int(stub.stdout.readline())}",
            AWS_ACCESS_KEY_ID="benchmark",
            AWS_SECRET_ACCESS_KEY="benchmark",
        )
        return measure(actors, delay_s, server.url)


TITLES = {
    "collect_beyond_the_actors_s": "Collecting, seconds beyond the actors' own",
    "learner_cpu_ms_per_trajectory": "Learner, CPU-ms per trajectory",
    "cache_kib_if_none_were_taken": "Cache, KiB if none were taken",
}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from benchmarks.drawing import panels, saved

    figure, axes = panels(3, (12, 3.6))
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        axis.plot([row["actors"] for row in rows], [row[name] for row in rows], marker="o")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ACTORS, list(map(str, ACTORS)))
        axis.set_ylim(bottom=0)
        axis.set_xlabel("actors of a round")
        axis.set_title(title, fontsize=10)
    saved(figure, path)


def main(picture: Path | None) -> None:
    rows = [rounds(actors, delay_s) for delay_s in DELAYS_S for actors in ACTORS]
    print(
        json.dumps(
            {
                **origin("python benchmarks/fan_out.py"),
                "load": round(os.getloadavg()[0], 1),
                "rounds": rows,
            },
            indent=2,
        )
    )
    if picture:
        draw([row for row in rows if row["delay_s"] == DELAYS_S[0]], picture)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(play_lambda(sys.argv[2], float(sys.argv[3])))
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument(
            "picture", nargs="?", type=Path, help="file of the picture (default: none)"
        )
        main(parser.parse_args().picture)
