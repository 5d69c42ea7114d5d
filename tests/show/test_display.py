"""The display of a run, while it runs and after it ends."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path

from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from runtime.show.display import EventLines, PoolDisplay, RunDisplay
from runtime.show.end_text import summary_lines
from tests.fakes import ManualClock
from tests.records.rows import a_row


def experiment(*, scaler: str = "nitro", **stop: float) -> Experiment:
    return experiment_from_tree(
        {
            "environment": {"id": "Hopper-v5"},
            "budget": {"usd": 2.0},
            "stop": stop,
            "algorithm": {"epochs": 3},
            "scaler": {"kind": scaler},
        },
        source="a test",
    ).resolved()


def test_a_plain_run_shows_what_differs_and_a_line_for_each_round() -> None:
    stream, clock = io.StringIO(), ManualClock()
    display = RunDisplay(experiment(max_rounds=10), stream, clock=clock)
    display.started(experiment(max_rounds=10), {"results": "runs/x"})
    begun = stream.getvalue()
    assert begun.split("\n", 1)[1] == (
        "environment:\n  id: Hopper-v5\nalgorithm:\n  kind: ppo\n  epochs: 3\n"
        "scaler:\n  kind: nitro\nbudget:\n  usd: 2.0\nstop:\n  max_rounds: 10\n\nresults: runs/x\n"
    )
    for index in (1, 2):
        clock.advance(5.0)
        display.on_round_end(
            a_row(
                index,
                env_steps=50,
                env_steps_total=50 * index,
                episode_return_mean=-163.25,
                evaluation_return_mean=None,
                convexity_ratio=0.5,
                boosting_score=0.25,
                actor_count=3,
                actor_count_wanted=4,
                spent_usd=0.001 * index,
                round_cost_usd=0.001,
            )
        )
    heading, first, second = stream.getvalue()[len(begun) :].splitlines()
    assert first.split()[-3:-1] == ["–", "–"], "the first round has no pace yet"
    assert len(heading) == len(second) == 80
    assert dict(zip(heading.replace("spent ", "").split(), second.split(), strict=True)) == {
        "round": "2",
        "steps": "100",
        "return": "-163.2",
        "evaluation": "–",
        "actors": "3/4",
        "R": "0.500",
        "score": "0.25",
        "steps/s": "10",
        "ETA": "0:40",
        "$": "0.0020",
    }


def test_of_a_pools_calls_one_in_a_second_is_told_and_the_last_one() -> None:
    stream, clock = io.StringIO(), ManualClock()
    display = PoolDisplay(experiment(), stream, clock=clock)
    clock.advance(90.0)
    display.started(experiment(), {})
    before = len(stream.getvalue())
    for index in range(1, 13):
        clock.advance(0.25)
        display.on_round_end(a_row(index, env_steps=500, env_steps_total=9000 + 500 * index))
    display.on_round_end(a_row(13, env_steps=500, env_steps_total=15_500))
    for _ in range(2):
        display.close()
    lines = stream.getvalue()[before:].splitlines()
    assert lines[0].split() == ["call", "steps", "return", "actors", "steps/s", "spent", "$"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["1", "9,500"],
        ["5", "11,500"],
        ["9", "13,500"],
        ["13", "15,500"],
    ]


def ended(out: Path | str = "runs/mine", *, command: str = "", **values: object) -> list[str]:
    summary = defaultdict(int) | {
        "evaluation_return_mean": 80.0,
        "evaluation_round": 9,
        "evaluation_return_best": 2500.0,
        "evaluation_round_best": 6,
        "best_policy_file": "best_policy.safetensors",
        "stop_reason": "max_rounds",
        "budget_usd": 2.0,
        "spent_usd": 0.5,
        "actors_cost_usd": 0.3,
        "learner_cost_usd": 0.2,
        "infrastructure_cost_usd": 0.00004,
        "measured_session_s": 68.0,
    }
    return summary_lines(summary | values, str(out), command)


def test_the_end_tells_why_what_was_reached_and_what_it_cost() -> None:
    assert [line for line in ended() if "list prices" not in line] == [
        "stopped by   max_rounds",
        "return       80.0, evaluated after round 9",
        "             best 2,500.0, after round 6: best_policy.safetensors",
        "             0.000 in training, where actions are noisy",
        "rounds       0, in all 0 actors",
        "steps        0",
        "cost         $0.5000 of $2.0000",
        "             actors $0.3000, learner $0.2000",
        "time         1:08",
        "results      runs/mine",
    ]
    assert not any("best" in line for line in ended(evaluation_round_best=9))
    # A run whose disk was full when it tried to save its first evaluation.
    assert not any("best" in line for line in ended(evaluation_round_best=None))
    assert "dropped      220 steps" in ended(episodes_dropped=96, steps_dropped=220)
    assert "             3 actors failed" in ended(actors_failed=3)
    alone = ended(actors=1, actors_failed=1)
    assert {"             1 actor failed", "rounds       0, in all 1 actor"} <= set(alone)


def test_after_a_failure_there_is_a_command_to_paste_and_the_log_of_the_actors(
    tmp_path: Path,
) -> None:
    log = tmp_path / "actors.log"
    log.write_text("Traceback")
    command = "py -m runtime train x"
    failure = {"stop_reason": "failed", "error": "on fire", "evaluation_return_mean": None}
    lines = ended(tmp_path, command=command, **failure)
    assert {"stopped by   failed: on fire", f"actors' log  {log}"} <= set(lines)
    assert lines[1].startswith("return       not evaluated")
    assert lines[-2:] == ["go on with", command]
    finished = ended(tmp_path, command=command)
    assert not {command, f"actors' log  {log}"} & set(finished)
    log.write_text("")
    assert not any("actors.log" in line for line in ended(tmp_path, **failure))


def test_the_same_error_over_and_over_is_shown_a_few_times_only() -> None:
    lines = EventLines()
    shown = [
        lines.line("actor_failed", {"slot": slot, "error": f"on fire at {slot}.5 s"})
        for slot in range(6)
    ]
    assert shown == [
        "! actor failed: slot 0, error on fire at 0.5 s",
        "! actor failed: slot 1, error on fire at 1.5 s",
        "! actor failed (more like this are only in events.jsonl): slot 2, error on fire at 2.5 s",
        None,
        None,
        None,
    ]
    assert (
        lines.line("actor_failed", {"slot": 7, "error": "drowned"})
        == "! actor failed: slot 7, error drowned"
    )
