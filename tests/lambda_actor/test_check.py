"""The check, during the build, that the actor image runs."""

from __future__ import annotations

import pytest

from lambda_actor.check import check, main
from lambda_actor.errors import UnusableEnvironmentError
from tests.environments import Counter, StatefulCounter


class ForgetfulCounter(StatefulCounter):
    """Saves only part of its state."""

    def get_state(self) -> dict[str, object]:
        return {"count": self.count, "start": 0.5}


class EndlessCounter(Counter):
    """Has no limit of steps, which is known before it plays any."""

    def step(self, action):
        raise AssertionError("played")


def make_endless() -> EndlessCounter:
    return EndlessCounter(episode_steps=None)


def make_forgetful() -> ForgetfulCounter:
    return ForgetfulCounter(episode_steps=1000)


@pytest.mark.parametrize(
    ("environment_id", "steps", "seen"),
    [
        ("tests.environments:make_counter", 10, "an open episode was continued"),
        ("tests.training.test_trial:make_long", 7, "an open episode was replayed, because "),
    ],
)
def test_what_works_is_told(environment_id: str, steps: int, seen: str) -> None:
    told = check(environment_id, steps)
    assert told.startswith(f"{environment_id}: {steps} steps, mean reward ")
    assert seen in told


def test_what_train_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{__name__}:make_endless", "7"]) == 1
    assert (
        "no limit of steps that Gymnasium knows, and EndlessCounter offers no get_state()"
        in capsys.readouterr().err
    )


def test_a_state_that_leaves_something_out_is_found() -> None:
    with pytest.raises(UnusableEnvironmentError, match="continues differently elsewhere"):
        check("tests.lambda_actor.test_check:make_forgetful", 8)


def test_its_exit_code_ends_the_image_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert [main([name, "4"]) for name in ("Pendulum-v1", "NoSuch-v0")] == [0, 1]
    captured = capsys.readouterr()
    assert "Pendulum-v1" in captured.out
    assert captured.err.startswith("an actor cannot act: environment.id = 'NoSuch-v0'")
