"""Runs two sides with several seeds, evaluates their last policies in the same way, and records the results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.parity.estimates import METHOD, compared, smoothed, training_return_mean
from benchmarks.parity.evaluation import (
    EPISODES,
    EVALUATION_SEED,
    our_policy,
    peer_policy,
    returns_of,
)
from benchmarks.parity.evaluation import returns_of_chance as chance_of
from benchmarks.parity.picture import MEASURES, draw
from benchmarks.provenance import ROOT, origin
from runtime.records.estimates import caution
from runtime.records.files import write_atomically

SIDES = ("ours", "peer")
RESULTS = ROOT / "benchmarks" / "results"
DIFFERENCES = {
    name: tuple(parts)
    for name, parts in yaml.safe_load(
        Path(__file__).with_name("differences.yaml").read_text()
    ).items()
}
"""Differences between the two sides, by the name of the results."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LIMIT_S, _GRACE_S = 3600.0, 30.0
"""A run is ended after this, and killed after that."""
_WALL_CLOCK = "training_s and steps_per_s may have been taken with other runs beside them: no measurements of speed"


@dataclass(frozen=True)
class Benchmark:
    """One comparison.

    Attributes:
        name: Name of the script and of its results.
        experiment: Our experiment file, relative to the repository.
        peer_script: The peer's script; it takes ENVIRONMENT_ID, --seed, --steps and --out.
        titles: Titles of our side and the peer's.
        differences: Differences between the two sides, for the record.
        peer: The peer's name in the files of its runs.
        peer_arguments: Additional arguments of the peer's script.
        our_details: Returns additional numbers of one of our runs from its rows.
    """

    name: str
    experiment: str
    peer_script: str
    titles: tuple[str, str]
    environments: tuple[str, ...]
    steps: int
    seeds: int
    differences: tuple[str, ...]
    peer: str = "peer"
    peer_arguments: tuple[str, ...] = ()
    our_details: Callable[[Sequence[dict[str, Any]]], dict[str, Any]] = lambda _: {}


@dataclass(frozen=True)
class Job:
    """One run of one side."""

    side: str
    environment_id: str
    seed: int
    name: str


def main(benchmark: Benchmark, description: str, arguments: Sequence[str] | None = None) -> int:
    options = _options(description, arguments)
    names = {"ours": "ours", "peer": benchmark.peer}
    jobs = [
        Job(side, environment_id, seed, f"{names[side]}-{environment_id}-{seed}")
        for seed in range(benchmark.seeds)
        for environment_id in benchmark.environments
        for side in SIDES
    ]
    if options.summarise:
        _summarise(benchmark, jobs, options)
        return 0
    if options.peer_python is None:
        raise SystemExit(
            "--peer-python is needed: the Python of the environment where the peer is installed"
        )
    options.work.mkdir(parents=True, exist_ok=True)
    open_jobs = [job for job in jobs if _finished(job, options.work) is None]
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            finished = list(pool.map(lambda job: _has_finished(benchmark, job, options), open_jobs))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    print(f"{len(jobs) - finished.count(False)} of {len(jobs)} runs are finished", flush=True)
    return 0 if all(finished) else 1


def _options(description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder of finished runs, a JSON file each; these are not run again",
    )
    parser.add_argument("--peer-python", type=Path, help="Python of the environment with the peer")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at once, of one thread each (default: %(default)s)",
    )
    parser.add_argument(
        "--summarise", action="store_true", help="write the results of finished runs"
    )
    return parser.parse_args(arguments)


# Running


def _has_finished(benchmark: Benchmark, job: Job, options: argparse.Namespace) -> bool:
    """Runs a job. Returns whether it succeeded."""
    started_s = time.monotonic()
    try:
        result = _run(benchmark, job, options)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(
            f"{job.name}: {type(error).__name__}: {error}; see {options.work / job.name}.log",
            flush=True,
        )
        return False
    write_atomically(options.work / f"{job.name}.json", json.dumps(result, indent=1).encode())
    (options.work / f"{job.name}.log").unlink()
    print(
        f"{job.name}: {result['evaluation_return_mean']:.1f} after {time.monotonic() - started_s:.0f} s",
        flush=True,
    )
    return True


def _run(benchmark: Benchmark, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates. Deletes the remains of an earlier attempt."""
    out = options.work / "unfinished" / job.name
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    if job.side == "ours":
        command = [
            sys.executable,
            "-m",
            "runtime",
            "train",
            benchmark.experiment,
            "--out",
            str(out.resolve()),
        ]
        for setting in (
            f"environment.id={job.environment_id}",
            f"seed={job.seed}",
            f"stop.max_steps={benchmark.steps}",
        ):
            command += ["--set", setting]
    else:
        command = [
            str(options.peer_python.absolute()),
            benchmark.peer_script,
            job.environment_id,
            "--seed",
            str(job.seed),
            "--steps",
            str(benchmark.steps),
            "--out",
            str(out.resolve()),
            *benchmark.peer_arguments,
        ]
    _train(command, options.work / f"{job.name}.log")
    told, policy = (
        _ours(benchmark, out)
        if job.side == "ours"
        else (json.loads((out / "run.json").read_text()), peer_policy(out / "policy.npz"))
    )
    returns = returns_of(policy, job.environment_id)
    shutil.rmtree(out)
    return {
        "side": job.side,
        "environment_id": job.environment_id,
        "seed": job.seed,
        "cores": len(os.sched_getaffinity(0)),
        "evaluation_return_mean": float(np.mean(returns)),
        "evaluation_returns": returns,
        "steps_per_s": told["env_steps"] / told["training_s"],
        **told,
    }


def _train(command: Sequence[str], log: Path) -> None:
    """Raises: subprocess.SubprocessError: It failed, or took longer than allowed."""
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **_ONE_THREAD}, stdout=sink, stderr=sink
        ) as process,
    ):
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            # SIGTERM first, so that it ends its own child processes.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
            raise
    if status:
        raise subprocess.CalledProcessError(status, command)


def _ours(benchmark: Benchmark, out: Path) -> tuple[dict[str, Any], Any]:
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    told = {
        "env_steps": rows[-1]["env_steps_total"],
        "training_s": sum(row["round_s"] for row in rows),
        "curve": [
            {
                "env_steps": row["env_steps_total"],
                "episodes": row["episodes_finished"],
                "return_mean": row["episode_return_mean"],
            }
            for row in rows
        ],
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "gymnasium", "mujoco")},
        },
        **benchmark.our_details(rows),
    }
    return told, our_policy(out / "policy.safetensors")


def _finished(job: Job, work: Path) -> dict[str, Any] | None:
    """Returns a job's result; None if it is not finished."""
    path = work / f"{job.name}.json"
    return json.loads(path.read_text()) if path.exists() else None


# Recording


def _summarise(benchmark: Benchmark, jobs: Sequence[Job], options: argparse.Namespace) -> None:
    """Writes the benchmark's JSON file and picture, from the seeds that have finished everywhere."""
    found = {job: _finished(job, options.work) for job in jobs}
    seeds = [
        seed
        for seed in range(benchmark.seeds)
        if all(found[job] is not None for job in jobs if job.seed == seed)
    ]
    if not seeds:
        raise SystemExit(f"{options.work}: no seed is finished on both sides in all environments")
    results = [
        result | {"training_return_mean": training_return_mean(result["curve"])}
        for job, result in found.items()
        if job.seed in seeds
    ]
    chance = {
        environment_id: float(np.mean(chance_of(environment_id)))
        for environment_id in benchmark.environments
    }
    statistics = {
        measure: compared(
            *(
                {
                    environment_id: _scores(results, side, environment_id, measure)
                    for environment_id in benchmark.environments
                }
                for side in SIDES
            ),
            chance,
        )
        for measure in MEASURES
    }
    record = {
        **origin(
            " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *benchmark.peer_arguments])
        ),
        "steps": benchmark.steps,
        "sides": dict(zip(SIDES, benchmark.titles, strict=True)),
        "versions": _versions(results),
        "seeds": seeds,
        "seeds_left_out": [seed for seed in range(benchmark.seeds) if seed not in seeds],
        "caution": caution(len(seeds)),
        "evaluation": f"of the last policy: {EPISODES} whole episodes, best actions, start states "
        f"{EVALUATION_SEED} to {EVALUATION_SEED + EPISODES - 1}, the same for all",
        "training_return_mean": "mean height of the learning curve, of the returns of training episodes",
        "method": METHOD,
        "statistics": statistics,
        "differences": list(benchmark.differences),
        "wall_clock": _WALL_CLOCK,
    }
    (RESULTS / f"{benchmark.name}.json").write_text(_text(record, results))
    draw(RESULTS / f"{benchmark.name}.png", results, statistics, titles=benchmark.titles)
    print(json.dumps(statistics, indent=2))


def _text(record: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """Returns the record as JSON, with a line for each run."""
    lines = []
    for result in results:
        steps, means = smoothed(result["curve"], result["env_steps"])
        curve = [
            [round(step), round(mean, 1)]
            for step, mean in zip(steps, means, strict=True)
            if np.isfinite(mean)
        ]
        lines.append(
            json.dumps(
                {key: value for key, value in result.items() if key not in ("curve", "versions")}
                | {
                    "evaluation_returns": [
                        round(value, 2) for value in result["evaluation_returns"]
                    ],
                    "curve": curve,
                }
            )
        )
    return (
        json.dumps(record, indent=2)[:-2]
        + ',\n  "runs": [\n    '
        + ",\n    ".join(lines)
        + "\n  ]\n}\n"
    )


def _scores(
    results: Sequence[dict[str, Any]], side: str, environment_id: str, measure: str
) -> np.ndarray:
    return np.array(
        [
            result[measure]
            for result in results
            if (result["side"], result["environment_id"]) == (side, environment_id)
        ]
    )


def _versions(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Raises: SystemExit: Runs of one side were made with different ones."""
    versions: dict[str, Any] = {}
    for result in results:
        if versions.setdefault(result["side"], result["versions"]) != result["versions"]:
            raise SystemExit(
                f"runs of {result['side']} were made with different versions: {versions[result['side']]} "
                f"and {result['versions']}"
            )
    return versions
