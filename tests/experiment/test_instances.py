"""Facts read from the names of instance types."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import moto

from runtime.experiment.instance_types import has_gpu, machine_image, processor, vcpus
from runtime.money.prices import PRICES


def test_they_are_as_ec2_says_and_virtual_cpus_never_too_many() -> None:
    """By EC2's answers to DescribeInstanceTypes, as recorded by moto; p3 is no longer included."""
    path = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    facts: Mapping[str, Mapping[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    with_gpu = {
        name
        for name, fact in facts.items()
        for one in fact.get("GpuInfo", {}).get("Gpus", [])
        if one["Manufacturer"] == "NVIDIA"
    }
    assert {name for name in facts if has_gpu(name)} == with_gpu
    priced = [name for name in PRICES.instance_hour_usd if not name.startswith("p3.")]
    for name in priced:
        cpus = facts[name]["VCpuInfo"]["DefaultVCpus"]
        assert vcpus(name) == cpus or name.endswith((".micro", ".small")), name
        assert [processor(name)] == facts[name]["ProcessorInfo"]["SupportedArchitectures"], name
    assert [vcpus(name) for name in ("c5.9xlarge", "t4g.small", "u-6tb1.metal")] == [36, 1, 1]


def test_amazons_image_for_containers_fits_the_types() -> None:
    images = "/aws/service/ecs/optimized-ami/amazon-linux-2023"
    types = {"gpu/": "g4dn.xlarge", "": "c7i.4xlarge", "arm64/": "c8g.large"}
    for folder, one in types.items():
        assert machine_image([one]) == f"{images}/{folder}recommended/image_id"
