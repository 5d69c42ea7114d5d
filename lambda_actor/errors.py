"""The tree of an actor's errors."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_PROJECT / name}/" for name in ("lambda_actor", "runtime"))
_STANDARD = f"{sysconfig.get_path('stdlib')}/"


class ActorError(Exception):
    """Base of every error that the actor raises on purpose."""

    def __str__(self) -> str:
        # Lambda returns this text only, so it includes notes such as the step.
        return ", ".join([super().__str__(), *notes_of(self)])


class UnusableEnvironmentError(ActorError):
    """The environment cannot be made, or no policy can act in its spaces."""


class EpisodeStateError(UnusableEnvironmentError):
    """The environment's episode cannot be saved or restored between invocations."""


class EpisodeReplayError(EpisodeStateError):
    """A replayed episode continued differently."""


class RaisingEnvironmentError(UnusableEnvironmentError):
    """The environment's own code raised."""


class NonFiniteTrajectoryError(ActorError):
    """The environment or the policy produced NaN or infinity."""


class WireError(ActorError):
    """Base of everything that can be wrong with a message's bytes."""


class CorruptedMessageError(WireError):
    """The message is damaged or truncated."""


class ForeignMessageError(WireError):
    """The bytes are not one of our messages, or are of another kind or version than expected."""


class OversizedMessageError(WireError):
    """The message is larger than the limit."""


class SchemaError(WireError):
    """A field is missing, unknown, or has another dtype or shape than in the schema."""


class CacheError(ActorError):
    """Base of the trajectory cache's errors."""


class CacheUnavailableError(CacheError):
    """The server cannot be reached, or refuses the connection."""


class CacheMissError(CacheError):
    """The requested weights or open episode are not in the cache."""


def meant_path(path: str) -> str:
    """Returns a hint from ``package.module.Name`` to ``package.module:Name``; "" for other text."""
    module, _, name = path.rpartition(".")
    is_dotted = bool(module) and all(part.isidentifier() for part in path.split("."))
    return f"; did you mean {module}:{name}?" if is_dotted else ""


def notes_of(error: BaseException) -> list[str]:
    """Returns the notes of an exception."""
    return getattr(error, "__notes__", [])


def note_step(error: BaseException, step: int) -> None:
    """Notes the step of an episode, from 1, that raised an exception."""
    error.add_note(f"at step {step} of its episode")


_SHARED = {"synchronize.py", "shared_memory.py"}
"""Files of `multiprocessing` that make semaphores and shared memory."""


def describe_error(error: BaseException) -> str:
    """Returns an exception's message, the place in foreign code that raised it, and notes, on one line."""
    frame = raising_frame(error)
    text = " ".join(str(error).split()).rstrip(".")
    parts = [f"{type(error).__name__}: {text}" if text else type(error).__name__]
    if frame is not None:
        parts.append(f"in {frame.filename}, line {frame.lineno}")
    files = {Path(at.filename).name for at in traceback.extract_tb(error.__traceback__)}
    if files & _SHARED and isinstance(error, OSError) and not os.access("/dev/shm", os.W_OK):
        parts.append("because this needs /dev/shm, which Lambda does not have")
    if not isinstance(error, ActorError):
        parts += notes_of(error)
    return ", ".join(parts)


def raising_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame of foreign code that raised, or of an installed package if there is no other.

    Python's own modules, this project's and Gymnasium's are not foreign. Returns None if all frames are from these.
    """
    frames = [
        frame
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not frame.filename.startswith(("<", *_OURS))
        and "-packages/gymnasium/" not in frame.filename
    ]
    installed = next((frame for frame in frames if "-packages/" in frame.filename), None)
    users = (
        frame
        for frame in frames
        if "-packages/" not in frame.filename and not frame.filename.startswith(_STANDARD)
    )
    return next(users, installed)
