"""GMI-DRL's models: of reductions, and of tasks that share instances or have instances of their own.

Paper: §4.1, Table 2; §5.1, Tables 3 to 5, equations 2 and 3. TOP = R_all / R · 1 / (T + COM / BW).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The simulator, the agent or the trainer.

    Attributes:
        seconds: T_s, T_a or T_t: time per iteration.
        resources: R_s, R_a or R_t: share of the machine that it needs while it runs.
        sharing: α or β: fraction of its resources that counts for each simulator when several share it.
    """

    seconds: float
    resources: float
    sharing: float = 1.0


def throughput(tasks: Sequence[Task], *, is_colocated: bool, transfer_s: float) -> float:
    """Returns iterations per second of a whole machine.

    Args:
        tasks: The tasks of an iteration, one after another.
        is_colocated: Whether they share an instance, which must then hold the largest of them. Otherwise each has
            instances of its own, which other tasks share.
        transfer_s: COM / BW: seconds to move an iteration's data between instances.
    """
    seconds = math.fsum(task.seconds for task in tasks)
    resources = (
        max(task.resources for task in tasks)
        if is_colocated
        else math.fsum(task.seconds * task.sharing * task.resources for task in tasks) / seconds
    )
    return 1.0 / resources / (seconds + transfer_s)


def serving_bytes(state: float, action: float, reward: float) -> float:
    """Returns COM of a step between a simulator and an agent in separate instances, as in Table 4."""
    return 2.0 * state + action + reward


def training_bytes(
    state: float,
    action: float,
    reward: float,
    *,
    steps: int,
    model: float,
    instances: int,
    is_colocated: bool,
) -> float:
    """Returns COM of an iteration, as in Table 5.

    Departure: the paper's S, A and W are of "a single" vector. Here an iteration's experience is from all environments
    of an instance. Only then does it outweigh the model, as the paper's conclusion requires.

    Args:
        state: S: bytes of a step's observations.
        action: A: bytes of its actions.
        reward: W: bytes of its rewards.
        steps: m: steps before a training.
        model: M_p: bytes of the policy.
        instances: n: number of all instances.
        is_colocated: Whether simulator, agent and trainer share an instance.
    """
    reduced = 2.0 * (instances - 1) * model / instances
    return reduced if is_colocated else steps * (state + action + reward) + model + reduced


def cost_s(
    reduction: str,
    *,
    devices: int,
    instances: int,
    model_bytes: float,
    host_bandwidth: float,
    link_bandwidth: float,
) -> float:
    """Returns the seconds of a reduction in the paper's model.

    In this model, MPR is the cheapest on 4 devices with 4 instances each if B₂ < 4 B₁, though Algorithm 1 chooses MRR.

    Args:
        reduction: mpr, mrr or har.
        devices: g.
        instances: t, instances per device.
        model_bytes: M_p, bytes of a gradient.
        host_bandwidth: B₁, bytes per second between processes.
        link_bandwidth: B₂, bytes per second between devices.

    Paper: GMI-DRL, Table 2.
    """
    g, t = devices, instances
    across = 2 * (g - 1) * model_bytes / (g * link_bandwidth)
    match reduction:
        case "mpr":
            return 2 * (g * t - 1) * model_bytes / (g * t * host_bandwidth)
        case "mrr":
            return (t + 1) * across
        case "har":
            return across + 2 * (t - 1) * model_bytes / (t * host_bandwidth)
    raise ValueError(f"Table 2 has no {reduction!r}")
