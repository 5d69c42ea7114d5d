"""An experiment, a meter and events for tests on fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.work import Outcome, Work
from tests.fakes import SPACES
from tests.helpers import cost_model

STEPS = 4
EVENT = {
    "run_id": "run",
    "cache_url": "redis://nowhere",
    "cache_credential": "",
    "cache_ttl_s": 60,
    "environment_id": "Fake-v0",
    "truncate_at_fragment": False,
    "fragment_steps": STEPS,
    "seed": 3,
    "preprocessing": "none",
}
WEIGHTS_BYTES = 1000


def make_experiment(**sections: dict[str, Any]) -> Experiment:
    tree: dict[str, Any] = {
        "environment": {"id": "Fake-v0"},
        "budget": {"usd": 1000.0},
        "scaler": {
            "kind": "nitro",
            "actors_min": 2,
            "actors_max": 6,
            "window_rounds": 3,
            "decay_factor": 0.96,
        },
        "actor": {"fragment_steps": STEPS, "timeout_s": 60},
        "learner": {"threads": 1},
        "stop": {"max_rounds": 4},
        "evaluation": {"every_rounds": 0},
    }
    experiment = experiment_from_tree(sections, base=tree, source="test")
    # All are kept warm unless the test sets a number.
    warm = sections.get("actor", {}).get("provisioned", experiment.scaler.most_actors)
    preprocessing = "atari" if experiment.environment.preprocessing == "atari" else "none"
    return experiment.resolved(provisioned=warm).fitted(SPACES, preprocessing=preprocessing)


class SpyMeter(Meter):
    """A meter that also records its input for each actor."""

    def __init__(self, *arguments: Any, clock: BillingClock | None = None) -> None:
        super().__init__(*arguments, clock=clock)
        self.ended: list[tuple[int, int, Outcome, int]] = []
        self.answers_bytes: dict[tuple[int, int], int] = {}

    def settle(
        self, work: Work, outcome: Outcome, *, traffic_bytes: int = 0, answer_bytes: int = 0
    ) -> float:
        if outcome.was_started:
            self.ended.append((work.slot, work.attempt, outcome, traffic_bytes))
            self.answers_bytes[work.slot, work.attempt] = answer_bytes
        return super().settle(work, outcome, traffic_bytes=traffic_bytes, answer_bytes=answer_bytes)


def make_meter(experiment: Experiment, clock: BillingClock | None = None) -> SpyMeter:
    return SpyMeter(cost_model(experiment), Budget(experiment.budget.usd), clock=clock)


def read_events(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if kind is None or event["event"] == kind]


def reserved(meter: Meter) -> set[str]:
    return set(meter.budget.get_state()["reserved"])
