"""What every kind of round has in common: reasons to stop, updates, evaluation, rows, checkpoints.

`runtime.training.synchronous` and `runtime.training.asynchronous` say what happens in one round;
`runtime.training.pacings` chooses.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lambda_actor.spaces import Spaces
from runtime.config.schema import Experiment
from runtime.errors import BudgetError, CheckpointError, RunError
from runtime.interfaces import (
    Cache,
    CostMeter,
    Curvature,
    Detector,
    DetectorSamples,
    Evaluation,
    Fleet,
    Learner,
    OpenEpisodeRecord,
    RoundBill,
    RoundView,
    Scaler,
    ScalingDecision,
    State,
    Update,
    UpdateMetrics,
)
from runtime.learner.batch import assemble_batch
from runtime.records.checkpoint import Checkpoint
from runtime.records.events import EventLog
from runtime.sampling.actors import ActorSpec, CircuitBreaker

REJECTED_ROUNDS_MAX = 3
CONTINUATIONS_RAISED_MAX = 2
ROWS_MAX = 64
"""Finished rounds that a scaler is shown."""


@dataclass
class Progress:
    """What a run has done so far."""

    round_index: int = 0
    env_steps_total: int = 0
    evaluation_return_mean: float | None = None
    evaluation_round: int | None = None


@dataclass
class Training:
    """The updates of one round."""

    learn_s: float = 0.0
    env_steps: int = 0
    episodes: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    metrics: list[UpdateMetrics] = field(default_factory=list)
    staleness: list[np.ndarray] = field(default_factory=list)
    trajectories: int = 0
    replayed: int = 0

    def add(self, update: Update) -> None:
        self.metrics.append(update.metrics)
        self.staleness.append(update.staleness)
        if update.is_replay:
            self.replayed += len(update.staleness)
        else:
            self.trajectories += len(update.staleness)

    def add_episodes(self, trajectories: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Notes the episodes that ended in these trajectories, which are not kept."""
        names = ("episode_returns", "episode_lengths", "episode_first_versions", "policy_version")
        self.episodes += [{name: trajectory[name] for name in names} for trajectory in trajectories]

    @property
    def columns(self) -> dict[str, Any]:
        """A row's part: means over the updates, but the last one's learning rate."""
        staleness = np.concatenate(self.staleness)
        return {
            **_episode_statistics(self.episodes),
            **{name: _mean([vars(metrics)[name] for metrics in self.metrics]) for name in vars(self.metrics[0])},
            "learning_rate": self.metrics[-1].learning_rate,
            "updates": len(self.metrics),
            "staleness_mean": float(staleness.mean()), "staleness_max": int(staleness.max()),
            "replayed_fraction": self.replayed / len(staleness),
        }


class RoundLoop(ABC):
    """Runs rounds until a reason to stop; composes the parts and owns none of their work."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        learner: Learner,
        detector: Detector,
        scaler: Scaler,
        fleet: Fleet,
        cache: Cache,
        meter: CostMeter,
        evaluate: Callable[[bytes], Evaluation],
        events: EventLog,
        event_fields: Mapping[str, Any],
        spaces: Spaces,
        save_ledger: Callable[[], None],
        save_round: Callable[[dict[str, Any], Checkpoint], None],
        shield: Callable[[], AbstractContextManager] = nullcontext,
        time_limit: Callable[[float, str], AbstractContextManager] = lambda seconds, what: nullcontext(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
            experiment: Resolved and fitted.
            evaluate: Returns an evaluation of a policy given as a weights message.
            event_fields: Fields of every actor's event that no round changes.
            spaces: The environment's.
            save_ledger: Puts the meter's state on disk.
            save_round: Puts a finished round's row and checkpoint on disk.
            shield: Entered around writes that an interrupt must not cut in two.
            time_limit: Entered with seconds and a name around what is reserved for so long; raises `BudgetError`.
            clock: Monotonic seconds.
        """
        self._experiment = experiment
        self._learner, self._detector, self._scaler = learner, detector, scaler
        self._fleet, self._cache, self._meter = fleet, cache, meter
        self._evaluate, self._events, self._event_fields, self._spaces = evaluate, events, event_fields, spaces
        self._save_ledger, self._save_round, self._shield, self._clock = save_ledger, save_round, shield, clock
        self._time_limit = time_limit
        self._breaker = CircuitBreaker(experiment.fleet.failures_max)
        self._samples: DetectorSamples | None = None
        self._episodes: list[OpenEpisodeRecord] = []
        self._suspects: Counter[str] = Counter()
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=ROWS_MAX)
        self.progress = Progress()

    def run(self) -> str:
        """Runs until there is a reason to stop, and returns it: target_return, max_rounds, max_steps or budget.

        Raises:
            ActorsKeepFailingError: The circuit breaker.
            BudgetError: A round took longer than its reserved worst case.
        """
        while (reason := self._stop_reason()) is None:
            if not self._round(self.progress.round_index + 1):
                return "budget"
        return reason

    @abstractmethod
    def _round(self, round_index: int) -> bool:
        """Runs one round to its end; False where the budget does not hold it."""

    def _stop_reason(self) -> str | None:
        stop, progress = self._experiment.stop, self.progress
        if (stop.target_return is not None and progress.evaluation_round == progress.round_index
                and progress.evaluation_return_mean is not None
                and progress.evaluation_return_mean >= stop.target_return):
            return "target_return"
        if stop.max_rounds is not None and progress.round_index >= stop.max_rounds:
            return "max_rounds"
        if stop.max_steps is not None and progress.env_steps_total >= stop.max_steps:
            return "max_steps"
        return None

    # What a round is made of

    @property
    def _deadline_s(self) -> float:
        """The deadline of actors that all run at once, as many times longer as the fleet has to queue them.

        The bill is modelled as if they all ran at once.
        """
        return self._experiment.fleet.round_deadline_s * self._experiment.waves(self._fleet.concurrency)

    def _actor_spec(self, round_index: int, weights: bytes, **fields: Any) -> ActorSpec:
        return ActorSpec(
            event={**self._event_fields, "policy_version": self._learner.policy_version, "round_index": round_index,
                   **fields},
            spaces=self._spaces, weights_bytes=len(weights), timeout_s=self._experiment.actor.timeout_s)

    def _update(
        self, round_index: int, trajectories: Sequence[dict[str, np.ndarray]], training: Training, limit_s: float
    ) -> Update:
        """Trains on these, once, and takes over the episodes that they left open."""
        batch = assemble_batch(trajectories, self._spaces, clip_rewards=self._experiment.environment.clip_rewards)
        update = self._learn(round_index, training, limit_s, lambda: self._learner.update(
            batch, progress=self._fraction_done()))
        training.add_episodes(trajectories)
        training.env_steps += batch.env_steps
        self.progress.env_steps_total += batch.env_steps
        self._update_episodes(trajectories)
        return update

    def _learn(
        self, round_index: int, training: Training, limit_s: float, step: Callable[[], Update | None]
    ) -> Update | None:
        """Makes one update of the policy, if ``step`` makes one, within its time."""
        started_s = self._clock()
        with self._time_limit(limit_s, "the update"):
            update = step()
        training.learn_s += self._clock() - started_s
        if update is not None:
            self._check_finite(round_index, vars(update.metrics))
            training.add(update)
        return update

    def _update_episodes(self, trajectories: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Removes the open episodes that these continued, and queues those that they left open, in their order."""
        trajectories = list(trajectories)
        continued = {bytes(trajectory["continued_episode"]).decode() for trajectory in trajectories}
        self._episodes = [record for record in self._episodes if record.episode_id not in continued] + [
            OpenEpisodeRecord(f"{int(trajectory['round_index'])}-{int(trajectory['slot'])}",
                              bytes(trajectory["open_episode"]))
            for trajectory in trajectories if len(trajectory["open_episode"])]
        for episode_id in continued:
            self._suspects.pop(episode_id, None)

    def _drop_poisonous_episodes(self, raising_episodes: Iterable[str], error: str) -> None:
        """Removes open episodes whose every continuation raised, twice over: they would raise for ever."""
        self._suspects.update(raising_episodes)
        dropped = {episode_id for episode_id, times in self._suspects.items() if times >= CONTINUATIONS_RAISED_MAX}
        for episode_id in sorted(dropped):
            self._events.append("episode_dropped", episode_id=episode_id, error=error)
            del self._suspects[episode_id]
        self._episodes = [one for one in self._episodes if one.episode_id not in dropped]

    def _evaluate_if_due(self, round_index: int, limit_s: float) -> tuple[Evaluation | None, float | None]:
        every_rounds, stop = self._experiment.evaluation.every_rounds, self._experiment.stop
        is_last = ((stop.max_rounds is not None and round_index >= stop.max_rounds)
                   or (stop.max_steps is not None and self.progress.env_steps_total >= stop.max_steps))
        if every_rounds == 0 or (round_index % every_rounds and not is_last):
            return None, None
        started_s = self._clock()
        with self._time_limit(max(limit_s, 0.001), "the evaluation"):
            evaluation = self._evaluate(self._learner.weights())
        self.progress.evaluation_return_mean = evaluation.return_mean
        self.progress.evaluation_round = round_index
        return evaluation, self._clock() - started_s

    def _results(
        self,
        round_index: int,
        training: Training,
        evaluation: Evaluation | None,
        *,
        policy_version: int,
        curvature: Curvature | None,
        decision: ScalingDecision,
        actor_count: int,
        failed: int,
        late: int,
    ) -> dict[str, Any]:
        """A row but for its times and its dollars."""
        return {
            "round_index": round_index, "policy_version": policy_version,
            "eigenvalue_min": curvature.eigenvalue_min if curvature else None,
            "eigenvalue_max": curvature.eigenvalue_max if curvature else None,
            "convexity_ratio": curvature.convexity_ratio if curvature else None,
            "boosting_score": decision.boosting_score, "decay_weight": decision.decay_weight,
            "actor_count_wanted": decision.actor_count, "actor_count": actor_count,
            "actors_returned": training.trajectories, "actors_failed": failed, "actors_late": late,
            "env_steps": training.env_steps, "env_steps_total": self.progress.env_steps_total,
            "evaluation_return_mean": evaluation.return_mean if evaluation else None,
            **training.columns,
        }

    def _costs(self, bills: Sequence[RoundBill], round_reserved_usd: float) -> dict[str, float]:
        """A row's dollars, of all attempts at the round."""
        return {
            **{name: sum(getattr(bill, name) for bill in bills) for name in vars(bills[0])},
            "spent_usd": self._meter.spent_usd,
            "reserved_usd": self._meter.reserved_usd,
            "round_reserved_usd": round_reserved_usd,
        }

    def _reads(self, signal: str) -> bool:
        return signal in self._scaler.signals

    def _scale(self, round_index: int, curvature: Curvature | None) -> ScalingDecision:
        """Asks the scaler how many actors the round should have."""
        signals = {"convexity_ratio": curvature.convexity_ratio if curvature else None}
        return self._scaler.decide(RoundView(
            round_index, tuple(self._rows), self._meter.free_usd,
            {name: signals.get(name) for name in self._scaler.signals}))

    def _observe(self, row: Mapping[str, Any]) -> None:
        """Shows the scaler a finished round."""
        self._rows.append(row)
        self._scaler.observe(row)

    def _close_interrupted(self, actors_started: int, seconds: float) -> None:
        """Settles a round that does not end; its learner is billed for the time that passed here."""
        try:
            self._meter.close_round(actors_started=actors_started, seconds=seconds)
        except BudgetError as error:
            self._events.append("reservation_exceeded", error=str(error))
        self._meter.forfeit()
        self._save_ledger()

    def _fraction_done(self) -> float:
        stop = self._experiment.stop
        fractions = [0.0]
        if stop.max_rounds is not None:
            fractions.append(self.progress.round_index / stop.max_rounds)
        if stop.max_steps is not None:
            fractions.append(self.progress.env_steps_total / stop.max_steps)
        return min(1.0, max(fractions))

    def _check_finite(self, round_index: int, figures: Mapping[str, float | None]) -> None:
        for name, value in figures.items():
            if value is not None and not math.isfinite(value):
                raise RunError(
                    f"training diverged in round {round_index}: {name} is {value}; a smaller algorithm."
                    f"{self._experiment.algorithm.kind}.learning_rate may help. The last checkpoint is from before "
                    "that round")

    # Checkpoint and resume

    def _checkpoint(self) -> Checkpoint:
        learner = self._learner.get_state()
        self._check_finite(self.progress.round_index,
                           {name: float(array.sum()) for name, array in learner.arrays.items()})
        scaler = self._scaler.get_state()
        arrays = {f"learner.{name}": array for name, array in learner.arrays.items()}
        arrays |= {f"scaler.{name}": array for name, array in scaler.arrays.items()}
        if self._samples is not None:
            arrays |= {f"samples.{name}": array for name, array in vars(self._samples).items()}
        arrays |= {f"episode.{i}": np.frombuffer(record.data, np.uint8) for i, record in enumerate(self._episodes)}
        return Checkpoint(self.progress.round_index, arrays, {
            "learner": learner.values,
            "scaler": scaler.values,
            "meter": self._meter.get_state(),
            "progress": dict(vars(self.progress)),
            "episode_ids": [record.episode_id for record in self._episodes],
        })

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues after ``checkpoint``, as if the run had never ended.

        Raises:
            CheckpointError: It belongs to another network.
        """
        try:
            self._restore(checkpoint)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint of round {checkpoint.round_index} does not fit this program: "
                                  f"{type(error).__name__}: {error}") from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        parts: dict[str, dict[str, np.ndarray]] = {
            "learner": {}, "scaler": {}, "samples": {}, "episode": {}}
        for name, array in checkpoint.arrays.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = array.copy()
        values = checkpoint.values
        self._learner.set_state(State(parts["learner"], values["learner"]))
        self._scaler.set_state(State(parts["scaler"], values["scaler"]))
        self._meter.set_state(values["meter"])
        self._samples = DetectorSamples(**parts["samples"]) if parts["samples"] else None
        self._episodes = [OpenEpisodeRecord(episode_id, parts["episode"][str(i)].tobytes())
                          for i, episode_id in enumerate(values["episode_ids"])]
        self.progress = Progress(**values["progress"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _episode_statistics(trajectories: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    returns = np.concatenate([trajectory["episode_returns"] for trajectory in trajectories])
    lengths = np.concatenate([trajectory["episode_lengths"] for trajectory in trajectories])
    return {
        "episode_return_mean": float(returns.mean()) if len(returns) else None,
        "episode_length_mean": float(lengths.mean()) if len(lengths) else None,
        "episodes_finished": len(returns),
        "episodes_spanning_versions": sum(
            int((trajectory["episode_first_versions"] != trajectory["policy_version"]).sum())
            for trajectory in trajectories),
    }
