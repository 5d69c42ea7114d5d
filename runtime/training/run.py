"""Trains one experiment: assembles the parts, runs the loop, and closes everything."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lambda_actor.errors import ActorError
from runtime.errors import RunDirectoryError, RunError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.opening import ShieldedStack
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, save_checkpoint
from runtime.records.files import remove, to_json, write_atomically
from runtime.records.observers import Display, Observer
from runtime.records.policy_file import save_policy
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show.report import try_to_write_report
from runtime.show.wandb_log import WandbLog
from runtime.training.callbacks import Callback, Callbacks, make_callbacks
from runtime.training.evaluation_process import EvaluationProcess
from runtime.training.evaluations import BestPolicy
from runtime.training.opening import Backend, Run, open_run
from runtime.training.preflight import preflight
from runtime.training.resume import (
    check_same_experiment,
    continue_rounds,
    finished_summary,
    stored_experiment,
)
from runtime.training.signals import Signals
from runtime.training.summary import summarise
from runtime.training.trial import start_process

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater


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
    environment, fitted = preflight(experiment, backend)
    made = make_callbacks(fitted, callbacks)
    signals, started_s = Signals(), time.monotonic()
    with ShieldedStack(signals.shield) as stack:
        directory = RunDirectory(out)
        stack.callback(directory.close)
        backend.fetch(directory)
        if layout.seeds_in(out):
            raise RunDirectoryError(f"--out {out}: holds runs of several seeds; name another")
        if directory.holds_run and not resume:
            raise RunDirectoryError(
                f"--out {out}: holds a run already; continue it with --resume, or name another"
            )
        stored = stored_experiment(directory) if directory.holds_run else None
        facts = {}
        changed: dict[str, str] = {}
        if stored is not None:
            fitted = fitted.learner.continued(fitted, stored)
            changed = check_same_experiment(fitted, stored, directory)
        finished = finished_summary(fitted, directory.path) if resume else None
        if wandb is not None:
            stack.callback(wandb.close)
            # W&B also gets the missing part of a finished run.
            wandb.open(fitted, directory, name)
            facts["wandb"] = wandb.address
        if finished is not None:
            return RunResult(finished, had_ended=True)
        stack.enter_context(signals)
        try:
            # Threads that spin while they wait make a busy machine ten times slower.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            run = open_run(fitted, environment, directory, backend, stack)
            run.events.listen(display.event)
            training = _Training(run, made, signals)
            training.begin(display, wandb, facts, changed, is_resumption=resume)
        except BaseException:
            # Close all that was opened, without interruption.
            signals.ignore()
            raise
        ended = training.run_loop()
        signals.ignore()
        return training.conclude(ended, name, started_s, was_resumed=stored is not None)


class _Ended(NamedTuple):
    """How the loop ended."""

    stop_reason: str
    exit_code: int = 0
    error: Exception | None = None


class _Training:
    """One process' share of a training: from its start or resumption to its end."""

    def __init__(self, run: Run, callbacks: Callbacks, signals: Signals) -> None:
        """Opens updater and evaluator, which the run's stack closes, and makes the loop."""
        # Imported late: torch takes seconds to import, and checks that can refuse a run do not need it.
        from runtime.training.detection import make_detector
        from runtime.training.loop import RoundLoop
        from runtime.training.roles import make_roles

        self._run = run
        self._callbacks = callbacks
        self._best: BestPolicy | None = None
        self._rows: list[RoundRow] = []
        self._observers: list[Observer] = []
        roles = make_roles(
            run,
            updater=_open_updater(run),
            detector=make_detector(run.experiment),
            evaluator=_open_evaluator(run),
            time_limit=signals.time_limit,
        )
        self._loop = RoundLoop(roles, callbacks, self._save_round, signals.shield)

    def begin(
        self,
        display: Display,
        wandb: WandbLog | None,
        facts: Mapping[str, str],
        changed: Mapping[str, str],
        *,
        is_resumption: bool,
    ) -> None:
        """Restores the directory's state, and reports the start.

        Args:
            display: Shows the run.
            wandb: Also shows it.
            facts: Facts for users besides the run's own.
            changed: Settings that a resumption changes.
            is_resumption: Whether the run was to be resumed.
        """
        from runtime.learner.fast import why_off
        from runtime.show.tensorboard_log import TensorBoardLog

        run, path = self._run, self._run.directory.path
        rows = run.directory.read_rounds()
        self._rows = continue_rounds(self._loop, run, rows)
        self._write_best(self._loop.best)
        run.take_over_spending(rows, run.save_ledger)
        run.write_settings()
        # A killed run may not have flushed its last rounds, so all are rewritten.
        tensorboard = TensorBoardLog(path / layout.TENSORBOARD, time.time)
        tensorboard.add(self._rows)
        shown = [] if wandb is None else [wandb]
        self._observers = [tensorboard, *shown, run.resources.elsewhere, display]
        remove(path / layout.SUMMARY)
        remove(path / layout.REPORT)
        warnings = {**run.warnings, **changed}
        if slow := why_off():
            warnings["updates"] = f"they are slower than they could be: {slow}"
        facts = {**run.facts, **facts}
        done = len(self._rows)
        run.events.append(
            "run_started",
            run_id=run.run_id,
            resumed_after_round=done or None,
            cost_basis=run.backend.cost_basis,
            **facts,
            **warnings,
        )
        if is_resumption:
            after = (
                f"after round {done}" if done else "begun anew, because no finished round is there"
            )
            facts = {**facts, "resumed": after}
        run.show_start(display, facts, warnings)

    def run_loop(self) -> _Ended:
        """Runs the loop to its end, whatever that is."""
        try:
            self._run.resources.elsewhere.begins()
            return _Ended(self._loop.run())
        except KeyboardInterrupt as interrupt:
            return _Ended("interrupted", getattr(interrupt, "exit_code", 130))
        except Exception as failure:
            return _Ended("failed", 1, failure)

    def conclude(
        self, ended: _Ended, name: str, started_s: float, *, was_resumed: bool
    ) -> RunResult:
        """Leaves a summary, and tells everyone of the end.

        Args:
            name: The experiment's name, for people.
            started_s: When this process began, by the monotonic clock.
            was_resumed: Whether another process ran an earlier share.
        """
        run = self._run
        exit_code, error = ended.exit_code, ended.error
        run.resources.meter.forfeit()
        summary = summarise(
            self._rows,
            name=name,
            experiment=run.experiment,
            backend=run.backend,
            best=self._best,
            stop_reason=ended.stop_reason,
            error=_text(error),
            spent_usd=run.resources.meter.spent_usd,
            session_s=time.monotonic() - started_s,
            was_resumed=was_resumed,
        )
        observers = [observer.on_end for observer in [*self._observers, self._callbacks]]
        for finish in (self._write_end, *observers):
            try:
                finish(summary)
            except (RunError, OSError) as failure:
                # A full disk or a lost bucket must not hide an earlier reason for the run's end.
                if not exit_code:
                    exit_code, error = 1, failure
        if error is not None and not isinstance(error, RunError | ActorError | OSError):
            # A bug in this program: recorded like any other end, and shown with its traceback.
            raise error
        return RunResult({**summary, "error": _text(error) or None}, exit_code, error)

    def _write_end(self, summary: Mapping[str, Any]) -> None:
        """Writes ledger, summary and report."""
        run = self._run
        run.save_ledger()
        run.events.append("run_ended", stop_reason=summary["stop_reason"], error=summary["error"])
        write_atomically(run.directory.path / layout.SUMMARY, to_json(summary))
        if why := try_to_write_report(run.directory.path):
            run.events.append("report_failed", error=why)

    def _save_round(
        self,
        row: RoundRow | None,
        checkpoint: Checkpoint | None,
        policy: bytes,
        best: BestPolicy | None,
    ) -> None:
        directory, experiment = self._run.directory, self._run.experiment
        if row is not None:
            directory.append_round(row)
            self._rows.append(row)
        # Before the checkpoint: a run with its last checkpoint has nothing left to do.
        save_policy(
            directory.path / layout.POLICY, policy, environment_id=experiment.environment.id
        )
        if best is not self._best:
            self._write_best(best)
        if checkpoint is not None:
            values = {**checkpoint.values, "experiment": experiment.identity}
            save_checkpoint(directory.path / layout.CHECKPOINTS, replace(checkpoint, values=values))
        if row is not None:
            for observer in self._observers:
                observer.on_round_end(row)

    def _write_best(self, best: BestPolicy | None) -> None:
        """Puts the best policy on disk, or removes one that a killed process wrote after its last checkpoint."""
        path = self._run.directory.path / layout.BEST_POLICY
        if best is None:
            remove(path)
        else:
            save_policy(path, best.weights, environment_id=self._run.experiment.environment.id)
        self._best = best


def _open_updater(run: Run) -> Updater:
    """Opens the updater, with a copy of the learner if another one trains."""
    from runtime.learner import LearnerSpec, device_of, make_learner
    from runtime.learner.functions.invoking import Remote

    experiment, section = run.experiment, run.experiment.learner
    spec = LearnerSpec(
        experiment.algorithm,
        run.spaces,
        experiment.network.architecture,
        experiment.seed,
        section.threads,
        experiment.network.initial_std,
        experiment.network.initialisation,
    )
    # A copy of a learner elsewhere needs no GPU.
    device = "cpu" if section.has_actors else device_of(section.device)
    remote = None
    if (functions := run.resources.learner) is not None:
        remote = Remote(
            spec,
            functions.fleet,
            functions.store,
            run.run_id,
            run.resources.meter,
            run.save_ledger,
            run.events,
        )
    updater: Updater = section.make(make_learner(spec, device=device), remote)
    run.stack.callback(updater.close)
    return updater


def _open_evaluator(run: Run) -> EvaluationProcess:
    experiment = run.experiment
    evaluator = EvaluationProcess(
        partial(start_process, experiment),
        run.events,
        target_return=experiment.stop.target_return,
        episodes=experiment.evaluation.episodes,
        seed=experiment.seed,
        is_stochastic=experiment.evaluation.actions == "stochastic",
    )
    run.stack.callback(evaluator.close)
    return evaluator


def _text(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
