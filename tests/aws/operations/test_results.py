"""``python -m runtime results``, with real boto3, against a moto server."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.operations.kept_runs import KeptRun
from tests import helpers
from tests.aws.operations.accounts import Account
from tests.helpers import SMALL_EXPERIMENT, run_command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds, as a deployed learner leaves it."""
    folder = tmp_path_factory.mktemp("trained")
    file = folder / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    done = helpers.train(file, folder / "run", "--set", "stop.max_rounds=3")
    assert done.returncode == 0, done.stderr
    out = folder / "run"
    # A deployed learner's own state: how its actors ran, and its last bill.
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("kind: local", "kind: lambda"))
    ledger = json.loads((out / "ledger.json").read_text()) | {"billed_until_s": 1.8e9}
    (out / "ledger.json").write_text(json.dumps(ledger))
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def keep(aws: Account, trained: Path, run: str = "first") -> str:
    """Puts the run into the bucket; returns the bucket's name."""
    bucket = aws.make_bucket()
    aws.upload(
        bucket,
        f"hopper/{run}/",
        {
            **files_of(trained),
            "report.html": b"<script>alert(1)</script>",
            "launches/1/i-1": b"now",
            "ended.json": b'{"stop_reason": "max_rounds", "error": null, "ended_at": "2026-01-02T03:04:05Z"}',
        },
    )
    return bucket


def test_a_downloaded_run_can_be_evaluated_and_gone_on_with(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    text = aws.run("results", "hopper")
    line = r"first +3 rounds, evaluated [\d.,-]+, spent \$0\.\d{4}, last change \d{4}-.*max_rounds"
    assert re.search(line, " ".join(text.split()))
    out = aws.tmp_path / "runs" / "hopper-first"
    found = files_of(out)
    assert b"stopped by" in found["report.html"], (
        "made here, since a learner's own could contain any script"
    )
    assert found == {
        **files_of(trained),
        "ended.json": keep_bytes(aws, bucket, "ended.json"),
        "report.html": found["report.html"],
    }
    assert "secret" not in text
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
    # Spending in AWS counts.
    assert helpers.summary(out)["spent_usd"] > helpers.summary(trained)["spent_usd"]
    assert "was changed since it was downloaded" in aws.run("results", "hopper", code=2)


def keep_bytes(aws: Account, bucket: str, name: str) -> bytes:
    return aws.client("s3").get_object(Bucket=bucket, Key=f"hopper/first/{name}")["Body"].read()


def test_the_experiment_file_is_named_if_there_is_one(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    (aws.tmp_path / "hopper.yaml").write_text(SMALL_EXPERIMENT)
    assert "python -m runtime train hopper.yaml --out x --resume --set fleet.kind=local" in aws.run(
        "results", "hopper.yaml", "--out", "x"
    )


def test_a_download_fetches_only_what_is_not_there(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    assert "policy.safetensors" in aws.run("results", "hopper", "--out", "x")
    (aws.tmp_path / "x" / "policy.safetensors").unlink()
    fetched = [
        line
        for line in aws.run("results", "hopper", "--out", "x").splitlines()
        if " bytes " in line
    ]
    assert len(fetched) == 1 and fetched[0].endswith("policy.safetensors")
    assert files_of(aws.tmp_path / "x").keys() == files_of(trained).keys() | {"ended.json"}


def test_what_the_learner_deleted_since_goes_here_too(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/first/", {"checkpoints/round_000001.json": b"{}"})
    aws.run("results", "hopper", "--out", "x")
    aws.client("s3").delete_object(Bucket=bucket, Key="hopper/first/checkpoints/round_000001.json")
    aws.run("results", "hopper", "--out", "x")
    assert not (aws.tmp_path / "x" / "checkpoints" / "round_000001.json").exists()


def test_a_directory_of_another_run_is_left_alone(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    shutil.copytree(trained, aws.tmp_path / "mine")
    before = files_of(aws.tmp_path / "mine")
    assert "holds another run" in aws.run("results", "hopper", "--out", "mine", code=2)
    assert files_of(aws.tmp_path / "mine") == before
    aws.run("results", "hopper", "--out", "x")
    bucket = aws.client("s3").list_buckets()["Buckets"][0]["Name"]
    aws.upload(bucket, "hopper/second/", files_of(trained))
    assert "holds another run" in aws.run(
        "results", "hopper", "--run", "second", "--out", "x", code=2
    )


def test_names_that_lead_out_of_the_directory_are_passed_over(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(
        bucket,
        "hopper/first/",
        {
            "../../escaped": b"x",
            "a/../../b": b"x",
            ".lock": b"x",
            f"tensorboard/events.out.tfevents.{'1' * 300}": b"x",
            f"checkpoints/round_{'1' * 300}.json": b"x",
            "tensorboard/__init__.py": b"x",
            "sitecustomize.py": b"x",
            ".download.json": b"{}",
            "wandb.json": b"{}",
        },
    )
    text = aws.run("results", "hopper", "--out", "inner/x")
    assert "passed over '../../escaped'" in text and "passed over '.lock'" in text
    assert not (aws.tmp_path / "escaped").exists() and not (aws.tmp_path / "inner" / "b").exists()
    assert files_of(aws.tmp_path / "inner" / "x").keys() == files_of(trained).keys() | {
        "ended.json"
    }


def test_a_run_whose_files_change_while_they_come_is_downloaded_as_it_is_in_the_end(
    aws: Account, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = keep(aws, trained)
    read, newer = KeptRun.read, [b"newer\n", b"newest\n"]

    def read_late(self: KeptRun, file: Any) -> bytes | None:
        if file.name == "actors.log" and newer:
            aws.upload(bucket, "hopper/first/", {"actors.log": newer.pop(0)})
        return read(self, file)

    monkeypatch.setattr(KeptRun, "read", read_late)
    aws.run("results", "hopper", "--out", "x")
    assert (aws.tmp_path / "x" / "actors.log").read_bytes() == b"newest\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ended.json", b'{"stop_reason": {"a": 1}}'),
        ("ended.json", b'{"error": ["a"]}'),
        ("rounds.jsonl", b'{"evaluation_return_mean": "a", "round_index": 1}\n'),
        ("rounds.jsonl", b'{"round_index": [1]}\n'),
    ],
)
def test_one_runs_odd_records_leave_the_others_listed(aws: Account, name: str, data: bytes) -> None:
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/odd/", {name: data})
    aws.upload(bucket, "hopper/sound/", {"ended.json": b'{"stop_reason": "max_rounds"}'})
    text = " ".join(aws.run("results", "hopper").split())
    assert re.search(r"odd damaged: ", text) and re.search(r"sound .* max_rounds", text)


def test_several_runs_are_listed_and_one_is_to_be_named(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/zeroth/", {"boot/i-1-image.log": b""})
    text = aws.run("results", "hopper")
    assert "zeroth" in text and "first" in text and "--run RUN" in text
    assert not (aws.tmp_path / "runs").exists()
    assert "there are: first, zeroth" in aws.run("results", "hopper", "--run", "third", code=2)
    assert "it was never begun" in aws.run("results", "hopper", "--run", "zeroth")
    assert "no run of walker" in aws.run("results", "walker", code=2)
