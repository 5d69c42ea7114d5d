"""The learned scheduler as a scaler: its observations, its decisions, and refused files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from lambda_actor import wire
from runtime.errors import ExperimentError
from runtime.ports.learning import State
from runtime.ports.scaling import RoundView
from runtime.scaler.minions import MinionsScaler
from runtime.scaler.minions_settings import MinionsSettings
from runtime.scaler.saved_scheduler import SavedScheduler, Seen, load_scheduler, return_share
from runtime.scaler.shipped import SHIPPED
from tests.scaler.rows import row
from tests.scaler.schedulers import PRICING, make_scheduler

ROWS = [
    row(
        round_index=1,
        policy_loss=-0.5,
        value_loss=20.0,
        kl=0.02,
        actors_billed=2,
        env_steps=180,
        replayed_steps=10,
        lost_steps=10,
        cold_starts=1,
        gradient_steps=8,
        samples_trained=1000,
        evaluated_steps=200,
        episode_return_mean=50.0,
    ),
    row(
        round_index=2,
        policy_loss=-2.0,
        value_loss=0.5,
        kl=0.01,
        gradient_steps=16,
        evaluated_steps=None,
        replayed_steps=None,
        episode_return_mean=None,
    ),
]


def settings(**values: Any) -> MinionsSettings:
    return MinionsSettings(**{"actors_min": 2, "actors_max": 6, "scheduler": "x"} | values)


def scaler_of(saved: SavedScheduler, **values: Any) -> MinionsScaler:
    return MinionsScaler(settings(**values), saved)


def outputs(saved: SavedScheduler, state: list[float]) -> list[float]:
    fields = wire.decode(saved.weights, wire.Kind.WEIGHTS)
    values = [min(max((one - 0.5) / 2.0, -10.0), 10.0) for one in state]
    for layer in range(3):
        weight, bias = (fields[f"layer.{layer}.{name}"].tolist() for name in ("weight", "bias"))
        values = [
            sum(map(math.prod, zip(line, values, strict=True))) + b
            for line, b in zip(weight, bias, strict=True)
        ]
        values = [math.tanh(one) for one in values] if layer < 2 else values
    return values


def test_a_round_is_priced_by_its_counts() -> None:
    """Actors: 2 · 0.5 s + 200 · 0.01 s = 3 s and a cold start of 1 s; 1.5 s until all would be back without it."""
    first, second = (PRICING.price(row_seen) for row_seen in ROWS)
    assert (first.actor_s, first.learner_s, first.round_s) == pytest.approx((2.0, 3.0, 5.5))
    # 2 requests, 4 s of actors, 5.5 s of the learner, and 4 s of evaluation, 1.5 s of which outlast the actors.
    assert first.usd == pytest.approx(0.002 + 0.008 + 0.055 + 0.015)
    assert (second.actor_s, second.learner_s, second.round_s) == (None, 4.0, 4.0)
    assert second.usd == pytest.approx(0.04)


def test_what_it_sees_and_decides_by_hand() -> None:
    """J = 200, B = $1. In round 2 no episode and no actor ended, so the last return and actor time remain."""
    saved = make_scheduler()
    scaler = scaler_of(scheduler_actions="greedy", saved=saved)
    expected = [
        [1, 0, 0, 0, 0, 0, 0, 1.0],
        [2, math.log(20.5), 0.25, 0.02, 3.0, 2.0, 5.5, 0.92],
        [3, -math.log(2.5), 0.25, 0.01, 4.0, 2.0, 4.0, 0.88],
    ]
    seen = Seen()
    for index, state in enumerate(expected):
        assert seen.state(index + 1, target_return=200.0, budget_usd=1.0).tolist() == pytest.approx(
            state
        )
        decision = scaler.decide(RoundView(index + 1, target_return=200.0, budget_usd=1.0))
        logits = outputs(saved, state)
        assert decision.actor_count == 2 + logits.index(max(logits))
        if index < len(ROWS):
            seen = seen.after(ROWS[index], PRICING.price(ROWS[index]))
            scaler.observe(ROWS[index])


def test_counts_are_drawn_as_often_as_the_distribution_says() -> None:
    saved = make_scheduler(seed=4)
    logits = outputs(saved, [1, 0, 0, 0, 0, 0, 0, 1.0])
    weights = [math.exp(one - max(logits)) for one in logits]
    scalers = [scaler_of(draws_seed=seed, saved=saved) for seed in range(1000)]
    view = RoundView(1, target_return=200.0, budget_usd=1.0)
    counts = [scaler.decide(view).actor_count for scaler in scalers]
    for action, weight in enumerate(weights):
        assert counts.count(2 + action) / 1000 == pytest.approx(weight / sum(weights), abs=0.06)


def test_bounds_cut_what_it_wants() -> None:
    saved = make_scheduler(2, 6, **{"layer.2.bias": np.array([0, 0, 0, 0, 1e6], np.float32)})
    scaler = scaler_of(actors_max=3, saved=saved)
    assert scaler.decide(RoundView(1, target_return=1.0)).actor_count == 3
    with pytest.raises(
        ExperimentError, match="chooses from 2 to 6 actors, of which none is between.*= 8 and.*= 9"
    ):
        scaler_of(actors_min=8, actors_max=9, saved=saved)


@pytest.mark.parametrize(
    ("found", "target", "share"),
    [
        (50.0, 200.0, 0.25),
        (200.0, 200.0, 1.0),
        (-200.0, -200.0, 1.0),
        (-400.0, -200.0, 0.0),
        (-3.0, 0.0, -2.0),
    ],
)
def test_a_return_is_a_share_of_any_target(found: float, target: float, share: float) -> None:
    assert return_share(found, target) == pytest.approx(share)


def test_another_file_is_not_gone_on_with() -> None:
    state = scaler_of(saved=make_scheduler(seed=1)).get_state()
    state = State({}, json.loads(json.dumps(state.values)))
    scaler_of(saved=make_scheduler(seed=1)).set_state(state)
    with pytest.raises(ValueError, match="not the file any more"):
        scaler_of(saved=make_scheduler(seed=2)).set_state(state)


# The file


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    critic = {"layers.0.weight": np.ones((2, 3), np.float32)}
    saved = SavedScheduler(
        make_scheduler().weights, 3, PRICING, critic, ({"phase": "trained", "usd": 1.5},)
    )
    saved.save(tmp_path / "a.safetensors")
    found = load_scheduler(str(tmp_path / "a.safetensors"))
    assert found.pricing == PRICING
    assert (found.actors_min, found.actors_max, found.history, found.digest) == (
        3,
        7,
        saved.history,
        saved.digest,
    )
    np.testing.assert_array_equal(found.critic["layers.0.weight"], critic["layers.0.weight"])
    assert settings(scheduler=str(tmp_path / "a.safetensors")).file_read == "scheduler"
    assert settings(scheduler="hopper").file_read is None


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED.iterdir()])
def test_what_is_shipped_names_its_bill_and_decides_within_its_bounds(name: str) -> None:
    saved = load_scheduler(name)
    assert saved.spent_usd == sum(entry["usd"] for entry in saved.history) > 0.0
    scaler = settings(
        scheduler=name, actors_min=saved.actors_min, actors_max=saved.actors_max
    ).make()
    for row_seen in ROWS:
        count = scaler.decide(
            RoundView(row_seen.round_index, target_return=3000.0, budget_usd=1.0)
        ).actor_count
        assert saved.actors_min <= count <= saved.actors_max
        scaler.observe(row_seen)


def altered(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def alter(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return alter


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-5], "damaged, or none"),
    "empty": (lambda data: b"", "damaged, or none"),
    "too large": (lambda data: data + bytes(5 * 1024 * 1024), "larger than 4 MiB"),
    "no scheduler": (
        lambda data: safetensors.numpy.save({"a": np.zeros(1)}),
        "do not say that it is",
    ),
    "format": (altered(b"nitro-rl scheduler", b"nitro-rl something"), "do not say that it is"),
    "version": (altered(b'"version":"2"', b'"version":"9"'), "of version 9; this program reads 2"),
    "features": (altered(b'\\"kl\\"', b'\\"xy\\"'), "it sees .*'xy'"),
    "bounds": (
        altered(b'\\"actors_min\\": 2', b'\\"actors_min\\": 0'),
        "chooses from 0 to 4 actors",
    ),
    "prices": (altered(b'\\"sample_s\\"', b'\\"xample_s\\"'), "its prices are .*allowed"),
    "negative price": (altered(b": 0.25,", b":-0.25,"), "gradient_step_s = -0.25; allowed: from 0"),
    "no number": (altered(b'\\"actors_min\\": 2', b'\\"actors_min\\":""'), "damaged, or none"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_files_are_refused(case: str, tmp_path: Path) -> None:
    alter, message = BAD[case]
    path = tmp_path / "a.safetensors"
    make_scheduler().save(path)
    path.write_bytes(alter(path.read_bytes()))
    with pytest.raises(ExperimentError, match=message):
        settings(scheduler=str(path)).make()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer.0.bias": np.full(64, np.nan, np.float32)}, "layer.0.bias holds NaN"),
        ({"layer.0.weight": np.zeros((64, 7), np.float32)}, "7 inputs; the environment needs 8"),
        ({"layer.1.weight": np.zeros((64, 32), np.float32)}, "does not fit its neighbors"),
        ({"observation_std": np.zeros(8, np.float32)}, "observation_std is not above 0"),
        ({"distribution": wire.text_field("gaussian")}, "actions need 'categorical'"),
    ],
)
def test_wrong_arrays_are_refused(
    fields: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    with np.errstate(divide="ignore"):
        make_scheduler(**fields).save(tmp_path / "a.safetensors")
        with pytest.raises(ExperimentError, match=message):
            load_scheduler(str(tmp_path / "a.safetensors"))


@pytest.mark.parametrize(
    "usd", ["x", None, math.inf, -1.0, 10**400], ids=["text", "none", "inf", "below", "huge"]
)
def test_a_history_without_dollars_is_refused(usd: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    SavedScheduler(make_scheduler().weights, 2, PRICING, history=({"usd": 777},)).save(path)
    text = json.dumps(usd).replace('"', '\\"').encode()
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = path.read_bytes()[8 : 8 + size].rstrip().replace(b"777", text)
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + path.read_bytes()[8 + size :])
    with pytest.raises(ExperimentError, match="its history has usd = "):
        load_scheduler(str(path))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(
        ExperimentError, match="scheduler 'nobody' cannot be read.*allowed: the path of a"
    ):
        load_scheduler("nobody")
    with pytest.raises(ExperimentError, match="cannot be read: this is no file"):
        load_scheduler("/dev/zero")
    assert "scaler.scheduler = null; allowed: hopper | walker2d, or" in next(
        settings(scheduler=None).contradictions()
    )
