"""The display of a run, while it runs and after it ends."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from runtime.config.loading import experiment_from_tree
from runtime.config.schema import Experiment
from runtime.display.table import (
    EventLines,
    Forecast,
    Goal,
    Goals,
    LiveDisplay,
    PlainDisplay,
    PoolDisplay,
    actors_log_lines,
    all_settings,
    differing_settings,
    summary_lines,
)
from runtime.display.terminal import spent_of
from runtime.ports.money import Limits
from runtime.training.summary import Summary
from tests.config.trees import MINIMAL
from tests.fakes import ManualClock
from tests.records.rows import a_row


def experiment(**stop: float) -> Experiment:
    return experiment_from_tree(
        {
            "environment": {"id": "Hopper-v5"},
            "budget": {"usd": 2.0},
            "stop": stop,
            "algorithm": {"epochs": 3},
        },
        source="a test",
    ).resolved()


def test_before_a_run_only_what_differs_is_shown_unless_all_is_asked_for() -> None:
    shown = {}
    for settings in (differing_settings, all_settings):
        stream = io.StringIO()
        PlainDisplay(experiment(max_rounds=9), stream, settings=settings).started(
            experiment(max_rounds=9), {"results": "runs/x"}
        )
        shown[settings] = stream.getvalue()
    assert shown[differing_settings].split("\n", 1)[1] == (
        "environment:\n  id: Hopper-v5\nalgorithm:\n  kind: ppo\n  epochs: 3\nbudget:\n  usd: 2.0\n"
        "stop:\n  max_rounds: 9\n\nresults: runs/x\n"
    )
    assert "--verbose" in shown[differing_settings].split("\n")[0]
    assert experiment(max_rounds=9).to_yaml() in shown[all_settings]


def test_goals_are_shares_of_the_way_to_each_end() -> None:
    goals = Goals(experiment(target_return=100.0, max_steps=1000, max_rounds=20))
    first = a_row(
        1,
        env_steps_total=100,
        episode_return_mean=-100.0,
        evaluation_return_mean=None,
        spent_usd=0.5,
    )
    assert goals.after(first) == [
        Goal("target", 0.0, "-100.0 of 100 in training"),
        Goal("steps", 0.1, "100 of 1,000"),
        Goal("rounds", 0.05, "1 of 20"),
        Goal("budget", 0.25, "$0.5000 of $2.0000"),
    ]
    evaluated = a_row(
        2,
        env_steps_total=1000,
        episode_return_mean=-60.0,
        evaluation_return_mean=50.0,
        spent_usd=2.5,
    )
    assert [goal.share for goal in goals.after(evaluated)] == [0.75, 1.0, 0.1, 1.0]
    later = a_row(
        3,
        env_steps_total=1000,
        episode_return_mean=-50.0,
        evaluation_return_mean=None,
        spent_usd=2.5,
    )
    assert goals.after(later)[0] == Goal("target", 0.75, "50.0 of 100"), (
        "the last evaluation counts until the next"
    )
    assert [goal.name for goal in Goals(experiment()).after(first)] == ["budget"]


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_after_a_resumption_the_way_to_the_target_begins_where_the_run_began(kind: type) -> None:
    stream = io.StringIO()
    display, shown = kind(experiment(target_return=100.0), stream), experiment(target_return=100.0)
    display.started(shown, {}, [a_row(1, episode_return_mean=-100.0, evaluation_return_mean=None)])
    display.on_round_end(a_row(2, episode_return_mean=0.0, evaluation_return_mean=None))
    display.close()
    assert "50%" in stream.getvalue()


def test_a_round_in_which_no_episode_ends_is_as_near_the_target_as_the_one_before() -> None:
    goals = Goals(experiment(target_return=100.0))
    found = [
        goals.after(a_row(index, episode_return_mean=value, evaluation_return_mean=None))[0]
        for index, value in enumerate((0.0, 5.0, None), 1)
    ]
    assert found[1:] == [Goal("target", 0.05, "5.000 of 100 in training")] * 2


def test_the_time_left_counts_the_last_evaluation_and_runs_on_between_rounds() -> None:
    clock = ManualClock()
    forecast = Forecast(experiment(max_rounds=10), clock)
    for index in (1, 2):
        forecast.evaluating(0, 7)
        clock.advance(3.0)
        # The last evaluation is still running.
        forecast.evaluating(3, 7)
        clock.advance(2.0)
        forecast.add(
            a_row(
                index,
                env_steps=50,
                env_steps_total=50 * index,
                spent_usd=0.0001 * index,
                round_cost_usd=0.0001,
            )
        )
    assert forecast.steps_per_s == 10.0
    assert forecast.seconds_left == 8 * 5.0 + 7.0
    clock.advance(2.0)
    assert forecast.seconds_left == 45.0
    clock.advance(100.0)
    assert forecast.seconds_left == 0.0


def test_the_pace_is_that_of_rounds_not_of_what_is_imported_before_them() -> None:
    stream, clock = io.StringIO(), ManualClock()
    display = PlainDisplay(experiment(), stream, clock=clock)
    clock.advance(90.0)
    display.started(experiment(), {})
    clock.advance(10.0)
    display.on_round_end(a_row(1, env_steps=500, env_steps_total=500))
    assert " 50 steps/s" in stream.getvalue()


def test_lines_tell_the_shares_and_how_far_a_long_evaluation_is() -> None:
    stream, clock = io.StringIO(), ManualClock()
    display = PlainDisplay(experiment(max_rounds=10), stream, clock=clock)
    clock.advance(1.0)
    display.on_round_end(a_row(1, spent_usd=1.0))
    assert stream.getvalue().endswith("(rounds 10%, budget 50%)\n")
    for done in range(4):
        display.evaluating(1, done, 3)
        clock.advance(20.0)
    assert stream.getvalue().splitlines()[1:] == [
        "evaluating the policy of round 1: 2 of 3 episodes"
    ]


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
    assert [line.split()[1] for line in lines] == ["1", "5", "9", "13"]
    assert "2,167 steps/s" in lines[-1] and "15,500" in lines[-1]
    assert "ETA" not in lines[-1] and "evaluation" not in lines[-1]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (60, 15)])
def test_the_live_table_fits_the_terminal(
    columns: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    stream, clock = io.StringIO(), ManualClock()
    shown = experiment(target_return=3000.0, max_steps=600_000, max_rounds=400)
    display = LiveDisplay(shown, stream, clock=clock)
    display.started(shown, {})
    for index in range(1, 31):
        clock.advance(1.0)
        display.on_round_end(
            a_row(
                index,
                env_steps_total=2048 * index,
                evaluation_return_mean=100.0 * index,
                spent_usd=0.01 * index,
            )
        )
    for _ in range(9):
        display.event("round_shrunk", {"granted": 1, "reason": "x" * 200})
    display.evaluating(30, 3, 10)
    before = len(stream.getvalue())
    display.close()
    picture = stream.getvalue()[before:].splitlines()
    assert max(map(len, picture)) <= columns
    assert len(picture) <= lines
    text = "\n".join(picture)
    assert "target" in text
    assert "3,000.0 of 3,000" in text
    assert " 30%  3 of 10 episodes, after round 30" in text
    assert "$0.3000 of $2" in text
    assert picture[0].split()[0] == "round"


def test_after_a_run_there_is_a_command_to_paste_and_the_log_of_actors_that_failed(
    tmp_path: Path,
) -> None:
    summary = dict.fromkeys(Summary.__annotations__, 0) | {
        "stop_reason": "failed",
        "error": "on fire",
        "evaluation_return_mean": None,
        "evaluation_round_best": None,
    }
    out = tmp_path / "a run"
    out.mkdir()
    (out / "actors.log").write_text("Traceback")
    lines = summary_lines(
        summary,
        str(out),
        launcher=["py", "-m", "runtime"],
        resume_command="py -m runtime train x",
        are_actors_to_blame=True,
    )
    assert lines[-3:] == ["", "go on with", "py -m runtime train x"]
    assert f"actors' log  {out / 'actors.log'}" in lines
    assert f"return       not evaluated: py -m runtime evaluate '{out}'" in lines
    finished = summary_lines(
        summary | {"stop_reason": "budget"}, str(out), resume_command="py -m runtime train x"
    )
    assert not {"go on with", f"actors' log  {out / 'actors.log'}"} & set(finished)
    (out / "actors.log").write_text("")
    assert actors_log_lines(str(out)) == []


@pytest.mark.parametrize(
    ("scaler", "shown"),
    [
        ({"kind": "nitro"}, ["R", "score"]),
        ({"kind": "fixed"}, []),
    ],
)
def test_only_what_the_scaler_reads_is_shown(scaler: dict[str, str], shown: list[str]) -> None:
    made = experiment_from_tree(
        MINIMAL | {"scaler": scaler, "stop": {"target_return": 9.0}}, source="x"
    ).resolved()
    found = a_row(1, convexity_ratio=0.5, boosting_score=0.25, spent_usd=0.002)
    for kind in (PlainDisplay, LiveDisplay):
        stream = io.StringIO()
        display = kind(made, stream)
        display.started(made, {})
        display.on_round_end(found)
        display.close()
        words = stream.getvalue().split()
        assert [name for name in ("R", "score") if name in words] == shown
        assert "$0.0020 of $1.0000" in stream.getvalue()


@pytest.mark.parametrize(
    ("spent_usd", "budget_usd", "text"),
    [
        (0.002, 1 / 6, "$0.0020 of $0.1667"),
        (1.25, 100.0, "$1.2500 of $100.0000"),
        (0.00012, 0.0005, "$0.000120 of $0.000500"),
        (0.0, 0.001, "$0.00000 of $0.00100"),
    ],
)
def test_spent_and_budget_have_as_many_digits(
    spent_usd: float, budget_usd: float, text: str
) -> None:
    assert spent_of(spent_usd, budget_usd) == text


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
    assert lines.line("actor_replaced", {"slot": 0, "attempt": 1}) is None, "it follows a failure"
    assert (
        lines.line("actor_failed", {"slot": 7, "error": "drowned"})
        == "! actor failed: slot 7, error drowned"
    )


def test_events_without_an_error_are_shown_every_time_but_for_beginning_and_end() -> None:
    lines = EventLines()
    assert [lines.line("round_shrunk", {"granted": 1}) for _ in range(5)] == [
        "! round shrunk: granted 1"
    ] * 5
    assert (
        lines.line("round_shrunk", {"free_usd": 0.0029999999999, "bytes": None})
        == "! round shrunk: free_usd 0.003"
    )
    assert [lines.line(kind, {}) for kind in ("run_started", "run_ended")] == [None, None]
    assert lines.line("actors_abandoned", {"reason": "the run ends", "count": 3}) is None
    assert lines.line("actors_abandoned", {"reason": "too stale", "count": 3}) is not None


def test_what_a_round_is_fitted_to_is_told_in_a_sentence() -> None:
    lines = EventLines()
    assert lines.line(
        "round_fitted",
        {
            "round_index": 10,
            "wanted": 8,
            "granted": 6,
            "reason": "stop.max_steps has room for no more fragments",
        },
    ) == ("! round 10 gets 6 of the 8 actors wanted: stop.max_steps has room for no more fragments")
    assert lines.line(
        "limits_tightened",
        {"round_index": 7, **vars(Limits(1.0, 2.0, 3.0, factor=2.5)), "free_usd": 0.00321},
    ) == (
        "! round 7: only $0.0032 are free, so a round may now take at most 2.5 times as long as the last ones"
    )
    assert lines.line("waits_unknown", {}) == (
        "! the environment waits for something, or this machine is very busy. This system does not tell which, so the "
        "modelled bill leaves waits out"
    )


def test_the_end_tells_the_sessions_time_and_what_was_dropped() -> None:
    def lines(**values: object) -> list[str]:
        summary = dict.fromkeys(Summary.__annotations__, 0) | {
            "evaluation_return_mean": 80.0,
            "evaluation_round": 9,
            "measured_session_s": 8.0,
            "modelled_s": 61.0,
        }
        return summary_lines(summary | values, "runs/mine")

    assert "time         0:08" in lines(), (
        "actors on the learner's machine are modelled nowhere else"
    )
    assert "time         0:08; the whole run modelled 1:01" in lines(actors_cost_usd=0.1)
    assert "time         0:08 since it was resumed; the whole run modelled 1:01" in lines(
        was_resumed=True, actors_cost_usd=0.1
    )
    assert not any(line.startswith("dropped") for line in lines(env_steps_total=780))
    assert "dropped      96 episodes, 22% of the steps played" in lines(
        episodes_dropped=96, steps_dropped=220, env_steps_total=780
    )
    assert "dropped      2 episodes" in lines(episodes_dropped=2, env_steps_total=780)


def test_the_end_names_the_best_policy_where_it_is_not_the_last_evaluated_one() -> None:
    def lines(**values: object) -> list[str]:
        summary = dict.fromkeys(Summary.__annotations__, 0) | {
            "evaluation_return_mean": 80.0,
            "evaluation_round": 9,
        }
        return summary_lines(summary | values, "runs/mine")

    best = lines(
        evaluation_return_best=2500.0,
        evaluation_round_best=6,
        best_policy_file="best_policy.safetensors",
    )
    assert best[1:3] == [
        "return       80.0, evaluated after round 9",
        "             best 2,500.0, after round 6: best_policy.safetensors",
    ]
    assert lines(evaluation_return_best=80.0, evaluation_round_best=9)[1:2] == [
        "return       80.0, evaluated after round 9 (the best)"
    ]
    # A run whose disk was full when it tried to save its first evaluation.
    assert "best" not in "".join(lines(evaluation_return_best=None, evaluation_round_best=None))
