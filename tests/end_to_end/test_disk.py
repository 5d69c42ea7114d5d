"""A run whose process dies, or whose disk is full, at any operation that changes a file, has the same history.

The test first records the run's file operations. Then each operation in turn is the last one, or fails. The loop, the
learner, the actors' handler and all files are real. One process plays everything, and the bucket is in memory.
"""

from __future__ import annotations

import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lambda_actor.environments import make_environment
from lambda_actor.handler import handler
from runtime.aws.learner import attempt as attempts
from runtime.aws.learner.attempt import Attempt, Then
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.records import AwsRecords
from runtime.aws.learner.results_bucket import ResultsBucket
from runtime.aws.ledger import Entry
from runtime.aws.run_files import RunFiles
from runtime.errors import RunDirectoryError
from runtime.experiment.loading import experiment_from_tree
from runtime.fleet.inline import InlineFleet
from runtime.fleet.opening import Opening
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.model import UPLOAD_INTERVAL_S
from runtime.money.prices import PRICES
from runtime.records.files import TEMPORARY, write_atomically
from runtime.records.run_directory import RunDirectory
from runtime.show.display import RunDisplay
from runtime.training import run as training
from runtime.training.costs import make_cost_model
from runtime.training.evaluation import Evaluation
from runtime.training.opening import Backend, RecordsElsewhere, Resources
from tests.fakes import OrderedFleet
from tests.helpers import results_only, rounds
from tests.simulators.bucket import Bucket
from tests.simulators.disk import NEEDS_ROOM, Disk

ROUNDS = 3
"""Keeps two checkpoints: the third removes the first."""
EXPERIMENT = experiment_from_tree(
    {
        "environment": {"id": "tests.environments:make_counter"},
        "cache": {"kind": "none"},
        "budget": {"usd": 1.0},
        "network": {"hidden_sizes": [8]},
        "algorithm": {"kind": "ppo", "epochs": 1, "minibatch_steps": 16},
        "scaler": {"kind": "fixed", "actors_fixed": 2},
        "actor": {"fragment_steps": 8, "timeout_s": 30, "provisioned": 0},
        "learner": {"device": "cpu", "threads": 1},
        "stop": {"max_rounds": ROUNDS},
        "evaluation": {"every_rounds": 1},
        "seed": 3,
    },
    source="test",
).resolved()
PREFIX = "counter/run/"
ITEM = PREFIX + "ledger.json"
"""Key of the run's item, which is no object."""
OLD_CHECKPOINT = {f"checkpoints/round_000001.{kind}" for kind in ("json", "safetensors")}


class Evaluator:
    """Returns an evaluation that depends on the weights alone."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        self._weights = b""

    def begin(self, weights: bytes, round_index: int) -> None:
        self._weights = weights

    def result(self, timeout_s: float) -> Evaluation:
        return Evaluation((float(zlib.crc32(self._weights) % 100),), (10,), 0.5)

    def close(self) -> None:
        pass


class Here(Backend):
    """This machine as a backend whose actors play in this process."""

    is_billed, prices = False, PRICES

    def open(self, opening: Opening) -> Resources:
        meter = Meter(make_cost_model(opening.experiment, opening.spaces, PRICES), Budget(1.0))
        return self._resources(opening, meter, RecordsElsewhere())

    def _resources(self, opening: Opening, meter: Meter, records: RecordsElsewhere) -> Resources:
        fleet = InlineFleet(OrderedFleet(handler, lambda event: 1.0))
        return Resources(fleet, fleet, meter, {}, {}, records)


class Item:
    """A heartbeat whose run has an item in memory, beside the bucket's objects."""

    order_reason = ""

    def __init__(self, objects: dict[str, bytes], before: Callable[[str, str], None]) -> None:
        self._objects, self._before, self._text = objects, before, ""

    @property
    def ledger(self) -> str:
        return self._objects.get(ITEM, b"").decode()

    def promise(self, figures: Mapping[str, Any], *, is_written: bool, due_s: float) -> None:
        self._text = figures["ledger"]
        if is_written:
            self.write()

    def write(self) -> None:
        self._before("update_item", ITEM)
        self._objects[ITEM] = self._text.encode()

    def trains(self) -> None: ...

    def pauses(self) -> None: ...


class Deployed(Here):
    """AWS as a backend with an in-memory bucket and no guard."""

    is_billed, is_deployed, rounds_begun = True, True, 0
    metrics = SimpleNamespace(round_finished=lambda row: None, flush=lambda: None)

    def __init__(self, bucket: Bucket, item: Item) -> None:
        self._bucket, self.heartbeat = bucket, item
        self._now_s = itertools.count(0.0, UPLOAD_INTERVAL_S * 0.6)

    def fetch(self, directory: RunDirectory) -> None:
        self._results = ResultsBucket(
            RunFiles(self._bucket, "bucket", PREFIX),
            directory.path,
            lambda: None,
            lambda: next(self._now_s),
        )
        self._results.download(self.heartbeat.ledger)

    def open(self, opening: Opening) -> Resources:
        meter = Meter(
            make_cost_model(opening.experiment, opening.spaces, PRICES, is_deployed=True),
            Budget(1.0),
            clock=BillingClock(0.0, now=lambda: 1.0),
        )
        return self._resources(
            opening,
            meter,
            AwsRecords(
                opening.experiment,
                Entry("counter/run"),
                self.heartbeat,
                meter,
                announce=lambda: True,
                results=self._results,
                metrics=self.metrics,
                events=opening.events,
                now=lambda: 1.0,
            ),
        )


Files = Mapping[str, bytes]


@dataclass
class Machine:
    """A run's location: a directory and, if it is deployed, a bucket."""

    out: Path
    is_deployed: bool
    objects: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def found(cls, out: Path, is_deployed: bool, files: Files, objects: Files) -> Machine:
        """Returns a machine with the state that a process left."""
        for name, data in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return cls(out, is_deployed, dict(objects))

    @property
    def files(self) -> dict[str, bytes]:
        """Returns the directory's files, except those that nothing reads."""
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes()
            for path in sorted(self.out.rglob("*"))
            if path.is_file() and path.parent.name != "tensorboard"
        }

    def live(self, disk: Disk) -> Attempt:
        """Trains until nothing is left to do, or until the disk is full."""
        with disk.mounted():
            if not self.is_deployed:
                result = training.train(
                    EXPERIMENT,
                    self.out,
                    backend=Here(),
                    resume=True,
                    name="counter",
                    display=RunDisplay(EXPERIMENT, io.StringIO()),
                )
                return Attempt(
                    Then.END,
                    result.summary["stop_reason"],
                    result.summary["error"],
                    result.exit_code,
                    0,
                )
            item = Item(self.objects, disk.reach)
            backend = Deployed(Bucket(self.objects, disk.reach), item)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(attempts, "AwsBackend", lambda *_, **__: backend)
                patch.setattr(
                    attempts, "RunDisplay", lambda found: RunDisplay(found, io.StringIO())
                )
                return attempts.attempt(
                    self.out.parent / "experiment.yaml",
                    self.out,
                    DEPLOYMENT,
                    resolve=lambda: EXPERIMENT,
                )


DEPLOYMENT = Deployment(**{name: "1" for name in Deployment.__dataclass_fields__})


@pytest.fixture(scope="module", autouse=True)
def parts() -> Iterator[None]:
    """Replaces slow parts that change none of a run's files: the environment's trial and the evaluation process."""
    environment = make_environment(EXPERIMENT.environment.id)
    fitted = EXPERIMENT.fitted(environment.spaces, preprocessing="none")

    def report(directory: Path) -> str:
        write_atomically(directory / "report.html", b"a report")
        return ""

    tried = SimpleNamespace(
        spaces=environment.spaces, warnings={}, rescales_actions=False, episode_steps_max=None
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "preflight", lambda *_, **__: (tried, fitted))
        patch.setattr(training, "EvaluationProcess", Evaluator)
        patch.setattr(training, "try_to_write_report", report)
        yield


def history(machine: Machine) -> dict[str, Any]:
    """Returns the data that equal runs share, byte for byte, and a checkpoint's JSON without dollars and times."""
    files = machine.files
    assert sum(not line.endswith(b"}") for line in files["events.jsonl"].splitlines()) <= 1, (
        "one may be cut off"
    )
    kept = {name: data for name, data in files.items() if name.endswith(".safetensors")}
    return (
        dict.fromkeys(files)
        | kept
        | {"rounds.jsonl": results_only(rounds(machine.out))}
        | {
            name: {
                key: value
                for key, value in json.loads(data)["values"].items()
                if key not in ("meter", "phases")
            }
            for name, data in files.items()
            if name.startswith("checkpoints/") and name.endswith(".json")
        }
    )


def promised_usd(files: Files) -> float:
    """Returns the dollars that a ledger covers, without unmeasured time; 0 if there is no ledger."""
    state = (
        json.loads(files["ledger.json"])
        if "ledger.json" in files
        else {"budget": {"spent": 0, "reserved": {}}}
    )
    budget = state["budget"]
    is_billed = "billed_until_s" in state
    reserved = sum(
        units for name, units in budget["reserved"].items() if name != "round" or not is_billed
    )
    return float(budget["spent"] + reserved) / float(budget.get("units_per_usd", 1))


def check(machine: Machine, files: Files, expected: Mapping[str, Any], where: str) -> None:
    """Checks that the next process ends as an undisturbed run does, and refunds no money."""
    ended = machine.live(Disk(machine.out.parent))
    assert (ended.then, ended.stop_reason, ended.error or "") == (Then.END, "max_rounds", ""), where
    found = history(machine)
    assert {key: found.get(key) for key in expected} == expected, where
    # The next round would remove an old checkpoint, and the next report an unfinished one.
    assert found.keys() - expected.keys() <= OLD_CHECKPOINT | {"report.html.tmp"}, where
    assert promised_usd(machine.files) >= promised_usd(files), where


@pytest.mark.parametrize("is_deployed", [False, True], ids=["local", "deployed"])
def test_wherever_it_is_killed_the_next_process_makes_the_same_history(
    tmp_path: Path, is_deployed: bool
) -> None:
    moments: list[tuple[str, Files, Files]] = []

    def life(machine: Machine) -> dict[str, Any]:
        """Runs undisturbed and records the state that a kill would leave at each moment."""
        disk = Disk(machine.out.parent)
        machine.live(
            disk.watched(
                lambda moment: moments.append((moment, machine.files, dict(machine.objects)))
            )
        )
        assert disk.strangers == set(), "only `runtime.records.files` writes there"
        return history(machine)

    expected = life(Machine(tmp_path / "whole" / "run", is_deployed))
    assert len(expected["rounds.jsonl"]) == ROUNDS and "best_policy.safetensors" in expected
    killed_in_checkpoint = next(
        left
        for moment, *left in moments
        if moment.startswith("amid") and "round_000003.safetensors.tmp" in moment
    )
    expected_again = life(
        Machine.found(tmp_path / "again" / "run", is_deployed, *killed_in_checkpoint)
    )
    assert {key: expected_again[key] for key in expected} == expected
    tried: set[Any] = set()
    for number, (moment, files, objects) in enumerate(moments):
        kept = files
        if is_deployed:
            # Another instance goes on, from the bucket alone.
            kept = {name.removeprefix(PREFIX): data for name, data in objects.items()}
        state = digest(without_temporary(kept))
        if state not in tried:
            tried.add(state)
            here = {} if is_deployed else files
            machine = Machine.found(tmp_path / str(number) / "run", is_deployed, here, objects)
            check(machine, kept, expected, moment)
    assert len(moments) > 200 and len(tried) > 30, "the run's operations were not recorded"


def digest(files: Mapping[str, bytes]) -> int:
    return hash(tuple((name, zlib.crc32(data)) for name, data in sorted(files.items())))


def without_temporary(files: Files) -> dict[str, bytes]:
    """The number of bytes in a temporary file makes no difference, since nothing reads it."""
    return {name: b"" if name.endswith(TEMPORARY) else data for name, data in files.items()}


def test_wherever_the_disk_is_full_it_says_so_and_the_next_process_makes_the_same_history(
    tmp_path: Path,
) -> None:
    whole = Machine(tmp_path / "whole" / "run", is_deployed=False)
    undisturbed = Disk(whole.out.parent)
    whole.live(undisturbed)
    expected = history(whole)
    tried: set[Any] = set()
    for at, operation in enumerate(undisturbed.operations):
        if operation.split()[0] not in NEEDS_ROOM:
            continue
        machine = Machine(tmp_path / str(at) / "run", is_deployed=False)
        try:
            ended = machine.live(Disk(machine.out.parent).filled(at))
            code, said = ended.exit_code, ended.error or ""
        except (OSError, RunDirectoryError) as error:
            code, said = 2, str(error)
        if "report.html" not in operation:
            assert code and "the disk is full (" in said and "--resume" in said, operation
        files = machine.files
        # A complete file has the same contents in any run.
        state = (*files, files.get("rounds.jsonl", b"").count(b"\n"))
        if state not in tried:
            tried.add(state)
            check(machine, files, expected, operation)
