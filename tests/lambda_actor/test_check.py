"""The check, during the build, that the actor image runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lambda_actor.check import CheckError, check, main
from lambda_actor.errors import UnusableEnvironmentError
from tests.environments import FAULT_STEP, StatefulCounter
from tests.helpers import ROOT


class ForgetfulCounter(StatefulCounter):
    """Saves only part of its state."""

    def get_state(self) -> dict[str, object]:
        return {"count": self.count, "start": 0.5}


def make_forgetful() -> ForgetfulCounter:
    return ForgetfulCounter(episode_steps=1000)


@pytest.mark.parametrize(
    ("environment_id", "steps", "seen"),
    [
        ("Hopper-v5", 12, "an open episode was continued"),
        ("ALE/Qbert-v5", 8, "an open episode was continued"),
        ("tests.environments:make_counter", 10, "an open episode was continued"),
        ("tests.training.test_trial:make_long", 7, "an open episode was replayed"),
    ],
)
def test_what_works_is_told(environment_id: str, steps: int, seen: str) -> None:
    told = check(environment_id, steps)
    assert told.startswith(f"{environment_id}: {steps} steps, mean reward ")
    assert seen in told


@pytest.mark.parametrize(
    ("environment_id", "error"),
    [("NoSuch-v0", UnusableEnvironmentError), ("tests.environments:make_nan_reward", CheckError)],
)
def test_what_an_actor_could_not_do_is_an_error(
    environment_id: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        check(environment_id, FAULT_STEP + 2)


def test_what_train_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    chance = ["tests.training.test_trial:make_long", "7", '{"kwargs": {"kind": "Local"}}']
    assert main(chance) == 0, "in one process nothing differs"
    endless = ["tests.environments:make_stateless_counter", "7"]
    assert main(endless) == 1
    assert (
        "no limit of steps that Gymnasium knows, and Counter offers no get_state()"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "remedy", [{"truncate_at_fragment": True}, {"max_episode_steps": 50}], ids=str
)
def test_the_keys_of_a_remedy_can_be_given(remedy: dict[str, object]) -> None:
    endless = ["tests.environments:make_stateless_counter", "7"]
    assert main([*endless, json.dumps(remedy)]) == 0
    wrapped = {"gymnasium.wrappers.ClipReward": {"min_reward": -1.0}}
    assert main([*endless, json.dumps(remedy | {"wrappers": [wrapped]})]) == 0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("auto", "argument ENVIRONMENT: 'auto' is not a JSON object"),
        ('{"max_steps": 3}', "no key ['max_steps']; allowed: preprocessing | truncate_at_fragment"),
    ],
)
def test_what_is_no_section_is_named(
    section: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["Pendulum-v1", "4", section])
    assert words in capsys.readouterr().err


def test_a_state_that_leaves_something_out_is_found() -> None:
    with pytest.raises(UnusableEnvironmentError, match="continues differently elsewhere"):
        check("tests.lambda_actor.test_check:make_forgetful", 8)


def test_warnings_come_first_and_a_dropped_episode_is_one() -> None:
    *_, warning, seen = check(
        "tests.training.test_trial:make_long", 64, {"kwargs": {"kind": "Random", "what": "reward"}}
    ).splitlines()
    assert warning.startswith(
        "! dropped: each fragment's last, unfinished episode, because no later actor can "
    )
    assert seen.endswith("; no open episode was continued")


@pytest.mark.parametrize(("environment_id", "code"), [("Pendulum-v1", 0), ("NoSuch-v0", 1)])
def test_its_exit_code_ends_the_image_build(
    environment_id: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([environment_id, "4"]) == code
    captured = capsys.readouterr()
    assert (environment_id in captured.out, "an actor cannot act" in captured.err) == (
        not code,
        bool(code),
    )


def test_it_is_the_command_that_the_dockerfile_runs() -> None:
    arguments = ["lambda_actor.check", "MountainCarContinuous-v0", "4", "{}"]
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
