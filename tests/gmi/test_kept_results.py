"""Saved layouts: found again for the same machine and workload, and harmless whatever is in their file."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

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
        "environment.id=Walker2d-v5",
        "environment.kwargs={frame_skip: 2}",
        "environment.max_episode_steps=9",
        "environment.wrappers=[gymnasium.wrappers.FlattenObservation]",
        "network.hidden_sizes=[8]",
        "algorithm.minibatch_steps=32",
        "algorithm.epochs=3",
        "scaler.actors_fixed=3",
        "actor.fragment_steps=64",
    ],
)
def test_a_layout_is_of_what_decides_on_speed(change: str) -> None:
    assert key(change) != key()


@pytest.mark.parametrize(
    "change",
    ["seed=5", "budget.usd=1", "stop.max_rounds=3", "evaluation.episodes=1", "actor.timeout_s=9"],
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


def test_a_key_is_the_same_after_it_was_written() -> None:
    one = key("environment.wrappers=[gymnasium.wrappers.FlattenObservation]", gpus=("a", "b"))
    assert json.loads(json.dumps(one)) == one
    assert keep(one, LAYOUT) == ""
    assert kept_layout(one) == (LAYOUT, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        '{"layout": {}}',
        "\0",
        '{"layout": null, "key": KEY}',
        '{"layout": {"instances": 1}, "key": KEY}',
        '{"layout": {"instances": 0, "environments": 1, "reduction": ""}, "key": KEY}',
        '{"layout": {"instances": true, "environments": 1, "reduction": ""}, "key": KEY}',
        '{"layout": {"instances": 2, "environments": 1.5, "reduction": ""}, "key": KEY}',
        '{"layout": {"instances": 2, "environments": 1, "reduction": null}, "key": KEY}',
        '{"layout": {"instances": 2, "environments": 1, "reduction": "", "more": 1}, "key": KEY}',
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


def test_what_cannot_be_read_is_told(cache: Path) -> None:
    path = kept_file(cache)
    path.unlink()
    path.mkdir()
    layout, told = kept_layout(KEY)
    assert layout is None
    assert told.startswith("no kept layout can be read: ") and "Is a directory" in told


def test_a_home_that_cannot_be_written_to_is_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the directory should be")
    assert keep(KEY, LAYOUT).startswith("the layout that was found is not kept: ")
    layout, told = kept_layout(KEY)
    assert layout is None
    assert told.startswith("no kept layout can be read: ")
    cache.unlink()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert "Read-only file system" in keep(KEY, LAYOUT)
    assert kept_layout(KEY) == (None, "")


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")

    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert (
        keep(KEY, LAYOUT)
        == "the layout that was found is not kept: Could not determine home directory."
    )
    assert kept_layout(KEY) == (
        None,
        "no kept layout can be read: Could not determine home directory.",
    )


@pytest.mark.parametrize("given", ["", "relative/cache"])
def test_without_an_absolute_path_it_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keep(KEY, LAYOUT) == ""
    (path,) = (tmp_path / ".cache" / "nitro-rl" / "layouts").iterdir()
    assert json.loads(path.read_text())["key"] == KEY
