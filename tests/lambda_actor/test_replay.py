"""Replayed episodes continue unchanged, held ones replay nothing, and every difference is detected."""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from lambda_actor import handler as module
from lambda_actor.environments import make_environment
from lambda_actor.errors import EpisodeReplayError
from lambda_actor.handler import Sandbox, handler
from lambda_actor.inline import to_text
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import OpenEpisode
from tests.environments import Counter
from tests.lambda_actor.test_handler import make_event, weights

COUNTER = "tests.environments:make_stateless_counter"
WALKER = "BipedalWalker-v3"


class Liar(Counter):
    """From the third step on, observations reveal how many environments have been made."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Liar.made += 1

    def _observation(self) -> np.ndarray:
        return super()._observation() + (Liar.made if self.count > 2 else 0)


def make_liar() -> gymnasium.Env:
    return Liar()


def replayed(environment_id: str = COUNTER, *, is_made_anew: bool = False) -> ReplayedEnvironment:
    return ReplayedEnvironment(lambda: make_environment(environment_id), is_made_anew=is_made_anew)


def played(environment: ReplayedEnvironment, steps: int, seed: int = 5) -> OpenEpisode:
    """Returns an open episode of this many steps, as it is sent."""
    environment.reset(seed)
    for step in range(steps):
        environment.step(action(environment, step))
    return sent(environment)


def sent(environment: ReplayedEnvironment) -> OpenEpisode:
    return OpenEpisode.from_bytes(
        OpenEpisode(np.zeros(2, np.float32), environment.get_state(), 0.0, 1, 0).to_bytes()
    )


def action(environment: ReplayedEnvironment, step: int) -> np.ndarray | int:
    draw = np.random.default_rng(step)
    if environment.spaces.is_discrete:
        return int(draw.integers(environment.spaces.action_count))
    return draw.normal(size=environment.spaces.action_size).astype(np.float32)


@pytest.mark.parametrize("environment_id", [COUNTER, WALKER, "Hopper-v5"])
def test_a_replayed_episode_goes_on_as_it_would_have(environment_id: str) -> None:
    first, second = replayed(environment_id), replayed(environment_id)
    episode = played(first, 6)
    second.set_state(episode.state)
    assert second.replayed_steps == 6
    for step in range(6, 9):
        (here, *ours), (there, *theirs) = (one.step(action(one, step)) for one in (first, second))
        np.testing.assert_array_equal(here, there, strict=True)
        assert ours == theirs
    # An episode that continued elsewhere can continue once more.
    played_on = sent(second)
    first.set_state(played_on.state)
    assert first.replayed_steps == 0


def test_a_process_that_left_the_episode_open_replays_nothing_unless_it_has_gone_on() -> None:
    environment = replayed()
    episode = played(environment, 4)
    environment.set_state(episode.state)
    assert environment.replayed_steps == 0
    environment.step(action(environment, 4))
    environment.set_state(episode.state)
    assert environment.replayed_steps == 4
    played(environment, 4, seed=6)
    environment.set_state(episode.state)
    assert environment.replayed_steps == 4
    # The same observations after other actions belong to another episode.
    other = dict(episode.state) | {"actions": episode.state["actions"] + 1.0}
    with pytest.raises(EpisodeReplayError, match="step 1 of 4"):
        environment.set_state(other)


def test_a_walker_differs_in_a_used_environment_and_agrees_in_one_that_is_made_anew() -> None:
    maker, used, anew = (
        replayed(WALKER, is_made_anew=True),
        replayed(WALKER),
        replayed(WALKER, is_made_anew=True),
    )
    episodes = [played(maker, 40, seed) for seed in range(8)]
    for episode in episodes:
        anew.set_state(episode.state)
    with pytest.raises(
        EpisodeReplayError, match="not deterministic, or remembers something across episodes"
    ):
        for episode in episodes:
            used.set_state(episode.state)


def test_a_difference_is_found_at_its_step() -> None:
    episode = played(replayed(f"{__name__}:make_liar"), 5)
    with pytest.raises(EpisodeReplayError, match=r"seed 5 continued differently at step 3 of 5"):
        replayed(f"{__name__}:make_liar").set_state(episode.state)


def test_the_handler_tells_how_many_steps_were_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    event = make_event(
        "",
        "run",
        environment_id=COUNTER,
        fragment_steps=7,
        replay="reset",
        weights=to_text(weights()),
        episode="",
    )
    first = handler(event, None)
    assert first["replayed_steps"] == 0
    episode = played(module.sandbox.environments[0], 3)
    going_on = {**event, "episode_id": "r1-0", "episode": to_text(episode.to_bytes())}
    held = handler(going_on, None)
    monkeypatch.setattr(module, "sandbox", Sandbox())
    elsewhere = handler(going_on, None)
    assert (held["replayed_steps"], elsewhere["replayed_steps"]) == (0, 3)
    assert held["trajectory"] == elsewhere["trajectory"]
