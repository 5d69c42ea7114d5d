"""Tasks of an environment's own process; see `runtime.training.environment_process`."""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.waiting import waits
from runtime import machine
from runtime.training.environment_process import MAKING
from runtime.training.evaluation import Evaluator


class EnvironmentTasks:
    """Tasks with an environment of `make_environment`, whose arguments it takes.

    Attributes:
        unclear: Tasks whose errors do not name the environment.
    """

    unclear = ("play", "go_on")

    def __init__(self, say: Callable[[str, Any], None], *made: Any) -> None:
        """Takes the function that sends a message, and the arguments."""
        self._made = made
        self._say = say
        self._spare: list[_Reporting] = []
        self._evaluate: Evaluator | None = None
        self._playing: Any = None

    def _make(self) -> Any:
        if self._spare:
            return self._spare.pop()
        self._say("doing", MAKING)
        return _Reporting(make_environment(*self._made), self._say)

    def make(self) -> dict[str, Any]:
        """Makes the environment; returns its properties."""
        environment = self._make()
        self._spare.append(environment)
        return trial.facts(environment) | {"spaces": dataclasses.asdict(environment.spaces)}

    def play(self, steps: int) -> dict[str, Any]:
        """Plays, measures the seconds of a step as `lambda_actor.waiting` does, and keeps the environment."""
        self._playing = self._make()
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        with waits.counted():
            played = trial.play(self._playing, self._make, steps=steps)
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        waited_s = waits.take()
        if waited_s is None:
            waited_s = wall_s - cpu_s
        steps = max(1, _Reporting.steps_total)
        return played | {"step_s": (cpu_s + waited_s) / steps, "wait_s": waited_s / steps}

    def go_on(self, **played: Any) -> dict[str, str]:
        """Continues the episode of another process."""
        return trial.go_on(self._make(), **played)

    def evaluate(self, weights: str, fresh: int | None, **settings: Any) -> dict[str, Any]:
        """Evaluates a policy, a WEIGHTS message in Base64; the rest are arguments of `Evaluator`."""
        began_s = time.process_time()
        if self._evaluate is None:
            self._evaluate = Evaluator(make_environment(*self._made), **settings)
        self._say("doing", "being evaluated")
        evaluation = self._evaluate(base64.b64decode(weights), fresh=fresh)
        seconds = time.process_time() - began_s
        return vars(evaluation) | {"seconds": seconds, "memory_bytes": machine.own_memory_bytes()}


class _Reporting:
    """An environment that reports each call before it makes it, and counts the steps of all."""

    steps_total = 0

    def __init__(self, environment: ActorEnvironment, say: Callable[[str, Any], None]) -> None:
        self._environment = environment
        self._say = say
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, seed: int) -> np.ndarray:
        self._step = 0
        self._say("doing", f"in reset(seed={seed})")
        return self._environment.reset(seed)

    def close(self) -> None:
        self._say("doing", "in close()")
        self._environment.close()

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        self._step += 1
        _Reporting.steps_total += 1
        self._say("doing", f"in step {self._step} of an episode")
        return self._environment.step(action)
