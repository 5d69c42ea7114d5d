"""MinionsRL Fig. 9: a scheduler trained from scratch against one fine-tuned from another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREY, panels
from papers.competition.plan import WIDE, WORKLOADS
from papers.minionsrl.__main__ import main
from papers.minionsrl.scheduler.recordings import read_recording
from runtime.scaler.saved_scheduler import load_scheduler

EPISODES = 10
ARMS = {"from scratch": "walker2d-real", "fine-tuned": "walker2d"}


def measure(work: Path) -> dict[str, Any]:
    task = WORKLOADS["walker2d"]
    chosen = {**task.settings, **{f"scaler.{name}": value for name, value in WIDE.items()}}
    settings = [
        word for key, value in chosen.items() for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    begun = {"from scratch": ["train", "--real"], "fine-tuned": ["finetune", "hopper"]}
    found = {}
    for arm, words in begun.items():
        out = work / f"{ARMS[arm]}.safetensors"
        if main([*words, task.file, "--episodes", str(EPISODES), "--out", str(out), *settings]):
            raise SystemExit(f"{arm}: the scheduler's training failed; the same command continues")
        runs = [
            read_recording(out.with_suffix(".runs") / f"episode-{number:04d}")
            for number in range(1, EPISODES + 1)
        ]
        found[arm] = {
            "seconds": [run.modelled_s for run in runs],
            "cents": [100.0 * run.spent_usd for run in runs],
            "reached": sum(run.is_success for run in runs),
            "actors": [float(np.mean([row.actor_count for row in run.rows])) for run in runs],
        }
    return {
        "arms": found,
        "begun_from": "hopper",
        "begun_from_cents": 100.0 * load_scheduler("hopper").spent_usd,
    }


def draw(data: dict[str, Any]) -> Any:
    figure, columns = panels(3, (12, 3.8))
    labels = {
        "seconds": "modelled seconds to the end",
        "cents": "modelled cents",
        "actors": "mean actors",
    }
    for axes, (quantity, label) in zip(columns, labels.items(), strict=True):
        for (arm, found), colour in zip(data["arms"].items(), (GREY, BLUE), strict=True):
            axes.plot(range(1, EPISODES + 1), found[quantity], "o-", ms=4, color=colour, label=arm)
        axes.set(xlabel="episode", ylabel=label, ylim=(0, None))
    columns[0].legend(frameon=False, loc="lower left")
    figure.suptitle("Episodes of the scheduler's training on Walker2d, one training of each")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "not measured here",
        "arms": {
            arm: {
                "reached": found["reached"],
                "all": sum(found["cents"]),
                "second_half": np.mean(found["cents"][EPISODES // 2 :]),
            }
            for arm, found in data["arms"].items()
        },
    }
