"""Makes environments by name: Gymnasium's ids, games, and a user's own, with arguments, wrappers and a time limit."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium
import numpy as np

from lambda_actor import atari
from lambda_actor.errors import UnusableEnvironmentError, describe_error, meant_path

PREPROCESSINGS = ("auto", "atari", "none")
OPTIONS = ("kwargs", "wrappers", "max_episode_steps", "frame_stack", "rescale_actions")
"""Further keys of an experiment's section ``environment`` for making it, as they are written there."""
_EXTRAS = {
    "ale/": ("ale_py", "atari"),
    "noframeskip": ("ale_py", "atari"),
    "cv2": ("cv2", "atari"),
    "mujoco": ("mujoco", "mujoco"),
}
"""Modules that only an extra of this project installs, and the extra, by a word in the id or in an error."""

_DRAWING = re.compile(r"opengl|gladloadgl|glfw|\begl|osmesa|glgeterror", re.IGNORECASE)
"""Words of errors that occur where there is no screen."""


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
    factory, registered_id = _find(environment_id)
    kwargs = dict(options.get("kwargs", {}))
    limit = options.get("max_episode_steps")
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
    with closed_if_refused(environment):
        if is_preprocessed:
            if not atari.is_game(environment.unwrapped):
                raise UnusableEnvironmentError(
                    f"environment.preprocessing = 'atari': {environment_id!r} is no game of the "
                    "Arcade Learning Environment; allowed: auto | none"
                )
            environment = atari.preprocessed(environment)
        if limit is not None:
            environment = gymnasium.wrappers.TimeLimit(environment, limit)
        for written in options.get("wrappers", ()):
            named = {written: None} if isinstance(written, str) else written
            for path, arguments in named.items():
                environment = _wrapped(environment, path, arguments or {})
    return environment, is_preprocessed


@contextmanager
def closed_if_refused(environment: gymnasium.Env) -> Iterator[None]:
    """A block that makes something of an environment, which is closed if that fails."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            environment.close()
        raise


def _wrapped(environment: gymnasium.Env, path: str, arguments: Mapping[str, Any]) -> Any:
    module_name, _, name = path.partition(":")
    try:
        wrapper = getattr(importlib.import_module(module_name), name)
        return _with_sequences(wrapper, environment, arguments)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.wrappers: {path}: {describe_error(error)}"
        ) from error


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
        return None, environment_id
    module = importlib.import_module(module_name)
    factory = getattr(module, attribute, None)
    if factory is None and atari.specs_of(attribute):
        return None, attribute
    if not callable(factory):
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r}: module {module_name!r} has no callable "
            f"{attribute!r} and registers no such id"
        )
    return factory, ""


def drawing_advice() -> str:
    """Returns advice for an error of a process that cannot draw, nearly always because of OpenGL; "" without it."""
    if not {"mujoco", "OpenGL"} & sys.modules.keys():
        return ""
    return (
        f"; MUJOCO_GL is {os.environ.get('MUJOCO_GL') or 'not set'}; without a screen: MUJOCO_GL=egl with a GPU's "
        "driver or Mesa (Debian, Ubuntu: apt install libegl1 libgl1), or MUJOCO_GL=osmesa (apt install libosmesa6)"
    )


def advice(environment_id: str, error: BaseException) -> str:
    """Returns what to install or set if something is missing, otherwise an empty string."""
    words = f"{environment_id} {error}".lower()
    if _DRAWING.search(str(error)):
        return drawing_advice()
    for word, (module, extra) in _EXTRAS.items():
        if word in words and importlib.util.find_spec(module) is None:
            return f"; pip install 'nitro-rl[{extra}]' brings it"
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return (
            "; if another package or a script registers it, name the module that does, as my_module:Mine-v0, because "
            "actors are other processes" + meant_path(environment_id)
        )
    return ""
