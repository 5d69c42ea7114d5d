"""The learned scheduler as a scaler: its observations, its decisions, and refused files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import ExperimentError
from runtime.scaler.interfaces import RoundView
from runtime.scaler.minions import MinionsScaler
from runtime.scaler.minions_settings import SHIPPED, MinionsSettings
from runtime.scaler.saved_scheduler import SavedScheduler, Seen, load_scheduler, return_share
from tests.scaler.schedulers import PRICING, make_scheduler, row

ROWS = [
    row(
        round_index=1,
        policy_loss=-0.5,
        value_loss=20.0,
        kl=0.02,
        actors_billed=2,
        actors_waited_s=1.0,
        env_steps=190,
        replayed_steps=40,
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


def test_what_it_sees_and_draws_by_hand() -> None:
    """J = 200, B = $1. In round 2 no episode and no actor ended, so the last return and actor time remain.

    Actors of round 1: 2 · 0.5 s + 200 · 0.01 s + 1 s of waiting = 4 s, and a cold start of 1 s; 3 s until all would be
    back. 2 requests, 5 s of actors, 6 s of the learner, and 4 s of evaluation, 1 s of which outlasts the actors.
    """
    saved = make_scheduler(seed=4)
    scalers = [scaler_of(saved) for _ in range(20)]
    policy = saved.policy
    first_usd, second_usd = 0.002 + 0.01 + 0.06 + 0.01, 0.04
    expected = [
        [1, 0, 0, 0, 0, 0, 0, 1.0],
        [2, math.log(20.5), 0.25, 0.02, 3.0, 2.5, 6.0, 1.0 - first_usd],
        [3, -math.log(2.5), 0.25, 0.01, 4.0, 2.5, 4.0, 1.0 - first_usd - second_usd],
    ]
    seen = Seen()
    for k, (state, finished) in enumerate(zip(expected, [*ROWS, None], strict=True), 1):
        found = seen.state(k, target_return=200.0, budget_usd=1.0)
        assert found.tolist() == pytest.approx(state)
        for seed, scaler in enumerate(scalers):
            draw = policy.noise(np.random.default_rng((seed, k)), 1)[0]
            view = RoundView(k, target_return=200.0, budget_usd=1.0, seed=seed)
            decision = scaler.decide(view)
            assert decision.actor_count == 2 + policy.sample(policy.outputs(found), draw)
            if finished is not None:
                scaler.observe(finished)
        if finished is not None:
            seen = seen.after(finished, PRICING.price(finished))


def test_bounds_cut_what_it_wants() -> None:
    saved = make_scheduler(2, 6, **{"layer.2.bias": np.array([0, 0, 0, 0, 1e6], np.float32)})
    scaler = scaler_of(actors_max=3, saved=saved)
    assert scaler.decide(RoundView(1, target_return=1.0)).actor_count == 3
    with pytest.raises(ExperimentError, match="from 2 to 6 actors, of which none is between"):
        scaler_of(actors_min=8, actors_max=9, saved=saved)


@pytest.mark.parametrize(
    ("found", "target", "share"),
    [(50.0, 200.0, 0.25), (-200.0, -200.0, 1.0), (-400.0, -200.0, 0.0), (-3.0, 0.0, -2.0)],
)
def test_a_return_is_a_share_of_any_target(found: float, target: float, share: float) -> None:
    assert return_share(found, target) == pytest.approx(share)


def test_another_file_is_not_gone_on_with() -> None:
    state = scaler_of(make_scheduler(seed=1)).get_state()
    with pytest.raises(ValueError, match="not the file any more"):
        scaler_of(make_scheduler(seed=2)).set_state(state)


@pytest.mark.parametrize("path", list(SHIPPED.iterdir()), ids=str)
def test_what_is_shipped_decides_and_is_saved_again(path: Path, tmp_path: Path) -> None:
    saved = load_scheduler(path)
    assert all(entry["usd"] > 0.0 for entry in saved.history)
    saved.save(tmp_path / "a.safetensors")
    assert load_scheduler(tmp_path / "a.safetensors").digest == saved.digest
    section = settings(scheduler=path.stem)
    assert section.make().decide(RoundView(1, target_return=3000.0, budget_usd=1.0)).actor_count
    assert (section.file_read, settings(scheduler="./a").file_read) == (None, "scheduler")


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda data: data[:-5], "cannot be read"),
        (lambda data: b"", "cannot be read"),
        (lambda data: data.replace(b'\\"kl\\"', b'\\"xy\\"'), "it sees .*'xy'"),
        (lambda data: data.replace(b"sample_s", b"xample_s"), "xample_s"),
        (
            lambda data: data.replace(b"categorical", b"categorizal"),
            "of distribution 'categorizal'",
        ),
    ],
)
def test_damaged_files_are_refused(
    alter: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    make_scheduler().save(path)
    path.write_bytes(alter(path.read_bytes()))
    with pytest.raises(ExperimentError, match=message):
        settings(scheduler=str(path)).make()


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ExperimentError, match="nobody.safetensors' cannot be read: No such"):
        settings(scheduler="nobody").make()
    message = "scaler.scheduler = null; allowed: hopper | walker2d, or"
    assert message in next(settings(scheduler=None).contradictions())
