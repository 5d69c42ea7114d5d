"""Judges an environment by its findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WORKS, REFUSED, BROKEN, FAILS = "works", "refused", "upstream broken", "fails"


def judged(row: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the verdict on one environment and its reasons.

    Args:
        row: A row of `benchmarks.conformance.environments`.
        found: The findings of `benchmarks.conformance.host`.
    """
    told = {
        key: found[key]
        for key in ("observation_space", "action_space", "continued")
        if key in found
    }
    if "broken" in found:
        verdict, reason = BROKEN, found["broken"]
        told["said"] = found.get("said") or (
            f"the run goes on without what failed: {found['actors_failed']} actors"
            if "actors_failed" in found
            else ""
        )
    elif found.get("code") == 0:
        verdict, reason = WORKS, ""
    else:
        # Exit code 2 means that nothing was started.
        verdict = REFUSED if found.get("code") == 2 and not found["is_traceback"] else FAILS
        reason = found["said"]
    told["said"] = _plain(told.get("said", ""))
    return {
        **told,
        "open_episodes": _open_episodes(row, found) if verdict == WORKS else "",
        "verdict": verdict,
        "reason": _plain(reason),
    }


def _open_episodes(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if row["environment"].get("truncate_at_fragment"):
        return "cut"
    if found["is_replayed"]:
        return "replay"
    return "state" if found["can_save"] else "whole"


def _plain(text: str) -> str:
    """Removes parts that differ from run to run."""
    return re.sub(r" at 0x\w+", "", text.removeprefix("error: "))
