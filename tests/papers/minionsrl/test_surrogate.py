"""The surrogate recovers a known workload, and names workloads that it cannot predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from papers.minionsrl.scheduler.recordings import read_recordings
from papers.minionsrl.scheduler.showing import fit_lines
from papers.minionsrl.scheduler.surrogate import Surrogate, SurrogateRun, fit
from runtime.errors import RunDirectoryError
from tests.papers.minionsrl.workloads import COEFFICIENTS, make_surrogate, record, write

LONG = {"max_rounds": 400, "budget_usd": 1e9, "target_return": 200.0}


def drawn(run: SurrogateRun, generator: np.random.Generator) -> int:
    return int(generator.integers(2, 7))


def test_it_finds_a_known_workload_again(tmp_path: Path) -> None:
    gains = [0.004, -0.0004]
    truth = make_surrogate(
        workload=LONG,
        reached_share=1e9,
        coefficients={"return_gain": gains},
        noise={"return_gain": [0.004]},
    )
    found = fit([record(truth, drawn, seed) for seed in range(5)])
    for name, expected in COEFFICIENTS.items():
        if not name.startswith("return_gain"):
            tolerance = 0.5 if name.startswith("log_") else 0.05
            assert found.coefficients[name] == pytest.approx(expected, abs=tolerance), name
    for n in (2, 6):
        points = [n, n * np.log(800)]
        assert np.dot(found.coefficients["return_gain"], points) == pytest.approx(
            np.dot(gains, points), abs=0.001
        )
    assert found.noise["return_gain"] == pytest.approx([0.004], rel=0.3)
    assert found.noise["share"] == pytest.approx([0.005, 0.01], abs=0.003)
    assert found.held_out["usd"]["r2"] > 0.99
    assert (
        found.held_out["return_gain"]["r2"]
        > found.held_out["return_gain_without_actors"]["r2"] + 0.05
    )
    assert found.noise["learner_s"][0] == pytest.approx(0.01, rel=0.1)
    found.save(tmp_path / "s.json")
    assert Surrogate.load(tmp_path / "s.json") == found
    (tmp_path / "s.json").write_text("[")
    with pytest.raises(RunDirectoryError, match="is no surrogate: .*Expecting"):
        Surrogate.load(tmp_path / "s.json")


def test_a_damaged_recording_is_named(tmp_path: Path) -> None:
    write(record(make_surrogate(), lambda run, generator: 2), tmp_path / "b")
    file = tmp_path / "b" / "rounds.jsonl"
    file.write_text(file.read_text().replace("{", "[", 1))
    with pytest.raises(RunDirectoryError, match=f"{tmp_path}/b holds no finished run: .*another"):
        read_recordings([tmp_path])


def test_a_gain_that_is_chance_is_said_to_be(tmp_path: Path) -> None:
    truth = make_surrogate(
        workload={**LONG, "max_rounds": 100},
        reached_share=1e9,
        coefficients={"return_gain": [0.0] * 2},
        noise={"return_gain": [0.001], "share": [0.05, 0.0]},
    )
    found = fit([record(truth, drawn, seed) for seed in range(8)])
    assert found.held_out["return_gain"]["r2"] < 0.05
    text = "\n".join(fit_lines(found))
    assert "can hardly be predicted" in text
    assert "does not show that more actors" in text


def test_a_run_ends_at_its_target_its_budget_or_its_limits() -> None:
    def ended(**fields: object) -> tuple[int, bool]:
        run = SurrogateRun(make_surrogate(**fields), np.random.default_rng(0))
        while run.play(4):
            pass
        return run.round_index - 1, run.is_success

    assert ended(reached_share=0.0) == (1, True)
    assert ended(reached_share=9.0) == (60, False)
    assert ended(reached_share=9.0, workload={"max_steps": 4 * 64 * 7}) == (7, False)
    rounds, reached = ended(reached_share=9.0, workload={"budget_usd": 0.05})
    assert (rounds < 20, reached) == (True, False)
    assert ended(reached_share=9.0, workload={"budget_usd": 0.05}, reserve_usd=0.04)[0] < rounds


def test_recordings_are_read_and_must_be_of_one_workload(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no finished run"):
        read_recordings([tmp_path])
    run = record(make_surrogate(), drawn)
    write(run, tmp_path / "a")
    write(run, tmp_path / "b")
    (tmp_path / "unfinished").mkdir()
    write(replace(run, stop_reason="interrupted"), tmp_path / "broken off")
    found = read_recordings([tmp_path])
    assert [one.rows for one in found] == [run.rows] * 2
    assert found[0].shares == pytest.approx(run.shares)
    config = tmp_path / "b" / "config.yaml"
    config.write_text(config.read_text().replace("usd: 1.0", "usd: 2.0"))
    with pytest.raises(RunDirectoryError, match="differ in budget_usd"):
        read_recordings([tmp_path])
    with pytest.raises(RunDirectoryError, match="takes two runs and 20 rounds at least"):
        fit([run])
