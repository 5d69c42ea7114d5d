"""Writes the page of the GPU measurements. All numbers come from results; missing ones are stated."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.limits import OUT_OF_TIME, read
from benchmarks.pages import rendered, table
from benchmarks.provenance import ROOT

PAGE = ROOT / "papers" / "gmi_drl" / "gpu.md"
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
TITLE, REHEARSAL = "GMI-DRL on a GPU", "A rehearsal: no number here means anything"
NO_RESULTS = "**Not measured**: {}. `python -m benchmarks.gpu --part {}` measures it.\n"
NO_GPU, LEFT_OUT = "no GPU was available", "this part did not run"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        part: The part that measures it.
        by: Settings of a point that make a line of the table; turns are combined.
        measures: The measures of each line.
        alike: The settings that a line shares with its reference line, the first such line; None = no ratios.
    """

    part: str
    by: tuple[str, ...]
    measures: tuple[str, ...]
    alike: tuple[str, ...] | None = None


LAYOUT, SPEEDS = ("task", "instances", "environments", "backend"), ("steps_per_s", "served_per_s")
ROUNDS, UNITS = (
    ("steps_per_s", "learn_s", "collect_s"),
    ("gradient_step_s", "sample_s", "product_sample_s"),
)
FIGURES = {
    "sketch": Figure(
        "sketch",
        ("task", "environments", "contender"),
        ("steps_per_s", "physics_per_s"),
        ("task", "environments"),
    ),
    "fig1": Figure(
        "sweep",
        LAYOUT[::2],
        ("utilisation_percent", "sm_activity_percent", "sm_occupancy_percent"),
    ),
    "fig10": Figure("sweep", LAYOUT[::2], ("steps_per_s", "memory_mib")),
    "fig7": Figure(
        "fig7", LAYOUT, (*SPEEDS, "utilisation_percent", "sm_activity_percent"), ("task",)
    ),
    "fig8": Figure("fig8", LAYOUT, SPEEDS, ("task", "instances")),
    "fig9": Figure("fig9", LAYOUT, ("steps_per_s", "elapsed_s", "last_return")),
    "atari": Figure("atari", ("contender",), ROUNDS, ()),
    "work": Figure("work", ("file", "device"), UNITS, ("file",)),
}
"""By their names in the template."""
UNITS_OF = {
    "steps_per_s": "steps/s",
    "served_per_s": "served/s",
    "physics_per_s": "physics alone, steps/s",
    "utilisation_percent": "utilization, %",
    "sm_activity_percent": "SM activity, %",
    "sm_occupancy_percent": "SM occupancy, %",
    "memory_mib": "memory, MiB",
    "learn_s": "learning, s",
    "collect_s": "collecting, s",
    "gradient_step_s": "gradient step, s",
    "sample_s": "sample, s",
    "product_sample_s": "sample of a product, s",
}
"""Heads of columns that say more than their keys."""


def middles(rows: Rows, figure: Figure) -> dict[tuple[Any, ...], dict[str, float | None]]:
    """Returns each measure's median over the turns, by the settings that make a line; None if it was not measured."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row["point"][key] for key in figure.by), []).append(row)
    return {
        key: {
            name: statistics.median(told)
            if (told := [row[name] for row in some if row[name] is not None])
            else None
            for name in figure.measures
        }
        for key, some in found.items()
    }


def table_of(rows: Rows, figure: Figure) -> str:
    """Returns the table of a figure, with ratios to the reference line in brackets."""
    found, lines = middles(rows, figure), []
    for key, values in found.items():
        places = [figure.by.index(name) for name in figure.alike or ()]
        bases = [found[other] for other in found if all(other[at] == key[at] for at in places)]
        ratios = {
            name: f" ({value / base:.2f})"
            for name, value in values.items()
            if figure.alike is not None and value and (base := bases[0][name])
        }
        lines.append(
            [
                *map(str, key),
                *(number(value) + ratios.get(name, "") for name, value in values.items()),
            ]
        )
    return table(
        [UNITS_OF.get(name, name.replace("_", " ")) for name in (*figure.by, *figure.measures)],
        lines,
    )


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shown(name: str, found: Mapping[str, Any], without: str) -> str:
    """Returns a figure's table and missing points, or the reason why it was not measured."""
    figure, rows = FIGURES[name], found.get("points", [])
    if not rows:
        return NO_RESULTS.format(without, figure.part)
    reasons: dict[str, dict[str, None]] = {}
    for point, reason in found["not_measured"].items():
        if reason != OUT_OF_TIME:
            reasons.setdefault(reason, {})[point.partition(", turn ")[0]] = None
    missing = len(found["not_measured"])
    return "\n".join(
        [
            table_of(rows, figure),
            *(
                [f"{missing} of {len(rows) + missing} points are not measured.\n"]
                if missing
                else []
            ),
            *(f"Reason for {'; '.join(which)}: {why}.\n" for why, which in reasons.items()),
        ]
    )


def where(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a paragraph on the machines and dates of the results, each once."""
    found = [one for one in results.values() if one.get("points")]
    told = dict.fromkeys(
        "Measured on "
        + ", ".join(
            [
                *(
                    one[key] if key == "gpu" else f"{key} {one[key]}"
                    for key in ("gpu", "driver", "cuda", "torch", "commit")
                    if one.get(key)
                ),
                one["hardware"],
                one["date"],
            ]
        )
        + "."
        for one in found
    )
    return " ".join(told) + "\n" if found else ""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page of these results.

    Args:
        results: Results by part.
    """
    is_rehearsal = any(found.get("is_rehearsed") for found in results.values())
    title, without = (
        REHEARSAL if is_rehearsal else TITLE,
        LEFT_OUT if any(results.values()) else NO_GPU,
    )
    return rendered(
        Path(__file__).with_suffix(".md"),
        title=title,
        measured=where(results),
        **{
            name: shown(name, results.get(figure.part, {}), without)
            for name, figure in FIGURES.items()
        },
    )


def read_all(results: Path) -> dict[str, dict[str, Any]]:
    return {figure.part: read(results / f"{figure.part}.json") for figure in FIGURES.values()}


def write(results: Path, path: Path, *, is_rehearsal: bool = False) -> None:
    """Writes the page.

    Raises:
        SystemExit: The results come from a rehearsal, but the page is to be published.
    """
    found = read_all(results)
    if not is_rehearsal and (
        rehearsed := [part for part, one in found.items() if one.get("is_rehearsed")]
    ):
        raise SystemExit(
            f"results of a rehearsal are not published: {', '.join(rehearsed)} in {results}"
        )
    path.write_text(page(found))
    print(path)
