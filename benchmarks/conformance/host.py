"""Tries the environments of one group: ``python -m benchmarks.conformance.host ROWS FOLDER``, in the group's Python.

Prints the packages' versions as JSON, and writes each row's findings into FOLDER/ROW/found.json. A row with findings is
not tried again. Shared modules are imported once. Each row then gets two processes of its own: one with none of our
code except for the maker of the environment, and a training.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import yaml

from benchmarks.conformance.environments import FOUND
from lambda_actor import making
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import ActorError, told
from lambda_actor.rollout import OpenEpisode
from runtime.cli.main import main as command_line
from runtime.config.schema import EnvironmentSection
from runtime.records.checkpoint import load_newest_checkpoint
from runtime.records.files import write_atomically
from runtime.records.layout import RunFiles

_IMPORTED_ONCE = (
    "runtime.backends.this_machine",
    "runtime.display.table",
    "runtime.learner.impact",
    "runtime.learner.impala",
    "runtime.learner.ppo",
    "runtime.training.assembly",
    "runtime.training.run",
    "runtime.display.tensorboard_log",
)
"""Modules that a training imports, torch included."""
PROBED_STEPS, TIMEOUT_S = 64, 600
ROUNDS = {"ppo": 2, "impact": 4, "impala": 4}
"""Asynchronous rounds start before the previous one has ended, and so without its open episodes."""


def experiment(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row's experiment file, with two actors, so that one process cannot simply keep both open episodes."""
    return {
        "environment": row["environment"],
        "algorithm": {"kind": row["algorithm"]},
        "scaler": {"kind": "fixed", "actors_fixed": 2},
        "actor": {"fragment_steps": row["fragment_steps"], "timeout_s": TIMEOUT_S // 2},
        "fleet": {"kind": "local", "processes": 1},
        "evaluation": {"every_rounds": 0},
        "budget": {"usd": 100.0},
        "stop": {"max_rounds": ROUNDS[row["algorithm"]]},
    }


def probe(section: Mapping[str, Any]) -> dict[str, Any]:
    """Plays an environment without our wrappers. Returns its spaces, or its error.

    Args:
        section: ``environment`` of the experiment file.
    """
    found: dict[str, Any] = {}
    read = EnvironmentSection.model_validate(section)
    try:
        environment, is_game = making.make(read.id, read.preprocessing, read.options)
    except ActorError as error:
        return {"broken": told(error.__cause__)} if error.__cause__ else {"unmade": told(error)}
    for name in ("observation_space", "action_space"):
        found[name] = re.sub(r" at 0x\w+", "", " ".join(str(getattr(environment, name)).split()))
    with suppress(ActorError):
        adapted = ActorEnvironment(environment, read.id, "atari" if is_game else "none")
        found["can_save"], found["limit"] = adapted.can_save_episode, adapted.episode_steps_max
    try:
        environment.action_space.seed(0)
        environment.reset(seed=0)
        for step in range(PROBED_STEPS):
            observation, reward, terminated, truncated, _ = environment.step(
                environment.action_space.sample()
            )
            if wrong := _what_is_wrong(environment.observation_space, observation, reward):
                return {**found, "broken": f"{wrong} at step {step + 1}"}
            if terminated or truncated:
                environment.reset(seed=step + 1)
    except (Exception, SystemExit) as error:
        found["broken"] = told(error)
    return found


def _what_is_wrong(space: gymnasium.Space[Any], observation: Any, reward: Any) -> str:
    if not np.isfinite(np.asarray(reward, np.float64)).all():
        return f"its reward is {reward}"
    if isinstance(space, gymnasium.spaces.Box):
        if np.shape(observation) != space.shape:
            return f"its observation has shape {np.shape(observation)}, not {space.shape},"
        if not np.isfinite(np.asarray(observation)).all():
            return "its observation is not finite"
    return ""


def continued(run: Path, fragment_steps: int) -> int:
    """Returns how many episodes of a finished run a later fragment continued.

    These are episodes that are open at the end and longer than a fragment, or that an older policy began.
    """
    files = RunFiles(run)
    checkpoint = load_newest_checkpoint(files.checkpoints_path, lambda *_: None)
    assert checkpoint is not None, "a finished run has checkpoints"
    waiting = [
        OpenEpisode.from_bytes(array.tobytes())
        for name, array in checkpoint.arrays.items()
        if name.startswith("episode.")
    ]
    ended = sum(row["episodes_spanning_versions"] for row in _rounds(run))
    return ended + sum(episode.length > fragment_steps for episode in waiting)


def try_row(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the findings for one environment."""
    answer = folder / "probe.json"

    def write_probe() -> None:
        answer.write_text(json.dumps(probe(row["environment"])))

    ended = in_a_process(write_probe, folder / "probe.log")
    found = json.loads(answer.read_text()) if ended == 0 else {"broken": _how_it_ended(ended)}
    file, run = folder / "experiment.yaml", folder / "run"
    file.write_text(yaml.safe_dump(experiment(row)))
    log = folder / "train.log"
    if run.exists():
        shutil.rmtree(run)
    code = in_a_process(lambda: command_line(["train", str(file), "--out", str(run)]), log)
    lines = log.read_text(errors="replace").strip().splitlines()
    found |= {
        "code": code,
        "is_traceback": any(line.startswith("Traceback (most") for line in lines),
    }
    if code == 0:
        found["actors_failed"] = sum(row["actors_failed"] for row in _rounds(run))
        found["continued"] = continued(run, row["fragment_steps"])
        events = [json.loads(line) for line in RunFiles(run).events_path.read_text().splitlines()]
        found["is_replayed"] = "episodes" in events[0]
    else:
        said = [line for line in lines if line.startswith(("error: ", "stopped by"))] or lines[-1:]
        found["said"] = _how_it_ended(code) if code is None else said[-1] if said else ""
        with suppress(OSError, ValueError, KeyError):
            found["said"] = (
                json.loads(RunFiles(run).summary_path.read_text())["error"] or found["said"]
            )
    return found


def begun(work: Callable[[], int | None], log: Path) -> int:
    """Starts work in its own process and session. Returns the process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_a_process(work: Callable[[], int | None], log: Path) -> int | None:
    """Runs work in its own process group to the end. Returns the exit code, or None after a timeout."""
    child = begun(work, log)
    try:
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.2)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _rounds(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunFiles(run).rounds_path.read_text().splitlines()]


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return f"it was not done within {TIMEOUT_S} s"
    return (
        f"its process ended by {signal.Signals(-code).name}"
        if code < 0
        else f"its process ended with {code}"
    )


def main(arguments: list[str]) -> int:
    task, folder = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    print(json.dumps({name: version(name) for name in task["packages"]}), flush=True)
    for module in _IMPORTED_ONCE:
        importlib.import_module(module)
    for name, row in task["rows"].items():
        if not (folder / name / FOUND).exists():
            (folder / name).mkdir(parents=True, exist_ok=True)
            write_atomically(
                folder / name / FOUND, json.dumps(try_row(row, folder / name)).encode()
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
