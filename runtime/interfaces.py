"""The vocabulary: the small interfaces through which the parts of a run know each other.

Shape letters, used everywhere: ``T`` steps of a fragment, ``B`` trajectories of a batch, ``N`` = T·B samples,
``O`` observation size, ``A`` action size, ``D`` parameters of a distribution over actions, ``P`` of a network.
``…`` stands for the rest of an observation's shape: ``O``, or ``F·C, H, W`` of stacked frames (see
`lambda_actor.spaces.Spaces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch

    from lambda_actor.spaces import Spaces
    from runtime.config.resolved import FittedExperiment
    from runtime.config.schema import Experiment
    from runtime.cost.meter import Meter
    from runtime.cost.prices import PriceTable
    from runtime.cost.rates import WorkTimes
    from runtime.records.events import EventLog
    from runtime.records.rows import RoundRow
    from runtime.records.run_directory import RunDirectory


@dataclass(frozen=True)
class Invocation:
    """One actor to start.

    Attributes:
        event: What its handler receives (JSON values only).
        timeout_s: The most seconds that it is billed for, without its start-up; a fleet's own limit may be shorter.
        replayed_steps: Steps of its open episode that it takes again.
    """

    invocation_id: str
    event: Mapping[str, Any]
    timeout_s: float = math.inf
    replayed_steps: int = 0


OutcomeStatus = Literal["ok", "error", "crashed", "timeout", "abandoned"]


@dataclass(frozen=True)
class Outcome:
    """How one invocation ended.

    Attributes:
        status: ``ok`` (the handler returned), ``error`` (it raised), ``crashed`` (its process died), ``timeout``,
            ``abandoned`` (the round no longer waited for it).
        response: The handler's return value where ``ok``.
        error: What went wrong, for people, else empty.
        was_started: False where it was given up before it began: then it costs nothing.
        billed_s: Billed duration in seconds; without start-up, unless it is metered.
        init_s: Billed duration of a cold start: where it is metered, what this actor had of it, contained in
            ``billed_s``; else what it would have, were it to start cold.
        is_metered: Whether the platform said what it bills; else ``billed_s`` is modelled, or an upper bound.
        cpu_s, init_cpu_s: Measured CPU seconds of it, if it made no environment, and of its start-up, if known.
    """

    invocation_id: str
    status: OutcomeStatus
    response: Mapping[str, Any] | None = None
    error: str = ""
    was_started: bool = True
    billed_s: float = 0.0
    init_s: float = 0.0
    is_metered: bool = False
    cpu_s: float = 0.0
    init_cpu_s: float = 0.0


class Fleet(Protocol):
    """Where actors run."""

    concurrency: int
    """Invocations that really run at once; more are queued."""

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these actors, or queues them; returns at once."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        """What ended since the last call; waits until there is something, at most ``timeout_s``."""

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Gives these up: each still open one ends, soon, with an outcome of its own."""

    def close(self) -> None:
        """Ends everything; idempotent."""


class EventSink(Protocol):
    """Records what happens besides finished rounds."""

    def append(self, kind: str, **fields: Any) -> None:
        """Records one event; ``fields`` are JSON values."""


class Cache(Protocol):
    """The learner's side of the trajectory cache (see `lambda_actor.cache.TrajectoryCache`)."""

    def publish_weights(self, policy_version: int, weights: bytes) -> None: ...

    def forget_weights(self, policy_version: int) -> None: ...

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None: ...

    def discard_episodes(self, episode_ids: Sequence[str]) -> None: ...

    def expect(self, invocation_ids: Sequence[str]) -> None: ...

    def take(self, invocation_id: str) -> bytes | None: ...


Trajectory = Mapping[str, np.ndarray]
"""A decoded trajectory message: the fields of `lambda_actor.wire`'s schema by name."""


@dataclass(frozen=True)
class OpenEpisodeRecord:
    """An open episode that waits for an actor: its id and its EPISODE message."""

    episode_id: str
    data: bytes = field(repr=False)

    @property
    def steps(self) -> int:
        """Its steps until now."""
        from lambda_actor.rollout import OpenEpisode

        return OpenEpisode.from_bytes(self.data).length


@dataclass(frozen=True)
class ActorSpec:
    """What actors of one policy version have in common.

    Attributes:
        event: The event but for ``invocation_id``, ``slot`` and ``episode_id``.
        spaces: What the arrays of its trajectory must fit.
        weights_bytes: Size of the weights that it fetches.
        timeout_s: Longest time that it is billed for, without its start-up.
    """

    event: Mapping[str, Any]
    spaces: Spaces
    weights_bytes: int
    timeout_s: float


@dataclass(frozen=True)
class Actor:
    """One actor to start.

    Attributes:
        work: What the meter knows it by: the slot that it fills, and the try for that slot.
        number: The ``slot`` of its event and its trajectory: together with the round it decides its random numbers.
        episode: The open episode that it continues; None for a fresh start.
    """

    invocation_id: str
    spec: ActorSpec
    work: Work
    number: int
    episode: OpenEpisodeRecord | None = None

    @property
    def episode_id(self) -> str:
        """The id of the episode that it continues; empty for a fresh start."""
        return self.episode.episode_id if self.episode else ""

    @property
    def replayed_steps(self) -> int:
        """Steps that it takes again to get to where its episode was left open; a process that left it there, fewer."""
        return self.episode.steps if self.episode and self.spec.event.get("replay") else 0

    @property
    def policy_version(self) -> int:
        """The version of the policy that it rolls out."""
        return int(self.spec.event["policy_version"])

    @property
    def invocation(self) -> Invocation:
        """What a fleet starts."""
        return Invocation(self.invocation_id, {
            **self.spec.event, "invocation_id": self.invocation_id, "slot": self.number,
            "episode_id": self.episode_id}, self.spec.timeout_s, self.replayed_steps)


@dataclass(frozen=True)
class Ended:
    """An actor that ended, with its bill.

    Attributes:
        trajectory: Decoded and checked; None if none was accepted, or it was delivered before.
        reason: Why there is no trajectory.
        seconds: Billed seconds, a cold start included; None if it never started.
        was_given_up: Whether nobody waited for it any more.
        was_delivered: Whether `Sampler.deliver` handed its trajectory in before it ended.
    """

    actor: Actor
    outcome: Outcome
    trajectory: Trajectory | None
    reason: str
    seconds: float | None
    was_given_up: bool = False
    was_delivered: bool = False


class Sampler(Protocol):
    """Brings trajectories: starts actors with published weights, and hands in what ended."""

    @property
    def concurrency(self) -> int:
        """Actors that really run at once; more are queued."""

    @property
    def in_flight(self) -> Mapping[str, Actor]:
        """Actors that have not ended, by invocation id, in the order in which they started."""

    @property
    def awaited(self) -> list[Actor]:
        """Actors in flight whose trajectories may still come, in the order in which they started."""

    def publish(self, policy_version: int, weights: bytes) -> None:
        """Makes a policy available to the actors that are started next, and drops those that none needs."""

    def start(self, actors: Sequence[Actor]) -> None:
        """Starts actors, or queues them; their worst cases are reserved already."""

    def next(self, timeout_s: float) -> Ended | None:
        """The next actor that ended, billed; None if none does within ``timeout_s``."""

    def deliver(self, actor: Actor) -> Trajectory | None:
        """The trajectory of an actor that need not be awaited any longer, if it is there already; else gives it up.

        In both cases the actor's end is still to come.

        Raises:
            WireError: It is there, but cannot be used.
        """

    def give_up_all(self) -> Iterator[Ended]:
        """Gives up all actors in flight; yields each as it ends."""

    def tidy(self) -> int:
        """Forgets what no actor in flight needs; returns how many trajectories have come too late since."""


@dataclass(frozen=True)
class Batch:
    """What accepted actors sampled: a round's in slot order, or those of an asynchronous update as they came.

    A trajectory of fewer than ``T`` steps is followed by padding: zeros, which belong to nothing.

    Attributes:
        policy_versions: The version that acted, int64 ``[B]``.
        lengths: Steps of each trajectory, int64 ``[B]``.
        observations: Raw, float32 ``[T, B, O]``, or uint8 ``[T, B, F·C, H, W]`` or ``[T, B, 1, 1, Y]``.
        actions: As sampled, before the environment clipped them, float32 ``[T, B, A]``; discrete ones int64 ``[T, B]``.
        log_probs: log μ(a|s) of the acting policy, float32 ``[T, B]``.
        rewards: float64 ``[T, B]``.
        terminated: bool ``[T, B]``; the episode ended and nothing follows.
        bootstrap_mask: bool ``[T, B]``; the sequence is cut here (time limit or end of the fragment) and goes on
            from ``bootstrap_observations``.
        bootstrap_observations: ``[K, …]``, one for each True of ``bootstrap_mask`` in (B, T) order.
    """

    policy_versions: np.ndarray
    lengths: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    bootstrap_mask: np.ndarray
    bootstrap_observations: np.ndarray

    @property
    def env_steps(self) -> int:
        """``N``, without padding."""
        return int(self.lengths.sum())

    @property
    def is_step(self) -> np.ndarray:
        """What is no padding, bool ``[T, B]``."""
        return np.arange(len(self.rewards))[:, None] < self.lengths


@dataclass(frozen=True)
class DetectorSamples:
    """Samples on which the objective's curvature is measured; as in `Batch`, flattened to ``[N, …]``.

    Attributes:
        advantages: As the update used them (normalised where it normalises), float32 ``[N]``.
        value_targets: float32 ``[N]``.
        old_outputs: The distribution that the update kept close to (PPO: the acting policy's; IMPACT: the target
            network's), float32 ``[N, D]``; see `runtime.learner.distributions`.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray
    value_targets: np.ndarray
    old_outputs: np.ndarray


@dataclass(frozen=True)
class UpdateMetrics:
    """What one policy update reports; means over its last epoch, but ``kl`` over the whole batch after it.

    Attributes:
        kl: KL(old ‖ new) in nats, of the distribution that the update kept close to; for IMPALA the acting policy's,
            estimated from the samples. Infinite if the new policy's σ is too large for a float.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    explained_variance: float | None
    learning_rate: float


@dataclass(frozen=True)
class Aggregation:
    """How an update was put together from gradients of several learners.

    Attributes:
        gradients: Those that were applied.
        lost: Those whose learner failed.
        late: Those of earlier updates that came since the last one, and were not applied.
        aggregations: Versions of the parameter function.
        staleness_mean: Mean number of aggregations between a gradient's policy and the one that it was applied to.
        staleness_bound: None if there was none.
        truncated_fraction: Share of the samples whose ratio was cut.
        order: The gradients' numbers as they arrived.
    """

    gradients: int
    lost: int
    late: int
    aggregations: int
    staleness_mean: float
    staleness_bound: int | None
    truncated_fraction: float
    order: tuple[int, ...]


@dataclass(frozen=True)
class Update:
    """One policy update.

    Attributes:
        samples: What it was made on, for the detector.
        staleness: By trajectory, how many versions older than the policy that was updated the acting one was,
            int64 ``[B]``.
        is_replay: Whether these trajectories had been trained on before.
        aggregation: How it was put together; None if one learner made it.
    """

    metrics: UpdateMetrics
    samples: DetectorSamples
    staleness: np.ndarray
    is_replay: bool = False
    aggregation: Aggregation | None = None


@dataclass(frozen=True)
class CurvatureProblem:
    """A scalar objective whose Hessian is asked for: ``criterion(module(inputs), targets)``, to be *maximised*."""

    module: torch.nn.Module
    criterion: Any
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class State:
    """What a part needs to go on after a checkpoint: arrays by name, and values that JSON can hold."""

    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """What samples and gradients depend on: policy, critic, moments and counters, without an optimiser.

    A learner elsewhere starts from it.
    """

    policy_version: int
    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """A batch that is ready to be trained on: flattened, with advantages and value targets.

    Attributes:
        arrays: The samples as an `Update` hands them out.
        tensors: The same by name on the learner's device, observations as its networks take them.
        values: V of the observations when the samples were made, float32 ``[N]``.
        policy_versions: The version that acted, by trajectory, int64 ``[B]``.
    """

    arrays: DetectorSamples
    tensors: Mapping[str, torch.Tensor]
    values: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, eq=False)
class LossMeans:
    """What a gradient's samples cost before its step.

    Attributes:
        means: Mean policy loss, value loss and entropy, float32 ``[3]``, on the learner's device.
        sample_count: Samples that these are means over.
    """

    means: torch.Tensor
    sample_count: int


@dataclass(frozen=True, eq=False)
class Gradients:
    """A gradient of the loss, clipped as the settings say.

    Attributes:
        policy_version: The version that it was computed at.
        tensors: By parameter, ``policy.…`` and ``critic.…``.
    """

    policy_version: int
    tensors: Mapping[str, torch.Tensor]
    losses: LossMeans


class Learner(Protocol):
    """Trains the policy. One file per algorithm, on top of `runtime.learner.actor_critic`.

    `update` is the algorithm's own composition of the steps that `StepwiseLearner` offers.
    """

    @property
    def policy_version(self) -> int:
        """Counts finished updates."""

    def weights(self) -> bytes:
        """Returns what acts, the policy, as a WEIGHTS message of `lambda_actor.wire`."""

    def snapshot(self) -> Snapshot:
        """Returns what a learner elsewhere starts from."""

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Takes a snapshot's place; the optimiser stays as it is.

        Raises:
            CheckpointError: The snapshot belongs to another network or algorithm.
        """

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on every sample of a batch and moves to the next policy version.

        Args:
            batch: What was sampled.
            progress: Share of the training that is done, 0 to 1, for schedules.
        """

    def get_state(self) -> State:
        """Returns what a resumption needs."""

    def set_state(self, state: State) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """


class StepwiseLearner(Learner, Protocol):
    """A learner that also offers the steps of its update, for an updater that composes them otherwise."""

    def begin(self, batches: Sequence[Batch], *, progress: float) -> None:
        """Begins an update: sets the learning rate, and merges the observations into the moments.

        Args:
            batches: All that the update trains on.
            progress: Share of the training that is done, 0 to 1, for schedules.
        """

    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages and value targets of a batch by the present policy and critic."""

    def gradients(self, samples: TrainingSamples, indices: torch.Tensor | None = None) -> Gradients:
        """Computes the gradient of the loss; nothing moves.

        Args:
            samples: What `samples` returned.
            indices: The samples of the minibatch, int64; all without.
        """

    def apply(self, gradients: Sequence[tuple[Gradients, float]]) -> None:
        """Makes one optimiser step for each gradient, in order; the version stays until `finish`.

        Args:
            gradients: Each with a factor on the learning rate.
        """

    def finish(self, samples: TrainingSamples, losses: Sequence[LossMeans]) -> Update:
        """Ends an update: moves to the next policy version.

        Args:
            samples: All that was trained on.
            losses: Of the gradients that make up the report.
        """


@runtime_checkable
class Replays(Protocol):
    """A learner that keeps trajectories to train on them again."""

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on trajectories that it keeps, and moves to the next version; None if it may not.

        These trajectories are no part of a checkpoint: after a resumption there is nothing to replay.
        """


@runtime_checkable
class HasCurvature(Protocol):
    """A learner whose objective's curvature can be measured."""

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the maximised objective of that name at the present policy; a copy, free to be differentiated."""


class Updater(Protocol):
    """Turns batches into policy versions: it decides where and when a learner trains."""

    @property
    def policy_version(self) -> int:
        """The newest version."""

    def weights(self) -> bytes:
        """The newest policy as a WEIGHTS message of `lambda_actor.wire`."""

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Takes a batch to be trained on; may return before it is.

        Args:
            batch: Belongs to the updater from now on.
            progress: Share of the training that is done, 0 to 1, for schedules.

        Raises:
            RunError: What trains is gone.
        """

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the updates that have ended since the last call, oldest first.

        Args:
            timeout_s: Seconds to wait for the first one, if none has ended and one is under way.

        Raises:
            RunError: What trains is gone.
        """

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on trajectories that were trained on before; None if there is nothing to train on again."""

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the newest policy, as a copy that training leaves alone."""

    def get_state(self) -> State:
        """Returns what a resumption needs; nothing that was submitted is still under way when it is called."""

    def set_state(self, state: State) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """

    def close(self) -> None:
        """Ends everything that trains; idempotent."""


@dataclass(frozen=True)
class Curvature:
    """Extreme eigenvalues of the maximised objective's Hessian and their ratio R, or None; the products they took."""

    eigenvalue_min: float | None
    eigenvalue_max: float | None
    convexity_ratio: float | None
    products: int = field(default=0, compare=False)


@dataclass(frozen=True)
class GradientNoise:
    """Unbiased estimates of tr Σ of a single sample's gradient, and of |G|², which may come out below 0; or None.

    Attributes:
        products: Hessian-vector products that take about as long: it differentiates each sample once, as half a
            product does, but in small batches; 1.7 to 2.0 were measured.
    """

    variance: float | None
    square: float | None
    products: ClassVar[int] = 2


@dataclass(frozen=True)
class Detected:
    """What was measured of the acting policy's objective; None where no scaler reads it.

    Attributes:
        noise_scale: The smoothed ratio of this and earlier rounds' `GradientNoise`; None if it has none.
    """

    curvature: Curvature | None = None
    noise: GradientNoise | None = None
    noise_scale: float | None = None

    @property
    def products(self) -> int:
        """Hessian-vector products that it took, or others that take as long."""
        return sum(one.products for one in (self.curvature, self.noise) if one is not None)

    @property
    def columns(self) -> dict[str, float | None]:
        """Its keys of rounds.jsonl, which have all signals by name."""
        curvature, noise = self.curvature, self.noise
        return {
            "eigenvalue_min": curvature.eigenvalue_min if curvature else None,
            "eigenvalue_max": curvature.eigenvalue_max if curvature else None,
            "convexity_ratio": curvature.convexity_ratio if curvature else None,
            "gradient_noise": noise.variance if noise else None,
            "gradient_square": noise.square if noise else None,
            "noise_scale": self.noise_scale}


CURVATURE_SIGNALS = frozenset({"convexity_ratio", "eigenvalue_min", "eigenvalue_max"})
NOISE_SIGNALS = frozenset({"noise_scale", "gradient_noise", "gradient_square"})


class Detector(Protocol):
    """Measures how curved the objective is, and how noisy its gradient; it never sees a learner."""

    @property
    def objective(self) -> str:
        """Name of the objective that it asks a learner's `curvature_problem` for."""

    def select(self, samples: DetectorSamples) -> DetectorSamples:
        """Returns the subset to keep for a later measurement."""

    def measure(self, problem: CurvatureProblem) -> Curvature:
        """Measures the objective's curvature at the policy that the problem was made from."""

    def measure_noise(self, problem: CurvatureProblem) -> GradientNoise:
        """Measures how noisy the objective's gradient is there."""


ROWS_MAX = 64
"""Finished rounds that a scaler is shown."""


@dataclass(frozen=True)
class RoundView:
    """What a scaler may know when it decides about a round.

    Attributes:
        round_index: The round that is decided about, from 1.
        rows: Of the last finished rounds, oldest first; `ROWS_MAX` at most.
        free_usd: Dollars of the budget that are neither spent nor reserved.
        signals: By name, each of the scaler's `Scaler.signals`; None where it is undefined, or not measured yet.
        target_return: ``stop.target_return``.
        budget_usd: ``budget.usd``.
        is_by_the_clock: Whether the bill follows the clock: then a round is paid for ``round_s``, else for
            ``modelled_round_s`` and ``modelled_evaluate_s``.
    """

    round_index: int
    rows: Sequence[RoundRow] = ()
    free_usd: float = math.inf
    signals: Mapping[str, float | None] = field(default_factory=dict)
    target_return: float | None = None
    budget_usd: float = math.inf
    is_by_the_clock: bool = False


@dataclass(frozen=True)
class ScalingDecision:
    """How many actors a round should have, and why.

    Attributes:
        boosting_score: None from a scaler that has no score.
        decay_weight: None from a scaler that has no weight.
    """

    actor_count: int
    boosting_score: float | None = None
    decay_weight: float | None = None


class Scaler(Protocol):
    """Decides how many actors a round gets."""

    @property
    def signals(self) -> frozenset[str]:
        """Names of the signals that it reads; what nobody reads is not measured."""

    @property
    def actors_min(self) -> int:
        """Fewest actors of a round; a round that the budget cannot hold with as many is not started."""

    @property
    def actors_max(self) -> int:
        """Most actors of a round."""

    def first_wave(self, round_index: int) -> int:
        """Returns how many actors are due whatever the signals say; they start before these are known."""

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides about a round; called once a round."""

    def observe(self, row: RoundRow) -> None:
        """Takes note of a round's row of rounds.jsonl, when the round is finished and before its checkpoint."""

    def get_state(self) -> State:
        """Returns what a checkpoint keeps; later rounds do not change it."""

    def set_state(self, state: State) -> None:
        """Goes on from ``state``."""


@dataclass(frozen=True)
class RoundBill:
    """One attempt at a round in dollars, replacements included."""

    actors_cost_usd: float
    provisioned_cost_usd: float
    learner_cost_usd: float
    infrastructure_cost_usd: float
    round_cost_usd: float


ACTOR = "actor"
"""The role of an actor; see `Work`."""
LEARNER = "learner"
"""The role of an invocation of the learner function."""


@dataclass(frozen=True)
class Work:
    """Names one piece of paid work, such as one invocation of an actor.

    Attributes:
        role: What it does: `ACTOR`, `LEARNER`, or any other role that has prices.
        slot: Place among the pieces of its role that may run at once, from 0; an environment that is warm serves
            the next work in its slot.
        attempt: 0, or how many pieces of work in this slot failed before this one.
    """

    role: str
    slot: int
    attempt: int = 0


@dataclass(frozen=True)
class Usage:
    """What a piece of work used.

    Attributes:
        billed_s: Seconds billed, as in `Outcome`.
        init_s: Seconds of start-up, as in `Outcome`.
        is_metered: Whether the platform said what it bills, as in `Outcome`.
        traffic_bytes: Bytes moved through the cache.
    """

    billed_s: float
    init_s: float = 0.0
    is_metered: bool = False
    traffic_bytes: int = 0


@dataclass(frozen=True)
class Limits:
    """For how long the phases of a round may go on; that much is reserved.

    Attributes:
        actor_s: An actor, without its start-up.
        collect_s: A round's actors, together.
        update_s: Detection, update and evaluation, together.
        factor: So many times what the phases took lately; 0 if they are as the experiment says.
        episode_bytes: The most bytes of an open episode that an actor takes and leaves; None for the most that any may
            have.
    """

    actor_s: float
    collect_s: float
    update_s: float
    factor: float = 0.0
    episode_bytes: int | None = None

    @property
    def is_tightened(self) -> bool:
        """Whether they are shorter than the experiment says."""
        return self.factor > 0.0

    @property
    def round_s(self) -> float:
        """What stands is reserved for so long."""
        return self.collect_s + self.update_s


class CostMeter(Protocol):
    """Reserves the worst case of all work before it starts, and settles what it really used."""

    is_by_the_clock: bool
    """Whether what stands is billed by the clock, so that it is the clock that must keep a round's limits."""

    @property
    def limits(self) -> Limits:
        """As the experiment says."""

    @property
    def free_usd(self) -> float:
        """What is neither spent nor reserved."""

    @property
    def spent_usd(self) -> float: ...

    @property
    def reserved_usd(self) -> float: ...

    def fits(self, actors: int, limits: Limits) -> bool:
        """Whether a round with so many actors and such limits would fit beside all that is reserved now."""

    def open_round(self, actors: int, *, smallest: int, limits: Limits | None = None) -> int:
        """Reserves a round with as many actors as fit; 0, and nothing reserved, where not even ``smallest`` do."""

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Reserves a round but for its actors; False, and nothing reserved, where it does not fit."""

    def reserve(self, works: Sequence[Work]) -> int:
        """Reserves the worst case of each of these in the open round, in order; returns for how many it fits."""

    def ahead(self, actors: int) -> AbstractContextManager[None]:
        """A block in which as many actors more are reserved as fit, at most ``actors``."""

    def settle(self, work: Work, usage: Usage | None) -> float:
        """Settles one reserved piece of work, which costs nothing without ``usage``; returns its billed seconds."""

    def close_round(self, *, actors_started: int, seconds: float) -> RoundBill: ...

    def forfeit(self) -> float:
        """Counts all that is still reserved as spent; returns it in dollars."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes in an environment of its own, as `runtime.training.evaluation` plays them.

    Attributes:
        returns: By episode.
        lengths: By episode, in steps.
        seconds: CPU-seconds that it took, with episodes that only led to these.
        steps_before: Steps of those episodes.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)
    steps_before: int = field(default=0, compare=False)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


class PolicyEvaluator(Protocol):
    """Evaluates policies beside the training, one at a time."""

    def begin(self, weights: bytes, round_index: int) -> None:
        """Begins to evaluate the policy that a round left; returns at once."""

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for what was begun.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            ActorError: The environment cannot be played.
        """


@dataclass(frozen=True)
class RunContext:
    """What a backend knows of the run that it supplies.

    Attributes:
        experiment: Resolved and fitted to its environment.
        spaces: Of that environment.
        run_id: Of this process' share of the run; a resumption has another one.
        directory: The run's.
        events: Records what happens besides finished rounds.
        stack: Closes, at the run's end and newest first, what the backend opened.
        shield: Makes a block that an interrupt does not cut in two; for what must be closed once it is open.
    """

    experiment: FittedExperiment
    spaces: Spaces
    run_id: str
    directory: RunDirectory
    events: EventLog
    stack: ExitStack
    shield: Callable[[], AbstractContextManager[None]]


class Keeping(Protocol):
    """Keeps a run where it outlives its machine, and tells of it whoever watches over its cost."""

    def spent_usd(self) -> float:
        """The least, in US dollars, that the run had cost when it was taken over, by records elsewhere."""

    def begins(self) -> None:
        """Is called right before the first round: everything is there, and actors start."""

    def ledger_changed(self, ledger: bytes) -> None:
        """Is called with a new ledger before what it promises is used."""

    def round_saved(self, row: RoundRow) -> None:
        """Is called when a finished round is on disk, its checkpoint included."""

    def ends(self) -> None:
        """Is called when all files of the run are written."""


@dataclass(frozen=True)
class Supplies:
    """What a backend gives a run; what of it must be closed is on the run's stack.

    Attributes:
        cache: Answers already.
        fleet: Where actors run.
        meter: Reserves and bills at the backend's prices.
        keeping: Keeps the run's files.
        actor_event: How actors reach the cache: fields of every actor's event.
        facts: What people are told of it, by label.
        prewarmed_actors: Actors to start once before the first round, as proof that they start at all; 0 for none.
        times: For how long the learner's work counts in the bill; None = as long as was measured.
        learner_fleet: Invokes the learner function; None if the policy is trained here.
        learner_store: Where that function finds and leaves what it needs; see `runtime.learner.remote.store`.
        digests: Of files that decide what rounds are, by the key of the experiment file that names them: a resumption
            must find the same.
    """

    cache: Cache
    fleet: Fleet
    meter: Meter
    keeping: Keeping
    actor_event: Mapping[str, Any]
    facts: Mapping[str, str]
    prewarmed_actors: int = 0
    times: WorkTimes | None = None
    learner_fleet: Fleet | None = None
    learner_store: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Supplies the cache, the fleet, the meter and the keeping of a run.

    Attributes:
        cost_basis: ``modelled``, or ``metered`` if durations are those that are billed.
        prices: What the bill is made from.
    """

    cost_basis: str
    prices: PriceTable

    def fetch(self, directory: RunDirectory) -> None:
        """Takes the run over, and puts what is kept of it elsewhere into its directory.

        Is called first, before anything in the directory is looked at.

        Raises:
            RunError: It cannot be taken over.
        """

    def supply(self, run: RunContext) -> Supplies:
        """Opens what the run needs.

        Raises:
            ServerError: No cache answers.
            FleetError: No actor can run.
        """


class Display(Protocol):
    """Shows a run while it runs."""

    def started(self, experiment: Experiment, facts: Mapping[str, str], rows: Sequence[RoundRow] = ()) -> None:
        """Shows what is about to run; ``rows`` are the rounds that it continues after."""

    def round_finished(self, row: RoundRow) -> None: ...

    def evaluating(self, round_index: int, done: int, episodes: int) -> None:
        """Shows how many episodes of an evaluation are done; another thread than the training's may call it.

        Args:
            round_index: The round that left the evaluated policy.
            done: Episodes that are over.
            episodes: Of the evaluation; it has ended when as many are done.
        """

    def event(self, kind: str, fields: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...
