"""Shows predictions and measured layouts as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from runtime.gmi.search import SATURATED_POINTS, SATURATION, Found, Layout, Point
from runtime.planning.prediction import Prediction

_COLUMNS = 80
_MIB = 2**20


def duration(seconds: float) -> str:
    """Returns minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02} h" if minutes >= 60 else f"{minutes}:{rest:02} min"


def short_time(seconds: float) -> str:
    """Returns a time with three digits, in the unit that needs no exponent."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:  # rounds to three digits
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def folded(text: str) -> str:
    """Returns the text wrapped for a terminal; all lines but the first are indented."""
    return fill(text, _COLUMNS, subsequent_indent="  ")


def way_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Returns a table of ways."""
    return [
        "     time  of it start  dollars  way",
        *(
            f"{duration(one.seconds):>9}  {duration(one.start_s):>11}  {one.usd:7.4f}  {one.name}"
            for one in predictions
        ),
    ]


def memory_lines(predictions: Sequence[Prediction], best: Prediction) -> list[str]:
    """Returns a table of memory sizes of an actor function, in which the best is marked."""
    return [
        "     memory   an actor  cents of it  the run: time  dollars",
        *(
            f"{'*' if one is best else ' '} {one.name:>9}  {short_time(one.actor_s):>9}  {100 * one.actor_usd:11.6f}  "
            f"{duration(one.seconds):>13}  {one.usd:7.4f}"
            for one in predictions
        ),
    ]


def changes_of(layout: Layout) -> list[str]:
    """Returns the settings that give an experiment a layout, as ``SECTION.KEY=VALUE``."""
    reduction = [f"learner.reduction={layout.reduction}"] if layout.reduction else []
    return [
        "learner.kind=gmi",
        f"learner.instances={layout.instances}",
        f"learner.environments={layout.environments}",
        *reduction,
    ]


def layout_lines(found: Found, *, round_samples: int) -> list[str]:
    """Returns a table of all measurements, in this order, followed by why nothing else was measured.

    Args:
        found: The search's result.
        round_samples: Samples of a round.
    """
    last = {point.instances: point for point in found.points}
    lines = ["   instances x environments  samples/s      memory  reduction       a round"]
    for point in found.points:
        is_cut = point.instances in found.cut_short and point is last[point.instances]
        marks = f"{'*' if point is found.best else ' '} {'<' if is_cut else ' '}"
        lines.append(
            f"{marks}{point.instances:9} x {point.environments:<12}  {_figures(point, round_samples)}"
        )
    lines.append(
        folded("* fastest; memory: of all instances together; reduction: its time in a round")
    )
    if found.cut_short:
        lines.append(
            folded(
                f"< more environments are not measured: {SATURATED_POINTS} times in a row throughput grew by less than "
                f"{SATURATION:g} of the growth in memory, both in proportion"
            )
        )
    if found.left_out:
        lines.append(
            folded(
                f"not measured: {', '.join(map(str, found.left_out))} instances; N instances are at most N "
                "times as fast as one"
            )
        )
    return [line for text in lines for line in text.splitlines()]


def _figures(point: Point, round_samples: int) -> str:
    if (profile := point.profile) is None:
        return f"{'does not run':>9}"
    reduction = (
        f"{profile.reduction} {short_time(profile.reduction_s)}" if profile.reduction_s else "-"
    )
    return (
        f"{point.samples_per_s:9,.0f}  {point.instances * profile.memory_bytes / _MIB:6,.0f} MiB  {reduction:14}"
        f"{short_time(round_samples / point.samples_per_s):>9}"
    )
