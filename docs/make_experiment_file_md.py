"""Writes docs/reference/experiment_file.md from the descriptions of the keys."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.experiment.explaining import (  # noqa: E402
    allowed_values,
    default_text,
    section_of,
    walk_fields,
)
from runtime.experiment.kinds import OWN  # noqa: E402

HEAD = """\
# The experiment file

A YAML file with a section for each part of the system. Only `environment.id` and `budget.usd` are required.

- **Help.** `python -m runtime explain KEY` prints the entry of a key or section.
- **Overrides.** `--set stop.max_rounds=20` sets a key on the command line.
- **Kinds.** A section's `kind` decides which keys it has. If only some kinds have a key or a default, they follow the
  default in parentheses. You can [add your own](../design/add-a-part.md) algorithm, scaler, fleet or learner.
- **Null.** A key may be `null` if its default or its meaning says so.
- **Mistakes.** Unknown keys, another kind's keys and values out of range are refused before anything starts. Keys
  that other keys switch off are ignored, such as `detector.lanczos_steps` with `scaler.kind: fixed`.
- **Inheritance.** `extends: FILE.yaml`, relative to the file, supplies missing keys. If the file or `--set` changes a
  `kind`, earlier keys of the old kind are dropped.
- **Editors.** The first line of each example names a [JSON schema](experiment.schema.json). Editors with a language
  server for YAML, such as Visual Studio Code's, complete and check keys by it.

`make docs` writes this page and the schema.

| key | default | allowed | meaning |
|---|---|---|---|
"""


def table() -> str:
    """Returns the page. A key whose kinds differ only in the default has one row."""
    rows: dict[str, list[str]] = {}
    for key in walk_fields():
        info = key.info
        if section_of(info) is None:
            kinds = f" ({', '.join(key.kinds)})" if key.kinds else ""
            allowed = re.sub(r" or null$|\ban? ", "", allowed_values(info).replace(" | ", ", "))
            allowed = re.sub(r"from (\S+) to", r"\1 to", allowed.replace("whole number", "integer"))
            row = f"| `{key.path}` | DEFAULT | {allowed} | {info.description} |\n"
            rows.setdefault(row.replace(f"; or {OWN}", ""), []).append(default_text(info) + kinds)
    return HEAD + "".join(row.replace("DEFAULT", ", ".join(texts)) for row, texts in rows.items())


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "experiment_file.md").write_text(table())
