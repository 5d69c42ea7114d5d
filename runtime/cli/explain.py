"""The command ``explain``: the keys of the experiment file."""

from __future__ import annotations

import argparse
from typing import Any

from runtime.cli.arguments import add_parser
from runtime.errors import ExperimentError
from runtime.experiment.explaining import (
    EXTENDS,
    EXTENDS_DESCRIPTION,
    allowed_values,
    default_text,
    nearest,
    required_keys,
    section_of,
    walk_fields,
)
from runtime.experiment.kinds import is_import_path
from runtime.experiment.schema import add_kind


def add_command(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    explain = add_parser(
        commands,
        "explain",
        needs="[KEY]",
        summary="explain the keys of the experiment file",
        description="Explain the keys of the experiment file: all, a section, or one.",
        examples=[
            "explain",
            "explain scaler",
            "explain budget.usd",
            "explain my_package.momentum:MomentumSettings",
        ],
        exit_codes="0, or 2 if there is no such key",
    )
    explain.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="a section such as scaler, a key such as scaler.actors_max, or the import path of "
        "settings of your own (default: all)",
    )
    explain.set_defaults(command=_explain)


def explained(key: str | None) -> list[str]:
    """Returns lines about one key, a section's keys, or all.

    Args:
        key: Dotted; None for all.

    Raises:
        ExperimentError: There is no such key; the message names the nearest one.
    """
    if key == EXTENDS:
        return [EXTENDS, f"  {EXTENDS_DESCRIPTION}"]
    fields = list(walk_fields())
    if key is not None and key not in {field.path for field in fields}:
        raise ExperimentError(f"{key} is not a known key{nearest(key)}")
    lines = (
        [
            "required keys; all others have defaults:",
            *(f"  {path:<16} {text}" for path, text in required_keys().items()),
            "",
            f"{EXTENDS}: {EXTENDS_DESCRIPTION}",
        ]
        if key is None
        else []
    )
    for field in fields:
        path = field.path
        info = field.info
        if key is not None and path != key and not path.startswith(f"{key}."):
            continue
        if section_of(info) is not None:
            lines += ["", f"{path}: {info.description}"]
        else:
            lines += [
                f"  {field.name}",
                f"      {info.description}",
                f"      {'' if info.is_required() else 'default: '}{default_text(info)}; "
                f"allowed: {allowed_values(info)}",
            ]
    return lines[1:] if lines[0] == "" else lines


def _explain(options: argparse.Namespace) -> int:
    key = add_kind(options.key) if is_import_path(options.key) else options.key
    print("\n".join(explained(key)))
    return 0
