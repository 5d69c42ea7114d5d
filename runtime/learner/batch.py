"""From trajectory messages to one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.interfaces import Batch


def assemble_batch(trajectories: Sequence[Mapping[str, np.ndarray]]) -> Batch:
    """Stacks decoded TRAJECTORY messages of one policy version, in the order given (slot order).

    Raises:
        ValueError: There is none, or they differ in version or shape.
    """
    if not trajectories:
        raise ValueError("a batch needs at least one trajectory")
    versions = {int(trajectory["policy_version"]) for trajectory in trajectories}
    if len(versions) != 1:
        raise ValueError(f"trajectories of several policy versions in one batch: {sorted(versions)}")

    def stacked(name: str) -> np.ndarray:
        return np.stack([trajectory[name] for trajectory in trajectories], axis=1)

    rewards = stacked("rewards")
    bootstrap_mask = np.zeros(rewards.shape, np.bool_)
    for column, trajectory in enumerate(trajectories):
        bootstrap_mask[trajectory["bootstrap_steps"], column] = True
    return Batch(
        policy_version=versions.pop(),
        observations=stacked("observations"),
        actions=stacked("actions"),
        log_probs=stacked("log_probs"),
        rewards=rewards,
        terminated=stacked("terminated"),
        bootstrap_mask=bootstrap_mask,
        bootstrap_observations=np.concatenate(
            [trajectory["bootstrap_observations"] for trajectory in trajectories]),
    )
