"""A deployment's start in phases: how long each takes, after how long it is given up, and what exists in it.

The durations are models, from what AWS documents and from bytes; docs/guides/operations.md says whence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtime.cost.estimate import Estimate

CACHE_S: Final = {"none": 0.0, "learner": 0.0, "serverless": 300.0, "node": 480.0}
"""User, user group and cache, by ``cache.kind``."""
FUNCTION_S, WARM_S = 90.0, 120.0
"""Roles, the function from its image, and its version; its alias, if it is to be kept warm."""
MACHINE_S = 60.0
"""From the group to the first line of the boot script."""
ACTORS_S = 45.0
"""The container's start, torch's import, the cache, and the first actors' answers."""
PULL_BYTES_PER_S, UNPACK_BYTES_PER_S = 50e6, 80e6
"""Of an image's layers: from the registry, and onto a gp3 volume of 125 MiB/s that both take their share of."""
IMAGE_BYTES: Final = {False: (0.6e9, 1.6e9), True: (3.3e9, 7.0e9)}
"""Of the learner image, pulled and unpacked; without CUDA, and with it."""
_LIMITS_S = {"cache and function": 1200.0, "machine": 300.0, "image": 450.0, "first actors": 300.0}


@dataclass(frozen=True)
class Phase:
    """One part of a start; they follow each other.

    Attributes:
        name: For people.
        expected_s: What it is modelled to take, in seconds.
        limit_s: After how long it has failed, in seconds; those on the instance have one limit, the sum of theirs.
        usd: What exists in it costs in ``expected_s``, in US dollars.
    """

    name: str
    expected_s: float
    limit_s: float
    usd: float


@dataclass(frozen=True)
class Start:
    """A deployment's start, from the moment that its change set is executed until training begins.

    Attributes:
        phases: In their order.
    """

    phases: tuple[Phase, ...]

    @property
    def expected_s(self) -> float:
        """What it is modelled to take, in seconds."""
        return sum(phase.expected_s for phase in self.phases)

    @property
    def usd(self) -> float:
        """What it costs, in US dollars."""
        return sum(phase.usd for phase in self.phases)

    @property
    def instance_limit_s(self) -> float:
        """How long the first instance may take until training begins, in seconds."""
        return sum(phase.limit_s for phase in self.phases[1:])


def start(estimate: Estimate, *, cache_kind: str, is_warm: bool, has_gpu: bool) -> Start:
    """The phases of a deployment's start, with images already pushed.

    Args:
        estimate: What the deployment costs an hour.
        cache_kind: ``cache.kind``.
        is_warm: Whether actors are kept warm.
        has_gpu: Whether the learner's types have GPUs.
    """
    pulled_bytes, unpacked_bytes = IMAGE_BYTES[has_gpu]
    stack_usd_per_hour = estimate.cache_usd_per_hour + estimate.provisioned_usd_per_hour
    parts = (
        # CloudFormation makes both at once; the instance's group comes last.
        ("cache and function", max(CACHE_S[cache_kind], FUNCTION_S + (WARM_S if is_warm else 0.0)), stack_usd_per_hour),
        ("machine", MACHINE_S, estimate.burn_usd_per_hour),
        ("image", pulled_bytes / PULL_BYTES_PER_S + unpacked_bytes / UNPACK_BYTES_PER_S, estimate.burn_usd_per_hour),
        ("first actors", ACTORS_S, estimate.burn_usd_per_hour),
    )
    return Start(tuple(Phase(name, seconds, _LIMITS_S[name], seconds * usd_per_hour / 3600)
                       for name, seconds, usd_per_hour in parts))
