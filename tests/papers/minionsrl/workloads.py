"""Made-up workloads, which are therefore known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from papers.minionsrl.scheduler.recordings import Recording
from papers.minionsrl.scheduler.surrogate import Surrogate, SurrogateRun
from runtime.records.files import to_json
from runtime.scaler.saved_scheduler import Priced
from tests.helpers import SMALL_EXPERIMENT
from tests.scaler.schedulers import PRICING, row

WORKLOAD: dict[str, Any] = {
    "environment_id": "Toy-v0",
    "target_return": 200.0,
    "budget_usd": 1.0,
    "max_steps": None,
    "max_rounds": 60,
    "fragment_steps": 64,
    "actors_min": 2,
    "actors_max": 6,
}
COEFFICIENTS: dict[str, list[float]] = {
    "return_gain": [0.008, -0.0008],
    "return_gain_without_actors": [0.0, 0.0],
    "log_actor_s": [0.5],
    "learner_s": [0.2, 0.05],
    "round_s": [0.1, 1.0, 1.0, 0.2],
    "usd": [0.001, 0.0005, 0.0002],
    "log_kl": [-4.0, 0.5, -0.2, 0.1],
    "log_loss": [2.0, 1.0, 0.0, -0.1],
}
NOISE = {name: [0.05] for name in COEFFICIENTS} | {
    "return_gain": [0.005],
    "share": [0.005, 0.01],
    "learner_s": [0.01],
}


def make_surrogate(**fields: Any) -> Surrogate:
    changed = {
        "coefficients": COEFFICIENTS | fields.pop("coefficients", {}),
        "workload": WORKLOAD | fields.pop("workload", {}),
        "noise": NOISE | fields.pop("noise", {}),
    }
    return Surrogate(
        **{
            **changed,
            "start": [0.05, 0.01],
            "reached_share": 1.0,
            "reserve_usd": 0.0,
            "reference_s": 100.0,
            "window_rounds": 20,
            "held_out": {"return_gain": {"r2": 0.0}},
            "recorded": {"runs": 2, "rounds": 9, "usd": 0.5, "seconds": 60.0},
            "pricing": vars(PRICING),
            **fields,
        }
    )


def record(
    surrogate: Surrogate, decide: Callable[[SurrogateRun, np.random.Generator], int], seed: int = 0
) -> Recording:
    """Returns a run of the surrogate, with its seconds and dollars; a written one is priced by its counts."""
    generator = np.random.default_rng(seed)
    run, rows, goes_on, spent = SurrogateRun(surrogate, generator), [], True, 0.0
    priced: list[Priced] = []
    while goes_on:
        count = decide(run, generator)
        goes_on = run.play(count)
        seen = run.seen
        rows.append(
            row(
                round_index=len(rows) + 1,
                actor_count=count,
                actor_count_wanted=count,
                policy_loss=-0.25,
                value_loss=seen.loss + 0.25,
                kl=seen.kl,
                actors_billed=count,
                env_steps=64 * count,
                samples_trained=640 * count,
                gradient_steps=len(rows) % 3,
                episode_return_mean=seen.return_mean,
            )
        )
        usd = seen.spent_usd - spent
        priced.append(Priced(seen.actor_s, seen.learner_s, seen.round_s, usd))
        spent = seen.spent_usd
    return Recording(
        rows,
        priced,
        PRICING,
        dict(surrogate.workload),
        "target_return" if run.is_success else "max_rounds",
    )


def write(run: Recording, path: Path) -> None:
    """Writes a run's directory as the engine would."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(
        SMALL_EXPERIMENT.replace(
            "max_rounds: 5", f"max_rounds: {run.workload['max_rounds']}, target_return: 200.0"
        )
    )
    (path / "rounds.jsonl").write_bytes(b"".join(one.to_json_line() for one in run.rows))
    (path / "summary.json").write_bytes(to_json({"stop_reason": run.stop_reason}))
