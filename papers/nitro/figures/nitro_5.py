"""Nitro Fig. 5: the start-up time of actors, and boosting once with functions, a VM and a pause, or replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREY, ORANGE, panels
from papers.estimates import differences, excludes, over_seeds
from papers.nitro.boosting.trainer import Trainer
from papers.nitro.figures import modelled
from papers.nitro.figures.replays import (
    ACTORS,
    OURS,
    ROUNDS,
    SETTINGS,
    STEPS,
    mean_return,
    measured,
    put_back,
    trainer,
)
from runtime.config.resolved import FittedExperiment
from runtime.cost.rates import init_s, lambda_speed, tabled
from runtime.cost.start import IMAGE_BYTES, MACHINE_S, PULL_BYTES_PER_S, UNPACK_BYTES_PER_S
from runtime.ports.sampling import Trajectory

BOOSTED = 4
"""The paper's boostable round."""
EPISODES = 48
LEARNER = "p3.2xlarge"
VM_S = 25.8
"""Time from the request of an EC2 instance to its first login: the mean published by brevdev/ec2-coldboot-research."""
PUBLISHED_S = {
    "least of six types (brevdev/ec2-coldboot-research)": 22.6,
    "mean (the same)": VM_S,
    "a c5.xlarge with FreeBSD (daemonology.net, 2021)": 29.3,
}
LOOKS = (1, 10, 100)
"""Updates of the replay after which its policy is evaluated, in addition to the last one."""
SCHEMES = ("serverless", "pause", "replay")


def starts() -> dict[str, dict[str, Any]]:
    """Returns the seconds until an actor can sample, each with its source. None was measured in AWS."""
    fitted = modelled.fitted(SETTINGS["paper"])
    cold_s = init_s(fitted, tabled(fitted)) + modelled.INVOKE_S
    pulled_bytes, unpacked_bytes = IMAGE_BYTES[False]
    image_s = pulled_bytes / PULL_BYTES_PER_S + unpacked_bytes / UNPACK_BYTES_PER_S
    return {
        "function, warm": {"seconds": modelled.INVOKE_S, "source": "modelled"},
        "function, cold": {
            "seconds": cold_s,
            "source": "modelled: imports measured here, over Lambda's speed",
        },
        "EC2 instance, booted": {
            "seconds": VM_S,
            "low": min(PUBLISHED_S.values()),
            "high": max(PUBLISHED_S.values()),
            "source": "published",
        },
        "EC2 instance, with a container image": {
            "seconds": MACHINE_S + image_s,
            "source": "modelled: as a deployment counts it",
        },
    }


def measure(work: Path) -> dict[str, Any]:
    lines = measured(
        work / "nitro_5.jsonl", f"{OURS} {BOOSTED} {EPISODES} {VM_S} {LOOKS}", OURS, _training
    )
    return {"starts": starts(), "published_s": PUBLISHED_S, **summary(lines)}


def _training(file: str, seed: int) -> dict[str, Any]:
    """Returns the returns along each scheme. Pausing trains on the functions' samples, only later."""
    training, old, before = trainer(file, seed), [], []
    for round_index in range(1, BOOSTED):
        old.append(training.roll_out(round_index, 1))
        training.update(old[-1])
        before.append(mean_return(training, EPISODES))
    with put_back(training):
        serverless = _boosted_and_on(training)
    looks = _replay(training, old, _replays(file))
    return {
        "before": before,
        "serverless": serverless,
        "replayed": looks,
        "replay": _boosted_and_on(training),
    }


def _boosted_and_on(training: Trainer) -> list[float]:
    returns = []
    for round_index in range(BOOSTED, ROUNDS + 1):
        training.update(training.roll_out(round_index, ACTORS if round_index == BOOSTED else 1))
        returns.append(mean_return(training, EPISODES))
    return returns


def _replays(file: str) -> int:
    """Returns the number of updates while the instance starts: one per modelled round time."""
    return int(VM_S / round_s(file))


def _replay(training: Trainer, old: list[list[Trajectory]], updates: int) -> dict[str, float]:
    """Trains on earlier rounds' trajectories, round by round. Returns the returns by number of updates."""
    batches, learner, found = [training.batch(one) for one in old], training.learner, {}
    for count in range(1, updates + 1):
        batch = batches[count % len(batches)]
        learner.begin([batch], progress=0.0, is_replay=True)
        samples = learner.samples(batch)
        epochs = [
            learner.minibatches(batch, count * learner.settings.epochs + epoch)
            for epoch in range(learner.settings.epochs)
        ]
        learner.finish(
            samples,
            learner.descend(samples, [part for parts in epochs for part in parts]),
            is_replay=True,
        )
        if count in LOOKS or count == updates:
            found[str(count)] = mean_return(training, EPISODES)
    return found


def _actor_s(fitted: FittedExperiment) -> float:
    units = tabled(fitted)
    return (units["invocation_s"] + STEPS * units["step_s"]) / lambda_speed(fitted.actor.memory_mib)


def round_s(file: str) -> float:
    """Returns the modelled seconds of a round with one warm function."""
    fitted = modelled.fitted(file)
    return (
        modelled.INVOKE_S + _actor_s(fitted) + modelled.times(fitted, LEARNER).update_s(STEPS, 0.0)
    )


def seconds(setting: str, scheme: str) -> list[float]:
    """Returns the modelled seconds from the start to the end of each round."""
    fitted = modelled.fitted(OURS[setting])
    started_s = starts()["function, cold"]["seconds"] if scheme == "serverless" else VM_S
    rounds = [round_s(OURS[setting])] * ROUNDS
    rounds[BOOSTED - 1] = (
        started_s
        + _actor_s(fitted)
        + ACTORS * modelled.FAN_OUT_S
        + modelled.times(fitted, LEARNER).update_s(ACTORS * STEPS, 0.0)
    )
    return [float(one) for one in np.cumsum(rounds)]


def summary(lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns, by setting, the effect of replaying on the policy, and its remainder at the end."""
    result = {}
    for setting, rows in lines.items():
        ends = {scheme: [row[scheme][-1] for row in rows] for scheme in ("serverless", "replay")}
        result[setting] = {
            "seeds": [row["seed"] for row in rows],
            "replays": _replays(OURS[setting]),
            "seconds": {scheme: seconds(setting, scheme) for scheme in SCHEMES},
            "replay_less_before": {
                count: differences(
                    (row["replayed"][count] for row in rows), (row["before"][-1] for row in rows)
                )
                for count in rows[0]["replayed"]
            },
            "at_the_end": {scheme: over_seeds(values) for scheme, values in ends.items()},
            "replay_less_serverless": differences(ends["replay"], ends["serverless"]),
            "lines": rows,
        }
    return {"settings": result}


def draw(data: dict[str, Any]) -> Any:
    (found,) = data["settings"].values()
    figure, (start_ups, by_time, by_round) = panels(3, (17, 4.6))
    names, starts = list(data["starts"]), data["starts"].values()
    start_ups.barh(
        range(len(names)),
        [one["seconds"] for one in starts],
        color=[ORANGE if one["source"] == "published" else BLUE for one in starts],
    )
    for place, one in enumerate(starts):
        start_ups.annotate(
            f"{one['seconds']:.3g} s, {one['source'].partition(':')[0]}",
            (one["seconds"], place),
            (5, -3),
            textcoords="offset points",
            fontsize=9,
        )
    start_ups.set_yticks(range(len(names)), names)
    start_ups.invert_yaxis()
    start_ups.set(
        xscale="log",
        xlim=(0.01, 3000),
        xlabel="seconds until an actor can sample",
        title="(a) Start-up; nothing of it was measured in AWS",
    )
    colours = dict(zip(SCHEMES, (BLUE, GREY, ORANGE), strict=True))
    labels = {"serverless": "functions, cold", "pause": "VM, pause", "replay": "VM, replay"}
    lines, rounds = found["lines"], range(1, ROUNDS + 1)
    before = np.mean([row["before"] for row in lines], axis=0)
    for scheme in SCHEMES:
        after = np.mean(
            [row["replay" if scheme == "replay" else "serverless"] for row in lines], axis=0
        )
        seconds = found["seconds"][scheme]
        start_s, boosted_s = seconds[BOOSTED - 2], 0.999 * seconds[BOOSTED - 1]
        meanwhile = {boosted_s: before[-1]}
        if scheme == "replay":
            meanwhile = {
                start_s + int(count) * VM_S / found["replays"]: np.mean(
                    [row["replayed"][count] for row in lines]
                )
                for count in lines[0]["replayed"]
            }
        by_time.plot(
            [*seconds[: BOOSTED - 1], *meanwhile, *seconds[BOOSTED - 1 :]],
            [*before, *meanwhile.values(), *after],
            "o-",
            ms=4,
            color=colours[scheme],
            label=labels[scheme],
        )
        # A pause gives the functions' returns, so its line is wide and lies below theirs.
        by_round.plot(
            rounds,
            [*before, *after],
            color=colours[scheme],
            label=labels[scheme],
            **(
                {"lw": 7, "alpha": 0.35, "zorder": 1}
                if scheme == "pause"
                else {"marker": "o", "ms": 4}
            ),
        )
    by_time.set(xscale="log", xlabel="modelled seconds")
    by_round.set(xlabel="round")
    for axes, letter, by in zip(
        (by_time, by_round), "bc", ("by modelled time", "by round"), strict=True
    ):
        axes.set(
            ylabel="return, mean of five seeds",
            title=f"({letter}) Sixteen actors in round {BOOSTED} of {ROUNDS}, {by}",
        )
        axes.legend(frameon=False)
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    (found,) = data["settings"].values()
    hinders = excludes(found["replay_less_serverless"]) < 0
    return {
        "found": found,
        "hinders": hinders,
        "changed": found["replay_less_before"][str(found["replays"])],
        "status": "reproduced" if hinders else "partly",
    }
