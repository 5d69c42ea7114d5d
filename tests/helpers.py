"""Runs the real command line in tests."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from runtime.cli.main import main
from runtime.money.model import CostModel
from runtime.money.prices import PRICES, PriceTable
from runtime.money.work import Outcome

ROOT = Path(__file__).resolve().parents[1]
NOT_LEARNING = ("_s", "_usd", "_s_mean", "_s_max", "_memory_mib", "cold_starts", "replayed_steps")
PATIENCE_S = 900
"""Ends a test that hangs. Waits normally end much sooner, and no slow machine needs this long."""

SMALL_EXPERIMENT = """\
environment: {id: Hopper-v5}
algorithm: {kind: ppo, epochs: 2, minibatch_steps: 128}
detector: {subset_size: 128, lanczos_steps: 6}
scaler: {kind: nitro, actors_min: 2, actors_max: 6, window_rounds: 3, decay_factor: 0.95}
actor: {fragment_steps: 64, timeout_s: 200, provisioned: 0}
learner: {device: cpu, threads: 1}
fleet: {processes: 2}
budget: {usd: 1.0}
stop: {max_rounds: 5}
evaluation: {every_rounds: 2, episodes: 1}
seed: 3
"""


def create_ledger_table(client: Any, name: str) -> None:
    """Creates the guard's table in a simulated account, for a client of DynamoDB."""
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "run", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "run", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def used(billed_s: float, init_s: float = 0.0, *, is_metered: bool = False) -> Outcome:
    """Returns how work that used this much ended."""
    return Outcome("one", "ok", billed_s=billed_s, init_s=init_s, is_metered=is_metered)


def cost_model(
    experiment: Any, prices: PriceTable = PRICES, *, traffic_bytes_max: int = 10**6, **options: Any
) -> CostModel:
    """Returns the prices of a resolved experiment."""
    return CostModel(experiment, prices, traffic_bytes_max=traffic_bytes_max, **options)


def pendulum_file(folder: Path, **sections: Any) -> Path:
    """Writes an experiment file that trains Pendulum in fragments of 16 steps, with these sections."""
    tree = {
        "environment": {"id": "Pendulum-v1"},
        "budget": {"usd": 1.0},
        "actor": {"fragment_steps": 16},
        "learner": {"threads": 1, "device": "cpu"},
        "fleet": {"processes": 1},
        **sections,
    }
    file = folder / "pendulum.yaml"
    file.write_text(json.dumps(tree))
    return file


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runtime", *arguments]


def run_command(
    *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m runtime ARGUMENTS`` to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def start(experiment: Path, out: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts ``python -m runtime train`` in a process of its own."""
    return subprocess.Popen(
        command("train", str(experiment), "--out", str(out), *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def train(experiment: Path | None, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m runtime train`` to its end, in this process: importing torch takes longer than a short run.

    It still starts subprocesses as usual.
    """
    file = [] if experiment is None else [str(experiment)]
    words = ["train", *file, "--out", str(out), *arguments]
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    texts = []
    for stream in (output, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(words, code, *texts)


def overrides(**values: object) -> list[str]:
    """``scaler__kind="fixed"`` → ``--set scaler.kind=fixed``."""
    return [
        word
        for key, value in values.items()
        for word in ("--set", f"{key.replace('__', '.')}={value}")
    ]


def rounds(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def events(out: Path, kind: str | None = None) -> list[dict[str, Any]]:
    path = out / "events.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in found if kind is None or event["event"] == kind]


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def results_only(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows without times, dollars, cold starts and replays, which two equal runs share."""
    return [
        {key: value for key, value in row.items() if not key.endswith(NOT_LEARNING)} for row in rows
    ]


def wait_for(condition, what: str) -> None:
    """Polls until ``condition()`` holds; fails the test with ``what`` if it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Returns the process ids below ``pid`` from /proc, without the helpers of `tests.warm`; Linux only."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = [
            child
            for child in children.get(todo.pop(), [])
            if b"tests.warm" not in command_line(child)
        ]
        found += below
        todo += below
    return found


def command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
