"""Reads an experiment file, the files it extends, and overrides from the command line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.explaining import EXTENDS, explain_problem
from runtime.experiment.kinds import is_import_path
from runtime.experiment.schema import KINDS, Experiment, add_kind

Tree = dict[str, Any]


@dataclass(frozen=True)
class _Layer:
    """The contents of one file, or of the command line."""

    path: Path | None
    tree: Tree


class UntrustedCodeError(ExperimentError):
    """A run's own config.yaml names code that the user did not name."""


def load_experiment(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    is_of_run: bool = False,
    may_import: bool = False,
) -> Experiment:
    """Returns the experiment in a file, validated but not resolved.

    The key ``extends`` names another file, which supplies missing keys and may itself extend one.
    ``stop.target_return`` belongs to its file's environment, and is dropped if another layer changes that.

    A layer that changes a section's ``kind`` drops the earlier layers' keys of the old kind.

    Args:
        path: The experiment file.
        overrides: Each ``section.key=value``; they take precedence over all files.
        is_of_run: Whether it is a run's own config.yaml. It may not extend a file, because a downloaded one could name
            any file of this machine.
        may_import: Whether to import kinds that a run's file names by import path. Those in ``overrides`` always are.

    Raises:
        ExperimentError: A file cannot be read, or has errors; the message names every field, its value and what is
            allowed.
        UntrustedCodeError: The file names a kind by import path, which may not be imported.
    """
    changed = changed_keys(overrides)
    files = _layers(path, [], may_extend=not is_of_run)
    return _of_layers(
        [*files, _Layer(None, changed)],
        str(path),
        trusted=changed if is_of_run and not may_import else None,
    )


def experiment_from_tree(
    tree: Mapping[str, Any], *, source: str, base: Mapping[str, Any] | None = None
) -> Experiment:
    """Returns the experiment that a tree describes.

    Args:
        tree: Parsed YAML.
        source: Name for it in errors.
        base: Another tree that supplies missing keys, like a file that is extended.

    Raises:
        ExperimentError: See `load_experiment`.
    """
    layers = [_Layer(None, dict(values)) for values in (base, tree) if values is not None]
    return _of_layers(layers, source)


def changed_keys(overrides: Iterable[str]) -> dict[str, Any]:
    """Returns the tree that ``section.key=value`` texts describe.

    Raises:
        ExperimentError: A text has another form.
    """
    tree: Tree = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not path or "." in key:
            raise ExperimentError(f"--set {override}: is not section.key=value")
        value = yaml_text.parse(text, f"--set {override}")
        tree = _over(tree, {section: {key: value} if dot else value})
    return tree


def self_contained(path: Path) -> bytes:
    """Returns an experiment file that needs no other: the file itself, or the merged contents of all files it extends.

    Raises:
        ExperimentError: A file cannot be read.
    """
    layers = _layers(path, [])
    if len(layers) == 1:
        return path.read_bytes()
    return yaml_text.dump(_merged(layers)).encode()


def _of_layers(layers: Sequence[_Layer], source: str, *, trusted: Tree | None = None) -> Experiment:
    """Merges and validates layers.

    Args:
        layers: The farthest first.
        source: Name for them in errors.
        trusted: The tree whose kinds by import path are imported; None = the merged one.
    """
    tree = _merged(layers)
    kinds = {
        name: _value_at(tree, name, "kind") or choices.default for name, choices in KINDS.items()
    }
    for name, kind in kinds.items():
        if is_import_path(kind) and kind not in KINDS[name].settings:
            if trusted is not None and _value_at(trusted, name, "kind") != kind:
                raise UntrustedCodeError(
                    f"{source}: {name}.kind = {kind!r} of a run is code, and code that a run names is not run. If you "
                    "trust the run: --trust of train, evaluate and export, trust=True of train() and load_policy()"
                )
            add_kind(kind, name)
    try:
        return Experiment.model_validate(tree)
    except pydantic.ValidationError as error:
        lines = [
            line + _origin(problem["loc"], layers)
            for problem in error.errors()
            for line in explain_problem(problem, kinds, tree).splitlines()
        ]
        lines = list(dict.fromkeys(lines))
        heading = f"{source}: {len(lines)} problem{'s' * (len(lines) > 1)}:"
        raise ExperimentError("\n  ".join([heading, *lines])) from None


def _origin(location: Sequence[Any], layers: Sequence[_Layer]) -> str:
    """Names the file with a wrong value, unless it is the loaded file or the command line."""
    files = [layer for layer in layers if layer.path is not None]
    holders = [layer for layer in layers if location and _holds(layer.tree, location[:2])]
    is_elsewhere = holders and holders[-1].path is not None and holders[-1] is not files[-1]
    return f" (in {holders[-1].path})" if is_elsewhere else ""


def _holds(tree: Any, location: Sequence[Any]) -> bool:
    for key in location:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True


# Files


def _layers(path: Path, above: list[Path], *, may_extend: bool = True) -> list[_Layer]:
    """Returns the contents of a file and those it extends, the farthest first.

    Args:
        path: The file.
        above: The files that led to it, in order.
        may_extend: Whether the file may extend another one.
    """
    tree = _read(path, above)
    base = tree.pop(EXTENDS, None)
    layer = _Layer(path, _relocated(tree, path.parent, [*above, path][0].parent))
    if base is None:
        return [layer]
    if not may_extend:
        raise ExperimentError(
            f"{path}: {EXTENDS} = {base!r} is not allowed: a run's own config.yaml stands for "
            "itself; if you trust it, copy the file elsewhere"
        )
    if not isinstance(base, str) or not base:
        raise ExperimentError(
            f"{path}: {EXTENDS} = {base!r} is not allowed; allowed: another experiment file's path, "
            "relative to this one"
        )
    chain = [*above, path]
    base_path = path.parent / base
    if base_path.resolve() in [earlier.resolve() for earlier in chain]:
        raise ExperimentError(
            f"{path}: {EXTENDS} goes in a circle: {' → '.join(map(str, [*chain, base_path]))}"
        )
    return [*_layers(base_path, chain), layer]


def _read(path: Path, above: Sequence[Path]) -> Tree:
    source = f"{path}, which {above[-1]} extends" if above else str(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ExperimentError(
            f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}"
            + (_meant(path) if isinstance(error, FileNotFoundError) else "")
        ) from None
    tree = yaml_text.parse(text, source)
    if not isinstance(tree, dict):
        raise ExperimentError(
            f"{source}: is not a mapping of sections such as environment: and budget:"
        )
    return tree


def _meant(path: Path) -> str:
    """Names a file with a similar name, in the same folder or in experiments/; empty if there is none."""
    files = {
        file.stem: file
        for folder in (Path("experiments"), path.parent)
        for file in folder.glob("*.yaml")
    }
    names = difflib.get_close_matches(path.stem, files, n=1, cutoff=0.75)
    return f"; did you mean {files[names[0]]}?" if names else ""


def _relocated(tree: Tree, folder: Path, to: Path) -> Tree:
    """Makes ``environment.package``, if it is a folder, relative to that of the file that is loaded."""
    package = _value_at(tree, "environment", "package")
    if not isinstance(package, str) or folder == to or not (folder / package).is_dir():
        return tree
    return _over(tree, {"environment": {"package": os.path.relpath(folder / package, to)}})


# Merging


def _merged(layers: Sequence[_Layer]) -> Tree:
    """Merges trees; keys of later layers override earlier ones.

    A layer that changes a kind drops the old kind's keys, and one that changes the environment its target.
    """
    tree: Tree = {}
    for layer in layers:
        for name, kinds in KINDS.items():
            section, kind = tree.get(name), _value_at(layer.tree, name, "kind")
            if isinstance(section, dict) and kind not in (None, section.get("kind", kinds.default)):
                tree[name] = {key: section[key] for key in section if key in kinds.shared}
        before, now = (_value_at(each, "environment", "id") for each in (tree, layer.tree))
        if None not in (before, now, tree.get("stop")) and now != before:
            tree["stop"] = {**tree["stop"]}
            tree["stop"].pop("target_return", None)
        tree = _over(tree, layer.tree)
    return tree


def _over(base: Tree, tree: Tree) -> Tree:
    """Returns the base with the other tree's keys; the value of a key, even a mapping, replaces that of the base."""
    return base | {
        name: {**base[name], **section}
        if isinstance(section, dict) and isinstance(base.get(name), dict)
        else section
        for name, section in tree.items()
    }


def _value_at(tree: Mapping[str, Any], section: str, key: str) -> Any:
    values = tree.get(section)
    return values.get(key) if isinstance(values, dict) else None
