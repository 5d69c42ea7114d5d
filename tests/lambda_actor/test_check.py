"""The check, during the build, that the actor image runs."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys

import pytest

from lambda_actor import check as checks
from lambda_actor.check import CheckError, check, main
from lambda_actor.errors import UnusableEnvironmentError
from runtime.errors import ExperimentError
from runtime.training.trial import try_environment
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
        ("Pendulum-v1", 8, "an open episode was continued"),
        ("CartPole-v1", 5, "an open episode was continued"),
        ("ALE/Qbert-v5", 8, "an open episode was continued"),
        ("tests.environments:make_pictures", 8, "an open episode was continued"),
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
    chance = ["tests.training.test_trial:make_local", "7"]
    assert main(chance) == 0, "in one process nothing differs"
    endless = ["tests.environments:make_stateless_counter", "7"]
    assert main(endless) == 1
    assert (
        "no limit of steps that Gymnasium knows, and Counter offers no get_state()"
        in capsys.readouterr().err
    )
    assert main([*endless, "--may-cut-episodes"]) == 0
    wrapped = json.dumps({"wrappers": [["gymnasium.wrappers.NormalizeReward", {}]]})
    assert main(["Pendulum-v1", "4", "auto", wrapped]) == 1
    assert "wrapper NormalizeReward keeps moments across episodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ID, STEPS"),
        (["Pendulum-v1"], "required: STEPS"),
        (
            ["Pendulum-v1", "many"],
            "'many' is not allowed; allowed: a whole number from 1 to 1,000,000",
        ),
        (["Pendulum-v1", "0"], "'0' is not allowed"),
        (["Pendulum-v1", "4", "colour"], "'colour' (choose from"),
        (
            ["Pendulum-v1", "4", "auto", "{"],
            "'{' is not allowed; allowed: a JSON object with some of kwargs, wrappers",
        ),
        (["Pendulum-v1", "4", "auto", '{"speed": 1}'], "is not allowed; allowed: a JSON object"),
        (["Pendulum-v1", "4", "auto", "{}", "more"], "unrecognized arguments: more"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert words in capsys.readouterr().err


def test_its_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "examples:\n  python -m lambda_actor.check Hopper-v5 64\n" in capsys.readouterr().out


def test_a_state_that_leaves_something_out_is_found() -> None:
    with pytest.raises(UnusableEnvironmentError, match="continues differently elsewhere"):
        check("tests.lambda_actor.test_check:make_forgetful", 8)


@pytest.mark.parametrize(
    ("environment_id", "options", "words"),
    [
        (
            "tests.training.test_trial:Broken",
            {"kwargs": {"error": "RuntimeError"}},
            [
                "it raised when it was tried: RuntimeError: the motor is on fire, in ",
                "test_trial.py, line ",
            ],
        ),
        (
            "tests.training.test_trial:make_old",
            {},
            [
                "Old.reset() takes no seed and no options, in ",
                "def reset(self, *, seed=None, options=None)",
            ],
        ),
    ],
)
def test_what_raises_is_told_in_one_line_as_train_tells_it(
    capsys: pytest.CaptureFixture[str],
    environment_id: str,
    options: dict[str, object],
    words: list[str],
) -> None:
    assert main([environment_id, "4", "auto", json.dumps(options)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"an actor cannot act: environment.id = '{environment_id}': ")
    assert all(word in line for word in words)
    with pytest.raises(ExperimentError) as trained:
        try_environment(environment_id, options=options, fragment_steps=4)
    assert line == f"an actor cannot act: {trained.value}"


def test_warnings_come_first_and_a_dropped_episode_is_one() -> None:
    *_, warning, seen = check(
        "tests.training.test_trial:make_random", 64, options={"kwargs": {"what": "reward"}}
    ).splitlines()
    assert warning.startswith(
        "! dropped: each fragment's last, unfinished episode, because no later actor can "
    )
    assert seen.endswith("; no open episode was continued")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "IMPORTED_LATE", ("json", "no_such_library"))
    with pytest.raises(CheckError, match="no_such_library does not import"):
        check("Pendulum-v1", 2)


def test_missing_certificates_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    with pytest.raises(CheckError, match="root certificates"):
        check("Pendulum-v1", 2)


def test_a_game_is_checked_as_it_will_be_preprocessed() -> None:
    assert "an open episode was continued" in check("ALE/Qbert-v5", 4, "none")
    with pytest.raises(UnusableEnvironmentError, match="is no game"):
        check("Pendulum-v1", 4, "atari")


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
    arguments = ["lambda_actor.check", "MountainCarContinuous-v0", "4", "auto"]
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
