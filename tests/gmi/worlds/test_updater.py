"""Checkpoints of worlds: a save that fails is asked for again, and never left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.errors import RunError
from runtime.fleet.inline import PassingFleet
from runtime.fleet.interfaces import Invocation
from runtime.gmi.devices import Place
from runtime.gmi.fleet import InstancesFleet
from runtime.gmi.worlds.updater import WorldsUpdater
from runtime.learner.functions.invoking import Remote
from runtime.learner.functions.messages import encode_state
from runtime.learner.functions.store import FolderStore
from runtime.learner.ppo import Ppo
from runtime.money.work import Outcome
from runtime.records.state import State
from tests.gmi.test_updater import SPEC, Machine

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_worlds_that_are_not_saved_are_asked_for_again(tmp_path: Path, failures: int) -> None:
    machine, store, asked = Machine(), FolderStore(tmp_path), list[int]()

    def answer(one: Invocation) -> Outcome:
        instance = one.event["instance"]
        asked.append(instance)
        if instance == 1 and asked.count(1) <= failures:
            return Outcome(one.invocation_id, "error", error="no space left")
        data = encode_state(State({"open.returns": np.array([float(instance)])}, {}))
        store.put(one.event["saves"], data)
        return Outcome(one.invocation_id, "ok", {})

    machine.answer = answer
    fleet = InstancesFleet(machine, [Place(), Place()], reduction="mpr")
    events = SimpleNamespace(append=lambda *_, **__: None)
    remote = Remote(SPEC, PassingFleet(fleet), str(tmp_path), "run", None, lambda: None, events)
    plan: Any = SimpleNamespace(counts=[1, 1], steps=4)
    updater = WorldsUpdater(Ppo(SPEC), remote, fleet, plan)
    if failures == 3:
        with pytest.raises(RunError, match="did not save their worlds in 3 tries: .*no space left"):
            updater.get_state()
        return
    state = updater.get_state()
    found = {name: array for name, array in state.arrays.items() if name.startswith("worlds.")}
    assert found == {"worlds.0.open.returns": 0.0, "worlds.1.open.returns": 1.0}
    assert sorted(asked) == [0] + [1] * (failures + 1)
    updater.close()
