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
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any

from lambda_actor.errors import ActorError, WireError
from lambda_actor.spaces import Spaces
from runtime.errors import ActorsKeepFailingError, BudgetError, ExperimentError, RunError
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment
from runtime.fleet.episodes import continued_episode
from runtime.fleet.flight import Group
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Work
from runtime.pool.call import Call, missing, row_of
from runtime.pool.policies import Published
from runtime.pool.records import calls_in, check_continues, of_records, stop_reason_of
from runtime.pool.standing import StandingWindow
from runtime.pool.trajectory import Trajectory, for_trainers
from runtime.records import layout
from runtime.records.files import to_json, write_atomically
from runtime.records.layout import default_directory
from runtime.records.observers import Display
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.records.state import State
from runtime.records.trust import load_trusted_experiment
from runtime.show.display import PoolDisplay
from runtime.show.report import try_to_write_report
from runtime.training.backends import make_backend
from runtime.training.opening import Backend, Run, ShieldedStack
from runtime.training.preflight import preflight
from runtime.training.roles import PATIENCE, Rollouts
from runtime.training.round_money import RoundMoney
from runtime.training.summary import summarise
from runtime.training.trial import PATIENCE_S

_LOOK_S = 1.0


class ActorPool:
    """Actors that sample for a trainer of your own: processes here, AWS Lambda, or a Ray cluster.

    Attributes:
        directory: Contains `rounds.jsonl`, the ledger, events and a report.
        rows: Rows of finished calls, in order.
        actors_max, steps_max: Most actors of a call, and most steps of each.
    """

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
        written, name = _loaded(experiment, budget_usd, list(overrides), trust=trust)
        resolved = written.resolved()
        if not is_quiet:
            print(
                f"trying the environment: {resolved.environment.id}, up to {PATIENCE_S} s",
                flush=True,
            )
        backend = _backend_of(experiment, resolved)
        tried, self._experiment = preflight(
            resolved, backend.prices, is_billed=backend.cost_basis == "metered"
        )
        self._name = name
        self.actors_max, self.steps_max = resolved.scaler.most_actors, resolved.actor.fragment_steps
        path = (
            Path(out)
            if out is not None
            else default_directory(name, resolved, datetime.datetime.now())
        )
        with ShieldedStack() as stack:
            directory = RunDirectory(path, is_pool=True)
            stack.callback(directory.close)
            backend.fetch(directory)
            self._was_resumed = directory.holds_run
            if self._was_resumed:
                check_continues(self._experiment, directory)
            self._run = run = Run(self._experiment, tried, directory, backend, stack)
            self.directory, self.rows = path, run.rows
            # One that was killed may have had trajectories of calls that have no row.
            self._number = self._written = max(
                [calls_in(path), *(row.round_index for row in self.rows)]
            )
            directory.keep_rounds(self.rows)
            self._events, self._meter = run.events, run.resources.meter
            run.take_over_spending(self._save)
            run.write_settings()
            self._rollouts = Rollouts(
                run, run.resources.fleet, self._save, event=lambda: run.actor_event
            )
            self._flight, self._episodes = self._rollouts.flight, self._rollouts.episodes
            self._display: Display = Display() if is_quiet else PoolDisplay(resolved)
            run.show_start(self._display, run.facts, run.warnings)
            for subject, text in run.warnings.items() if is_quiet else ():
                print(f"! {subject}: {text}", file=sys.stderr, flush=True)
            run.resources.elsewhere.begins()
            self._stack = stack.pop_all()
        # On Lambda a pool has no cache.
        is_lambda = resolved.fleet.kind == "lambda"
        self._published = Published(run.spaces, has_cache=not is_lambda)
        self._calls: dict[int, Call] = {}
        self._ready: deque[Trajectory] = deque()
        self._failed: deque[Call] = deque()
        self._waiting: dict[int, dict[str, Any]] = {}
        self._loads, self._env_steps = 0, sum(row.env_steps for row in self.rows)
        self._money = RoundMoney(
            self._experiment,
            self._meter,
            self._events,
            self._save,
            concurrency=self._flight.concurrency,
        )
        self._standing = StandingWindow(self._money)
        self._started_s = self._finished_s = time.monotonic()
        self._lacked_budget = False
        self._closed, self._lock = "", threading.RLock()

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
    def spaces(self) -> Spaces:
        """Returns the environment's spaces."""
        return self._run.spaces

    @property
    def spent_usd(self) -> float:
        """Returns the total cost in US dollars, with earlier pools in its directory."""
        return self._meter.spent_usd

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
            call = self._start(policy, actors, steps, is_streamed=False)
        while not call.has_ended:
            self._advance()
        found = list(map(for_trainers, call.came))
        if call.error:
            self._give_back(found)
            raise ActorsKeepFailingError(missing(call), call.error)
        return found

    def submit(self, policy: Any, *, actors: int, steps: int | None = None) -> Call:
        """Starts a call and returns at once; `as_completed` has its trajectories. Otherwise like `sample`."""
        with self._in_turn():
            return self._start(policy, actors, steps, is_streamed=True)

    def as_completed(self) -> Iterator[Trajectory]:
        """Yields the trajectories of submitted calls as they arrive, until none is in flight.

        Raises:
            ActorsKeepFailingError: An actor returned nothing in three tries. The others' trajectories remain available.
        """
        while self._ready or self._failed or self._calls:
            with self._lock:
                found = (
                    self._ready.popleft()
                    if self._ready
                    else self._failed.popleft()
                    if self._failed
                    else None
                )
            if found is None:
                self._advance()
            elif isinstance(found, Call):
                raise ActorsKeepFailingError(missing(found), found.error)
            else:
                yield found

    def _give_back(self, trajectories: Iterable[Trajectory]) -> None:
        """Has `as_completed` yield these."""
        self._ready.extend(trajectories)

    def state(self) -> bytes:
        """Returns the state that later calls depend on, for a checkpoint: open episodes, and the number of calls.

        Raises:
            RunError: Calls are in flight, or trajectories have not been taken.
        """
        if self._calls or self._ready:
            raise RunError(
                f"the pool's state is between calls: {len(self._calls)} are in flight, and "
                f"{len(self._ready)} trajectories are not taken; take them with as_completed first"
            )
        episodes = self._episodes.get_state()
        values = {
            "experiment": of_records(self._experiment),
            "calls": self._number,
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
            if self._calls or self._ready:
                raise RunError(
                    "load_state while calls are in flight, or trajectories are not taken"
                )
            try:
                found = decode_state(state)
                values = found.values
                if values["experiment"] != json.loads(json.dumps(of_records(self._experiment))):
                    raise RunError(
                        "the state is of a pool of another experiment; allowed: the same environment and "
                        "seed"
                    )
                calls, spent_usd = int(values["calls"]), float(values["spent_usd"])
                self._episodes.set_state(State(found.arrays, values["episodes"]))
                self._published.never_reuse(int(values["policy_version"]))
            except (WireError, ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"this is no state of a pool: {type(error).__name__}: {error}"
                ) from None
            self._number = self._written = calls
            self._loads += 1
            self.rows = [row for row in self.rows if row.round_index <= calls]
            self._run.directory.keep_rounds(self.rows)
            self._env_steps = sum(row.env_steps for row in self.rows)
            self._meter.add_spent(max(0.0, spent_usd - self.spent_usd))
            self._save()

    def close(self) -> None:
        """Abandons and settles calls in flight, writes the report, and ends everything that was started; idempotent."""
        self._end("the pool is closed")

    def _end(self, why: str, error: BaseException | None = None) -> None:
        is_first, self._closed = not self._closed, self._closed or why
        # A thread that waits for its call sees that it is closed.
        with self._lock:
            if is_first:
                self._end_all(*stop_reason_of(error, lacked_budget=self._lacked_budget))

    def _end_all(self, stop_reason: str, error: str) -> None:
        with self._stack:
            try:
                with suppress(ActorError, RunError):
                    self._flight.end("the run ends")
                self._standing.close()
                self._meter.forfeit()
                summary: Mapping[str, Any] = summarise(
                    self.rows,
                    name=self._name,
                    experiment=self._experiment,
                    backend=self._run.backend,
                    best=None,
                    stop_reason=stop_reason,
                    error=error,
                    spent_usd=self.spent_usd,
                    session_s=time.monotonic() - self._started_s,
                    was_resumed=self._was_resumed,
                )
                try:
                    write_atomically(self._run.directory.path / layout.SUMMARY, to_json(summary))
                    if why := try_to_write_report(self.directory):
                        self._events.append("report_failed", error=why)
                finally:
                    self._run.resources.elsewhere.on_end(summary)
            finally:
                self._save()
                self._display.close()

    # One call

    def _start(self, policy: Any, actors: int, steps: int | None, *, is_streamed: bool) -> Call:
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
        version, weights = self._published.version, self._published.weights
        # Actors that cannot run at once are queued, also behind those of earlier calls.
        waves = math.ceil((len(self._flight.in_flight) + actors) / self._flight.concurrency)
        now_s = time.monotonic()
        until_s = now_s + waves * self._experiment.fleet.round_deadline_s
        # After `load_state`, no other invocation may have had an id.
        load = f"l{self._loads}" if self._loads else ""
        self._lacked_budget = True
        with self._reserved(actors, until_s) as works:
            self._lacked_budget = False
            call = Call(
                self._number + 1,
                actors,
                self._rollouts.spec(
                    self._number + 1,
                    version,
                    weights,
                    timeout_s=self._experiment.actor.timeout_s,
                    fragment_steps=steps,
                ),
                Group(f"c{self._number + 1}{load}", PATIENCE.attempts, until_s),
                is_streamed,
                now_s,
                reserved_usd=self._meter.reserved_usd,
            )
            self._number, self._calls[call.number] = call.number, call
            with self._unbroken():
                self._save()
                self._flight.publish(version, weights)
                in_flight = {actor.episode_id for actor in self._flight.in_flight.values()}
                continued = {
                    id_
                    for one in self._calls.values()
                    for id_ in map(continued_episode, one.group.came)
                }
                waiting = self._episodes.not_in(in_flight | continued)
                self._flight.start(call.group, call.spec, works, count(), waiting)
        return call

    @contextmanager
    def _reserved(self, actors: int, until_s: float) -> Iterator[list[Work]]:
        """A block for which the worst case of these actors is reserved, with running resources until their deadline.

        Actors that it does not start are released, also after Ctrl-C.

        Raises:
            BudgetError: It does not fit; nothing is reserved.
        """
        works = [Work(ACTOR, slot) for slot in islice(self._flight.free_slots(), actors)]
        held = f", and calls in flight hold ${self._meter.reserved_usd:.6f}" if self._calls else ""
        free = f"${self._meter.free_usd:.6f} are free of ${self._experiment.budget.usd:g}{held}"
        limits = self._money.choose_limits(self._number + 1, actors)
        try:
            if self._standing.is_open:
                until_s = max(until_s, self._standing.until_s)
            if not self._standing.open(until_s, limits):
                if self._calls:
                    self._standing.open(self._standing.until_s, limits)
                raise BudgetError(
                    f"the budget does not hold another call: {free}, less than what stands for "
                    "one; nothing was started"
                )
            if (granted := self._meter.reserve(works)) < actors:
                raise BudgetError(
                    f"the budget does not hold another call of {actors} actors, only of {granted}: "
                    f"{free}; each actor may cost what it does until {limits.actor_s:.3g} s; nothing "
                    "was started"
                )
            yield works
        finally:
            for work in set(works) - {actor.work for actor in self._flight.in_flight.values()}:
                with suppress(BudgetError):
                    self._meter.cancel(work)
            if not self._calls:
                self._standing.close()

    def _advance(self) -> None:
        """Waits for the next actor to end, or for a deadline."""
        with self._in_turn(), self._unbroken():
            awaited = [call for call in self._calls.values() if not call.is_given_up]
            until_s = min((call.group.until_s for call in awaited), default=math.inf)
            left_s = until_s - time.monotonic()
            # The flight checks now and then whether an abandoned actor has ended.
            if not self._flight.next(max(0.0, min(left_s, _LOOK_S))) and left_s <= 0:
                for call in awaited:
                    if call.group.until_s <= time.monotonic():
                        self._give_up(call)
            for call in list(self._calls.values()):
                if call.is_streamed:
                    self._ready.extend(map(for_trainers, call.group.came[call.handed_over :]))
                    call.handed_over = len(call.group.came)
                if not call.group.in_flight:
                    self._finish(call)

    def _give_up(self, call: Call) -> None:
        """Takes the results at the deadline, without further waiting."""
        call.is_given_up = True
        actors = [one for one in self._flight.awaited if one.spec is call.spec]
        self._flight.give_up(actors, "the call's deadline passed")

    def _finish(self, call: Call) -> None:
        """Takes over the open episodes of a finished call, and writes its row."""
        del self._calls[call.number]
        came = call.came
        self._money.phases.saw(PhaseSeconds(actor_s=call.group.longest_s))
        replayed_steps = (
            self._episodes.replayed_steps(came) if self._experiment.environment.replay else None
        )
        self._episodes.take_over(came)
        if not self._calls:
            self._flight.tidy()
            self._standing.close()
        # The seconds of calls that overlap add up to those of the clock.
        since_s, self._finished_s = max(call.began_s, self._finished_s), time.monotonic()
        self._money.phases.saw(
            PhaseSeconds(collect_s=self._finished_s - call.began_s, sample_s=0.0)
        )
        self._money.phases.end_round()
        self._waiting[call.number] = row_of(
            call,
            came,
            replayed_steps=replayed_steps,
            dropped=self._episodes.take_dropped(),
            seconds=self._finished_s - since_s,
            standing_usd=self._standing.take_usd(),
        )
        self._save()
        while (found := self._waiting.pop(self._written + 1, None)) is not None:
            self._written += 1
            self._write(found)
        if len(came) < call.actors:
            call.error = call.group.tally.last_error or "the call's deadline passed"
            if call.is_streamed:
                self._failed.append(call)
        call.has_ended = True

    def _write(self, found: dict[str, Any]) -> None:
        """Writes the next row; a call that overtakes others waits for their rows."""
        self._env_steps += found["env_steps"]
        sums = {
            "env_steps_total": self._env_steps,
            "spent_usd": self._meter.spent_usd,
            "reserved_usd": self._meter.reserved_usd,
        }
        row = RoundRow(**found | sums)
        self._run.directory.append_round(row)
        self.rows.append(row)
        self._run.resources.elsewhere.on_round_end(row)
        self._display.on_round_end(row)

    def _save(self) -> None:
        self._run.save_ledger(calls=self._number)

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


def _loaded(
    experiment: str | os.PathLike[str] | Mapping[str, Any],
    budget_usd: float | None,
    overrides: list[str],
    *,
    trust: bool,
) -> tuple[Experiment, str]:
    """Returns the experiment of a pool, and its name."""
    if isinstance(experiment, Mapping):
        if overrides:
            raise ExperimentError("overrides are for an experiment file; change the dict instead")
        cache = experiment.get("cache", {})
        tree = {
            **experiment,
            "learner": {"kind": "external"},
            "cache": {"kind": "none", **cache} if isinstance(cache, Mapping) else cache,
        }
        if budget_usd is not None:
            tree["budget"] = {"usd": budget_usd}
        return experiment_from_tree(tree, source="experiment"), "pool"
    path = Path(experiment)
    own = [
        *overrides,
        "learner.kind=external",
        *([] if budget_usd is None else [f"budget.usd={budget_usd!r}"]),
    ]
    if "kind" not in load_trusted_experiment(path, overrides, trust=trust).cache.model_fields_set:
        own.append("cache.kind=none")
    return load_trusted_experiment(path, own, trust=trust), f"{path.stem}-pool"


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
    from runtime.aws.learner.external import PoolBackend
    from runtime.aws.learner.pool_stack import find_pool

    return PoolBackend(resolved, find_pool(Path(experiment).stem))
