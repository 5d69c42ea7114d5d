"""Facts read from the names of instance types."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import moto
import pytest

from runtime.experiment.instance_types import (
    has_gpu,
    machine_image,
    processor,
    vcpus,
)
from runtime.money.prices import PRICES


def test_virtual_cpus_are_told_by_the_size_and_never_too_many() -> None:
    names = (
        "c7i.large",
        "g4dn.xlarge",
        "c7i.2xlarge",
        "c5.9xlarge",
        "c5.24xlarge",
        "t4g.small",
        "u-6tb1.metal",
    )
    assert [vcpus(name) for name in names] == [2, 4, 8, 36, 96, 1, 1]


def test_types_with_gpus_are_told_by_their_series() -> None:
    assert [
        has_gpu(name) for name in ("g4dn.xlarge", "g6.xlarge", "gr6.4xlarge", "p5.48xlarge")
    ] == [True] * 4
    assert not any(
        has_gpu(name)
        for name in ("c7g.4xlarge", "m7gd.large", "c7i.4xlarge", "a1.large", "i4g.large")
    )


@pytest.fixture(scope="module")
def facts() -> Mapping[str, Mapping[str, Any]]:
    """EC2's answers to DescribeInstanceTypes by type, as recorded by moto; p3 is no longer included."""
    path = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def test_all_of_ec2s_types_with_nvidias_gpus_are_known(
    facts: Mapping[str, Mapping[str, Any]],
) -> None:
    def is_nvidia(fact: Mapping[str, Any]) -> bool:
        gpus = fact.get("GpuInfo", {}).get("Gpus", [])
        return any(one["Manufacturer"] == "NVIDIA" for one in gpus)

    assert {name for name in facts if has_gpu(name)} == {
        name for name, fact in facts.items() if is_nvidia(fact)
    }


def test_what_has_a_price_is_as_ec2_says(facts: Mapping[str, Mapping[str, Any]]) -> None:
    priced = [name for name in PRICES.instance_hour_usd if not name.startswith("p3.")]
    assert set(priced) <= facts.keys()
    for name in priced:
        cpus = facts[name]["VCpuInfo"]
        assert vcpus(name) == cpus["DefaultVCpus"] or name.endswith((".micro", ".small")), name
        assert [processor(name)] == facts[name]["ProcessorInfo"]["SupportedArchitectures"], name


@pytest.mark.parametrize(
    ("types", "image"),
    [
        (["g4dn.xlarge"], "gpu/recommended"),
        (["c7i.4xlarge", "m7i.large"], "amazon-linux-2023/recommended"),
        (["c8g.large"], "arm64/recommended"),
    ],
)
def test_amazons_image_for_containers_fits_the_types(types: list[str], image: str) -> None:
    found = machine_image(types)
    assert found.startswith("/aws/service/ecs/optimized-ami/amazon-linux-2023/")
    assert found.endswith(f"{image}/image_id")
