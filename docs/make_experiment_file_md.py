"""Writes docs/reference/experiment_file.md from the descriptions of the fields, wherever they stand."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.config.explaining import allowed_values, default_text, walk_fields  # noqa: E402
from runtime.config.schema import add_kind  # noqa: E402
from runtime.config.variants import section_of  # noqa: E402

HEAD = """\
# The experiment file

YAML, one section for each part of the system. Only `environment.id` and `budget.usd` are required. An environment of
your own that has no limit of steps also needs `environment.max_episode_steps`. Any key can be overridden on the command
line: `--set stop.max_rounds=20`. Unknown keys and values out of range are refused before anything starts.

So is a key that the run would never read, such as `scaler.decay_factor` with `scaler.kind: fixed`. If what decides that
stands above the key, on the command line or in the file that extends, the key is ignored, and named in one line (`not
used`): `--set scaler.kind=fixed` may be given for a file with Nitro's scaler.

The `kind` of algorithm, scaler, fleet and learner may also be `package.module:Settings`, settings of your own: see
[add a part](../design/add-a-part.md).

`extends: FILE.yaml`, a path relative to the file, names another file whose keys count if this one does not have them;
that file may extend another in turn; each is a regular file of at most 256 KiB, and a downloaded run's own
`config.yaml` extends none. `python -m runtime explain KEY` tells what stands here about one key or section.

`seed`, the settings and the code decide what a run's `rounds.jsonl` holds, but for times and dollars, where rounds are
synchronous; `fleet.processes`
does not change it.

This file is written by `python docs/make_experiment_file_md.py`.

| key | default | allowed | meaning |
|---|---|---|---|
"""


def table() -> str:
    rows = []
    for path, info in walk_fields():
        if section_of(info) is not None:
            rows.append(f"| **{path}** | | | {info.description} |")
        else:
            allowed = allowed_values(info).replace("|", "or")
            rows.append(f"| `{path}` | {default_text(info)} | {allowed} | {info.description} |")
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
