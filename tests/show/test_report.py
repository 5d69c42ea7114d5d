"""The page: its numbers, its escaping, and its look in a browser."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup

from runtime.cli.main import main
from runtime.records.run_directory import RunDirectory
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


def rows_of(page: BeautifulSoup) -> dict[str, Any]:
    """Returns the numbers of the tables' rows, by the row's first cell."""
    found: dict[str, list[float]] = {}
    for row in page.find_all("tr"):
        cells = [json.loads(cell["value"]) for cell in row.find_all("data")]
        found.setdefault(row.find(["th", "td"]).text, []).extend(cells)
    return found


def table_of(page: BeautifulSoup, head: str) -> list[list[str]]:
    """Returns the cells of the rows of the table with this head."""
    table = page.find("th", string=head).find_parent("table")
    return [[cell.text for cell in row.find_all("td")] for row in table.find_all("tr")[1:]]


def test_its_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    page = page_of(run)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]

    def column(key: str) -> list[Any]:
        return [row[key] for row in rows]

    summary = json.loads((run / "summary.json").read_text())
    spent_usd = summary["spent_usd"]
    assert rows_of(page) == {
        "state": [],
        "last evaluation": [rows[-1]["evaluation_return_mean"]],
        "best evaluation": [max(column("evaluation_return_mean")[2:])],
        "training return": [rows[-1]["episode_return_mean"]],
        "steps": [rows[-1]["env_steps_total"]],
        "rounds": [len(rows)],
        "dollars": [spent_usd],
        "minutes by the clock": [sum(column("round_s")) / 60],
        "actors": [summary["actors"], sum(column("actors_cost_usd"))],
        "failed": [summary["actors_failed"]],
        "target": [],
        "budget $": [summary["budget_usd"]],
        "reserved $": [0.0],
        "provisioned": [sum(column("provisioned_cost_usd"))],
        "learner": [sum(column("learner_cost_usd"))],
        "infrastructure": [sum(column("infrastructure_cost_usd"))],
        "unfinished rounds": [spent_usd - sum(column("round_cost_usd"))],
        "in all": [spent_usd, sum(column("round_s"))],
        "waiting for actors": [sum(column("collect_s"))],
        "updates": [sum(column("learn_s"))],
        "detector": [sum(column("detect_s"))],
        "evaluations (CPU)": [sum(column("evaluate_s"))],
    }
    drawn = charts(page)
    for title, key in {
        "Actors per round": "actor_count",
        "Signal: convexity ratio": "convexity_ratio",
        "Boosting score": "boosting_score",
    }.items():
        [series] = drawn[title]
        known = [(row["round_index"], row[key]) for row in rows if row[key] is not None]
        assert list(zip(series["x"], series["y"], strict=True)) == known
    for title, until in {
        "steps": column("env_steps_total"),
        "time": list(np.cumsum(column("round_s"))),
        "dollars": column("spent_usd"),
    }.items():
        evaluation, training = drawn[f"Return against {title}"]
        # An evaluation is drawn at the round that left its policy.
        assert evaluation["x"] == until[:-2] and training["x"] == until
        assert evaluation["y"] == column("evaluation_return_mean")[2:]
        assert training["y"] == column("episode_return_mean")
    assert "actor failed 1×" in page.text.replace("\n", " ")


def test_list_prices_are_kept_apart_from_measured_and_metered(tmp_path: Path) -> None:
    for basis, words in (("local", "list prices"), ("metered", "metered")):
        page = page_of(a_run(tmp_path / basis, cost_basis=basis))
        assert {
            "Return against steps measured",
            f"Return against dollars {words}",
        } <= {caption.text.strip() for caption in page.find_all("figcaption")}
        assert ("Nothing was billed" in page.text) == (basis == "local")


def test_seeds_are_estimated_as_their_summary_does_without_those_that_did_not_finish(
    tmp_path: Path,
) -> None:
    path = some_seeds(tmp_path / "five")
    (path / "seed-4" / "summary.json").unlink()
    summaries = [json.loads(one.read_text()) for one in sorted(path.glob("*/summary.json"))]
    page = page_of(path)
    assert "4 of 5 seeds finished" in page.text
    found = rows_of(page)
    for key, name in ESTIMATED.items():
        estimate = interval_estimate([summary[key] for summary in summaries])
        names = ("interquartile_mean", "interval_low", "interval_high")
        assert found[name] == [estimate[part] for part in names]
    band, *seeds = charts(page)["Return against steps"]
    assert [one["name"] for one in seeds] == [f"seed {seed}" for seed in range(5)]
    # At the end, each seed has its final value.
    assert band["y"][-1] == interquartile_mean(np.array([one["y"][-1] for one in seeds[:4]]))
    assert all(
        low <= y <= high for low, y, high in zip(band["low"], band["y"], band["high"], strict=True)
    )
    assert "mean over seeds, interquartile from four on, with a 95% percentile" in page.text
    parts = [float(row[-1]) for row in table_of(page, "unfinished rounds")]
    assert len(parts) == 6 and parts[-1] == pytest.approx(sum(parts[:-1])), "dollars have a total"
    short = page_of(path, a_run(tmp_path / "short", rounds=2, seed=7))
    assert "return in training episodes" in short.text, "an evaluation or two are no curve"
    assert {len(series) for series in charts(short).values()} == {2}
    rows = [[cell.text for cell in row.find_all("td")] for row in short.find_all("tr")]
    assert ["seed", "0, 1, 2, 3, 4", "7"] in rows


def test_settings_of_several_seeds_are_compared_in_one_table(tmp_path: Path) -> None:
    rows = table_of(page_of(some_seeds(tmp_path / "a", 3), some_seeds(tmp_path / "b", 5)), "from")
    assert [row[:4] for row in rows[:2]] == [
        ["last evaluation", "a", "3", "61.0"],
        ["last evaluation", "b", "5", "72.0"],
    ]
    assert len(rows) == 2 * len(ESTIMATED)


def test_a_band_is_made_of_values_that_seeds_had(tmp_path: Path) -> None:
    """Straight lines between these evaluations cross at one point, where an interval would be nothing."""
    returns = ((300.0, 500.0), (500.0, 300.0), (400.0, 430.0))
    runs = [a_run(tmp_path / "runs" / f"seed-{seed}", seed=seed) for seed in range(len(returns))]
    (tmp_path / "runs" / "summary.json").write_text('{"seeds": [{}, {}, {}]}')
    for run, (first, last) in zip(runs, returns, strict=True):
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        for row in rows:
            row["evaluation_round"] = row["round_index"]
            row["evaluation_return_mean"] = {1: first, 3: first, 6: last}.get(row["round_index"])
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "rounds.jsonl").write_text(text)
    [band, *_] = charts(page_of(tmp_path / "runs"))["Return against steps"]
    assert (band["x"], band["y"]) == ([100, 300, 600], [400.0, 400.0, 410.0])
    assert (band["low"], band["high"]) == ([300.0] * 3, [500.0] * 3)


@pytest.mark.parametrize(
    ("is_downloaded", "is_seed"), [(False, False), (False, True), (True, False)]
)
def test_a_run_that_was_killed_says_how_it_goes_on_and_one_that_runs_that_it_does(
    tmp_path: Path, is_downloaded: bool, is_seed: bool
) -> None:
    out = tmp_path / "my runs"
    run = a_run(out / "seed-0" if is_seed else out, rounds=1)
    (run / "summary.json").unlink()
    if is_seed:
        (out / "summary.json").write_text('{"seeds": [{}], "budget_usd": 5.0}')
    if is_downloaded:
        (run / ".download.json").touch()
    with (run / "config.yaml").open("a") as config:
        config.write("budget: {usd: 0.02}\n")
    page = page_of(run)
    command = f"python -m runtime train --out '{out}' --resume"
    assert (command in page.text) == (not is_downloaded)
    assert f"{run.name}: {'not ended' if is_downloaded else 'killed'}." in page.text
    assert "in 1 rounddollars" in page.find(class_="headline").text.replace("\n", "")
    found = {row.th.text: row.td.text for row in page.find_all("tr") if row.th and row.td}
    assert (found["actors"], found["budget $"]) == ("0.010000", "0.0200")
    with closing(RunDirectory(run)):
        text = page_of(run).text
    assert is_downloaded or (f"{run.name}: still running." in text and command not in text)


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
    event = {"event": HOSTILE, "time": HOSTILE, HOSTILE: "\ud800", "url": "redis://me:secret@host"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    return run


def test_text_of_the_records_is_only_text(tmp_path: Path) -> None:
    page = page_of(hostile_run(tmp_path), a_run(tmp_path / "other"))
    assert [script.get("type") for script in page.find_all("script")] == ["application/json", None]
    assert page.find_all("img") == []
    assert page.text.count("{{ 7*7 }}") > 5
    assert "secret" not in page.text


def test_a_long_run_is_a_page_of_usual_size_and_none_of_its_ends_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.show.charts.POINTS_MAX", 20)
    page = page_of(a_run(tmp_path / "run", rounds=40))
    assert POINTS_MAX == 2000
    for lines in charts(page).values():
        assert all(len(line["x"]) == len(line["y"]) == 20 for line in lines)
    [actors] = charts(page)["Actors per round"]
    assert (actors["x"][0], actors["x"][-1]) == (1, 40)
    assert actors["y"] == [8 + index % 3 for index in actors["x"]]


def test_browser(tmp_path: Path) -> None:
    """On a phone and on a desktop, light and dark: no complaint, no request, and nothing wider than the window."""
    broken = a_run(tmp_path / "broken")
    (broken / "rounds.jsonl").unlink()
    five = some_seeds(tmp_path / "five")
    hostile = hostile_run(tmp_path)
    pages = ([five, a_run(tmp_path / ("a-long-name" * 9))], [five, hostile, broken])
    with chromium(tmp_path / "profile") as page:
        for paths in pages:
            file = tmp_path / "page.html"
            assert main(["report", *map(str, paths), "--out", str(file)]) == 0
            for width, is_dark in ((320, True), (1200, False)):
                page.open(file, width=width, is_dark=is_dark)
                assert page.run("document.documentElement.scrollWidth") == width
                assert page.run("document.querySelectorAll('.chart canvas').length") == page.run(
                    "JSON.parse(document.getElementById('charts').textContent).length"
                )
                assert page.run("getComputedStyle(document.body).backgroundColor") == (
                    "rgb(20, 23, 27)" if is_dark else "rgb(246, 247, 249)"
                )
            is_whole = "[...document.querySelectorAll('.wide')].every(one => one.scrollWidth <= one.clientWidth)"
            assert page.run(is_whole) or hostile in paths, "a column is cut off"
            page.run("document.querySelectorAll('.tabs input')[2].click()")
            assert page.run("chart2.querySelector('canvas').getBoundingClientRect().width") > 500
        assert (page.complaints, page.run("window.hacked")) == ([], None)
        assert {address.partition(":")[0] for address in page.asked} == {"file"}


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run")
    for arguments, words in (
        ([run, tmp_path / "nowhere"], f"{tmp_path / 'nowhere'}: there is no run"),
        ([tmp_path], f"there is no run; allowed: a run, or several seeds, such as {run}\n"),
        ([run, "--out", run / "rounds.jsonl"], "allowed: a file whose name ends in .html"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err
    assert try_to_write_report(run) == ""
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    assert "cannot be written" in try_to_write_report(run), "which is no error of a run"
