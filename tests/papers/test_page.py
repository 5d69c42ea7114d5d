"""The page of verdicts agrees with protocol and results, and the check says what is stale."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from papers.__main__ import main
from papers.bills import LEARNER_HOUR_USD, Bill
from papers.estimates import percentage
from papers.measures import KINDS
from papers.page import HEADS, Page, judged, overall
from papers.pictures import draw
from papers.runs import Results, returns
from papers.study import check_finished, settings_hash
from papers.trainings import Training
from tests.helpers import ROOT

ROUNDS = 12
GAIN = {
    "kind": "gain",
    "studies": {"Hopper": "boost"},
    "ours": "nitro",
    "theirs": "fixed",
    "at": "rounds",
}


def a_run(returned: float, actors: int, rounds: int = ROUNDS) -> dict[str, list[Any]]:
    """Returns columns whose return rises by ``returned`` each round."""
    steps = [512 * actors] * rounds
    return {
        "actor_count": [actors] * rounds,
        "env_steps": steps,
        "episode_return_mean": [None, *(returned * index for index in range(2, rounds + 1))],
        "episodes_finished": [0, *[10] * (rounds - 1)],
        "evaluation_return_mean": [*[None] * (rounds - 1), returned * rounds],
        "hessian_products": [None, *[20] * (rounds - 1)] if actors > 16 else [None] * rounds,
        "product_samples": [None, *[1024] * (rounds - 1)] if actors > 16 else [None] * rounds,
        "gradient_steps": [30] * rounds,
        "samples_trained": [30 * count for count in steps],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder like papers/, with one study, its results, and a page that is as it should be."""
    (tmp_path / "base.yaml").write_text("algorithm: {kind: ppo, epochs: 10}\n")
    (tmp_path / "hopper-ppo.yaml").write_text("extends: base.yaml\nenvironment: {id: Hopper-v5}\n")
    study = {
        "question": "Does it pay?",
        "file": str(tmp_path / "hopper-ppo.yaml"),
        "settings": {"stop.max_rounds": ROUNDS},
        "arms": {"fixed": {"scaler.kind": "fixed"}, "nitro": {"scaler.kind": "nitro"}},
    }
    claim = {"paper": "nitro", "where": "Fig. 10(a)", "claim": "it returns more", "effect": 1.0}
    protocol = {
        "papers": {
            "nitro": {
                "title": "Nitro",
                "about": "Actors.",
                "results": ["Fig. 1", "Fig. 10"],
                "picture": {
                    "kind": "returns_and_actors",
                    "caption": "Returns",
                    "studies": {"Hopper": "boost"},
                    "arms": {"16 actors": "fixed", "Nitro": "nitro"},
                },
            }
        },
        "studies": {"boost": study},
        "claims": [
            {**claim, "measure": GAIN},
            {"paper": "nitro", "where": "Fig. 1", "claim": "it is drawn", "open": "a drawing"},
        ],
        "changes": [],
    }
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(protocol))
    (tmp_path / "results").mkdir()
    runs = {
        arm: {str(seed): a_run(height + seed / 10, actors) for seed in range(10)}
        for arm, height, actors in (("fixed", 10.0, 16), ("nitro", 18.0, 32))
    }
    write_results(tmp_path, {arm: settings_hash(study, arm) for arm in runs}, runs)
    write_page(tmp_path)
    return tmp_path


def write_results(folder: Path, hashes: dict[str, str], runs: dict[str, Any]) -> None:
    content = {"hashes": hashes, "core_hours": 1.5, "runs": runs}
    (folder / "results" / "boost.json").write_text(json.dumps(content))


def write_page(folder: Path) -> None:
    page = Page.of(folder)
    page.path.write_text(page.text())
    draw(page.results, page.protocol["papers"]["nitro"]["picture"], page.picture("nitro"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def problems(folder: Path) -> str:
    return "\n".join(Page.of(folder).problems())


def row(folder: Path, where: str) -> dict[str, str]:
    page = Page.of(folder)
    claim = next(one for one in page.protocol["claims"] if one["where"] == where)
    return dict(zip(HEADS, page.row(claim), strict=True))


def change_results(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "results" / "boost.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


# The page of this repository


def test_nothing_is_stale() -> None:
    command = [sys.executable, "-m", "papers", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_link_leads_somewhere() -> None:
    """The rows' links are relative to papers/."""
    text = (ROOT / "papers" / "README.md").read_text()
    targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
    assert [one for one in targets if not (ROOT / "papers" / one).exists()] == []


# The check says no


def test_the_command_ends_with_1_until_it_writes_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["papers", *arguments])
        return main(), capsys.readouterr().err

    change(folder / "README.md", "+77 %", "+78 %")
    says = "README.md: is not what `python -m papers` writes now\n"
    assert check("--check", "--folder", str(folder)) == (1, says)
    assert check("--folder", str(folder)) == (0, "")
    change(folder / "protocol.yaml", "Hopper: boost\n    theirs", "Hopper: bost\n    theirs")
    says = "claim 'Fig. 10(a)' of nitro: study 'bost' is not in the protocol\n"
    assert check("--folder", str(folder)) == (1, says)
    change(folder / "protocol.yaml", "Hopper: bost\n    theirs", "Hopper: boost\n    theirs")
    assert check("--check", "--folder", str(folder)) == (0, "")


def test_a_page_as_it_should_be_has_no_problem(folder: Path) -> None:
    assert problems(folder) == ""


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda at: change(at / "protocol.yaml", "scaler.kind: nitro", "scaler.kind: minions"),
            "boost.json: arm 'nitro' was trained with other settings",
        ),
        (
            lambda at: change(at / "base.yaml", "epochs: 10", "epochs: 11"),
            "boost.json: arm 'fixed' was trained with other settings",
        ),
        (
            lambda at: change(at / "protocol.yaml", "      nitro:\n", "      other:\n"),
            "boost.json: arm 'nitro' is not in the protocol",
        ),
        (
            lambda at: change_results(at, lambda content: content.pop("hashes")),
            "boost.json: arm 'fixed' was trained with other settings",
        ),
        (
            lambda at: (at / "results" / "old.json").write_text("{}"),
            "old.json: belongs to no study",
        ),
        (lambda at: change(at / "README.md", "+77 %", "+78 %"), "README.md: is not what"),
        (lambda at: (at / "README.md").unlink(), "README.md: is not what"),
        (
            lambda at: change_results(
                at, lambda content: content["runs"]["nitro"]["3"]["actor_count"].append(1)
            ),
            "nitro.png: is not drawn from the results",
        ),
        (lambda at: (at / "results" / "nitro.png").unlink(), "nitro.png: is not drawn"),
        (
            lambda at: change(at / "protocol.yaml", "where: Fig. 10(a)", "where: Fig. 100"),
            "nitro: Fig. 10 has no row",
        ),
        (
            lambda at: change(at / "protocol.yaml", "theirs: fixed", "theirs: even"),
            "claim 'Fig. 10(a)' of nitro: arm 'even' is not in study 'boost'",
        ),
        (
            lambda at: change(at / "protocol.yaml", "kind: gain", "kind: loss"),
            "claim 'Fig. 10(a)' of nitro: measure.kind = 'loss'; allowed: gain |",
        ),
        (
            lambda at: change(
                at / "protocol.yaml", "Hopper: boost\n    theirs", "Hopper: bost\n    theirs"
            ),
            "study 'bost' is not in the protocol",
        ),
    ],
)
def test_the_check_says_no(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(folder)
    assert says in problems(folder)


# Rows


def test_a_row_has_the_estimate_its_interval_and_the_verdict(folder: Path) -> None:
    shown = row(folder, "Fig. 10(a)")
    # The metric is the mean of rounds 8 to 12, so ten times the height; the seeds' mean is 104.5.
    assert shown["Ours"].startswith("+77 % [+77, +77] (20 new")
    assert (shown["Seeds"], shown["Verdict"]) == ("10", "**reproduced**")
    assert row(folder, "Fig. 1")["Verdict"] == "open"


def test_there_is_no_verdict_before_all_seeds(folder: Path) -> None:
    change_results(folder, lambda content: content["runs"]["nitro"].pop("7"))
    shown = row(folder, "Fig. 10(a)")
    assert (shown["Seeds"], shown["Verdict"]) == ("9 of 10", "not measured yet")
    assert "+77 %" in shown["Ours"]
    (folder / "results" / "boost.json").unlink()
    assert row(folder, "Fig. 10(a)")["Verdict"] == "not measured yet"


@pytest.mark.parametrize(
    ("claim", "low", "middle", "high", "verdict"),
    [
        ({"effect": 4.0}, 1.0, 2.0, 3.0, "reproduced"),
        ({"effect": 4.0}, 1.0, 1.9, 3.0, "undecided"),
        ({"effect": 4.0}, -0.1, 2.0, 3.0, "undecided"),
        ({"effect": 4.0}, 1.0, 1.5, 1.9, "not reproduced"),
        ({"effect": 4.0}, -1.0, -0.5, -0.1, "not reproduced"),
        ({}, 0.1, 0.2, 0.3, "reproduced"),
        ({}, -0.1, 0.2, 0.3, "undecided"),
        ({}, -0.3, -0.2, -0.1, "not reproduced"),
        ({"at_most": 0.05}, -9.0, 0.0, 0.05, "reproduced"),
        ({"at_most": 0.05}, 0.04, 0.05, 0.06, "undecided"),
        ({"at_most": 0.05}, 0.06, 0.07, 0.08, "not reproduced"),
        ({"within": 0.2}, -0.2, 0.0, 0.2, "reproduced"),
        ({"within": 0.2}, -0.3, -0.2, 0.2, "undecided"),
        ({"within": 0.2}, -0.4, -0.3, -0.21, "not reproduced"),
    ],
)
def test_the_rules_decide(
    claim: dict[str, float], low: float, middle: float, high: float, verdict: str
) -> None:
    estimate = {"interquartile_mean": middle, "interval_low": low, "interval_high": high}
    assert judged(claim, {**estimate, "seeds": 10})[0] == verdict
    assert judged(claim, {**estimate, "seeds": 9})[0] == "not measured yet"


@pytest.mark.parametrize(
    ("of_each", "if_one_is_enough", "if_not"),
    [
        (["reproduced", "reproduced"], "**reproduced**", "**reproduced**"),
        (["reproduced", "undecided"], "**reproduced** (Hopper)", "**undecided**"),
        (
            ["not reproduced", "reproduced"],
            "**reproduced** (Humanoid)",
            "**not reproduced** (Hopper)",
        ),
        (
            ["reproduced", "not measured yet"],
            "**reproduced** (Hopper)",
            "not measured yet (Hopper: reproduced)",
        ),
        (
            ["not reproduced", "not measured yet"],
            "not measured yet (Hopper: not reproduced)",
            "**not reproduced** (Hopper)",
        ),
        (["not measured yet", "not measured yet"], "not measured yet", "not measured yet"),
        (["undecided", "not reproduced"], "**undecided**", "**not reproduced** (Humanoid)"),
        (["not reproduced", "not reproduced"], "**not reproduced**", "**not reproduced**"),
    ],
)
def test_the_best_of_several_environments_or_each_decides(
    of_each: list[str], if_one_is_enough: str, if_not: str
) -> None:
    verdicts = dict(zip(("Hopper", "Humanoid"), of_each, strict=True))
    assert overall(verdicts, is_one_enough=True) == if_one_is_enough
    assert overall(verdicts, is_one_enough=False) == if_not


def test_what_decides_is_never_shown_as_zero() -> None:
    shown = {"interquartile_mean": -0.03, "interval_low": -0.07, "interval_high": -0.004}
    assert percentage(shown) == "−3 % [−7, −0.4]"
    assert percentage(dict.fromkeys(shown, 0.0)) == "0 % [0, 0]"


# Measures


def measured(runs: dict[str, dict[str, Any]], tmp_path: Path, **measure: Any) -> dict[str, Any]:
    study = {"file": "experiments/paper/hopper-ppo.yaml", "settings": {}, "arms": dict(runs)}
    (tmp_path / "boost.json").write_text(json.dumps({"runs": runs}))
    results = Results(tmp_path, {"boost": study})
    return dict(KINDS[measure.pop("kind")](results, **measure)["Hopper"])


def test_the_metric_weighs_episodes_of_five_rounds() -> None:
    run = {"episode_return_mean": [None, 1, 2, 3, 4, 50], "episodes_finished": [0, 1, 1, 1, 1, 6]}
    np.testing.assert_allclose(returns(run), [np.nan] * 4 + [2.5, 31.0])


def test_at_equal_steps_the_longer_run_is_cut(tmp_path: Path) -> None:
    """Twice the actors make the same steps in six of twelve rounds: rounds 2 to 6 against 8 to 12."""
    runs = {"ours": {"0": a_run(10.0, 32)}, "theirs": {"0": a_run(10.0, 16)}}
    measure = {**GAIN, "ours": "ours", "theirs": "theirs"}
    assert measured(runs, tmp_path, **measure)["interquartile_mean"] == 0.0
    at_steps = measured(runs, tmp_path, **measure | {"at": "steps"})
    assert at_steps["interquartile_mean"] == pytest.approx((40.0 - 100.0) / 100.0)
    assert at_steps["note"] == "last round alone −50 %"


def test_dollars_end_with_the_return_that_the_worse_run_has(tmp_path: Path) -> None:
    """The faster run has the slower one's last return, 100, after seven rounds: the first with 20 times 5 or more."""
    runs = {"ours": {"0": a_run(20.0, 16)}, "theirs": {"0": a_run(10.0, 16)}}
    bill = {"learner": "cpu", "ours_on": "artifact", "theirs_on": "artifact"}
    measure = {
        "kind": "saving",
        "studies": {"Hopper": "boost"},
        "ours": "ours",
        "theirs": "theirs",
        **bill,
    }
    found = measured(runs, tmp_path, **measure)
    assert found["interquartile_mean"] == pytest.approx(1 - 7 / 12)
    assert found["note"] == "all rounds 0 %"
    assert measured(runs, tmp_path, **measure, at="rounds")["interquartile_mean"] == 0.0


def test_at_equal_seconds_warm_functions_race_with_a_server(tmp_path: Path) -> None:
    """Both play the same, and an actor is slower in a function than on a server."""
    runs = {"ours": {"0": a_run(10.0, 16)}, "theirs": {"0": a_run(10.0, 16)}}
    measure = {**GAIN, "ours": "ours", "theirs": "theirs", "at": "seconds"}
    found = measured(runs, tmp_path, **measure)
    study = {"file": "experiments/paper/hopper-ppo.yaml", "settings": {}}
    round_s = [
        Bill.of(study, "gpu", on).round_s(runs["ours"]["0"])[0]
        for on in ("provisioned", "c5.4xlarge")
    ]
    rounds = int(ROUNDS * round_s[1] / round_s[0])
    assert 5 < rounds < ROUNDS
    assert found["interquartile_mean"] == pytest.approx((rounds - ROUNDS) / (ROUNDS - 2))


def test_a_program_with_numbers_for_columns_is_compared_by_its_last_round(tmp_path: Path) -> None:
    theirs = {"episode_return_mean": [1.0, 100.0], "evaluation_return_mean": 200.0}
    (tmp_path / "rllib.json").write_text(json.dumps({"runs": {"0": theirs, "1": theirs}}))
    ours = {"episode_return_mean": [5.0, 90.0], "evaluation_return_mean": [None, 220.0]}
    (tmp_path / "engine.json").write_text(json.dumps({"runs": {"normc": {"0": ours, "7": ours}}}))
    measure = {"study": "engine", "rllib": "rllib", "setting": "normc"}
    found = KINDS["beside_rllib"](Results(tmp_path, {}), **measure)["normc"]
    assert found["interquartile_mean"] == pytest.approx(-0.1)
    assert (found["seeds"], found["note"]) == (1, "20 new episodes +10 %")


# Bills

UNITS = {
    "invocation_s": 1.0,
    "step_s": 0.01,
    "init_s": 5.0,
    "gradient_step_s": 0.1,
    "sample_s": 0.001,
    "product_sample_s": 0.0001,
}
RUN = {
    "actor_count": [8, 32, 16],
    "env_steps": [800, 3200, 1600],
    "gradient_steps": [10, 10, 10],
    "samples_trained": [1000, 4000, 2000],
    "hessian_products": [None, 10, 20],
    "product_samples": [None, 1000, 1000],
}
LEARNER_S = [1.0 + 1.0, 1.0 + 4.0 + 1.0, 1.0 + 2.0 + 2.0]
"""An actor of 100 steps takes 2 s on a core."""


@pytest.mark.parametrize(
    ("actors_on", "actors_s", "actors_usd"),
    [
        # Two turns for 32 actors on 16 vCPUs.
        ("c5.4xlarge", [2.0, 4.0, 2.0], lambda _, round_s, __: 0.68 / 3600 * round_s),
        ("artifact", [2.0, 2.0, 2.0], lambda _, round_s, __: 0.68 / 3600 * round_s),
        (
            "provisioned",
            [2.0, 2.0, 2.0],
            lambda count, round_s, actor_s: (
                32 * round_s * 0.0000041667 + count * actor_s * 0.0000097222
            ),
        ),
        # Eight start cold, then 24 more, then none.
        (
            "functions",
            [7.0, 7.0, 2.0],
            lambda count, _, actor_s: (
                0.0000166667
                * (count * actor_s + {8: 8, 32: 24, 16: 0}[count] * 5.0 * actor_s / 2.0)
            ),
        ),
        # The learner is a function, too.
        (
            "minionsrl",
            [2.0, 2.0, 2.0],
            lambda count, _, actor_s: actor_s * (0.0000166667 * count - 3.06 / 3600),
        ),
    ],
)
def test_a_bill_is_what_a_reader_of_the_prices_computes(
    actors_on: str, actors_s: list[float], actors_usd: Callable[..., float]
) -> None:
    bill = Bill(UNITS, 1024, "gpu", actors_on)
    slower = 1.0 if actors_on == "c5.4xlarge" else 1769 / 1024 / 0.68
    round_s = [a * slower + b for a, b in zip(actors_s, LEARNER_S, strict=True)]
    np.testing.assert_allclose(bill.round_s(RUN), round_s, rtol=1e-3)
    usd = [
        LEARNER_HOUR_USD["gpu"] / 3600 * one_s + actors_usd(count, one_s, 2.0 * slower)
        for count, one_s in zip(RUN["actor_count"], round_s, strict=True)
    ]
    np.testing.assert_allclose(bill.usd(RUN), usd, rtol=1e-3)


def test_a_gpu_makes_samples_and_products_faster() -> None:
    study = {"file": "experiments/paper/hopper-ppo.yaml", "settings": {}}
    cpu, gpu = (Bill.of(study, learner, "functions") for learner in ("cpu", "gpu"))
    assert gpu.units["sample_s"] / cpu.units["sample_s"] == pytest.approx(0.05, abs=0.005)
    assert gpu.units["product_sample_s"] / cpu.units["product_sample_s"] == pytest.approx(
        0.17, abs=0.005
    )
    assert gpu.units["step_s"] == cpu.units["step_s"]


def test_the_overhead_is_the_detectors_share_of_large_rounds(tmp_path: Path) -> None:
    """The first round is not measured, and the last has fewer actors."""
    run = a_run(1.0, 32)
    run["actor_count"][-1] = 31
    measure = {"studies": {"Hopper": "boost"}, "arm": "nitro", "learner": "cpu", "actors_least": 32}
    found = measured({"nitro": {"0": run}}, tmp_path, kind="overhead", **measure)
    study = {"file": "experiments/paper/hopper-ppo.yaml", "settings": {}}
    bill = Bill.of(study, "cpu", "provisioned")
    detection_s = 20 * 1024 * bill.units["product_sample_s"] * (ROUNDS - 2)
    expected = detection_s / bill.round_s(run)[:-1].sum()
    assert found["interquartile_mean"] == pytest.approx(expected)
    assert found["note"].startswith("all rounds +")


# Studies


def test_a_finished_run_with_other_settings_is_refused(folder: Path) -> None:
    settings = {"stop.max_rounds": ROUNDS, "scaler.kind": "fixed", "seed": 3}
    run = Training(str(folder / "hopper-ppo.yaml"), "fixed", 3, settings, folder / "seed-3")
    run.directory.mkdir()
    config = "algorithm: {kind: ppo, epochs: 10}\nscaler: {kind: fixed}\nseed: 3\n"
    (run.directory / "config.yaml").write_text(config)
    change(folder / "base.yaml", "epochs: 10", "epochs: 11")
    check_finished([run])
    (run.directory / "summary.json").write_text('{"stop_reason": "max_rounds"}')
    with pytest.raises(SystemExit, match="trained with algorithm.epochs = 10, and 'fixed' has 11"):
        check_finished([run])
    change(folder / "base.yaml", "epochs: 11", "epochs: 10")
    check_finished([run])
    other = replace(run, settings={**settings, "seed": 4})
    with pytest.raises(SystemExit, match="trained with seed = 3"):
        check_finished([other])
