"""Tries an environment in separate processes, before anything starts.

An environment that raises, hangs, or ends its process is refused, with the step at which it did so. A run leaves
episodes open in one process and continues them in another. So the trial plays some in a new process and continues one
in another new process: from its saved state, if the environment can save it, and from its seed and its actions. If
observations and rewards differ, the environment is not deterministic. `lambda_actor.trial` has the tests.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from lambda_actor import trial
from lambda_actor.spaces import Spaces
from lambda_actor.trial import TriedEnvironment
from runtime.errors import EnvironmentNotHereError, ExperimentError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.learner import device_of
from runtime.training.environment_process import EnvironmentProcess, TaskError

_STEPS_MAX = 256
"""Longest first fragment that is played."""
PATIENCE_S, _NOTICE_S = 600, 30
"""Time limit of the whole trial; the time until a notice about an import, reset or step."""
_SLOWER = 10.0
"""A second environment that takes this many times as long to make as the first, and a notice, waits for its end."""


def start_process(experiment: ResolvedExperiment) -> EnvironmentProcess:
    """Starts a process with an experiment's environment, or with its batched one."""
    section = experiment.environment
    if section.backend == "torch":
        device = device_of(experiment.learner.device)
        tasks = "runtime.gmi.worlds.playing:WorldsTasks"
        return EnvironmentProcess(section.id, tasks, section.worlds, device)
    return _process(section.id, section.preprocessing, section.options)


def _process(environment_id: str, *more: Any) -> EnvironmentProcess:
    tasks = "runtime.training.environment_tasks:EnvironmentTasks"
    return EnvironmentProcess(environment_id, tasks, environment_id, *more)


def try_experiment(experiment: ResolvedExperiment) -> TriedEnvironment:
    """Tries the environment of an experiment.

    Raises:
        EnvironmentNotHereError: It cannot be made.
        ExperimentError: It cannot be used.
    """
    section = experiment.environment
    if section.backend == "torch":
        return _try_batched(section.id, lambda: start_process(experiment))
    return try_environment(
        section.id,
        section.preprocessing,
        section.options,
        fragment_steps=experiment.actor.fragment_steps,
    )


def try_environment(
    environment_id: str,
    preprocessing: str = "auto",
    options: Mapping[str, Any] | None = None,
    *,
    fragment_steps: int = _STEPS_MAX,
    clock: Callable[[], float] = time.monotonic,
) -> TriedEnvironment:
    """Makes an environment in another process, plays, and continues in a third one; returns its properties.

    Args:
        environment_id: This and the next two are arguments of `make_environment`.
        fragment_steps: ``actor.fragment_steps``; at most 256 steps are played.
        clock: Seconds.

    Raises:
        EnvironmentNotHereError: It cannot be made, its process ended, or it took too long.
        ExperimentError: It raises, has unusable observations or results, ends its process, or takes too long.
    """
    began_s = clock()

    def ask(
        process: EnvironmentProcess, task: str, limit_s: float = PATIENCE_S, **values: Any
    ) -> Any:
        left_s = PATIENCE_S - (clock() - began_s)
        return _ask(process, clock, min(limit_s, left_s), task, **values)

    made = environment_id, preprocessing, options
    single = {}
    with ExitStack() as stack:
        here, elsewhere = (stack.enter_context(closing(_process(*made))) for _ in range(2))
        try:
            known = ask(here, "make")
        except TaskError as error:
            raise EnvironmentNotHereError(str(error)) from None
        make_s = clock() - began_s
        try:
            played = ask(here, "play", steps=min(fragment_steps, _STEPS_MAX))
            speed = {name: played.pop(name) for name in ("step_s", "wait_s")}
            try:
                ask(elsewhere, "make", _NOTICE_S + _SLOWER * make_s)
            except TaskError as error:
                single = {"single_because": str(error)}
                elsewhere.close()
                # Frees its ports and files.
                here.end()
                elsewhere = stack.enter_context(closing(_process(*made)))
            differs = ask(elsewhere, "go_on", **played) if played["episode"] else {}
        except TaskError as error:
            raise ExperimentError(str(error)) from None
    known["spaces"] = Spaces.from_json(known["spaces"])
    tried = trial.conclude(known, played, differs | single)
    return dataclasses.replace(tried, **speed, make_s=make_s)


def _try_batched(environment_id: str, start: Callable[[], EnvironmentProcess]) -> TriedEnvironment:
    """Makes a few worlds of a batched environment in another process, and plays some steps.

    Raises:
        ExperimentError: It cannot be made or used.
    """
    began_s = time.monotonic()
    with closing(start()) as process:
        try:
            known = _ask(process, time.monotonic, PATIENCE_S, "play")
        except TaskError as error:
            raise ExperimentError(str(error)) from None
    return TriedEnvironment(
        environment_id,
        Spaces((known["observation_size"],), action_size=known["action_size"]),
        "none",
        known["steps_max"],
        cannot_save_reason="",
        plain_because="",
        rescales_actions=False,
        step_s=known["step_s"],
        make_s=time.monotonic() - began_s,
    )


def _ask(
    process: EnvironmentProcess,
    clock: Callable[[], float],
    limit_s: float,
    task: str,
    **values: Any,
) -> Any:
    """Runs a task, and returns its answer; prints a notice about a step that takes long.

    Raises:
        TaskError: It failed, or it still runs after ``limit_s``.
    """
    began_s = since_s = clock()
    doing, is_noticed = "", False
    for kind, value in process.run(task, **values):
        now_s = clock()
        if kind == "doing":
            doing, since_s, is_noticed = value, now_s, False
        if now_s - began_s >= limit_s:
            raise TaskError(
                f"{process.about}it was still {doing} after {limit_s:.0f} s, in the trial before "
                f"the first round{process.last_line}"
            )
        if now_s - since_s >= _NOTICE_S and not is_noticed:
            is_noticed = True
            with suppress(OSError, AttributeError, ValueError):
                print(
                    f"! {process.about}it is still {doing} after {_NOTICE_S} s{process.last_line}; "
                    f"after {limit_s:.0f} s the trial no longer waits",
                    file=sys.stderr,
                    flush=True,
                )
    return value
