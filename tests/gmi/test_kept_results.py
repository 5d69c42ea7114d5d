"""Saved layouts: found again for the same machine and workload, and harmless whatever is in their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lambda_actor.spaces import Spaces
from runtime.experiment.loading import load_experiment
from runtime.gmi.kept_results import Key, keep, kept_layout, key_of
from runtime.gmi.search import Layout
from tests.helpers import ROOT

LAYOUT = Layout(7, 3, "har")
KEY: Key = {"cores": 8, "gpus": ["Ä"], "algorithm": {"rate": 3e-4, "more": None}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def key(*overrides: str, cores: int = 2, gpus: tuple[str, ...] = ()) -> Key:
    spaces = Spaces((11,), action_size=3)
    experiment = load_experiment(
        ROOT / "experiments" / "hopper.yaml", ["scaler.kind=fixed", *overrides]
    )
    return key_of(
        experiment.resolved().fitted(spaces, preprocessing="none"), cores=cores, gpus=gpus
    )


def kept_file(cache: Path) -> Path:
    assert keep(KEY, LAYOUT) == ""
    (path,) = (cache / "nitro-rl" / "layouts").iterdir()
    return path


def test_what_is_kept_is_found_again_and_replaced() -> None:
    for layout in (LAYOUT, Layout(1, 1, "")):
        assert keep(KEY, layout) == ""
        assert kept_layout(dict(reversed([*KEY.items()]))) == (layout, "")


def test_nothing_is_found_and_nothing_is_wrong_where_nothing_was_kept(cache: Path) -> None:
    assert kept_layout(KEY) == (None, "")
    kept_file(cache)
    assert kept_layout({**KEY, "cores": 9}) == (None, "")


@pytest.mark.parametrize(
    "change",
    [
        "environment.kwargs={frame_skip: 2}",
        "network.hidden_sizes=[8]",
        "algorithm.epochs=3",
        "scaler.actors_fixed=3",
        "actor.fragment_steps=64",
    ],
)
def test_a_layout_is_of_what_decides_on_speed(change: str) -> None:
    assert key(change) != key()


@pytest.mark.parametrize(
    "change",
    ["seed=5", "stop.max_rounds=3"],
)
def test_what_does_not_decide_on_speed_does_not_count(change: str) -> None:
    assert key(change) == key()


def test_a_layout_is_of_a_machine_and_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key(cores=3) != key() != key(gpus=("NVIDIA H100",))
    old = key()
    assert old["libraries"]["torch"] and old["libraries"]["mujoco"]
    for name, other in (("version", lambda _: "0.0"), ("processor", lambda: "another")):
        monkeypatch.setattr(f"runtime.gmi.kept_results.{name}", other)
        assert key() != old
        old = key()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        '{"layout": {}}',
        '{"layout": null, "key": KEY}',
        '{"layout": {"instances": 1}, "key": KEY}',
        '{"layout": {"instances": 0, "environments": 1, "reduction": ""}, "key": KEY}',
        '{"layout": {"instances": 2, "environments": 1, "reduction": null}, "key": KEY}',
    ],
)
def test_a_file_that_is_no_kept_layout_is_ignored_and_can_be_replaced(
    cache: Path, text: str
) -> None:
    path = kept_file(cache)
    path.write_text(text.replace("KEY", json.dumps(KEY)))
    assert kept_layout(KEY) == (None, f"{path} is ignored: it is no layout that was kept")
    assert keep(KEY, LAYOUT) == ""
    assert kept_layout(KEY) == (LAYOUT, "")


def test_a_file_of_another_machine_is_ignored(cache: Path) -> None:
    path = kept_file(cache)
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": {"cores": 64}}))
    assert kept_layout(KEY) == (None, f"{path} is ignored: it is of another machine or workload")


def test_what_can_be_neither_read_nor_written_is_told(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    assert keep(KEY, LAYOUT).startswith("the layout that was found is not kept: ")
    layout, told = kept_layout(KEY)
    assert layout is None
    assert told.startswith("no kept layout can be read: ")


def test_without_an_absolute_path_it_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keep(KEY, LAYOUT) == ""
    (path,) = (tmp_path / ".cache" / "nitro-rl" / "layouts").iterdir()
    assert json.loads(path.read_text())["key"] == KEY
