"""An experiment file's own deployment, with as few rounds as fit a couple of minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.loading import self_contained
from stacks.plan import Plan
from tests.simulators.rehearsal.rehearsal import Rehearsal

ROUNDS = 12
"""Rounds that are played, unless the file stops earlier."""
_ROUND_S = 10.0
"""Seconds of the clock for a round on an instance, so that slow machines play the same deployment."""
_MOVED_BYTES = 100_000
"""Fewer bytes are no round's weights and trajectories; looking at the server moves some, too."""
_ENDS = ("max_rounds", "target_return", "max_steps", "budget")


@dataclass(frozen=True)
class RehearsedFile:
    """Attributes:
    path: The experiment file.
    plan: Its deployment.
    text: The file as it is played; needs no other file.
    changes: What is played otherwise than the file says.
    """

    path: Path
    plan: Plan
    text: str
    changes: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """Says what is played, for people."""
        plan, experiment = self.plan, self.plan.experiment
        parts = [
            f"learner {', '.join(experiment.learner.instance_types)}"
            if plan.has_instance
            else f"learner.kind {experiment.learner.kind}",
            f"cache {experiment.cache.kind}" if plan.has_function else "no functions",
            *(
                [
                    f"up to {experiment.scaler.most_actors} actors, {plan.provisioned_actors} of them warm"
                ]
                if plan.has_function
                else []
            ),
        ]
        return [
            f"rehearses {self.path}: deploy, at most {_rounds(self.text)} rounds, teardown; {', '.join(parts)}; "
            f"budget ${experiment.budget.usd:g}",
            f"not as in the file: {'; '.join(self.changes) or 'nothing'}",
            *([f"a round on the instance counts as {_ROUND_S:g} s"] if plan.has_instance else []),
        ]


def _rounds(text: str) -> int:
    return int(yaml_text.parse(text, "")["stop"]["max_rounds"])


def read(path: Path, rounds: int = ROUNDS) -> RehearsedFile:
    """Reads an experiment file for a rehearsal.

    Args:
        path: The experiment file.
        rounds: Most rounds to play.

    Raises:
        ExperimentError: It cannot be deployed, or not be rehearsed.
    """
    plan = Plan.from_context({"experiment": str(path)}.get)
    experiment = plan.experiment
    if plan.is_external:
        raise ExperimentError(
            f"{path}: learner.kind = external has no rounds of its own; rehearsed by the scenario "
            "external-pool"
        )
    if experiment.environment.package is not None:
        raise ExperimentError(
            f"{path}: environment.package = {experiment.environment.package!r} would be installed in "
            "an image, and rehearsals build none; allowed: none, with the environment installed here"
        )
    tree: dict[str, Any] = yaml_text.parse(self_contained(path).decode(), str(path))
    changes = []
    if experiment.stop.max_rounds is None or experiment.stop.max_rounds > rounds:
        tree["stop"] = {**(tree.get("stop") or {}), "max_rounds": rounds}
        changes.append(
            f"stop.max_rounds = {rounds} instead of "
            f"{'no limit' if experiment.stop.max_rounds is None else experiment.stop.max_rounds}"
        )
    if plan.has_gpu and not torch.cuda.is_available():
        tree["learner"] = {**(tree.get("learner") or {}), "device": "cpu"}
        changes.append("learner.device = cpu, because this machine has no GPU")
    return RehearsedFile(path, plan, yaml_text.dump(tree), tuple(changes))


def play(file: RehearsedFile, out: Path, **settings: Any) -> dict[str, Any]:
    """Plays its deployment from the first template to the last Describe. Returns the content of ``rehearsal.json``.

    Args:
        out: A folder for the results.
        settings: More arguments of `Rehearsal`.

    Raises:
        RehearsalError: It could not be played to its end.
    """
    plan, name = file.plan, file.plan.name
    with Rehearsal(name, out, **{"round_s": _ROUND_S, **settings}) as world:
        deployment = world.deploy(name, file.text)
        world.step()
        experiment = plan.experiment
        for kind, is_there in (
            ("functions", plan.has_function),
            ("provisioned concurrency", plan.provisioned_actors > 0),
            ("instances", plan.has_instance),
            ("caches", experiment.has_elasticache),
        ):
            world.check(
                bool(world.found_deployed.get(kind)) == is_there,
                f"Describe finds {'no ' * is_there}{kind} of {deployment.stack}",
            )
        world.until(lambda: world.rounds(name) or world.is_gone(name), "the first round")
        if plan.has_function and not world.is_gone(name):
            workers = len(world.account.functions.process_ids(f"{deployment.stack}-actor"))
            world.check(workers >= plan.provisioned_actors, f"only {workers} actors are warm")
        world.until_gone(name)
        if plan.has_instance:
            types = {
                event["instance_type"]
                for event in world.record.events
                if event.get("state") == "launched"
            }
            world.check(
                types <= set(experiment.learner.instance_types),
                f"EC2 launched {', '.join(sorted(types))}",
            )
            world.check(
                world.record.has(
                    "instance", f"learner {'with' if plan.has_gpu else 'without'} a GPU"
                ),
                f"Docker started no learner {'with' if plan.has_gpu else 'without'} a GPU",
            )
        world.check(
            not experiment.has_elasticache or world.account.cache.moved_bytes() > _MOVED_BYTES,
            "nothing went through the cache",
        )
        world.check_bill(name)
        reason = world.stop_reason(name)
        world.check(reason in _ENDS, f"the run's end is {reason!r}")
        return world.conclude()
