"""CPU time that the Lambda fleet, boto3 included, takes on the learner for each invocation.

    python benchmarks/lambda_fleet.py [ACTORS]

A process of its own answers every invocation after the same delay, so that all ACTORS (1,000) wait at once. Plain HTTP:
what TLS adds is not in it. Prints JSON; keep it under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import boto3  # noqa: E402
import botocore  # noqa: E402

from benchmarks.provenance import commit_of  # noqa: E402
from runtime.fleet.aws_lambda import LambdaFleet  # noqa: E402
from runtime.ports.fleet import Invocation  # noqa: E402

ARN = "arn:aws:lambda:us-east-1:123456789012:function:actors:live"
DELAY_S, REPEATS, TIMEOUT_S = 3.0, 5, 60.0
EVENT = {"run_id": "benchmark", "cache_url": "rediss://cache.example:6380", "environment_id": "Hopper-v5",
         "fragment_steps": 256, "policy_version": 1, "seed": 0, "round_index": 1, "slot": 0, "episode_id": ""}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one connection's invocations, each after DELAY_S, until the client hangs up."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            event = json.loads(await reader.readexactly(int(head.partition("content-length:")[2].split()[0])))
            await asyncio.sleep(DELAY_S)
            log = base64.b64encode(b"REPORT RequestId: r1\tDuration: 9.10 ms\tBilled Duration: 10 ms\t").decode()
            body = json.dumps({"invocation_id": event["invocation_id"], "status": "accepted"})
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                         f"x-amzn-RequestId: r1\r\nX-Amz-Log-Result: {log}\r\n\r\n{body}".encode())
            await writer.drain()
    writer.close()


async def serve() -> None:
    """Serves until standard input closes; prints the port."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def measure(actors: int) -> dict[str, float]:
    """CPU and wall time of rounds of ``actors`` on one fleet; the first one also connects and starts the threads."""
    fleet = LambdaFleet(ARN, timeout_s=TIMEOUT_S, concurrency=actors)
    cpu_ms, wall_s = [], []
    for round_index in range(REPEATS + 1):
        started_cpu_s, started_s = time.process_time(), time.perf_counter()
        ids = [f"r{round_index}-{slot}" for slot in range(actors)]
        fleet.start([Invocation(one, {**EVENT, "invocation_id": one}) for one in ids])
        outcomes = []
        while len(outcomes) < actors:
            outcomes += fleet.wait(TIMEOUT_S)
        assert {outcome.status for outcome in outcomes} == {"ok"}
        cpu_ms.append((time.process_time() - started_cpu_s) * 1000 / actors)
        wall_s.append(time.perf_counter() - started_s)
    fleet.close()
    return {"first_round_cpu_ms_per_invocation": round(cpu_ms[0], 3),
            "cpu_ms_per_invocation_median": round(statistics.median(cpu_ms[1:]), 3),
            "cpu_ms_per_invocation_max": round(max(cpu_ms[1:]), 3),
            "round_beyond_delay_s_median": round(statistics.median(wall_s[1:]) - DELAY_S, 3)}


def resident_mib() -> int:
    """Largest so far; 0 where /proc is missing."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)


def main(actors: int) -> None:
    stub = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.environ.update(AWS_ENDPOINT_URL_LAMBDA=f"http://127.0.0.1:{int(stub.stdout.readline())}",
                      AWS_ACCESS_KEY_ID="benchmark", AWS_SECRET_ACCESS_KEY="benchmark")
    before_mib = resident_mib()
    result = measure(actors)
    stub.communicate()
    print(json.dumps({
        "command": f"python benchmarks/lambda_fleet.py {actors}", "commit": commit_of(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "boto3": boto3.__version__,
                     "botocore": botocore.__version__},
        "delay_s": DELAY_S, **result, "memory_mib_of_threads_and_connections": resident_mib() - before_mib,
    }, indent=2))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(serve())
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("actors", nargs="?", type=int, default=1000, help="default: %(default)s")
        main(parser.parse_args().actors)
