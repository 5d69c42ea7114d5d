"""Nitro Fig. 5: how long actors take to start, and boosting once with functions, a VM and a pause, or replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.boosting.trainer import Trainer
from benchmarks.figures import modelled, replays
from benchmarks.figures.replays import ACTORS, OURS, ROUNDS
from runtime.config.resolved import FittedExperiment
from runtime.cost.rates import init_s, lambda_speed, tabled
from runtime.cost.start import IMAGE_BYTES, MACHINE_S, PULL_BYTES_PER_S, UNPACK_BYTES_PER_S
from runtime.ports.sampling import Trajectory

PAPER = (
    "§2.4: functions start within seconds, EC2 instances do not (Fig. 5(a); no values in the text). Boosting once "
    "with a VM, pausing takes very long, and replaying old trajectories meanwhile hinders training.")
METHOD = (
    "ten rounds, the fourth with 16 actors, settings of `experiments/hopper.yaml`, five seeds; the trainings "
    "are real, their time is modelled: units of work measured here, over published speeds of Lambda and a "
    "p3.2xlarge. Start-up of an instance as published (25.8 s on average from the request to the first login; "
    "types differ by less than a second), of a cold function modelled. Pausing trains on the same samples as "
    "functions do. Replaying, the learner goes through the trajectories of the three rounds before, with one "
    "update in the time of each round that could have been.")
BOOSTED = 4
"""The paper's boostable round."""
EPISODES = 48
LEARNER = "p3.2xlarge"
VM_S = 25.8
"""From the request of an EC2 instance to its first login, published mean of brevdev/ec2-coldboot-research."""
PUBLISHED_S = {"least of six types (brevdev/ec2-coldboot-research)": 22.6, "mean (the same)": VM_S,
               "a c5.xlarge with FreeBSD (daemonology.net, 2021)": 29.3}
LOOKS = (1, 10, 100)
"""Updates of the replay after which its policy is evaluated, besides after the last one."""
SCHEMES = ("serverless", "pause", "replay")


def starts() -> dict[str, dict[str, Any]]:
    """Seconds until an actor can sample, each with its source; none was measured in AWS."""
    fitted = modelled.fitted(replays.SETTINGS["paper"])
    cold_s = init_s(fitted, tabled(fitted)) + modelled.INVOKE_S
    pulled_bytes, unpacked_bytes = IMAGE_BYTES[False]
    image_s = pulled_bytes / PULL_BYTES_PER_S + unpacked_bytes / UNPACK_BYTES_PER_S
    return {
        "function, warm": {"seconds": modelled.INVOKE_S, "source": "modelled"},
        "function, cold": {"seconds": cold_s, "source": "modelled: imports measured here, over Lambda's speed"},
        "EC2 instance, booted": {"seconds": VM_S, "low": min(PUBLISHED_S.values()), "high": max(PUBLISHED_S.values()),
                                 "source": "published"},
        "EC2 instance, with a container image": {
            "seconds": MACHINE_S + image_s, "source": "modelled: as a deployment counts it"}}


def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_5.jsonl", f"{OURS} {BOOSTED} {EPISODES} {VM_S} {LOOKS}")
    for setting, file in OURS.items():
        for seed in replays.SEEDS:
            kept.once({"setting": setting, "seed": seed}, lambda file=file, seed=seed: _training(file, seed))
    kept.close()
    return {"starts": starts(), "published_s": PUBLISHED_S, **summary(kept.lines)}


def _training(file: str, seed: int) -> dict[str, Any]:
    """Returns along each scheme. Pausing trains on what functions would sample, only later: they share theirs."""
    training, old, before = replays.trainer(file, seed), [], []
    for round_index in range(1, BOOSTED):
        old.append(training.roll_out(round_index, 1))
        training.update(old[-1])
        before.append(replays.mean_return(training, EPISODES))
    with replays.put_back(training):
        serverless = _boosted_and_on(training)
    looks = _replay(training, old, _replays(file))
    return {"before": before, "serverless": serverless, "replayed": looks, "replay": _boosted_and_on(training)}


def _boosted_and_on(training: Trainer) -> list[float]:
    returns = []
    for round_index in range(BOOSTED, ROUNDS + 1):
        training.update(training.roll_out(round_index, ACTORS if round_index == BOOSTED else 1))
        returns.append(replays.mean_return(training, EPISODES))
    return returns


def _replays(file: str) -> int:
    """Updates while the instance starts, one in the modelled time of each round that could have been."""
    return int(VM_S / round_s(file))


def _replay(training: Trainer, old: list[list[Trajectory]], updates: int) -> dict[str, float]:
    """Trains on the earlier rounds' trajectories, one round's after the other's; returns by number of updates."""
    batches, learner, found = [training.batch(one) for one in old], training.learner, {}
    for count in range(1, updates + 1):
        batch = batches[count % len(batches)]
        learner.begin([batch], progress=0.0, is_replay=True)
        samples = learner.samples(batch)
        epochs = [learner.minibatches(batch, count * learner.settings.epochs + epoch)
                  for epoch in range(learner.settings.epochs)]
        learner.finish(samples, learner.descend(samples, [part for parts in epochs for part in parts]), is_replay=True)
        if count in LOOKS or count == updates:
            found[str(count)] = replays.mean_return(training, EPISODES)
    return found


def _actor_s(fitted: FittedExperiment) -> float:
    units = tabled(fitted)
    return ((units["invocation_s"] + replays.STEPS * units["step_s"])
            / lambda_speed(fitted.actor.memory_mib, fitted.actor.architecture))


def round_s(file: str) -> float:
    """Modelled seconds of a round with one warm function."""
    fitted = modelled.fitted(file)
    return (modelled.INVOKE_S + _actor_s(fitted)
            + modelled.times(fitted, LEARNER).update_s(replays.STEPS, 0.0))


def seconds(setting: str, scheme: str) -> list[float]:
    """Modelled seconds from the start to the end of each round."""
    fitted = modelled.fitted(OURS[setting])
    started_s = starts()["function, cold"]["seconds"] if scheme == "serverless" else VM_S
    rounds = [round_s(OURS[setting])] * ROUNDS
    rounds[BOOSTED - 1] = (started_s + _actor_s(fitted) + ACTORS * modelled.FAN_OUT_S
                           + modelled.times(fitted, LEARNER).update_s(ACTORS * replays.STEPS, 0.0))
    return [float(one) for one in np.cumsum(rounds)]


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By setting: what replaying does to the policy, and what remains of it at the end."""
    result = {}
    for setting, file in OURS.items():
        rows = [line for line in lines if line["setting"] == setting]
        if not rows:
            continue
        result[setting] = {
            "seeds": [row["seed"] for row in rows], "replays": _replays(file),
            "seconds": {scheme: seconds(setting, scheme) for scheme in SCHEMES},
            "replay_less_before": {
                count: replays.over_seeds([row["replayed"][count] - row["before"][-1] for row in rows])
                for count in rows[0]["replayed"]},
            "at_the_end": {scheme: replays.over_seeds([row[scheme][-1] for row in rows])
                           for scheme in ("serverless", "replay")},
            "replay_less_serverless": replays.over_seeds([row["replay"][-1] - row["serverless"][-1] for row in rows]),
            "lines": rows}
    return {"settings": result}


def draw(data: dict[str, Any], path: Path) -> None:
    settings = data["settings"]
    found, = settings.values()
    figure, panels = pyplot.subplots(1, 3, figsize=(17, 4.6), constrained_layout=True)
    names = list(data["starts"])
    panels[0].barh(range(len(names)), [one["seconds"] for one in data["starts"].values()], color=[
        replays.ORANGE if one["source"] == "published" else replays.BLUE for one in data["starts"].values()])
    for place, one in enumerate(data["starts"].values()):
        panels[0].annotate(f"{one['seconds']:.3g} s, {one['source'].partition(':')[0]}", (one["seconds"], place),
                           (5, -3), textcoords="offset points", fontsize=9)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].set(xscale="log", xlim=(0.01, 3000), xlabel="seconds until an actor can sample",
                  title="(a) Start-up; nothing of it was measured in AWS")
    colours = dict(zip(SCHEMES, (replays.BLUE, replays.GREY, replays.ORANGE), strict=True))
    labels = {"serverless": "functions, cold", "pause": "VM, pause", "replay": "VM, replay"}
    lines, rounds = found["lines"], range(1, ROUNDS + 1)
    before = np.mean([row["before"] for row in lines], axis=0)
    for scheme in SCHEMES:
        after = np.mean([row["replay" if scheme == "replay" else "serverless"] for row in lines], axis=0)
        seconds = found["seconds"][scheme]
        start_s, boosted_s = seconds[BOOSTED - 2], 0.999 * seconds[BOOSTED - 1]
        meanwhile = {boosted_s: before[-1]}
        if scheme == "replay":
            meanwhile = {start_s + int(count) * VM_S / found["replays"]: np.mean(
                [row["replayed"][count] for row in lines]) for count in lines[0]["replayed"]}
        panels[1].plot([*seconds[:BOOSTED - 1], *meanwhile, *seconds[BOOSTED - 1:]],
                       [*before, *meanwhile.values(), *after], "o-", ms=4, color=colours[scheme], label=labels[scheme])
        panels[2].plot(rounds, [*before, *after], "o-", ms=4, color=colours[scheme],
                       ls="--" if scheme == "pause" else "-", label=labels[scheme])
    panels[1].set(xscale="log", xlabel="modelled seconds")
    panels[2].set(xlabel="round")
    for axes, letter, by in zip(panels[1:], "bc", ("by modelled time", "by round"), strict=True):
        axes.set(ylabel="return, mean of five seeds",
                 title=f"({letter}) Sixteen actors in round {BOOSTED} of {ROUNDS}, {by}")
        axes.legend(frameon=False)
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    settings = data["settings"]
    found, = settings.values()
    effect = replays.excludes(found["replay_less_serverless"])
    seconds, count = found["seconds"], found["replays"]
    return "reproduced" if effect < 0 else "partly", (
        f"Waiting for a VM makes ten rounds take {seconds['pause'][-1]:.0f} instead of {seconds['serverless'][-1]:.1f} "
        "modelled seconds, and trains the same; start-ups are published and modelled, not measured. Replaying "
        f"{'hinders' if effect < 0 else 'does not hinder'} training here: {count} updates on old trajectories change "
        f"the return by {replays.text(found['replay_less_before'][str(count)])}, and after ten rounds it is "
        f"{replays.text(found['replay_less_serverless'])} above that with functions. Meanwhile this engine could have "
        "had as many plain rounds.")
