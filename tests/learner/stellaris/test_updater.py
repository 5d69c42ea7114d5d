"""Gradients of several learner functions in virtual time: the order decides, and nothing is applied twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.config.loading import experiment_from_tree
from runtime.config.schema import StellarisSection
from runtime.cost.budget import Budget
from runtime.cost.meter import Meter
from runtime.errors import BudgetError, RunError
from runtime.fleet.virtual import VirtualFleet
from runtime.interfaces import Update
from runtime.learner import LearnerSpec, make_learner, make_updater
from runtime.learner.remote.handler import handler
from runtime.learner.remote.store import gradient_name, open_store
from runtime.learner.remote.updater import Remote
from tests.helpers import cost_model
from tests.learner.learning import VECTORS, assert_same, everything, roll

pytestmark = pytest.mark.usefixtures("one_thread")
TREE = {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}, "learner": {"kind": "function"},
        "algorithm": {"ppo": {"epochs": 3, "minibatch_steps": 6, "learning_rate": 0.01}}, "actor": {"provisioned": 0}}
PLAIN = StellarisSection(learners=1, staleness_decay=None, learning_rate_root=None, truncation=None)


def uneven(event: Mapping[str, Any]) -> float:
    """Some gradients take long, whoever computes them."""
    return 1.0 + 7.0 * (event["job"] * 13 % 5 == 0) + event["job"] * 5 % 3


class Functions:
    """The handler, of which some invocations go wrong."""

    def __init__(self, fates: Mapping[int, str]) -> None:
        self.fates, self.events = fates, []

    def __call__(self, event: Mapping[str, Any], context: object) -> Mapping[str, Any]:
        self.events.append(event)
        fate = self.fates.get(event["job"], "well")
        if fate == "dead":
            raise RuntimeError("it is dead")
        answered = handler(json.loads(json.dumps(event)), None)
        if fate == "twice":
            assert handler(event, None)["status"] == "made_before"
        if fate == "damaged":
            store, name = open_store(event["store"]), gradient_name(event["token"], event["update"], event["job"])
            data = bytearray(store.get(name))
            data[-1] ^= 1
            store.delete([name])
            store.put(name, bytes(data))
        return answered


@dataclass
class Stellaris:
    """An updater, its functions, and what they cost."""

    folder: Path
    settings: StellarisSection = field(default_factory=StellarisSection)
    fates: Mapping[int, str] = field(default_factory=dict)
    budget_usd: float = 1.0

    def __post_init__(self) -> None:
        experiment = experiment_from_tree(TREE, source="test").resolved()
        fitted = experiment.fitted(VECTORS, preprocessing="none")
        self.spec = spec = LearnerSpec(fitted.algorithm, VECTORS, fitted.network.kind, seed=3)
        self.meter, self.failed = Meter(cost_model(experiment), Budget(self.budget_usd)), []
        self.functions = Functions(self.fates)
        self.fleet = VirtualFleet(self.functions, uneven, concurrency=self.settings.learners)
        self.updater = make_updater("stellaris", make_learner(spec, device="cpu"), Remote(
            spec, self.fleet, str(self.folder), "session", self.meter, lambda: None, self, self.settings))

    def append(self, kind: str, **fields: Any) -> None:
        self.failed.append((fields["attempt"], fields["error"]))

    def update(self, seed: int) -> Update:
        """One round's: on what the newest policy has sampled."""
        assert self.meter.open_standing()
        self.updater.submit(roll(self.updater.weights(), VECTORS, seed=seed), progress=0.25)
        while not (updates := self.updater.poll(0.0)):
            pass
        self.meter.close_round(actors_started=0, seconds=0.0)
        (update,) = updates
        return update


def test_one_learner_without_its_mechanisms_is_ppo_to_the_bit(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, PLAIN)
    alone = make_learner(one.spec, device="cpu")
    for seed in range(3):
        update, expected = one.update(seed), alone.update(roll(alone.weights(), VECTORS, seed=seed), progress=0.25)
        assert update.metrics == expected.metrics
        assert (update.aggregation.gradients, update.aggregation.staleness_mean) == (18, 0.0)
    assert one.updater.weights() == alone.weights()
    assert_same(everything(one.updater.learner), everything(alone))
    assert not list(tmp_path.iterdir()), "nothing is left in the store"


def test_several_learners_are_stale_within_the_bound_and_the_run_repeats_itself(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        one = Stellaris(tmp_path / str(number))
        found.append([one.update(seed).aggregation for seed in range(4)])
        assert one.functions.events[0]["published_versions"] == [], "not all learners have pulled"
        assert one.functions.events[-1]["published_versions"]
    first, *others = found[0]
    assert (first.staleness_bound, first.gradients, first.lost) == (None, 18, 0)
    assert first.staleness_mean > 1.0
    assert all(one.staleness_bound is not None and one.aggregations < 18 for one in others)
    assert any(one.truncated_fraction > 0.0 for one in others)
    assert sorted(first.order) == list(range(18)) != list(first.order)
    assert found[0] == found[1]


def test_what_goes_wrong_costs_its_own_gradient_only(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, fates={2: "dead", 5: "damaged", 7: "twice"})
    update = one.update(0)
    assert (update.aggregation.gradients, update.aggregation.lost) == (16, 2)
    assert sorted(job for job, _ in one.failed) == [2, 5]
    assert "it is dead" in dict(one.failed)[2]
    assert "checksum" in dict(one.failed)[5]
    assert np.isfinite(update.metrics.policy_loss)


def test_an_update_without_a_gradient_ends_the_run(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, fates=dict.fromkeys(range(18), "dead"))
    with pytest.raises(RunError, match="no gradient of policy version 1 has arrived: 18 learner functions failed"):
        one.update(0)


def test_it_goes_on_from_a_state_as_if_nothing_had_happened(tmp_path: Path) -> None:
    through = Stellaris(tmp_path / "through")
    for seed in range(2):
        through.update(seed)
    state = through.updater.get_state()
    again = Stellaris(tmp_path / "again")
    again.updater.set_state(json_state(state))
    for seed in range(2, 4):
        assert replace(through.update(seed).aggregation) == again.update(seed).aggregation
    assert through.updater.weights() == again.updater.weights()


def json_state(state: Any) -> Any:
    return replace(state, values=json.loads(json.dumps(state.values)))


def test_each_gradient_is_reserved_before_it_is_computed(tmp_path: Path) -> None:
    budget_usd = 0.01
    one = Stellaris(tmp_path, budget_usd=budget_usd)
    with pytest.raises(BudgetError, match="does not hold gradient"):
        for seed in range(9):
            one.update(seed)
    assert one.meter.spent_usd <= budget_usd
