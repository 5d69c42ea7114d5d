"""``python -m runtime results``, with real boto3, against a moto server."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from runtime.aws.run_files import RunFiles
from tests import helpers
from tests.aws.operations.accounts import DELETED_STACK, Account, flat, start
from tests.helpers import SMALL_EXPERIMENT, run_command

ENDED = b'{"stop_reason": "max_rounds", "error": null, "ended_at": "2026-01-02T03:04:05Z"}'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds, as a deployed learner leaves it."""
    folder = tmp_path_factory.mktemp("trained")
    file = folder / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    done = helpers.train(file, folder / "run", "--set", "stop.max_rounds=3")
    assert done.returncode == 0, done.stderr
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace("kind: local", "kind: lambda"))
    return folder / "run"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def keep(aws: Account, trained: Path, run: str = "first", **more: bytes) -> str:
    """Puts the run into the bucket; returns the bucket's name."""
    bucket = aws.make_bucket()
    files = {
        **files_of(trained),
        "report.html": b"<script>alert(1)</script>",
        "launches/1/i-1": b"now",
        "ended.json": ENDED,
    }
    del files["ledger.json"]
    aws.upload(bucket, f"hopper/{run}/", files)
    return bucket


def test_a_downloaded_run_can_be_evaluated_and_gone_on_with_and_all_its_dollars_count(
    aws: Account, trained: Path
) -> None:
    keep(aws, trained)
    # The learner was killed while a round was under way, and the guard has not settled it yet.
    start(aws.make_guard(), DELETED_STACK, spent_usd=0.25, reserved_usd=0.5)
    text = aws.run("results", "hopper")
    line = r"first 3 rounds, evaluated [\d.,-]+, spent \$0\.7500, last change \d{4}-.*, max_rounds"
    assert re.search(line, flat(text))
    out = aws.tmp_path / "runs" / "hopper-first"
    found = files_of(out)
    assert b"stopped by" in found["report.html"], (
        "made here, since a learner's own could contain any script"
    )
    assert found == {
        **files_of(trained),
        "ended.json": ENDED,
        "report.html": found["report.html"],
        "ledger.json": found["ledger.json"],
    }
    evaluated = run_command("evaluate", str(out))
    assert evaluated.returncode == 0, evaluated.stderr
    (line,) = [line for line in text.splitlines() if "--resume" in line]
    arguments = line.partition("python -m runtime ")[2].split()
    resumed = run_command(
        *arguments, "--set", "stop.max_rounds=4", "--set", "fleet.processes=2", cwd=aws.tmp_path
    )
    assert resumed.returncode == 0, resumed.stderr
    assert [row["round_index"] for row in helpers.rounds(out)] == [1, 2, 3, 4]
    assert helpers.summary(out)["budget_usd"] == 2.0
    assert 0.75 < helpers.summary(out)["spent_usd"] < 0.8
    assert not [one for one in helpers.events(out) if one["event"] == "ledger_unreadable"]
    assert "was continued here" in aws.run("results", "hopper", code=2)


def test_a_download_follows_the_bucket_and_does_not_touch_other_files(
    aws: Account, trained: Path
) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/first/", {"checkpoints/round_000001.json": b"{}"})
    aws.run("results", "hopper", "--out", "x")
    (aws.tmp_path / "x" / "notes.txt").write_bytes(b"mine")
    aws.client("s3").delete_object(Bucket=bucket, Key="hopper/first/checkpoints/round_000001.json")
    aws.upload(bucket, "hopper/first/", {"actors.log": b"newer"})
    aws.run("results", "hopper", "--out", "x")
    found = files_of(aws.tmp_path / "x")
    assert "checkpoints/round_000001.json" not in found
    assert (found["notes.txt"], found["actors.log"]) == (b"mine", b"newer")


def test_a_directory_of_another_run_is_left_alone(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    shutil.copytree(trained, aws.tmp_path / "mine")
    before = files_of(aws.tmp_path / "mine")
    assert "holds another run" in aws.run("results", "hopper", "--out", "mine", code=2)
    assert files_of(aws.tmp_path / "mine") == before
    aws.run("results", "hopper", "--out", "x")
    aws.upload(bucket, "hopper/second/", files_of(trained))
    assert "holds another run" in aws.run(
        "results", "hopper", "--run", "second", "--out", "x", code=2
    )


def test_names_that_are_no_runs_files_stay_in_the_bucket(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    names = ["../../escaped", "a/../../b", ".lock", "tensorboard/__init__.py", "sitecustomize.py"]
    names += [f"checkpoints/round_{'1' * 300}.json", ".download.json", "wandb.json"]
    aws.upload(bucket, "hopper/first/", dict.fromkeys(names, b"x"))
    aws.run("results", "hopper", "--out", "inner/x")
    assert not (aws.tmp_path / "escaped").exists() and not (aws.tmp_path / "inner" / "b").exists()
    out = aws.tmp_path / "inner" / "x"
    assert files_of(out).keys() | {"ledger.json"} == files_of(trained).keys() | {"ended.json"}
    assert json.loads((out / ".download.json").read_bytes())["source"] == (
        f"s3://{bucket}/hopper/first/"
    ), "it says that nothing here is to be trusted"


def test_a_checkpoint_that_is_deleted_during_the_download_is_done_without(
    aws: Account, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = keep(aws, trained)
    old = "checkpoints/round_000001.json"
    aws.upload(bucket, "hopper/first/", {old: b"{}"})
    read = RunFiles.read

    def read_late(self: RunFiles, name: str, **part: str) -> bytes:
        if name == old:
            aws.client("s3").delete_object(Bucket=bucket, Key=f"hopper/first/{old}")
        return read(self, name, **part)

    monkeypatch.setattr(RunFiles, "read", read_late)
    aws.run("results", "hopper", "--out", "x")
    assert old not in files_of(aws.tmp_path / "x")


def test_several_runs_are_listed_and_one_is_to_be_named(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/zeroth/", {"boot/i-1-image.log": b""})
    aws.upload(bucket, "hopper/odd/", {"ended.json": b"[]", "rounds.jsonl": b'{"round_index": []}'})
    text = flat(aws.run("results", "hopper"))
    assert "--run RUN" in text
    assert [name in text for name in ("zeroth 0", "first 3", "odd [] rounds")] == [True] * 3
    assert not (aws.tmp_path / "runs").exists()
    assert "there are: first, odd, zeroth" in aws.run("results", "hopper", "--run", "x", code=2)
    assert "it was never begun" in aws.run("results", "hopper", "--run", "zeroth")
    assert "no run of walker" in aws.run("results", "walker", code=2)
    (aws.tmp_path / "hopper.yaml").write_text(SMALL_EXPERIMENT)
    assert "python -m runtime train hopper.yaml --out x --resume --set fleet.kind=local" in aws.run(
        "results", "hopper.yaml", "--run", "first", "--out", "x"
    )
