"""The updater's requests to instances, the answers that it accepts, and its handling of failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor import wire
from runtime.errors import RunError
from runtime.fleet.inline import PassingFleet
from runtime.fleet.interfaces import Invocation
from runtime.gmi.devices import Place
from runtime.gmi.fleet import InstancesFleet
from runtime.gmi.group import Meeting
from runtime.gmi.trainer import Trainer
from runtime.gmi.updater import InstancesUpdater
from runtime.learner import LearnerSpec
from runtime.learner.functions.invoking import Remote
from runtime.learner.functions.messages import encode_result
from runtime.learner.functions.store import FolderStore, object_name
from runtime.learner.interfaces import Update
from runtime.learner.ppo import Ppo
from runtime.learner.settings import PpoSettings
from runtime.money.work import Outcome
from tests.learner.learning import VECTORS, roll

pytestmark = pytest.mark.usefixtures("one_thread")
SPEC = LearnerSpec(PpoSettings(kind="ppo", normalize_observations=True), VECTORS, seed=1)
TRAINED = {"reduce_s": 0.25, "reduce_wait_s": 0.125, "memory_mib": 300.0}


class Events:
    """Recorded events."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.replaced: list[int] = []

    def append(self, kind: str, **fields: Any) -> None:
        if kind == "learner_failed":
            self.errors.append(fields["error"])
        if kind == "instance_replaced":
            self.replaced.append(fields["instance"])


class Machine:
    """A local fleet whose processes give `answer`'s result for an invocation; None means that they hang."""

    def __init__(self) -> None:
        self.concurrency = 2
        self.started: list[Invocation] = []
        self.abandoned: list[str] = []
        self.answer: Callable[[Invocation], Outcome | None] = lambda one: Outcome(
            one.invocation_id, "ok", TRAINED
        )
        self._outcomes: list[Outcome] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        self.started += invocations
        self._outcomes += [
            outcome
            for one in invocations
            if {"group", "saves"} & one.event.keys() and (outcome := self.answer(one)) is not None
        ]

    def wait(self, timeout_s: float) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        self.abandoned += invocation_ids
        self._outcomes += [Outcome(one, "abandoned", error="given up") for one in invocation_ids]

    def close(self) -> None:
        """Has nothing running."""


class Made:
    """An updater of two instances. The next version is in the store as soon as the second one is asked."""

    def __init__(
        self,
        folder: Path,
        *,
        devices: Sequence[int] = (0, 0),
        reduction: str = "auto",
        timeout_s: float = math.inf,
    ) -> None:
        self.machine, self.events, self.store = Machine(), Events(), FolderStore(folder)
        self.fleet = InstancesFleet(
            self.machine, [Place(one) for one in devices], reduction=reduction
        )
        mirror = Ppo(SPEC)
        self.updater = InstancesUpdater(
            mirror,
            Remote(
                SPEC,
                PassingFleet(self.fleet),
                str(folder),
                "run",
                None,
                lambda: None,
                self.events,
            ),
            self.fleet,
            timeout_s=timeout_s,
        )
        learner = Ppo(SPEC)
        update = learner.update(roll(learner.weights(), VECTORS), progress=0.0)
        self.result = encode_result(
            learner.get_state(),
            replace(
                update,
                samples=type(update.samples)(
                    **{name: array[:0] for name, array in vars(update.samples).items()}
                ),
            ),
        )
        self.version_1 = learner.weights()

    def leave_result(self) -> None:
        self.store.put(object_name("run", "result", 1), self.result)

    def trajectories(self, slots: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Returns the started actors' trajectories, as a flight decodes them."""
        self.fleet.start(
            [
                Invocation(
                    f"r1-{slot}", {"invocation_id": f"r1-{slot}", "slot": slot, "episode_id": ""}
                )
                for slot in slots
            ]
        )
        self.machine.started.clear()
        return [
            {
                "invocation_id": wire.text_field(f"r1-{slot}"),
                "slot": np.array(slot),
                "steps": np.array(5 + slot),
                "policy_version": np.array(0),
            }
            for slot in slots
        ]

    def update(self, slots: Sequence[int] = (0, 1, 2)) -> list[Update]:
        self.updater.submit(
            self.updater.assemble(self.trajectories(slots), VECTORS, clip_rewards=False),
            progress=0.5,
        )
        found: list[Update] = []
        while not found:
            found = self.updater.poll(60.0)
        return found


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


def test_each_instance_is_asked_for_its_slots_and_the_next_version_is_mirrored(
    made: Made, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    made.leave_result()
    (update,) = made.update()
    assert [one.process for one in made.machine.started] == [0, 1]
    first, second = (one.event for one in made.machine.started)
    assert ([slot["slot"] for slot in first["slots"]], first["columns"]) == ([0, 2], [0, 2])
    assert ([slot["slot"] for slot in second["slots"]], second["columns"]) == ([1], [1])
    assert first["lengths"] == second["lengths"] == [5, 6, 7]
    assert [event["group"]["rank"] for event in (first, second)] == [0, 1]
    assert [event["progress"] for event in (first, second)] == [0.5, 0.5]
    assert {one.limit_s for one in made.machine.started} == {math.inf}, (
        "an update's own limit, not an actor's"
    )
    assert made.updater.weights() == made.version_1
    assert update.columns == {
        "instances": 2,
        "reduce_s": 0.25,
        "reduce_wait_s": 0.125,
        "instance_memory_mib": 300.0,
    }
    assert update.staleness.tolist() == [0, 0, 0]
    assert {path.name for path in store.iterdir()} == {"run-learner", "run-result-1"}
    with pytest.raises(KeyError):
        made.fleet.event_of("r1-0")
    made.updater.close()
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(
    ("devices", "wanted", "slots", "used"),
    [
        ((0, 0, 1, 1), "auto", [0, 1, 2, 3], "mrr"),
        ((0, 0, 1, 1), "har", [0, 1, 2, 3], "har"),
        ((0, 0, 1, 1), "mrr", [0, 1, 2], "har"),
        ((0, 0), "auto", [1], "mpr"),
    ],
)
def test_instances_that_train_sum_as_the_file_says_or_else_by_algorithm_1(
    tmp_path: Path, devices: Sequence[int], wanted: str, slots: Sequence[int], used: str
) -> None:
    made = Made(tmp_path / "store", devices=devices, reduction=wanted, timeout_s=120.0)
    made.leave_result()
    made.update(slots)
    events = [one.event for one in made.machine.started]
    assert [event["instance"] for event in events] == slots
    assert [event["group"]["rank"] for event in events] == list(range(len(slots)))
    assert {event["group"]["reduction"] for event in events} == {used}
    # Those that wait for one that hangs give up in time to be asked again.
    assert {one.limit_s for one in made.machine.started} == {120.0}
    assert {event["group"]["timeout_s"] for event in events} == {30.0}
    assert events[0]["group"]["devices"] == [devices[slot] for slot in slots]


def test_an_instance_that_missed_an_update_goes_on_from_the_newest_version(made: Made) -> None:
    trainer = Trainer(made.store, "run")
    assert trainer.weights(0) == Ppo(SPEC).weights()
    made.leave_result()
    assert trainer.weights(1) == made.version_1


def test_an_instance_that_is_another_process_now_is_told_once(made: Made) -> None:
    """The process dies idle, or as one of several that are served again."""
    for processes in ({0: 10, 1: 11}, {0: 10, 1: 12}, {0: 10}, {0: 13, 1: 12}, {0: 13, 1: 14}):
        made.fleet.processes.clear()
        made.fleet.processes.update(processes)
        made.updater.submit(
            made.updater.assemble(made.trajectories([0, 1]), VECTORS, clip_rewards=False),
            progress=0.5,
        )
    assert made.events.replaced == [1, 0, 1]


def test_what_the_store_has_lost_is_there_again_for_the_next_try(
    made: Made, tmp_path: Path
) -> None:
    lost: list[bool] = []

    def loses(one: Invocation) -> Outcome:
        names = {path.name for path in (tmp_path / "store").iterdir()}
        lost.append("run-learner" not in names or "run-state-0" not in names)
        for name in names:
            (tmp_path / "store" / name).unlink()
        if len(lost) > 2:
            made.leave_result()
        return Outcome(one.invocation_id, "error", error="not in the store")

    made.machine.answer = loses
    made.update()
    assert lost == [False, True, False, True]


def test_if_one_dies_all_are_asked_again_in_another_group_and_one_that_hangs_is_given_up(
    tmp_path: Path,
) -> None:
    made, paths = Made(tmp_path / "store", timeout_s=0.0), list[str]()

    def dies_once(one: Invocation) -> Outcome | None:
        paths.append(one.event["group"]["path"])
        if paths[-1] != paths[0]:
            made.leave_result()
            return Outcome(one.invocation_id, "ok", TRAINED)
        is_first = one.event["instance"] == 0
        return None if is_first else Outcome(one.invocation_id, "crashed", error="killed")

    made.machine.answer = dies_once
    made.update()
    assert paths[0] == paths[1] != paths[2] == paths[3]
    with pytest.raises(RunError, match="it was called off"):
        Meeting(paths[0], 60.0).get("a member that never comes")
    assert made.machine.abandoned == [made.machine.started[0].invocation_id]
    assert made.events.errors == ["killed"]
    assert made.updater.weights() == made.version_1
    made.updater.close()
    assert not Path(paths[0]).parent.exists()


def test_a_version_that_was_left_counts_whatever_became_of_its_maker(made: Made) -> None:
    made.machine.answer = lambda one: Outcome(
        one.invocation_id, "crashed", error="killed by SIGKILL"
    )
    made.leave_result()
    made.update()
    paths = {one.event["group"]["path"] for one in made.machine.started}
    assert made.updater.weights() == made.version_1
    assert made.events.errors == []
    made.machine.answer = lambda one: Outcome(one.invocation_id, "ok", TRAINED)
    made.store.put(object_name("run", "result", 2), b"")
    with pytest.raises(RunError, match="3 tries"):
        made.update()
    assert made.machine.started[0].event["group"]["path"] not in paths, "its group is not met again"
