"""The picture of `plot`: its lines, and refused pictures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runtime.cli.main import main
from runtime.report.charts import return_charts
from runtime.report.reading import merged_seeds, read_comparable
from tests.report.records import a_run, some_seeds


def texts(picture: Path) -> list[str]:
    """Returns every text of an SVG. Matplotlib draws the letters, and leaves the words as comments next to them."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(picture, parser)
    return [
        " ".join((node.text or "").split())
        for node in tree.iter()
        if node.tag is ElementTree.Comment
    ]


def test_one_run_is_drawn_with_its_bill_and_its_signals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "one.svg"
    assert main(["plot", str(a_run(tmp_path / "_$run$")), "--out", str(picture)]) == 0
    assert capsys.readouterr().out == f"picture      {picture}\n"
    found = texts(picture)
    assert {
        "Return against steps",
        "evaluation",
        "training episodes",
        "Dollars until each round (modelled)",
        "Actors per round",
        "Signal: convexity ratio",
        "Boosting score",
    } <= set(found)
    assert found[-1].endswith("_$run$"), "names are not math"


def test_several_runs_are_drawn_over_each_other_and_seeds_as_a_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, alone = tmp_path / "many.svg", a_run(tmp_path / "alone", seed=9)
    config = alone / "config.yaml"
    config.write_text(config.read_text().replace("kind: nitro", "kind: fixed"))
    singles = [a_run(tmp_path / f"nitro-seed-{seed}", seed=seed) for seed in range(3)]
    (singles[2] / "summary.json").unlink()
    paths = map(str, [some_seeds(tmp_path / "five"), alone, *singles])
    assert main(["plot", *paths, "--out", str(picture)]) == 0
    found = texts(picture)
    assert {"five, 5 seeds", "alone", "nitro, 2 seeds", "Return against dollars (modelled)"} <= set(
        found
    )
    assert any("95% percentile interval by bootstrap" in text for text in found), (
        "it explains the band"
    )
    assert (
        "nitro: 2 of 3 seeds have finished, and make its line and band" in capsys.readouterr().out
    )


def test_each_seed_has_a_colour_of_its_own_in_the_legend(tmp_path: Path) -> None:
    five = some_seeds(tmp_path / "five")
    thin = [
        one for one in return_charts(read_comparable([five]))[0]["series"] if one["style"] == "thin"
    ]
    assert [one["name"] for one in thin] == [f"seed {seed}" for seed in range(5)]
    assert len({one["colour"] for one in thin} | {0}) == 6, "nor that of the line of all seeds"


def test_only_runs_that_differ_in_nothing_but_the_seed_are_seeds_of_each_other(
    tmp_path: Path,
) -> None:
    def names(*runs: Path) -> list[str]:
        return [group.name for group in merged_seeds(read_comparable(runs))]

    first, second, other = (
        a_run(tmp_path / name, seed=seed)
        for name, seed in {"hopper-seed-1-a": 1, "hopper-seed-2-b": 2, "hopper-seed-3-c": 3}.items()
    )
    again = a_run(tmp_path / "hopper-again", seed=2)
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("kind: nitro", "kind: fixed"))
    assert names(first, other, second) == ["hopper", "hopper-seed-3-c"]
    assert names(second, again) == ["hopper-seed-2-b", "hopper-again"], (
        "one seed twice is not two seeds"
    )
    third = a_run(tmp_path / "hopper-seed-4-d", seed=4)
    (third / "config.yaml").write_text(
        (other / "config.yaml").read_text().replace("seed: 3", "seed: 4")
    )
    assert names(first, second, other, third) == ["hopper, kind nitro", "hopper, kind fixed"]


def test_seeds_of_a_directory_belong_together_though_each_has_its_share_of_the_budget(
    tmp_path: Path,
) -> None:
    seeds = [
        one / f"seed-{seed}" for one in [some_seeds(tmp_path / "three-8", 3)] for seed in range(3)
    ]
    for place, seed in enumerate(seeds):
        with (seed / "config.yaml").open("a") as file:
            file.write(f"budget:\n  usd: {place + 1}.5\n")
    (tmp_path / "three-8" / "summary.json").write_text('{"budget_usd": 9.0}')
    [group] = merged_seeds(read_comparable(seeds))
    assert group.name == "three-8"
    assert {run.settings["budget.usd"] for run in group.runs} == {"9.0"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plot.jpg", "a file whose name ends in .png | .pdf | .svg"),
        ("none/plot.png", "a file in a folder that is there and can be written to"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_first(
    tmp_path: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", "nowhere", "--out", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"error: --out {tmp_path / name}: allowed: {words}\n"


def test_runs_without_an_episode_are_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run(tmp_path / name) for name in ("a", "b")]
    for run in runs:
        first = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])
        row = first | {"episode_return_mean": None, "evaluation_return_mean": None}
        (run / "rounds.jsonl").write_text(f"{json.dumps(row)}\n")
    assert main(["plot", *map(str, runs), "--out", str(tmp_path / "plot.png")]) == 2
    assert (
        "there is nothing to draw: none of these runs has finished an episode yet\n"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "plot.png").exists()
