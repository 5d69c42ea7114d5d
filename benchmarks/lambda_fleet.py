"""Measures the Lambda fleet's CPU time on the learner per invocation, boto3 included.

    python benchmarks/lambda_fleet.py [ACTORS]

A separate process answers every invocation after the same delay, so that all ACTORS (1,000) wait at once. It uses plain
HTTP, so the cost of TLS is missing. Prints JSON; keep it under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import platform
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import boto3  # noqa: E402
import botocore  # noqa: E402

from benchmarks.lambda_stub import ARN, serve, stand_in  # noqa: E402
from benchmarks.provenance import origin  # noqa: E402
from runtime.fleet.aws_lambda import LambdaFleet  # noqa: E402
from runtime.ports.fleet import Invocation  # noqa: E402

DELAY_S, REPEATS, TIMEOUT_S = 3.0, 5, 60.0
EVENT = {
    "run_id": "benchmark",
    "cache_url": "rediss://cache.example:6380",
    "environment_id": "Hopper-v5",
    "fragment_steps": 256,
    "policy_version": 1,
    "seed": 0,
    "round_index": 1,
    "slot": 0,
    "episode_id": "",
}


def measure(actors: int) -> dict[str, float]:
    """Returns CPU and wall time of rounds of ``actors`` on one fleet. The first also connects and starts threads."""
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
    return {
        "first_round_cpu_ms_per_invocation": round(cpu_ms[0], 3),
        "cpu_ms_per_invocation_median": round(statistics.median(cpu_ms[1:]), 3),
        "cpu_ms_per_invocation_max": round(max(cpu_ms[1:]), 3),
        "round_beyond_delay_s_median": round(statistics.median(wall_s[1:]) - DELAY_S, 3),
    }


def resident_mib() -> int:
    """Returns the process's peak so far; 0 if /proc is missing."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)


def main(actors: int) -> None:
    with stand_in(__file__):
        before_mib = resident_mib()
        result = measure(actors)
    print(
        json.dumps(
            {
                **origin(f"python benchmarks/lambda_fleet.py {actors}"),
                "versions": {
                    "python": platform.python_version(),
                    "boto3": boto3.__version__,
                    "botocore": botocore.__version__,
                },
                "delay_s": DELAY_S,
                **result,
                "memory_mib_of_threads_and_connections": resident_mib() - before_mib,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        log = base64.b64encode(
            b"REPORT RequestId: r1\tDuration: 9.10 ms\tBilled Duration: 10 ms\t"
        ).decode()
        asyncio.run(
            serve(DELAY_S, lambda event: lambda: "accepted", f"X-Amz-Log-Result: {log}\r\n")
        )
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument(
            "actors", nargs="?", type=int, default=1000, help="default: %(default)s"
        )
        main(parser.parse_args().actors)
