"""Runs in Weights & Biases: files that the real package writes offline."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.main import main
from runtime.errors import RunError
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show import wandb_log
from runtime.show.wandb_log import WandbLog
from tests.helpers import (
    SMALL_EXPERIMENT,
    command_line,
    descendants,
    overrides,
    rounds,
    summary,
    train,
)
from tests.records.rows import a_row

_BLOCK, _HEADER = 2**15, struct.Struct("<IHB")
_LAST_PARTS = (1, 4)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disables the network and any login of the user."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture
def experiment() -> Experiment:
    return experiment_from_tree(
        {
            "environment": {"id": "Hopper-v5"},
            "budget": {"usd": 1.0},
            "seed": 4,
            "cache": {"url": "redis://me:h1dden@host"},
        },
        source="a test",
    ).resolved()


@pytest.fixture
def directory(tmp_path: Path):
    made = RunDirectory(tmp_path / "run")
    yield made
    made.close()


def records(file: Path) -> list[Any]:
    """Reads an offline run's file: seven bytes, then a log in LevelDB's format with protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, whole, found = file.read_bytes(), 7, b"", []
    while position + _HEADER.size <= len(data):
        if _BLOCK - position % _BLOCK < _HEADER.size:
            position += _BLOCK - position % _BLOCK
        _, length, part = _HEADER.unpack_from(data, position)
        position += _HEADER.size + length
        whole += data[position - length : position]
        if part in _LAST_PARTS:
            found.append(Record.FromString(whole))
            whole = b""
    return found


def shown(run: Path) -> tuple[Any, dict[int, dict[str, float]], dict[str, Any], dict[str, Any]]:
    """Returns the newest W&B run of a directory, its rows by step, its summary and its configuration."""
    begun, history, last, config = None, {}, {}, {}
    for record in records(
        max((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    ):
        if record.HasField("run"):
            begun = record.run
            config |= {item.key: json.loads(item.value_json) for item in begun.config.update}
        elif record.HasField("history"):
            row = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            history[record.history.step.num] = {
                key: value for key, value in row.items() if not key.startswith("_")
            }
        elif record.HasField("summary"):
            last |= {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.summary.update
            }
    return begun, history, last, config


def add_rows(directory: RunDirectory, *indices: int) -> None:
    for index in indices:
        directory.append_round(
            a_row(index, env_steps_total=100 * index, kl=0.5 * index, boosting_score=None)
        )


def shown_by() -> int:
    """Returns the id of the process that talks to W&B."""
    return next(pid for pid in descendants(os.getpid()) if b"wandb_log" in command_line(pid))


def test_a_run_is_shown_whole(tmp_path: Path) -> None:
    file, run = tmp_path / "small.yaml", tmp_path / "runs" / "seed-3"
    file.write_text(SMALL_EXPERIMENT)
    finished = train(
        file, run.parent, "--seeds", "1", "--wandb", "us/hoppers", *overrides(stop__max_rounds=2)
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    begun, history, last, config = shown(run)
    assert (begun.entity, begun.project, begun.display_name, begun.run_group) == (
        "us",
        "hoppers",
        "small-Hopper-v5-ppo-nitro-seed-3",
        "runs",
    )
    assert history == {row["env_steps_total"]: RoundRow(**row).scalars() for row in rounds(run)}
    assert len(history) == 2
    known = {key: value for key, value in summary(run).items() if value is not None}
    assert {key: last[key] for key in known} == known
    assert config["scaler"]["decay_factor"] == 0.95
    assert f"wandb: offline, in {run / 'wandb'}" in finished.stdout


def test_a_resumed_run_goes_on_under_its_id_without_secrets_and_one_that_hangs_holds_nothing_up(
    experiment: Experiment, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    log = WandbLog("hoppers", warnings.append)
    add_rows(directory, 1)
    log.open(experiment, directory, "hopper")
    log.close()
    first, history, _, config = shown(directory.path)
    assert history == {100: a_row(1, env_steps_total=100, kl=0.5, boosting_score=None).scalars()}
    assert config["cache"]["url"] == "redis://me:***@host"
    assert "h1dden" not in "".join(
        path.read_bytes().decode("latin1") for path in directory.path.rglob("*") if path.is_file()
    )
    assert warnings == []

    add_rows(directory, 2)
    log.open(experiment, directory, "hopper")
    os.kill(shown_by(), signal.SIGSTOP)
    log.on_round_end(a_row(1))
    assert warnings == []
    monkeypatch.setattr(wandb_log, "FINISH_S", 0.1)
    log.close()
    assert ["hung" in warning for warning in warnings] == [True]
    run_id = json.loads((directory.path / "wandb.json").read_bytes())["id"]
    assert first.run_id == run_id
    assert {path.name for path in directory.path.glob("wandb/offline-run-*/*.wandb")} == {
        f"run-{run_id}.wandb"
    }


def test_where_it_refuses_nothing_is_started(
    experiment: Experiment, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(RunError, match="--wandb hoppers: UsageError: No API key configured"):
        WandbLog("hoppers", pytest.fail).open(experiment, directory, "hopper")
    directory.close()
    assert not directory.path.exists()


def test_one_that_is_killed_is_told_once_and_the_run_continues(
    experiment: Experiment, directory: RunDirectory
) -> None:
    warnings: list[str] = []
    log = WandbLog("hoppers", warnings.append)
    log.open(experiment, directory, "hopper")
    process_id = shown_by()
    os.kill(process_id, signal.SIGKILL)
    os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
    for _ in range(2):
        log.on_round_end(a_row(1))
    log.close()
    assert ["which continues" in warning for warning in warnings] == [True]


def test_without_the_package_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "small.yaml"
    file.write_text(SMALL_EXPERIMENT)
    words = ["train", str(file), "--out", str(tmp_path / "run"), "--wandb"]
    assert main([*words, "hoppers"]) == 2
    assert "python -m pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
