"""EC2 instance types: a learner's defaults; and what a name tells: processor, GPUs, which machine image fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

CPU_TYPES = ("c7i.large", "m7i.large")
"""Learners of policies without convolutions: a small CPU trains those faster than a GPU."""
GPU_TYPES = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge")
"""Learners of policies with convolutions."""
_FAMILY = re.compile(r"(?P<series>[a-z]+)\d+(?P<options>[a-z-]*)")
_SIZE = re.compile(r"(?P<times>\d+)?(?P<is_x>x)large|large")
_GPU_SERIES = ("g", "gr", "p")
_IMAGES = "/aws/service/ecs/optimized-ami/amazon-linux-2023"


def processor(instance_type: str) -> Literal["x86_64", "arm64"]:
    """``arm64`` for Graviton types, whose family has a g after its generation (c7g, m7gd, g5g); else ``x86_64``."""
    family = _FAMILY.match(instance_type.partition(".")[0])
    return "arm64" if instance_type.startswith("a1.") or (family and "g" in family["options"]) else "x86_64"


def series(instance_type: str) -> str:
    """What stands before the generation: ``c`` of c7i.large, ``im`` of im4gn.large; empty if there is no such thing."""
    family = _FAMILY.match(instance_type)
    return family["series"] if family else ""


def has_gpu(instance_type: str) -> bool:
    """Whether it has GPUs of NVIDIA's."""
    return series(instance_type) in _GPU_SERIES


def is_burstable(instance_type: str) -> bool:
    """Whether it earns and spends CPU credits: beyond these it is slow, or costs more than its price."""
    return series(instance_type) == "t"


def vcpus(instance_type: str) -> int:
    """Its virtual CPUs, as its size tells: 2 of large, 4 of xlarge, 32 of 8xlarge; 1 of a size that does not tell."""
    size = _SIZE.fullmatch(instance_type.rpartition(".")[2])
    if size is None:
        return 1
    return 4 * int(size["times"] or 1) if size["is_x"] else 2


def machine_image(instance_types: Sequence[str]) -> str:
    """SSM parameter of the image that AWS keeps for containers on these types: Amazon Linux 2023 with Docker.

    Args:
        instance_types: Of one processor, with or without GPUs.
    """
    if any(map(has_gpu, instance_types)):
        return f"{_IMAGES}/gpu/recommended/image_id"
    if processor(instance_types[0]) == "arm64":
        return f"{_IMAGES}/arm64/recommended/image_id"
    return f"{_IMAGES}/recommended/image_id"
