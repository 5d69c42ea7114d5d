"""rl-zoo3's tuned settings, read from the installed package without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from nitro_rl import RunError


@dataclass(frozen=True)
class Tuned:
    """rl-zoo3's settings for an algorithm and an environment.

    Attributes:
        environment_id: The environment that it was tuned for, possibly another version than requested.
        settings: Keyword arguments of the algorithm, with ``policy``.
        n_envs: Number of parallel environments.
        n_timesteps: Steps for ``learn``; None if not given.
        normalize: Keyword arguments of `VecNormalize`; None if it is not used.
        others: Other settings, such as wrappers.
    """

    environment_id: str
    settings: dict[str, Any]
    n_envs: int
    n_timesteps: int | None
    normalize: dict[str, Any] | None
    others: dict[str, Any]


_OTHERS = (
    "env_wrapper",
    "frame_stack",
    "callback",
    "noise_type",
    "noise_std",
    "replay_buffer_class",
    "vec_env_wrapper",
    "env_kwargs",
    "model_class",
    "goal_selection_strategy",
)


def tuned(algorithm: str, environment_id: str) -> Tuned:
    """Returns rl-zoo3's tuned settings.

    Args:
        algorithm: Name of rl-zoo3's file: ``ppo``, ``sac``, ``dqn``.
        environment_id: The environment. If it is missing, its newest other version is used.

    Raises:
        RunError: rl-zoo3 is not installed, has no such settings, or has settings that are not literals.
    """
    spec = importlib.util.find_spec("rl_zoo3")
    if spec is None or spec.origin is None:
        raise RunError("tuned settings are read from rl-zoo3: pip install rl_zoo3")
    file = Path(spec.origin).parent / "hyperparams" / f"{algorithm}.yml"
    if not file.is_file():
        raise RunError(
            f"rl-zoo3 has no {file.name}; it has {sorted(one.stem for one in file.parent.glob('*.yml'))}"
        )
    every: Mapping[str, Any] = yaml.safe_load(file.read_text())
    name, _, _ = environment_id.rpartition("-v")
    versions = sorted(
        (one for one in every if name and one.rpartition("-v")[0] == name),
        key=lambda one: int(one.rpartition("-v")[2]),
    )
    if environment_id not in every and not versions:
        raise RunError(f"rl-zoo3's {file.name} has nothing for {environment_id}")
    found = environment_id if environment_id in every else versions[-1]
    read = {key: _value(key, value) for key, value in every[found].items()}
    others = {key: read.pop(key) for key in _OTHERS if key in read}
    n_envs, n_timesteps, normalize = (
        read.pop("n_envs", 1),
        read.pop("n_timesteps", None),
        read.pop("normalize", None),
    )
    if normalize:
        normalize = ({} if normalize is True else normalize) | {
            key: read[key] for key in ("gamma",) if key in read
        }
    return Tuned(
        found,
        read,
        int(n_envs),
        None if n_timesteps is None else int(n_timesteps),
        normalize or None,
        others,
    )


def _value(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("lin_"):
        return LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    if not key.endswith("kwargs") and key != "normalize":
        return value
    try:
        return _literal(ast.parse(value.strip(), mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise RunError(f"rl-zoo3's {key} = {value!r} cannot be read: {error}") from None


def _literal(node: ast.expr) -> Any:
    """The value of a literal, of ``dict(…)`` or of one of torch's activations; nothing is executed."""
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=pairs):
            return {pair.arg: _literal(pair.value) for pair in pairs}
        case ast.Attribute(value=ast.Name(id="nn"), attr=name) if name in (
            "ReLU",
            "Tanh",
            "ELU",
            "GELU",
            "LeakyReLU",
        ):
            return getattr(nn, name)
        case _:
            return ast.literal_eval(node)
