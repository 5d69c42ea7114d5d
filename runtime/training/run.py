"""Trains one experiment: assembles the parts, runs the loop, and closes everything."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambda_actor.errors import ActorError
from lambda_actor.trial import TriedEnvironment, dropped
from runtime.errors import ActorsKeepFailingError, RunDirectoryError, RunError
from runtime.experiment.resolved import (
    ResolvedEnvironment,
    ResolvedExperiment,
)
from runtime.fleet.prewarm import prewarm
from runtime.gmi.settling import settled
from runtime.learner.interfaces import Updater
from runtime.money.prices import prices_to_json
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, save_checkpoint
from runtime.records.events import EventLog
from runtime.records.files import remove, to_json, write_atomically
from runtime.records.observers import Display, EventSink, Observer, tell_round
from runtime.records.policy_file import save_policy
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show.report import try_to_write_report
from runtime.show.wandb_log import WandbLog
from runtime.training.callbacks import Callbacks, make_callbacks
from runtime.training.evaluation_process import EvaluationProcess
from runtime.training.evaluations import BestPolicy
from runtime.training.interfaces import (
    Backend,
    Callback,
    PolicyEvaluator,
    RunContext,
)
from runtime.training.preflight import preflight
from runtime.training.resume import (
    check_same_experiment,
    continue_rounds,
    count_what_was_spent,
    finished_summary,
    stored_experiment,
)
from runtime.training.signals import Interrupted, ShieldedFleet, Signals
from runtime.training.summary import summarise

_REPLAYED_PERCENT_MAX = 100
"""Percentage of replayed over sampled steps above which people get advice."""


@dataclass(frozen=True)
class RunResult:
    """The result of a training.

    Attributes:
        summary: The contents of `summary.json`.
        exit_code: 0; 1 if it failed; 128 plus the signal's number if it was interrupted.
        error: The error; None if it did not fail.
        had_ended: Whether nothing was trained, because the run had ended before.
    """

    summary: Mapping[str, Any]
    exit_code: int = 0
    error: Exception | None = None
    had_ended: bool = False


def train(
    experiment: ResolvedExperiment,
    out: Path,
    *,
    backend: Backend,
    resume: bool,
    display: Display,
    name: str,
    wandb: WandbLog | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Trains until there is a reason to stop.

    Args:
        experiment: Resolved.
        out: The run's directory.
        backend: Where the run takes place.
        resume: Continue the run in ``out``; start a new one if it is empty.
        display: Shows the run.
        name: The experiment's name, for people.
        wandb: Also shows the run in Weights & Biases.
        callbacks: Called after the experiment's own callbacks.

    Raises:
        RunError: Nothing was started: the experiment, the directory, the server, the checkpoint or W&B is not usable.
        Interrupted: A signal arrived before the first round.
    """
    environment, fitted = preflight(
        experiment, backend.prices, is_billed=backend.cost_basis == "metered"
    )
    told = make_callbacks(fitted, callbacks)
    with ExitStack() as stack:
        signals = Signals()
        directory = RunDirectory(out)
        stack.callback(directory.close)
        backend.fetch(directory)
        if directory.holds_run and not resume:
            raise RunDirectoryError(
                f"--out {out}: holds a run already; continue it with --resume, or name another"
            )
        stored = stored_experiment(directory) if directory.holds_run else None
        instances = ""
        if fitted.learner.has_actors:
            fitted, instances = settled(fitted, stored, is_alone=bool(environment.shared))
        if stored is not None:
            check_same_experiment(fitted, stored, directory)
        finished = finished_summary(fitted, directory) if resume else None
        if wandb is not None:
            stack.callback(wandb.close)
            # W&B also gets the missing part of a finished run.
            wandb.open(fitted, directory, name)
        if finished is not None:
            return RunResult(finished, had_ended=True)
        stack.enter_context(signals)
        try:
            events = EventLog(directory.path / layout.EVENTS)
            run = _Run(
                RunContext(
                    experiment=fitted,
                    spaces=environment.spaces,
                    run_id=uuid.uuid4().hex,
                    directory=directory,
                    events=events,
                    stack=stack,
                    shield=signals.shield,
                ),
                directory,
                backend,
                signals,
                display,
                wandb,
                told,
                {"layout": instances} if instances else {},
            )
            run.open()
            events.listen(display.event)
            run.begin(environment, is_resumption=resume)
        except BaseException:
            # Close all that was opened, without interruption.
            signals.ignore()
            raise
        return run.to_the_end(name)


class _Run:
    """One process' share of a run: from its start or resumption to its end."""

    def __init__(
        self,
        context: RunContext,
        directory: RunDirectory,
        backend: Backend,
        signals: Signals,
        display: Display,
        wandb: WandbLog | None,
        callbacks: Callbacks,
        facts: Mapping[str, str],
    ) -> None:
        self._facts = facts
        self._context, self._directory, self._backend, self._signals = (
            context,
            directory,
            backend,
            signals,
        )
        self._display, self._wandb, self._callbacks = display, wandb, callbacks
        self._experiment, self._events = context.experiment, context.events
        self._started_s, self._was_resumed = time.monotonic(), directory.holds_run
        self._identity = context.experiment.identity

    def open(self) -> None:
        """Opens fleets and processes, which the context's stack closes, and assembles the loop."""
        # Threads that spin while they wait make a busy machine ten times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Imported late: torch takes seconds to import, and checks that can refuse a run do not need it.
        from runtime.training.assembly import Equipment, make_round_loop
        from runtime.training.books import Books
        from runtime.training.detection import make_detector
        from runtime.training.saving import Saving
        from runtime.training.timing import Timing

        experiment, signals = self._experiment, self._signals
        self._supplies = supplies = self._backend.supply(self._context)
        self._meter, self._keeping = supplies.meter, supplies.keeping
        self._actor_event = {
            "run_id": self._context.run_id,
            "fragment_steps": experiment.actor.fragment_steps,
            "seed": experiment.seed,
            **environment_event(experiment.environment),
            **supplies.actor_event,
        }
        equipment = Equipment(
            updater=self._open_updater(),
            detector=make_detector(experiment),
            fleet=ShieldedFleet(supplies.fleet, signals),
            cache=supplies.cache,
            evaluator=self._open_evaluator(),
            actor_event=self._actor_event,
            spaces=self._context.spaces,
        )
        self._loop = make_round_loop(
            experiment,
            equipment,
            books=Books(self._meter, self._events, self._save_ledger),
            saving=Saving(self._save_round, signals.shield),
            timing=Timing(signals.time_limit),
            callbacks=self._callbacks,
        )

    def _open_updater(self) -> Updater:
        from runtime.learner import LearnerSpec, device_of, make_learner
        from runtime.learner.functions.invoking import Remote

        experiment, section, supplies, stack = (
            self._experiment,
            self._experiment.learner,
            self._supplies,
            self._context.stack,
        )
        spec = LearnerSpec(
            experiment.algorithm,
            self._context.spaces,
            experiment.network.architecture,
            experiment.seed,
            section.threads,
            experiment.network.initial_std,
        )
        device = device_of(section.device)
        # A copy of a learner elsewhere needs no GPU.
        learner = make_learner(spec, device="cpu" if section.has_actors else device)
        remote = (
            None
            if supplies.learner_fleet is None
            else Remote(
                spec,
                ShieldedFleet(supplies.learner_fleet, self._signals),
                supplies.learner_store,
                self._context.run_id,
                self._meter,
                self._save_ledger,
                self._events,
                supplies.instances,
                device,
                section.update_timeout_s,
            )
        )
        updater: Updater = section.make(learner, remote)
        stack.callback(updater.close)
        return updater

    def _open_evaluator(self) -> PolicyEvaluator:
        environment, section = self._experiment.environment, self._experiment.evaluation
        evaluator = EvaluationProcess(
            environment.id,
            environment.preprocessing,
            environment.options,
            episodes=section.episodes,
            seed=self._experiment.seed,
            is_stochastic=section.actions == "stochastic",
            target_return=self._experiment.stop.target_return,
            tell=self._display.evaluating,
        )
        self._context.stack.callback(evaluator.close)
        return evaluator

    def begin(self, tried: TriedEnvironment, *, is_resumption: bool) -> None:
        """Restores the directory's state, and reports the start."""
        from runtime.show.tensorboard_log import TensorBoardLog

        directory, experiment = self._directory, self._experiment
        rows = continue_rounds(self._loop, directory, self._identity, self._events)
        self._keep_best(self._loop.best)
        count_what_was_spent(
            self._meter,
            directory.path / layout.LEDGER,
            self._events,
            elsewhere_usd=self._keeping.spent_usd(),
            save_ledger=self._save_ledger,
        )
        write_atomically(directory.path / layout.CONFIG, experiment.to_yaml().encode())
        write_atomically(directory.path / layout.PRICES, prices_to_json(self._backend.prices))
        # A killed run may not have flushed its last rounds, so all are rewritten.
        tensorboard = TensorBoardLog(directory.path / layout.TENSORBOARD, time.time)
        tensorboard.add(rows)
        shown = [self._wandb] if self._wandb is not None else []
        self._observers = [
            tensorboard,
            *shown,
            _Report(directory.path, self._events),
            self._keeping,
            self._display,
        ]
        remove(directory.path / layout.SUMMARY)
        remove(directory.path / layout.REPORT)
        facts = {
            **self._supplies.facts,
            **self._facts,
            **episode_facts(experiment.environment, experiment.actor.fragment_steps, tried),
            **({"wandb": self._wandb.place} if self._wandb is not None else {}),
        }
        warnings = _warnings(experiment.environment, tried)
        done = self._loop.progress.round_index
        self._events.append(
            "run_started",
            run_id=self._context.run_id,
            resumed_after_round=done,
            cost_basis=self._backend.cost_basis,
            **facts,
            **warnings,
        )
        resumed = {
            "resumed": f"after round {done}" if done else "no finished round is there: begun anew"
        }
        self._display.started(
            experiment,
            {
                "results": str(directory.path),
                **facts,
                **(resumed if is_resumption else {}),
                **{f"! {subject}": text for subject, text in warnings.items()},
            },
        )

    def to_the_end(self, name: str) -> RunResult:
        """Runs the loop, and leaves a summary in any case."""
        stop_reason, exit_code, error = self._run_loop()
        self._signals.ignore()
        self._meter.forfeit()
        rows: list[RoundRow] = []
        try:
            rows = self._directory.read_rounds()
        except RunDirectoryError as failure:
            # Another program wrote there; that must not hide how the run ended.
            if not exit_code:
                stop_reason, exit_code, error = "failed", 1, failure
        summary: Mapping[str, Any] = summarise(
            rows,
            name=name,
            experiment=self._experiment,
            backend=self._backend,
            best=self._best,
            stop_reason=stop_reason,
            error=_text(error),
            spent_usd=self._meter.spent_usd,
            session_s=time.monotonic() - self._started_s,
            was_resumed=self._was_resumed,
        )
        for finish in (
            self._write_end,
            *(observer.on_end for observer in [*self._observers, self._callbacks]),
        ):
            try:
                finish(summary)
            except (RunError, OSError) as failure:
                # A full disk or a lost bucket must not hide an earlier reason for the run's end.
                if not exit_code:
                    exit_code, error = 1, failure
        if error is not None and not _is_foreseen(error):
            # A bug in this program: recorded like any other end, and shown with its traceback.
            raise error
        return RunResult({**summary, "error": _text(error) or None}, exit_code, error)

    def _write_end(self, summary: Mapping[str, Any]) -> None:
        self._save_ledger()
        self._events.append("run_ended", stop_reason=summary["stop_reason"], error=summary["error"])
        write_atomically(self._directory.path / layout.SUMMARY, to_json(summary))

    def _run_loop(self) -> tuple[str, int, Exception | None]:
        """Runs the loop; returns the stop reason, the exit code, and the error."""
        try:
            self._prewarm()
            self._keeping.begins()
            return self._loop.run(), 0, None
        except (Interrupted, KeyboardInterrupt) as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            return "interrupted", 128 + number, None
        except Exception as failure:
            return "failed", 1, failure

    def _prewarm(self) -> None:
        """Checks that actors start and reach the cache."""
        if not self._supplies.prewarmed_actors:
            return

        def start() -> None:
            prewarm(
                self._loop.flight,
                self._meter,
                self._events,
                actors=self._supplies.prewarmed_actors,
                event=self._actor_event,
                timeout_s=self._experiment.actor.timeout_s,
                save_ledger=self._save_ledger,
            )

        try:
            start()
        except ActorsKeepFailingError:
            # Try once more, since all of a few actors may fail by chance.
            start()

    def _save_ledger(self) -> None:
        ledger = to_json(self._meter.get_state())
        self._keeping.ledger_changed(ledger)
        write_atomically(self._directory.path / layout.LEDGER, ledger)

    def _save_round(
        self, row: RoundRow, checkpoint: Checkpoint, policy: bytes, best: BestPolicy | None
    ) -> None:
        self._directory.append_round(row)
        # Before the checkpoint: a run with its last checkpoint has nothing left to do.
        save_policy(
            self._directory.path / layout.POLICY,
            policy,
            environment_id=self._experiment.environment.id,
        )
        if best is not self._best:
            self._keep_best(best)
        save_checkpoint(
            self._directory.path / layout.CHECKPOINTS,
            Checkpoint(
                checkpoint.round_index,
                checkpoint.arrays,
                {**checkpoint.values, "experiment": self._identity},
            ),
        )
        tell_round(self._observers, row)

    def _keep_best(self, best: BestPolicy | None) -> None:
        """Puts the best policy on disk, or removes one that a killed process wrote after its last checkpoint."""
        path = self._directory.path / layout.BEST_POLICY
        if best is None:
            remove(path)
        else:
            save_policy(path, best.weights, environment_id=self._experiment.environment.id)
        self._best = best


class _Report(Observer):
    """Writes the report of an ended run."""

    def __init__(self, directory: Path, events: EventSink) -> None:
        self._directory, self._events = directory, events

    def on_end(self, summary: Mapping[str, Any]) -> None:
        if why := try_to_write_report(self._directory):
            self._events.append("report_failed", error=why)


def environment_event(environment: ResolvedEnvironment) -> dict[str, Any]:
    """Returns the fields of an actor's event that describe its environment."""
    return {
        **({"environment_options": environment.options} if environment.options else {}),
        "environment_id": environment.id,
        "preprocessing": environment.preprocessing,
        "truncate_at_fragment": environment.truncate_at_fragment,
        **({"replay": environment.replay} if environment.replay else {}),
        **({"drop_unfinished": True} if environment.dropped_because else {}),
    }


def episode_facts(
    environment: ResolvedEnvironment, steps: int, tried: TriedEnvironment
) -> dict[str, str]:
    """Returns facts about replayed episodes, for people.

    Args:
        steps: Length of a fragment.
    """
    if not environment.replay:
        return {}
    longest, why = (
        environment.replay_steps_max + 1,
        f"{tried.cannot_save_reason}. " if tried.state_bytes else "",
    )
    again, fewest = (round(100 * longest / (2 * length)) for length in (steps, max(steps, longest)))
    return {
        "episodes": (
            f"{why}If the end of a fragment cuts an episode, the next actor first "
            f"replays it from its start. With episodes "
            f"of {longest:,} steps, that is about {again:,} steps for each 100 new ones"
            + (
                f", and about {fewest} with actor.fragment_steps={longest}"
                if again > _REPLAYED_PERCENT_MAX
                else ""
            )
        )
    }


def trial_warnings(environment: ResolvedEnvironment, tried: TriedEnvironment) -> dict[str, str]:
    """What people should know of an environment before actors play it, by subject."""
    problem = environment.dropped_because
    return tried.warnings | ({"dropped": dropped(problem)} if problem else {})


def _warnings(environment: ResolvedEnvironment, tried: TriedEnvironment) -> dict[str, str]:
    """Returns warnings for people before the first round, by subject."""
    from runtime.learner.fast import why_off

    slow = why_off()
    return trial_warnings(environment, tried) | (
        {"updates": f"they are slower than they could be: {slow}"} if slow else {}
    )


def _is_foreseen(error: Exception) -> bool:
    return isinstance(error, RunError | ActorError | OSError)


def _text(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
