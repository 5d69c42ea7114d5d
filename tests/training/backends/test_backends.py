"""Choosing a run's backend; a run needs nothing of a backend beyond its port."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import BudgetTooSmallError, ExperimentError, RunError
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.opening import Opening
from runtime.money.meter import BETWEEN_ROUNDS_S
from runtime.money.prices import PRICES, WATCHED_USD_PER_HOUR
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show.display import RunDisplay
from runtime.training.backends import make_backend
from runtime.training.backends.this_machine import ThisMachine
from runtime.training.opening import Backend, RecordsElsewhere, Resources
from runtime.training.preflight import preflight
from runtime.training.run import train
from tests.helpers import SMALL_EXPERIMENT, events, rounds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_EXPERIMENT)
    return path


def resolved(file: Path, *settings: str) -> ResolvedExperiment:
    return load_experiment(file, settings).resolved()


class Lost(RunError):
    """Raised when another machine's records are gone."""


class Elsewhere(RecordsElsewhere, Backend):
    """A backend that only this test knows. It keeps another machine's records of a run in a list."""

    is_billed = True

    def __init__(self, experiment: ResolvedExperiment, fails_in_round: int = 0) -> None:
        self._inside = ThisMachine(experiment)
        self.prices, self._fails_in_round = self._inside.prices, fails_in_round
        self.told: list[str] = []
        self.reserved: list[dict[str, int]] = []

    def fetch(self, directory: RunDirectory) -> None:
        self.told.append(f"fetch {directory.path.name}")

    def open(self, opening: Opening) -> Resources:
        facts = {"place": "elsewhere"}
        return replace(self._inside.open(opening), facts=facts, elsewhere=self)

    def spent_usd(self) -> float:
        return 0.125

    def begins(self) -> None:
        self.told.append("begins")

    def ledger_changed(self, ledger: bytes) -> None:
        self.reserved.append(json.loads(ledger)["budget"]["reserved"])

    def on_round_end(self, row: RoundRow) -> None:
        self.told.append(f"round {row.round_index}")
        if row.round_index == self._fails_in_round:
            raise Lost("the records are gone")

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.told.append("ends")


def run(backend: Backend, experiment: ResolvedExperiment, out: Path):
    return train(
        experiment,
        out,
        backend=backend,
        resume=True,
        display=RunDisplay(experiment, io.StringIO()),
        name="small",
    )


def test_a_run_needs_of_a_backend_what_the_port_says(file: Path, tmp_path: Path):
    experiment, out = resolved(file, "stop.max_rounds=2"), tmp_path / "out"
    backend = Elsewhere(experiment)
    result = run(backend, experiment, out)
    assert (result.exit_code, result.error) == (0, None)
    assert backend.told == ["fetch out", "begins", "round 1", "round 2", "ends"]
    assert any(backend.reserved) and not backend.reserved[-1]
    assert (result.summary["cost_basis"], result.summary["rounds"]) == ("metered", 2)
    assert result.summary["spent_usd"] > 0.125, "the other records' cost counts"
    assert events(out, "spent_elsewhere")[0]["usd"] == 0.125


def test_what_a_backend_raises_ends_the_run_and_is_handed_on(file: Path, tmp_path: Path):
    experiment, out = resolved(file), tmp_path / "out"
    result = run(Elsewhere(experiment, fails_in_round=1), experiment, out)
    assert result.exit_code == 1
    assert isinstance(result.error, Lost)
    assert result.summary["error"] == "Lost: the records are gone"
    assert len(rounds(out)) == 1


def test_only_a_deployment_must_hold_cloudwatch_the_bucket_and_the_ledger(file: Path):
    experiment = resolved(file, "budget.usd=1e-6", "fleet.processes=16")

    def needed_usd(*, put_usd: float, **declared: bool) -> float:
        backend = Elsewhere(experiment)
        vars(backend).update(declared)
        backend.prices = PRICES.model_copy(update={"put_usd": put_usd})
        with pytest.raises(BudgetTooSmallError) as caught:
            preflight(experiment, backend)
        return float(re.findall(r"worst case is ([\d.]+) USD", str(caught.value))[0])

    own_usd = needed_usd(put_usd=1.0)
    seconds = experiment.fleet.round_deadline_s + experiment.learner.update_timeout_s
    watched_usd = (seconds + BETWEEN_ROUNDS_S) * WATCHED_USD_PER_HOUR / 3600
    deployed_usd = needed_usd(is_deployed=True, put_usd=0.0)
    assert deployed_usd - own_usd == pytest.approx(watched_usd, abs=2e-6)
    assert needed_usd(is_deployed=True, put_usd=1.0) > deployed_usd + 1.0


def test_only_where_nobody_bills_a_run_may_begin_by_what_its_trial_took(file: Path):
    experiment = resolved(file, "budget.usd=0.02")
    with pytest.raises(BudgetTooSmallError, match="with every part until its own limit"):
        preflight(experiment, Elsewhere(experiment))
    preflight(experiment, make_backend(experiment))
    poorer = resolved(file, "budget.usd=1e-9")
    with pytest.raises(BudgetTooSmallError, match="a quarter more than the trial makes likely"):
        preflight(poorer, make_backend(poorer))


def test_a_run_on_one_machine_gets_it_and_lambda_needs_a_deployment(file: Path):
    assert isinstance(make_backend(resolved(file)), ThisMachine)
    with pytest.raises(ExperimentError, match="fleet.kind = 'lambda' needs a deployed learner"):
        make_backend(resolved(file, "fleet.kind=lambda"))
