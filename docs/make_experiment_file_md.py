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
from runtime.experiment.schema import add_kind  # noqa: E402

HEAD = """\
# The experiment file

A YAML file with one section for each part of the system. Only `environment.id` and `budget.usd` are required. If an
environment of your own has no step limit, also set `environment.max_episode_steps`.

- **Help.** `python -m runtime explain KEY` prints the entry of a key or section.
- **Overrides.** `--set stop.max_rounds=20` sets a key on the command line.
- **Kinds.** A section's `kind` decides which keys it has. Keys that only some kinds have, or with another default, name
  them in parentheses.
- **Mistakes.** Unknown keys, another kind's keys and values out of range are refused before anything starts. Keys
  that other keys switch off are ignored, such as `detector.lanczos_steps` with `scaler.kind: fixed`. A resumed run must
  keep them.
- **Inheritance.** `extends: FILE.yaml`, relative to the file, names a file that supplies missing keys, and may extend
  another one. If it or `--set` changes a `kind`, the earlier keys of the old kind are dropped.
- **Editors.** The first line of each example names a [JSON schema](experiment.schema.json). Editors with a language
  server for YAML, such as Visual Studio Code's, complete and check keys by it. `python docs/make_experiment_schema.py`
  writes it.
- **Your own kinds.** Algorithm, scaler, fleet and learner can be your own; see [add a part](../design/add-a-part.md).

`python docs/make_experiment_file_md.py` writes this page.

| key | default | allowed | meaning |
|---|---|---|---|
"""


def table() -> str:
    rows = []
    for key in walk_fields():
        info = key.info
        if section_of(info) is not None:
            rows.append(f"| **{key.path}** | | | {info.description} |")
        else:
            kinds = f" ({', '.join(key.kinds)})" if key.kinds else ""
            allowed = allowed_values(info).replace(" | ", ", ").replace("a whole number", "integer")
            allowed = re.sub(r"from (\S+) to", r"\1 to", allowed.replace("a number", "number"))
            rows.append(
                f"| `{key.path}`{kinds} | {default_text(info)} | {allowed} | {info.description} |"
            )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    for path in sys.argv[1:]:
        # Kinds of your own, package.module:Settings.
        add_kind(path)
    if sys.argv[1:]:
        print(table())
    else:
        (ROOT / "docs" / "reference" / "experiment_file.md").write_text(table())
