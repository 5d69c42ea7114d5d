"""MinionsRL Fig. 9: a scheduler that is trained from scratch against one that is fine-tuned from another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.competition.plan import WIDE, WORKLOADS
from benchmarks.figures import replays
from runtime.cli.main import main
from runtime.scaler.saved_scheduler import load_scheduler
from runtime.scheduler.recordings import read_recording

PAPER = (
    "§Scheduler Training Overhead Mitigation: fine-tuned for ten episodes from Hopper to Humanoid, and from Qbert to "
    "SpaceInvaders, a scheduler is as good as one trained from scratch, or better, for a tenth of its time and cost.")
METHOD = (
    "Walker2d instead of Humanoid, whose runs take hours here: ten real runs from scratch with the paper's settings, "
    "and ten that fine-tune the shipped scheduler `hopper`; one training of each. Seconds and cents are modelled.")
EPISODES = 10
ARMS = {"from scratch": "walker2d-real", "fine-tuned": "walker2d"}


def measure(work: Path) -> dict[str, Any]:
    task = WORKLOADS["walker2d"]
    chosen = {**task.settings, **{f"scaler.{name}": value for name, value in WIDE.items()}}
    settings = [word for key, value in chosen.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    begun = {"from scratch": ["train", "--real"], "fine-tuned": ["finetune", "hopper"]}
    found = {}
    for arm, words in begun.items():
        out = work / f"{ARMS[arm]}.safetensors"
        if main(["scheduler", *words, task.file, "--episodes", str(EPISODES), "--out", str(out), *settings]):
            raise SystemExit(f"{arm}: the scheduler's training failed; the same command goes on")
        runs = [read_recording(out.with_suffix(".runs") / f"episode-{number:04d}") for number in range(1, EPISODES + 1)]
        found[arm] = {"seconds": [run.modelled_s for run in runs], "cents": [100.0 * run.spent_usd for run in runs],
                      "reached": sum(run.is_success for run in runs),
                      "actors": [float(np.mean([row.actor_count for row in run.rows])) for run in runs]}
    return {"arms": found, "begun_from": "hopper", "begun_from_cents": 100.0 * load_scheduler("hopper").spent_usd}


def draw(data: dict[str, Any], path: Path) -> None:
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.8), constrained_layout=True)
    for axes, (quantity, label) in zip(panels, (("seconds", "modelled seconds to the end"), ("cents", "modelled cents"),
                                                ("actors", "mean actors")), strict=True):
        for (arm, found), colour in zip(data["arms"].items(), (replays.GREY, replays.BLUE), strict=True):
            axes.plot(range(1, EPISODES + 1), found[quantity], "o-", ms=4, color=colour, label=arm)
        axes.set(xlabel="episode", ylabel=label, ylim=(0, None))
    panels[0].legend(frameon=False, loc="lower left")
    figure.suptitle("Episodes of the scheduler's training on Walker2d, one training of each")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    parts = [f"{arm}, {found['reached']} of {EPISODES} runs reached the target, for {sum(found['cents']):.1f} cents in "
             f"all and {np.mean(found['cents'][EPISODES // 2:]):.2f} a run in the second half"
             for arm, found in data["arms"].items()]
    return "not measured here", (
        f"One training of each, so no claim: {'; '.join(parts)}. What is fine-tuned had cost "
        f"{data['begun_from_cents']:.1f} cents before.")
