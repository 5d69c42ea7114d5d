"""Writes docs/reference/experiment_file.md from the descriptions of the keys."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.config.explaining import allowed_values, default_text, walk_fields  # noqa: E402
from runtime.config.schema import KINDS, add_kind  # noqa: E402
from runtime.config.variants import section_of  # noqa: E402

HEAD = """\
# The experiment file

A YAML file with one section for each part of the system. Only `environment.id` and `budget.usd` are required. If an
environment of your own has no step limit, also set `environment.max_episode_steps`.

- **Help.** `python -m runtime explain KEY` prints the entry of a key or section.
- **Overrides.** `--set stop.max_rounds=20` sets a key on the command line.
- **Mistakes.** Unknown keys and values out of range are refused before anything starts. So are keys that the run would
  never read, such as `scaler.decay_factor` with `scaler.kind: fixed`. If the command line or the extending file makes a
  key unused, it is ignored and named (`not used`).
- **Inheritance.** `extends: FILE.yaml`, relative to the file, names a file that supplies missing keys, and may extend
  another one.
- **Your own kinds.** Algorithm, scaler, fleet and learner can be your own; see [add a part](../design/add-a-part.md).

`algorithm.{ppo,impact}.clip` stands for one key in each of these sections; `/` separates their defaults.
`python docs/make_experiment_file_md.py` writes this page.

| key | default | allowed | meaning |
|---|---|---|---|
"""


def shared_keys() -> dict[str, tuple[str, str]]:
    """Returns the joint path and defaults of keys that several algorithms describe in the same words, by each path."""
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    sections = [f"algorithm.{KINDS['algorithm'].key(kind)}" for kind in KINDS["algorithm"].settings]
    for path, info in walk_fields():
        section, _, name = path.rpartition(".")
        if section in sections:
            groups.setdefault((name, allowed_values(info), info.description or ""), {})[path] = (
                default_text(info)
            )
    shared = {}
    for (name, *_), defaults in groups.items():
        if len(defaults) > 1:
            kinds = ",".join(path.split(".")[1] for path in defaults)
            texts = (
                defaults.values()
                if len(set(defaults.values())) > 1
                else [next(iter(defaults.values()))]
            )
            joint = f"algorithm.{{{kinds}}}.{name}", "/".join(texts)
            shared |= dict.fromkeys(defaults, joint)
    return shared


def table() -> str:
    rows = []
    shared = shared_keys()
    for path, info in walk_fields():
        if section_of(info) is not None:
            rows.append(f"| **{path}** | | | {info.description} |")
        else:
            path, default = shared.get(path, (path, default_text(info)))
            allowed = allowed_values(info).replace(" | ", ", ").replace("a whole number", "integer")
            allowed = re.sub(r"from (\S+) to", r"\1 to", allowed.replace("a number", "number"))
            rows.append(f"| `{path}` | {default} | {allowed} | {info.description} |")
    return HEAD + "\n".join(dict.fromkeys(rows)) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    for path in sys.argv[1:]:
        # Kinds of your own, package.module:Settings.
        add_kind(path)
    if sys.argv[1:]:
        print(table())
    else:
        (ROOT / "docs" / "reference" / "experiment_file.md").write_text(table())
