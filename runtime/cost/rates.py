"""Converts counted work to billed seconds: seconds per unit of work from a dated table, and machine speeds.

A modelled bill must not grow because a machine is busy. So it counts work (environment steps, samples of updates,
Hessian-vector products) and multiplies it by the CPU seconds of one unit on the machine that made the table
(`rates.json`, by benchmarks/work_rates.py), divided by the billed machine's speed. A workload without a table entry is
measured once: its first update, for example, gives the seconds per sample for the rest of the run.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from runtime.config.resolved import FittedExperiment
from runtime.cost.model import INIT_SECONDS_MAX, vcpu_share
from runtime.errors import RunDirectoryError
from runtime.ports.money import WorkTimes
from runtime.records.files import to_json, write_atomically
from runtime.settings.instances import has_gpu
from runtime.settings.section import Field, Section, read_tree
from runtime.settings.updater import COORDINATOR_MEMORY_MIB, functions_of

UNITS: Final = {
    "init_s": "an actor's cold start: its imports, and its environment",
    "invocation_s": "an invocation of an actor, whatever its length: fetching, encoding, submitting",
    "step_s": "a step of an actor, its policy included",
    "evaluated_step_s": "a step of an evaluation",
    "gradient_step_s": "a gradient step, whatever its size",
    "sample_s": "a sample of a gradient step",
    "product_sample_s": "a sample of a Hessian-vector product",
}
"""The units of work, each in CPU seconds of one core."""
WAIT: Final = "wait_s"
"""Seconds that a step waits for something other than a CPU, the same on any machine. Only an environment that is
measured here has them; the table does not. See `lambda_actor.waiting`."""
TABLE_PATH: Final = Path(__file__).with_name("rates.json")
LEARNER_INIT_S: Final = 1.9
"""CPU seconds of a learner function's start-up: importing torch and the learner. Measured on the machine of the table,
2026-11-23, 1.7 to 2.4 in three processes. MinionsRL's paper says 1.5 s for a container with a GPU."""
BUCKET_REQUEST_S: Final = 0.1
"""Reading or writing a small object: S3's performance guide says 100 to 200 ms to the first byte. **Modelled.**"""
POLICY_SHARE: Final = 0.15
"""Time of a sample's ratio to one policy, relative to a sample of a gradient step: 0.144 and 0.153 in minibatches of
128 and 1,024 of Hopper, measured on the machine of the table, 2026-11-23."""
GRADIENT_EXTRA_S: Final = 0.013
"""CPU seconds of a gradient in addition to its samples, for loading policies and for messages. It is the part of
papers/stellaris/hopper_durations.json that does not grow with samples: 0.019 s on a busy machine, divided by 1.47, the
factor by which the rest is slower than the table."""
_FUNCTION_REQUESTS: Final = 2
"""A warm update reads the batch and writes the result. A gradient reads all its policies at once and writes itself."""
_LOOP_REQUESTS: Final = 2
"""The loop writes the batch and reads the result; before gradients, it writes samples and a policy. For each gradient,
it reads the gradient and writes the next policy."""
_EPISODE_STEPS: Final = 1000
MEASURED: Final = "measured on this machine"
LAMBDA_SPEED: Final = 0.68
"""Speed of one vCPU of AWS Lambda, x86_64 or arm64. arm64 is Graviton2; AWS says that Graviton3 is 25 %
faster. Published comparisons of x86_64 and Graviton2 differ by -16 to +19 %, so they have the same speed here."""
INSTANCE_SPEEDS: Final = {
    "c7i": 1.0,
    "m7i": 1.0,
    "c7a": 0.81,
    "c7g": 0.85,
    "m7g": 0.85,
    "c8g": 1.1,
    "c5": 0.76,
    "g4dn": 0.76,
    "g5": 0.76,
    "g6": 0.87,
    "p3": 0.65,
    "p4d": 0.76,
}
"""Speed of one vCPU, by family; 1 for others. The machine of the table counts as a c7i. The rest follows from AWS'
comparisons of generations: c7i 15 % above c6i, c6i 15 % above c5, Graviton4 30 % above Graviton3, and c7a 50 % above
c6a. c6a is taken as 0.62 of a c6i, since a c6a's vCPUs share cores and a c7a's do not. **Modelled.**"""
GPU_SPEEDS: Final = {"g4dn": 30.0, "g5": 117.0, "g6": 114.0, "p3": 59.0, "p4d": 73.0}
"""Speed of convolutions on one GPU, by family: 30 % of its published float32 TFLOPS (8.1, 31.2, 30.3, 15.7, 19.5),
divided by 80 GFLOPS of a core. **Modelled.**"""


def lambda_speed(memory_mib: int) -> float:
    """Returns the speed of a single-threaded function, relative to the machine of the table."""
    return vcpu_share(memory_mib) * LAMBDA_SPEED


def instance_speed(instance_type: str) -> float:
    """Returns the speed of one vCPU of an instance, relative to the machine of the table."""
    return INSTANCE_SPEEDS.get(instance_type.partition(".")[0], 1.0)


def samples_speed(instance_type: str, *, network: str) -> float:
    """Returns an instance's speed for gradients and Hessian-vector products, relative to the machine of the table."""
    family = instance_type.partition(".")[0]
    if network != "mlp" and has_gpu(instance_type):
        return GPU_SPEEDS.get(family, GPU_SPEEDS["g4dn"])
    return instance_speed(instance_type)


@cache
def table() -> Mapping[str, Any]:
    """Returns `rates.json`: ``as_of``, ``commit``, ``machine``, and by workload the seconds of each unit."""
    found: Mapping[str, Any] = json.loads(TABLE_PATH.read_bytes())
    return found


def workload(experiment: FittedExperiment) -> str:
    """Returns the workload's name, made of all settings that determine the time of a unit of work."""
    environment = experiment.environment
    made = (
        f"{environment.id} {json.dumps(environment.options)}"
        if environment.options
        else environment.id
    )
    return f"{made} {environment.preprocessing} {experiment.network.architecture} {experiment.algorithm.kind}"


def tabled(experiment: FittedExperiment) -> Mapping[str, float]:
    """Returns the seconds of each unit of an experiment's work; empty if the table does not have it.

    The table is for one thread of one process. Two threads count as one, because the vCPUs of a small instance share a
    core.
    """
    learner = experiment.learner
    if learner.threads > 2 or not learner.is_tabled:
        return {}
    found: Mapping[str, float] = table()["workloads"].get(workload(experiment), {})
    return found


def detector_products(experiment: FittedExperiment) -> int:
    """Returns the most Hessian-vector products, or equally long work, that a round measures; 0 if it measures none."""
    return experiment.detector.lanczos_steps * bool(experiment.scaler.signals)


def init_s(experiment: FittedExperiment, units: Mapping[str, float]) -> float:
    """Returns the longest start-up of an actor that is billed: the table's, if it has one."""
    if "init_s" not in units:
        return INIT_SECONDS_MAX
    return min(INIT_SECONDS_MAX, units["init_s"] / lambda_speed(experiment.actor.memory_mib))


class _Kept(Section):
    """The file of a run's rates; a unit takes at most the longest allowed ``learner.update_timeout_s``."""

    source: str
    units: Mapping[
        Annotated[str, Field(pattern=f"^({'|'.join((*UNITS, WAIT))})$")],
        Annotated[float, Field(ge=0, le=86_400)],
    ]


class Rates:
    """Seconds of each unit of a run's work. Unknown units are measured when first needed, and then kept.

    Attributes:
        source: Source of the rates, for people.
        units: The seconds by name; see `UNITS`.
    """

    def __init__(self, source: str, units: Mapping[str, float], path: Path | None) -> None:
        """Reads the rates from ``path`` if it exists, or takes these and stores them there.

        Args:
            path: The run's file; None to store nothing.

        Raises:
            RunDirectoryError: The file does not hold rates.
        """
        self.source, self.units, self._path = source, dict(units), path
        if path is not None and path.exists():
            self._load(path)

    def known(self, unit: str, measured_s: float, count: float) -> float:
        """Returns the seconds of a unit; if unknown, ``measured_s`` divided by ``count``."""
        if unit not in self.units:
            self.units[unit] = measured_s / count
            self.save()
        return self.units[unit]

    def save(self) -> None:
        """Writes the run's file."""
        if self._path is not None:
            write_atomically(self._path, to_json({"source": self.source, "units": self.units}))

    def _load(self, path: Path) -> None:
        try:
            found = read_tree(_Kept, json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise RunDirectoryError(f"{path} does not hold the rates of a bill: {error}") from None
        self.source, self.units = found.source, dict(found.units)


class ModelledTimes(WorkTimes):
    """Seconds of the learner's work on the billed instance."""

    def __init__(self, rates: Rates, experiment: FittedExperiment, instance_type: str) -> None:
        """Takes the rates and the experiment.

        Args:
            experiment: Determines how often and in which minibatches an update trains on a sample.
            instance_type: Type of the billed learner.
        """
        self._rates, self._experiment = rates, experiment
        algorithm = experiment.algorithm
        self._passes, self._minibatch_steps = algorithm.passes, algorithm.minibatch_steps
        self._speed = self._step_speed = instance_speed(instance_type)
        self._samples_speed = self._product_speed = samples_speed(
            instance_type, network=experiment.network.kind
        )

    def expected_s(self) -> dict[str, float]:
        """Returns expected seconds from the table; an evaluation has a confirmation and 1,000 steps an episode."""
        units, experiment, actor = self._rates.units, self._experiment, self._experiment.actor
        if not units.keys() >= UNITS.keys():
            return {}
        actor_s = (units["invocation_s"] + actor.fragment_steps * units["step_s"]) / lambda_speed(
            actor.memory_mib
        )
        return {
            "actor_s": actor_s,
            "collect_s": actor_s + init_s(experiment, units),
            "sample_s": self.update_s(actor.fragment_steps, 0.0) / actor.fragment_steps,
            "detect_s": self.detect_s(
                detector_products(experiment), experiment.detector.subset_size, 0.0
            ),
            "evaluate_s": self.evaluate_s(2 * experiment.evaluation.episodes * _EPISODE_STEPS, 0.0),
        }

    def update_s(self, samples: int, measured_s: float) -> float:
        """Returns the seconds of an update: its gradient steps, and each of their samples."""
        trained = self._passes * samples
        per_sample_s = self._rates.known("sample_s", measured_s, max(1, trained))
        steps = self._passes * math.ceil(samples / self._minibatch_steps)
        return (
            steps * self._rates.units.get("gradient_step_s", 0.0) / self._step_speed
            + trained * per_sample_s / self._samples_speed
        )

    def detect_s(self, products: int, samples: int, measured_s: float) -> float:
        """Returns the seconds of detection, by the samples of all products."""
        count = products * samples
        if not count:
            # The detector does not count its work.
            return measured_s
        return (
            count * self._rates.known("product_sample_s", measured_s, count) / self._product_speed
        )

    def evaluate_s(self, steps: int, measured_s: float) -> float:
        """Returns the seconds of an evaluation, by its steps, which wait as an actor's do."""
        return steps * (
            self._rates.known("evaluated_step_s", measured_s, max(1, steps)) / self._speed
            + self._rates.units.get(WAIT, 0.0)
        )


class FunctionTimes(ModelledTimes):
    """Seconds of a learner function, and of the function that runs the loop.

    Attributes:
        init_s: A start-up of the learner function.
    """

    def __init__(self, rates: Rates, experiment: FittedExperiment) -> None:
        """Takes the rates and the experiment; see `ModelledTimes`."""
        super().__init__(rates, experiment, experiment.learner.instance_types[0])
        function = functions_of(experiment.learner)
        self._speed = self._product_speed = lambda_speed(COORDINATOR_MEMORY_MIB)
        self._step_speed = self._samples_speed = lambda_speed(function.function_memory_mib)
        self.init_s = min(INIT_SECONDS_MAX, LEARNER_INIT_S / self._step_speed)
        self._taken_s: defaultdict[int, float] = defaultdict(float)

    def function_s(
        self, samples: int, measured_s: float, *, policies: int = 0, is_first: bool = True
    ) -> float:
        """Returns the seconds of an invocation, without a start-up.

        Args:
            samples: Number of samples it trains on.
            measured_s: CPU seconds that it took here.
            policies: Number of other policies it also compares with.
            is_first: Whether this may be the first invocation of its process, which takes longer.
        """
        return super().update_s(samples, measured_s) + _FUNCTION_REQUESTS * BUCKET_REQUEST_S

    def update_s(self, samples: int, measured_s: float) -> float:
        """Returns the seconds of the loop, which waits for the function, its start-ups and failures."""
        waited_s = max(self._taken_s.values(), default=self.function_s(samples, measured_s))
        self._taken_s.clear()
        return waited_s + _LOOP_REQUESTS * BUCKET_REQUEST_S

    def invocations(self, samples: int) -> int:
        """Returns the number of invocations for an update on this many samples."""
        return 1

    def took(self, seconds: float, slot: int = 0) -> None:
        """Records an invocation of the next update, with its start-up.

        Args:
            slot: The learner's index, from 0.
        """
        self._taken_s[slot] += seconds


class GradientTimes(FunctionTimes):
    """Seconds of learner functions that compute gradients at the same time (Stellaris).

    An update takes as long as its busiest learner, whose gradients the loop handles one by one, and at least the time
    that the loop needs to handle all gradients.
    """

    def __init__(self, rates: Rates, experiment: FittedExperiment) -> None:
        """Takes the rates and the experiment; see `ModelledTimes`."""
        super().__init__(rates, experiment)
        self._learners, self._handled = experiment.learner.functions_at_once, 0
        self._handle_s = _LOOP_REQUESTS * BUCKET_REQUEST_S

    def function_s(
        self, samples: int, measured_s: float, *, policies: int = 0, is_first: bool = True
    ) -> float:
        """Returns the seconds of one gradient, of at most the algorithm's minibatch; see `FunctionTimes.function_s`."""
        units, count = self._rates.units, min(samples, self._minibatch_steps)
        if "sample_s" in units or not is_first:
            passed = count * (1.0 + policies * POLICY_SHARE)
            seconds = (
                units.get("gradient_step_s", 0.0)
                + GRADIENT_EXTRA_S
                + passed * self._rates.known("sample_s", measured_s, passed)
            )
        else:
            seconds = measured_s
        return seconds / self._samples_speed + _FUNCTION_REQUESTS * BUCKET_REQUEST_S

    def update_s(self, samples: int, measured_s: float) -> float:
        """Returns the seconds of the loop; the expected time if no gradient has been recorded."""
        handle_s = self._handle_s
        if self._taken_s:
            busy_s = max(self._taken_s.values())
        else:
            self._handled = self.invocations(samples)
            gradient_s = self.function_s(samples, 0.0, policies=self._learners)
            busy_s = math.ceil(self._handled / self._learners) * (gradient_s + handle_s)
        waited_s = max(busy_s, self._handled * handle_s)
        self._taken_s.clear()
        self._handled = 0
        return waited_s + handle_s

    def invocations(self, samples: int) -> int:
        """Returns the number of gradients for an update on this many samples."""
        return self._passes * math.ceil(samples / self._minibatch_steps)

    def took(self, seconds: float, slot: int = 0) -> None:
        """Records an invocation like `FunctionTimes.took`, with the loop's handling of it."""
        super().took(seconds + self._handle_s, slot)
        self._handled += 1


def make_times(
    rates: Rates, experiment: FittedExperiment, instance_type: str | None = None
) -> ModelledTimes:
    """Makes the times of an experiment's learner.

    Args:
        instance_type: The learner's; None for the first of ``learner.instance_types``.
    """
    if not experiment.learner.has_instance and not experiment.learner.is_external:
        return (GradientTimes if experiment.learner.has_gradients else FunctionTimes)(
            rates, experiment
        )
    return ModelledTimes(rates, experiment, instance_type or experiment.learner.instance_types[0])


def make_rates(experiment: FittedExperiment, path: Path) -> Rates:
    """Makes the rates of a run: its stored ones, or the table's, or none yet.

    Raises:
        RunDirectoryError: Its file cannot be used.
    """
    units, about = tabled(experiment), table()
    return Rates(
        f"table of {about['as_of']}, commit {about['commit']}" if units else MEASURED, units, path
    )
