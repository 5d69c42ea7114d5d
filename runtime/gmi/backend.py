"""Opens a run's instances: their parts of the machine, their processes, and the memory that they share."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lambda_actor.fast import PLAIN_VARIABLE
from runtime.errors import ExperimentError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.interfaces import Fleet
from runtime.fleet.local import LocalFleet
from runtime.fleet.opening import Opening, open_fleet
from runtime.gmi.devices import (
    BACKEND_NAMES,
    choose_backend,
    look,
    places,
)
from runtime.gmi.fleet import (
    INSTANCE_HANDLER,
    INSTANCES_HANDLER,
    InstancesFleet,
    WorldsPlan,
)
from runtime.gmi.gmi_settings import GmiSettings
from runtime.gmi.group import reductions
from runtime.gmi.mps import MpsDaemon
from runtime.gmi.sharing.channel import chunk_bytes
from runtime.gmi.sharing.fleets import ServingFleet, TrainingFleet
from runtime.gmi.sharing.migrator import Migrator
from runtime.learner import device_of
from runtime.learner.functions.store import FolderStore


class Instances(NamedTuple):
    """A run's instances.

    Attributes:
        serving: Those that play.
        trainers: Those that train; the same fleet if each plays and trains.
        actor_event: Fields of every actor's event.
        facts: Facts for users, by label.
    """

    serving: InstancesFleet
    trainers: InstancesFleet
    actor_event: Mapping[str, Any]
    facts: Mapping[str, str]


def open_instances(opening: Opening, store: str) -> Instances:
    """Starts a run's instances, one process each, which need no server.

    Args:
        opening: The run; its stack closes everything.
        store: The run's folder for objects.

    Raises:
        ExperimentError: This machine cannot hold them, or cannot sum their gradients as wanted.
        FleetError: The processes cannot be started.
    """
    experiment = opening.experiment
    together = experiment.environment.vector
    settings = experiment.learner
    assert isinstance(settings, GmiSettings), f"{settings.kind} has no instances"
    players = settings.instances_at_once
    count = players + settings.trainers
    worlds = _worlds(experiment, players) if experiment.environment.has_worlds else None
    device = device_of(settings.device)
    machine = look(has_gpus=device != "cpu")
    if device != "cpu" and not machine.gpus:
        raise ExperimentError(
            f"learner.device = {device}: instances need the GPUs that nvidia-smi lists: {machine.problem or 'none'}; "
            "allowed: cpu"
        )
    backend, remark = choose_backend(machine, settings.backend, count)
    reduction = settings.reduction
    # Graphs record plain operations.
    variables = {PLAIN_VARIABLE: "1"} if worlds and machine.gpus else {}
    if backend == "mps":
        daemon = opening.stack.opened(lambda: MpsDaemon(opening.directory.path, machine.whole_gpus))
        variables |= daemon.variables
    here = places(machine, backend, count, variables)
    # All of them if none only trains.
    devices = [place.device for place in here[-settings.trainers :]]
    allowed = ("auto", *reductions(devices))
    if reduction not in allowed:
        raise ExperimentError(
            f"learner.reduction = {reduction}: {len(devices)} instances on {len(set(devices))} device(s) cannot sum "
            f"like that; allowed: {' | '.join(allowed)}"
        )
    serving: InstancesFleet
    trainers: InstancesFleet
    if settings.trainers:
        migrator = _open_memory(opening)
        serving = ServingFleet(
            _open_processes(opening, players, together, migrator.descriptor),
            here[:players],
            migrator=migrator,
            store=FolderStore(Path(store)),
            token=opening.run_id,
        )
        trainers = TrainingFleet(
            _open_processes(opening, settings.trainers, 1, migrator.descriptor),
            here[players:],
            serving,
            migrator,
            reduction=reduction,
        )
        what = f"{players} that play and {settings.trainers} that train; those that play"
    else:
        serving = trainers = InstancesFleet(
            _open_processes(opening, players, 1 if worlds else together),
            here,
            reduction=reduction,
            worlds=worlds,
        )
        what = f"{players}, each"
    event = {"is_kept": True, "store": store, "token": opening.run_id}
    each = f"{together:,} worlds" if worlds else f"up to {together} environments at once"
    facts = {"instances": f"{what} with {each}; {BACKEND_NAMES[backend]}"}
    if remark:
        facts["instances' backend"] = remark
    return Instances(serving, trainers, event, facts)


def _worlds(experiment: ResolvedExperiment, instances: int) -> WorldsPlan:
    """Shares a round's worlds among the instances."""
    section, settings = experiment.environment, experiment.learner
    assert isinstance(settings, GmiSettings), f"{settings.kind} has no worlds"
    count = experiment.scaler.most_actors
    shares = [count * (one + 1) // instances - count * one // instances for one in range(instances)]
    return WorldsPlan(
        section.worlds,
        shares,
        experiment.actor.fragment_steps,
        experiment.seed,
        settings.tf32,
        experiment.actor.timeout_s,
    )


def _open_memory(opening: Opening) -> Migrator:
    """Makes shared memory for instances' experience, with room for one update and the data that follows."""
    experiment = opening.experiment
    steps = experiment.actor.fragment_steps
    actors = experiment.scaler.most_actors
    awaited = min(experiment.algorithm.minibatch_steps, actors * steps)
    # Besides the trajectories that a step waits for, each actor may have one in the loop, one in flight, and the same
    # number given up or rejected.
    chunks = math.ceil(awaited / steps) + 4 * actors
    each = chunk_bytes(opening.spaces, steps)
    size_mib = each * chunks / 2**20
    key = f"scaler.actors_fixed = {actors} with actor.fragment_steps = {steps}"
    has_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    if size_mib > has_mib:
        raise ExperimentError(
            f"{key}: needs {size_mib:,.0f} MiB of memory, and this machine has {has_mib:,.0f} MiB; allowed: fewer or "
            "shorter fragments"
        )
    return opening.stack.opened(lambda: Migrator(each, chunks))


def _open_processes(opening: Opening, count: int, together: int, *descriptors: int) -> Fleet:
    """Starts the processes of instances."""
    actor = opening.experiment.actor
    return open_fleet(
        opening,
        partial(LocalFleet, descriptors=descriptors),
        concurrency=count,
        together=together,
        timeout_s=actor.timeout_s,
        memory_mib=actor.memory_mib,
        function=INSTANCES_HANDLER if together > 1 else INSTANCE_HANDLER,
    )
