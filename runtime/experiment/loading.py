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
from runtime.experiment.explaining import (
    EXTENDS,
    explain_problem,
    explain_unused,
)
from runtime.experiment.kinds import is_import_path
from runtime.experiment.schema import (
    KINDS,
    Experiment,
    add_kind,
    without_keys,
)
from runtime.experiment.unused import is_set, reason, unused

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

    A layer that changes a section's ``kind`` drops the earlier layers' keys of the old kind. A key that the run never
    reads is refused, unless a later layer causes that. `Experiment.not_used` lists both.

    Args:
        path: The experiment file.
        overrides: Each ``section.key=value``; they take precedence over all files.
        is_of_run: Whether it is a run's own config.yaml. It may not extend a file, because a downloaded one could name
            any file of this machine. It may have unused keys, because older versions wrote all keys.
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
        first_checked=len(files) if is_of_run else 0,
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
    layers = [_Layer(None, dict(one)) for one in (base, tree) if one is not None]
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
        ExperimentError: See `load_experiment`.
    """
    layers = _layers(path, [])
    if len(layers) == 1:
        return path.read_bytes()
    not_used = _of_layers(layers, str(path)).not_used
    return yaml_text.dump(without_keys(_merged(layers)[0], not_used)).encode()


def _of_layers(
    layers: Sequence[_Layer], source: str, *, trusted: Tree | None = None, first_checked: int = 0
) -> Experiment:
    """Merges, validates and checks layers.

    Args:
        layers: The farthest first.
        source: Name for them in errors.
        trusted: The tree whose kinds by import path are imported; None = the merged one.
        first_checked: See `_check_used`.
    """
    tree, not_used = _merged(layers)
    experiment = _validated(tree, source, layers, trusted)
    not_used |= _check_used(experiment, source, layers, first_checked=first_checked)
    return Experiment.leaving_out(not_used, tree) if not_used else experiment


def _validated(
    tree: Tree, source: str, layers: Sequence[_Layer], trusted: Tree | None
) -> Experiment:
    """Validates merged layers; kinds by import path are imported if they are in the tree that is trusted."""
    kinds = {name: _value_at(tree, name, "kind") or one.default for name, one in KINDS.items()}
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
        raise _problems(source, list(dict.fromkeys(lines))) from None


def _problems(source: str, lines: Sequence[str]) -> ExperimentError:
    return ExperimentError(
        "\n".join(
            [f"{source}: {len(lines)} problem{'s' * (len(lines) > 1)}:"]
            + [f"  {line}" for line in lines]
        )
    )


def _check_used(
    experiment: Experiment, source: str, layers: Sequence[_Layer], *, first_checked: int
) -> dict[str, str]:
    """Refuses keys that are never read, if they are set in the layer that causes this, or in a later one.

    Returns the others, each with the reason.

    Args:
        experiment: Merged from the layers.
        source: Name for it in errors.
        layers: The farthest first.
        first_checked: Keys in layers before this one are never refused.
    """

    def place(key: str) -> int:
        return max(
            (index for index, layer in enumerate(layers) if _holds(layer.tree, key.split("."))),
            default=-1,
        )

    lines: list[str] = []
    not_used: dict[str, str] = {}
    for found in unused(experiment):
        decided = max(first_checked, *map(place, found.deciders))
        keys = [key for key in found.keys if is_set(experiment, key)]
        not_used |= dict.fromkeys(keys, reason(experiment, found))
        lines += [
            explain_unused(experiment, found, key) + _origin(key.split("."), layers)
            for key in keys
            if place(key) >= decided
        ]
    if lines:
        raise _problems(source, lines)
    return not_used


def _origin(location: Sequence[Any], layers: Sequence[_Layer]) -> str:
    """Names the file with a wrong value, unless it is the loaded file or the command line."""
    files = [layer for layer in layers if layer.path is not None]
    found = [layer for layer in layers if location and _holds(layer.tree, location[:2])]
    is_elsewhere = found and found[-1].path is not None and found[-1] is not files[-1]
    return f" (in {found[-1].path})" if is_elsewhere else ""


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
    if base_path.resolve() in [one.resolve() for one in chain]:
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
    there = {
        one.stem: one
        for folder in (Path("experiments"), path.parent)
        for one in folder.glob("*.yaml")
    }
    names = difflib.get_close_matches(path.stem, there, n=1, cutoff=0.75)
    return f"; did you mean {there[names[0]]}?" if names else ""


def _relocated(tree: Tree, folder: Path, to: Path) -> Tree:
    """Makes ``environment.package``, if it is a folder, relative to that of the file that is loaded."""
    package = _value_at(tree, "environment", "package")
    if not isinstance(package, str) or folder == to or not (folder / package).is_dir():
        return tree
    return _over(tree, {"environment": {"package": os.path.relpath(folder / package, to)}})


# Merging


def _merged(layers: Sequence[_Layer]) -> tuple[Tree, dict[str, str]]:
    """Merges trees; keys of later layers override earlier ones.

    Returns:
        The tree, and why keys were dropped that no later layer sets again: the kind that replaced theirs, which may
        have keys by the same name, or the environment that replaced their target's.
    """
    tree: Tree = {}
    dropped: dict[str, str] = {}
    for layer in layers:
        where = f" in {layer.path}" if layer.path else ""
        for section, key in [("environment", "id"), *((name, "kind") for name in KINDS)]:
            default = KINDS[section].default if key == "kind" else None
            before, now = (
                _value_at(tree, section, key) or default,
                _value_at(layer.tree, section, key),
            )
            if None not in (before, now) and now != before:
                gone = _depending(tree, section)
                dropped |= dict.fromkeys(gone, f"{section}.{key} = {now}{where}")
                tree = without_keys(tree, gone)
        tree = _over(tree, layer.tree)
    return tree, {key: why for key, why in dropped.items() if not _holds(tree, key.split("."))}


def _depending(tree: Tree, section: str) -> list[str]:
    """Returns the keys that are lost with the section's kind or with the environment."""
    if section == "environment":
        return (
            ["stop.target_return"] if _value_at(tree, "stop", "target_return") is not None else []
        )
    found = tree.get(section)
    keys = found if isinstance(found, dict) else ()
    return [f"{section}.{key}" for key in keys if key not in KINDS[section].shared]


def _over(base: Tree, tree: Tree) -> Tree:
    """Returns the base with the other tree's keys; the value of a key, even a mapping, replaces that of the base."""
    return base | {
        name: {**base[name], **section}
        if isinstance(section, dict) and isinstance(base.get(name), dict)
        else section
        for name, section in tree.items()
    }


def _value_at(tree: Mapping[str, Any], section: str, key: str) -> Any:
    found = tree.get(section)
    return found.get(key) if isinstance(found, dict) else None
