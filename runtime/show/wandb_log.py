"""Shows a run in Weights & Biases from a separate process, whose failures never slow the training.

The process gets a message that says what to show, then reads new rows from the run's directory until a second message.
It answers that it has begun, or why not, and reports if it gives up.

Without the process, W&B could stop a training. If its service hangs, wandb 0.31 blocks in `log` once the socket is full
(after 139 rounds), in `finish` forever despite `finish_timeout`, and again when Python exits. And ``sync_tensorboard``
would show a resumed run's earlier rounds twice, and send the machine's name in a file's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from runtime.errors import RunError, one_line
from runtime.experiment.schema import Experiment
from runtime.fleet.processes import Child
from runtime.records import layout
from runtime.records.files import read_json_object, to_json, whole_lines, write_atomically
from runtime.records.observers import Observer
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show.estimates import ended_by_itself

START_S = 60.0
FINISH_S = 60.0
"""Seconds that W&B may take to begin, and at the end to upload the rest."""
_LOOK_S = 1.0
"""Seconds between looks for new rows."""
_BEGUN = "begun"


class WandbLog(Observer):
    """Shows runs in one project, one after the other."""

    def __init__(
        self, project: str, warn: Callable[[str], None], *, group: str | None = None
    ) -> None:
        """Checks whether W&B is installed.

        Args:
            project: ``PROJECT`` or ``ENTITY/PROJECT``.
            warn: Called with a line when W&B breaks.
            group: Group of the runs; None for a single run.

        Raises:
            RunError: W&B is not installed.
        """
        spec = importlib.util.find_spec("wandb")
        # A folder of that name, where W&B keeps its files, can also be imported, and has no origin.
        if spec is None or spec.origin is None:
            raise RunError("--wandb needs the package wandb: python -m pip install wandb")
        self._project = project
        self._warn = warn
        self._group = group
        self._process: Child | None = None
        self._has_begun_once = False
        self.address = ""

    def open(self, experiment: Experiment, directory: RunDirectory, name: str) -> None:
        """Begins a run in W&B, or continues the one that shows ``directory``; `address` has its address.

        ``name`` is the experiment's.

        Raises:
            RunError: W&B refuses or is unreachable at the first of the runs.
        """
        files = directory.path / layout.WANDB
        id_path = directory.path / layout.WANDB_ID
        run_id = read_json_object(id_path).get("id") or uuid.uuid4().hex
        self._process = Child("runtime.show.wandb_log")
        try:
            answer = self._ask(
                id=run_id,
                project=self._project,
                group=self._group,
                name=layout.run_name(name, experiment),
                dir=str(directory.path),
                config=yaml.safe_load(experiment.to_yaml()),
            )
        except BaseException:
            self._stop()
            raise
        if answer.startswith(_BEGUN):
            write_atomically(id_path, to_json({"id": run_id}))
            offline = f"offline, in {files}" if files.exists() else "disabled by WANDB_MODE"
            self.address = answer.removeprefix(_BEGUN).strip() or offline
            self._has_begun_once = True
            return
        reason = f"--wandb {self._project}: {answer or self._stop()}"
        self._stop()
        if not self._has_begun_once:
            raise RunError(f"{reason}; without an account, or a connection: set WANDB_MODE=offline")
        self._warn(reason)
        self.address = "not shown"

    def on_round_end(self, row: RoundRow) -> None:
        """Warns once if the process has ended; it sees new rounds by itself."""
        if self._process is not None and self._process.exit_code is not None:
            self._warn(f"W&B shows no more of this run, which continues: {self._stop()}")

    def close(self) -> None:
        """Waits for remaining uploads, but not forever."""
        if self._process is None:
            return
        code = None
        with suppress(KeyboardInterrupt, OSError):
            self._process.connection.send_bytes(b"end")
            code = self._process.wait(FINISH_S)
        words = self._stop()
        if code != 0:
            self._warn(f"W&B does not show all of this run: {words}")

    def _ask(self, **settings: Any) -> str:
        """Sends what to show, and returns the process's answer; empty if there is none."""
        assert self._process is not None
        connection = self._process.connection
        with suppress(EOFError, OSError):
            connection.send_bytes(json.dumps(settings).encode())
            if connection.poll(START_S):
                return connection.recv_bytes().decode()
        return ""

    def _stop(self) -> str:
        """Ends the process, if any, and returns its last words."""
        if self._process is None:
            return ""
        process = self._process
        self._process = None
        process.end()
        words = ""
        with process.connection as answers, suppress(EOFError, OSError):
            while answers.poll():
                words = answers.recv_bytes().decode()
        return words or "its process hung, or was killed"


# The process


def main(control_fd: int) -> int:
    """Runs the process: shows rows until the second message, and then the rest."""
    # W&B also starts a process, which must not hold our connection.
    os.set_inheritable(control_fd, False)
    connection = Connection(control_fd)
    try:
        settings = json.loads(connection.recv_bytes())
        run = _begin(**settings)
        connection.send_bytes(f"{_BEGUN} {run.url or ''}".encode())
        # Also True if the training was killed.
        _show(run, Path(settings["dir"]), lambda: connection.poll(_LOOK_S))
    except Exception as error:
        with suppress(OSError):
            connection.send_bytes(one_line(f"{type(error).__name__}: {error}").encode())
        # W&B's exit handlers would wait for the failed service.
        os._exit(1)
    return 0


def _begin(project: str, **settings: Any) -> Any:
    import wandb

    entity, _, project = project.rpartition("/")
    # Neither the command line, which may contain passwords, nor output, packages and repository.
    private: dict[str, Any] = {
        "console": "off",
        "disable_git": True,
        "save_code": False,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "host": "",
    }
    return wandb.init(
        project=project,
        entity=entity or None,
        resume="allow",
        **settings,
        settings=wandb.Settings(
            **private,
            silent=True,
            init_timeout=START_S - 10.0,
            finish_timeout=FINISH_S - 10.0,
            finish_timeout_raises=True,
        ),
    )


def _show(run: Any, directory: Path, is_over: Callable[[], bool]) -> None:
    """Shows each row that W&B does not have, until no more come; then the summary."""
    first = run.step
    position = 0
    is_last_look = False
    while not is_last_look:
        is_last_look = is_over()
        lines = whole_lines(directory / layout.ROUNDS, position)
        position += sum(map(len, lines))
        for row in map(RoundRow.from_json_line, lines):
            if row.env_steps_total >= first:
                run.log(row.scalars(), step=row.env_steps_total)
    # Without one, the training was killed.
    summary = read_json_object(directory / layout.SUMMARY)
    run.summary.update({key: value for key, value in summary.items() if value is not None})
    run.finish(exit_code=int(not ended_by_itself(summary)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
