"""EC2 instance types: a learner's defaults, and the processor, GPU and machine image that a type's name implies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

CPU_TYPES = ("c7i.large", "m7i.large")
"""Defaults for policies without convolutions, which a small CPU trains faster than a GPU."""
GPU_TYPES = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge")
"""Defaults for policies with convolutions."""
_FAMILY = re.compile(r"(?P<series>[a-z]+)(?P<generation>\d+)(?P<options>[a-z-]*)")
_SIZE = re.compile(r"(?P<times>\d+)?(?P<is_x>x)large|large")
_GPU_SERIES = ("g", "gr", "p")
_IMAGES = "/aws/service/ecs/optimized-ami/amazon-linux-2023"


def processor(instance_type: str) -> Literal["x86_64", "arm64"]:
    """Returns ``arm64`` for Graviton types, which have a g after the generation (c7g, m7gd, g5g); else ``x86_64``."""
    family = _FAMILY.match(instance_type.partition(".")[0])
    return (
        "arm64"
        if instance_type.startswith("a1.") or (family and "g" in family["options"])
        else "x86_64"
    )


def series(instance_type: str) -> str:
    """Returns the letters before the generation: ``c`` of c7i.large, ``im`` of im4gn.large; empty if there are none."""
    family = _FAMILY.match(instance_type)
    return family["series"] if family else ""


def has_gpu(instance_type: str) -> bool:
    """Returns whether the type has NVIDIA GPUs."""
    return series(instance_type) in _GPU_SERIES


def is_burstable(instance_type: str) -> bool:
    """Returns whether the type earns and spends CPU credits, without which it is slow or costs extra."""
    return series(instance_type) == "t"


def vcpus(instance_type: str) -> int:
    """Returns the virtual CPUs that the size implies: 2 for large, 4 for xlarge, 32 for 8xlarge; 1 if unknown."""
    size = _SIZE.fullmatch(instance_type.rpartition(".")[2])
    if size is None:
        return 1
    return 4 * int(size["times"] or 1) if size["is_x"] else 2


def machine_image(instance_types: Sequence[str]) -> str:
    """Returns the SSM parameter of AWS's container image for these types: Amazon Linux 2023 with Docker.

    Args:
        instance_types: All with the same processor, all with or all without GPUs.
    """
    if any(map(has_gpu, instance_types)):
        return f"{_IMAGES}/gpu/recommended/image_id"
    if processor(instance_types[0]) == "arm64":
        return f"{_IMAGES}/arm64/recommended/image_id"
    return f"{_IMAGES}/recommended/image_id"
