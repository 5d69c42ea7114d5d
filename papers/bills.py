"""Bills a run's rounds afterwards, by their counts and Nitro's prices (§8.1).

Seconds are counts times the seconds of each unit of work (`papers.pricing`), whatever the load of this machine was.
In a round, the actors play, then the learner updates, then the detector measures; asynchronous actors play meanwhile.
Evaluations cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import ROOT
from papers.pricing import lambda_speed, on_gpu, units_of
from papers.runs import Run
from runtime.experiment.loading import load_experiment
from runtime.money.prices import PRICES

GIB_S_USD = 0.0000166667
PROVISIONED_GIB_S_USD, PROVISIONED_RUN_GIB_S_USD = 0.0000041667, 0.0000097222
"""Of Lambda, footnotes 2 and 3: on demand; provisioned capacity while it exists, and in addition while it runs."""
LEARNER_HOUR_USD = {"gpu": 3.06, "cpu": PRICES.instance_hour_usd["c7i.large"]}
"""Of a p3.2xlarge, as in the paper, and of a c7i.large."""
SERVERS = {"c5.4xlarge": (16, 0.68), "c5.9xlarge": (36, 1.53), "c5.18xlarge": (72, 3.06)}
"""vCPUs and dollars per hour of a server of actors. A vCPU is as fast as the core of the table of units."""


@dataclass(frozen=True)
class Bill:
    """Seconds and dollars of an arm's rounds.

    Attributes:
        units: Seconds of each unit of work.
        memory_mib: Of a function.
        learner: ``gpu`` or ``cpu``.
        actors_on: ``functions`` (each starts cold once), ``provisioned`` (warm functions, as many as the largest round
            has), ``artifact`` (warm functions, billed as a c5.4xlarge like in the authors' code), ``minionsrl`` (warm
            functions and a learner that is one too, each billed while it works: MinionsRL, Eq. 2), or one of `SERVERS`.
        is_asynchronous: Actors play while the learner updates.
    """

    units: Mapping[str, float]
    memory_mib: int
    learner: str
    actors_on: str
    is_asynchronous: bool = False

    @classmethod
    def of(cls, study: Mapping[str, Any], learner: str, actors_on: str) -> Bill:
        """Returns the bill of a study of the protocol."""
        overrides = [f"{key}={json.dumps(value)}" for key, value in study["settings"].items()]
        resolved = load_experiment(ROOT / Path(study["file"]), overrides).resolved()
        units = units_of(resolved)
        if learner == "gpu":
            units = on_gpu(units)
        is_asynchronous = resolved.algorithm.kind != "ppo"
        return cls(units, resolved.actor.memory_mib, learner, actors_on, is_asynchronous)

    def actor_s(self, run: Run) -> np.ndarray:
        """Returns the seconds of one warm actor of each round."""
        steps = _column(run, "env_steps") / _column(run, "actor_count")
        seconds: np.ndarray = self.units["invocation_s"] + steps * self.units["step_s"]
        return seconds if self.actors_on in SERVERS else seconds / lambda_speed(self.memory_mib)

    def detection_s(self, run: Run) -> np.ndarray:
        """Returns the detector's seconds of each round."""
        samples = _column(run, "hessian_products") * _column(run, "product_samples")
        seconds: np.ndarray = samples * self.units["product_sample_s"]
        return seconds

    def learner_s(self, run: Run) -> np.ndarray:
        """Returns the seconds of each round in which the learner works."""
        update_s = _column(run, "gradient_steps") * self.units["gradient_step_s"]
        update_s += _column(run, "samples_trained") * self.units["sample_s"]
        update_s += self.detection_s(run)
        return update_s

    def round_s(self, run: Run) -> np.ndarray:
        """Returns the seconds of each round."""
        learner_s = self.learner_s(run)
        turns: np.ndarray | float = 1.0
        if self.actors_on in SERVERS:
            turns = np.ceil(_column(run, "actor_count") / SERVERS[self.actors_on][0])
        cold_s = self._cold_s() * (self._new_actors(run) > 0)
        actors_s = self.actor_s(run) * turns + cold_s
        seconds: np.ndarray = (
            np.maximum(actors_s, learner_s) if self.is_asynchronous else actors_s + learner_s
        )
        return seconds

    def usd(self, run: Run) -> np.ndarray:
        """Returns the dollars of each round."""
        round_s, gib = self.round_s(run), self.memory_mib / 1024
        learner_s = self.learner_s(run) if self.actors_on == "minionsrl" else round_s
        actors_s = _column(run, "actor_count") * self.actor_s(run)
        actors_s += self._new_actors(run) * self._cold_s()
        match self.actors_on:
            case "functions" | "minionsrl":
                actors_usd = actors_s * gib * GIB_S_USD
            case "provisioned":
                capacity_s = max(run["actor_count"]) * round_s
                actors_usd = capacity_s * gib * PROVISIONED_GIB_S_USD
                actors_usd += actors_s * gib * PROVISIONED_RUN_GIB_S_USD
            case "artifact":
                actors_usd = round_s * SERVERS["c5.4xlarge"][1] / 3600
            case server:
                actors_usd = round_s * SERVERS[server][1] / 3600
        usd: np.ndarray = actors_usd + learner_s * LEARNER_HOUR_USD[self.learner] / 3600
        return usd

    def _cold_s(self) -> float:
        if self.actors_on != "functions":
            return 0.0
        return self.units["init_s"] / lambda_speed(self.memory_mib)

    def _new_actors(self, run: Run) -> np.ndarray:
        most = np.maximum.accumulate(_column(run, "actor_count"))
        new: np.ndarray = np.diff(most, prepend=0.0)
        return new


def _column(run: Run, name: str) -> np.ndarray:
    column: np.ndarray = np.nan_to_num(np.asarray(run[name], float))
    return column
