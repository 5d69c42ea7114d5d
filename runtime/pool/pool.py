"""A pool of actors for a trainer of your own, within a budget.

A call requests a fragment from each of several actors. Its worst case is reserved before anything starts, and settled
actor by actor. Failed actors are replaced, with the same random numbers. Later calls continue open episodes, bit for
bit. Each finished call is a row of `rounds.jsonl`.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from lambda_actor.errors import ActorError, WireError
from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError, RunError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.episodes import continued_episode
from runtime.fleet.flight import Group
from runtime.fleet.opening import ShieldedStack
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.pool.calls import (
    Call,
    CallRecords,
    Reservations,
    check_continues,
    environment_and_seed,
)
from runtime.pool.policies import Published
from runtime.pool.trajectory import Trajectory, for_trainers
from runtime.records.layout import default_directory
from runtime.records.observers import Display
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.records.state import State
from runtime.records.trust import load_file_or_dict
from runtime.show.display import PoolDisplay
from runtime.training.backends import make_backend
from runtime.training.opening import Backend, open_run
from runtime.training.preflight import preflight
from runtime.training.roles import PATIENCE, Rollouts
from runtime.training.trial import PATIENCE_S

_LOOK_S = 1.0


class ActorPool:
    """Actors that sample for a trainer of your own: processes here, AWS Lambda, or a Ray cluster."""

    def __init__(
        self,
        experiment: str | os.PathLike[str] | Mapping[str, Any],
        *,
        budget_usd: float | None = None,
        out: str | os.PathLike[str] | None = None,
        overrides: Iterable[str] = (),
        is_quiet: bool = False,
        trust: bool = False,
    ) -> None:
        """Tries the environment, checks the budget, and starts the actors' processes or connections.

        Args:
            experiment: An experiment file, or its content as a dict. The pool reads ``environment``, ``actor``,
                ``fleet``, ``cache`` and ``scaler``, which sets the most actors of a call. The default of ``cache.kind``
                is ``none``.
            budget_usd: Total that it may ever spend; None = ``budget.usd`` of the experiment.
            out: Directory for the records. An earlier pool in it with the same ``environment`` and ``seed`` is
                continued, and its costs count. None makes a directory below ``runs``.
            overrides: Keys to change, each ``section.key=value``.
            is_quiet: Print nothing but warnings, on stderr.
            trust: Whether to run code that the file names, even if it is a downloaded run's.

        Raises:
            RunError: It cannot begin; the message says why. Nothing was spent.
            UnusableEnvironmentError: The environment does not work.
        """
        name = "pool" if isinstance(experiment, Mapping) else f"{Path(experiment).stem}-pool"
        own: dict[str, dict[str, Any]] = {
            "learner": {"kind": "external"},
            # Its actions are the trainer's own.
            "environment": {"rescale_actions": False},
        }
        if budget_usd is not None:
            own["budget"] = {"usd": budget_usd}
        resolved = load_file_or_dict(experiment, overrides, own, trust=trust).resolved()
        if not is_quiet:
            print(
                f"trying the environment: {resolved.environment.id}, up to {PATIENCE_S} s",
                flush=True,
            )
        backend = _backend_of(experiment, resolved)
        tried, fitted = preflight(resolved, backend)
        path = (
            Path(out)
            if out is not None
            else default_directory(name, resolved, datetime.datetime.now())
        )
        with ShieldedStack() as stack:
            directory = RunDirectory(path)
            stack.callback(directory.close)
            backend.fetch(directory)
            if was_resumed := directory.holds_run:
                check_continues(fitted, directory)
            self._run = run = open_run(fitted, tried, directory, backend, stack)
            display: Display = Display() if is_quiet else PoolDisplay(fitted, has_settings=False)
            stack.callback(display.close)
            self._records = CallRecords(run, display, name, was_resumed=was_resumed)
            run.take_over_spending(self._records.rows, self._records.save_ledger)
            run.write_settings()
            self._rollouts = Rollouts(run, self._records.save_ledger)
            self._reservations = Reservations(run, self._rollouts.flight, self._records.save_ledger)
            run.show_start(display, run.facts, run.warnings)
            for subject, text in run.warnings.items() if is_quiet else ():
                print(f"! {subject}: {text}", file=sys.stderr, flush=True)
            run.resources.elsewhere.begins()
            # On Lambda a pool has no cache.
            self._published = Published(run.spaces, has_cache=fitted.fleet.kind != "lambda")
            self._arrived: deque[Trajectory | Call] = deque()
            self._closed = ""
            self._lock = threading.RLock()
            self._run.stack = stack.pop_all()

    def __enter__(self) -> ActorPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end("the pool is closed", error)

    @property
    def directory(self) -> Path:
        """Returns where `rounds.jsonl`, the ledger, events and a report are."""
        return self._run.directory.path

    @property
    def rows(self) -> list[RoundRow]:
        """Returns the rows of finished calls, in order."""
        return self._records.rows

    @property
    def actors_max(self) -> int:
        """Returns the most actors of a call."""
        return self._run.experiment.scaler.most_actors

    @property
    def steps_max(self) -> int:
        """Returns the most steps of an actor."""
        return self._run.experiment.actor.fragment_steps

    @property
    def spaces(self) -> Spaces:
        """Returns the environment's spaces."""
        return self._run.spaces

    @property
    def spent_usd(self) -> float:
        """Returns the total cost in US dollars, with earlier pools in its directory."""
        return self._run.resources.meter.spent_usd

    @property
    def policy_version(self) -> int:
        """Returns the number of the newest call's policy, from 0; each different policy increases it."""
        return self._published.version

    def sample(self, policy: Any, *, actors: int, steps: int | None = None) -> list[Trajectory]:
        """Makes actors play a fragment each, and waits for them.

        Args:
            policy: A policy from `load_policy` or `numpy_policy`, or an `OnnxPolicy`.
            actors: Fragments, at most ``scaler.actors_fixed``, or the most actors of another scaler.
            steps: Steps per fragment, at most ``actor.fragment_steps``, which is the default.

        Returns:
            One trajectory per actor, in the order of their slots.

        Raises:
            BudgetError: It does not fit the budget. Nothing was started.
            ActorsKeepFailingError: Some actors returned nothing in three tries each. `as_completed` has the other
                trajectories.
            RunError: The pool is closed, or an argument is not allowed.
        """
        with self._in_turn():
            call = self._start(policy, actors, steps, handed_over=None)
        while not call.has_ended:
            self._advance()
        trajectories = list(map(for_trainers, call.trajectories))
        if call.error:
            self._arrived.extend(trajectories)
            raise call.failure()
        return trajectories

    def submit(self, policy: Any, *, actors: int, steps: int | None = None) -> Call:
        """Starts a call and returns at once; `as_completed` has its trajectories. Otherwise like `sample`."""
        with self._in_turn():
            return self._start(policy, actors, steps, handed_over=0)

    def as_completed(self) -> Iterator[Trajectory]:
        """Yields the trajectories of submitted calls as they arrive, until none is in flight.

        Raises:
            ActorsKeepFailingError: An actor returned nothing in three tries. The others' trajectories remain available.
        """
        while self._arrived or self._records.in_flight:
            with self._lock:
                arrived = self._arrived.popleft() if self._arrived else None
            if arrived is None:
                self._advance()
            elif isinstance(arrived, Call):
                raise arrived.failure()
            else:
                yield arrived

    def collect(self) -> list[Trajectory]:
        """Waits for all submitted calls; as `as_completed`, in the order of calls and slots."""
        trajectories: list[Trajectory] = []
        try:
            trajectories.extend(self.as_completed())
        except RunError:
            self._arrived.extendleft(trajectories)
            raise
        return sorted(trajectories, key=lambda trajectory: (trajectory.call, trajectory.slot))

    def state(self) -> bytes:
        """Returns the state that later calls depend on, for a checkpoint: open episodes, and the number of calls.

        Raises:
            RunError: Calls are in flight, or trajectories have not been taken.
        """
        self._check_idle("the pool's state is")
        episodes = self._rollouts.episodes.get_state()
        values = {
            "experiment": environment_and_seed(self._run.experiment),
            "calls": self._records.number,
            "episodes": episodes.values,
            "spent_usd": self.spent_usd,
            "policy_version": self.policy_version,
        }
        return encode_state(State(episodes.arrays, values))

    def load_state(self, state: bytes) -> None:
        """Restores a state of `state`. The rows of later calls are removed; their costs still count.

        Raises:
            RunError: It is not a state of a pool of this experiment, or calls are in flight.
        """
        with self._in_turn():
            self._check_idle("load_state is")
            try:
                decoded = decode_state(state)
                values = decoded.values
                mine = json.loads(json.dumps(environment_and_seed(self._run.experiment)))
                if values["experiment"] != mine:
                    raise RunError(
                        "the state is of a pool of another experiment; allowed: the same environment and "
                        "seed"
                    )
                number = int(values["calls"])
                spent_usd = float(values["spent_usd"])
                self._rollouts.episodes.set_state(State(decoded.arrays, values["episodes"]))
                self._published.never_reuse(int(values["policy_version"]))
            except (WireError, ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"this is no state of a pool: {type(error).__name__}: {error}"
                ) from None
            self._records.go_back(number)
            self._run.resources.meter.budget.spend(max(0.0, spent_usd - self.spent_usd))
            self._records.save_ledger()

    def close(self) -> None:
        """Abandons and settles calls in flight, writes the report, and ends everything that was started; idempotent."""
        self._end("the pool is closed")

    def _end(self, why: str, error: BaseException | None = None) -> None:
        is_first = not self._closed
        self._closed = self._closed or why
        # A thread that waits for its call sees that it is closed.
        with self._lock:
            if not is_first:
                return
            with self._run.stack:
                try:
                    with suppress(ActorError, RunError):
                        self._rollouts.flight.end("the run ends")
                    self._reservations.close()
                    self._run.resources.meter.forfeit()
                    self._records.close(error)
                finally:
                    self._records.save_ledger()

    def _check_idle(self, what: str) -> None:
        """Checks that nothing is in flight, and everything is taken.

        Raises:
            RunError: It is not.
        """
        waiting = sum(isinstance(arrived, Trajectory) for arrived in self._arrived)
        if (calls := len(self._records.in_flight)) or waiting:
            raise RunError(
                f"{what} between calls: {calls} are in flight, and {waiting} trajectories are not taken; take "
                "them with as_completed first"
            )

    # One call

    def _start(
        self, policy: Any, actors: int, steps: int | None, *, handed_over: int | None
    ) -> Call:
        steps = self.steps_max if steps is None else steps
        for name, value, most, key in (
            ("actors", actors, self.actors_max, "the scaler's most actors"),
            ("steps", steps, self.steps_max, "actor.fragment_steps"),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise RunError(
                    f"{name} = {value!r} is not allowed; allowed: 1 to {most}, {key} of the experiment"
                )
        self._published.take(policy)
        flight = self._rollouts.flight
        # Actors that cannot run at once are queued, also behind actors of earlier calls.
        batches = math.ceil((len(flight.in_flight) + actors) / flight.concurrency)
        now_s = time.monotonic()
        number = self._records.number + 1
        until_s = now_s + batches * self._run.experiment.fleet.round_deadline_s
        with self._reservations.of_call(number, actors, until_s) as works:
            call = Call(
                number,
                self._rollouts.spec(
                    number,
                    self._published.version,
                    self._published.weights,
                    timeout_s=self._run.experiment.actor.timeout_s,
                    fragment_steps=steps,
                ),
                # After `load_state`, no other invocation may have had an id.
                Group(f"c{number}-{time.monotonic_ns()}", PATIENCE.attempts, until_s),
                now_s,
                self._run.resources.meter.reserved_usd,
                handed_over,
            )
            with self._unbroken():
                self._records.number = number
                self._records.save_ledger()
                flight.publish(self._published.version, self._published.weights)
                taken = {actor.episode_id for actor in flight.in_flight.values()}
                for other in self._records.in_flight:
                    taken |= set(map(continued_episode, other.group.came))
                self._records.calls[number] = call
                episodes = self._rollouts.episodes.not_in(taken)
                flight.start(call.group, call.spec, works, range(actors), episodes)
        return call

    def _advance(self) -> None:
        """Waits for the next actor to end, or for a deadline."""
        with self._in_turn(), self._unbroken():
            flight = self._rollouts.flight
            calls = self._records.in_flight
            until_s = min((call.group.until_s for call in calls), default=math.inf)
            left_s = until_s - time.monotonic()
            # The flight checks now and then whether an abandoned actor has ended.
            if not flight.next(max(0.0, min(left_s, _LOOK_S))) and left_s <= 0:
                for call in calls:
                    if call.group.until_s <= time.monotonic():
                        late = [actor for actor in flight.awaited if actor.spec is call.spec]
                        flight.give_up(late, "the call's deadline passed")
                        call.group.until_s = math.inf
            for call in calls:
                if call.handed_over is not None:
                    self._arrived.extend(map(for_trainers, call.group.came[call.handed_over :]))
                    call.handed_over = len(call.group.came)
                if not call.group.in_flight:
                    self._finish(call)

    def _finish(self, call: Call) -> None:
        """Takes over the open episodes of a call whose actors have all ended, and writes its row."""
        episodes = self._rollouts.episodes
        episodes.take_over(call.trajectories)
        if not self._rollouts.flight.in_flight:
            self._rollouts.flight.tidy()
        seconds, standing_usd = self._reservations.finish(call)
        call.end(
            dropped=episodes.take_dropped(),
            seconds=seconds,
            standing_usd=standing_usd,
        )
        self._records.save_ledger()
        self._records.write()
        if call.error and call.handed_over is not None:
            self._arrived.append(call)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """A block for one thread at a time, until the pool is closed."""
        with self._lock:
            if self._closed:
                raise RunError(f"{self._closed}; open another one on {self.directory}")
            yield

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """A block that, if interrupted, ends all sampling."""
        try:
            yield
        except BaseException as error:
            self._end(f"the pool ended with {type(error).__name__}: {error}", error)
            raise


def _backend_of(
    experiment: str | os.PathLike[str] | Mapping[str, Any], resolved: ResolvedExperiment
) -> Backend:
    """Makes a pool's backend: this machine, a Ray cluster, or the actors that its experiment file deployed.

    Raises:
        ExperimentError: Its actors are in AWS, and it has no file.
    """
    if resolved.fleet.kind != "lambda":
        return make_backend(resolved)
    if isinstance(experiment, Mapping):
        raise ExperimentError(
            "fleet.kind = lambda: a dict names no deployment; allowed: the experiment file that was "
            "deployed, with overrides"
        )
    from runtime.aws.learner.external import PoolBackend, find_pool

    return PoolBackend(resolved, find_pool(Path(experiment).stem))
