"""The GPU benchmark, as far as it can be tested without a GPU; `--rehearse` covers the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command_line
from benchmarks.gpu import card, page, parts
from benchmarks.gpu.limits import OUT_OF_TIME, NotMeasuredError, Point, measure_part
from benchmarks.gpu.parts import PARTS, Bench
from runtime.experiment.loading import load_experiment
from runtime.gmi.devices import Machine, parse_gpus
from tests.gmi.nvidia_smi import H100
from tests.helpers import PATIENCE_S, ROOT

ACTIVITY = """
# gpu    pwr  gtemp  mtemp     sm    mem     fb  gract smutil  smocc
# Idx      W      C      C      %      %     MB  GPM:%  GPM:%  GPM:%
    0     12     43      -      0      1    400      -      -      -
    0     12     43      -     20      1   9000      -      -      -
# gpu    pwr  gtemp  mtemp     sm    mem     fb  gract smutil  smocc
# Idx      W      C      C      %      %     MB  GPM:%  GPM:%  GPM:%
    0     11     43      -     40      7   8000      1      1    0.5
    0      9     43      -     40      7   8000      9      8    1.5
"""
"""Output of `nvidia-smi dmon --gpm-metrics` as published for driver 535, plus columns of `-s m` and smocc."""
PLAIN = """
# gpu     sm    mem    enc    dec     fb   bar1
# Idx      %      %      %      %     MB     MB
    0     50      3      0      0   1024      5
"""
HEAD = {
    "command": "a",
    "commit": "abc",
    "date": "2026-11-25",
    "hardware": "16 cores",
    "gpu": "NVIDIA H100",
}
POINTS: list[Point] = [
    {"task": task, "turn": turn} for turn in range(2) for task in ("Ant", "Humanoid")
]
WITH_GPU = Machine((0, 1), parse_gpus(H100), has_mps=True)


# Output of nvidia-smi


def monitored(monkeypatch: pytest.MonkeyPatch, ask: Any, calls: int) -> card.Monitor:
    """Returns a monitor that has queried this many times."""
    asked, enough = list[tuple[str, ...]](), threading.Event()

    def answer(*words: str) -> str:
        asked.append(words)
        if len(asked) > calls:
            enough.set()
        return ask(*words)

    monkeypatch.setattr(card, "ask", answer)
    monitor = card.Monitor(0)
    assert enough.wait(PATIENCE_S)
    return monitor


def test_a_monitor_takes_means_and_the_most_memory_of_what_was_sampled_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did = monitored(monkeypatch, lambda *_: ACTIVITY, 1).end(0.0, float("inf"))
    assert did == {
        "utilisation_percent": 25.0,
        "sm_activity_percent": 4.5,
        "sm_occupancy_percent": 1.0,
        "memory_mib": 9000,
    }
    early = monitored(monkeypatch, lambda *_: ACTIVITY, 1).end(float("inf"), float("inf"))
    assert early == dict.fromkeys(did)


def test_a_monitor_does_without_what_a_gpu_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_activity(*words: str) -> str:
        if "--gpm-metrics" in words:
            raise subprocess.CalledProcessError(2, "nvidia-smi")
        return PLAIN

    assert monitored(monkeypatch, without_activity, 2).end(0.0, float("inf")) == {
        "utilisation_percent": 50.0,
        "sm_activity_percent": None,
        "sm_occupancy_percent": None,
        "memory_mib": 1024,
    }


# Time limits and continuation


class Clock:
    """A clock that advances only while something is measured."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def measured(
    path: Path, limit_s: float, durations_s: dict[str, float], head: dict[str, str] = HEAD
) -> tuple[list[tuple[str, int, float]], list[str]]:
    """Measures each task for its duration. Returns the tasks begun, the time given to each, and the printed lines."""
    clock, begun, said = Clock(), [], []

    def measure(point: Point, left_s: float) -> dict[str, Any]:
        begun.append((point["task"], point["turn"], left_s))
        clock.now_s += durations_s[point["task"]]
        if durations_s[point["task"]] < 1.0:
            raise NotMeasuredError("out of memory")
        return {"steps_per_s": 5}

    measure_part(path, head, POINTS, measure, limit_s=limit_s, clock=clock, say=said.append)
    return begun, said


def test_a_part_ends_where_another_point_would_not_fit_says_so_and_goes_on_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fig8.json"
    begun, said = measured(path, 100.0, {"Ant": 30.0, "Humanoid": 40.0})
    assert begun == [("Ant", 0, 100.0), ("Humanoid", 0, 70.0)]
    assert said[-1] == "fig8: cut after 100 s, without 2 of 4 points; the same command continues"
    found = json.loads(path.read_text())
    assert found["not_measured"] == {
        "task Ant, turn 1": OUT_OF_TIME,
        "task Humanoid, turn 1": OUT_OF_TIME,
    }
    assert [row["point"] for row in found["points"]] == POINTS[:2]

    begun, said = measured(
        path, 100.0, {"Ant": 30.0, "Humanoid": 40.0}, HEAD | {"date": "2026-11-26"}
    )
    assert begun == [("Ant", 1, 100.0), ("Humanoid", 1, 70.0)]
    found = json.loads(path.read_text())
    assert ([row["point"] for row in found["points"]], found["not_measured"]) == (POINTS, {})
    assert measured(path, 100.0, {}) == ([], [])


def test_results_of_another_gpu_are_not_mixed_with_these(tmp_path: Path) -> None:
    durations_s = {"Ant": 1.0, "Humanoid": 1.0}
    measured(tmp_path / "fig8.json", 100.0, durations_s)
    begun, said = measured(tmp_path / "fig8.json", 100.0, durations_s, HEAD | {"gpu": "Tesla T4"})
    assert (len(begun), said[0]) == (4, "fig8: what was measured with another gpu is replaced")


def test_what_fails_is_named_and_a_part_of_which_all_fails_writes_nothing(tmp_path: Path) -> None:
    _, said = measured(tmp_path / "all.json", 100.0, {"Ant": 0.0, "Humanoid": 0.0})
    assert said[0] == "all: not measured: task Ant, turn 0: out of memory"
    assert not (tmp_path / "all.json").exists()
    measured(tmp_path / "some.json", 100.0, {"Ant": 0.0, "Humanoid": 1.0})
    assert json.loads((tmp_path / "some.json").read_text())["not_measured"] == {
        "task Ant, turn 0": "out of memory",
        "task Ant, turn 1": "out of memory",
    }


# Measurements


def points_and_commands() -> Iterator[tuple[str, Point, list[str]]]:
    bench = Bench(WITH_GPU, "python", turns=2)
    for name in ("sketch", "sweep", "fig7", "fig8", "fig9"):
        points = PARTS[name].points(bench)
        turns = [point["turn"] for point in points]
        assert turns == sorted(turns), "contenders take turns"
        yield from ((name, point, parts.command(bench, point, "folder")) for point in points)


def test_every_training_is_one_that_the_experiment_file_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "find_spec", lambda name: name)
    seen = set()
    for name, point, words in points_and_commands():
        if point["turn"] == 0:
            changes = [word for word in words[words.index("--out") + 2 :] if word != "--set"]
            experiment = load_experiment(ROOT / words[4], changes)
            seen.add((name, experiment.environment.id, experiment.environment.backend))
            assert experiment.learner.kind == "gmi"
            assert experiment.scaler.actors_fixed == point["environments"] * point["instances"]
    assert seen == {
        (name, environment, "warp")
        for name in ("sketch", "sweep", "fig7", "fig8", "fig9")
        for environment in ("Ant-v5", "Humanoid-v5")
    }


# Missing hardware or programs


def test_without_a_gpu_each_part_says_so_in_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command_line.main(["--out", str(tmp_path / "results")])
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: not measured: there is no NVIDIA GPU" for name in PARTS
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_is_not_possible_is_not_measured() -> None:
    point = {"task": "Ant", "environments": 512, "instances": 2, "backend": "mig", "turn": 0}
    with pytest.raises(NotMeasuredError, match="slices"):
        PARTS["fig8"].measure(Bench(WITH_GPU, "python"), point, 100.0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no such game')", "ValueError: no such game"),
        ("import time; time.sleep(60)", "more than 0 s"),
    ],
)
def test_a_program_that_fails_or_takes_too_long_is_not_measured(code: str, reason: str) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        parts.said_by([sys.executable, "-S", "-c", code], 0.4 if "sleep" in code else PATIENCE_S)


# The page


def made_up() -> dict[str, Any]:
    """Made-up results for all parts."""
    measures = {measure: 10.0 for figure in page.FIGURES.values() for measure in figure.measures}
    bench = Bench(WITH_GPU, "python", is_rehearsal=True)
    return {
        name: {
            **HEAD,
            "not_measured": {
                f"task {task}, turn {turn}": OUT_OF_TIME
                for turn in (1, 2)
                for task in ("Ant", "Humanoid")
            },
            "points": [
                {"point": point, **measures, "curve": [[1.0, 5.0], [2.0, 7.0]]}
                for point in part.points(bench)
            ],
        }
        for name, part in PARTS.items()
    }


def test_the_published_page_says_what_the_data_say() -> None:
    results = page.read_all(page.RESULTS)
    assert not any(found.get("is_rehearsed") for found in results.values())
    assert page.PAGE.read_text() == page.page(results)


def test_without_results_nothing_is_claimed() -> None:
    text = page.page({})
    assert text.count(f"**Not measured**: {page.NO_GPU}.") == len(page.FIGURES)
    assert "|" not in text


def test_ratios_are_to_what_a_line_is_compared_with() -> None:
    rows = [
        {
            "point": {
                "task": "Ant",
                "environments": 8,
                "instances": instances,
                "backend": backend,
                "turn": turn,
            },
            "steps_per_s": value + turn,
            "served_per_s": None,
            "utilisation_percent": 50.0,
            "sm_activity_percent": None,
        }
        for turn in range(3)
        for instances, backend, value in (
            (2, "none", 99.0),
            (2, "mps", 149.0),
            (3, "none", 199.0),
            (3, "mps", 249.0),
        )
    ]
    lines = page.table_of(rows, page.FIGURES["fig8"]).splitlines()[2:]
    assert [line.split("|")[5].strip() for line in lines] == [
        "100 (1.00)",
        "150 (1.50)",
        "200 (1.00)",
        "250 (1.25)",
    ]
    assert {line.split("|")[6].strip() for line in lines} == {"–"}


def test_results_of_a_rehearsal_are_never_published(tmp_path: Path) -> None:
    for name, found in made_up().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found | {"is_rehearsed": name == "fig9"}))
    with pytest.raises(SystemExit, match="results of a rehearsal are not published: fig9"):
        page.write(tmp_path, tmp_path / "page.md")
    assert not list(tmp_path.glob("*.md"))
    page.write(tmp_path, tmp_path / "page.md", is_rehearsal=True)
    assert (tmp_path / "page.md").read_text().startswith(f"# {page.REHEARSAL}\n")
