"""The page: its numbers, its escaping, and its look in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup

from runtime.cli.main import main
from runtime.show.charts import POINTS_MAX
from runtime.show.estimates import ESTIMATED, interquartile_mean, interval_estimate
from runtime.show.reading import read_groups
from runtime.show.report import report_page, try_to_write_report
from tests.show.browser import chromium
from tests.show.records import a_run, some_seeds

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>\"'</script><!--{{ 7*7 }}"


def page_of(*paths: Path) -> BeautifulSoup:
    return BeautifulSoup(report_page(read_groups(paths)), "html.parser")


def charts(page: BeautifulSoup) -> dict[str, list[dict[str, Any]]]:
    """Returns the series of each chart, by its title."""
    return {chart["title"]: chart["series"] for chart in json.loads(page.find(id="charts").string)}


def numbers(page: BeautifulSoup) -> list[float]:
    return [json.loads(found["value"]) for found in page.find_all("data")]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_its_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    page, rows = page_of(run), rows_of(run)
    summary = json.loads((run / "summary.json").read_text())
    shown = ("evaluation_return_mean", "env_steps_total", "rounds", "actors", "actors_failed")
    assert {summary[key] for key in (*shown, "spent_usd", "budget_usd")} <= set(numbers(page))
    found = charts(page)
    for title, key in {
        "Actors per round": "actor_count",
        "Signal: convexity ratio": "convexity_ratio",
        "Boosting score": "boosting_score",
    }.items():
        [series] = found[title]
        known = [(row["round_index"], row[key]) for row in rows if row[key] is not None]
        assert list(zip(series["x"], series["y"], strict=True)) == known
    for title, until in {
        "steps": [row["env_steps_total"] for row in rows],
        "time": np.cumsum([row["round_s"] for row in rows]),
        "dollars": [*(row["spent_usd"] for row in rows[:-1]), summary["spent_usd"]],
    }.items():
        evaluation, training = found[f"Return against {title}"]
        assert evaluation["x"] == training["x"] == list(until)
        assert evaluation["y"] == [row["evaluation_return_mean"] for row in rows]
        assert training["y"] == [row["episode_return_mean"] for row in rows]
    assert sum(part["y"][-1] for part in found["Time until each round"]) == sum(
        row["round_s"] for row in rows
    )
    dollars = found["Dollars until each round"]
    assert np.sum([part["y"] for part in dollars], axis=0) == pytest.approx(
        found["Return against dollars"][0]["x"]
    )
    assert [part["name"] for part in dollars] == ["actors", "unfinished rounds"]
    assert "actor failed 1×" in page.text.replace("\n", " ")


def test_list_prices_are_kept_apart_from_measured_and_metered(tmp_path: Path) -> None:
    listed, metered = a_run(tmp_path / "a"), a_run(tmp_path / "b", cost_basis="metered")
    for run, words in ((listed, "list prices"), (metered, "metered")):
        found = {caption.text.strip() for caption in page_of(run).find_all("figcaption")}
        assert {
            "Return against steps measured",
            f"Return against dollars {words}",
            f"Dollars until each round {words}",
        } <= found
        assert ("Nothing was billed" in page_of(run).text) == (run == listed)


def test_an_evaluation_stands_at_the_round_that_left_its_policy(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    rows = [{**row, "evaluation_round": max(1, row["round_index"] - 2)} for row in rows_of(run)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert charts(page_of(run))["Return against steps"][0]["x"] == [100, 200, 300, 400]


def test_seeds_are_estimated_as_their_summary_does(tmp_path: Path) -> None:
    path = some_seeds(tmp_path / "five")
    summaries = [
        json.loads((path / f"seed-{seed}" / "summary.json").read_text()) for seed in range(5)
    ]
    page = page_of(path)
    for key in ESTIMATED:
        estimate = interval_estimate([summary[key] for summary in summaries])
        assert {value for name, value in estimate.items() if name != "seeds"} <= set(numbers(page))
    band, *seeds = charts(page)["Return against steps"]
    assert [one["name"] for one in seeds] == [f"seed {seed}" for seed in range(5)]
    assert (band["x"][0], band["x"][-1]) == (100, 900)
    # At the end, each seed has its final value.
    assert band["y"][-1] == interquartile_mean(np.array([one["y"][-1] for one in seeds]))
    assert all(
        low <= y <= high for low, y, high in zip(band["low"], band["y"], band["high"], strict=True)
    )
    assert "interquartile mean over seeds, with a 95% percentile interval" in page.text


def test_a_seed_that_did_not_finish_is_shown_but_not_estimated(tmp_path: Path) -> None:
    path = some_seeds(tmp_path / "three", 3)
    (path / "seed-2" / "summary.json").unlink()
    page = page_of(path)
    assert "2 of 3 seeds finished" in page.text
    names = [line["name"] for line in charts(page)["Return against steps"]]
    assert names == ["three, 2 seeds", "seed 0", "seed 1", "seed 2"]
    short = page_of(path, a_run(tmp_path / "short", rounds=2))
    assert "return in training episodes" in short.text, "an evaluation or two are no curve"


def test_a_comparison_has_a_line_for_each_and_says_what_differs(tmp_path: Path) -> None:
    page = page_of(some_seeds(tmp_path / "five"), a_run(tmp_path / "alone", seed=7))
    for series in charts(page).values():
        assert len(series) == 2
    rows = [[cell.text for cell in row.find_all("td")] for row in page.find_all("tr")]
    assert ["seed", "0, 1, 2, 3, 4", "7"] in rows


def hostile_run(path: Path) -> Path:
    run = a_run(
        path / "<script>window.hacked=1<script>",
        stop_reason=HOSTILE,
        error=HOSTILE,
        prices_region=HOSTILE,
    )
    (run / "config.yaml").write_text(
        f"environment: {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)}: 1\n"
        "cache:\n  url: rediss://user:secret@host\n"
    )
    with (run / "events.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {
                    "event": HOSTILE,
                    "time": HOSTILE,
                    HOSTILE: "\ud800",
                    "url": "redis://me:secret@host",
                }
            )
            + "\n"
        )
    return run


def test_text_of_the_records_is_only_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    for page in (page_of(run), page_of(run, a_run(tmp_path / "other"))):
        assert [script.get("type") for script in page.find_all("script")] == [
            "application/json",
            None,
        ]
        assert page.find_all("img") == []
        assert page.text.count("{{ 7*7 }}") > 5
        assert "secret" not in page.text


def test_a_long_run_is_a_page_of_usual_size_and_none_of_its_ends_is_lost(tmp_path: Path) -> None:
    page = page_of(a_run(tmp_path / "run", rounds=2 * POINTS_MAX))
    assert f"shows at most {POINTS_MAX:,} evenly chosen points" in page.text
    for lines in charts(page).values():
        assert all(len(line["x"]) == len(line["y"]) == POINTS_MAX for line in lines)
    [actors] = charts(page)["Actors per round"]
    assert (actors["x"][0], actors["x"][-1]) == (1, 2 * POINTS_MAX)
    assert actors["y"] == [8 + index % 3 for index in actors["x"]]


def test_browser(tmp_path: Path) -> None:
    """On a phone and on a desktop, light and dark: no complaint, no request, and nothing wider than the window."""
    broken = a_run(tmp_path / "broken")
    (broken / "rounds.jsonl").unlink()
    kinds = {
        "hostile": [hostile_run(tmp_path)],
        "seeds": [some_seeds(tmp_path / "five")],
        "several": [tmp_path / "five", a_run(tmp_path / ("a-long-name" * 9)), broken],
    }
    with chromium(tmp_path / "profile") as page:
        for name, paths in kinds.items():
            file = tmp_path / f"{name}.html"
            assert main(["report", *map(str, paths), "--out", str(file)]) == 0
            for width, is_dark in ((375, False), (320, True), (1200, False)):
                page.open(file, width=width, is_dark=is_dark)
                assert page.run("document.documentElement.scrollWidth") == width
                if name == "seeds" and width == 1200:
                    assert page.run(
                        "[...document.querySelectorAll('.wide')].every(one => one.scrollWidth <= one.clientWidth)"
                    ), "a column is cut off"
                assert page.run("document.querySelectorAll('.chart canvas').length") == page.run(
                    "JSON.parse(document.getElementById('charts').textContent).length"
                )
                assert page.run("getComputedStyle(document.body).backgroundColor") == (
                    "rgb(20, 23, 27)" if is_dark else "rgb(246, 247, 249)"
                )
            assert (page.complaints, page.run("window.hacked")) == ([], None)
            page.run("document.querySelectorAll('.tabs input')[2].click()")
            assert [
                page.run(f"chart{place}.getBoundingClientRect().width") > 500 for place in range(3)
            ] == [False, False, True]
            assert page.run("chart2.querySelector('canvas').getBoundingClientRect().width") > 500
            page.run("document.querySelector('.tabs input').click()")
        page.call(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            **page.run(
                "(({x, y, width, height}) => ({x: x + width - 2, y: y + height / 2}))"
                "((chart0.scrollIntoView(), chart0.querySelector('.u-over').getBoundingClientRect()))"
            ),
        )
        assert re.search(
            r"five, 5 seeds72 \(\d[\d.]* … \d[\d.]*\)",
            page.run(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
                "() => done(document.getElementById('chart0-legend').innerText))))"
            ),
        )
        assert {address.partition(":")[0] for address in page.asked} == {"file"}


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")
    for arguments, words in (
        ([run, tmp_path / "nowhere"], f"{tmp_path / 'nowhere'}: there is no such directory"),
        ([run, "--out", run / "rounds.jsonl"], "allowed: a file whose name ends in .html"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err
    (run / "report.html").mkdir()
    assert "cannot be written" in try_to_write_report(run), "which is no error of a run"
    assert try_to_write_report(a_run(tmp_path / "other")) == ""
