"""Records curves of this machine for the tests of the search: ``python -m tests.gmi.record_curves``.

Measures samples per second and memory of one and two processes that each play several environments in turn. Each speed
is the best of five runs, spread out between all other measurements, to reduce disturbance by other processes.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from multiprocessing.synchronize import Barrier
from typing import Any

from lambda_actor.environments import make_environment
from lambda_actor.replay import processor
from lambda_actor.rollout import OpenEpisode, roll_out
from lambda_actor.trial import random_policy
from runtime.gmi.search import layouts
from tests.gmi.curves import FRAGMENT_STEPS, RECORDED

ACTORS, INSTANCES_MAX, REPEATS, SECONDS = 16, 2, 5, 1.0
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _play(environment_id: str, environments: int, ready: Barrier, answers: Any) -> None:
    """Plays fragments in turn in all environments until time is up."""
    all_of_them = [make_environment(environment_id, "none", {}) for _ in range(environments)]
    policy = random_policy(all_of_them[0])
    open_episodes: list[OpenEpisode | None] = [None] * environments

    def turn(round_index: int) -> None:
        for slot, environment in enumerate(all_of_them):
            open_episodes[slot] = roll_out(
                environment,
                policy,
                fragment_steps=FRAGMENT_STEPS,
                seed=1,
                slot=slot,
                round_index=round_index,
                open_episode=open_episodes[slot],
            ).open_episode

    turn(0)
    ready.wait()
    turns, started_s = 0, time.monotonic()
    while time.monotonic() < started_s + SECONDS:
        turns += 1
        turn(turns)
    answers.put(
        (
            turns * environments * FRAGMENT_STEPS / (time.monotonic() - started_s),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
        )
    )


def measured(environment_id: str, instances: int, environments: int) -> tuple[float, int]:
    """Returns samples per second of the slowest process and bytes of the largest."""
    spawning = multiprocessing.get_context("spawn")
    ready, answers = spawning.Barrier(instances), spawning.Queue()
    processes = [
        spawning.Process(target=_play, args=(environment_id, environments, ready, answers))
        for _ in range(instances)
    ]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    return min(speed for speed, _ in found), max(memory for _, memory in found)


def main() -> None:
    points = [
        (environment_id, instances, environments)
        for environment_id in ("Hopper-v5", "CartPole-v1")
        for instances, counts in layouts(ACTORS, INSTANCES_MAX)
        for environments in counts
    ]
    all_measured = [[measured(*point) for point in points] for _ in range(REPEATS)]
    curves: dict[str, list[list[float]]] = {}
    for (environment_id, *layout), repeats in zip(
        points, zip(*all_measured, strict=True), strict=True
    ):
        speeds, memories = zip(*repeats, strict=True)
        curves.setdefault(environment_id, []).append([*layout, round(max(speeds)), max(memories)])
    RECORDED.write_text(
        json.dumps(
            {
                "command": "python -m tests.gmi.record_curves",
                "date": time.strftime("%Y-%m-%d"),
                "processor": processor(),
                "actors": ACTORS,
                "columns": ["instances", "environments", "samples_per_s", "memory_bytes"],
                "curves": curves,
            },
            indent=1,
        )
        .replace("\n   ", "")
        .replace("\n  ]", "]")
        + "\n"
    )


if __name__ == "__main__":
    main()
