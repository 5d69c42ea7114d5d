"""The study of the boosting signal, on measurements with known results."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from papers.nitro.boosting import dollars as dollar_arms
from papers.nitro.boosting.measure import append, claim, whole_lines
from papers.nitro.boosting.summarise import (
    candidates,
    correlations,
    dollars,
    gain_spread,
    signal_to_noise,
)
from runtime.config.loading import load_experiment


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(("sd_between", "sd_within"), [(2.0, 1.0), (0.5, 1.0), (0.0, 1.0)])
def test_signal_to_noise_is_the_ratio_of_the_variances(
    sd_between: float, sd_within: float, generator: np.random.Generator
) -> None:
    blocks = [
        [
            list(generator.normal(level + generator.normal(0.0, sd_between), sd_within, size=4))
            for _ in range(4)
        ]
        for level in range(300)
    ]
    found = signal_to_noise(blocks)
    assert found["sd_within"] == pytest.approx(sd_within, rel=0.05)
    assert found["signal_to_noise"] == pytest.approx(
        (sd_between / sd_within) ** 2, rel=0.15, abs=0.03
    )
    low, high = found["interval"]
    assert low <= found["signal_to_noise"] <= high
    assert (found["blocks"], found["rounds"]) == (300, 1200)


def test_rounds_that_were_measured_once_say_nothing_of_noise() -> None:
    assert signal_to_noise([[[1.0], [2.0]], [[3.0, 4.0]]]) == {"rounds": 0}


def rows_of(
    gained: np.ndarray, known: np.ndarray, unknown: np.ndarray, generator: np.random.Generator
) -> tuple[list, list]:
    signals = [
        {
            "kind": "signals",
            "round_index": k,
            "known": float(known[k]),
            "unknown": float(unknown[k]),
        }
        for k in range(len(gained))
    ]
    gains = [
        {
            "kind": "gain",
            "round_index": k,
            "returns_plain": [0.0, 0.0],
            "returns_before": [-2.0 * one],
            "returns_boosted": [one + generator.normal(0.0, 0.1)] * 2,
            "returns_boosted_same_steps": [0.0, 0.0],
        }
        for k, one in enumerate(gained)
        for _ in range(6)
    ]
    return signals, gains


def test_a_signal_that_knows_the_gain_stands_out_of_what_chance_finds(
    generator: np.random.Generator,
) -> None:
    runs = {}
    for seed in "012":
        gained = generator.normal(0.0, 1.0, size=15)
        runs[seed] = rows_of(gained, -gained, generator.normal(size=15), generator)
    found = correlations(runs)
    known, unknown = (found["signals"][name]["spearman"] for name in ("known", "unknown"))
    assert known["mean"] < -0.95
    assert found["signals"]["known"]["spearman_round_held_fixed"]["mean"] < -0.9
    assert known["interval"][1] < 0.0
    assert found["signals"]["known"]["spearman_of_the_papers_gain"]["mean"] < -0.95
    assert 0.2 < found["largest_by_chance"] < abs(known["mean"])
    assert abs(unknown["mean"]) < 0.6
    assert unknown["interval"][0] < unknown["mean"] < unknown["interval"][1]
    assert found["reliability_of_the_gain"] > 0.95
    assert len(found["by_round"]) == 45


def test_what_follows_the_round_alone_is_nothing_with_the_round_held_fixed(
    generator: np.random.Generator,
) -> None:
    rounds = np.arange(40.0)
    runs = {
        seed: rows_of(*(rounds + generator.normal(0.0, 8.0, (2, 40))), rounds, generator)
        for seed in "01234"
    }
    known = correlations(runs)["signals"]["known"]
    assert known["spearman"]["mean"] > 0.4
    assert abs(known["spearman_round_held_fixed"]["mean"]) < 0.25


@pytest.mark.parametrize("sd", [0.0, 6.0])
def test_the_spread_of_true_gains_is_without_the_noise_of_their_measurements(
    sd: float, generator: np.random.Generator
) -> None:
    found = gain_spread(
        [
            {
                k: 3.0 + generator.normal(0.0, sd) + generator.normal(0.0, 10.0, size=6)
                for k in range(400)
            }
            for _ in range(3)
        ]
    )
    assert found["sd"] == pytest.approx(sd, abs=1.0)
    low, high = found["interval"]
    assert low <= found["sd"] <= high


def test_window_average_and_trend_look_back_only() -> None:
    ratios = [1.0, None, 4.0, 2.0, 8.0]
    table = candidates(
        [
            {
                "kind": "signals",
                "round_index": k,
                "kl": None if ratio is None else 10.0 * ratio,
                "log_prob-1024": {"ratio": ratio, "eigenvalue_min": -1.0, "eigenvalue_max": ratio},
            }
            for k, ratio in enumerate(ratios, start=2)
        ]
    )
    assert table["R log_prob-1024"] == dict(enumerate(ratios, start=2))
    averaged = table["R log_prob-1024, mean of 3 rounds"]
    assert averaged[3] == 0.0
    assert averaged[6] == pytest.approx(np.log([4.0, 2.0, 8.0]).mean())
    assert table["R log_prob-1024, Nitro's window"] == {
        2: 0.0,
        3: 0.0,
        4: 1.0,
        5: pytest.approx(1 / 3),
        6: 1.0,
    }
    assert table["kl, trend"] == {2: None, 3: None, 4: 30.0, 5: -5.0, 6: 50.0}


def test_measurements_go_on_only_with_the_settings_they_began_with(tmp_path: Path) -> None:
    path = tmp_path / "Hopper-v5-0.jsonl"
    for _ in range(2):
        with claim(path, "settings") as file:
            append(file, {"round_index": 1})
    with pytest.raises(SystemExit, match="begun with other settings"):
        claim(path, "others")
    assert whole_lines(path) == [{"round_index": 1}] * 2


def test_arms_are_compared_seed_by_seed() -> None:
    def line(arm: str, final: float) -> dict:
        return {"arm": arm, "actors": [8, 32], "returns": {"1": [final], "2": [final, final + 2.0]}}

    rows = {
        str(seed): [
            line("convexity", 100.0 * seed + 5.0),
            line("convexity-permuted", 100.0 * seed),
            line("convexity-even", 100.0 * seed + 6.0),
        ]
        for seed in range(5)
    }
    differences = dollars(rows)["differences"]
    assert differences["convexity − convexity-permuted"]["at_the_end"] == {
        "seeds": 5,
        "mean": 5.0,
        "interval": [5.0, 5.0],
        "share_above_0": 1.0,
    }
    assert differences["convexity − convexity-even"]["at_the_end"]["mean"] == -1.0
    # Per actor: 8 before the first evaluation, with half of it as the mean, and 32 between the first and the second.
    assert differences["convexity − convexity-even"]["along_the_way"]["mean"] == pytest.approx(
        -(8 * 0.5 + 32 * 1.0) / 40
    )


def test_all_arms_start_as_many_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unboosted run has I_min actors per round, in more rounds."""
    monkeypatch.setattr(
        dollar_arms,
        "train",
        lambda experiment, decide, rounds, deadline_s: {
            "actors": [
                decide(SimpleNamespace(learner=None), [None] * index, index + 1)
                for index in range(rounds)
            ]
        },
    )
    monkeypatch.setattr(
        dollar_arms,
        "measured",
        lambda learner, updates: float(np.random.default_rng(len(updates)).random()),
    )
    experiment = load_experiment(Path("experiments/hopper.yaml"), ["seed=3"])
    found = {
        line["arm"].replace("convexity", "random"): line["actors"]
        for line in dollar_arms.arms(experiment, 30, {}, 0.0)
    }
    assert set(found) == {"random", "random-permuted", "random-even", "random-rounds"}
    total, unboosted = sum(found["random"]), found["random-rounds"]
    assert set(unboosted) == {8} and len(unboosted) > 30
    assert abs(sum(unboosted) - total) <= 4
    assert sum(found["random-even"]) == total
    assert abs(sum(found["random-permuted"]) - total) <= 4
    assert sorted(found["random-permuted"]) != sorted(found["random-even"])
