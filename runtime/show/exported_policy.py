"""A trained policy in Python: observations in, the environment's own actions out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambda_actor.environments import MASK, ActorEnvironment, make_environment
from lambda_actor.errors import SchemaError
from lambda_actor.policy import Policy
from runtime.errors import RunDirectoryError, one_line
from runtime.experiment.schema import Experiment
from runtime.records import layout
from runtime.records.policy_file import read_policy
from runtime.records.trust import load_trusted_experiment

Array = NDArray[Any]


def load_policy(
    path: str | os.PathLike[str],
    *,
    best: bool = False,
    seed: int | np.random.Generator | None = None,
    environment: str | None = None,
    trust: bool = False,
) -> TrainedPolicy:
    """Loads a policy of a run.

    Args:
        path: The run's directory.
        best: Whether to take the policy of the run's best evaluation, instead of the one that reached the target or
            else the newest.
        seed: Seed or generator for the noise of sampled actions; None draws a fresh seed.
        environment: Overrides the run's environment; needed if a downloaded run's environment is code of your own.
        trust: Whether to run code that the run names.

    Raises:
        RunError: There is no such policy, it cannot be read, or a downloaded run names code.
        UnusableEnvironmentError: The run's environment cannot be made here; its action space is needed.
    """
    weights, experiment, made_environment = load_run_policy(
        Path(path), is_best=best, environment_id=environment, trust=trust
    )
    environment_id = experiment.environment.id
    try:
        return TrainedPolicy(weights, environment_id, made_environment, np.random.default_rng(seed))
    except SchemaError as error:
        raise RunDirectoryError(
            f"{path}: its policy does not fit {environment_id}: {error}"
        ) from None
    finally:
        made_environment.close()


def load_run_policy(
    directory: Path, *, is_best: bool, environment_id: str | None, trust: bool
) -> tuple[bytes, Experiment, ActorEnvironment]:
    """Returns a run's policy as a WEIGHTS message, the run's experiment, and an environment, which the caller closes.

    Args:
        directory: The run's directory.
        is_best: Whether to take the best evaluated policy; otherwise the one that reached the target, else the newest.
        environment_id: The user's environment; None = the run's.
        trust: Whether to run code that the run names.

    Raises:
        RunDirectoryError: The directory does not hold one run with this policy; or the file is damaged, or belongs to
            another environment.
        ExperimentError: See `runtime.records.trust.load_trusted_experiment`.
        UnusableEnvironmentError: The environment cannot be made here.
    """
    if layout.seeds_in(directory):
        raise RunDirectoryError(
            f"{directory} holds several seeds: name one of its directories, seed-S"
        )
    newest = directory / layout.POLICY
    best = directory / layout.BEST_POLICY
    if is_best and newest.exists() and not best.exists():
        raise RunDirectoryError(
            f"{best} is not there: none of the run's evaluations (evaluation.every_rounds) has "
            "ended, or an earlier version of this program made the run"
        )
    path = best if is_best else newest
    weights, trained_in = read_policy(path)
    overrides = []
    if environment_id is not None:
        overrides = [f"environment.id={environment_id}", "environment.backend=gymnasium"]
    experiment = load_trusted_experiment(
        directory / layout.CONFIG, overrides, is_of_run=True, trust=trust
    )
    said = experiment.environment.id
    if environment_id is None and trained_in not in (None, said):
        raise RunDirectoryError(
            f"{path} was trained in {one_line(repr(trained_in))}, but {layout.CONFIG} beside it "
            f"says {said!r}; allowed: the run's own policy, or the environment named by the user"
        )
    section = experiment.environment
    if section.backend == "torch":
        raise RunDirectoryError(
            f"{path} was trained in a batched environment, {said!r}, which only train plays; allowed: --environment ID "
            "with a Gymnasium environment of the same spaces"
        )
    environment = make_environment(section.id, section.preprocessing, section.options)
    if environment.spaces.is_discrete:
        # Only now it is known whether it has action masks. Its errors are raised again by its first use.
        with suppress(Exception):
            environment.reset(0)
    return weights, experiment, environment


class TrainedPolicy:
    """A policy that acts in its environment, with the actors' own inference in NumPy.

    Attributes:
        environment_id: Environment in which the policy was trained.
        policy_version: Number of updates that made the policy.
        observation_shape: Shape of one observation, ``[…]``: the environment's for a Box, otherwise flattened, ``[O]``;
            for pixels the stacked frames', ``[F·C, H, W]``; the picture's, ``[C, H, W]``, if there are other
            observations.
        observation_dtype: float32 for numbers, uint8 for pixels.
        weights: Its message for actors, which `ActorPool.sample` takes.
    """

    def __init__(
        self,
        weights: bytes,
        environment_id: str,
        environment: ActorEnvironment,
        generator: np.random.Generator,
    ) -> None:
        """Reads a WEIGHTS message; ``environment`` may be closed afterwards.

        Raises:
            SchemaError: The policy does not fit the environment.
        """
        self._spaces = environment.spaces
        self.weights = weights
        self._policy = Policy.from_bytes(weights)
        self._policy.check(self._spaces)
        self._environment = environment
        self._generator = generator
        self.environment_id = environment_id
        self.policy_version = self._policy.policy_version
        self.observation_shape = self._spaces.picture_shape or environment.observation_shape
        self.observation_dtype = np.dtype(np.uint8 if self._spaces.is_pixels else np.float32)

    def predict(
        self, observation: Any, *, deterministic: bool = True, action_mask: Any = None
    ) -> Array | int:
        """Chooses an action for one observation, or for each of a batch.

        Args:
            observation: ``[…]`` of `observation_shape`, or a batch, ``[batch, …]``. Numbers are converted to float32;
                pixels must be uint8. For spaces other than Box (Dict, Discrete, …), one observation in the
                environment's form, or flattened by `gymnasium.spaces.flatten`, ``[O]`` or ``[batch, O]``. For a picture
                with other observations, one observation in the environment's form.
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
        """
        if action_mask is None and isinstance(observation, Mapping):
            action_mask = observation.get(MASK)
        inputs, is_single = self._inputs(observation)
        masks = self._masks(action_mask, len(inputs))
        if deterministic:
            chosen = list(map(self._policy.best_action, inputs, masks))
        else:
            noise = self._policy.noise(self._generator, len(inputs))
            chosen = list(map(self._policy.sample, map(self._policy.outputs, inputs, masks), noise))
        shape = self._environment.gymnasium_environment.action_space.shape or ()
        actions = np.array(
            list(map(self._environment.to_environment, chosen)),
            np.int64 if self._spaces.is_discrete else np.float32,
        ).reshape(-1, *shape)
        if not is_single:
            return actions
        return actions[0] if shape else int(actions[0])

    def _inputs(self, observation: Any) -> tuple[list[Array], bool]:
        """Returns the network's input for each observation, and whether there was only one."""
        flat = self._environment.flattened(observation)
        if self._spaces.is_combined:
            if flat is observation:
                raise ValueError(
                    f"{self.environment_id}: expected one observation as the environment gives it; given "
                    f"{type(observation).__name__}"
                )
            return [flat], True
        rows, is_single = self._rows(flat)
        return list(rows if self._spaces.is_pixels else rows.reshape(len(rows), -1)), is_single

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """Returns observations as a batch of the right shape and type, and whether there was only one."""
        shape = self.observation_shape
        dtype = self.observation_dtype
        array = np.asarray(observation)
        is_single = array.shape == shape
        is_fit = array.dtype == np.uint8 if dtype == np.uint8 else array.dtype.kind in "fiub"
        if not is_fit or not is_single and (array.ndim == 0 or array.shape[1:] != shape):
            raise ValueError(
                f"{self.environment_id}: expected {dtype} observations of shape {list(shape)}, or a batch of them; "
                f"given {array.dtype}{list(array.shape)}"
            )
        return (array[None] if is_single else array).astype(dtype, copy=False), is_single

    def _masks(self, action_mask: Any, count: int) -> list[Array | None]:
        """Returns the mask, bool ``[M]``, of each observation; None if all is allowed."""
        if action_mask is None and not self._spaces.has_action_mask:
            return [None] * count
        if isinstance(action_mask, tuple):
            action_mask = np.concatenate([np.ravel(part) for part in action_mask])
        masks = np.atleast_2d([] if action_mask is None else action_mask)
        wanted = self._spaces.output_size if self._spaces.is_discrete else 0
        if masks.shape != (count, wanted):
            raise ValueError(
                f"{self.environment_id}: expected action_mask with {wanted} of 0 and 1 for each observation; given "
                f"{list(masks.shape)} with {count} observations"
            )
        return list(masks.astype(np.bool_))
