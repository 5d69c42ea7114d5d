"""Draws docs/pictures/deployment.png: ``python docs/pictures/make_deployment.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from make_architecture import BLUE, GREEN, INK, ORANGE, SAND, arrow, box  # noqa: E402

SHARED, EXPERIMENT = "#8a7f66", "#2f5f8f"


def draw() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(11, 6.6))
    axes.set(xlim=(0, 110), ylim=(0, 66))
    axes.axis("off")
    box(axes, 29, 2, 56, 61, "", SAND, edge="#bbb39f")
    axes.text(31, 60, "NitroNetwork: one VPC, no NAT, for all experiments", fontsize=10, color=SHARED)
    for y, height, name in ((36, 21, "public subnets: out, never in"), (5, 25, "isolated subnets: no way out")):
        box(axes, 31, y, 52, height, "", "#ffffff", edge="#cfc7b3")
        axes.text(57.3, y + height - 1.6, name, fontsize=9, color=SHARED, ha="center")

    box(axes, 33, 37.5, 20, 15, "Learner\nGPU instance,\ngroup of at most 1", BLUE)
    box(axes, 33, 7, 20, 15, "Trajectory cache\nElastiCache, TLS,\nIAM tokens", GREEN)
    for offset in (1.6, 0.8):
        box(axes, 63 + offset, 7 + offset, 17, 15, "", "#ffffff")
    box(axes, 63, 7, 17, 15, "Actors\nLambda,\nfrom one image", "#ffffff")
    box(axes, 1, 37.5, 15, 15, "Results\nbucket; outlives\nthe deployment", ORANGE)
    box(axes, 94, 43, 15, 13, "CloudWatch\ndashboard,\nlogs, alarms", BLUE)
    box(axes, 94, 24, 15, 13, "Ledger\nDynamoDB:\ndollars, orders", ORANGE)
    box(axes, 94, 5, 15, 13, "Guard\nLambda, looks\nevery minute", ORANGE)

    arrow(axes, (32.4, 45), (16.7, 45), "rows,\ncheckpoint,\nledger", (22.5, 50.2))
    arrow(axes, (53.6, 50), (93.4, 50), "return, R, actors, dollars", (69, 51.8))
    axes.add_line(plt.Line2D((53.6, 89), (45.5, 45.5), lw=1.3, color=INK))
    axes.add_line(plt.Line2D((89, 89), (45.5, 30.5), lw=1.3, color=INK))
    arrow(axes, (89, 30.5), (93.4, 30.5), "", (91, 30.5))
    axes.text(69, 46.9, "spent, reserved, heartbeat", ha="center", va="center", fontsize=8.8, color=INK)
    arrow(axes, (101.5, 23.4), (101.5, 18.6), "", (101, 21))
    arrow(axes, (93.4, 11), (85.8, 11), "ends the\nexperiment", (89.6, 14.6))
    arrow(axes, (43, 36.9), (43, 22.6), "weights out, batch in", (43, 33.1))
    arrow(axes, (62.4, 14.5), (53.6, 14.5), "samples", (58.2, 16.6))
    axes.add_line(plt.Line2D((53.6, 71.5), (40, 40), lw=1.3, color=INK))
    axes.text(62.5, 41.6, "invokes", ha="center", va="center", fontsize=8.8, color=INK)
    arrow(axes, (71.5, 40), (71.5, 24.2), "many at once", (71.5, 33.1))
    axes.text(1, 18, "blue, green, white:\nthe stack of one experiment,\ngone when its run has ended", fontsize=9,
              color=EXPERIMENT, va="top")
    axes.text(1, 9, "sand, orange:\nshared and long-lived,\nidle: cents a month", fontsize=9, color=SHARED,
              va="top")
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_name("deployment.png"), dpi=120, bbox_inches="tight")
