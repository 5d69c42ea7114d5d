"""Training one experiment on one machine: puts the parts together, runs the loop, leaves a tidy end."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from lambda_actor.cache import TrajectoryCache, redacted, split_credentials
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from lambda_actor.policy import HIDDEN_SIZES
from lambda_actor.rollout import EPISODE_BYTES_MAX
from runtime.cache_server import EmbeddedServer
from runtime.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.config import Experiment, load_experiment
from runtime.cost.budget import Budget
from runtime.cost.meter import CostModel, Meter
from runtime.cost.prices import PRICES
from runtime.errors import CheckpointError, ExperimentError, RunDirectoryError, RunError, ServerError
from runtime.fleet.local import LocalFleet
from runtime.interfaces import Display
from runtime.policy_file import save_policy
from runtime.records import EventLog, RunDirectory, to_json, write_atomically
from runtime.scaler import make_scaler
from runtime.signals import Interrupted, ShieldedFleet, Signals

_CHANGEABLE = ("budget", "stop", "fleet", "cache", "learner.update_timeout_s")
"""What may differ between a run and its resumption: none of it changes what a finished round is."""


def preflight(experiment: Experiment) -> ActorEnvironment:
    """Refuses what cannot work, before anything starts; returns the environment that evaluation uses.

    Raises:
        ExperimentError: The environment cannot be made or used, an instance type has no price, a GPU was asked for
            that is not there, or the budget cannot hold one round of the fewest actors.
    """
    try:
        environment = make_environment(experiment.environment.id)
    except ActorError as error:
        raise ExperimentError(str(error)) from None
    _check_open_episodes(experiment, environment)
    meter = Meter(_cost_model(experiment, environment), Budget(experiment.budget.usd))
    smallest = experiment.scaler.smallest_round
    if not meter.open_round(smallest, smallest=smallest):
        unlimited = Meter(_cost_model(experiment, environment), Budget(1e9))
        unlimited.open_round(smallest, smallest=smallest)
        raise ExperimentError(
            f"budget.usd = {experiment.budget.usd:g} cannot hold one round of {smallest} actors, whose worst case is "
            f"{unlimited.budget.reserved_usd:.6f} USD: every actor until actor.timeout_s = "
            f"{experiment.actor.timeout_s} s, the learner until fleet.round_deadline_s + learner.update_timeout_s"
            + (f", the first five minutes of actor.provisioned = {experiment.actor.provisioned} actors"
               if experiment.actor.provisioned else "")
            + f"; allowed: budget.usd from {unlimited.budget.reserved_usd:.6f}")
    return environment


def train(
    experiment: Experiment, out: Path, *, resume: bool, display: Display, name: str
) -> tuple[dict[str, Any], int]:
    """Trains until a reason to stop.

    Args:
        experiment: Resolved.
        out: The run's directory.
        resume: Continue what ``out`` holds; where it holds nothing yet, start afresh.
        name: The experiment's name, for people.

    Returns:
        What summary.json holds, and the exit code: 0, 1 for a failed run, 130 or 143 for an interrupted one.

    Raises:
        RunError: Nothing was started: the directory, the server or the checkpoint is not usable.
    """
    environment = preflight(experiment)
    with ExitStack() as stack:
        directory = RunDirectory(out)
        stack.callback(directory.close)
        if directory.holds_run and not resume:
            raise RunDirectoryError(f"--out {out}: holds a run already; continue it with --resume, or name another")
        if directory.holds_run:
            _check_same_experiment(experiment, directory)
        finished = _finished_summary(experiment, directory) if resume else None
        if finished is not None:
            return finished, 0
        run = _Run(experiment, directory, environment, display, name, stack)
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
        stack: ExitStack,
    ) -> None:
        # Threads that spin while they wait make a busy machine ten times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Only now: nothing that can be refused needs torch, which takes seconds to import.
        from torch.utils.tensorboard import SummaryWriter

        from runtime.round_loop import RoundLoop

        self._experiment, self._directory, self._display, self._name = experiment, directory, display, name
        self._started_s = time.monotonic()
        self._signals = stack.enter_context(Signals())
        self._identity = _identity(experiment)
        self._events = EventLog(directory.events_path, _now)
        self._meter = Meter(_cost_model(experiment, environment), Budget(experiment.budget.usd))
        run_id = uuid.uuid4().hex
        server_url, server_program = self._start_server(stack)
        self._cache = self._connect(server_url, run_id)
        stack.callback(self._cache.close)
        if experiment.cache.url:
            stack.callback(self._remove_keys, server_url, run_id)
        with self._signals.shield():
            fleet = ShieldedFleet(LocalFleet(
                experiment.fleet.processes, timeout_s=experiment.actor.timeout_s,
                memory_mib=experiment.actor.memory_mib, log_path=directory.actors_log_path,
                credentials=_credentials(server_url)), self._signals)
            stack.callback(fleet.close)
        learner, detector, evaluator = _training_parts(experiment, environment)
        self._learner = learner
        self.loop = RoundLoop(
            experiment, learner=learner, detector=detector, scaler=make_scaler(experiment.scaler), fleet=fleet,
            cache=self._cache, meter=self._meter, evaluate=evaluator, events=self._events,
            event_fields=_event_fields(experiment, run_id, server_url),
            sizes=(environment.observation_size, environment.action_size),
            save_ledger=self._save_ledger, save_round=self._save_round, shield=self._signals.shield,
            time_limit=self._signals.time_limit)
        self._events.listen(display.event)
        self._restore()
        write_atomically(directory.config_path, experiment.to_yaml().encode())
        directory.summary_path.unlink(missing_ok=True)
        # A killed run may not have flushed its last rounds: all are written again in the place of what is there.
        self._tensorboard = SummaryWriter(str(directory.tensorboard_path), purge_step=1)
        stack.callback(self._tensorboard.close)
        for row in directory.read_rounds():
            self._to_tensorboard(row)
        self._events.append("run_started", run_id=run_id, server=redacted(server_url),
                            resumed_after_round=self.loop.progress.round_index)
        display.started(experiment.to_yaml(), {
            "results": str(directory.path), "server": f"{redacted(server_url)} ({server_program})",
            "bill": f"modelled from list prices, {PRICES.region}, {PRICES.as_of}"})

    def to_the_end(self) -> tuple[dict[str, Any], int]:
        """Runs the loop; whatever happens, leaves a summary."""
        error, code, defect = "", 0, None
        try:
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
        with suppress(OSError):
            # Nothing finished depends on these: a full disk must not hide the reason why the run ends.
            self._save_ledger()
            self._events.append("run_ended", stop_reason=reason, error=error)
            write_atomically(self._directory.summary_path, to_json(summary))
        if defect is not None:
            raise defect
        return summary, code

    def _restore(self) -> None:
        """Continues after the newest checkpoint, and counts what was spent since."""
        checkpoint = load_newest_checkpoint(
            self._directory.checkpoints_path,
            lambda stem, reason: self._events.append("checkpoint_skipped", checkpoint=stem, reason=reason))
        if checkpoint is not None:
            if checkpoint.values.get("experiment") != self._identity:
                raise CheckpointError(f"the checkpoint of round {checkpoint.round_index} in {self._directory.path} "
                                      "belongs to another experiment")
            self.loop.restore(checkpoint)
        self._directory.check_rounds(self.loop.progress.round_index)
        self._directory.cut_rounds_back(self.loop.progress.round_index)
        self._restore_ledger()
        forfeited_usd = self._meter.forfeit()
        if forfeited_usd:
            self._events.append("reservation_forfeited", usd=forfeited_usd,
                                reason="the run was killed while it was reserved")
        self._save_ledger()

    def _restore_ledger(self) -> None:
        """The ledger, which is newer than the checkpoint; but never one in which less is spent."""
        if not self._directory.ledger_path.exists():
            return
        known, spent_usd = self._meter.get_state(), self._meter.spent_usd
        try:
            self._meter.set_state(json.loads(self._directory.ledger_path.read_bytes()))
            if self._meter.spent_usd < spent_usd:
                raise ValueError("less is spent in it than in the checkpoint")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._meter.set_state(known)
            self._events.append("ledger_unreadable", error=f"{type(error).__name__}: {error}")

    def _save_ledger(self) -> None:
        write_atomically(self._directory.ledger_path, to_json(self._meter.get_state()))

    def _save_round(self, row: dict[str, Any], checkpoint: Checkpoint) -> None:
        self._directory.append_round(row)
        save_checkpoint(self._directory.checkpoints_path, Checkpoint(
            checkpoint.round_index, checkpoint.arrays, {**checkpoint.values, "experiment": self._identity}))
        save_policy(self._directory.policy_path, self._learner.weights(),
                    environment_id=self._experiment.environment.id)
        self._to_tensorboard(row)
        self._display.round_finished(row)

    def _to_tensorboard(self, row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            if value is not None and key != "round_index":
                self._tensorboard.add_scalar(_tensorboard_tag(key), value, row["round_index"])
        self._tensorboard.flush()

    def _start_server(self, stack: ExitStack) -> tuple[str, str]:
        settings = self._experiment.cache
        if settings.url:
            return settings.url, "given by cache.url"
        with self._signals.shield():
            server = EmbeddedServer(settings.memory_mib)
            stack.callback(server.close)
        return server.url, server.program

    def _connect(self, url: str, run_id: str) -> TrajectoryCache:
        try:
            cache = _cache(self._experiment, url, run_id)
            cache.ping()
        except ActorError as error:
            raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
        return cache

    def _remove_keys(self, url: str, run_id: str) -> None:
        try:
            with closing(_cache(self._experiment, url, run_id, connect_attempts=0)) as cache:
                cache.remove_run()
        except ActorError as error:
            with suppress(OSError):
                self._events.append("keys_left_behind", error=str(error), expire_after_s=_ttl_s(self._experiment))

    def _summary(self, reason: str, error: str) -> dict[str, Any]:
        rounds = self._directory.read_rounds()
        last = rounds[-1] if rounds else {}
        evaluated = [row for row in rounds if row.get("evaluation_return_mean") is not None]
        finished = [row["episode_return_mean"] for row in rounds if row.get("episode_return_mean") is not None]
        steps = last.get("env_steps_total", 0)
        spent_usd = self._meter.spent_usd
        return {
            "experiment": self._name,
            "environment_id": self._experiment.environment.id,
            "stop_reason": reason,
            "error": error or None,
            "rounds": len(rounds),
            "env_steps_total": steps,
            "evaluation_return_mean": evaluated[-1]["evaluation_return_mean"] if evaluated else None,
            "evaluation_round": evaluated[-1]["round_index"] if evaluated else None,
            "evaluation_return_best": max((row["evaluation_return_mean"] for row in evaluated), default=None),
            "episode_return_mean": finished[-1] if finished else None,
            "actors": sum(row.get("actor_count") or 0 for row in rounds),
            "actors_failed": sum(row.get("actors_failed") or 0 for row in rounds),
            "cost_basis": "modelled",
            "prices_region": PRICES.region,
            "prices_as_of": PRICES.as_of,
            "spent_usd": spent_usd,
            "budget_usd": self._experiment.budget.usd,
            "usd_per_million_steps": spent_usd / steps * 1e6 if steps else None,
            **{key: sum(row.get(key) or 0.0 for row in rounds) for key in (
                "actors_cost_usd", "provisioned_cost_usd", "learner_cost_usd", "infrastructure_cost_usd")},
            # Of rounds that did not finish: failed, interrupted, or forfeited because the run was killed.
            "unfinished_rounds_cost_usd": max(0.0, spent_usd - sum(row.get("round_cost_usd") or 0.0 for row in rounds)),
            "modelled_s": sum((row.get("modelled_round_s") or 0.0) + (row.get("evaluate_s") or 0.0) for row in rounds),
            "measured_session_s": time.monotonic() - self._started_s,
        }


def _training_parts(experiment: Experiment, environment: ActorEnvironment):
    import torch

    from runtime.detector.convexity import ConvexityDetector
    from runtime.evaluation import Evaluator
    from runtime.learner.ppo import Ppo

    device = experiment.learner.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ExperimentError("learner.device = 'cuda': no usable GPU is here; allowed: cpu | auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    learner = Ppo(environment.observation_size, environment.action_size, experiment.algorithm, seed=experiment.seed,
                  device=device, threads=experiment.learner.threads)
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


def _cost_model(experiment: Experiment, environment: ActorEnvironment) -> CostModel:
    observation, action = 4 * environment.observation_size, 4 * environment.action_size
    # Every step bootstrapped and ending an episode, and an open episode of the largest size in and out.
    per_step = observation + action + 4 + 8 + 1 + 1 + (8 + observation) + 24
    sizes = (environment.observation_size, *HIDDEN_SIZES, environment.action_size)
    parameters = sum(inputs * outputs + outputs for inputs, outputs in pairwise(sizes)) + environment.action_size
    weights = 4 * (parameters + 2 * environment.observation_size)
    return CostModel(experiment, PRICES, traffic_bytes_max=(
        experiment.actor.fragment_steps * per_step + weights + 2 * EPISODE_BYTES_MAX + 4096))


def _event_fields(experiment: Experiment, run_id: str, url: str) -> dict[str, Any]:
    return {
        "run_id": run_id, "cache_url": split_credentials(url)[0], "cache_ttl_s": _ttl_s(experiment),
        "cache_bytes_max": experiment.cache.memory_mib * 2**20,
        "environment_id": experiment.environment.id,
        "truncate_at_fragment": experiment.environment.truncate_at_fragment,
        "fragment_steps": experiment.actor.fragment_steps, "seed": experiment.seed,
    }


def _cache(experiment: Experiment, url: str, run_id: str, **options: Any) -> TrajectoryCache:
    return TrajectoryCache(
        url, run_id, username=os.environ.get("CACHE_USERNAME"), password=os.environ.get("CACHE_PASSWORD"),
        ttl_s=_ttl_s(experiment), bytes_max=experiment.cache.memory_mib * 2**20, **options)


def _ttl_s(experiment: Experiment) -> int:
    """Longer than a round can last, so that nothing runs out under it."""
    return 2 * (experiment.fleet.round_deadline_s + experiment.learner.update_timeout_s) + 600


def _check_same_experiment(experiment: Experiment, directory: RunDirectory) -> None:
    try:
        stored = load_experiment(directory.config_path)
    except ExperimentError as error:
        raise RunDirectoryError(f"--resume: {error}") from None
    new = _unchangeable(experiment)
    changed = [f"{path} is {new[path]!r} now, {value!r} in the run" for path, value in _unchangeable(stored).items()
               if new[path] != value]
    if changed:
        raise RunDirectoryError(f"--resume: {directory.path} was another experiment: {'; '.join(changed)}. "
                                f"Only {', '.join(_CHANGEABLE)} may change")


def _unchangeable(experiment: Experiment) -> dict[str, Any]:
    return {path: value for path, value in _leaves(experiment.model_dump(mode="json"))
            if not any(path == one or path.startswith(f"{one}.") for one in _CHANGEABLE)}


def _identity(experiment: Experiment) -> str:
    """A digest of all that decides what a run's rounds are."""
    return hashlib.sha256(json.dumps(_unchangeable(experiment), sort_keys=True).encode()).hexdigest()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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


def _credentials(url: str) -> dict[str, str]:
    """Variables for the actors: what the URL says, or else CACHE_USERNAME and CACHE_PASSWORD."""
    _, username, password = split_credentials(url)
    found = {"ACTOR_CACHE_USERNAME": username or os.environ.get("CACHE_USERNAME"),
             "ACTOR_CACHE_PASSWORD": password or os.environ.get("CACHE_PASSWORD")}
    return {name: value for name, value in found.items() if value}


def _tensorboard_tag(key: str) -> str:
    for group, members in {
        "return": ("episode_return_mean", "evaluation_return_mean", "episode_length_mean"),
        "boosting": ("convexity_ratio", "boosting_score", "decay_weight", "eigenvalue_min", "eigenvalue_max",
                     "actor_count", "actor_count_wanted"),
        "learner": ("policy_loss", "value_loss", "entropy", "kl", "explained_variance", "learning_rate"),
    }.items():
        if key in members:
            return f"{group}/{key}"
    if key.endswith("_usd"):
        return f"cost/{key}"
    return f"{'time' if key.endswith(('_s', '_s_mean', '_s_max')) else 'run'}/{key}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
