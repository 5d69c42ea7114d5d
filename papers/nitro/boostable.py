"""Boosts single rounds of short trainings: ``python -m papers.nitro.boostable STUDY [--jobs 2]``.

Makes the r4 studies of papers/protocol.yaml, which says what an arm's keys mean. Adds a seed at a time to
papers/results/STUDY.json, and continues where it ended. A run's own rollout, learner and detector work in one process.

Paper: Nitro §2.2, §2.3, §5.2, §5.3; Figs. 2, 3, 4, 7, 8, 9.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from pyhessian import hessian

from benchmarks.provenance import ROOT, commit_of
from lambda_actor.environments import make_environment
from lambda_actor.policy import Policy
from lambda_actor.rollout import Fragment, Request, roll_out_together
from papers.estimates import SEEDS
from papers.study import recorded, store, studies
from runtime.detector.convexity import ConvexityDetector
from runtime.experiment.loading import load_experiment
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import assemble_batch
from runtime.learner.interfaces import Batch, DetectorSamples
from runtime.records.state import State
from runtime.training.evaluation import Evaluator

PROGRAM = "papers/nitro/boostable.py"
"""Its name in the protocol."""
SURFACE_EPISODES = 4
"""Episodes at each point, from the same start states everywhere. Not in the paper."""
REPLAY_SEEDS = 1_000
"""Lowest seed of a replay's actors. Trainings have smaller ones."""


@dataclass(frozen=True)
class RoundStart:
    """A training before a round.

    Attributes:
        samples: The last update's; None in the first round.
        ratio: R of the policy that this round's actors use, on ``samples``; None if it is undefined.
    """

    round_index: int
    learner: State
    samples: DetectorSamples | None
    ratio: float | None


class BoostableTraining:
    """A training whose rounds can be played again.

    Attributes:
        learner: Trains the policy.
        seed: The experiment's.
    """

    def __init__(self, file: str, settings: Mapping[str, Any], seed: int, actors_max: int) -> None:
        """Begins a training on one thread.

        Args:
            file: The experiment, relative to the repository. Its episodes end with their fragments.
            settings: What differs from the file.
            actors_max: Most actors of a round.
        """
        torch.set_num_threads(1)
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        resolved = load_experiment(ROOT / file, [*overrides, f"seed={seed}"]).resolved()
        section = resolved.environment
        self._environments = [
            make_environment(section.id, section.preprocessing, section.options)
            for _ in range(actors_max)
        ]
        self._spaces = self._environments[0].spaces
        fitted = resolved.fitted(self._spaces, preprocessing="none")
        network = fitted.network
        spec = LearnerSpec(
            fitted.algorithm,
            self._spaces,
            network.architecture,
            seed,
            initial_std=network.initial_std,
            initialisation=network.initialisation,
        )
        self.learner = cast("ActorCritic[Any]", make_learner(spec, device="cpu"))
        self.seed = seed
        self._fragment_steps = fitted.actor.fragment_steps
        # One actor's samples, so that R does not depend on the number of actors.
        self._detector = ConvexityDetector(
            fitted.detector.objective,
            self._fragment_steps,
            fitted.detector.lanczos_steps,
            seed=seed,
        )

    def start(self, round_index: int, samples: DetectorSamples | None) -> RoundStart:
        """Returns the state before a round, with R on the last update's samples."""
        ratio = None if samples is None else self.ratio(samples)
        return RoundStart(round_index, self.learner.get_state(), samples, ratio)

    def play(self, round_index: int, actors: int, seed: int) -> list[Fragment]:
        """Returns the fragments of a round."""
        outcomes = roll_out_together(
            self._environments[:actors],
            Policy.from_bytes(self.learner.weights()),
            [Request(seed, round_index, slot) for slot in range(actors)],
            fragment_steps=self._fragment_steps,
            truncate_at_fragment=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return cast("list[Fragment]", outcomes)

    def batch(self, fragments: Sequence[Fragment]) -> Batch:
        """Returns fragments of the current policy as a batch."""
        version = {"policy_version": self.learner.policy_version}
        return assemble_batch([one.fields() | version for one in fragments], self._spaces)

    def update(self, fragments: Sequence[Fragment]) -> DetectorSamples:
        """Trains on a round's fragments. Returns the update's samples."""
        return self.learner.update(self.batch(fragments), progress=0.0).samples

    def ratio(self, samples: DetectorSamples) -> float | None:
        """Returns the current policy's R."""
        chosen = self._detector.select(samples)
        problem = self.learner.curvature_problem(self._detector.objective, chosen)
        return self._detector.measure(problem).convexity_ratio

    def mean_return(self, episodes: int, fresh: int) -> float:
        """Returns the current policy's mean return over whole episodes with sampled actions.

        Args:
            fresh: Seed of the start states.
        """
        environment = self._environments[0]
        evaluate = Evaluator(environment, episodes, seed=self.seed, is_stochastic=True)
        return evaluate(self.learner.weights(), fresh=fresh).return_mean

    def surface(self, samples: DetectorSamples, points: int) -> list[float]:
        """Returns mean returns around the current policy, for ``points`` × ``points`` perturbations.

        They are −1 to 1 along the objective's two Hessian eigenvectors of largest magnitude, found by PyHessian.
        """
        problem = self.learner.curvature_problem(self._detector.objective, samples)
        torch.manual_seed(self.seed)
        data = problem.inputs, problem.targets
        curvature = hessian(problem.module, problem.criterion, data, cuda=False)
        first, second = (
            torch.cat([part.detach().reshape(-1) for part in vector])
            for vector in curvature.eigenvalues(top_n=2)[1]
        )
        values = self.learner.trained["policy"].values
        centre = values.clone()
        returns = []
        for along_first in np.linspace(-1.0, 1.0, points):
            for along_second in np.linspace(-1.0, 1.0, points):
                values.copy_(centre + along_first * first + along_second * second)
                returns.append(self.mean_return(SURFACE_EPISODES, 0))
        values.copy_(centre)
        return returns


def measure(study: Mapping[str, Any], arm: str, seed: int) -> dict[str, Any]:
    """Returns an arm's measurements with one seed: boosted rounds, and surfaces if it has any.

    Args:
        study: An entry of the protocol.
    """
    started_s = time.process_time()
    plan = study["arms"][arm]
    actors_max = max(plan["actors"], default=1)
    training = BoostableTraining(study["file"], study["settings"], seed, actors_max)
    starts: list[RoundStart] = []
    samples = None
    for round_index in range(1, plan["rounds"] + 1):
        starts.append(training.start(round_index, samples))
        samples = training.update(training.play(round_index, 1, seed))
    span = plan.get("span", plan["rounds"])
    lowest = [_ordered(starts[first : first + span])[0] for first in range(0, len(starts), span)]
    return {
        "rounds": [
            boost(training, start, plan) for start in (lowest if "span" in plan else starts)
        ],
        "surfaces": explore(training, starts, plan) if "surface_points" in plan else {},
        "cpu_s": time.process_time() - started_s,
    }


def boost(
    training: BoostableTraining, start: RoundStart, plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Replays a round with each number of actors, all from the same state.

    Args:
        plan: An arm of the protocol.

    Returns:
        The round and its R. By replay: R of the same policy on the replay's own samples, and the return before the
        update; after it, by number of actors, the return and R; if the training is continued, its last return.
    """
    row: dict[str, Any] = {"round_index": start.round_index, "ratio": start.ratio}
    row |= {"ratios_anew": [], "before": [], "final": []}
    row |= {
        name: {str(count): [] for count in plan["actors"]} for name in ("after", "ratios_after")
    }
    for replay in range(plan["replays"]):
        seed = REPLAY_SEEDS + len(SEEDS) * replay + training.seed
        training.learner.set_state(start.learner)
        fragments = training.play(start.round_index, max(plan["actors"], default=1), seed)
        anew = training.learner.samples(training.batch(fragments[:1])).arrays
        row["ratios_anew"].append(training.ratio(anew))
        row["before"].append(training.mean_return(plan["episodes"], replay))
        for count in plan["actors"]:
            training.learner.set_state(start.learner)
            samples = training.update(fragments[:count])
            row["after"][str(count)].append(training.mean_return(plan["episodes"], replay))
            row["ratios_after"][str(count)].append(training.ratio(samples))
        if plan.get("is_continued"):
            for round_index in range(start.round_index + 1, plan["rounds"] + 1):
                training.update(training.play(round_index, 1, seed))
            row["final"].append(training.mean_return(plan["episodes"], replay))
    return row


def explore(
    training: BoostableTraining, starts: Sequence[RoundStart], plan: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Returns surfaces where R is lowest and highest, and by number of actors after an update at the lowest."""
    lowest, *_, highest = _ordered(starts)
    surfaces = {}
    for name, start in (("lowest", lowest), ("highest", highest)):
        training.learner.set_state(start.learner)
        samples = cast(DetectorSamples, start.samples)
        surfaces[name] = training.surface(samples, plan["surface_points"])
    for count in plan["actors"]:
        training.learner.set_state(lowest.learner)
        samples = training.update(training.play(lowest.round_index, count, training.seed))
        surfaces[str(count)] = training.surface(samples, plan["surface_points"])
    return surfaces


def _ordered(starts: Sequence[RoundStart]) -> list[RoundStart]:
    """Returns those with an R, the lowest first."""
    return sorted(
        (start for start in starts if start.ratio is not None),
        key=lambda start: cast(float, start.ratio),
    )


def main() -> None:
    """Measures the seeds that a study's results lack, or have of other settings."""
    names = [name for name, study in studies().items() if study.get("program") == PROGRAM]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=names)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    chosen = parser.parse_args()
    study = studies()[chosen.study]
    known = recorded(chosen.study)
    runs = {arm: known.get(arm, {}) for arm in study["arms"]}
    missing = [(arm, seed) for seed in SEEDS for arm in runs if str(seed) not in runs[arm]]
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        measured = {pool.submit(measure, study, *one): one for one in missing}
        for done in as_completed(measured):
            arm, seed = measured[done]
            runs[arm][str(seed)] = json.loads(json.dumps(done.result()), parse_float=_short)
            seconds = sum(run["cpu_s"] for by_seed in runs.values() for run in by_seed.values())
            store(chosen.study, runs, [commit_of()], seconds)


def _short(number: str) -> float:
    return float(f"{float(number):.5g}")


if __name__ == "__main__":
    main()
