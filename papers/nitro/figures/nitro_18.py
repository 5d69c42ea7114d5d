"""Nitro Fig. 18: the time until the last trajectory of a group of 100 to 1,000 actors arrives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, panels
from benchmarks.fan_out import decoding_s
from benchmarks.provenance import ROOT
from lambda_actor.environments import make_environment
from papers.nitro.figures import modelled

ACTORS = tuple(range(100, 1001, 100))
MEASURED = ROOT / "benchmarks" / "results" / "fan_out.json"
DECODED = 50
"""Trajectories of each environment whose decoding is measured."""


def measure(work: Path) -> dict[str, Any]:
    """Reuses benchmarks/results/fan_out.json, and measures only the decoding of other environments' trajectories."""
    fan_out = json.loads(MEASURED.read_text())
    environments = {}
    for name, file in modelled.EXPERIMENTS.items():
        fitted = modelled.fitted(file)
        steps = fitted.actor.fragment_steps
        environment = make_environment(fitted.environment.id, fitted.environment.preprocessing)
        environments[name] = {
            "steps": steps,
            "actor_s": modelled.times(fitted, "p3.2xlarge").expected_s()["actor_s"],
            "decode_cpu_s": decoding_s(DECODED, environment, steps) / DECODED,
        }
    return summary(fan_out, environments)


def summary(fan_out: dict[str, Any], environments: dict[str, Any]) -> dict[str, Any]:
    """Returns the time of a group: a warm actor's modelled time, plus the learner's.

    The learner's time is measured with Hopper's trajectories and one fake per actor, which all end at once. Other
    environments' trajectories take longer to decode.
    """
    rows = fan_out["rounds"]
    beyond_s = np.interp(
        ACTORS,
        [row["actors"] for row in rows],
        [row["collect_beyond_the_actors_s"] for row in rows],
    )
    groups = {
        name: [
            float(
                modelled.INVOKE_S
                + one["actor_s"]
                + beyond
                + count * (one["decode_cpu_s"] - environments["hopper"]["decode_cpu_s"])
            )
            for count, beyond in zip(ACTORS, beyond_s, strict=True)
        ]
        for name, one in environments.items()
    }
    return {
        "fan_out": {key: fan_out[key] for key in ("commit", "date", "hardware", "load")},
        "actors": list(ACTORS),
        "measured_actors": [row["actors"] for row in rows],
        "measured_beyond_s": [row["collect_beyond_the_actors_s"] for row in rows],
        "environments": environments,
        "group_s": groups,
        "growth": {name: one[-1] / one[0] for name, one in groups.items()},
    }


def draw(data: dict[str, Any]) -> Any:
    figure, (measured, groups) = panels(2, (12, 4.4))
    measured.plot(data["measured_actors"], data["measured_beyond_s"], "o-", color=BLUE)
    measured.set(
        xscale="log",
        yscale="log",
        xlabel="actors",
        ylabel="seconds beyond the actors' own",
        title="Measured here: invoking and collecting,\nHopper's trajectories, all ending at once",
    )
    measured.set_xticks(data["measured_actors"], [str(one) for one in data["measured_actors"]])
    measured.minorticks_off()
    for (name, seconds), marker in zip(data["group_s"].items(), "osv^Dx", strict=True):
        groups.plot(
            data["actors"], seconds, marker=marker, ms=5, lw=1, label=name.replace("_", " ")
        )
    groups.set(
        xlabel="actors",
        ylabel="seconds",
        ylim=(0, None),
        title="Modelled: from the invocation to the last trajectory,\nwarm functions of 1,024 MiB",
    )
    groups.legend(frameon=False)
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    growth = data["growth"].values()
    return {
        "low": min(growth),
        "high": max(growth),
        "hopper": data["group_s"]["hopper"],
        "status": "reproduced" if max(growth) < 1.2 else "not",
    }
