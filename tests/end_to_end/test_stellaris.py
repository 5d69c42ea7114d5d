"""Training whose learners are functions of Stellaris, with Nitro's boosting and serverless actors in the same file."""

import json
from pathlib import Path

from tests.end_to_end.test_crashes import finished_rounds, start
from tests.helpers import bill_only, events, overrides, results_only, rounds, train, wait_for


def virtual(tmp_path: Path) -> list[str]:
    """Returns arguments for four learners in virtual time, with small batch parts for enough gradients."""
    write_durations(tmp_path, start_s=[1.5, 2.5])
    return overrides(
        learner__kind="stellaris",
        learner__stellaris__place="virtual",
        stop__max_rounds=3,
        learner__stellaris__durations=tmp_path / "durations.json",
        algorithm__ppo__minibatch_steps=32,
    )


def write_durations(tmp_path: Path, **values: object) -> None:
    (tmp_path / "durations.json").write_text(
        json.dumps({"gradient_s": {"32": [0.02, 0.03, 0.07], "128": [0.1]}, **values})
    )


def test_boosting_learner_functions_and_actors_train_together_and_again_after_kill_9(
    experiment: Path, tmp_path: Path
) -> None:
    whole, killed, arguments = tmp_path / "whole", tmp_path / "killed", virtual(tmp_path)
    done = train(experiment, whole, *arguments)
    assert done.returncode == 0, done.stderr
    found = rounds(whole)
    assert any(row["convexity_ratio"] is not None for row in found)
    assert len({row["actor_count"] for row in found}) > 1, "boosted, and not"
    assert [row["gradients"] for row in found] == [row["env_steps"] // 32 * 2 for row in found]
    assert all(
        row["gradient_staleness_mean"] > 0.0 and row["truncated_fraction"] > 0.0 for row in found
    )
    assert found[0]["staleness_bound"] is None and found[-1]["staleness_bound"] >= 1
    assert "grads" in done.stdout and "stale" in done.stdout
    assert 0.0 < found[1]["modelled_learn_s"] < 0.68**-1 * 0.07 * found[1]["gradients"], (
        "in parallel, in virtual time"
    )

    process = start(experiment, killed, *arguments)
    wait_for(
        lambda: finished_rounds(killed) >= 2 and any((killed / ".updates").glob("*-gradient-2-*")),
        "an update",
    )
    process.kill()
    process.communicate()
    write_durations(tmp_path, start_s=[1.5])
    other = train(experiment, killed, "--resume", *arguments)
    assert (other.returncode, finished_rounds(killed)) == (2, 2)
    assert (
        "learner.stellaris.durations names a file that holds something else than when round 2 ended"
        in other.stderr
    )
    write_durations(tmp_path, about="the same durations", start_s=[1.5, 2.5])
    again = train(experiment, killed, "--resume", *arguments)
    assert again.returncode == 0, again.stderr
    assert events(killed, "run_started")[-1]["resumed_after_round"] == 2
    assert results_only(rounds(killed)) == results_only(found)
    assert bill_only(rounds(killed)) == bill_only(found)
    assert (killed / "policy.safetensors").read_bytes() == (
        whole / "policy.safetensors"
    ).read_bytes()
    other = train(
        experiment, killed, "--resume", *arguments, *overrides(learner__stellaris__truncation=2.0)
    )
    assert other.returncode == 2
    assert "learner.stellaris.truncation is 2.0 now, 1.0 in the run" in other.stderr
