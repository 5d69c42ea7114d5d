"""Run directories for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.records.rows import a_row

CONFIG = "environment:\n  id: Hopper-v5\nscaler:\n  kind: nitro\nseed: {seed}\n"


def a_run(path: Path, *, rounds: int = 6, seed: int = 0, **summary: Any) -> Path:
    """Writes the records of a finished run whose numbers differ in each round."""
    path.mkdir(parents=True)
    rows = [
        a_row(
            k,
            env_steps_total=100 * k,
            env_steps=100,
            actor_count=8 + k % 3,
            evaluation_round=max(1, k - 2),
            evaluation_return_mean=None if k < 3 else 10.0 * k + 30.0 * (k == 4) + seed,
            episode_return_mean=3.0 * k,
            round_s=3.5,
            collect_s=2.0,
            learn_s=1.25,
            detect_s=0.5,
            evaluate_s=0.25,
            round_cost_usd=0.006 + 0.012 * k,
            actors_cost_usd=0.01 * k,
            provisioned_cost_usd=0.001,
            learner_cost_usd=0.002 * k,
            infrastructure_cost_usd=0.005,
            spent_usd=0.006 * k * (k + 2) + 0.02 * (k > 2),
            convexity_ratio=None if k == 1 else 1.0 / k,
            boosting_score=0.9**k,
        )
        for k in range(1, rounds + 1)
    ]
    (path / "rounds.jsonl").write_bytes(b"".join(row.to_json_line() for row in rows))
    (path / "config.yaml").write_text(CONFIG.format(seed=seed))
    events = (
        {"event": "run_started", "cost_basis": "local"},
        {"event": "actor_failed", "error": "lost"},
        {"event": "actor_replaced", "slot": 3},
        {"event": "run_ended", "stop_reason": "max_rounds"},
    )
    (path / "events.jsonl").write_text(
        "".join(
            json.dumps({"time": "2026-11-22T10:00:00.000+00:00", **event}) + "\n"
            for event in events
        )
    )
    (path / "summary.json").write_text(
        json.dumps(
            {
                "stop_reason": "max_rounds",
                "error": None,
                "rounds": rounds,
                "env_steps_total": 100 * rounds,
                "actors": 54,
                "actors_failed": 1,
                "evaluation_return_mean": 10.0 * rounds + seed,
                "evaluation_return_best": 99.5 + seed,
                "episode_return_mean": 3.0 * rounds,
                "spent_usd": 0.35 + seed,
                "budget_usd": 5.0,
                "measured_session_s": 31.25,
                "cost_basis": "local",
                "prices_region": "us-east-1",
                "prices_as_of": "2026-11-20",
                **summary,
            }
        )
    )
    return path


def some_seeds(path: Path, seeds: int = 5) -> Path:
    """Writes the records of several seeds."""
    for seed in range(seeds):
        a_run(path / f"seed-{seed}", rounds=5 + seed, seed=seed)
    rows = [{"seed": seed} for seed in range(seeds)]
    (path / "summary.json").write_text(json.dumps({"seeds": rows, "budget_usd": 9.0}))
    return path
