"""Models what it is worth to give each task instances of its own, or to have them share one.

Paper: GMI-DRL §5.1, Tables 3 to 5, equations 2 and 3. TOP = R_all / R · 1 / (T + COM / BW).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The simulator, the agent or the trainer.

    Attributes:
        seconds: T_s, T_a or T_t: what it takes in an iteration.
        resources: R_s, R_a or R_t: share of the machine that it needs while it runs.
        sharing: α or β: the part of its resources that counts for each simulator when several share it.
    """

    seconds: float
    resources: float
    sharing: float = 1.0


def throughput(tasks: Sequence[Task], *, is_colocated: bool, transfer_s: float) -> float:
    """Returns iterations a second of a whole machine.

    Args:
        tasks: Those of an iteration, which follow one another.
        is_colocated: Whether they share an instance, which then must hold the largest of them; else each has
            instances of its own, which other tasks share.
        transfer_s: COM / BW: what an iteration moves between instances, seconds.
    """
    seconds = math.fsum(task.seconds for task in tasks)
    resources = (max(task.resources for task in tasks) if is_colocated else
                 math.fsum(task.seconds * task.sharing * task.resources for task in tasks) / seconds)
    return 1.0 / resources / (seconds + transfer_s)


def serving_bytes(state: float, action: float, reward: float) -> float:
    """Returns COM of a step between a simulator and an agent in instances of their own, as Table 4."""
    return 2.0 * state + action + reward


def training_bytes(
    state: float, action: float, reward: float, *, steps: int, model: float, instances: int, is_colocated: bool
) -> float:
    """Returns COM of an iteration, as Table 5.

    Departure: the paper's S, A and W are of "a single" vector. The experience of an iteration is that of all
    environments of an instance, and only so does it outweigh the model, as the paper's conclusion needs.

    Args:
        state: S: bytes of a step's observations.
        action: A: bytes of its actions.
        reward: W: bytes of its rewards.
        steps: m: before a training.
        model: M_p: bytes of the policy.
        instances: n: all of them.
        is_colocated: Whether simulator, agent and trainer share an instance.
    """
    reduced = 2.0 * (instances - 1) * model / instances
    return reduced if is_colocated else steps * (state + action + reward) + model + reduced
