"""Training one experiment on one machine: puts the parts together, runs the loop, leaves a tidy end."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from runtime.backends.this_machine import MakePlace, OnThisMachine, Place, cache_ttl_s, check_sizes, make_cost_model
from runtime.config.loading import load_experiment
from runtime.config.schema import CHANGEABLE, Experiment, unchangeable
from runtime.cost.budget import Budget
from runtime.cost.meter import Meter
from runtime.cost.prices import PRICES, PriceTable
from runtime.display.wandb_log import WandbLog
from runtime.errors import CheckpointError, ExperimentError, RunDirectoryError, RunError
from runtime.interfaces import Display
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.events import EventLog
from runtime.records.files import to_json, write_atomically
from runtime.records.policy_file import save_policy
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.sampling.serverless import ServerlessSampler
from runtime.scaler import make_scaler
from runtime.training.signals import Interrupted, ShieldedFleet, Signals


def preflight(experiment: Experiment, prices: PriceTable = PRICES) -> tuple[ActorEnvironment, Experiment]:
    """Refuses what cannot work, before anything starts.

    Args:
        experiment: Resolved.

    Returns:
        The environment that evaluation uses, and the experiment with what follows from it filled in.

    Raises:
        ExperimentError: The environment cannot be made or used, the network does not suit it, an instance type has no
            price, or the budget cannot hold one round of the fewest actors.
    """
    environment, experiment = _fit(experiment)
    _check_open_episodes(experiment, environment)
    check_sizes(experiment, environment)
    needed_usd = _round_usd(experiment, environment, prices)
    if needed_usd > experiment.budget.usd:
        raise ExperimentError(
            f"budget.usd = {experiment.budget.usd:g} cannot hold one round of {experiment.scaler.smallest_round} "
            f"actors, whose worst case is {needed_usd:.6f} USD: every actor until actor.timeout_s = "
            f"{experiment.actor.timeout_s} s, the learner until fleet.round_deadline_s + learner.update_timeout_s"
            + (f", the first five minutes of actor.provisioned = {experiment.actor.provisioned} actors"
               if experiment.actor.provisioned else "")
            + f"; allowed: budget.usd from {needed_usd:.6f}")
    return environment, experiment


def smallest_budget_usd(experiment: Experiment, prices: PriceTable, *, instance_type: str) -> float:
    """What the worst case of a round of the fewest actors costs, with such a learner.

    Raises:
        ExperimentError: The environment cannot be made or used, or an instance type has no price.
    """
    environment, experiment = _fit(experiment)
    return _round_usd(experiment, environment, prices, instance_type=instance_type)


def _fit(experiment: Experiment) -> tuple[ActorEnvironment, Experiment]:
    try:
        environment = make_environment(experiment.environment.id, experiment.environment.preprocessing)
    except ActorError as error:
        raise ExperimentError(str(error)) from None
    return environment, experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)


def _round_usd(
    experiment: Experiment, environment: ActorEnvironment, prices: PriceTable, **options: Any
) -> float:
    smallest = experiment.scaler.smallest_round
    meter = Meter(make_cost_model(experiment, environment, prices, **options), Budget(1e9))
    meter.open_round(smallest, smallest=smallest)
    return meter.reserved_usd


def train(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    display: Display,
    name: str,
    make_place: MakePlace = OnThisMachine,
    prices: PriceTable = PRICES,
    wandb: WandbLog | None = None,
) -> tuple[dict[str, Any], int]:
    """Trains until a reason to stop.

    Args:
        experiment: Resolved.
        out: The run's directory.
        resume: Continue what ``out`` holds; where it holds nothing yet, start afresh.
        name: The experiment's name, for people.
        make_place: Makes the place where it takes place.
        prices: Of that place.
        wandb: Shows the run in Weights & Biases, too.

    Returns:
        What summary.json holds, and the exit code: 0, 1 for a failed run, 130 or 143 for an interrupted one.

    Raises:
        RunError: Nothing was started: the directory, the server, the checkpoint or W&B is not usable.
    """
    environment, experiment = preflight(experiment, prices)
    with ExitStack() as stack:
        signals = Signals()
        place = make_place(experiment, signals)
        directory = RunDirectory(out)
        stack.callback(directory.close)
        place.download(directory)
        if directory.holds_run and not resume:
            raise RunDirectoryError(f"--out {out}: holds a run already; continue it with --resume, or name another")
        if directory.holds_run:
            _check_same_experiment(experiment, directory)
        finished = _finished_summary(experiment, directory) if resume else None
        if wandb is not None:
            stack.callback(wandb.close)
            # It shows what it does not know yet of a finished run, too.
            wandb.open(experiment, directory, name)
        if finished is not None:
            return finished, 0
        stack.enter_context(signals)
        run = _Run(experiment, directory, environment, display, name, place, signals, stack, wandb, resume=resume)
        return run.to_the_end()


class _Run:
    """One process' share of a run: from start or resumption to its end."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        environment: ActorEnvironment,
        display: Display,
        name: str,
        place: Place,
        signals: Signals,
        stack: ExitStack,
        wandb: WandbLog | None,
        *,
        resume: bool,
    ) -> None:
        # Threads that spin while they wait make a busy machine ten times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Only now: nothing that can be refused needs torch, which takes seconds to import.
        from torch.utils.tensorboard import SummaryWriter

        from runtime.learner import make_updater
        from runtime.training.assembly import make_round_loop

        self._experiment, self._directory, self._display, self._name = experiment, directory, display, name
        self._place, self._signals, self._wandb = place, signals, wandb
        self._started_s = time.monotonic()
        self._identity = experiment.identity
        self._events = EventLog(directory.events_path, _now)
        run_id = uuid.uuid4().hex
        cache = place.open_cache(run_id, stack, self._events)
        with signals.shield():
            fleet = ShieldedFleet(place.open_fleet(directory), signals)
            stack.callback(fleet.close)
        self._meter = place.open_meter(environment, fleet)
        learner, detector, evaluator = _training_parts(experiment, environment, stack)
        event_fields = {**_event_fields(experiment, run_id), **place.event_fields()}
        self._learner = learner
        sampler = ServerlessSampler(fleet, cache, self._meter)
        self.loop = make_round_loop(
            experiment, updater=make_updater(experiment.learner.updater, learner), detector=detector,
            scaler=make_scaler(experiment.scaler), sampler=sampler, meter=self._meter, evaluate=evaluator,
            events=self._events,
            event_fields=event_fields, spaces=environment.spaces,
            save_ledger=self._save_ledger, save_round=self._save_round, shield=self._signals.shield,
            time_limit=self._signals.time_limit)
        self._events.listen(display.event)
        self._restore()
        write_atomically(directory.config_path, experiment.to_yaml().encode())
        write_atomically(directory.prices_path, place.prices.to_json())
        directory.summary_path.unlink(missing_ok=True)
        # A killed run may not have flushed its last rounds: all are written again in the place of what is there.
        self._tensorboard = SummaryWriter(str(directory.tensorboard_path), purge_step=1)
        stack.callback(self._tensorboard.close)
        for row in directory.read_rounds():
            self._to_tensorboard(row)
        facts = place.facts() | ({"wandb": wandb.place} if wandb is not None else {})
        done = self.loop.progress.round_index
        self._events.append("run_started", run_id=run_id, resumed_after_round=done,
                            cost_basis=place.cost_basis, **facts)
        resumed = {"resumed": f"after round {done}" if done else "no finished round is there: begun anew"}
        display.started(experiment.to_yaml(),
                        {"results": str(directory.path), **facts, **(resumed if resume else {})})
        self._begin = lambda: place.begin(sampler, self._meter, self._events, event_fields, self._save_ledger)

    def to_the_end(self) -> tuple[dict[str, Any], int]:
        """Runs the loop; whatever happens, leaves a summary."""
        error, code, defect = "", 0, None
        try:
            self._begin()
            reason = self.loop.run()
        except (Interrupted, KeyboardInterrupt) as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            reason, code = "interrupted", 128 + number
        except (RunError, ActorError, OSError) as failure:
            reason, code, error = "failed", 1, f"{type(failure).__name__}: {failure}"
        except Exception as failure:
            # A defect of ours: recorded like any other end, and shown with its traceback.
            reason, code, error, defect = "failed", 1, f"{type(failure).__name__}: {failure}", failure
        self._signals.ignore()
        self._meter.forfeit()
        summary = self._summary(reason, error)
        with suppress(OSError, RunError):
            # Nothing finished depends on these: a full disk or a lost bucket must not hide the reason why the run ends.
            self._save_ledger()
            self._events.append("run_ended", stop_reason=reason, error=error)
            write_atomically(self._directory.summary_path, to_json(summary))
        error = self._leave()
        if error and not code:
            summary, code = summary | {"error": error}, 1
        if defect is not None:
            raise defect
        return summary, code

    def _leave(self) -> str:
        """Lets the place keep what it must; returns what went wrong."""
        try:
            self._place.end()
        except (RunError, OSError) as failure:
            return f"{type(failure).__name__}: {failure}"
        return ""

    def _restore(self) -> None:
        """Continues after the newest checkpoint, and counts what was spent since."""
        checkpoint = load_newest_checkpoint(
            self._directory.checkpoints_path,
            lambda stem, reason: self._events.append("checkpoint_skipped", checkpoint=stem, reason=reason))
        if checkpoint is not None:
            if checkpoint.values.get("experiment") != self._identity:
                raise CheckpointError(f"the checkpoint of round {checkpoint.round_index} in {self._directory.path} "
                                      "belongs to another experiment")
            self.loop.restore(checkpoint, self._directory.read_rounds()[: checkpoint.round_index])
        self._directory.check_rounds(self.loop.progress.round_index)
        self._directory.cut_rounds_back(self.loop.progress.round_index)
        self._restore_ledger()
        elsewhere_usd = self._place.spent_usd() - self._meter.spent_usd - self._meter.reserved_usd
        if elsewhere_usd > 0.0:
            self._meter.add_spent(elsewhere_usd)
            self._events.append("spent_elsewhere", usd=elsewhere_usd,
                                reason="what the ledger knows that the run's directory does not: a teardown, say")
        spent_usd = self._meter.spent_usd
        forfeited_usd = self._meter.forfeit()
        standing_usd = self._meter.spent_usd - spent_usd - forfeited_usd
        if standing_usd:
            self._events.append("standing_billed", usd=standing_usd,
                                reason="what the deployment cost since it began, or since its last round")
        if forfeited_usd:
            self._events.append("reservation_forfeited", usd=forfeited_usd,
                                reason="the run was killed while it was reserved")
        self._save_ledger()

    def _restore_ledger(self) -> None:
        """The ledger, which is newer than the checkpoint; but never one in which less is spent."""
        if not self._directory.ledger_path.exists():
            return
        known, spent_usd = self._meter.get_state(), self._meter.spent_usd
        promised_usd = spent_usd + self._meter.reserved_usd
        try:
            self._meter.set_state(json.loads(self._directory.ledger_path.read_bytes()))
            # One that is older than the checkpoint may still promise all: actors go on from one round to the next.
            if self._meter.spent_usd + self._meter.reserved_usd < promised_usd and self._meter.spent_usd < spent_usd:
                raise ValueError("less is spent in it than in the checkpoint")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._meter.set_state(known)
            self._events.append("ledger_unreadable", error=f"{type(error).__name__}: {error}")

    def _save_ledger(self) -> None:
        ledger = to_json(self._meter.get_state())
        self._place.ledger_changed(ledger, self._meter)
        write_atomically(self._directory.ledger_path, ledger)

    def _save_round(self, row: RoundRow, checkpoint: Checkpoint) -> None:
        self._directory.append_round(row)
        save_checkpoint(self._directory.checkpoints_path, Checkpoint(
            checkpoint.round_index, checkpoint.arrays, {**checkpoint.values, "experiment": self._identity}))
        save_policy(self._directory.policy_path, self._learner.weights(),
                    environment_id=self._experiment.environment.id)
        self._to_tensorboard(row)
        if self._wandb is not None:
            self._wandb.round_saved()
        self._place.round_saved(row)
        self._display.round_finished(row)

    def _to_tensorboard(self, row: RoundRow) -> None:
        for tag, value in row.scalars().items():
            self._tensorboard.add_scalar(tag, value, row.round_index)
        self._tensorboard.flush()

    def _summary(self, reason: str, error: str) -> dict[str, Any]:
        rounds = self._directory.read_rounds()
        evaluated = [(row.round_index, row.evaluation_return_mean) for row in rounds
                     if row.evaluation_return_mean is not None]
        finished = [row.episode_return_mean for row in rounds if row.episode_return_mean is not None]
        steps = rounds[-1].env_steps_total if rounds else 0
        spent_usd = self._meter.spent_usd
        return {
            "experiment": self._name,
            "environment_id": self._experiment.environment.id,
            "stop_reason": reason,
            "error": error or None,
            "rounds": len(rounds),
            "env_steps_total": steps,
            "evaluation_return_mean": evaluated[-1][1] if evaluated else None,
            "evaluation_round": evaluated[-1][0] if evaluated else None,
            "evaluation_return_best": max((mean for _, mean in evaluated), default=None),
            "episode_return_mean": finished[-1] if finished else None,
            "actors": sum(row.actors_billed for row in rounds),
            "actors_failed": sum(row.actors_failed for row in rounds),
            "cost_basis": self._place.cost_basis,
            "prices_region": self._place.prices.region,
            "prices_as_of": self._place.prices.as_of,
            "spent_usd": spent_usd,
            "budget_usd": self._experiment.budget.usd,
            "usd_per_million_steps": spent_usd / steps * 1e6 if steps else None,
            "actors_cost_usd": sum(row.actors_cost_usd for row in rounds),
            "provisioned_cost_usd": sum(row.provisioned_cost_usd for row in rounds),
            "learner_cost_usd": sum(row.learner_cost_usd for row in rounds),
            "infrastructure_cost_usd": sum(row.infrastructure_cost_usd for row in rounds),
            # Of rounds that did not finish: failed, interrupted, or forfeited because the run was killed.
            "unfinished_rounds_cost_usd": max(0.0, spent_usd - sum(row.round_cost_usd for row in rounds)),
            "modelled_s": sum(row.modelled_round_s + (row.evaluate_s or 0.0) for row in rounds),
            "measured_session_s": time.monotonic() - self._started_s,
        }


def _training_parts(experiment: Experiment, environment: ActorEnvironment, stack: ExitStack):
    import torch

    from runtime.detector.convexity import ConvexityDetector
    from runtime.learner import LearnerSpec
    from runtime.learner.parallel.learner import make_parallel_learner
    from runtime.training.evaluation import Evaluator

    device = experiment.learner.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ExperimentError("learner.device = 'cuda': no usable GPU is here; allowed: cpu | auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    spec = LearnerSpec(experiment.algorithm, environment.spaces, experiment.network.kind, experiment.seed,
                       experiment.learner.threads)
    learner = make_parallel_learner(spec, processes=experiment.learner.processes, device=device,
                                    timeout_s=experiment.learner.update_timeout_s, stack=stack)
    settings = experiment.detector
    detector = ConvexityDetector(settings.objective, settings.subset_size, settings.lanczos_steps,
                                 seed=experiment.seed)
    return learner, detector, Evaluator(environment, experiment.evaluation.episodes, seed=experiment.seed)


def _check_open_episodes(experiment: Experiment, environment: ActorEnvironment) -> None:
    steps, limit = experiment.actor.fragment_steps, environment.episode_steps_max
    is_shorter = limit is None or steps < limit
    if is_shorter and not environment.can_save_episode and not experiment.environment.truncate_at_fragment:
        raise ExperimentError(
            f"actor.fragment_steps = {steps} is shorter than an episode of {experiment.environment.id} can be "
            f"({f'{limit} steps' if limit else 'no limit'}), and its episodes cannot be continued by a later actor: "
            f"{environment.cannot_save_reason}. Give the environment get_state() and set_state(state), or set "
            "environment.truncate_at_fragment: true if nothing that comes later in an episode matters")


def _event_fields(experiment: Experiment, run_id: str) -> dict[str, Any]:
    return {
        "run_id": run_id, "cache_ttl_s": cache_ttl_s(experiment),
        "cache_bytes_max": experiment.cache.memory_mib * 2**20,
        "environment_id": experiment.environment.id, "preprocessing": experiment.environment.preprocessing,
        "truncate_at_fragment": experiment.environment.truncate_at_fragment,
        "fragment_steps": experiment.actor.fragment_steps, "seed": experiment.seed,
    }


def _check_same_experiment(experiment: Experiment, directory: RunDirectory) -> None:
    try:
        stored = load_experiment(directory.config_path)
    except ExperimentError as error:
        raise RunDirectoryError(f"--resume: {error}\nIf another version of this program made the run, that version can "
                                "continue it") from None
    new = unchangeable(experiment)
    changed = [f"{path} is {new[path]!r} now, {value!r} in the run" for path, value in unchangeable(stored).items()
               if new[path] != value]
    if changed:
        raise RunDirectoryError(f"--resume: {directory.path} was another experiment: {'; '.join(changed)}. "
                                f"Only {', '.join(CHANGEABLE)} may change")


def _finished_summary(experiment: Experiment, directory: RunDirectory) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do; null where there is something, or it cannot be told."""
    stop = experiment.stop

    def is_reached(limit: float | None, value: float | None) -> bool:
        return limit is not None and value is not None and value >= limit

    try:
        summary = json.loads(directory.summary_path.read_bytes())
        is_finished = {
            "target_return": lambda: is_reached(stop.target_return, summary["evaluation_return_mean"]),
            "max_rounds": lambda: is_reached(stop.max_rounds, summary["rounds"]),
            "max_steps": lambda: is_reached(stop.max_steps, summary["env_steps_total"]),
            "budget": lambda: summary["budget_usd"] >= experiment.budget.usd,
        }.get(summary["stop_reason"], lambda: False)()
        return summary if is_finished else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
