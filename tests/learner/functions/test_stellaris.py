"""Gradients of several learner functions: the order decides, and no gradient is applied twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import NotFiniteError, RunError
from runtime.experiment.loading import experiment_from_tree
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet
from runtime.fleet.settings import LocalSettings
from runtime.learner import LEARNER_HANDLER, LearnerSpec, make_learner
from runtime.learner.functions.handler import handler
from runtime.learner.functions.invoking import Remote
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.learner.functions.places import open_store
from runtime.learner.functions.stellaris_settings import StellarisSettings
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import Update
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from tests.fakes import OrderedFleet
from tests.helpers import command_line, cost_model, descendants
from tests.learner.learning import VECTORS, assert_same, everything, roll

pytestmark = pytest.mark.usefixtures("one_thread")
TREE = {
    "environment": {"id": "some:thing"},
    "budget": {"usd": 1.0},
    "learner": {"kind": "stellaris"},
    "algorithm": {"epochs": 3, "minibatch_steps": 6, "learning_rate": 0.01},
    "actor": {"provisioned": 0},
}
PLAIN = StellarisSettings(
    learners=1, staleness_decay=None, learning_rate_root=None, truncation=None
)


def uneven(event: Mapping[str, Any]) -> float:
    """Some gradients take long on any learner."""
    return 1.0 + 7.0 * (event["job"] * 13 % 5 == 0) + event["job"] * 5 % 3


def filled(data: bytes, value: float) -> bytes:
    """Returns the message of a gradient of this number alone, with a correct checksum."""
    sent = decode_state(data)
    arrays = {name: np.full_like(array, value) for name, array in sent.arrays.items()}
    return encode_state(replace(sent, arrays=arrays))


NONSENSE: Mapping[str, Callable[[bytes], bytes]] = {
    "damaged": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "infinite": lambda data: filled(data, np.inf),
    "absurd": lambda data: filled(data, 1e20),
}
"""Stored in place of a gradient, by its fate."""


class Functions:
    """The handler, with some invocations that fail."""

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
        if fate in NONSENSE:
            store, name = (
                open_store(event["store"]),
                object_name(event["token"], "gradient", event["update"], event["job"]),
            )
            data = NONSENSE[fate](store.get(name))
            store.delete([name])
            store.put(name, data)
        return answered


@dataclass
class Stellaris:
    """An updater, its functions, and their costs."""

    folder: Path
    settings: StellarisSettings = field(default_factory=StellarisSettings)
    fates: Mapping[int, str] = field(default_factory=dict)
    budget_usd: float = 1.0
    slowness: float = 1.0
    fleet: Fleet | None = None

    def lasts_s(self, event: Mapping[str, Any]) -> float:
        return 60.1 if self.fates.get(event["job"]) == "slow" else self.slowness * uneven(event)

    def __post_init__(self) -> None:
        experiment = experiment_from_tree(TREE, source="test").resolved()
        fitted = experiment.fitted(VECTORS, preprocessing="none")
        self.spec = spec = LearnerSpec(fitted.algorithm, VECTORS, fitted.network.kind, seed=3)
        self.meter, self.told = Meter(cost_model(experiment), Budget(self.budget_usd)), []
        self.functions = Functions(self.fates)
        self.fleet = self.fleet or OrderedFleet(self.functions, self.lasts_s)
        self.updater = self.settings.make(
            make_learner(spec, device="cpu"),
            Remote(spec, self.fleet, str(self.folder), "session", self.meter, lambda: None, self),
        )

    def append(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))

    def update(self, seed: int, *, meanwhile: Callable[[], None] = lambda: None) -> Update:
        """Makes one round's update, on samples of the newest policy."""
        assert self.meter.open_standing()
        self.updater.submit(roll(self.updater.weights(), VECTORS, seed=seed), progress=0.25)
        meanwhile()
        while not (updates := self.updater.poll(120.0)):
            pass
        self.meter.close_round(0.0)
        (update,) = updates
        return update


def test_one_learner_without_its_mechanisms_is_ppo_to_the_bit(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, PLAIN)
    alone = make_learner(one.spec, device="cpu")
    for seed in range(3):
        update, expected = (
            one.update(seed),
            alone.update(roll(alone.weights(), VECTORS, seed=seed), progress=0.25),
        )
        assert update.metrics == expected.metrics
        assert (update.aggregation.gradients, update.aggregation.gradient_staleness_mean) == (
            18,
            0.0,
        )
    assert one.updater.weights() == alone.weights()
    assert_same(everything(one.updater.learner), everything(alone))
    assert not list(tmp_path.iterdir()), "nothing is left in the store"


def test_several_learners_are_stale_within_the_bound_and_the_run_repeats_itself(
    tmp_path: Path,
) -> None:
    found = []
    for number in range(2):
        one = Stellaris(tmp_path / str(number))
        found.append(([one.update(seed).aggregation for seed in range(3)], one.updater.weights()))
        assert one.functions.events[0]["published_versions"] == [], "not all learners have pulled"
        assert one.functions.events[-1]["published_versions"]
    first, *others = found[0][0]
    assert (first.staleness_bound, first.gradients, first.gradients_lost) == (None, 18, 0)
    assert first.gradient_staleness_mean > 1.0
    assert all(one.staleness_bound is not None and one.aggregations < 18 for one in others)
    assert any(one.truncated_fraction > 0.0 for one in others)
    assert found[0] == found[1]


def test_what_goes_wrong_costs_its_own_gradient_only(tmp_path: Path) -> None:
    """Adam's second moment of an absurd gradient would be infinite, and later ones would have no effect."""
    one = Stellaris(
        tmp_path,
        fates={2: "dead", 5: "damaged", 7: "twice", 9: "slow", 10: "infinite", 14: "absurd"},
    )
    update = one.update(0)
    assert (update.aggregation.gradients, update.aggregation.gradients_lost) == (13, 5)
    told = {
        2: "it is dead",
        5: "checksum",
        9: "timed out",
        10: "a loss is inf",
        14: "the square of the policy's gradient is inf",
    }
    failed = {fields["attempt"]: fields["error"] for _, fields in one.told}
    assert sorted(failed) == sorted(told)
    assert all(word in failed[job] for job, word in told.items())
    assert all(np.isfinite(array).all() for array in one.updater.get_state().arrays.values())
    assert 0.0 <= update.aggregation.truncated_fraction <= 1.0
    assert one.meter.reserved_usd == 0.0


def test_a_training_that_has_diverged_ends(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, fates=dict.fromkeys(range(18), "infinite"))
    with pytest.raises(NotFiniteError, match="^a loss is inf$"):
        one.update(0)


def test_real_processes_compute_gradients_and_a_killed_one_costs_one(tmp_path: Path) -> None:
    """kill -9 of one of two processes while it starts. The gradient that waits for it ends; others are queued."""
    fleet = LocalSettings().make(
        FleetSetup(
            concurrency=2,
            timeout_s=100.0,
            memory_mib=1769,
            log_path=tmp_path / "log",
            function=LEARNER_HANDLER,
        )
    )
    try:
        one = Stellaris(tmp_path / "store", fleet=fleet)
        update = one.update(
            0,
            meanwhile=lambda: os.kill(
                next(
                    pid
                    for pid in descendants(os.getpid())
                    if LEARNER_HANDLER.encode() in command_line(pid)
                ),
                signal.SIGKILL,
            ),
        )
        assert (update.aggregation.gradients, update.aggregation.gradients_lost) == (17, 1), (
            one.told
        )
        assert one.told[0][1]["status"] == "crashed"
        assert update.aggregation.truncated_fraction > 0.0
    finally:
        fleet.close()


def test_an_update_without_a_gradient_ends_the_run(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, fates=dict.fromkeys(range(18), "dead"))
    with pytest.raises(
        RunError,
        match="no gradient of policy version 1 has arrived: 18 learner functions failed, the "
        "last one: .*it is dead",
    ):
        one.update(0)


def test_it_goes_on_from_a_state_as_if_nothing_had_happened(tmp_path: Path) -> None:
    through = Stellaris(tmp_path / "through")
    through.update(0)
    state = through.updater.get_state()
    again = Stellaris(tmp_path / "again")
    again.updater.set_state(json_state(state))
    for seed in range(1, 3):
        assert through.update(seed).aggregation == again.update(seed).aggregation
    assert through.updater.weights() == again.updater.weights()


def json_state(state: Any) -> Any:
    return replace(state, values=json.loads(json.dumps(state.values)))


def test_an_update_makes_do_with_the_gradients_that_the_budget_holds(tmp_path: Path) -> None:
    """Every round that can begin ends: the first gradients are reserved, and unused reservations pay for others."""
    ample = Stellaris(tmp_path).meter
    assert ample.open_standing()
    one = Stellaris(tmp_path, budget_usd=1.001 * ample.reserved_usd, slowness=6.0)
    made = one.update(0).aggregation.gradients
    assert 5 <= made < 18
    assert one.meter.spent_usd <= 1.001 * ample.reserved_usd
    ((kind, fields),) = one.told
    assert (kind, fields["gradients"], fields["wanted"]) == ("update_shrunk", made, 18)
