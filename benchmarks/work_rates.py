"""Writes papers/units.json: CPU seconds of each unit of work, for the workloads of all shipped experiments.

    python benchmarks/work_rates.py [--repeats 5]

papers/pricing.py prices rows by it. ``init_s`` is an actor's cold start, ``invocation_s`` an invocation of whatever
length, ``step_s`` a step with its policy, ``evaluated_step_s`` one of an evaluation, ``gradient_step_s`` a gradient
step of whatever size, ``sample_s`` a sample of one, and ``product_sample_s`` a sample of a Hessian-vector product.
Values are median CPU seconds of one thread. Other load makes them longer, so run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import commit_of, processor  # noqa: E402
from lambda_actor import wire  # noqa: E402
from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.handler import handler  # noqa: E402
from lambda_actor.inline import from_text, to_text  # noqa: E402
from runtime import learner as learners  # noqa: E402
from runtime.detector.convexity import ConvexityDetector  # noqa: E402
from runtime.experiment.loading import load_experiment  # noqa: E402
from runtime.experiment.resolved import ResolvedExperiment  # noqa: E402
from runtime.learner.batch import assemble_batch  # noqa: E402
from runtime.training.evaluation import Evaluator  # noqa: E402
from runtime.training.preflight import fit  # noqa: E402
from runtime.training.trial import try_experiment  # noqa: E402

TABLE_PATH = ROOT / "papers" / "units.json"
EPISODES = 3
START = """
import json, sys, time
from lambda_actor.handler import handler
from lambda_actor.environments import make_environment
make_environment(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
print(time.process_time())
"""


def workload(experiment: ResolvedExperiment) -> str:
    """Returns the workload's name, made of all settings that determine the time of a unit of work."""
    environment = experiment.environment
    options = f" {json.dumps(environment.options)}" if environment.options else ""
    return (
        f"{environment.id}{options} {environment.preprocessing} {experiment.network.architecture} "
        f"{experiment.algorithm.kind}"
    )


def shipped() -> list[Path]:
    """Returns all experiment files, except for bases that others extend."""
    return [
        path
        for path in sorted((ROOT / "experiments").glob("**/*.yaml"))
        if path.parent.name != "bases"
    ]


def units_once(
    experiment: ResolvedExperiment, repeat: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Returns the seconds of each unit of an experiment's work, measured once."""
    section, algorithm, settings = (
        experiment.environment,
        experiment.algorithm,
        experiment.detector,
    )
    environment = make_environment(section.id, section.preprocessing, section.options)
    spaces = environment.spaces
    # Pixels take a hundred times longer than vectors.
    samples, minibatches, steps = (
        (256, (32, 256), 32) if spaces.is_pixels else (2048, (64, 1024), 64)
    )

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        started_s = clock()
        found = work()
        return clock() - started_s, found

    def made(minibatch: int) -> Any:
        changed = algorithm.model_copy(update={"minibatch_steps": minibatch})
        spec = learners.LearnerSpec(
            changed, spaces, experiment.network.architecture, experiment.seed
        )
        return learners.make_learner(spec, device="cpu")

    small, large = map(made, minibatches)
    weights = small.weights()
    event = {
        **dict.fromkeys(("cache_url", "cache_credential", "episode_id"), ""),
        "run_id": f"units {section.id}",
        "cache_ttl_s": 60,
        "environment_id": section.id,
        "environment_options": section.options,
        "preprocessing": section.preprocessing,
        "truncate_at_fragment": section.truncate_at_fragment,
        "policy_version": small.policy_version,
        "seed": experiment.seed,
        "round_index": repeat,
        "weights": to_text(weights),
        "episode": "",
    }

    def fragment(length: int, slot: int = 0) -> bytes:
        own = {"fragment_steps": length, "slot": slot, "invocation_id": f"r{repeat}-{slot}"}
        return from_text(handler(event | own, None)["trajectory"])

    arguments = [section.id, section.preprocessing, json.dumps(section.options)]
    started = subprocess.run(
        [sys.executable, "-c", START, *arguments], check=True, capture_output=True, text=True
    )
    fragment(1)  # Makes the environment, if it is not there yet.
    long = experiment.actor.fragment_steps
    few = max(1, long // 8)
    (few_s, _), (all_s, _) = timed(lambda: fragment(few)), timed(lambda: fragment(long))
    step_s = (all_s - few_s) / (long - few)
    evaluator = Evaluator(environment, EPISODES, seed=repeat)
    evaluate_s, evaluation = timed(lambda: evaluator(weights))
    kind = wire.Kind.FRAME_TRAJECTORY if spaces.is_pixels else wire.Kind.TRAJECTORY
    batch = assemble_batch(
        [wire.decode(fragment(steps, slot), kind) for slot in range(samples // steps)],
        spaces,
        clip_rewards=section.clip_rewards,
    )
    (small_s, update), (large_s, _) = (
        timed(lambda one=one: one.update(batch, progress=0.0)) for one in (small, large)
    )
    small_steps, large_steps = (
        algorithm.passes * math.ceil(batch.env_steps / minibatch) for minibatch in minibatches
    )
    gradient_step_s = (small_s - large_s) / (small_steps - large_steps)
    detector = ConvexityDetector(
        settings.objective,
        min(settings.subset_size, 64 if spaces.is_pixels else 2048),
        settings.lanczos_steps,
        seed=repeat,
    )
    subset = detector.select(update.samples)
    problem = small.curvature_problem(settings.objective, subset)
    detect_s, curvature = timed(lambda: detector.measure(problem))
    found = {
        "init_s": float(started.stdout.split()[-1]),
        "step_s": step_s,
        "invocation_s": all_s - long * step_s,
        "evaluated_step_s": evaluate_s / sum(evaluation.lengths),
        "gradient_step_s": gradient_step_s,
        "sample_s": (large_s - large_steps * gradient_step_s)
        / (algorithm.passes * batch.env_steps),
        "product_sample_s": detect_s / (max(1, curvature.products) * len(subset.advantages)),
    }
    return {unit: max(0.0, seconds) for unit, seconds in found.items()}


def measured(
    experiment: ResolvedExperiment, repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Returns the median seconds of each unit of an experiment's work. The first time warms up."""
    found = [units_once(experiment, repeat, clock) for repeat in range(repeats + 1)][1:]
    return {unit: median(one[unit] for one in found) for unit in found[0]}


def main() -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    workloads: dict[str, dict[str, float]] = {}
    for path in shipped():
        experiment = load_experiment(path).resolved()
        fitted = fit(experiment, try_experiment(experiment))
        if (name := workload(fitted)) not in workloads:
            units = measured(fitted, repeats)
            workloads[name] = {unit: float(f"{units[unit]:.4g}") for unit in units}
            print(name, workloads[name], flush=True)
    table = {
        "as_of": time.strftime("%Y-%m-%d"),
        "commit": commit_of(),
        "machine": f"one core of {processor()}",
        "workloads": dict(sorted(workloads.items())),
    }
    TABLE_PATH.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
