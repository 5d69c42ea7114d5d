"""Gradients of several learner functions: the order decides, and no gradient is applied twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from runtime.errors import NotFiniteError, RunError
from runtime.fleet.interfaces import Fleet
from runtime.learner import make_learner
from runtime.learner.functions import open_store
from runtime.learner.functions.handler import handler
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.learner.functions.settings import StellarisSettings
from runtime.learner.functions.store import object_name
from tests.fakes import OrderedFleet
from tests.learner.functions.remotely import Remotely, kill_a_function, real_processes
from tests.learner.learning import VECTORS, assert_same, everything, roll, spec_of

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = StellarisSettings(
    kind="stellaris", learners=1, staleness_decay=None, learning_rate_root=None, truncation=None
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
            handler(event, None)
        if fate in NONSENSE:
            store, name = (
                open_store(event["store"]),
                object_name(event["token"], "gradient", event["update"], event["job"]),
            )
            data = NONSENSE[fate](store.get(name))
            store.delete([name])
            store.put(name, data)
        return answered


class Stellaris(Remotely):
    """An updater with several learner functions, some of which fail."""

    def __init__(
        self,
        folder: Path,
        settings: StellarisSettings | None = None,
        fates: Mapping[int, str] = MappingProxyType({}),
        slowness: float = 1.0,
        fleet: Fleet | None = None,
        **options: Any,
    ) -> None:
        def lasts_s(event: Mapping[str, Any]) -> float:
            return 60.1 if fates.get(event["job"]) == "slow" else slowness * uneven(event)

        self.functions = Functions(fates)
        fleet = fleet or OrderedFleet(self.functions, lasts_s)
        spec = spec_of("ppo", epochs=3, minibatch_steps=6, learning_rate=0.01, seed=3)
        super().__init__(
            settings or StellarisSettings(kind="stellaris"), fleet, folder, spec, **options
        )


def test_one_learner_without_its_mechanisms_is_ppo_to_the_bit(tmp_path: Path) -> None:
    one = Stellaris(tmp_path, PLAIN)
    alone = make_learner(one.spec, device="cpu")
    for seed in range(3):
        update, expected = (
            one.update(seed),
            alone.update(roll(alone.weights(), VECTORS, seed=seed), progress=0.25),
        )
        assert update.metrics == expected.metrics
        assert (update.columns["gradients"], update.columns["gradient_staleness_mean"]) == (18, 0.0)
    assert one.updater.weights() == alone.weights()
    assert_same(everything(one.updater.learner), everything(alone))
    assert not list(tmp_path.iterdir()), "nothing is left in the store"


def test_several_learners_are_stale_within_the_bound_and_a_resumed_run_repeats_itself(
    tmp_path: Path,
) -> None:
    found = []
    for number in range(2):
        one = Stellaris(tmp_path / str(number))
        aggregations = [one.update(0).columns]
        if number:
            state, one = one.updater.get_state(), Stellaris(tmp_path / "again")
            one.updater.set_state(replace(state, values=json.loads(json.dumps(state.values))))
        aggregations += [one.update(seed).columns for seed in (1, 2)]
        found.append((aggregations, one.updater.weights()))
        assert one.functions.events[-1]["published_versions"]
    first, *others = found[0][0]
    assert (first["staleness_bound"], first["gradients"], first["gradients_lost"]) == (None, 18, 0)
    assert first["gradient_staleness_mean"] > 1.0
    assert all(one["staleness_bound"] is not None and one["aggregations"] < 18 for one in others)
    assert any(one["truncated_fraction"] > 0.0 for one in others)
    assert found[0] == found[1]


def test_what_goes_wrong_costs_its_own_gradient_only(tmp_path: Path) -> None:
    """Adam's second moment of an absurd gradient would be infinite, and later ones would have no effect."""
    one = Stellaris(
        tmp_path,
        fates={2: "dead", 5: "damaged", 7: "twice", 9: "slow", 10: "infinite", 14: "absurd"},
    )
    update = one.update(0)
    assert (update.columns["gradients"], update.columns["gradients_lost"]) == (13, 5)
    told = {
        2: "it is dead",
        5: "checksum",
        9: "timed out",
        10: "a loss is inf",
        14: "the square of the policy's gradient is inf",
    }
    failed = {fields["attempt"]: fields["error"] for _, fields in one.events}
    assert sorted(failed) == sorted(told)
    assert all(word in failed[job] for job, word in told.items())
    assert all(np.isfinite(array).all() for array in one.updater.get_state().arrays.values())
    assert 0.0 <= update.columns["truncated_fraction"] <= 1.0
    assert one.meter.reserved_usd == 0.0


def test_real_processes_compute_gradients_and_a_killed_one_costs_one(tmp_path: Path) -> None:
    """kill -9 of one of two processes while it starts. The gradient that waits for it ends; others are queued."""
    fleet = real_processes(2, tmp_path / "log")
    try:
        one = Stellaris(tmp_path / "store", fleet=fleet)
        aggregation = one.update(meanwhile=kill_a_function).columns
        assert (aggregation["gradients"], aggregation["gradients_lost"]) == (17, 1), one.events
        assert one.events[0][1]["status"] == "crashed"
        assert aggregation["truncated_fraction"] > 0.0
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("fate", "error", "text"),
    [
        ("infinite", NotFiniteError, "^a loss is inf$"),
        (
            "dead",
            RunError,
            "no gradient of policy version 1 .*: 18 learner functions failed.* dead",
        ),
    ],
)
def test_an_update_without_a_gradient_ends_the_run(
    fate: str, error: type[RunError], text: str, tmp_path: Path
) -> None:
    one = Stellaris(tmp_path, fates=dict.fromkeys(range(18), fate))
    with pytest.raises(error, match=text):
        one.update()


def test_an_update_makes_do_with_the_gradients_that_the_budget_holds(tmp_path: Path) -> None:
    """Every round that can begin ends: the first gradients are reserved, and unused reservations pay for others."""
    ample = Stellaris(tmp_path).meter
    assert ample.open_standing()
    one = Stellaris(tmp_path, budget_usd=1.001 * ample.reserved_usd, slowness=6.0)
    made = one.update(0).columns["gradients"]
    assert 5 <= made < 18
    assert one.meter.spent_usd <= 1.001 * ample.reserved_usd
    ((kind, fields),) = one.events
    assert (kind, fields["gradients"], fields["wanted"]) == ("update_shrunk", made, 18)
