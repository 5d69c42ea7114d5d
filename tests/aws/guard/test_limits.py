"""Instance types and the quotas of their families."""

from __future__ import annotations

import pytest

from runtime.aws.guard.limits import vcpu_quota
from runtime.errors import ExperimentError

ON_DEMAND = {"standard": "L-1216C47A", "graphics": "L-DB2E81BA", "training": "L-417A185B"}
SPOT = {"standard": "L-34B43A08", "graphics": "L-3819A6DF", "training": "L-7212CCBC"}


@pytest.mark.parametrize(
    ("family", "types"),
    {
        "graphics": "g4dn.xlarge g4ad.4xlarge g5.xlarge g5g.xlarge g6.xlarge g6e.48xlarge gr6.4xlarge g6f.large "
        "vt1.3xlarge",
        "training": "p2.xlarge p3.2xlarge p3dn.24xlarge p4de.24xlarge p5.48xlarge p6-b200.48xlarge",
        "standard": "a1.large c5.4xlarge c7i.4xlarge c7g.4xlarge c7gn.large c6in.large d3en.xlarge h1.2xlarge "
        "i4i.large im4gn.large is4gen.medium m7g.large m7i-flex.large m5zn.metal r7iz.large t3.micro t4g.small "
        "z1d.large",
    }.items(),
)
def test_every_family_has_its_quota(family: str, types: str) -> None:
    for instance_type in types.split():
        assert vcpu_quota(instance_type, "on_demand") == ON_DEMAND[family], instance_type
        assert vcpu_quota(instance_type, "spot") == SPOT[family], instance_type


@pytest.mark.parametrize(
    "instance_type",
    [
        "x1e.xlarge",
        "x2gd.large",
        "x8g.large",
        "inf1.xlarge",
        "inf2.xlarge",
        "trn1.2xlarge",
        "trn1n.32xlarge",
        "dl1.24xlarge",
        "dl2q.24xlarge",
        "hpc7g.4xlarge",
        "hpc6a.48xlarge",
        "f1.2xlarge",
        "f2.6xlarge",
        "mac1.metal",
        "mac2-m2.metal",
        "u-6tb1.56xlarge",
        "u7i-12tb.224xlarge",
        "vtx1.large",
        "",
        ".large",
        "5g.xlarge",
        "G5.xlarge",
        "huge",
    ],
)
def test_a_family_with_another_quota_is_refused(instance_type: str) -> None:
    with pytest.raises(ExperimentError, match=f"the quota of {instance_type!r} is not known"):
        vcpu_quota(instance_type, "on_demand")
