"""Trains one experiment with several seeds under one budget, and summarizes them.

A killed seed counts with what its ledger has spent and reserved, so the shares never exceed the budget.
"""

from __future__ import annotations

import json
import math
import signal
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pydantic
from typing_extensions import TypedDict

from runtime.errors import ExperimentError, RunDirectoryError, RunError, one_line
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import CHANGEABLE, changes, unchangeable
from runtime.money.budget import UNITS_PER_USD
from runtime.records import layout
from runtime.records.estimates import CONFIDENCE, ESTIMATED, RESAMPLES, caution, interval_estimate
from runtime.records.files import remove, to_json, write_atomically
from runtime.records.rows import return_text
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_in
from runtime.show.report import try_to_write_report
from runtime.show.table import make_display, report_lines, settings_text
from runtime.show.terminal import spent_of
from runtime.show.wandb_log import WandbLog
from runtime.training.interfaces import Backend
from runtime.training.preflight import preflight, smallest_budget_usd, try_experiment
from runtime.training.run import RunResult, train
from runtime.training.signals import Interrupted
from runtime.training.summary import read_summary

_KEPT = (
    "stop_reason",
    "error",
    "rounds",
    "env_steps_total",
    "evaluation_return_mean",
    "evaluation_return_best",
    "evaluation_round_best",
    "best_policy_file",
    "episode_return_mean",
    "spent_usd",
    "budget_usd",
    "measured_session_s",
)


# The budget


def fair_share_usd(
    budget_usd: float, *, finished_usd: float, others_usd: float, unfinished: int
) -> float:
    """Returns a run's share of the budget, including its spending so far.

    Args:
        finished_usd: Dollars spent by finished runs.
        others_usd: Dollars spent by all other runs, finished or not.
        unfinished: Number of unfinished runs, including this one.

    Returns:
        An equal share of the money that the finished runs left, rounded down to whole units of `Budget`, so that the
        shares never exceed it.
    """
    limit, finished, others = (_units(usd) for usd in (budget_usd, finished_usd, others_usd))
    return max(0, min((limit - finished) // unfinished, limit - others)) / UNITS_PER_USD


def _units(usd: float) -> int:
    return math.floor(usd * UNITS_PER_USD)


# The runs


def train_seeds(
    experiment: ResolvedExperiment,
    out: Path,
    *,
    make_backend: Callable[[ResolvedExperiment], Backend],
    seeds: int,
    resume: bool,
    say: Callable[[str], None],
    name: str,
    wandb: WandbLog | None = None,
) -> RunResult:
    """Trains several consecutive seeds, starting with the experiment's own, each in ``out/seed-S``.

    Args:
        experiment: Resolved; its budget is for all seeds together.
        out: Their directory.
        make_backend: Makes the backend of one run.
        seeds: Number of seeds.
        resume: Continue the runs in ``out``: finished seeds are kept, an unfinished one continues.
        say: Shows a line.
        name: The experiment's name, for people.
        wandb: Also shows each run in Weights & Biases.

    Returns:
        The summary of all seeds, and the exit code: 0, or the code of the first run that failed or was interrupted,
        after which no other starts.

    Raises:
        RunError: Nothing was started: the directory is not usable, or the budget is too small for this many seeds.
    """
    backend = make_backend(experiment)
    prices, is_billed = backend.prices, backend.cost_basis == "metered"
    environment = try_experiment(experiment)
    needed_usd = smallest_budget_usd(
        experiment,
        environment,
        prices,
        instance_type=experiment.learner.instance_types[0],
        is_billed=is_billed,
    )
    runs = _Seeds(experiment, out, seeds, needed_usd, name)
    directory = RunDirectory(out)

    def train_one(following: ResolvedExperiment) -> RunResult:
        display, path = make_display(following, has_settings=False), runs.path_of(following.seed)
        try:
            return train(
                following,
                path,
                backend=make_backend(following),
                resume=path.exists(),
                display=display,
                name=name,
                wandb=wandb,
            )
        except (Interrupted, KeyboardInterrupt) as interrupt:
            return RunResult({}, 128 + int(getattr(interrupt, "signal_number", signal.SIGINT)))
        finally:
            display.close()

    try:
        runs.load(directory, resume=resume)
        first = runs.next_experiment()
        if first is not None:
            preflight(first, prices, is_billed=is_billed, environment=environment)
        runs.save()
        if first is not None:
            say(settings_text(experiment).rstrip())
        return _train_all(runs, first, train_one, say)
    finally:
        runs.forget_if_nothing_started()
        directory.close()


def _train_all(
    runs: _Seeds,
    following: ResolvedExperiment | None,
    train_one: Callable[[ResolvedExperiment], RunResult],
    say: Callable[[str], None],
) -> RunResult:
    reason, code, trained = "finished", 0, 0
    cause: Exception | None = None
    while following is not None and not code:
        say(
            f"\nseed {following.seed}, {runs.seeds.index(following.seed) + 1} of {len(runs.seeds)}: "
            f"up to {spent_of(following.budget.usd, runs.experiment.budget.usd)}\n"
        )
        try:
            result = train_one(following)
            code, cause = result.exit_code, result.error
            trained += 1
            if not code:
                runs.finish(following.seed)
                following = runs.next_experiment()
        except RunError as error:
            if not trained:
                # The first run was refused.
                raise
            say(f"error: {error}")
            code, cause = 1, error
        reason = {0: "finished" if following is None else "unfinished", 1: "failed"}.get(
            code, "interrupted"
        )
        runs.write_summary(reason)
    runs.write_summary(reason)
    if why := try_to_write_report(runs.out):
        say(f"! no report could be written: {why}")
    return RunResult(runs.summary(reason), code, cause)


class _Limits(TypedDict):
    budget_usd: float
    stop: dict[str, Any]


class _Document(TypedDict):
    """The contents of `seeds.json`: the seeds, the limits of each finished one, and the experiment."""

    seeds: list[int]
    finished: dict[str, _Limits]
    experiment: dict[str, Any]


_DOCUMENT = pydantic.TypeAdapter(_Document)


class _Seeds:
    """The directory of several seeds' runs: its seeds, which are finished, and their budgets."""

    def __init__(
        self, experiment: ResolvedExperiment, out: Path, count: int, needed_usd: float, name: str
    ) -> None:
        self.experiment, self.out, self.name, self._needed_usd = experiment, out, name, needed_usd
        self.seeds = [experiment.seed + index for index in range(count)]
        if self.seeds[-1] >= 2**63:
            raise ExperimentError(
                f"seed = {experiment.seed} with --seeds {count}: allowed are seeds below 2⁶³"
            )
        self._finished: dict[str, _Limits] = {}
        self._is_new = not layout.holds_seeds(out)

    def path_of(self, seed: int) -> Path:
        return self.out / f"seed-{seed}"

    def load(self, directory: RunDirectory, *, resume: bool) -> None:
        """Reads the directory's state; refuses a directory that does not belong to these seeds.

        Raises:
            RunDirectoryError: It holds something else, or it holds these seeds without ``resume``.
        """
        if directory.holds_run:
            raise RunDirectoryError(
                f"--out {self.out}: holds a single run; name another directory for --seeds"
            )
        strangers = [
            self.path_of(seed).name
            for seed in self.seeds
            if (self.path_of(seed) / layout.CONFIG).exists()
        ]
        if self._is_new and strangers:
            raise RunDirectoryError(
                f"--out {self.out}: has no {layout.SEEDS}, but {', '.join(strangers)} there hold "
                "runs; name another"
            )
        if not self._is_new and not resume:
            raise RunDirectoryError(
                f"--out {self.out}: holds runs of several seeds already; continue them with "
                "--resume, or name another"
            )
        if not self._is_new:
            self._read()

    def _read(self) -> None:
        try:
            document = _DOCUMENT.validate_python(
                json.loads((self.out / layout.SEEDS).read_bytes()), strict=True
            )
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                f"--resume: {self.out / layout.SEEDS} cannot be read: {one_line(str(error))}"
            ) from None
        stored, before, self._finished = (
            document["experiment"],
            document["seeds"],
            document["finished"],
        )
        changed = changes(unchangeable(self.experiment), stored, "there")
        if changed:
            raise RunDirectoryError(
                f"--resume: {self.out} was another experiment: {'; '.join(changed)}. "
                f"Only {', '.join(CHANGEABLE)} may change"
            )
        if len(self.seeds) < len(before):
            raise RunDirectoryError(
                f"--resume: {self.out} holds {len(before)} seeds; allowed: --seeds from "
                f"{len(before)}"
            )

    def next_experiment(self) -> ResolvedExperiment | None:
        """Returns the next unfinished run, with its share of the budget; None if all are finished.

        Raises:
            ExperimentError: Its share cannot hold one round.
        """
        unfinished = [seed for seed in self.seeds if not self._is_finished(seed)]
        if not unfinished:
            return None
        spent = {seed: spent_in(self.path_of(seed)).most_usd for seed in self.seeds}
        finished_usd = sum(spent[seed] for seed in self.seeds if seed not in unfinished)
        seed = unfinished[0]
        share_usd = fair_share_usd(
            self.experiment.budget.usd,
            finished_usd=finished_usd,
            others_usd=sum(spent.values()) - spent[seed],
            unfinished=len(unfinished),
        )
        if share_usd < self._needed_usd:
            allowed_usd = math.ceil((finished_usd + len(unfinished) * self._needed_usd) * 1e6) / 1e6
            raise ExperimentError(
                f"--seeds {len(self.seeds)}: budget.usd = {self.experiment.budget.usd:g} leaves {share_usd:.6f} USD "
                f"for each of {len(unfinished)} runs, which cannot hold one round of "
                f"{self.experiment.scaler.smallest_round} actors, whose worst case is {self._needed_usd:.6f} USD; "
                f"allowed: budget.usd from {allowed_usd:.6f}, or fewer seeds"
            )
        return self.experiment.model_copy(
            update={
                "seed": seed,
                "budget": self.experiment.budget.model_copy(update={"usd": share_usd}),
            }
        )

    def finish(self, seed: int) -> None:
        """Records that this seed has finished under these limits."""
        self._finished[str(seed)] = self._limits()
        self.save()

    def save(self) -> None:
        write_atomically(
            self.out / layout.SEEDS,
            to_json(
                {
                    "seeds": self.seeds,
                    "finished": self._finished,
                    "experiment": unchangeable(self.experiment),
                }
            ),
        )

    def forget_if_nothing_started(self) -> None:
        """Removes the new file if the first run was refused."""
        if self._is_new and not any(self.path_of(seed).exists() for seed in self.seeds):
            remove(self.out / layout.SEEDS)

    def write_summary(self, reason: str) -> None:
        write_atomically(self.out / layout.SUMMARY, to_json(self.summary(reason)))

    def summary(self, reason: str) -> dict[str, Any]:
        """Returns all seeds' results so far, with estimates over the finished ones."""
        rows = [self._row(seed) for seed in self.seeds]
        finished = [row for row in rows if row["is_finished"]]
        return {
            "experiment": self.name,
            "environment_id": self.experiment.environment.id,
            "stop_reason": reason,
            "budget_usd": self.experiment.budget.usd,
            "spent_usd": sum(row["spent_usd"] for row in rows),
            "estimates": {
                key: interval_estimate([row[key] for row in finished if row[key] is not None])
                for key in ESTIMATED
            },
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "caution": caution(len(finished)) or None,
            "seeds": rows,
        }

    def _row(self, seed: int) -> dict[str, Any]:
        path = self.path_of(seed)
        summary: Mapping[str, Any] = read_summary(path / layout.SUMMARY) or {}
        return {
            "seed": seed,
            "directory": path.name,
            "is_finished": self._is_finished(seed),
            **{key: summary.get(key) for key in _KEPT},
            "spent_usd": spent_in(path).most_usd,
        }

    def _is_finished(self, seed: int) -> bool:
        """Returns whether it is recorded as finished; the run itself decides whether a higher limit continues it."""
        limits = self._finished.get(str(seed))
        return (
            limits is not None
            and limits["stop"] == self._limits()["stop"]
            and (limits["budget_usd"] >= self.experiment.budget.usd)
        )

    def _limits(self) -> _Limits:
        return {
            "budget_usd": self.experiment.budget.usd,
            "stop": self.experiment.stop.model_dump(mode="json"),
        }


# For people


def table_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """Returns a table of all seeds and the estimates; up to 79 columns wide except for paths and errors."""
    lines = [
        f"{'seed':>10}  {'stopped by':<14} {'last eval':>10} {'best eval':>10} {'steps':>12} {'dollars':>9}"
    ]
    lines += [
        f"{row['seed']:>10}  {row['stop_reason'] or 'not finished':<14} "
        f"{return_text(row['evaluation_return_mean']):>10} {return_text(row['evaluation_return_best']):>10} "
        f"{_number(row['env_steps_total'], 0):>12} {row['spent_usd']:>9.4f}"
        for row in summary["seeds"]
    ]
    lines += [
        f"{'':>10}  error of seed {row['seed']}: {row['error']}"
        for row in summary["seeds"]
        if row["error"]
    ]
    if any(estimate["seeds"] for estimate in summary["estimates"].values()):
        lines += [
            "",
            f"interquartile mean over seeds, {summary['confidence']:.0%} interval",
            *_estimate_lines(summary),
        ]
    lines += textwrap.wrap(
        summary["caution"] or "", 79, initial_indent="  ", subsequent_indent="  "
    )
    return [
        *lines,
        "",
        f"cost         {spent_of(summary['spent_usd'], summary['budget_usd'])}",
        f"results      {out}",
        *report_lines(out),
    ]


def _estimate_lines(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, label in ESTIMATED.items():
        estimate, digits = (
            summary["estimates"][key],
            {"spent_usd": 4, "env_steps_total": 0}.get(key),
        )
        mean, low, high = (
            return_text(value) if digits is None else _number(value, digits)
            for value in (
                estimate["interquartile_mean"],
                estimate["interval_low"],
                estimate["interval_high"],
            )
        )
        interval = "no interval" if estimate["interval_low"] is None else f"{low} … {high}"
        lines.append(
            f"  {label:<16} {mean:>12}   {interval}"
            f"   ({estimate['seeds']} seed{'s' * (estimate['seeds'] != 1)})"
        )
    return lines


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
