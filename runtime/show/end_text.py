"""Describes how a run ended, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.records import layout
from runtime.records.rows import return_text
from runtime.show.terminal import counted, duration, spent_of

DOLLARS = {
    "actors_cost_usd": "actors",
    "provisioned_cost_usd": "provisioned",
    "learner_cost_usd": "learner",
    "infrastructure_cost_usd": "infrastructure",
}
"""Parts of a round's bill, with their names for people."""
UNFINISHED = "unfinished rounds"
_PARTS = {**DOLLARS, "unfinished_rounds_cost_usd": UNFINISHED}


def summary_lines(summary: Mapping[str, Any], out: str, resume_command: str = "") -> list[str]:
    """Describes a finished run in lines of at most 79 characters, except for paths, errors and commands.

    Args:
        summary: Contents of `summary.json`.
        out: The run's directory.
        resume_command: Command that continues the run, shown if useful; empty to show none.
    """
    reason = summary["stop_reason"]
    error = summary["error"]
    value = summary["evaluation_return_mean"]
    best_round = summary["evaluation_round_best"]
    lines = [_line("stopped by", f"{reason}: {error}" if error else reason)]
    if value is None:
        lines.append(_line("return", "not evaluated; see the command evaluate"))
    else:
        evaluated = f"{return_text(value)}, evaluated after round {summary['evaluation_round']}"
        lines.append(_line("return", evaluated))
    if best_round not in (None, summary["evaluation_round"]):
        best = f"best {return_text(summary['evaluation_return_best'])}, after round {best_round}"
        lines.append(_line("", f"{best}: {summary['best_policy_file']}"))
    in_training = return_text(summary["episode_return_mean"])
    lines.append(_line("", f"{in_training} in training, where actions are noisy"))
    worlds = summary.get("worlds")
    actors = counted(worlds, "world") if worlds else f"in all {counted(summary['actors'], 'actor')}"
    lines.append(_line("rounds", f"{summary['rounds']:,}, {actors}"))
    if summary["actors_failed"]:
        lines.append(_line("", f"{counted(summary['actors_failed'], 'actor')} failed"))
    lines.append(_line("steps", f"{summary['env_steps_total']:,}"))
    if summary["steps_dropped"]:
        lines.append(_line("dropped", counted(summary["steps_dropped"], "step")))
    lines.append(_line("cost", spent_of(summary["spent_usd"], summary["budget_usd"])))
    parts = [
        f"{name} ${summary[key]:.4f}" for key, name in _PARTS.items() if round(summary[key], 4)
    ]
    if parts:
        lines.append(_line("", ", ".join(parts)))
    session = ", since it was resumed" if summary["was_resumed"] else ""
    lines += [
        _line("", _basis(summary)),
        _line("time", duration(summary["measured_session_s"]) + session),
        _line("results", out),
        *file_lines(out, has_failed=reason == "failed"),
    ]
    if reason in ("interrupted", "failed"):
        lines += resume_lines(resume_command)
    return lines


def resume_lines(command: str) -> list[str]:
    """Describes how to continue, with a command to paste; empty if there is none."""
    return ["", "go on with", command] if command else []


def file_lines(out: str, *, has_failed: bool) -> list[str]:
    """Names the report and, after a failure, what the actors printed, if they are there."""
    names = {"report": layout.REPORT} | ({"actors' log": layout.ACTORS_LOG} if has_failed else {})
    paths = {label: Path(out) / name for label, name in names.items()}
    return [
        _line(label, str(path))
        for label, path in paths.items()
        if path.exists() and path.stat().st_size
    ]


def _line(label: str, text: str) -> str:
    return f"{label:<13}{text}"


def _basis(summary: Mapping[str, Any]) -> str:
    prices = f"list prices of {summary['prices_region']}, {summary['prices_as_of']}"
    if summary["cost_basis"] == "metered":
        return f"what was used, at {prices}; the bill that you get is what counts"
    return f"seconds of this machine at {prices}; nothing was billed"
