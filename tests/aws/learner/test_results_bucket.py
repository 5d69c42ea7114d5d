"""A deployed run's ledger and files: what a learner on another machine finds, whenever the first one vanished.

Ledger, heartbeat, records and bucket are the real ones, against moto. A machine is a directory; it crashes at a call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import moto
import numpy as np
import pytest

from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.heartbeat import Heartbeat
from runtime.aws.learner.records import LedgerRecords
from runtime.aws.learner.results_bucket import ResultsBucket
from runtime.aws.ledger import Ledger, LedgerError, LostRunError, TeardownOrderedError
from runtime.aws.run_files import ResultsError, RunFiles
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.model import UPLOAD_INTERVAL_S
from runtime.money.prices import PRICES
from runtime.money.work import ACTOR, Work
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.files import to_json, write_atomically
from runtime.records.run_directory import RunDirectory
from tests.fakes import ManualClock
from tests.helpers import cost_model, create_ledger_table, used
from tests.records.rows import a_row
from tests.simulators.aws import quick_moto  # noqa: F401

BUCKET, PREFIX, TABLE = "nitro-results", "hopper/abc/", "ledger"
RUN, STACK, NOW_S = "hopper/abc", "arn:of:stack", 1e9
ROUNDS, ACTORS = 2, 2
EXPERIMENT = experiment_from_tree(
    {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}, "scaler": {"actors_min": ACTORS}},
    source="test",
).resolved(is_deployed=True)
DEPLOYMENT = Deployment(
    **dict.fromkeys(Deployment.__dataclass_fields__, "")
    | {"experiment": "hopper", "run": "abc", "stack": STACK}
)
SENT = ("put_object", "get_object", "delete_object", "update_item", "get_item")


class Aws:
    """A bucket and a table, and calls that crash, get lost, or make something else happen."""

    def __init__(self) -> None:
        login = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.s3, self.table = boto3.client("s3", **login), boto3.client("dynamodb", **login)
        self.s3.create_bucket(Bucket=BUCKET)
        create_ledger_table(self.table, TABLE)
        self.ledger = Ledger(self.table, TABLE)
        self.begin()

    def begin(self) -> None:
        """Empties both, and lets the guard notice a deployment."""
        for key in self.objects():
            self.s3.delete_object(Bucket=BUCKET, Key=key)
        self.table.delete_item(TableName=TABLE, Key={"run": {"S": RUN}})
        self.ledger.notice(RUN, stack=STACK, began_at_s=NOW_S)

    def objects(self) -> dict[str, bytes]:
        found = self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {
            one["Key"]: self.s3.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
            for one in found
        }

    @property
    def promised_usd(self) -> float:
        entry = self.ledger.get(RUN)
        assert entry is not None
        return entry.promised_usd


class Wire:
    """Both clients of one machine.

    Attributes:
        calls: Names of calls that were sent.
        at: Number of the call at which something happens; -1 for never.
        before, after: What happens.
    """

    def __init__(
        self,
        aws: Aws,
        *,
        at: int = -1,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.aws, self.at, self.before, self.after = aws, at, before, after
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.aws.table if name.endswith("_item") else self.aws.s3, name)
        if name not in SENT:
            return real

        def call(**arguments: Any) -> Any:
            self.calls.append(name)
            is_it = len(self.calls) - 1 == self.at
            if is_it:
                self.before()
            answer = real(**arguments)
            if is_it:
                self.after()
            return answer

        return call


class Crash(BaseException):
    """The machine is gone."""


def crash() -> None:
    raise Crash


def lose_answer() -> None:
    raise botocore.exceptions.ConnectionClosedError(endpoint_url="https://aws")


class Learner:
    """A machine with a run's directory, which does what `runtime.training.run` does with it but does not train."""

    def __init__(
        self,
        wire: Any,
        path: Path,
        *,
        interval_s: float = UPLOAD_INTERVAL_S,
        deployment: Deployment = DEPLOYMENT,
    ) -> None:
        """Args:
        interval_s: Seconds between two rounds.
        """
        self.clock, self._interval_s, self._wire = ManualClock(), interval_s, wire
        path.mkdir(parents=True, exist_ok=True)
        self.directory = RunDirectory(path)
        # Only its lock, which plays no part here.
        self.directory.close()
        self.path = self.directory.path
        self.heartbeat = Heartbeat(
            Ledger(wire, TABLE), deployment, now=lambda: NOW_S, ended=lambda: None
        )
        files = RunFiles(wire, BUCKET, PREFIX)
        self.bucket = ResultsBucket(files, path, self.heartbeat.check_owner, self.clock)
        model = cost_model(EXPERIMENT, traffic_bytes_max=1000, is_deployed=True)
        self.meter = Meter(model, Budget(1.0), clock=BillingClock(NOW_S, now=lambda: NOW_S))
        self.round_index = 0
        self.used_usd = 0.0
        """Dollars spent, or reserved for work, so far. A successor bills the time that really passed."""

    def restore(self) -> None:
        entry = self.heartbeat.take_over()
        self.records = LedgerRecords(
            entry, self.heartbeat, self.meter, budget_usd=1.0, due_s=lambda: NOW_S
        )
        self.bucket.download(entry.ledger)
        checkpoint = load_newest_checkpoint(self.path / "checkpoints", lambda *_: None)
        if checkpoint is not None:
            self.round_index = checkpoint.round_index
            self.meter.set_state(checkpoint.values["meter"])
        rows = self.directory.read_rounds()
        assert [row.round_index for row in rows] == list(range(1, len(rows) + 1))
        assert self.round_index <= len(rows) <= self.round_index + 1
        self.directory.keep_rounds(rows[: self.round_index])
        if (self.path / layout.LEDGER).exists():
            self.meter.set_state(json.loads((self.path / layout.LEDGER).read_bytes()))
        unknown_usd = self.records.spent_usd() - self.meter.spent_usd - self.meter.reserved_usd
        # A first write of the ledger costs something that it cannot contain.
        assert unknown_usd < 1e-5 or not (self.path / layout.LEDGER).exists()
        if unknown_usd > 0.0:
            self.meter.budget.spend(unknown_usd)
        self.meter.forfeit()
        write_atomically(self.path / "config.yaml", b"a: 1\n")
        self.save_ledger()

    def save_ledger(self) -> None:
        ledger = to_json(self.meter.get_state())
        self.records.ledger_changed(ledger)
        budget = self.meter.get_state()["budget"]
        at_work = sum(units for name, units in budget["reserved"].items() if name != "round")
        self.used_usd = (budget["spent"] + at_work) / budget["units_per_usd"]
        write_atomically(self.path / layout.LEDGER, ledger)

    def round(self) -> None:
        round_index = self.round_index + 1
        assert self.meter.open_round(ACTORS, smallest=ACTORS) == ACTORS
        self.save_ledger()
        self.meter.settle(Work(ACTOR, 0), used(20.0, 1.0, is_metered=True))
        assert self.meter.reserve([Work(ACTOR, 1, 1)])
        self.save_ledger()
        for attempt in range(2):
            self.meter.settle(Work(ACTOR, 1, attempt), used(60.0, is_metered=True))
        self.save_ledger()
        self.meter.close_round(5.0)
        self.used_usd = self.meter.spent_usd
        self.directory.append_round(a_row(round_index, kl=round_index / 7))
        write_atomically(self.path / layout.BEST_POLICY, b"%d" % round_index)
        save_checkpoint(
            self.path / "checkpoints",
            Checkpoint(
                round_index, {"weights": np.full(3, round_index)}, {"meter": self.meter.get_state()}
            ),
        )
        write_atomically(self.path / layout.POLICY, b"policy %d" % round_index)
        self.bucket.round_finished()
        self.save_ledger()
        self.round_index = round_index
        self.clock.advance(self._interval_s)

    def finish(self) -> None:
        self.meter.forfeit()
        self.save_ledger()
        write_atomically(self.path / "summary.json", b"{}\n")
        self.heartbeat.write()
        self.bucket.upload()

    def live(self) -> None:
        """Runs from wherever the run is to its end."""
        self.restore()
        while self.round_index < ROUNDS:
            self.round()
        self.finish()


def contents(path: Path) -> dict[str, bytes]:
    """Returns the files that the bucket keeps."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in (".lock", layout.LEDGER)
    }


@pytest.fixture(scope="module")
def shared_aws() -> Iterator[Aws]:
    with moto.mock_aws():
        yield Aws()


@pytest.fixture
def aws(shared_aws: Aws) -> Aws:
    shared_aws.begin()
    return shared_aws


# Up and down


def test_what_was_uploaded_comes_down_byte_for_byte_and_the_ledger_from_its_item(
    aws: Aws, tmp_path: Path
) -> None:
    first = Learner(Wire(aws), tmp_path / "first")
    events = first.path / layout.TENSORBOARD / "events.out.tfevents.17.ip-10-0-0-1.7.0"
    events.parent.mkdir()
    events.write_bytes(bytes(range(256)))
    (first.path / "actors.log").write_bytes(b"hello\r\n\x00")
    first.live()
    second = Learner(Wire(aws), tmp_path / "second")
    second.path.joinpath("notes.txt").write_bytes(b"mine")
    second.directory.append_round(a_row(9))
    entry = second.heartbeat.take_over()
    second.bucket.download(entry.ledger)
    assert contents(second.path) == contents(first.path) | {"notes.txt": b"mine"}
    assert (second.path / layout.LEDGER).read_bytes() == (first.path / layout.LEDGER).read_bytes()
    assert {key.removeprefix(PREFIX) for key in aws.objects()} == contents(first.path).keys()
    assert entry.promised_usd == pytest.approx(first.meter.spent_usd)


@pytest.mark.parametrize(
    "key",
    ["../evil", "tensorboard/../../evil", "launches/i-1", "ended.json", ".lock", "ledger.json"],
)
def test_other_keys_are_left_alone(aws: Aws, tmp_path: Path, key: str) -> None:
    aws.s3.put_object(Bucket=BUCKET, Key=PREFIX + key, Body=b"evil")
    learner = Learner(Wire(aws), tmp_path / "a" / "run")
    learner.bucket.download("{}")
    assert contents(tmp_path) == {}
    assert (learner.path / layout.LEDGER).read_bytes() == b"{}"


def test_a_closed_account_continues_from_the_checkpoint_with_what_the_guard_counted(
    aws: Aws, tmp_path: Path
) -> None:
    Learner(Wire(aws), tmp_path / "first").live()
    aws.ledger.order(RUN, stack=STACK, reason="budget", now_s=NOW_S)
    late = Learner(Wire(aws), tmp_path / "late")
    with pytest.raises(TeardownOrderedError):
        late.restore()
    aws.ledger.close(RUN, stack=STACK, spent_usd=0.5, now_s=NOW_S)
    aws.ledger.notice(RUN, stack="arn:of:another", began_at_s=NOW_S)
    again = replace(DEPLOYMENT, stack="arn:of:another")
    second = Learner(Wire(aws), tmp_path / "second", deployment=again)
    second.restore()
    assert (second.round_index, second.meter.spent_usd) == (ROUNDS, pytest.approx(0.5, abs=1e-4))


# When and how much


def test_files_follow_at_most_every_interval_and_reservations_at_once(
    aws: Aws, tmp_path: Path
) -> None:
    wire = Wire(aws)
    learner = Learner(wire, tmp_path, interval_s=UPLOAD_INTERVAL_S / 4)
    learner.restore()
    rows = []
    for _ in range(9):
        wire.calls.clear()
        learner.round()
        # One for the round, and one for the retry if it needs more than the round promised.
        assert 1 <= wire.calls.count("update_item") <= 2
        assert aws.promised_usd >= learner.used_usd
        rows.append(aws.objects()[f"{PREFIX}rounds.jsonl"].count(b"\n"))
    assert rows == [1, 1, 1, 1, 5, 5, 5, 5, 9]
    learner.finish()
    assert aws.promised_usd == pytest.approx(learner.meter.spent_usd)
    wire.calls.clear()
    learner.bucket.upload()
    assert wire.calls == ["get_item"], "only what changed is sent"


def test_each_write_of_the_ledger_is_in_its_rounds_bill(aws: Aws, tmp_path: Path) -> None:
    learner = Learner(Wire(aws), tmp_path)
    learner.restore()
    assert learner.meter.open_round(ACTORS, smallest=ACTORS) == ACTORS
    learner.save_ledger()
    for slot in range(ACTORS):
        learner.meter.cancel(Work(ACTOR, slot))
    learner.save_ledger()
    # Four KiB at an eighth of the price of a write to the bucket.
    usd = 4 * 0.125 * PRICES.put_usd
    assert learner.meter.close_round(0.0).round_cost_usd == pytest.approx(usd)


def test_a_heartbeat_never_writes_less_than_is_reserved(aws: Aws, tmp_path: Path) -> None:
    learner = Learner(Wire(aws), tmp_path)
    learner.restore()
    for actors in (8, 1, 3):
        assert learner.meter.open_round(actors, smallest=1) == actors
        learner.save_ledger()
        for slot in range(actors):
            learner.meter.settle(Work(ACTOR, slot), used(1.0, is_metered=True))
            learner.save_ledger()
            learner.heartbeat.write()
            assert learner.meter.reserve([Work(ACTOR, slot, 1)]) == 1
            learner.save_ledger()
            assert aws.promised_usd >= learner.meter.spent_usd + learner.meter.reserved_usd - 1e-12
            learner.meter.cancel(Work(ACTOR, slot, 1))
        learner.meter.close_round(0.0)
        learner.save_ledger()


# The machine vanishes, another takes over, answers are lost


def test_wherever_the_machine_vanishes_the_next_one_goes_on(aws: Aws, tmp_path: Path) -> None:
    whole = Wire(aws)
    Learner(whole, tmp_path / "whole").live()
    rows = (tmp_path / "whole" / "rounds.jsonl").read_bytes()
    resumed = []
    for at in range(len(whole.calls)):
        aws.begin()
        first = Learner(Wire(aws, at=at, before=crash), tmp_path / f"first-{at}")
        with pytest.raises(Crash):
            first.live()
        assert aws.promised_usd >= first.used_usd - 1e-9
        second = Learner(Wire(aws), tmp_path / f"second-{at}")
        second.restore()
        assert second.meter.spent_usd >= first.used_usd - 1e-9
        resumed.append(second.round_index)
        with suppress(FileNotFoundError):
            assert int((second.path / layout.BEST_POLICY).read_bytes()) <= second.round_index
        with suppress(FileNotFoundError):
            assert rows.startswith((second.path / "rounds.jsonl").read_bytes())
        if at % 4:
            continue
        second.live()
        assert (second.path / "rounds.jsonl").read_bytes() == rows
        # Old checkpoints may remain if the run needed no new one.
        assert contents(second.path).keys() >= contents(tmp_path / "whole").keys()
    assert resumed == sorted(resumed)
    assert set(resumed) == set(range(ROUNDS + 1))


@pytest.mark.parametrize("seed", range(8))
def test_in_any_history_money_is_counted_once_and_the_newest_learner_ends_the_run(
    aws: Aws, tmp_path: Path, seed: int
) -> None:
    """Learners crash, lose answers and are superseded at random calls. One that lost the run stops before it spends."""
    draw = random.Random(seed)
    used_usd = 0.0
    for number in range(4):
        newer = Learner(Wire(aws), tmp_path / f"newer-{number}")
        happens = draw.choice([crash, lose_answer, newer.restore])
        wire = Wire(aws, at=draw.randrange(40))
        # At the very call, or right after it: its answer does not come.
        setattr(wire, draw.choice(["before", "after"]), happens)
        older = Learner(wire, tmp_path / f"older-{number}")
        with suppress(Crash, LedgerError, ResultsError):
            older.live()
        used_usd = max(used_usd, older.used_usd)
        assert aws.promised_usd >= used_usd - 1e-9
        is_lost = hasattr(older, "records") and hasattr(newer, "records")
        if is_lost and older.round_index < ROUNDS:
            before = aws.objects()
            older.meter.forfeit()
            with pytest.raises(LostRunError):
                older.round()
            with pytest.raises(LostRunError):
                older.bucket.upload()
            assert aws.objects() == before
    last = Learner(Wire(aws), tmp_path / "last")
    last.live()
    assert last.round_index == ROUNDS
    assert last.meter.spent_usd >= used_usd - 1e-9
    kept = aws.objects()
    assert kept[f"{PREFIX}rounds.jsonl"] == (last.path / "rounds.jsonl").read_bytes()
    assert {key.removeprefix(PREFIX) for key in kept if "checkpoints/" in key} >= {
        name for name in contents(last.path) if "checkpoints/" in name
    }


@pytest.mark.parametrize("name", ["checkpoints/round_000002.json.tmp", "rounds.jsonl.tmp"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_killed_process_left_half_written_is_removed_and_ends_nothing(
    aws: Aws, tmp_path: Path, name: str, is_kept: bool
) -> None:
    if is_kept:
        Learner(Wire(aws), tmp_path / "first").live()
    again = Learner(Wire(aws), tmp_path / "second")
    (again.path / "checkpoints").mkdir()
    (again.path / name).write_bytes(b"half")
    (again.path / "notes.tmp").write_bytes(b"mine")
    again.live()
    found = contents(again.path)
    assert (again.round_index, name in found, found["notes.tmp"]) == (ROUNDS, False, b"mine")


@pytest.mark.parametrize("is_begun", [True, False])
def test_only_rounds_with_a_row_and_a_checkpoint_count(
    aws: Aws, tmp_path: Path, is_begun: bool
) -> None:
    """A learner that has lost the run may leave a checkpoint ahead of the rows, or a half one with rows."""
    if is_begun:
        Learner(Wire(aws), tmp_path / "first").live()
    for name in ["rounds.jsonl"] * (not is_begun) + ["checkpoints/round_000099.safetensors"]:
        aws.s3.put_object(Bucket=BUCKET, Key=PREFIX + name, Body=b"{}\n")
    if is_begun:
        aws.s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoints/round_000099.json", Body=b"{}\n")
    learner = Learner(Wire(aws), tmp_path / "second")
    learner.bucket.download("{}")
    found = contents(learner.path)
    assert ("rounds.jsonl" in found) == is_begun
    assert ("checkpoints/round_000099.json" in found) is False


def test_checkpoints_of_which_none_has_a_row_stay_since_rows_are_missing(
    aws: Aws, tmp_path: Path
) -> None:
    name = "checkpoints/round_000099.json"
    aws.s3.put_object(Bucket=BUCKET, Key=PREFIX + name, Body=b"{}\n")
    learner = Learner(Wire(aws), tmp_path / "run")
    learner.bucket.download("{}")
    assert name in contents(learner.path)


def test_a_run_whose_summary_is_there_is_there_as_a_whole(aws: Aws, tmp_path: Path) -> None:
    """A learner that finds the summary treats the run as ended and uploads nothing more."""
    wire = Wire(aws)
    Learner(wire, tmp_path / "first").live()
    before = aws.objects()
    aws.begin()
    last = Learner(Wire(aws, at=len(wire.calls) - 1, before=crash), tmp_path / "second")
    with pytest.raises(Crash):
        last.live()
    assert aws.objects().keys() == before.keys() - {f"{PREFIX}summary.json"}


# Errors


def test_a_failing_upload_is_made_up_for(aws: Aws, tmp_path: Path) -> None:
    wire = Wire(aws)
    learner = Learner(wire, tmp_path)
    learner.restore()
    wire.at, wire.before = len(wire.calls) + 5, lose_answer
    with pytest.raises(ResultsError, match=f"the results bucket s3://{BUCKET}/{PREFIX}: "):
        learner.round()
    learner.finish()
    assert {key.removeprefix(PREFIX): data for key, data in aws.objects().items()} == contents(
        tmp_path
    )


def test_whatever_else_goes_wrong_may_go_better_at_the_next_attempt(
    aws: Aws, tmp_path: Path
) -> None:
    """A bucket error restarts the learner a few times. Any other error would end the deployment."""
    Learner(Wire(aws), tmp_path / "first").live()
    again = Learner(Wire(aws), tmp_path / "second")
    (again.path / "checkpoints").write_bytes(b"no folder")
    with pytest.raises(
        ResultsError, match=f"{PREFIX}: the run cannot be put into .*second: FileExistsError: "
    ):
        again.bucket.download("")
