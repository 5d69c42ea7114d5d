"""One tree of errors for everything an actor can fail with."""

from __future__ import annotations

import traceback
from pathlib import Path


class ActorError(Exception):
    """Base of every error that the actor raises on purpose."""


class EventError(ActorError):
    """The invocation event lacks a field or carries a value of the wrong kind."""


class UnusableEnvironmentError(ActorError):
    """The environment cannot be made, or has spaces that no policy here can act in."""


class EpisodeStateError(UnusableEnvironmentError):
    """The environment's episode cannot be saved or restored between invocations."""


class EpisodeReplayError(EpisodeStateError):
    """An episode went on differently when it was replayed."""


class NonFiniteTrajectoryError(ActorError):
    """The environment or the policy produced NaN or infinity."""


class WireError(ActorError):
    """Base of everything that can be wrong with a message's bytes."""


class TruncatedMessageError(WireError):
    """The bytes end before the message does."""


class CorruptedMessageError(WireError):
    """The checksum does not match, or the structure contradicts itself."""


class ForeignMessageError(WireError):
    """The bytes are not one of our messages, or one of another kind than was asked for."""


class OversizedMessageError(WireError):
    """The message is larger than the limit."""


class UnsupportedVersionError(WireError):
    """The message was written by another version of the wire format."""


class SchemaError(WireError):
    """A field is missing, unknown, or has another dtype or shape than the schema says."""


class CacheError(ActorError):
    """Base of the trajectory cache's errors."""


class CacheUnavailableError(CacheError):
    """The server cannot be reached, or refuses us."""


class CacheFullError(CacheError):
    """The run's share of the cache's memory is used up."""


class CacheMissError(CacheError):
    """What was asked for (weights, an open episode) is not in the cache."""


def told(error: BaseException) -> str:
    """Returns what an exception says, on one line; where it was raised, if it says nothing."""
    if text := " ".join(str(error).split()).rstrip("."):
        return f"{type(error).__name__}: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}{where}"
