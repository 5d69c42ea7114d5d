"""A trained policy in Python: observations in, the environment's own actions out."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_actor.environments import MASK
from lambda_actor.errors import SchemaError
from lambda_actor.frames import apart, combined
from lambda_actor.policy import Context, Policy
from runtime.errors import MissingExtraError, RunDirectoryError, RunError
from runtime.records.policy_file import load_run_policy

Array = NDArray[Any]
_Batch = tuple[Array, ...]
"""Observations, ``[batch, …]``; or pictures, and their vectors."""


def load_policy(
    path: str | os.PathLike[str],
    *,
    best: bool = False,
    seed: int | np.random.Generator | None = None,
    environment: str | None = None,
    trust: bool = False,
) -> TrainedPolicy:
    """Loads a policy of a run, or an exported ONNX file.

    Args:
        path: A run's directory, or a file from ``export --onnx``, which needs the package onnxruntime.
        best: Whether to take the policy of the run's best evaluation, instead of the one that reached the target or
            else the newest.
        seed: Seed or generator for the noise of sampled actions; None draws a fresh seed.
        environment: Overrides the run's environment; needed if a downloaded run's environment is code of your own.
        trust: Whether to run code that the run names.

    Raises:
        RunError: There is no such policy, it cannot be read, onnxruntime is not installed, or a downloaded run names
            code; or ``best`` was requested from an exported file.
        UnusableEnvironmentError: The run's environment cannot be made here; its action space is needed.
    """
    place = Path(path)
    if place.suffix.lower() == ".onnx":
        if best:
            raise RunError(
                f"{place} holds one policy; best=True is for a run's directory, and `export --best` "
                "exports its best policy"
            )
        return _OnnxPolicy(place)
    return _RunPolicy(place, np.random.default_rng(seed), environment, is_best=best, trust=trust)


class TrainedPolicy(ABC):
    """A policy that acts in its environment.

    Attributes:
        environment_id: Environment in which the policy was trained.
        policy_version: Number of updates that made the policy.
        observation_shape: Shape of one observation, ``[…]``: the environment's for a Box, otherwise flattened, ``[O]``;
            for pixels that of stacked frames, ``[F·C, H, W]``; that of the picture, ``[C, H, W]``, if there are other
            observations.
        observation_dtype: float32 for numbers, uint8 for pixels.
        vector_size: Numbers ``V`` next to a picture; 0 without.
        mask_size: Values ``M`` of all choices in an action mask; 0 without masks.
        needs_mask: Whether a mask is required, because the environment has one.
    """

    environment_id: str
    policy_version: int
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    vector_size: int
    mask_size: int
    needs_mask: bool

    def __repr__(self) -> str:
        return (
            f"TrainedPolicy({self.environment_id!r}, policy_version={self.policy_version}, "
            f"observation_shape={list(self.observation_shape)}, observation_dtype={self.observation_dtype})"
        )

    def predict(
        self, observation: Any, *, deterministic: bool = True, action_mask: Any = None
    ) -> Array | int:
        """Chooses an action for one observation, or for each of a batch.

        Args:
            observation: ``[…]`` of `observation_shape`, or a batch, ``[batch, …]``. Numbers are converted to float32;
                pixels must be uint8. For spaces other than Box (Dict, Discrete, …), one observation in the
                environment's form, or flattened by `gymnasium.spaces.flatten`, ``[O]`` or ``[batch, O]``; an exported
                file takes the latter. For a picture with other observations, one observation in the environment's
                form, or a tuple of the picture, uint8 ``[C, H, W]``, and the rest flattened, float32 ``[V]``, or of a
                batch of each; an exported file takes the tuple.
            deterministic: Whether to take the Gaussian's mean or the most probable action, as evaluations do. Otherwise
                the action is sampled, as in training.
            action_mask: Allowed values of each choice, ``[M]`` of zeros and ones, or ``[batch, M]``, from the
                environment's ``info["action_mask"]``. If the mask is part of the observation, it is taken from an
                observation in the environment's form.

        Returns:
            An action for the environment's ``step``: float32 of the action space's shape, within its bounds; a whole
            number; or int64 of a MultiDiscrete's or MultiBinary's shape. For a batch, an array with one row per
            observation.

        Raises:
            ValueError: The observation or the mask has the wrong shape or type, or the mask is missing.
            RunError: An exported file cannot sample, because it has only the deterministic action.
        """
        batch, is_single = self._batch(self._parts(observation))
        if action_mask is None and isinstance(observation, Mapping):
            action_mask = observation.get(MASK)
        masks = self._masks(action_mask, len(batch[0]))
        actions = self._best(batch, masks) if deterministic else self._sampled(batch, masks)
        if not is_single:
            return actions
        return (
            int(actions[0])
            if actions.ndim == 1 and np.issubdtype(actions.dtype, np.integer)
            else actions[0]
        )

    def _batch(self, parts: Any) -> tuple[_Batch, bool]:
        shapes = [(self.observation_shape, self.observation_dtype)]
        if self.vector_size:
            shapes.append(((self.vector_size,), np.dtype(np.float32)))
        if not isinstance(parts, tuple) or len(parts) != len(shapes):
            raise ValueError(
                f"{self.environment_id}: expected one observation as the environment gives it, or a tuple "
                f"of a picture of shape {list(self.observation_shape)} and a vector of "
                f"{self.vector_size} numbers, or of a batch of each; given {type(parts).__name__}"
            )
        arrays, is_single = zip(
            *(self._rows(part, *one) for part, one in zip(parts, shapes, strict=True)), strict=True
        )
        if len({(len(array), *kind) for array, *kind in zip(arrays, is_single, strict=True)}) > 1:
            raise ValueError(
                f"{self.environment_id}: expected as many pictures as vectors; given "
                + " and ".join(str(np.shape(part)) for part in parts)
            )
        return arrays, is_single[0]

    def _rows(
        self, observation: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[Array, bool]:
        """Returns observations as a batch of this shape and type, and whether there was only one."""
        array = np.asarray(observation)
        if array.shape != shape and array.shape[1:] != shape or array.ndim == 0:
            raise ValueError(
                f"{self.environment_id}: expected an observation of shape {list(shape)}, or a batch of "
                f"shape {['batch', *shape]}".replace("'", "")
                + f"; given {list(array.shape)}"
            )
        is_fit = array.dtype == np.uint8 if dtype == np.uint8 else array.dtype.kind in "fiub"
        if not is_fit:
            raise ValueError(
                f"{self.environment_id}: expected observations of type {dtype}; given {array.dtype}"
            )
        is_single = array.shape == shape
        return (array[None] if is_single else array).astype(dtype, copy=False), is_single

    @abstractmethod
    def _parts(self, observation: Any) -> Any:
        """Returns the policy's inputs: an observation, or a picture and a vector.

        A single observation in the environment's form is flattened, if that is not a Box.
        """

    def _masks(self, action_mask: Any, count: int) -> Array | None:
        """Returns masks of a batch, bool ``[count, M]``, or None."""
        if action_mask is None and self.mask_size and self.needs_mask:
            raise ValueError(
                f"{self.environment_id} says which actions are allowed: give action_mask, "
                f"{self.mask_size} of 0 and 1"
            )
        if action_mask is None:
            return None
        masks = np.atleast_2d(
            np.concatenate([np.ravel(one) for one in action_mask])
            if isinstance(action_mask, tuple)
            else np.asarray(action_mask)
        )
        if not self.mask_size or masks.shape != (count, self.mask_size):
            wanted = (
                f"[{self.mask_size}] or [batch, {self.mask_size}]" if self.mask_size else "none"
            )
            raise ValueError(
                f"{self.environment_id}: expected an action_mask of shape {wanted}; given "
                f"{list(masks.shape)} with {count} observations"
            )
        return masks.astype(np.bool_)

    @abstractmethod
    def _best(self, batch: _Batch, masks: Array | None) -> Array: ...

    @abstractmethod
    def _sampled(self, batch: _Batch, masks: Array | None) -> Array: ...


class _RunPolicy(TrainedPolicy):
    """A run's policy, with the actors' own inference in numpy."""

    def __init__(
        self,
        directory: Path,
        generator: np.random.Generator,
        environment_id: str | None,
        *,
        is_best: bool,
        trust: bool,
    ) -> None:
        weights, experiment, environment = load_run_policy(
            directory, is_best=is_best, environment_id=environment_id, trust=trust
        )
        self.environment_id, self._environment, self._generator = (
            experiment.environment.id,
            environment,
            generator,
        )
        self._spaces = spaces = environment.spaces
        self.observation_dtype = np.dtype(np.uint8 if spaces.is_pixels else np.float32)
        self.observation_shape = spaces.picture_shape or environment.observation_shape
        self.vector_size = spaces.vector_size if spaces.is_combined else 0
        self.weights = weights
        self.mask_size, self.needs_mask = (
            spaces.output_size if spaces.is_discrete else 0,
            spaces.has_action_mask,
        )
        try:
            self._policy = Policy.from_bytes(weights)
            self._policy.check(spaces)
        except SchemaError as error:
            raise RunDirectoryError(
                f"{directory}: its policy does not fit {self.environment_id}: {error}"
            ) from None
        finally:
            environment.close()
        self.policy_version = self._policy.policy_version

    def _best(self, batch: _Batch, masks: Array | None) -> Array:
        return self._to_environment(
            [
                self._policy.best_action(*one)
                for one in zip(self._seen(batch), _contexts(masks, len(batch[0])), strict=True)
            ]
        )

    def _sampled(self, batch: _Batch, masks: Array | None) -> Array:
        noise = self._policy.noise(self._generator, len(batch[0]))
        return self._to_environment(
            [
                self._policy.sample(self._policy.outputs(one, context), row)
                for one, context, row in zip(
                    self._seen(batch), _contexts(masks, len(batch[0])), noise, strict=True
                )
            ]
        )

    def _parts(self, observation: Any) -> Any:
        found = self._environment.flattened(observation)
        if not self._spaces.is_combined:
            return (found,)
        return found if found is observation else apart(found, self._spaces)

    def _seen(self, batch: _Batch) -> Iterable[Array]:
        if self._spaces.is_combined:
            return [combined(picture, vector) for picture, vector in zip(*batch, strict=True)]
        return batch[0] if self._spaces.is_pixels else batch[0].reshape(len(batch[0]), -1)

    def _to_environment(self, actions: list[Any]) -> Array:
        kind = np.int64 if self._spaces.is_discrete else np.float32
        shape = self._environment.gymnasium_environment.action_space.shape or ()
        return np.array([self._environment.to_environment(one) for one in actions], kind).reshape(
            -1, *shape
        )


class _OnnxPolicy(TrainedPolicy):
    """An exported policy, with onnxruntime."""

    def __init__(self, path: Path) -> None:
        self._path = path
        session = _open_session(path)
        facts = session.get_modelmeta().custom_metadata_map
        given, *beside = session.get_inputs()
        self._names = [one.name for one in session.get_inputs()]
        self.environment_id = facts.get("environment_id", str(path))
        self.policy_version = int(facts.get("policy_version", 0))
        self.observation_shape = tuple(int(side) for side in given.shape[1:])
        self.observation_dtype = np.dtype(np.uint8 if "uint8" in given.type else np.float32)
        masks = [int(one.shape[1]) for one in session.get_inputs() if one.name == MASK]
        beside = [one for one in beside if one.name != MASK]
        self.vector_size = int(beside[0].shape[1]) if beside else 0
        self.mask_size, self.needs_mask = sum(masks), bool(masks)
        self._run: Callable[[Any, Any], list[Array]] = session.run

    def _parts(self, observation: Any) -> Any:
        return observation if self.vector_size else (observation,)

    def _best(self, batch: _Batch, masks: Array | None) -> Array:
        parts = batch if masks is None else (*batch, masks)
        return self._run(
            ["action"],
            {
                name: np.ascontiguousarray(part)
                for name, part in zip(self._names, parts, strict=True)
            },
        )[0]

    def _sampled(self, batch: _Batch, masks: Array | None) -> Array:
        raise RunError(
            f"{self._path} holds the deterministic action only; to sample, load the run's directory"
        )


def _contexts(masks: Array | None, count: int) -> list[Context]:
    return [Context() if masks is None else Context(masks[row]) for row in range(count)]


def _open_session(path: Path) -> Any:
    """Opens a file from ``export --onnx``.

    Raises:
        RunError: It is missing or something else, or onnxruntime is not installed.
    """
    if not path.is_file():
        raise RunError(f"{path}: there is no such file")
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(str(path), "onnxruntime", "export") from None
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RunError(f"{path} cannot be read as an ONNX file: {error}") from error
    names = [one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]
    observed = [name for name in names[0] if name != MASK]
    if observed not in (["observation"], ["picture", "vector"]) or "action" not in names[1]:
        raise RunError(
            f"{path} is not a policy that `export --onnx` wrote: it takes {names[0]} and gives {names[1]}"
        )
    return session
