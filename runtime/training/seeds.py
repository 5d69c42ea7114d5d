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
from runtime.show.estimates import CONFIDENCE, ESTIMATED, RESAMPLES, caution, interval_estimate
from runtime.show.report import try_to_write_report
from runtime.show.terminal import spent_of
from runtime.show.wandb_log import WandbLog
from runtime.training.opening import Backend
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
    result, trained = RunResult({}), 0
    try:
        runs.load(directory, resume=resume)
        while not result.exit_code and (following := runs.next_experiment()) is not None:
            if not trained:
                say(settings_text(experiment).rstrip())
            number = runs.seeds.index(following.seed) + 1
            most = spent_of(following.budget.usd, experiment.budget.usd)
            say(f"\nseed {following.seed}, {number} of {seeds}: up to {most}\n")
            try:
                result = train_one(following)
            except RunError as error:
                if not trained and isinstance(error, BudgetTooSmallError):
                    raise ExperimentError(
                        f"--seeds {seeds} share budget.usd = {experiment.budget.usd:g}; "
                        f"for seed {following.seed}, {error}"
                    ) from None
                if not trained:
                    raise
                say(f"error: {error}")
                result = RunResult({}, 1, error)
            trained += 1
            if not result.exit_code:
                runs.finish(following.seed)
            runs.write_summary(result.exit_code)
        summary = runs.write_summary(result.exit_code)
        if why := try_to_write_report(out):
            say(f"! no report could be written: {why}")
        return RunResult(summary, result.exit_code, result.error)
    finally:
        runs.forget_if_nothing_started()
        directory.close()


class _Seeds:
    """The directory of several seeds' runs: its seeds, which are finished, and their budgets."""

    def __init__(self, experiment: ResolvedExperiment, out: Path, count: int, name: str) -> None:
        self.experiment, self.out, self.name = experiment, out, name
        self.seeds = [experiment.seed + index for index in range(count)]
        # By seed: the limits under which it has finished.
        self._finished: dict[str, Any] = {}
        self._limits = {
            "budget_usd": experiment.budget.usd,
            "stop": experiment.stop.model_dump(mode="json"),
        }
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
            self._read()
        self._save()

    def _read(self) -> None:
        path = self.out / layout.SEEDS
        try:
            document = read_json_object(path)
            count, stored = len(document["seeds"]), dict(document["experiment"])
            self._finished = {
                seed: {"budget_usd": float(limits["budget_usd"]), "stop": limits["stop"]}
                for seed, limits in document["finished"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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

    def _save(self) -> None:
        document = {
            "seeds": self.seeds,
            "finished": self._finished,
            "experiment": unchangeable(self.experiment),
        }
        write_atomically(self.out / layout.SEEDS, to_json(document))

    def next_experiment(self) -> ResolvedExperiment | None:
        """Returns the next unfinished run, with its share of the budget; None if all are finished."""
        unfinished = [seed for seed in self.seeds if not self._is_finished(seed)]
        if not unfinished:
            return None
        seed = unfinished[0]
        spent = {seed: spent_in(self.path_of(seed)).most_usd for seed in self.seeds}
        share_usd = fair_share_usd(
            self.experiment.budget.usd,
            finished_usd=sum(spent[seed] for seed in self.seeds if seed not in unfinished),
            others_usd=sum(spent.values()) - spent[seed],
            unfinished=len(unfinished),
        )
        budget = self.experiment.budget.model_copy(update={"usd": share_usd})
        return self.experiment.model_copy(update={"seed": seed, "budget": budget})

    def finish(self, seed: int) -> None:
        """Records that this seed has finished under these limits."""
        self._finished[str(seed)] = self._limits
        self._save()

    def forget_if_nothing_started(self) -> None:
        """Removes the new file if the first run was refused."""
        if self._is_new and not any(self.path_of(seed).exists() for seed in self.seeds):
            remove(self.out / layout.SEEDS)

    def write_summary(self, exit_code: int) -> dict[str, Any]:
        """Writes all seeds' results so far, with estimates over the finished ones, and returns them."""
        rows = [self._row(seed) for seed in self.seeds]
        finished = [row for row in rows if row["is_finished"]]
        reason = "finished" if len(finished) == len(rows) else "unfinished"
        summary = {
            "experiment": self.name,
            "environment_id": self.experiment.environment.id,
            "stop_reason": {0: reason, 1: "failed"}.get(exit_code, "interrupted"),
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
            "is_finished": self._is_finished(seed),
            **{key: summary.get(key) for key in _KEPT},
            "spent_usd": spent_in(path).most_usd,
        }

    def _is_finished(self, seed: int) -> bool:
        """Returns whether it is recorded as finished; the run itself decides whether a higher limit continues it."""
        limits = self._finished.get(str(seed))
        return (
            limits is not None
            and limits["stop"] == self._limits["stop"]
            and limits["budget_usd"] >= self.experiment.budget.usd
        )


# For people


def table_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """Returns a table of all seeds and the estimates; up to 79 columns wide except for paths and errors."""
    lines = [
        f"{'seed':>10}  {'stopped by':<14} {'last eval':>10} {'best eval':>10} {'steps':>12} {'dollars':>9}"
    ]
    for row in summary["seeds"]:
        state = row["stop_reason"] or ("not finished" if row["is_begun"] else "not begun")
        last, best = (return_text(row[f"evaluation_return_{one}"]) for one in ("mean", "best"))
        steps = _text("env_steps_total", row["env_steps_total"])
        lines.append(
            f"{row['seed']:>10}  {state:<14} {last:>10} {best:>10} {steps:>12} {row['spent_usd']:>9.4f}"
        )
    lines += [
        f"{'':>10}  error of seed {row['seed']}: {row['error']}"
        for row in summary["seeds"]
        if row["error"]
    ]
    estimates = {key: one for key, one in summary["estimates"].items() if one["seeds"]}
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
