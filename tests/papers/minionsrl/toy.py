"""A toy workload whose rounds take longer with more actors, and that never reaches its target."""

from __future__ import annotations

from pathlib import Path

from runtime.records.files import to_json
from runtime.scaler.interfaces import RoundView
from runtime.scaler.minions_settings import MinionsSettings
from tests.helpers import SMALL_EXPERIMENT
from tests.scaler.schedulers import row

ROUNDS = 12


def play(number: int, scheduler: Path, out: Path, stop_reason: str = "max_rounds") -> None:
    """Plays a run with a scheduler of 2 to 6 actors, as the engine would, and writes its directory."""
    scaler = MinionsSettings(actors_min=2, actors_max=6, scheduler=str(scheduler)).make()
    lines = []
    for k in range(1, ROUNDS + 1):
        view = RoundView(k, target_return=200.0, budget_usd=1.0, seed=number)
        count = scaler.decide(view).actor_count
        finished = row(
            round_index=k,
            actor_count=count,
            actor_count_wanted=count,
            policy_loss=-0.25,
            value_loss=10.0 / k,
            kl=0.01,
            actors_billed=count,
            env_steps=64 * count,
            samples_trained=6400 * count,
            episode_return_mean=None if k == 1 else 10.0 * k,
        )
        scaler.observe(finished)
        lines.append(finished.to_json_line())
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.yaml").write_text(
        SMALL_EXPERIMENT.replace("max_rounds: 5", f"max_rounds: {ROUNDS}, target_return: 200.0")
    )
    (out / "rounds.jsonl").write_bytes(b"".join(lines))
    (out / "summary.json").write_bytes(to_json({"stop_reason": stop_reason}))
