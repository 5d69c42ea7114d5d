"""Sweeps of settings by Optuna under one budget; see docs/guides/sweeps.md."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from nitro_rl.training import train
from runtime.errors import (
    BudgetTooSmallError,
    ExperimentError,
    MissingExtraError,
    NotFiniteError,
    RunDirectoryError,
    RunError,
)
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import CHANGEABLE, changes, unchangeable
from runtime.money.budget import Budget
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_in
from runtime.records.trust import load_file_or_dict

try:
    from optuna import Study, create_study
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
        distribution_to_json,
    )
    from optuna.samplers import TPESampler
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise MissingExtraError("nitro_rl.integrations.optuna", "Optuna", "sweep") from None

STUDY = "study.db"
"""Optuna's storage in a sweep's directory."""


def sweep(
    experiment: str | os.PathLike[str],
    space: Mapping[str, BaseDistribution],
    *,
    out: str | os.PathLike[str],
    budget_usd: float,
    trials: int,
) -> Study:
    """Trains one trial after the other, each in ``out/trial-N``, and maximizes their last evaluation's mean return.

    The experiment's ``budget.usd`` is a trial's worst case. It is reserved before the trial starts, beside all that
    the others spent, so the sweep never costs more than ``budget_usd``. Call it again with the same ``out`` to
    continue: finished trials stay as they are, and an unfinished one continues after its last finished round. A
    trial's settings depend on its number and on earlier results only, so a killed sweep tries the same ones.

    Args:
        experiment: An experiment file.
        space: Distributions of Optuna by the file's keys, as ``algorithm.learning_rate``.
        out: The sweep's directory. Its ``study.db`` is Optuna's storage, with a study named ``sweep``.
        budget_usd: US dollars for all trials together.
        trials: Most trials in all, with those of earlier calls.

    Returns:
        Optuna's study. It has fewer trials if the budget does not hold another one's worst case. A trial that diverged
        or was never evaluated has failed. The user attribute ``spent_usd`` has the dollars so far.

    Raises:
        RunError: Nothing was started, or a trial cannot begin or failed. Call it again to continue.
        BudgetTooSmallError: The budget does not hold the first trial.
        KeyboardInterrupt: Ctrl-C ended it; finished rounds are kept.
    """
    folder = Path(out)
    resolved = _checked(experiment, space)
    directory = RunDirectory(folder)
    try:
        if directory.holds_run:
            raise RunDirectoryError(f"out = {folder}: holds a single run; name another directory")
        study = create_study(
            storage=f"sqlite:///{folder.resolve() / STUDY}",
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
        )
        _check_continues(study, resolved, space, folder)
        for number in range(trials):
            trial = study.trials[number] if number < len(study.trials) else None
            if trial is not None and trial.state.is_finished():
                continue
            path = folder / f"trial-{number}"
            if not _has_room(path, budget_usd=budget_usd, trial_usd=resolved.budget.usd):
                if number == 0:
                    raise BudgetTooSmallError(
                        f"budget_usd = {budget_usd:g} does not hold a trial; allowed: from {resolved.budget.usd:g}, "
                        "the experiment's budget.usd"
                    )
                break
            if trial is None:
                study.sampler = TPESampler(seed=number)
                study.ask(dict(space))
                trial = study.trials[number]
            _run(study, trial, experiment, space, path)
            study.set_user_attr("spent_usd", sum(_spent_usd(folder).values()))
        return study
    finally:
        directory.close()


def _checked(
    experiment: str | os.PathLike[str], space: Mapping[str, BaseDistribution]
) -> ResolvedExperiment:
    """Returns the experiment, after loading it with the first and the last values of the space.

    Raises:
        ExperimentError: A key or a value is not allowed, or nothing would be evaluated.
    """
    for index in (0, -1):
        overrides = []
        for key, distribution in space.items():
            match distribution:
                case CategoricalDistribution(choices=choices):
                    values = choices
                case FloatDistribution(low=low, high=high) | IntDistribution(low=low, high=high):
                    values = (low, high)
                case _:
                    raise ExperimentError(
                        f"space[{key!r}] = {distribution!r} is not allowed; allowed: a distribution of "
                        "optuna.distributions"
                    )
            overrides.append(f"{key}={json.dumps(values[index])}")
        load_file_or_dict(experiment, overrides).resolved()
    resolved = load_file_or_dict(experiment).resolved()
    if not resolved.evaluation.every_rounds:
        raise ExperimentError(
            "evaluation.every_rounds = 0: a sweep compares evaluations; allowed: from 1"
        )
    return resolved


def _check_continues(
    study: Study,
    experiment: ResolvedExperiment,
    space: Mapping[str, BaseDistribution],
    folder: Path,
) -> None:
    """Stores what all trials have in common in a new study, and compares it with an earlier one's.

    Raises:
        RunDirectoryError: The sweep there is another one.
    """
    common = unchangeable(experiment) | {
        f"space {key}": distribution_to_json(distribution) for key, distribution in space.items()
    }
    before = study.user_attrs.get("common", common)
    if changed := changes(common, before, "there"):
        raise RunDirectoryError(
            f"out = {folder} was another sweep: {'; '.join(changed)}. Only {', '.join(CHANGEABLE)} may change"
        )
    study.set_user_attr("common", common)


def _spent_usd(folder: Path) -> dict[Path, float]:
    """Returns the most dollars that each trial can have spent, by its directory."""
    return {path: spent_in(path).most_usd for path in folder.glob("trial-*")}


def _has_room(path: Path, *, budget_usd: float, trial_usd: float) -> bool:
    """Returns whether the budget holds a trial's worst case beside all that the others spent."""
    budget = Budget(budget_usd)
    for other, spent_usd in _spent_usd(path.parent).items():
        if other != path:
            budget.spend(spent_usd)
    return budget.reserve({path.name: trial_usd})


def _run(
    study: Study,
    trial: FrozenTrial,
    experiment: str | os.PathLike[str],
    space: Mapping[str, BaseDistribution],
    path: Path,
) -> None:
    """Trains or continues a trial, and tells Optuna its value.

    Raises:
        RunError: It cannot begin, or it failed for another reason than its settings.
    """
    value = None
    # A kill while Optuna chose the settings leaves only some of them.
    if trial.params.keys() == space.keys():
        overrides = [f"{key}={json.dumps(chosen)}" for key, chosen in trial.params.items()]
        try:
            result = train(experiment, out=path, overrides=overrides, resume=True, is_quiet=True)
            value = result.summary["evaluation_return_mean"]
        except ExperimentError:
            study.tell(trial.number, state=TrialState.FAIL)
            raise
        except RunError as error:
            if not isinstance(error.__cause__, NotFiniteError):
                raise
    if value is None:
        study.tell(trial.number, state=TrialState.FAIL)
    else:
        study.tell(trial.number, value)
