"""Which calls to AWS a role's process makes in a rehearsal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.client

FOLDER_VARIABLE = "REHEARSAL_CALLS"
"""The folder in which each role has a file."""


def record_calls(role: str) -> None:
    """From now on each kind of call is a line of the role's file, ``SERVICE OPERATION``."""
    call = botocore.client.BaseClient._make_api_call
    note = recorder(Path(os.environ[FOLDER_VARIABLE]), role)

    def call_and_note(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        note(f"{self.meta.service_model.service_name} {operation}")
        return call(self, operation, arguments)

    botocore.client.BaseClient._make_api_call = call_and_note


def recorder(folder: Path, role: str) -> Callable[[str], None]:
    """What writes each kind of call into the role's file, once."""
    known: set[str] = set()

    def note(kind: str) -> None:
        if kind not in known:
            known.add(kind)
            with (folder / role).open("a") as file:
                file.write(f"{kind}\n")

    return note


def recorded_calls(folder: Path) -> dict[str, list[str]]:
    """The kinds of calls by role."""
    return {path.name: sorted(set(path.read_text().splitlines())) for path in folder.iterdir()}
