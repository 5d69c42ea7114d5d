"""Keeps layouts found by searches, each for one machine and one workload, in the user's cache directory.

Nothing depends on these files. Unreadable or unwritable ones are reported, and the layout is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambda_actor.replay import processor
from runtime.errors import one_line
from runtime.gmi.search import Layout
from runtime.records.files import make_directory, to_json, write_atomically

if TYPE_CHECKING:
    from runtime.experiment.resolved import ResolvedExperiment

_LIBRARIES = ("torch", "numpy", "gymnasium", "mujoco")

Key = Mapping[str, Any]
"""Everything that affects a layout's speed, as JSON values."""


def key_of(experiment: ResolvedExperiment, *, cores: int, gpus: Sequence[str] = ()) -> Key:
    """Returns a layout's key: this machine, its libraries, and the settings that affect speed.

    Args:
        experiment: The experiment; its environment, network, algorithm and round count.
        cores: Usable cores.
        gpus: Names of the GPUs.
    """
    algorithm = experiment.algorithm
    key = {
        "processor": processor(),
        "cores": cores,
        "gpus": list(gpus),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "environment": experiment.environment.model_dump(mode="json", exclude={"package"}),
        "network": experiment.network.architecture,
        "algorithm": algorithm.model_dump(mode="json"),
        "actors": experiment.scaler.most_actors,
        "fragment_steps": experiment.actor.fragment_steps,
    }
    normal: Key = json.loads(json.dumps(key))
    return normal


def keep(key: Key, layout: Layout) -> str:
    """Keeps a layout and replaces an earlier one. Returns the reason if it fails, otherwise an empty string."""
    try:
        path = _path(key)
        make_directory(path.parent)
        write_atomically(path, to_json({"layout": asdict(layout), "key": key}))
    except (OSError, RuntimeError) as error:
        return f"the layout that was found is not kept: {one_line(str(error))}"
    return ""


def kept_layout(key: Key) -> tuple[Layout | None, str]:
    """Returns the kept layout, or None and the reason why an existing file is ignored; empty without a file."""
    try:
        path = _path(key)
        found = json.loads(path.read_bytes())
        if found["key"] != key:
            return None, f"{path} is ignored: it is of another machine or workload"
        layout = Layout(**found["layout"])
        if not (
            all(
                type(count) is int and count > 0
                for count in (layout.instances, layout.environments)
            )
            and isinstance(layout.reduction, str)
        ):
            raise ValueError("no such layout can be")
        return layout, ""
    except FileNotFoundError:
        return None, ""
    except (OSError, RuntimeError) as error:
        return None, f"no kept layout can be read: {one_line(str(error))}"
    except (ValueError, TypeError, KeyError):
        return None, f"{path} is ignored: it is no layout that was kept"


def _path(key: Key) -> Path:
    """Returns the path of a kept layout.

    Raises:
        RuntimeError: The user has no home directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = given if given.is_absolute() else Path("~/.cache").expanduser()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / "nitro-rl" / "layouts" / f"{digest[:32]}.json"


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
