"""A run's directory in a bucket: what a learner on another machine finds there, whenever the first one vanished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import moto
import numpy as np
import pytest

from runtime.aws.learner.results_bucket import (
    ResultsBucket,
    ResultsError,
    SupersededError,
)
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.money.model import UPLOAD_INTERVAL_S
from runtime.money.work import ACTOR, Work
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.files import to_json, write_atomically
from runtime.records.run_directory import RunDirectory
from tests.fakes import ManualClock
from tests.helpers import cost_model, used
from tests.records.rows import a_row
from tests.simulators.aws import quick_moto  # noqa: F401

BUCKET, PREFIX = "nitro-results", "hopper/abc/"
ROUNDS, ACTORS = 3, 2
EXPERIMENT = experiment_from_tree(
    {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}, "scaler": {"actors_min": ACTORS}},
    source="test",
).resolved(is_deployed=True)


@pytest.fixture(scope="module")
def shared_s3() -> Iterator[Any]:
    with moto.mock_aws():
        client = boto3.client(
            "s3", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
        )
        client.create_bucket(Bucket=BUCKET)
        yield client


@pytest.fixture
def s3(shared_s3: Any) -> Any:
    """Returns a client with an empty bucket."""
    empty(shared_s3)
    return shared_s3


class Crash(BaseException):
    """The machine is gone."""


class Wire:
    """An S3 client that runs a hook before or after one of its calls."""

    def __init__(
        self,
        client: Any,
        *,
        at: int = -1,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        is_repeated: bool = False,
    ) -> None:
        """Args:
        at: The call's number, from 0.
        before, after: Hooks to run at that call.
        is_repeated: Whether the call's first answer is lost, so that it is sent again.
        """
        self._client, self._at, self._before, self._after, self._is_repeated = (
            client,
            at,
            before,
            after,
            is_repeated,
        )
        self.calls: list[str] = []

    def break_after(self, calls: int, *, is_done: bool) -> None:
        """Breaks after this many more calls: once the next one has been carried out, or before it."""
        self._at = len(self.calls) + calls
        self._before, self._after = (
            (lambda: None, answer_lost) if is_done else (answer_lost, lambda: None)
        )

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._client, name)
        if name not in ("put_object", "get_object", "head_object", "delete_object"):
            return operation

        def call(**arguments: Any) -> Any:
            self.calls.append(name)
            is_it = len(self.calls) - 1 == self._at
            if is_it:
                self._before()
            if is_it and self._is_repeated:
                operation(**arguments)
            answer = operation(**arguments)
            if is_it:
                self._after()
            return answer

        return call


def crash() -> None:
    raise Crash


def answer_lost() -> None:
    raise botocore.exceptions.ConnectionClosedError(endpoint_url="https://s3")


def refused(code: str, status: int = 412) -> Callable[[], None]:
    def refuse() -> None:
        raise botocore.exceptions.ClientError(
            {
                "Error": {"Code": code, "Message": "no"},
                "ResponseMetadata": {"HTTPStatusCode": status},
            },
            "PutObject",
        )

    return refuse


class Learner:
    """A machine with a run's directory, which does what `runtime.training.run` does with it but does not train."""

    def __init__(self, client: Any, path: Path, *, interval_s: float = UPLOAD_INTERVAL_S) -> None:
        """Args:
        interval_s: Seconds between two rounds.
        """
        self.clock, self._interval_s = ManualClock(), interval_s
        path.mkdir(parents=True, exist_ok=True)
        self.directory = RunDirectory(path)
        # Only its lock, which plays no part here.
        self.directory.close()
        self.bucket = ResultsBucket(client, BUCKET, PREFIX, path, self.clock)
        self.meter = Meter(cost_model(EXPERIMENT, traffic_bytes_max=1000), Budget(1.0))
        self.round_index = 0
        self.used_usd = 0.0
        """Dollars spent, or reserved, so far."""

    def restore(self) -> bool:
        found = self.bucket.download()
        checkpoint = load_newest_checkpoint(self.directory.path / "checkpoints", lambda *_: None)
        if checkpoint is not None:
            self.round_index = checkpoint.round_index
            self.meter.set_state(checkpoint.values["meter"])
        rows = self.directory.read_rounds()
        assert [row.round_index for row in rows] == list(range(1, len(rows) + 1))
        assert self.round_index <= len(rows) <= self.round_index + 1
        self.directory.keep_rounds(rows[: self.round_index])
        if (self.directory.path / "ledger.json").exists():
            ledger = json.loads((self.directory.path / "ledger.json").read_bytes())
            known = self.meter.get_state()
            self.meter.set_state(ledger)
            if self.meter.get_state()["budget"]["spent"] < known["budget"]["spent"]:
                self.meter.set_state(known)
        self.meter.forfeit()
        write_atomically(self.directory.path / "config.yaml", b"a: 1\n")
        self.save_ledger()
        return found

    def save_ledger(self) -> None:
        ledger = to_json(self.meter.get_state())
        self.bucket.save_ledger(
            ledger,
            promised_usd=self.meter.spent_usd + self.meter.reserved_usd,
            is_idle=self.meter.reserved_usd == 0.0,
        )
        self.used_usd = self.meter.spent_usd + self.meter.reserved_usd
        write_atomically(self.directory.path / "ledger.json", ledger)

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
        write_atomically(self.directory.path / layout.BEST_POLICY, b"%d" % round_index)
        save_checkpoint(
            self.directory.path / "checkpoints",
            Checkpoint(
                round_index, {"weights": np.full(3, round_index)}, {"meter": self.meter.get_state()}
            ),
        )
        write_atomically(self.directory.path / layout.POLICY, b"policy %d" % round_index)
        self.bucket.round_finished()
        self.save_ledger()
        self.round_index = round_index
        self.clock.advance(self._interval_s)

    def finish(self) -> None:
        self.meter.forfeit()
        self.save_ledger()
        write_atomically(self.directory.path / "summary.json", b"{}\n")
        self.bucket.finish()

    def live(self) -> None:
        """Runs from wherever the run is to its end."""
        self.restore()
        while self.round_index < ROUNDS:
            self.round()
        self.finish()


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


def objects(s3: Any) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {
        one["Key"]: s3.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read() for one in found
    }


def empty(s3: Any) -> None:
    if found := s3.list_objects_v2(Bucket=BUCKET).get("Contents"):
        s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": one["Key"]} for one in found]})


def ledger_usd(s3: Any) -> float:
    """Returns the dollars that the bucket's ledger covers."""
    with suppress(s3.exceptions.NoSuchKey):
        state = json.load(s3.get_object(Bucket=BUCKET, Key=f"{PREFIX}ledger.json")["Body"])[
            "budget"
        ]
        return (state["spent"] + sum(state["reserved"].values())) / state["units_per_usd"]
    return 0.0


# Up and down


def test_what_was_uploaded_comes_down_byte_for_byte(s3: Any, tmp_path: Path) -> None:
    first = Learner(s3, tmp_path / "first")
    (first.directory.path / layout.TENSORBOARD).mkdir()
    (
        first.directory.path / layout.TENSORBOARD / "events.out.tfevents.17.ip-10-0-0-1.7.0"
    ).write_bytes(bytes(range(256)))
    (first.directory.path / "events.jsonl").write_bytes(b'{"event": "run_started"}\n')
    (first.directory.path / "actors.log").write_bytes(b"hello\r\n\x00")
    first.live()
    second = Learner(s3, tmp_path / "second")
    assert second.bucket.download()
    assert contents(tmp_path / "second") == contents(tmp_path / "first")
    assert (
        {key.removeprefix(PREFIX) for key in objects(s3)}
        == contents(tmp_path / "first").keys()
        == {
            "actors.log",
            "best_policy.safetensors",
            "config.yaml",
            "events.jsonl",
            "ledger.json",
            "policy.safetensors",
            "rounds.jsonl",
            "summary.json",
            "tensorboard/events.out.tfevents.17.ip-10-0-0-1.7.0",
            *(
                f"checkpoints/round_00000{index}.{kind}"
                for index in (2, 3)
                for kind in ("json", "safetensors")
            ),
        }
    )


def test_nothing_there_is_nothing_changed(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket=BUCKET, Key="hopper/abcd/ledger.json", Body=b"of another run")
    learner = Learner(s3, tmp_path)
    (learner.directory.path / "rounds.jsonl").write_bytes(b"rows")
    assert not learner.bucket.download()
    assert contents(tmp_path) == {"rounds.jsonl": b"rows"}


def test_the_bucket_wins_over_what_the_directory_held(s3: Any, tmp_path: Path) -> None:
    Learner(s3, tmp_path / "first").live()
    stale = Learner(s3, tmp_path / "second")
    for _ in range(ROUNDS + 2):
        stale.meter.open_round(0, smallest=0)
        stale.directory.append_round(a_row(9))
        stale.meter.close_round(0.0)
    (stale.directory.path / "checkpoints").mkdir()
    (stale.directory.path / "checkpoints" / "round_000009.json").write_bytes(b"{}")
    (tmp_path / "second" / "notes.txt").write_bytes(b"mine")
    stale.bucket.download()
    assert contents(tmp_path / "second") == contents(tmp_path / "first") | {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    "key",
    [
        "../evil",
        "../../evil.jsonl",
        "tensorboard/..",
        "tensorboard/../../evil",
        "tensorboard/.hidden",
        "/etc/evil",
        "checkpoints/../ledger.json",
        "checkpoints/round_1.json.tmp",
        "checkpoints/round_x.json",
        "rounds.jsonl/evil",
        "launches/i-1",
        "boot/i-1-image.log",
        "ended.json",
        "cache.json",
        "evil",
        ".lock",
        "rounds.jsonl\n",
        "",
    ],
)
def test_other_keys_are_left_alone(s3: Any, tmp_path: Path, key: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=PREFIX + key, Body=b"evil")
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}ledger.json", Body=b"{}")
    directory = tmp_path / "a" / "b" / "run"
    learner = Learner(s3, directory)
    assert learner.bucket.download()
    assert contents(tmp_path) == {"a/b/run/ledger.json": b"{}"}


def test_a_learner_that_comes_after_the_run_was_put_aside_without_its_ledger_keeps_the_checkpoint(
    s3: Any, tmp_path: Path
) -> None:
    Learner(s3, tmp_path / "first").live()
    s3.delete_object(Bucket=BUCKET, Key=f"{PREFIX}ledger.json")
    second = Learner(s3, tmp_path / "second")
    assert second.restore()
    assert (second.round_index, second.meter.spent_usd > 0.0) == (ROUNDS, True)


# When and how much


def test_files_follow_at_most_every_interval_and_the_ledger_at_once(
    s3: Any, tmp_path: Path
) -> None:
    learner = Learner(s3, tmp_path, interval_s=UPLOAD_INTERVAL_S / 4)
    learner.restore()
    rows, promises = [], []
    for _ in range(10):
        learner.round()
        found = objects(s3)
        rows.append(found[f"{PREFIX}rounds.jsonl"].count(b"\n"))
        promises.append(ledger_usd(s3) >= learner.used_usd)
    assert rows == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]
    assert all(promises)
    learner.finish()
    assert objects(s3)[f"{PREFIX}rounds.jsonl"].count(b"\n") == 10
    assert ledger_usd(s3) == learner.meter.spent_usd


def test_only_what_changed_is_sent(s3: Any, tmp_path: Path) -> None:
    wire = Wire(s3)
    learner = Learner(wire, tmp_path)
    learner.restore()
    counts = []
    for _ in range(4):
        wire.calls.clear()
        learner.round()
        counts.append({name: wire.calls.count(name) for name in sorted(set(wire.calls))})
    # The ledger twice, rows, policy, best policy and two checkpoint files; the configuration only once.
    assert counts == [
        {"head_object": 1, "put_object": 8},
        {"head_object": 1, "put_object": 7},
        *[{"delete_object": 2, "head_object": 1, "put_object": 7}] * 2,
    ]
    wire.calls.clear()
    learner.bucket.finish()
    assert wire.calls == ["put_object", "head_object"]


def test_old_checkpoints_are_deleted_also_those_of_the_learner_before(
    s3: Any, tmp_path: Path
) -> None:
    Learner(s3, tmp_path / "first").live()
    second = Learner(s3, tmp_path / "second")
    second.restore()
    second.round()
    second.round()
    assert {key.removeprefix(PREFIX) for key in objects(s3) if "checkpoints" in key} == {
        f"checkpoints/round_00000{index}.{kind}"
        for index in (4, 5)
        for kind in ("json", "safetensors")
    }


def test_what_was_used_beyond_its_reservation_is_kept_too(s3: Any, tmp_path: Path) -> None:
    learner = Learner(s3, tmp_path)
    learner.meter.is_billed = True
    learner.meter.open_round(1, smallest=1)
    learner.save_ledger()
    learner.meter.settle(Work(ACTOR, 0), used(5000.0, is_metered=True))
    learner.meter.close_round(0.0)
    learner.save_ledger()
    assert ledger_usd(s3) == learner.meter.spent_usd > 0.05


def test_a_smaller_promise_is_new_after_an_idle_moment(s3: Any, tmp_path: Path) -> None:
    learner = Learner(s3, tmp_path)
    for actors in (8, 1):
        assert learner.meter.open_round(actors, smallest=1) == actors
        learner.save_ledger()
        assert ledger_usd(s3) == learner.meter.spent_usd + learner.meter.reserved_usd
        for slot in range(actors):
            learner.meter.cancel(Work(ACTOR, slot))
        learner.meter.close_round(0.0)
        learner.save_ledger()


# The machine vanishes


def test_wherever_the_machine_vanishes_the_next_one_goes_on(s3: Any, tmp_path: Path) -> None:
    whole = Wire(s3)
    Learner(whole, tmp_path / "whole").live()
    rows = (tmp_path / "whole" / "rounds.jsonl").read_bytes()
    resumed = []
    for at in range(len(whole.calls)):
        empty(s3)
        first = Learner(Wire(s3, at=at, before=crash), tmp_path / f"first-{at}")
        with pytest.raises(Crash):
            first.live()
        assert ledger_usd(s3) >= first.used_usd
        second = Learner(s3, tmp_path / f"second-{at}")
        second.restore()
        assert second.meter.spent_usd >= first.used_usd
        resumed.append(second.round_index)
        with suppress(FileNotFoundError):
            assert (
                int((second.directory.path / layout.BEST_POLICY).read_bytes()) <= second.round_index
            )
        with suppress(FileNotFoundError):
            assert rows.startswith((second.directory.path / "rounds.jsonl").read_bytes())
        if at % 4:
            continue
        second.live()
        assert (second.directory.path / "rounds.jsonl").read_bytes() == rows
        # Old checkpoints may remain if the run needed no new one.
        assert contents(tmp_path / f"second-{at}").keys() >= contents(tmp_path / "whole").keys()
    assert resumed == sorted(resumed)
    assert set(resumed) == set(range(ROUNDS + 1))


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_a_machine_that_vanishes_while_it_downloads_is_no_loss(
    s3: Any, tmp_path: Path, at: int
) -> None:
    Learner(s3, tmp_path / "first").live()
    with suppress(Crash):
        Learner(Wire(s3, at=at, before=crash), tmp_path / "second").restore()
    third = Learner(s3, tmp_path / "third")
    third.bucket.download()
    # All but the ledger, which the second learner may have written.
    assert ledger_usd(s3) > 0.0
    assert {**contents(tmp_path / "third"), "ledger.json": b""} == {
        **contents(tmp_path / "first"),
        "ledger.json": b"",
    }


def test_rows_without_a_whole_checkpoint_are_done_again(s3: Any, tmp_path: Path) -> None:
    rows = b"".join(b'{"round_index": %d}\n' % index for index in (1, 2, 3))
    for name, data in (
        ("ledger.json", b"{}"),
        ("rounds.jsonl", rows),
        ("checkpoints/round_000003.safetensors", b"x"),
    ):
        s3.put_object(Bucket=BUCKET, Key=PREFIX + name, Body=data)
    learner = Learner(s3, tmp_path)
    assert learner.bucket.download()
    assert "rounds.jsonl" not in contents(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/round_000002.safetensors.tmp",
        "checkpoints/round_000002.json.tmp",
        "ledger.json.tmp",
        "rounds.jsonl.tmp",
    ],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_killed_process_left_half_written_is_removed_and_ends_nothing(
    s3: Any, tmp_path: Path, name: str, is_kept: bool
) -> None:
    if is_kept:
        Learner(s3, tmp_path / "first").live()
    again = Learner(s3, tmp_path / "second")
    (again.directory.path / "checkpoints").mkdir()
    (tmp_path / "second" / name).write_bytes(b"half")
    (tmp_path / "second" / "notes.tmp").write_bytes(b"mine")
    again.live()
    assert again.round_index == ROUNDS
    found = contents(tmp_path / "second")
    assert (name in found, found["notes.tmp"]) == (False, b"mine")


@pytest.mark.parametrize(
    "name", ["checkpoints/round_x.json", "checkpoints/round_000009.json.old", "round_9.json"]
)
def test_a_name_that_is_nearly_a_checkpoints_is_none(s3: Any, tmp_path: Path, name: str) -> None:
    Learner(s3, tmp_path / "first").live()
    again = Learner(s3, tmp_path / "second")
    (again.directory.path / "checkpoints").mkdir()
    (tmp_path / "second" / name).write_bytes(b"mine")
    assert again.restore()
    assert contents(tmp_path / "second")[name] == b"mine"


def test_whatever_else_goes_wrong_may_go_better_at_the_next_attempt(
    s3: Any, tmp_path: Path
) -> None:
    """A bucket error restarts the learner a few times. Any other error would end the deployment."""
    Learner(s3, tmp_path / "first").live()
    again = Learner(s3, tmp_path / "second")
    (tmp_path / "second" / "checkpoints").write_bytes(b"no folder")
    with pytest.raises(
        ResultsError, match=f"{BUCKET}: the run cannot be put into .*second: FileExistsError: "
    ):
        again.bucket.download()


def test_a_run_whose_summary_is_there_is_there_as_a_whole(s3: Any, tmp_path: Path) -> None:
    """A learner that finds the summary treats the run as ended and uploads nothing more."""
    wire = Wire(s3)
    Learner(wire, tmp_path / "first").live()
    before = objects(s3)
    empty(s3)
    last = Learner(Wire(s3, at=len(wire.calls) - 1, before=crash), tmp_path / "second")
    with pytest.raises(Crash):
        last.live()
    assert objects(s3).keys() == before.keys() - {f"{PREFIX}summary.json"}


# Two learners


def test_of_two_learners_only_the_newer_goes_on(s3: Any, tmp_path: Path) -> None:
    older, newer = Learner(s3, tmp_path / "older"), Learner(s3, tmp_path / "newer")
    older.restore()
    older.round()
    newer.bucket.download()
    before = objects(s3)
    with pytest.raises(SupersededError, match="another learner continues this run"):
        older.round()
    assert older.bucket.is_superseded
    older.bucket.finish()
    assert objects(s3) == before
    newer.live()
    assert newer.round_index == ROUNDS


def test_the_newer_one_takes_the_run_over_though_the_older_one_writes_meanwhile(
    s3: Any, tmp_path: Path
) -> None:
    older = Learner(s3, tmp_path / "older")
    older.restore()
    older.round()
    # Between the newer learner's reading the ledger and writing it.
    newer = Learner(Wire(s3, at=1, before=older.round), tmp_path / "newer")
    newer.restore()
    assert (newer.round_index, newer.bucket.is_superseded) == (2, False)
    with pytest.raises(SupersededError):
        older.round()
    newer.live()


def test_against_one_that_writes_for_ever_it_gives_up(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}ledger.json", Body=b"{}")
    learner = Learner(s3, tmp_path)
    counter = iter(range(1000))

    class Meddled(Wire):
        def __getattr__(self, name: str) -> Any:
            if name == "put_object":
                s3.put_object(
                    Bucket=BUCKET, Key=f"{PREFIX}ledger.json", Body=b"{} %d" % next(counter)
                )
            return super().__getattr__(name)

    learner.bucket = ResultsBucket(Meddled(s3), BUCKET, PREFIX, tmp_path)
    with pytest.raises(SupersededError):
        learner.bucket.download()
    assert next(counter) < 20
    assert contents(tmp_path) == {}


def test_the_very_first_writers_race_has_one_winner(s3: Any, tmp_path: Path) -> None:
    one, other = (Learner(s3, tmp_path / name) for name in ("one", "other"))
    one.restore()
    other.restore()
    one.round()
    with pytest.raises(SupersededError):
        other.round()
    assert ledger_usd(s3) >= one.used_usd


@pytest.mark.parametrize("at", range(4, 28))
def test_a_learner_superseded_amid_an_upload_leaves_a_run_that_goes_on(
    s3: Any, tmp_path: Path, at: int
) -> None:
    """An upload in progress completes after another learner has read the ledger, or even written it."""
    newer, third = Learner(s3, tmp_path / "newer"), Learner(s3, tmp_path / "third")

    def take_over() -> None:
        newer.restore()
        while newer.round_index < ROUNDS:
            newer.round()

    older = Learner(Wire(s3, at=at, before=take_over), tmp_path / "older")
    with suppress(SupersededError):
        older.live()
    third.live()
    assert (third.round_index, third.bucket.is_superseded) == (ROUNDS, False)
    kept = objects(s3)
    assert kept[f"{PREFIX}rounds.jsonl"] == (third.directory.path / "rounds.jsonl").read_bytes()
    assert {key.removeprefix(PREFIX) for key in kept if "checkpoints/" in key} == {
        name for name in contents(tmp_path / "third") if "checkpoints/" in name
    }


def test_a_superseded_learner_uploads_nothing_at_the_end_of_its_round(
    s3: Any, tmp_path: Path
) -> None:
    older, newer = Learner(s3, tmp_path / "older"), Learner(s3, tmp_path / "newer")
    older.restore()
    older.round()
    older.bucket.round_finished = lambda: None
    older.round()
    del older.bucket.round_finished
    newer.restore()
    before = objects(s3)
    with pytest.raises(SupersededError):
        older.bucket.round_finished()
    assert objects(s3) == before


def test_a_superseded_learner_that_did_not_know_it_uploads_nothing_when_it_ends(
    s3: Any, tmp_path: Path
) -> None:
    older, newer = Learner(s3, tmp_path / "older"), Learner(s3, tmp_path / "newer")
    older.restore()
    older.round()
    newer.restore()
    before = objects(s3)
    write_atomically(older.directory.path / "summary.json", b"{}\n")
    with pytest.raises(SupersededError):
        older.bucket.finish()
    assert objects(s3) == before


# A wire that loses answers


def test_a_request_whose_answer_was_lost_is_sent_again_without_harm(
    s3: Any, tmp_path: Path
) -> None:
    """S3 refuses the second write of a ledger because the object to replace has changed."""
    for at in range(9):
        empty(s3)
        learner = Learner(Wire(s3, at=at, is_repeated=True), tmp_path / str(at))
        learner.live()
        assert (learner.round_index, learner.bucket.is_superseded) == (ROUNDS, False)
        assert ledger_usd(s3) == learner.meter.spent_usd


def test_so_is_the_request_that_takes_the_run_over(s3: Any, tmp_path: Path) -> None:
    Learner(s3, tmp_path / "first").live()
    second = Learner(Wire(s3, at=1, is_repeated=True), tmp_path / "second")
    second.live()
    assert not second.bucket.is_superseded


def test_a_ledger_that_was_written_though_the_call_failed_is_our_own(
    s3: Any, tmp_path: Path
) -> None:
    """The run ends at this point, and its files are uploaded."""
    wire = Wire(s3)
    learner = Learner(wire, tmp_path)
    learner.restore()
    learner.round()
    wire.break_after(0, is_done=True)
    learner.meter.open_round(1, smallest=1)
    with pytest.raises(ResultsError, match=f"the results bucket {BUCKET}: "):
        learner.save_ledger()
    learner.meter.forfeit()
    write_atomically(learner.directory.path / "ledger.json", to_json(learner.meter.get_state()))
    write_atomically(learner.directory.path / "summary.json", b"{}\n")
    learner.bucket.finish()
    assert f"{PREFIX}summary.json" in objects(s3)
    assert ledger_usd(s3) == learner.meter.spent_usd


def test_a_conflict_with_nobody_is_tried_again(s3: Any, tmp_path: Path) -> None:
    learner = Learner(Wire(s3, at=0, before=refused("ConditionalRequestConflict", 409)), tmp_path)
    learner.live()
    assert ledger_usd(s3) == learner.meter.spent_usd


def test_a_conflict_without_end_is_told(s3: Any, tmp_path: Path) -> None:
    class Refusing(Wire):
        def __getattr__(self, name: str) -> Any:
            return (
                (lambda **_: refused("ConditionalRequestConflict", 409)())
                if name == "put_object"
                else (super().__getattr__(name))
            )

    bucket = ResultsBucket(Refusing(s3), BUCKET, PREFIX, tmp_path)
    with pytest.raises(ResultsError, match=f"{BUCKET}: the ledger is refused") as error:
        bucket.save_ledger(b"{}", promised_usd=1.0, is_idle=False)
    assert not isinstance(error.value, SupersededError)


# Writes that S3 refuses


@pytest.mark.parametrize(
    "do",
    [
        lambda bucket: bucket.download(),
        lambda bucket: bucket.save_ledger(b"{}", promised_usd=1.0, is_idle=False),
        lambda bucket: bucket.round_finished(),
    ],
    ids=["download", "save_ledger", "round_finished"],
)
def test_errors_name_the_bucket(
    s3: Any, tmp_path: Path, do: Callable[[ResultsBucket], None]
) -> None:
    bucket = ResultsBucket(s3, "nobody-has-made-it", PREFIX, tmp_path)
    with pytest.raises(ResultsError, match="the results bucket nobody-has-made-it: ") as error:
        do(bucket)
    assert not isinstance(error.value, SupersededError)


def test_a_stream_that_breaks_is_an_error_of_the_bucket(s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}ledger.json", Body=b"{}")

    class Broken:
        def read(self) -> bytes:
            raise botocore.exceptions.ReadTimeoutError(endpoint_url="https://s3")

    class Client(Wire):
        def __getattr__(self, name: str) -> Any:
            if name == "get_object":
                return lambda **_: {"ETag": '"x"', "Metadata": {}, "Body": Broken()}
            return super().__getattr__(name)

    with pytest.raises(ResultsError, match=BUCKET):
        ResultsBucket(Client(s3), BUCKET, PREFIX, tmp_path).download()


def test_a_failing_upload_is_made_up_for(s3: Any, tmp_path: Path) -> None:
    wire = Wire(s3)
    learner = Learner(wire, tmp_path)
    learner.restore()
    wire.break_after(5, is_done=False)
    with pytest.raises(ResultsError):
        learner.round()
    learner.finish()
    assert {key.removeprefix(PREFIX): data for key, data in objects(s3).items()} == contents(
        tmp_path
    )
