"""Deployments rehearsed without an account: ``python -m tests.simulators.rehearsal [FILE.yaml | NAME … | --all]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from runtime.errors import ExperimentError
from tests.helpers import ROOT
from tests.simulators.rehearsal.account import RehearsalError
from tests.simulators.rehearsal.file import ROUNDS, play, read
from tests.simulators.rehearsal.scenarios import NITRO, SCENARIOS, rehearse
from tests.stacks.iam import decisions


def main() -> int:
    """Returns 1 if a deployment left something, exceeded its budget, or did not end as its scenario says."""
    options = _options()
    known = [*SCENARIOS, NITRO]
    names = known if options.all else options.names
    unknown = [name for name in names if name not in known]
    if unknown:
        print(
            f"error: no scenario {', '.join(unknown)}; there are {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    plays: dict[str, Callable[[Path], dict[str, Any]]] = {
        name: partial(rehearse, name) for name in names
    }
    if not plays:
        try:
            file = read(options.experiment, options.rounds)
        except ExperimentError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        print("\n".join(file.lines))
        plays[file.plan.name] = partial(play, file)
    began_s = time.monotonic()
    results = {name: _played(name, one, options.out / name) for name, one in plays.items()}
    print("\n" + "\n".join(_table(results)))
    print(f"it took {time.monotonic() - began_s:.0f} seconds")
    if options.all and all(result["result"] == "ok" for result in results.values()):
        decisions.write(
            set().union(*(decisions.read(options.out / name / "decisions.json") for name in names))
        )
        print(f"what IAM decided: {decisions.KNOWN}")
    print(f"all of it: {options.out}/SCENARIO/rehearsal.json; Rehearsal.conclude explains its keys")
    return int(any(result["result"] != "ok" for result in results.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulators.rehearsal",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Deploys the real templates into an AWS account that exists on this machine only, and plays what "
        "can happen to them.",
        epilog="scenarios:\n"
        + "\n".join(f"  {name:<17} {one.summary}" for name, one in SCENARIOS.items()),
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="scenarios, instead of an experiment file"
    )
    parser.add_argument(
        "--experiment",
        type=Path,
        metavar="FILE.yaml",
        default=ROOT / "experiments" / "hopper.yaml",
        help="the experiment file that is deployed (experiments/hopper.yaml)",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="its most rounds (%(default)s)"
    )
    parser.add_argument("--all", action="store_true", help="all of them, one after the other")
    parser.add_argument(
        "--out", type=Path, default=Path("rehearsals"), help="where results are put (%(default)s)"
    )
    return parser.parse_args()


def _played(name: str, play_it: Callable[[Path], dict[str, Any]], out: Path) -> dict[str, Any]:
    try:
        return play_it(out)
    except (RehearsalError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return {
            "result": f"failed: {error}",
            "spend": {},
            "wall_s": 0.0,
            "clock_s": 0.0,
            "problems": [str(error)],
        }


def _table(results: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        ("scenario", "result", "wall s", "clock min", "rounds", "budget $", "ledger $", "counted $")
    ]
    for name, result in results.items():
        spends = result["spend"].values()
        rows.append(
            (
                name,
                result["result"][:40],
                f"{result['wall_s']:.0f}",
                f"{result['clock_s'] / 60:.0f}",
                *(
                    " ".join(_shown(spend[key]) for spend in spends)
                    for key in ("rounds", "budget_usd", "ledger_usd", "counted_usd")
                ),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ] + [
        "ledger = the most that it can have cost, as the guard bills it; counted = what Describe found, counted apart; "
        "both from list prices"
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
