"""Properties of an environment's observations and actions that networks, messages and prices depend on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spaces:
    """A policy's observations and actions.

    Observations are vectors, float32 ``[O]``, or pixels, uint8 ``[F·C, H, W]``, or a picture with a vector: the bytes
    of both, uint8 ``[1, 1, Y]`` (see `lambda_actor.frames.combined`). Actions are continuous, float32 ``[A]``, or one
    choice, int64 ``[]``, or several at once, int64 ``[A]``.

    Attributes:
        observation_shape: ``(O,)``, or ``(F·C, H, W)`` for ``F`` stacked frames, or ``(1, 1, Y)``.
        frame_shape: One frame, ``(C, H, W)`` or ``(1, 1, Y)``; empty for vectors. Only frames travel. They are stacked
            on use.
        frame_stack: ``F``, frames per observation, oldest first; 1 for vectors.
        beside_shape: ``(C, H, W)`` of a picture with a vector, otherwise empty.
        binary_parts: Starts and ends of a vector's numbers that are 0 or 1: one-hot, or MultiBinary's. They are not
            normalized: a category seen once in 10,000 steps deviates by 0.01, so that its 1 would become 100.
        action_size: ``A`` numbers of a continuous action; 0 if actions are discrete.
        action_count: ``n`` of an action that is one choice, 0 … n − 1; 0 otherwise.
        action_counts: ``n`` of each choice if an action has several, otherwise empty.
        action_starts: The environment's own lowest value of each choice.
        action_bounds: Lowest and highest value of each number of a continuous action; empty if one has no bound.
        has_action_mask: Whether the environment gives the allowed values of each choice at each step. For
            ``info["action_mask"]`` this is known after the first reset.
    """

    observation_shape: tuple[int, ...]
    frame_shape: tuple[int, ...] = ()
    frame_stack: int = 1
    beside_shape: tuple[int, ...] = ()
    binary_parts: tuple[tuple[int, int], ...] = ()
    action_size: int = 0
    action_count: int = 0
    action_counts: tuple[int, ...] = ()
    action_starts: tuple[int, ...] = field(default=(), compare=False)
    action_bounds: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    has_action_mask: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spaces:
        """Returns the spaces whose `dataclasses.asdict` these JSON values were."""
        return cls(**{name: _tuples(value) for name, value in values.items()})

    @property
    def is_pixels(self) -> bool:
        """Whether observations are bytes that travel as frames: pixels, with or without a vector."""
        return bool(self.frame_shape)

    @property
    def is_combined(self) -> bool:
        """Whether observations are a picture with a vector."""
        return bool(self.beside_shape)

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """Input of convolutions, ``(F·C, H, W)``; empty for vectors only."""
        return self.beside_shape or (self.observation_shape if self.is_pixels else ())

    @property
    def vector_size(self) -> int:
        """``V``, size of the part that is not a picture and can be normalized; 0 for pixels alone."""
        if self.is_combined:
            return (self.observation_size - math.prod(self.beside_shape)) // 4
        return 0 if self.is_pixels else self.observation_size

    @property
    def is_discrete(self) -> bool:
        """Whether actions consist of choices."""
        return bool(self.action_count or self.action_counts)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: ``[A]``, or ``[]``."""
        return () if self.action_count else (len(self.action_counts) or self.action_size,)

    @property
    def choice_counts(self) -> tuple[int, ...]:
        """``n`` of each choice, for one or several choices; empty if actions are continuous."""
        return self.action_counts or (self.action_count,) * bool(self.action_count)

    @property
    def distribution(self) -> str:
        """Name of the distribution over actions in a WEIGHTS message."""
        if self.action_counts:
            return " ".join(["categorical", *map(str, self.action_counts)])
        return "categorical" if self.action_count else "gaussian"

    @property
    def observation_size(self) -> int:
        """Size of an observation; in bytes for a picture with a vector."""
        return math.prod(self.observation_shape)

    @property
    def is_binary(self) -> bool:
        """Whether a vector's numbers are all 0 or 1, so nothing is normalized; False for pixels alone."""
        return 0 < sum(end - start for start, end in self.binary_parts) == self.vector_size

    @property
    def output_size(self) -> int:
        """Number of outputs of the policy's network: the Gaussian's means ``A``, or logits, ``n`` of each choice."""
        return self.action_size or sum(self.choice_counts)

    @property
    def choice_starts(self) -> np.ndarray:
        """Index of each choice's first value among all values, int64 ``[A]``."""
        return np.cumsum((0, *self.choice_counts))[:-1]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
