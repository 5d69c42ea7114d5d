"""Trains one experiment with several seeds under one budget, and summarizes them.

A killed seed counts with what its ledger has spent and reserved, so the shares never exceed the budget.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.errors import (
    BudgetTooSmallError,
    ExperimentError,
    RunDirectoryError,
    RunError,
    one_line,
)
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import CHANGEABLE, changes, unchangeable
from runtime.records import layout
from runtime.records.files import read_json_object, remove, to_json, write_atomically
from runtime.records.rows import return_text
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_in
from runtime.show.display import RunDisplay, settings_text
from runtime.show.end_text import file_lines
from runtime.show.estimates import (
    CONFIDENCE,
    ESTIMATED,
    RESAMPLES,
    caution,
    ended_by_itself,
    interval_estimate,
)
from runtime.show.report import try_to_write_report
from runtime.show.terminal import spent_of
from runtime.show.wandb_log import WandbLog
from runtime.training.opening import Backend
from runtime.training.resume import finished_summary
from runtime.training.run import RunResult, train

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


def fair_share_usd(
    budget_usd: float, *, finished_usd: float, others_usd: float, unfinished: int
) -> float:
    """Returns a run's share of the budget, including its spending so far.

    Args:
        finished_usd: Dollars spent by finished runs.
        others_usd: Dollars spent by all other runs, finished or not.
        unfinished: Number of unfinished runs, including this one.

    Returns:
        An equal share of the money that the finished runs left.
    """
    return max(0.0, min((budget_usd - finished_usd) / unfinished, budget_usd - others_usd))


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

    def train_one(following: ResolvedExperiment) -> RunResult:
        display = RunDisplay(following, has_settings=False)
        try:
            return train(
                following,
                runs.path_of(following.seed),
                backend=make_backend(following),
                resume=resume,
                display=display,
                name=name,
                wandb=wandb,
            )
        except KeyboardInterrupt as interrupt:
            return RunResult({}, getattr(interrupt, "exit_code", 130))
        finally:
            display.close()

    directory = RunDirectory(out)
    runs = _Seeds(experiment, out, seeds, name)
    result = RunResult({})
    has_trained = False
    try:
        runs.load(directory, resume=resume)
        for number, seed in enumerate(runs.seeds, 1):
            following = runs.experiment_of(seed)
            if finished_summary(following, runs.path_of(seed)) is not None:
                continue
            if not has_trained:
                say(settings_text(experiment).rstrip())
            most = spent_of(following.budget.usd, experiment.budget.usd)
            say(f"\nseed {seed}, {number} of {seeds}: up to {most}\n")
            try:
                result = train_one(following)
            except RunError as error:
                if not has_trained and isinstance(error, BudgetTooSmallError):
                    raise ExperimentError(
                        f"--seeds {seeds} share budget.usd = {experiment.budget.usd:g}; "
                        f"for seed {seed}, {error}"
                    ) from None
                if not has_trained:
                    raise
                say(f"error: {error}")
                result = RunResult({}, 1, error)
            has_trained = True
            if result.exit_code:
                break
            runs.write_summary("unfinished")
        reasons = {0: "finished", 1: "failed"}
        summary = runs.write_summary(reasons.get(result.exit_code, "interrupted"))
        if why := try_to_write_report(out):
            say(f"! no report could be written: {why}")
        return RunResult(summary, result.exit_code, result.error)
    finally:
        runs.forget_if_nothing_started()
        directory.close()


class _Seeds:
    """The directory of several seeds' runs: its seeds and their budgets."""

    def __init__(self, experiment: ResolvedExperiment, out: Path, count: int, name: str) -> None:
        self.experiment = experiment
        self.out = out
        self.name = name
        self.seeds = [experiment.seed + index for index in range(count)]
        self._is_new = not layout.holds_seeds(out)

    def path_of(self, seed: int) -> Path:
        return self.out / f"seed-{seed}"

    def load(self, directory: RunDirectory, *, resume: bool) -> None:
        """Reads the directory's state, and records its seeds.

        Raises:
            RunDirectoryError: It holds something else, or it holds these seeds without ``resume``.
        """
        if directory.holds_run:
            raise RunDirectoryError(
                f"--out {self.out}: holds a single run; name another directory for --seeds"
            )
        if not self._is_new and not resume:
            raise RunDirectoryError(
                f"--out {self.out}: holds runs of several seeds already; continue them with "
                "--resume, or name another"
            )
        if not self._is_new:
            self._check_stored()
        document = {"seeds": self.seeds, "experiment": unchangeable(self.experiment)}
        write_atomically(self.out / layout.SEEDS, to_json(document))

    def _check_stored(self) -> None:
        path = self.out / layout.SEEDS
        try:
            document = read_json_object(path)
            count = len(document["seeds"])
            stored = dict(document["experiment"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(
                f"--resume: {path} cannot be read: {one_line(repr(error))}"
            ) from None
        if changed := changes(unchangeable(self.experiment), stored, "there"):
            raise RunDirectoryError(
                f"--resume: {self.out} was another experiment: {'; '.join(changed)}. "
                f"Only {', '.join(CHANGEABLE)} may change"
            )
        if len(self.seeds) < count:
            raise RunDirectoryError(
                f"--resume: {self.out} holds {count} seeds; allowed: --seeds from {count}"
            )

    def experiment_of(self, seed: int) -> ResolvedExperiment:
        """Returns a seed's run, with its share of the money that the seeds before it have left."""
        spent = {seed: spent_in(self.path_of(seed)).most_usd for seed in self.seeds}
        index = self.seeds.index(seed)
        share_usd = fair_share_usd(
            self.experiment.budget.usd,
            finished_usd=sum(spent[before] for before in self.seeds[:index]),
            others_usd=sum(spent[other] for other in self.seeds if other != seed),
            unfinished=len(self.seeds) - index,
        )
        budget = self.experiment.budget.model_copy(update={"usd": share_usd})
        return self.experiment.model_copy(update={"seed": seed, "budget": budget})

    def forget_if_nothing_started(self) -> None:
        """Removes the new file if the first run was refused."""
        if self._is_new and not any(self.path_of(seed).exists() for seed in self.seeds):
            remove(self.out / layout.SEEDS)

    def write_summary(self, stop_reason: str) -> dict[str, Any]:
        """Writes all seeds' results so far, with estimates over the finished ones, and returns them."""
        rows = [self._row(seed) for seed in self.seeds]
        finished = [row for row in rows if row["is_finished"]]
        summary = {
            "experiment": self.name,
            "environment_id": self.experiment.environment.id,
            "stop_reason": stop_reason,
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
        write_atomically(self.out / layout.SUMMARY, to_json(summary))
        return summary

    def _row(self, seed: int) -> dict[str, Any]:
        path = self.path_of(seed)
        summary = read_json_object(path / layout.SUMMARY)
        return {
            "seed": seed,
            "directory": path.name,
            "is_begun": path.exists(),
            "is_finished": ended_by_itself(summary),
            **{key: summary.get(key) for key in _KEPT},
            "spent_usd": spent_in(path).most_usd,
        }


# For people


def table_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """Returns a table of all seeds and the estimates; up to 79 columns wide except for paths and errors."""
    lines = [
        f"{'seed':>10}  {'stopped by':<14} {'last eval':>10} {'best eval':>10} {'steps':>12} {'dollars':>9}"
    ]
    for row in summary["seeds"]:
        state = row["stop_reason"] or ("not finished" if row["is_begun"] else "not begun")
        last, best = (return_text(row[f"evaluation_return_{which}"]) for which in ("mean", "best"))
        steps = _text("env_steps_total", row["env_steps_total"])
        lines.append(
            f"{row['seed']:>10}  {state:<14} {last:>10} {best:>10} {steps:>12} {row['spent_usd']:>9.4f}"
        )
    lines += [
        f"{'':>10}  error of seed {row['seed']}: {row['error']}"
        for row in summary["seeds"]
        if row["error"]
    ]
    estimates = {
        key: estimate for key, estimate in summary["estimates"].items() if estimate["seeds"]
    }
    if estimates:
        lines += ["", f"interquartile mean over seeds, {summary['confidence']:.0%} interval"]
    for key, estimate in estimates.items():
        mean, low, high = (
            _text(key, estimate[name])
            for name in ("interquartile_mean", "interval_low", "interval_high")
        )
        interval = "no interval" if estimate["interval_low"] is None else f"{low} … {high}"
        count = f"{estimate['seeds']} seed{'s' * (estimate['seeds'] != 1)}"
        lines.append(f"  {ESTIMATED[key]:<16} {mean:>12}   {interval}   ({count})")
    lines += textwrap.wrap(
        summary["caution"] or "", 79, initial_indent="  ", subsequent_indent="  "
    )
    cost = spent_of(summary["spent_usd"], summary["budget_usd"])
    return [
        *lines,
        "",
        f"cost         {cost}",
        f"results      {out}",
        *file_lines(out, has_failed=False),
    ]


def _text(key: str, value: float | None) -> str:
    """Returns a value with the digits that suit its key."""
    digits = {"spent_usd": 4, "env_steps_total": 0}.get(key)
    return return_text(value) if digits is None or value is None else f"{value:,.{digits}f}"
