"""What the names of instance types tell."""

from __future__ import annotations

import pytest

from runtime.config.instances import has_gpu, machine_image, processor, vcpus


@pytest.mark.parametrize(("kind", "types"), [
    ("arm64", ["c7g.4xlarge", "m7gd.large", "g5g.xlarge", "t4g.small", "x2gd.large", "im4gn.large", "is4gen.large",
               "c6gn.large", "hpc7g.4xlarge", "a1.large", "r8g.large"]),
    ("x86_64", ["g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6e.xlarge", "gr6.4xlarge", "g4ad.xlarge", "p4d.24xlarge",
                "c5.9xlarge", "c7i.4xlarge", "m5n.large", "u-6tb1.metal", "trn1.2xlarge", "i4i.large"]),
])
def test_graviton_families_are_told_by_their_g(kind: str, types: list[str]) -> None:
    assert {name: processor(name) for name in types} == dict.fromkeys(types, kind)


def test_virtual_cpus_are_told_by_the_size_and_never_too_many() -> None:
    names = ("c7i.large", "g4dn.xlarge", "c7i.2xlarge", "c5.9xlarge", "c5.24xlarge", "t4g.small", "u-6tb1.metal")
    assert [vcpus(name) for name in names] == [2, 4, 8, 36, 96, 1, 1]


def test_types_with_gpus_are_told_by_their_series() -> None:
    assert [has_gpu(name) for name in ("g4dn.xlarge", "g6.xlarge", "gr6.4xlarge", "p5.48xlarge")] == [True] * 4
    assert not any(has_gpu(name) for name in ("c7g.4xlarge", "m7gd.large", "c7i.4xlarge", "a1.large", "i4g.large"))


@pytest.mark.parametrize(("types", "image"), [
    (["g4dn.xlarge"], "gpu/recommended"), (["c7i.4xlarge", "m7i.large"], "amazon-linux-2023/recommended"),
    (["c8g.large"], "arm64/recommended")])
def test_amazons_image_for_containers_fits_the_types(types: list[str], image: str) -> None:
    found = machine_image(types)
    assert found.startswith("/aws/service/ecs/optimized-ami/amazon-linux-2023/")
    assert found.endswith(f"{image}/image_id")
