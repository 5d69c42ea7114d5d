"""Programs and threads that environments leave behind, and simulators that can exist only once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lambda_actor import check as image_check
from lambda_actor import guarding
from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.training.backends import make_backend
from runtime.training.preflight import preflight
from tests.cases.simulators import FOREVER_S
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    is_alive,
    overrides,
    pendulum_file,
    rounds,
    start,
    train,
    wait_for,
)

ENVIRONMENT = "tests.cases.simulators:make"
HIDDEN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh"]
"""Runs a command without /dev/shm; only root may."""


def server_file(folder: Path, processes: int = 1, every_rounds: int = 0) -> Path:
    return pendulum_file(
        folder,
        environment={"id": ENVIRONMENT, "kwargs": {"kind": "Server", "folder": str(folder)}},
        fleet={"processes": processes},
        evaluation={"every_rounds": every_rounds},
    )


def check(
    kind: str, *options: str, hidden: bool = False, **kwargs: str
) -> subprocess.CompletedProcess[str]:
    return check_section({"kwargs": {"kind": kind, **kwargs}}, *options, hidden=hidden)


def check_section(
    section: dict[str, object], *options: str, hidden: bool = False
) -> subprocess.CompletedProcess[str]:
    words = ["-m", "lambda_actor.check", *options, ENVIRONMENT, "20", json.dumps(section)]
    return python(*words, before=HIDDEN if hidden else [])


def python(*words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def programs(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("program-*")]


@pytest.mark.parametrize("kind", ["Server", "Threaded"])
def test_the_image_check_ends_whatever_an_environment_has_started(
    tmp_path: Path, kind: str
) -> None:
    checked = check(kind, **({"folder": str(tmp_path)} if kind == "Server" else {}))
    assert (checked.returncode, "20 steps" in checked.stdout) == (0, True), checked.stderr
    assert len(programs(tmp_path)) == (kind == "Server")
    assert not any(map(is_alive, programs(tmp_path)))


def test_the_image_check_waits_for_neither_a_second_simulator_nor_a_first_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image_check, "_SECOND_S", 1)
    told = image_check.check(ENVIRONMENT, 20, {"kwargs": {"kind": "Waiting"}})
    assert "no second one can be made: " in told and "still being made after 1 s" in told
    # The process has no place left.
    program = (
        "from lambda_actor import check; from tests.cases.simulators import Waiting; check.PATIENCE_S = 1;"
        f'Waiting.place.acquire(); check.run([{ENVIRONMENT!r}, \'20\', \'{{"kwargs": {{"kind": "Waiting"}}}}\'])'
    )
    hanging = python("-c", program)
    assert (hanging.returncode, "Timeout (0:00:01)!" in hanging.stderr) == (1, True)


def test_the_image_check_gives_up_a_close_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "CLOSE_S", 0.1)
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "close_s": FOREVER_S}
    assert "an open episode was replayed" in image_check.check(ENVIRONMENT, 20, {"kwargs": kwargs})
    assert len([*tmp_path.glob("taken-*")]) == 2


def test_a_simulator_that_exists_once_trains_in_one_process_and_does_not_outlive_a_killed_trainer(
    tmp_path: Path,
) -> None:
    experiment, out = server_file(tmp_path), tmp_path / "run"
    trainer = start(experiment, out, *overrides(stop__max_rounds=1000))
    wait_for(lambda: (out / "rounds.jsonl").exists(), "a round")
    assert any(map(is_alive, programs(tmp_path)))
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    wait_for(lambda: not any(map(is_alive, programs(tmp_path))), "the simulator's end")
    last = len(rounds(out)) + 2
    resumed = train(experiment, out, "--resume", *overrides(stop__max_rounds=last))
    assert (resumed.returncode, len(rounds(out))) == (0, last), resumed.stderr
    assert not any(map(is_alive, programs(tmp_path)))


@pytest.mark.parametrize(("processes", "every_rounds"), [(2, 0), (1, 2)])
def test_a_simulator_that_exists_once_is_refused_where_several_would_play(
    tmp_path: Path, processes: int, every_rounds: int
) -> None:
    experiment = load_experiment(server_file(tmp_path, processes, every_rounds)).resolved()
    words = "the port is in use, in .*, while another one exists; allowed: fleet.processes = 1 and"
    with pytest.raises(ExperimentError, match=words):
        preflight(experiment, make_backend(experiment))
    assert not any(map(is_alive, programs(tmp_path)))


@pytest.mark.parametrize(
    ("sections", "fewest"),
    [
        ({"evaluation": {"every_rounds": 1, "episodes": 1}}, 7),
        # One of its processes may play everything.
        ({"algorithm": {"kind": "impala"}, "evaluation": {"every_rounds": 0}}, 3),
        ({"learner": {"kind": "gmi", "instances": 2}, "evaluation": {"every_rounds": 0}}, 6),
    ],
)
def test_a_run_closes_every_environment_also_those_that_play_or_have_raised(
    tmp_path: Path, sections: dict[str, object], fewest: int
) -> None:
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "raises_at": 30}
    experiment = pendulum_file(
        tmp_path,
        environment={"id": ENVIRONMENT, "kwargs": kwargs},
        scaler={"kind": "fixed", "actors_fixed": 4},
        stop={"max_rounds": 4},
        **{"fleet": {"processes": 2}, **sections},
    )
    ended = train(experiment, tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    # By an actor or, if that was faster, by the evaluation.
    assert (tmp_path / "raised").exists()
    assert len([*tmp_path.glob("returned-*")]) >= fewest
    assert [*tmp_path.glob("taken-*")] == []


def test_when_the_trainer_is_killed_its_environments_are_still_closed(tmp_path: Path) -> None:
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "close_s": 1.0}
    experiment = pendulum_file(
        tmp_path,
        environment={"id": ENVIRONMENT, "kwargs": kwargs},
        fleet={"processes": 2},
        evaluation={"every_rounds": 0},
    )
    trainer = start(experiment, tmp_path / "run", *overrides(stop__max_rounds=1000))
    wait_for(lambda: (tmp_path / "run" / "rounds.jsonl").exists(), "a round")
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    wait_for(lambda: not [*tmp_path.glob("taken-*")], "all licences to be returned")


def test_a_slow_simulator_exists_once_in_a_process_and_for_evaluation_if_fragments_hold_episodes(
    tmp_path: Path,
) -> None:
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "episode_steps": 20}
    experiment = pendulum_file(
        tmp_path,
        environment={"id": ENVIRONMENT, "kwargs": kwargs},
        actor={"fragment_steps": 20},
        scaler={"kind": "fixed", "actors_fixed": 4},
        evaluation={"every_rounds": 1, "episodes": 1},
        stop={"max_rounds": 3},
    )
    ended = train(experiment, tmp_path / "run")
    words = " ms. fleet.processes = 1 play 4 actors in 1 environment, and evaluations have one more"
    assert words in ended.stdout and "\nepisodes: " not in ended.stdout
    counts = [int(line) for line in (tmp_path / "counts").read_text().splitlines()]
    assert (ended.returncode, max(counts)) == (0, 2), ended.stderr


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "20 steps"),
        ({"raises_at": 3}, "the motor is on fire"),
        ({"wrappers": ["tests.cases.simulators:Licence"]}, "environment.wrappers: "),
        ({"frame_stack": 2}, "environment.frame_stack = 2: "),
    ],
)
def test_a_check_closes_what_it_has_made_even_if_it_refuses_that(
    tmp_path: Path, section: dict[str, object], words: str
) -> None:
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "raises_at": section.pop("raises_at", -1)}
    checked = check_section({"kwargs": kwargs, **section})
    assert words in checked.stdout + checked.stderr
    assert [*tmp_path.glob("returned-*")] and [*tmp_path.glob("taken-*")] == []


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("kind", "code"), [("Counter", 0), ("Semaphore", 1), ("Shared", 1)])
def test_what_lambda_lacks_is_refused_while_its_image_is_built(
    kind: str, code: int, hidden: bool
) -> None:
    if hidden and subprocess.run([*HIDDEN, "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root can hide /dev/shm")
    checked = check(kind, *([] if hidden else ["--lambda"]), hidden=hidden)
    words = (
        "/dev/shm, which Lambda does not have" if hidden else "not on Lambda, which lacks /dev/shm"
    )
    assert (checked.returncode, words in checked.stderr) == (code, code == 1), checked.stderr


def test_elsewhere_a_semaphore_is_no_problem() -> None:
    assert check("Semaphore").returncode == 0
