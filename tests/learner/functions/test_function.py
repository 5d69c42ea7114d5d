"""A learner in a function gives the same versions as one in place, whatever happens to its invocations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor.spaces import Spaces
from runtime.errors import BudgetError, NotFiniteError, RunError
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.functions import open_store
from runtime.learner.functions.handler import handler
from runtime.learner.functions.invoking import ATTEMPTS
from runtime.learner.functions.messages import decode_result, encode_result
from runtime.learner.functions.settings import FunctionSettings
from runtime.learner.functions.store import StoreError, object_name
from runtime.learner.interfaces import Update
from runtime.money.model import INIT_SECONDS_MAX
from runtime.money.work import Outcome
from runtime.records.state import State
from tests.learner.functions.remotely import Remotely
from tests.learner.learning import (
    MASKED,
    PIXELS,
    VECTORS,
    assert_same,
    everything,
    roll,
    spec_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def altered(data: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns an update's message with other arrays in the state, and a correct checksum."""
    state, update = decode_result(data)
    return encode_result(State({**state.arrays, **arrays}, state.values), update)


def infinite(data: bytes) -> bytes:
    return altered(data, {"policy.log_std": np.full(2, np.inf, np.float32)})


class ScriptedFleet:
    """Calls the handler in this process. Each invocation follows the script; after its end, all succeed.

    ``lost``: it completes, but its answer is lost. ``dead``: it does nothing. ``slow``: it ends after the next one.
    ``lies``: ``lie`` replaces its result.
    """

    concurrency = 1

    def __init__(self, *script: str, lie: Callable[[bytes], bytes] = infinite) -> None:
        self.script, self.invocations, self.responses, self.lie = [*script], [], [], lie
        self._slow: list[Invocation] = []
        self.abandoned: list[str] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        self.invocations += invocations

    def wait(self, timeout_s: float) -> list[Outcome]:
        invocation = self.invocations[-1]
        fate = self.script.pop(0) if self.script else "well"
        if fate in ("well", "lost", "lies"):
            self._call(invocation)
        if fate == "lies":
            event = invocation.event
            store, name = (
                open_store(event["store"]),
                object_name(event["token"], "result", event["policy_version"] + 1),
            )
            lie = self.lie(store.get(name))
            store.delete([name])
            store.put(name, lie)
        for slow in self._slow:
            self._call(slow)
        self._slow = [invocation] if fate == "slow" else []
        if fate in ("well", "lies"):
            return [Outcome(invocation.invocation_id, "ok", self.responses[-1], billed_s=1.0)]
        return [Outcome(invocation.invocation_id, "crashed", error=f"it was {fate}", billed_s=60.0)]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        self.abandoned += invocation_ids

    def close(self) -> None: ...

    def _call(self, invocation: Invocation) -> None:
        self.responses.append(handler(json.loads(json.dumps(invocation.event)), None))


def train(fleet: Fleet, folder: Path, spec: LearnerSpec | None = None, **options: Any) -> Remotely:
    return Remotely(
        FunctionSettings(kind="function"),
        fleet,
        folder,
        spec or spec_of("ppo", epochs=2),
        **options,
    )


def assert_equals_in_place(made: Remotely, updates: Sequence[Update]) -> None:
    """Returns weights, state, reports and samples of the same number of updates in place."""
    alone = make_learner(made.spec, device="cpu")
    for seed, update in enumerate(updates):
        expected = alone.update(roll(alone.weights(), made.spec.spaces, seed=seed), progress=0.25)
        assert update.metrics == expected.metrics
        np.testing.assert_array_equal(update.staleness, expected.staleness)
        assert_same(vars(update.samples), vars(expected.samples))
    assert made.updater.weights() == alone.weights()
    assert_same(everything(made.updater), everything(alone))


@pytest.mark.parametrize(
    ("kind", "spaces"),
    [("ppo", VECTORS), ("ppo", PIXELS), ("impala", VECTORS), ("impact", MASKED)],
)
def test_its_versions_are_those_of_an_update_in_place(
    kind: str, spaces: Spaces, tmp_path: Path
) -> None:
    epochs = {"epochs": 1} if kind == "ppo" else {}
    made = train(ScriptedFleet(), tmp_path, spec_of(kind, spaces, minibatch_steps=12, **epochs))
    assert_equals_in_place(made, [made.update(seed) for seed in range(3)])
    assert made.updater.replay(progress=0.5) is None


@pytest.mark.parametrize(
    ("script", "trainings"),
    [
        (["lost"], 2),
        (["dead"], 2),
        (["dead", "dead"], 2),
        (["slow"], 3),
        (["well", "lost"], 2),
        (["slow", "lost"], 3),
        (["lies", "well", "lies"], 4),
    ],
)
def test_whatever_an_invocation_does_it_is_paid_and_the_versions_are_the_same(
    script: list[str], trainings: int, tmp_path: Path
) -> None:
    made = train(fleet := ScriptedFleet(*script), tmp_path)
    assert_equals_in_place(made, [made.update(seed) for seed in range(2)])
    assert len(fleet.responses) == trainings
    failed = sum(word in ("dead", "slow", "lies") for word in script)
    assert [kind for kind, _ in made.events] == ["learner_failed"] * failed
    assert made.meter.reserved_usd == 0.0
    usd = made.prices.roles["learner"].usd
    billed = [
        1.0 if fate in ("well", "lies") else 60.0
        for fate in [*script, *["well"] * (len(fleet.invocations) - len(script))]
    ]
    assert made.meter.spent_usd == pytest.approx(
        sum(usd(is_provisioned=False, billed_s=seconds, traffic_bytes=0) for seconds in billed)
    )
    assert len(list(tmp_path.iterdir())) <= 2, (
        "the result from which the next update starts; a slow one leaves another"
    )
    made.updater.close()
    assert len(list(tmp_path.iterdir())) <= 1


@pytest.mark.parametrize(
    ("fate", "lie", "error", "text"),
    [
        ("dead", infinite, RunError, "3 tries to make policy version 1 failed.*: it was dead$"),
        (
            "lies",
            lambda data: altered(data, {"critic.layers.0.bias": np.full(256, np.nan, np.float32)}),
            NotFiniteError,
            "^critic.layers.0.bias is nan$",
        ),
        ("lies", lambda data: data[:-1], RunError, "3 tries.*: it is damaged or truncated$"),
    ],
)
def test_a_function_that_always_fails_ends_the_run_and_the_learner_is_as_it_was(
    fate: str, lie: Callable[[bytes], bytes], error: type[RunError], text: str, tmp_path: Path
) -> None:
    made = train(ScriptedFleet(*[fate] * ATTEMPTS, lie=lie), tmp_path)
    before = everything(made.updater)
    with pytest.raises(error, match=text):
        made.update()
    assert_same(everything(made.updater), before)
    assert len(made.events) == ATTEMPTS


def test_a_resumed_session_goes_on_from_its_checkpoint_and_takes_nothing_of_the_last_one(
    tmp_path: Path,
) -> None:
    one = train(fleet := ScriptedFleet(), tmp_path)
    updates = [one.update(0)]
    state = one.updater.get_state()
    one.update(9)
    other = train(ScriptedFleet(), tmp_path, token="another")
    other.updater.set_state(state)
    updates.append(other.update(1))
    assert_equals_in_place(other, updates)
    # The same session, restored.
    one.updater.set_state(state)
    assert_equals_in_place(one, [updates[0], one.update(1)])
    with pytest.raises(ZeroDivisionError):
        one.update(2, meanwhile=lambda: 1 // 0)
    one.updater.close()
    assert fleet.abandoned == [fleet.invocations[-1].invocation_id], (
        "it would be paid until its end"
    )


def test_the_worst_case_is_in_the_ledger_before_an_invocation_starts(tmp_path: Path) -> None:
    """The first one is reserved with its round, which starts only if it can be paid."""
    made = train(ScriptedFleet("dead"), tmp_path / "ample")
    assert made.meter.open_standing()
    needed_usd = made.meter.reserved_usd
    assert made.prices.roles["learner"].worst_case_usd() > (
        (60 + INIT_SECONDS_MAX) * 1769 / 1024 * 1.66e-5
    )
    made.meter.close_round(0.0)
    made.update()
    assert made.ledgers == pytest.approx([needed_usd] * 2)
    assert not train(ScriptedFleet(), tmp_path, budget_usd=needed_usd * 0.999).meter.open_standing()
    short = train(ScriptedFleet("dead"), tmp_path, budget_usd=needed_usd * 1.001)
    with pytest.raises(
        BudgetError, match="invocation 2 of the learner function for policy version 1"
    ):
        short.update()


def test_an_object_of_the_same_name_is_refused(tmp_path: Path) -> None:
    made = train(ScriptedFleet(), tmp_path)
    open_store(str(tmp_path)).put("session-0-state-0", b"another's")
    with pytest.raises(StoreError, match="is in the store before it was put there"):
        made.update()
