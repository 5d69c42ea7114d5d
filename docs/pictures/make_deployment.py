"""Draws the templates of experiments/nitro.yaml: ``python docs/pictures/make_deployment.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from drawing import (
    BLUE,
    EDGE,
    GREEN,
    ORANGE,
    SAND,
    WHITE,
    arrow,
    box,
    canvas,
    drawn_from,
    label,
    line,
    save,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from runtime.experiment.instance_types import has_gpu  # noqa: E402
from stacks.assembly import make_app  # noqa: E402

FILE = ROOT / "experiments" / "nitro.yaml"
SHARED, EXPERIMENT = "#8a7f66", "#2f5f8f"


def synthesised() -> dict[str, dict[str, Any]]:
    """Returns the resources of each stack of the experiment, by the stack's name."""
    settings = json.loads((ROOT / "cdk.json").read_text())["context"]
    folder = Path(make_app({**settings, "experiment": str(FILE)}).synth().directory)
    return {
        path.name.partition(".")[0]: json.loads(path.read_text())["Resources"]
        for path in folder.glob("*.template.json")
    }


def only(resources: dict[str, Any], kind: str) -> dict[str, Any]:
    """Returns the properties of a stack's single resource of that type."""
    (found,) = [one for one in resources.values() if one["Type"] == kind]
    return dict(found["Properties"])


def draw(stacks: dict[str, dict[str, Any]]) -> plt.Figure:
    """Draws what the templates have: names, sizes and numbers come from them.

    Args:
        stacks: Resources by the stack's name.
    """
    own, guard = stacks["Nitro-nitro"], stacks["NitroGuard"]
    group, cache = (
        only(own, "AWS::AutoScaling::AutoScalingGroup"),
        only(own, "AWS::ElastiCache::ServerlessCache"),
    )
    actor = only(own, "AWS::Lambda::Function")
    warm = only(own, "AWS::Lambda::Alias")["ProvisionedConcurrencyConfig"][
        "ProvisionedConcurrentExecutions"
    ]
    types = [
        one["InstanceType"] for one in group["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    ]
    kind = "a GPU" if all(map(has_gpu, types)) else "no GPU"
    machine = f"EC2 with {kind},\n" + " or\n".join(types)
    engine = cache["Engine"].title()
    looks = (
        only(guard, "AWS::Events::Rule")["ScheduleExpression"]
        .removeprefix("rate(1 ")
        .removesuffix(")")
    )
    only(guard, "AWS::DynamoDB::Table")
    only(stacks["NitroResults"], "AWS::S3::Bucket")
    figure, axes = canvas(114, 70)
    axes.text(
        57,
        67,
        f"experiments/nitro.yaml, deployed: Nitro-nitro has {len(own)} resources",
        fontsize=11,
        ha="center",
    )
    box(axes, 29, 2, 56, 61, "", SAND, edge=EDGE)
    axes.text(
        31, 60, "NitroNetwork: one VPC, no NAT, for all experiments", fontsize=10, color=SHARED
    )
    for y, height, name in (
        (36, 21, "a public address: out, never in"),
        (5, 25, "no way out but the cache"),
    ):
        box(axes, 31, y, 52, height, "", WHITE, edge="#cfc7b3")
        axes.text(57.3, y + height - 1.6, name, fontsize=9, color=SHARED, ha="center")

    box(axes, 33, 37.5, 20, 15, f"Learner\n{machine}", BLUE)
    box(
        axes,
        33,
        7,
        20,
        15,
        f"Trajectory cache\nElastiCache\nServerless: {engine},\nTLS, IAM tokens",
        GREEN,
    )
    for offset in (1.6, 0.8):
        box(axes, 63 + offset, 7 + offset, 17, 15, "", WHITE)
    box(
        axes,
        63,
        7,
        17,
        15,
        f"Actors\nLambda, {warm} warm,\n{actor['MemorySize']:,} MiB each,\nfrom one image",
        WHITE,
    )
    box(axes, 1, 37.5, 15, 15, "Results\nS3 bucket;\noutlives the\ndeployment", ORANGE)
    box(axes, 98, 43, 15, 13, "CloudWatch\ndashboard,\nlogs, alarms", BLUE)
    box(axes, 98, 24, 15, 13, "Ledger\nDynamoDB:\ndollars and\nteardowns", ORANGE)
    box(axes, 98, 5, 15, 13, f"Guard\nLambda, looks\nevery {looks}", ORANGE)

    arrow(axes, (32.4, 45), (16.7, 45), "rows,\ncheckpoint,\nledger", (22.5, 50.2))
    arrow(axes, (53.6, 50), (97.4, 50), "return, R, actors, dollars", (69, 51.8))
    line(axes, (53.6, 45.5), (91, 45.5), (91, 30.5))
    arrow(axes, (91, 30.5), (97.4, 30.5))
    label(axes, (69, 46.9), "spent, reserved, heartbeat")
    arrow(axes, (105.5, 23.4), (105.5, 18.6))
    arrow(axes, (97.4, 11), (85.8, 11), "ends the\nexperiment", (91.6, 14.6))
    arrow(axes, (43, 36.9), (43, 22.6), "weights out, batch in", (43, 33.1), SAND)
    arrow(axes, (53.6, 17), (62.4, 17), "weights", (58.0, 18.9))
    arrow(axes, (62.4, 11), (53.6, 11), "samples", (58.2, 12.9))
    line(axes, (53.6, 40), (71.5, 40))
    label(axes, (62.5, 41.6), "invokes")
    arrow(axes, (71.5, 40), (71.5, 24.2), "many at once", (71.5, 33.1), SAND)
    axes.text(
        1,
        18,
        "blue, green, white:\nthe stack of one experiment,\ngone when its run has ended",
        fontsize=9,
        color=EXPERIMENT,
        va="top",
    )
    axes.text(
        1,
        9,
        "sand, orange:\nshared and long-lived,\nidle: cents a month",
        fontsize=9,
        color=SHARED,
        va="top",
    )
    return figure


if __name__ == "__main__":
    deployment = draw(synthesised())
    save(deployment, "deployment", Data=drawn_from(deployment, "deployment"))
