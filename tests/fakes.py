"""Fakes of a run's parts: a fleet that plays a script, an in-memory cache, a learner that adds.

They keep the contracts of the interfaces in `runtime`, take no time, and read no clock but `ManualClock`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import CacheMissError
from lambda_actor.inline import ACCEPTED, LATE
from lambda_actor.rollout import NO_BYTES, OpenEpisode
from lambda_actor.spaces import Spaces
from runtime.detector.interfaces import Detected, Detector
from runtime.errors import BudgetError
from runtime.fleet.failures import Patience
from runtime.fleet.interfaces import Cache, Fleet, Invocation
from runtime.learner.interfaces import (
    Batch,
    CurvatureProblem,
    DetectorSamples,
    Learner,
    Update,
    UpdateMetrics,
)
from runtime.learner.updaters import InPlaceUpdater
from runtime.money.meter import Meter
from runtime.money.work import Outcome, OutcomeStatus
from runtime.records.observers import EventSink
from runtime.records.state import State
from runtime.training.callbacks import Callbacks
from runtime.training.evaluation import Evaluation
from runtime.training.evaluations import PolicyEvaluator
from runtime.training.loop import RoundLoop, SaveRound
from runtime.training.opening import Resources, Run
from runtime.training.roles import make_roles

OBSERVATION_SIZE, ACTION_SIZE = 3, 2
SPACES = Spaces((OBSERVATION_SIZE,), action_size=ACTION_SIZE)


class ManualClock:
    """Monotonic seconds, which a test advances by hand."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def time_limit(self, seconds: float, what: str) -> Iterator[None]:
        """Ends a block that takes longer, when it has ended; see `runtime.training.signals.Signals.time_limit`."""
        until_s = self.now_s + seconds
        yield
        if self.now_s > until_s:
            raise BudgetError(
                f"{what}: the {seconds:.1f} s left of learner.update_timeout_s are over"
            )


class FakeCache:
    """An in-memory `lambda_actor.cache.TrajectoryCache`, for both the learner and the actors."""

    def __init__(self, log: list[Any] | None = None) -> None:
        """Starts empty.

        Args:
            log: Receives a tuple (name, argument) for each call of the learner.
        """
        self.log: list[Any] = log if log is not None else []
        self.weights: dict[int, bytes] = {}
        self.episodes: dict[str, bytes] = {}
        self.doors: dict[str, bytes] = {}
        self.before_access: Callable[[], None] = lambda: None

    # The actors' side

    def fetch_weights(self, policy_version: int) -> bytes:
        return self._fetch(self.weights, policy_version, f"weights:{policy_version}")

    def fetch_episode(self, episode_id: str) -> bytes:
        return self._fetch(self.episodes, episode_id, f"episode:{episode_id}")

    def submit(self, invocation_id: str, trajectory: bytes) -> str:
        if invocation_id not in self.doors:
            return LATE
        self.doors[invocation_id] = trajectory
        return ACCEPTED

    # The learner's side

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        self.log.append(("publish_weights", policy_version))
        self.weights[policy_version] = weights

    def forget_weights(self, policy_version: int) -> None:
        self.weights.pop(policy_version, None)

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None:
        self.log.append(("publish_episodes", tuple(episodes)))
        self.episodes.update(episodes)

    def discard_episodes(self, episode_ids: Iterable[str]) -> None:
        for episode_id in episode_ids:
            self.episodes.pop(episode_id, None)

    def expect(self, invocation_ids: Iterable[str]) -> None:
        self.doors.update(dict.fromkeys(invocation_ids, b""))

    def take(self, invocation_id: str) -> bytes | None:
        self.before_access()
        self.log.append(("take", invocation_id))
        return self.doors.pop(invocation_id, b"") or None

    @staticmethod
    def _fetch(shelf: Mapping[Any, bytes], key: Any, name: str) -> bytes:
        if key not in shelf:
            raise CacheMissError(f"{name} is not in the cache")
        return shelf[key]


def trajectory_fields(
    event: Mapping[str, Any], *, leaves_open: bool = True
) -> dict[str, np.ndarray]:
    """Returns the TRAJECTORY fields that an actor would send for this event, a function of seed, round and slot."""
    steps, slot, round_index = event["fragment_steps"], event["slot"], event["round_index"]
    stream = np.random.default_rng((event["seed"], round_index, slot))
    left_open = OpenEpisode(
        observation=np.full(OBSERVATION_SIZE, slot, np.float32),
        state={},
        return_so_far=float(round_index),
        length=steps,
        first_version=event["policy_version"],
    ).to_bytes()
    return {
        "invocation_id": wire.text_field(event["invocation_id"]),
        "round_index": np.int64(round_index),
        "slot": np.int64(slot),
        "policy_version": np.int64(event["policy_version"]),
        "observations": stream.standard_normal((steps, OBSERVATION_SIZE)).astype(np.float32),
        "actions": stream.standard_normal((steps, ACTION_SIZE)).astype(np.float32),
        "log_probs": stream.standard_normal(steps).astype(np.float32),
        "rewards": stream.standard_normal(steps),
        "terminated": np.zeros(steps, np.bool_),
        "truncated": np.zeros(steps, np.bool_),
        "bootstrap_steps": np.array([steps - 1], np.int64),
        "bootstrap_observations": stream.standard_normal((1, OBSERVATION_SIZE)).astype(np.float32),
        "episode_returns": np.empty(0, np.float64),
        "episode_lengths": np.empty(0, np.int64),
        "episode_first_versions": np.empty(0, np.int64),
        "continued_episode": wire.text_field(event["episode_id"]),
        "open_episode": np.frombuffer(left_open, np.uint8) if leaves_open else NO_BYTES,
    }


def trajectory(event: Mapping[str, Any], **changed: np.ndarray) -> bytes:
    """Returns a valid TRAJECTORY message for ``event``, except for the ``changed`` fields."""
    return wire.encode(wire.Kind.TRAJECTORY, trajectory_fields(event) | changed)


def closed_trajectory(event: Mapping[str, Any]) -> bytes:
    """Returns a trajectory whose last step ends its episode, so that no episode stays open."""
    fields = trajectory_fields(event, leaves_open=False)
    terminated = fields["terminated"].copy()
    terminated[-1] = True
    return wire.encode(
        wire.Kind.TRAJECTORY,
        fields
        | {
            "terminated": terminated,
            "bootstrap_steps": np.empty(0, np.int64),
            "bootstrap_observations": np.empty((0, OBSERVATION_SIZE), np.float32),
            "episode_returns": fields["rewards"].sum(keepdims=True),
            "episode_lengths": np.array([len(terminated)]),
            "episode_first_versions": np.array([event["policy_version"]]),
        },
    )


@dataclass(frozen=True)
class Play:
    """The behavior of one invocation.

    Attributes:
        status: How it ends by itself; None if it runs until it is given up.
        submits: Makes the bytes that it submits first; None if it submits none. If ``status`` is None, it submits them
            and runs on.
        heeds_abandon: Whether giving it up ends it.
        submits_when_abandoned: Whether it submits after it is given up, and then ends as ok.
        was_started: Whether it ever began; if not, it ends only by being given up.
        is_metered: Whether the platform reported ``billed_s``.
        outcomes: How often its outcome is reported.
        takes_s, lingers_s: Seconds until it submits, and from then to its end, in a `TimedFleet`.
    """

    status: OutcomeStatus | None = "ok"
    submits: Callable[[Mapping[str, Any]], bytes] | None = trajectory
    error: str = ""
    billed_s: float = 1.0
    init_s: float = 0.5
    heeds_abandon: bool = True
    submits_when_abandoned: bool = False
    was_started: bool = True
    is_metered: bool = False
    outcomes: int = 1
    takes_s: float = 0.0
    lingers_s: float = 0.0


OK = Play()
ERROR = Play("error", None, "RuntimeError: broken joint")
CRASHED = Play("crashed", None, "the actor process was killed by SIGKILL")
TIMEOUT = Play("timeout", None, "timed out after 60 s", billed_s=60.0)
CRASHED_AFTER_SUBMIT = Play("crashed", trajectory, "the actor process was killed by SIGKILL")
NEVER_RETURNS = Play(None, None)
DEAF = Play(None, None, heeds_abandon=False)
NEVER_STARTED = Play(None, None, billed_s=0.0, init_s=0.0, was_started=False)
LATE_COMER = Play(None, None, submits_when_abandoned=True)
SUBMITS_AND_HANGS = Play(None)


class FakeFleet:
    """A fleet that plays a script. Outcomes come in any order except slot order.

    If nothing has ended, `wait` advances the clock by its whole time-out.
    """

    def __init__(
        self,
        cache: FakeCache,
        clock: ManualClock,
        script: Callable[[Mapping[str, Any], int], Play]
        | Mapping[tuple[int, int], Play]
        | None = None,
        *,
        at_once: int = 10**9,
        log: list[Any] | None = None,
    ) -> None:
        """Plays a script against a cache, on a clock that only the fleet moves.

        Args:
            script: Returns the play for an event and the number of earlier tries in its slot this round. Or a mapping
                from (slot, number of tries), with OK for missing keys.
            at_once: Most outcomes that one `wait` returns.
            log: Receives ("start", slots) and ("abandon", ids).
        """
        self.concurrency = 10**9
        self._cache, self._clock, self._at_once = cache, clock, at_once
        self.script = (
            script
            if callable(script)
            else lambda event, nth: (script or {}).get((event["slot"], nth), OK)
        )
        self.log: list[Any] = log if log is not None else []
        self.started: list[Invocation] = []
        self.running: dict[str, tuple[Invocation, Play]] = {}
        self._ended: deque[Outcome] = deque()
        self._tries: Counter[tuple[int, int]] = Counter()
        self.is_closed = False

    def start(self, invocations: Sequence[Invocation]) -> None:
        self.log.append(("start", tuple(invocation.event["slot"] for invocation in invocations)))
        for invocation in reversed(invocations):
            event = invocation.event
            key = (event["round_index"], event["slot"])
            play = self.script(event, self._tries[key])
            self._tries[key] += 1
            self.started.append(invocation)
            if play.status is None:
                if play.submits is not None:
                    self._cache.submit(invocation.invocation_id, play.submits(event))
                self.running[invocation.invocation_id] = (invocation, replace(play, submits=None))
            else:
                self._end(invocation, play, play.status)

    def wait(self, timeout_s: float) -> list[Outcome]:
        if not self._ended:
            self._clock.advance(timeout_s)
        return [self._ended.popleft() for _ in range(min(self._at_once, len(self._ended)))]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        self.log.append(("abandon", tuple(invocation_ids)))
        for invocation_id in invocation_ids:
            if invocation_id not in self.running:
                continue
            invocation, play = self.running[invocation_id]
            if not play.heeds_abandon:
                continue
            del self.running[invocation_id]
            if play.submits_when_abandoned:
                self._end(invocation, replace(play, submits=trajectory), "ok")
            else:
                self._end(invocation, play, "abandoned")

    def close(self) -> None:
        self.is_closed = True
        self.running.clear()

    def _end(self, invocation: Invocation, play: Play, status: OutcomeStatus) -> None:
        response = None
        if play.submits is not None:
            submitted = self._cache.submit(invocation.invocation_id, play.submits(invocation.event))
            if status == "ok":
                response = {
                    "invocation_id": invocation.invocation_id,
                    "status": submitted,
                    "env_steps": invocation.event["fragment_steps"],
                }
        error = play.error or (
            "still running at the round's deadline" if status == "abandoned" else ""
        )
        outcome = Outcome(
            invocation.invocation_id,
            status,
            response=response,
            error=error,
            was_started=play.was_started,
            billed_s=play.billed_s,
            init_s=play.init_s,
            is_metered=play.is_metered,
        )
        self._ended.extend([outcome] * play.outcomes)


class TimedFleet:
    """A fleet whose actors take time on its clock. An actor that does not end by itself ends at its time-out.

    Each actor starts when there is room, then fetches its weights and its episode. `misses` lists missing ones.
    """

    def __init__(
        self,
        cache: FakeCache,
        clock: ManualClock,
        script: Callable[[Mapping[str, Any], int], Play],
        *,
        concurrency: int = 10**9,
        timeout_s: float = 60.0,
    ) -> None:
        """Plays a script with durations.

        Args:
            script: Returns the play for an event and the number of actors started before it.
        """
        self.concurrency = concurrency
        self._cache, self._clock, self.script, self.timeout_s = cache, clock, script, timeout_s
        cache.before_access = self._catch_up
        self.started: list[Invocation] = []
        self.misses: list[str] = []
        self.accepted: dict[str, bytes] = {}
        self.returned: list[str] = []
        self.waits: list[float] = []
        self._queue: deque[tuple[Invocation, Play]] = deque()
        self._running: dict[str, tuple[Invocation, Play, float]] = {}
        self._agenda: list[tuple[float, int, str, OutcomeStatus | Literal["submit"]]] = []
        self._ended: deque[Outcome] = deque()
        self._order = itertools.count()

    @property
    def has_ended(self) -> bool:
        """Whether `wait` would return something at once."""
        self._catch_up()
        return bool(self._ended)

    @property
    def open_count(self) -> int:
        return len(self._queue) + len(self._running)

    def start(self, invocations: Sequence[Invocation]) -> None:
        for invocation in invocations:
            self._queue.append((invocation, self.script(invocation.event, len(self.started))))
            self.started.append(invocation)
        self._begin()

    def wait(self, timeout_s: float) -> list[Outcome]:
        self.waits.append(timeout_s)
        until_s = self._clock() + timeout_s
        self._catch_up()
        while not self._ended and self._clock() < until_s:
            next_s = min((entry[0] for entry in self._agenda), default=math.inf)
            self._clock.now_s = min(next_s, until_s)
            self._catch_up()
        outcomes = list(self._ended)
        self._ended.clear()
        self.returned += [outcome.invocation_id for outcome in outcomes]
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        self._catch_up()
        for invocation, _ in [
            entry for entry in self._queue if entry[0].invocation_id in invocation_ids
        ]:
            self._queue = deque(entry for entry in self._queue if entry[0] is not invocation)
            self._ended.append(
                Outcome(
                    invocation.invocation_id, "abandoned", error="never started", was_started=False
                )
            )
        for invocation_id in invocation_ids:
            if invocation_id in self._running and self._running[invocation_id][1].heeds_abandon:
                self._end(invocation_id, "abandoned")

    def close(self) -> None:
        self._running.clear()

    def _begin(self) -> None:
        while self._queue and len(self._running) < self.concurrency:
            invocation, play = self._queue.popleft()
            one, now_s = invocation.invocation_id, self._clock()
            try:
                self._cache.fetch_weights(invocation.event["policy_version"])
                if invocation.event["episode_id"]:
                    self._cache.fetch_episode(invocation.event["episode_id"])
            except CacheMissError as error:
                self.misses.append(f"{one}: {error}")
            self._running[one] = (invocation, play, now_s)
            if play.submits is not None:
                self._plan(now_s + play.takes_s, one, "submit")
            ends_s = play.takes_s + play.lingers_s if play.status is not None else self.timeout_s
            self._plan(now_s + ends_s, one, play.status or "timeout")

    def _plan(
        self, at_s: float, invocation_id: str, what: OutcomeStatus | Literal["submit"]
    ) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), invocation_id, what))

    def _catch_up(self) -> None:
        while self._agenda and self._agenda[0][0] <= self._clock():
            _, _, invocation_id, what = heapq.heappop(self._agenda)
            if invocation_id not in self._running:
                continue
            invocation, play, _ = self._running[invocation_id]
            if what == "submit":
                data = play.submits(invocation.event) if play.submits is not None else b""
                if self._cache.submit(invocation_id, data) == ACCEPTED:
                    self.accepted[invocation_id] = data
            else:
                self._end(invocation_id, what)

    def _end(self, invocation_id: str, status: OutcomeStatus) -> None:
        invocation, play, since_s = self._running.pop(invocation_id)
        response = None
        if status == "ok":
            response = {
                "invocation_id": invocation_id,
                "env_steps": invocation.event["fragment_steps"],
                "status": ACCEPTED if invocation_id in self.accepted else LATE,
            }
        outcome = Outcome(
            invocation_id,
            status,
            response=response,
            error=play.error or f"ended as {status}",
            billed_s=min(self._clock() - since_s, self.timeout_s),
            init_s=play.init_s,
            is_metered=play.is_metered,
        )
        self._ended.extend([outcome] * play.outcomes)
        self._begin()


class OrderedFleet:
    """Runs a handler in this process at the start of an invocation, which ends when its seconds are over.

    Time moves to the next end. An invocation of more than ``timeout_s`` is not run, and ends as timed out.
    """

    concurrency = 10**9

    def __init__(
        self,
        handler: Callable[[Mapping[str, Any], object], Mapping[str, Any]],
        lasts_s: Callable[[Mapping[str, Any]], float],
        *,
        timeout_s: float = 60.0,
    ) -> None:
        self._handler, self._lasts_s, self._timeout_s = handler, lasts_s, timeout_s
        self._now_s, self._order = 0.0, itertools.count()
        self._agenda: list[tuple[float, int, Outcome]] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        for one in invocations:
            wanted_s = self._lasts_s(one.event)
            seconds = min(wanted_s, self._timeout_s)
            outcome = Outcome(one.invocation_id, "timeout", error="timed out", billed_s=seconds)
            if wanted_s <= self._timeout_s:
                try:
                    response = self._handler(one.event, None)
                    outcome = Outcome(one.invocation_id, "ok", response, billed_s=seconds)
                except Exception as error:
                    outcome = replace(outcome, status="error", error=repr(error))
            heapq.heappush(self._agenda, (self._now_s + seconds, next(self._order), outcome))

    def wait(self, timeout_s: float) -> list[Outcome]:
        if not self._agenda:
            return []
        self._now_s, _, outcome = heapq.heappop(self._agenda)
        return [outcome]

    def abandon(self, invocation_ids: Sequence[str]) -> None: ...

    def close(self) -> None:
        self._agenda.clear()


@dataclass
class FakeLearner:
    """A learner with one weight, the sum of all rewards that it has seen. An update takes ``update_s``.

    It replays each batch at most ``replays_max`` times, oldest first, and none staler than ``staleness_max``.
    """

    clock: ManualClock
    update_s: float = 0.25
    policy_version: int = 1
    weight: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    progresses: list[float] = field(default_factory=list)
    metrics: Callable[[int], Mapping[str, float]] = lambda version: {}
    replays_max: int = 0
    staleness_max: int = 0
    kept: deque[tuple[Batch, int]] = field(default_factory=deque)
    before_replay: Callable[[], None] = lambda: None
    trained: list[str] = field(default_factory=list)

    def weights(self) -> bytes:
        return f"weights {self.policy_version} {self.weight!r}".encode()

    def update(self, batch: Batch, *, progress: float) -> Update:
        self.batches.append(batch)
        self.trained += [
            digest(batch.rewards[:, column]) for column in range(batch.rewards.shape[1])
        ]
        if self.replays_max:
            self.kept.append((batch, self.replays_max))
        return self._learn(batch, progress, is_replay=False)

    def replay(self, *, progress: float) -> Update | None:
        self.before_replay()
        while self.kept:
            batch, uses = self.kept.popleft()
            if (self.policy_version - batch.policy_versions).max() <= self.staleness_max:
                if uses > 1:
                    self.kept.appendleft((batch, uses - 1))
                return self._learn(batch, progress, is_replay=True)
        return None

    def _learn(self, batch: Batch, progress: float, *, is_replay: bool) -> Update:
        self.clock.advance(self.update_s)
        self.progresses.append(progress)
        # The order changes the last bit, as in a real update.
        seen = zlib.crc32(batch.observations.tobytes(), int(abs(self.weight)) % 2**32)
        self.weight = float(seen) + float(batch.rewards.sum())
        staleness = self.policy_version - batch.policy_versions
        self.policy_version += 1
        metrics: dict[str, Any] = {
            "policy_loss": self.weight,
            "value_loss": 0.5,
            "entropy": 1.0,
            "kl": 0.01,
            "explained_variance": None,
            "learning_rate": 1.0 - progress,
            **self.metrics(self.policy_version),
        }
        rows = batch.rewards.size
        return Update(
            UpdateMetrics(**metrics),
            DetectorSamples(
                observations=batch.observations.reshape(rows, -1),
                actions=batch.actions.reshape(rows, -1),
                log_probs=batch.log_probs.reshape(rows),
                advantages=batch.rewards.reshape(rows).astype(np.float32),
                value_targets=np.zeros(rows, np.float32),
                old_outputs=np.zeros((rows, 2 * ACTION_SIZE), np.float32),
            ),
            staleness,
            is_replay,
        )

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> FakeProblem:
        return FakeProblem(None, None, None, None, self.policy_version, samples)  # type: ignore[arg-type]  # no network

    def get_state(self) -> State:
        return State(
            {"weight": np.array(self.weight)},
            {"policy_version": self.policy_version, "trained": list(self.trained)},
        )

    def set_state(self, state: State) -> None:
        self.weight = float(state.arrays["weight"])
        self.policy_version = int(state.values["policy_version"])
        self.trained = list(state.values["trained"])


@dataclass(frozen=True)
class FakeProblem(CurvatureProblem):
    """The input of `FakeDetector`."""

    policy_version: int = 0
    samples: DetectorSamples | None = None


def digest(rewards: np.ndarray) -> str:
    """Returns a digest that distinguishes a trajectory from all others."""
    return f"{zlib.crc32(np.ascontiguousarray(rewards).tobytes()):08x}{rewards.sum():.17g}"


class FakeDetector:
    """Keeps the first samples. Its ratio is a function of these and the policy version, or is given."""

    def __init__(
        self,
        clock: ManualClock,
        *,
        measure_s: float = 0.125,
        log: list[Any] | None = None,
        ratio: Callable[[int, DetectorSamples], float | None] | None = None,
    ) -> None:
        self._clock, self._measure_s = clock, measure_s
        self.objective = "log_prob"
        self._ratio = ratio or (lambda version, samples: 1.0 + abs(float(samples.advantages.sum())))
        self.log: list[Any] = log if log is not None else []
        self.measured: list[tuple[int, DetectorSamples]] = []

    def select(self, samples: DetectorSamples) -> DetectorSamples:
        return DetectorSamples(**{name: array[:4] for name, array in vars(samples).items()})

    def measure(self, problem: CurvatureProblem) -> Detected:
        assert isinstance(problem, FakeProblem)
        assert problem.samples is not None
        self._clock.advance(self._measure_s)
        self.log.append(("measure", problem.policy_version))
        self.measured.append((problem.policy_version, problem.samples))
        ratio = self._ratio(problem.policy_version, problem.samples)
        return Detected(products=5) if ratio is None else Detected(-1.0, ratio, ratio, products=5)


class FakeEvaluator:
    """A `runtime.training.evaluations.PolicyEvaluator` that returns given results, one per call; the last one repeats.

    Each takes ``evaluate_s``, spent entirely in waiting for its result.
    """

    def __init__(
        self, clock: ManualClock, returns: Sequence[float] = (0.0,), *, evaluate_s: float = 0.5
    ) -> None:
        self._clock, self._returns, self._evaluate_s = clock, returns, evaluate_s
        self.weights: list[bytes] = []

    def begin(self, weights: bytes, round_index: int) -> None:
        self.weights.append(weights)

    def result(self, timeout_s: float) -> Evaluation:
        self._clock.advance(min(self._evaluate_s, timeout_s))
        if self._evaluate_s > timeout_s:
            raise BudgetError("it takes longer; raise learner.update_timeout_s")
        value = self._returns[min(len(self.weights), len(self._returns)) - 1]
        return Evaluation((value - 1.0, value + 1.0), (10, 20), self._evaluate_s)


@dataclass
class FakeRun:
    """What a loop uses of a `runtime.training.opening.Run`."""

    experiment: Any
    fleet: Any
    cache: FakeCache
    meter: Meter
    events: EventSink
    save_ledger: Callable[[], None]
    actor_event: Mapping[str, Any]

    @property
    def spaces(self) -> Spaces:
        return SPACES

    @property
    def resources(self) -> Resources:
        return Resources(self.cache, self.fleet, self.meter, {}, {})

    def loop(
        self,
        learner: Learner,
        detector: Detector,
        evaluator: PolicyEvaluator,
        clock: ManualClock,
        save_round: SaveRound,
        shield: Callable[[], AbstractContextManager[None]],
        patience: Patience,
    ) -> RoundLoop:
        """Returns a loop without callbacks."""
        roles = make_roles(
            cast("Run", self),
            updater=InPlaceUpdater(learner),
            detector=detector,
            evaluator=evaluator,
            clock=clock,
            time_limit=clock.time_limit,
            patience=patience,
        )
        return RoundLoop(roles, Callbacks([]), save_round, shield)


if TYPE_CHECKING:
    # The type checker checks these against their ports.
    _CACHE: type[Cache] = FakeCache
    _FLEETS: list[type[Fleet]] = [FakeFleet, TimedFleet, OrderedFleet]
    _LEARNER: type[Learner] = FakeLearner
    _DETECTOR: type[Detector] = FakeDetector
