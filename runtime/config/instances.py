"""EC2 instance types: a learner's defaults; and what a name tells: processor, GPUs, which machine image fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

CPU_TYPES = ("c7i.large", "m7i.large")
"""Learners of policies without convolutions: a small CPU trains those faster than a GPU."""
GPU_TYPES = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge")
"""Learners of policies with convolutions."""
_FAMILY = re.compile(r"(?P<series>[a-z]+)(?P<generation>\d+)(?P<options>[a-z-]*)")
_SIZE = re.compile(r"(?P<times>\d+)?(?P<is_x>x)large|large")
_GPU_SERIES = ("g", "gr", "p")
_SEVERAL_GPUS = {
    2: {"g5g.16xlarge", "g5g.metal", "g7.12xlarge", "g7e.12xlarge"},
    4: {"g4dn.12xlarge", "g5.12xlarge", "g5.24xlarge", "g6.12xlarge", "g6.24xlarge", "g6e.12xlarge", "g6e.24xlarge",
        "g7.24xlarge", "g7e.24xlarge", "p3.8xlarge"},
    8: {"g4dn.metal", "g5.48xlarge", "g6.48xlarge", "g6e.48xlarge", "g7.48xlarge", "g7e.48xlarge", "p3.16xlarge",
        "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
        "p6-b200.48xlarge", "p6-b300.48xlarge"},
}
"""No name tells them: a g5.12xlarge has four, a g5.16xlarge one."""
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


def gpus(instance_type: str) -> int:
    """How many GPUs of NVIDIA's it has; 1 of a type with GPUs that is newer than this list."""
    return next((n for n, names in _SEVERAL_GPUS.items() if instance_type in names), int(has_gpu(instance_type)))


def is_burstable(instance_type: str) -> bool:
    """Whether it earns and spends CPU credits: beyond these it is slow, or costs more than its price."""
    return series(instance_type) == "t"


def vcpus(instance_type: str) -> int:
    """Its virtual CPUs, as its size tells: 2 of large, 4 of xlarge, 32 of 8xlarge; 1 of a size that does not tell."""
    size = _SIZE.fullmatch(instance_type.rpartition(".")[2])
    if size is None:
        return 1
    return 4 * int(size["times"] or 1) if size["is_x"] else 2


def shares_cores(instance_type: str) -> bool:
    """Whether two of its virtual CPUs are one core: not of Graviton, of AMD's since c7a, and of t2."""
    family = _FAMILY.match(instance_type.partition(".")[0])
    is_new_amd = family and "a" in family["options"] and int(family["generation"]) >= 7
    return not (processor(instance_type) == "arm64" or is_new_amd or instance_type.startswith("t2."))


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
