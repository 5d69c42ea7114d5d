"""Measures the CPU seconds of each unit of an experiment's work on one thread.

``init_s`` is an actor's cold start, ``invocation_s`` an invocation of whatever length, ``step_s`` a step with its
policy, ``evaluated_step_s`` one of an evaluation, ``gradient_step_s`` a gradient step of whatever size, ``sample_s`` a
sample of one, and ``product_sample_s`` a sample of a Hessian-vector product.

It also measures a step's wait, and two further units: ``trajectory_s``, decoding a trajectory and putting it
into a batch, and ``round_s``, the checkpoint of a round.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.errors import ActorError
from lambda_actor.handler import handler
from lambda_actor.inline import from_text, to_text
from lambda_actor.waiting import waits
from runtime.config.resolved import ResolvedExperiment
from runtime.errors import ExperimentError, RunError, one_line
from runtime.ports.learning import Batch, DetectorSamples
from runtime.processes.child import Child, how_it_ended
from runtime.processes.inside import connect
from runtime.records.checkpoint import Checkpoint, save_checkpoint
from runtime.records.downloaded import load_trusted_experiment
from runtime.training.evaluation import Evaluator

WAIT = "wait_s"
"""Seconds that a step waits for something other than a CPU, the same on any machine."""
_START = """
import json, sys, time
from lambda_actor.handler import handler
from lambda_actor.environments import make_environment
make_environment(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
print(time.process_time())
"""
_EVALUATION_EPISODES, _EPISODE_STEPS, _PROBE_STEPS = 3, 1000, 8


@dataclass(frozen=True)
class Sizes:
    """Amounts of training data for measuring a unit; pixels take a hundred times longer than vectors.

    Attributes:
        samples: Samples of an update.
        minibatches: A small and a large minibatch; the difference separates the cost of steps and of samples.
        fragment_steps: Steps of the fragments that are trained on.
        detector_samples: Most samples of a Hessian-vector product.
    """

    samples: int
    minibatches: tuple[int, int]
    fragment_steps: int
    detector_samples: int


VECTORS, PIXELS = Sizes(2048, (64, 1024), 64, 2048), Sizes(256, (32, 256), 32, 64)


@dataclass
class Workload:
    """Samples the work of an experiment, part by part.

    Attributes:
        experiment: Fitted to its environment.
        seconds: Measured CPU seconds of a unit, by its name.
        message_bytes: Size of the weights and a trajectory of one fragment.
        playing_s: Seconds by the clock that actors and evaluations may play each time; a slow environment takes fewer
            steps.
        wall: Monotonic seconds.
        has_unknown_waits: Whether the environment may have waited, for an unknown time.
    """

    resolved: InitVar[ResolvedExperiment]
    clock: Callable[[], float] = time.process_time
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    message_bytes: int = 0
    playing_s: float = math.inf
    wall: Callable[[], float] = time.monotonic
    has_unknown_waits: bool = False

    def __post_init__(self, resolved: ResolvedExperiment) -> None:
        """Makes an environment and a learner, and samples training data with actors."""
        section = resolved.environment
        self.environment = make_environment(section.id, section.preprocessing, section.options)
        self.experiment = resolved.fitted(
            self.environment.spaces, preprocessing=self.environment.preprocessing
        )
        self._sizes = PIXELS if self.environment.spaces.is_pixels else VECTORS
        self._learners = {
            minibatch: self._make_learner(minibatch) for minibatch in self._sizes.minibatches
        }
        self._weights = next(iter(self._learners.values())).weights()
        self._round_index = 0

    def units(self) -> Mapping[str, float]:
        """Returns the medians of the measurements."""
        return {
            unit: statistics.median(seconds) for unit, seconds in self.seconds.items() if seconds
        }

    def measure(self) -> None:
        """Measures each unit once more."""
        self._round_index += 1
        self._start()
        self._act()
        self._evaluate()
        samples = self._learn()
        self._detect(samples)
        self._save()

    def _note(self, unit: str, seconds: float) -> None:
        self.seconds[unit].append(max(0.0, seconds))

    def _start(self) -> None:
        section = self.experiment.environment
        arguments = [section.id, section.preprocessing, json.dumps(section.options)]
        done = subprocess.run(
            [sys.executable, "-c", _START, *arguments], check=True, capture_output=True, text=True
        )
        self._note("init_s", float(done.stdout.split()[-1]))

    def _act(self) -> None:
        steps = self.experiment.actor.fragment_steps
        self._fragment(1)  # Makes the environment, if it is not there yet.
        probe, began_s = min(steps, _PROBE_STEPS), self.wall()
        self._fragment(probe)
        self._step_wall_s = (self.wall() - began_s) / probe
        steps = self._affordable(steps)
        few = max(1, steps // 8)
        waits.take()
        few_s, all_s = (self._timed(partial(self._fragment, length)) for length in (few, steps))
        waited_s = waits.take()
        self.has_unknown_waits |= waited_s is None
        self._note(WAIT, (waited_s or 0.0) / (few + steps))
        step_s = (all_s - few_s) / (steps - few) if steps > few else all_s / steps
        if step_s <= 0.0:
            step_s = all_s / steps
        self._note("step_s", step_s)
        self._note("invocation_s", all_s - steps * step_s)

    def _evaluate(self) -> None:
        longest = min(self.environment.episode_steps_max or _EPISODE_STEPS, _EPISODE_STEPS)
        if _EVALUATION_EPISODES * longest * self._step_wall_s > self.playing_s:
            # Whole episodes take too long. Its steps are much like an actor's.
            self._note("evaluated_step_s", self.seconds["step_s"][-1])
            return
        evaluate = Evaluator(self.environment, _EVALUATION_EPISODES, seed=self._round_index)
        started_s = self.clock()
        evaluation = evaluate(self._weights)
        self._note("evaluated_step_s", (self.clock() - started_s) / sum(evaluation.lengths))

    def _learn(self) -> DetectorSamples:
        sizes, passes = self._sizes, self.experiment.algorithm.passes
        batch = self._batch()
        taken_s: list[float] = []
        for learner in self._learners.values():
            started_s = self.clock()
            update = learner.update(batch, progress=0.0)
            taken_s.append(self.clock() - started_s)
        steps = [passes * math.ceil(batch.env_steps / minibatch) for minibatch in sizes.minibatches]
        step_s = max(0.0, (taken_s[0] - taken_s[1]) / (steps[0] - steps[1]))
        self._note("gradient_step_s", step_s)
        self._note("sample_s", (taken_s[1] - steps[1] * step_s) / (passes * batch.env_steps))
        samples: DetectorSamples = update.samples
        return samples

    def _detect(self, samples: DetectorSamples) -> None:
        from runtime.detector.convexity import ConvexityDetector

        settings = self.experiment.detector
        detector = ConvexityDetector(
            settings.objective,
            min(settings.subset_size, self._sizes.detector_samples),
            settings.lanczos_steps,
            seed=self._round_index,
        )
        subset = detector.select(samples)
        learner: Any = next(iter(self._learners.values()))
        problem = learner.curvature_problem(settings.objective, subset)
        started_s = self.clock()
        curvature = detector.measure(problem)
        self._note(
            "product_sample_s",
            (self.clock() - started_s) / (max(1, curvature.products) * len(subset.advantages)),
        )

    def _save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            started_s = self.clock()
            state = next(iter(self._learners.values())).get_state()
            save_checkpoint(Path(folder), Checkpoint(1, state.arrays, {}))
            self._note("round_s", self.clock() - started_s)

    def _affordable(self, steps: int) -> int:
        """Returns a fragment's steps, or fewer if they would take more than half of the time for playing."""
        return int(min(steps, max(_PROBE_STEPS, self.playing_s / 2 / max(self._step_wall_s, 1e-9))))

    def _timed(self, work: Callable[[], Any]) -> float:
        started_s = self.clock()
        work()
        return self.clock() - started_s

    def _fragment(self, steps: int, slot: int = 0) -> Mapping[str, Any]:
        """Samples a fragment with an actor, like AWS Lambda, and returns its response."""
        section, learner = self.experiment.environment, next(iter(self._learners.values()))
        event = {
            "run_id": f"plan {section.id}",
            "cache_url": "",
            "cache_credential": "",
            "cache_ttl_s": 60,
            "stop_digest": "",
            "invocation_id": f"r{self._round_index}-{slot}",
            "environment_id": section.id,
            "preprocessing": section.preprocessing,
            "truncate_at_fragment": section.truncate_at_fragment,
            "fragment_steps": steps,
            "policy_version": learner.policy_version,
            "seed": self.experiment.seed,
            "round_index": self._round_index,
            "slot": slot,
            "episode_id": "",
            "weights": to_text(self._weights),
            "episode": "",
            "environment_options": section.options,
        }
        try:
            return handler(event, None)
        except ActorError:
            raise
        except (Exception, SystemExit) as error:
            raise ExperimentError(
                f"environment.id = {section.id!r} failed while its work was sampled: "
                f"{one_line(f'{type(error).__name__}: {error}')}"
            ) from error

    def _batch(self) -> Batch:
        from runtime.learner.batch import assemble_batch

        sizes, spaces = self._sizes, self.environment.spaces
        kind = wire.Kind.FRAME_TRAJECTORY if spaces.is_pixels else wire.Kind.TRAJECTORY
        steps = self._affordable(sizes.fragment_steps)
        count, until_s = sizes.samples // steps, self.wall() + self.playing_s / 2
        messages: list[bytes] = []
        while not messages or (len(messages) < count and self.wall() < until_s):
            messages.append(from_text(self._fragment(steps, len(messages))["trajectory"]))
        messages = list(islice(cycle(messages), count))
        self.message_bytes = len(self._weights) + round(
            len(messages[0]) * self.experiment.actor.fragment_steps / steps
        )
        started_s = self.clock()
        batch = assemble_batch(
            [wire.decode(message, kind) for message in messages],
            spaces,
            clip_rewards=self.experiment.environment.clip_rewards,
        )
        self._note("trajectory_s", (self.clock() - started_s) / len(messages))
        return batch

    def _make_learner(self, minibatch: int) -> Any:
        from runtime.learner import LearnerSpec, make_learner

        algorithm = self.experiment.algorithm.model_copy(update={"minibatch_steps": minibatch})
        network = self.experiment.network
        return make_learner(
            LearnerSpec(
                algorithm,
                self.environment.spaces,
                network.architecture,
                self.experiment.seed,
            ),
            device="cpu",
        )


def sample(path: Path, overrides: Sequence[str], seconds: int) -> dict[str, Any]:
    """Samples the work of an experiment in a separate process, because an environment may end its process.

    `preflight` has tried it: to do that here again would take as long as the sampling if the environment is slow.

    Args:
        path: The experiment file.
        overrides: ``SECTION.KEY=VALUE``, as on the command line.
        seconds: Duration; each unit is measured at least once.

    Returns:
        ``units`` and ``message_bytes`` of `Workload`, and ``fragment_steps`` of the trajectory.

    Raises:
        ExperimentError: It cannot be sampled, or the process ended without an answer.
    """
    child = Child(
        "runtime.planning.workload",
        str(seconds),
        str(path),
        *overrides,
        output=None,
        variables={"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")},
    )
    try:
        # Wait for the process, not the connection: a process started by the environment may hold the other end.
        child.wait()
    finally:
        code = child.end()
    with child.connection, suppress(EOFError):
        found: dict[str, Any] = json.loads(
            child.connection.recv_bytes() if child.connection.poll() else b"{}"
        )
        if "error" in found:
            raise ExperimentError(found["error"])
        if found:
            return found
    raise ExperimentError(
        f"the process that sampled the work of {path} ended by itself ({how_it_ended(code)}): something in it, "
        "such as the environment, ended it; allowed: an environment that raises exceptions"
    )


def main(control_fd: int, seconds: int, path: Path, overrides: Sequence[str]) -> None:
    """Samples, and answers with the result, or an ``error``, as JSON."""
    connection, _ = connect(control_fd)
    try:
        resolved = load_trusted_experiment(path, overrides).resolved()
        answer = _sampled(Workload(resolved, playing_s=seconds / 4), seconds)
    except (RunError, ActorError) as error:
        answer = {"error": str(error)}
    connection.send_bytes(json.dumps(answer).encode())


def _sampled(work: Workload, seconds: int) -> dict[str, Any]:
    """Measures each unit until the time is over; the first round only warms up, if there is a second."""
    began_s = time.monotonic()
    until_s = began_s + seconds
    work.measure()
    last_s = time.monotonic() - began_s
    if time.monotonic() < until_s:
        work.seconds.clear()
        work.measure()
    while (began_s := time.monotonic()) + last_s <= until_s:
        work.measure()
        last_s = time.monotonic() - began_s
    return {
        "units": dict(work.units()),
        "message_bytes": work.message_bytes,
        "fragment_steps": work.experiment.actor.fragment_steps,
        "has_unknown_waits": work.has_unknown_waits,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
