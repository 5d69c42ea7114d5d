"""The studies' trainer trains exactly as a run does."""

from __future__ import annotations

from pathlib import Path

from lambda_actor import wire
from papers.nitro.boosting.trainer import Trainer
from runtime.config.loading import load_experiment
from runtime.records.policy_file import load_policy
from tests.end_to_end.conftest import reference  # noqa: F401
from tests.helpers import rounds


def test_rounds_replayed_in_one_process_are_the_same(reference: Path) -> None:  # noqa: F811
    """The studies under papers/nitro measure real training."""
    trainer = Trainer(load_experiment(reference / "config.yaml").resolved())
    for row in rounds(reference):
        trainer.update(trainer.roll_out(row["round_index"], row["actor_count"]))
    replayed, trained = (
        wire.decode(weights, wire.Kind.WEIGHTS)
        for weights in (trainer.learner.weights(), load_policy(reference / "policy.safetensors"))
    )
    assert {name: array.tobytes() for name, array in replayed.items()} == {
        name: array.tobytes() for name, array in trained.items()
    }
