"""Makes environments by name: Gymnasium's ids, games, and a user's own, with arguments, wrappers and a time limit."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np

from lambda_actor import atari
from lambda_actor.errors import UnusableEnvironmentError, told

PREPROCESSINGS = ("auto", "atari", "none")
OPTIONS = ("kwargs", "wrappers", "max_episode_steps", "frame_stack")
"""Optional JSON settings for making an environment, in addition to id and preprocessing: keyword arguments; pairs of a
wrapper's import path and its keyword arguments, innermost first; maximum steps of an episode; and frames of pixels per
observation."""
_REGISTERED_BY = {
    r"MiniGrid-|BabyAI-": "minigrid",
    r"(highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way|lane-keeping)-": "highway_env",
    r"Fetch|HandReach|HandManipulate|AntMaze|PointMaze|AdroitHand|FrankaKitchen": "gymnasium_robotics",
    r"dm_control/|bsuite/": "shimmy",
    r"ALE/|\w+(NoFrameskip|Deterministic)-v": "ale_py",
}
"""Modules that register ids when imported, by prefix of the id. They are imported here."""


_EXTRAS = {"ale_py": "atari", "cv2": "atari", "mujoco": "mujoco"}
"""Modules that only an extra of this project installs, and the extra."""


def make(
    environment_id: str, preprocessing: str, options: Mapping[str, Any]
) -> tuple[gymnasium.Env, bool]:
    """Makes an environment.

    Args:
        environment_id: See `lambda_actor.environments.make_environment`.
        preprocessing: One of `PREPROCESSINGS`.
        options: Some of `OPTIONS`.

    Returns:
        The environment, and whether it is a preprocessed game.

    Raises:
        UnusableEnvironmentError: It cannot be imported or made, or is not a game but ``atari`` is required.
    """
    if preprocessing not in PREPROCESSINGS:
        raise UnusableEnvironmentError(
            f"environment.preprocessing = {preprocessing!r} is not allowed; allowed: "
            + " | ".join(PREPROCESSINGS)
        )
    if unknown := options.keys() - set(OPTIONS):
        raise UnusableEnvironmentError(
            f"an environment has no option {sorted(unknown)}; known: {' | '.join(OPTIONS)}"
        )
    try:
        return _made(environment_id, preprocessing, options)
    except UnusableEnvironmentError:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r} cannot be made: {told(error)}{_advice(environment_id, error)}"
        ) from error


def _made(
    environment_id: str, preprocessing: str, options: Mapping[str, Any]
) -> tuple[gymnasium.Env, bool]:
    factory, registered_id = _find(environment_id)
    kwargs, limit = dict(options.get("kwargs", {})), options.get("max_episode_steps")
    is_registered_game = factory is None and atari.is_game_id(registered_id)
    is_preprocessed = preprocessing == "atari" or (preprocessing == "auto" and is_registered_game)
    environment: Any
    if factory is not None:
        environment = factory(**kwargs)
    elif is_registered_game and is_preprocessed:
        environment = atari.make_game(registered_id, **kwargs)
    else:
        # This limit replaces the registered one.
        environment = gymnasium.make(
            registered_id, max_episode_steps=limit, disable_env_checker=True, **kwargs
        )
        limit = None
    if not isinstance(environment, gymnasium.Env):
        kind = type(environment)
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r}: the factory returned {kind.__module__}.{kind.__name__}, not a "
            "gymnasium.Env; allowed: an environment of one agent, or a function that makes one of it"
        )
    if is_preprocessed:
        if not atari.is_game(environment.unwrapped):
            raise UnusableEnvironmentError(
                f"environment.preprocessing = 'atari': {environment_id!r} is no game of the "
                "Arcade Learning Environment; allowed: auto | none"
            )
        environment = atari.preprocessed(environment)
    if limit is not None:
        environment = gymnasium.wrappers.TimeLimit(environment, limit)
    for path, arguments in options.get("wrappers", ()):
        environment = _wrapped(environment, path, arguments)
    return environment, is_preprocessed


def _wrapped(environment: gymnasium.Env, path: str, arguments: Mapping[str, Any]) -> gymnasium.Env:
    module_name, _, name = path.rpartition(".")
    what = f"environment.wrappers: {path}"
    try:
        wrapper = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(f"{what} cannot be imported: {told(error)}") from error
    try:
        wrapped = _with_sequences(wrapper, environment, arguments)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"{what} cannot wrap {environment}: {told(error)}"
        ) from error
    if not isinstance(wrapped, gymnasium.Env):
        raise UnusableEnvironmentError(
            f"{what} returned {type(wrapped).__name__}, not a gymnasium.Env"
        )
    return wrapped


def _with_sequences(
    wrapper: Callable[..., object], environment: gymnasium.Env, arguments: Mapping[str, Any]
) -> object:
    """Wraps an environment. JSON only has lists, but Gymnasium's wrappers require tuples, and others arrays."""

    def wrapped(sequence: Callable[[list[Any]], object]) -> object:
        return wrapper(
            environment,
            **{
                key: sequence(value) if isinstance(value, list) else value
                for key, value in arguments.items()
            },
        )

    try:
        return wrapped(tuple)
    except (AttributeError, TypeError):
        with suppress(Exception):
            return wrapped(np.array)
        raise


def _find(environment_id: str) -> tuple[Callable[..., object] | None, str]:
    """Returns the user's factory, if the name is one, and otherwise the id registered with Gymnasium."""
    module_name, colon, attribute = environment_id.partition(":")
    if not colon:
        if environment_id not in gymnasium.registry:
            atari.register_games()
            if (registrar := _registrar(environment_id)) and importlib.util.find_spec(
                registrar
            ) is not None:
                importlib.import_module(registrar)
        return None, environment_id
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r}: module {module_name!r} does not import: "
            f"{told(error)}; allowed: a module that Python finds, installed or on PYTHONPATH"
        ) from error
    factory = getattr(module, attribute, None)
    if factory is None and atari.specs_of(attribute):
        return None, attribute
    if not callable(factory):
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r}: module {module_name!r} has no callable "
            f"{attribute!r} and registers no such id"
        )
    return factory, ""


def _advice(environment_id: str, error: BaseException) -> str:
    """Returns what to install if something is missing, otherwise an empty string."""
    module = _registrar(environment_id)
    for name, extra in _EXTRAS.items():
        is_meant = name == module or name in str(error).lower()
        if is_meant and importlib.util.find_spec(name) is None:
            return f"; pip install 'nitro-rl[{extra}]' brings it"
    if not isinstance(error, gymnasium.error.UnregisteredEnv):
        return ""
    if module and importlib.util.find_spec(module) is None:
        return f"; python -m pip install {module.replace('_', '-')} brings it"
    return (
        "; if another package registers it, name its module too, as in my_package:MyEnvironment-v0"
    )


def _registrar(environment_id: str) -> str | None:
    """Returns the module that registers such ids; None if unknown."""
    return next(
        (one for begin, one in _REGISTERED_BY.items() if re.match(begin, environment_id)), None
    )
