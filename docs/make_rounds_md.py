"""Writes the table of rounds.jsonl in docs/reference/run_directory.md from runtime/records/rows.py."""

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.records.rows import COLUMNS  # noqa: E402

DOCUMENT = ROOT / "docs" / "reference" / "run_directory.md"
BEGIN, END = "<!-- written by docs/make_rounds_md.py -->\n", "<!-- end of what it writes -->\n"


PARTS = {
    "round_index": "Policy and signals",
    "actor_count_wanted": "Actors and steps",
    "evaluation_return_mean": "Returns and episodes",
    "policy_loss": "Learning",
    "gradients": "Stellaris",
    "instances": "Instances on one machine",
    "collect_s": "Seconds",
    "actors_cost_usd": "Dollars",
}
"""The heading of each table, by the table's first key."""


def table() -> str:
    """Returns the tables, in the order of the file, with one line for neighbors that share a meaning."""
    lines: list[str] = []
    for meaning, columns in groupby(COLUMNS, lambda key: COLUMNS[key].meaning):
        keys = list(columns)
        if keys[0] in PARTS:
            lines += ["", f"### {PARTS[keys[0]]}", "", "| key | meaning |", "|---|---|"]
        lines.append(f"| `{'`, `'.join(keys)}` | {meaning} |")
    return "\n".join(lines[1:]) + "\n"


def document(text: str) -> str:
    """Returns ``text`` with the table between its two markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
