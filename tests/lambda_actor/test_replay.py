"""Replayed episodes continue unchanged, held ones replay nothing, and every difference is detected."""

from __future__ import annotations

from typing import Any

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
State = dict[str, np.ndarray]


class Remembering(Counter):
    """From the third step on, observations reveal how many episodes there were before."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def _observation(self) -> np.ndarray:
        return super()._observation() + (self.episodes if self.count > 2 else 0)


def make_remembering() -> gymnasium.Env:
    return Remembering()


def replayed(environment_id: str = COUNTER, *, is_made_anew: bool = False) -> ReplayedEnvironment:
    return ReplayedEnvironment(lambda: make_environment(environment_id), is_made_anew=is_made_anew)


def played(environment: ReplayedEnvironment, steps: int, seed: int = 5) -> State:
    """Returns an open episode of this many steps, as it is sent."""
    environment.reset(seed)
    for step in range(steps):
        environment.step(action(environment, step))
    return sent(environment).state


def sent(environment: ReplayedEnvironment) -> OpenEpisode:
    episode = OpenEpisode(np.zeros(2, np.float32), environment.get_state(), 0.0, 1, 0)
    return OpenEpisode.from_bytes(episode.to_bytes())


def action(environment: ReplayedEnvironment, step: int) -> np.ndarray | int:
    if environment.spaces.is_discrete:
        return step % 2
    draw = np.random.default_rng(step)
    return draw.normal(size=environment.spaces.action_size).astype(np.float32)


@pytest.mark.parametrize("environment_id", [COUNTER, "BipedalWalker-v3", "CartPole-v1"])
def test_a_replayed_episode_goes_on_as_it_would_have(environment_id: str) -> None:
    first, second = replayed(environment_id), replayed(environment_id)
    second.set_state(played(first, 6))
    assert second.replayed_steps == 6
    for step in range(6, 9):
        (here, *ours), (there, *theirs) = (one.step(action(one, step)) for one in (first, second))
        np.testing.assert_array_equal(here, there, strict=True)
        assert ours == theirs
    # An episode that continued elsewhere can continue once more.
    first.set_state(sent(second).state)
    assert first.replayed_steps == 0


def test_a_process_that_left_the_episode_open_replays_nothing_unless_it_has_gone_on() -> None:
    environment = replayed()
    state = played(environment, 4)
    environment.set_state(state)
    assert environment.replayed_steps == 0
    environment.step(action(environment, 4))
    environment.set_state(state)
    assert environment.replayed_steps == 4
    # The same observations after other actions belong to another episode.
    with pytest.raises(EpisodeReplayError, match="step 1 of 4"):
        environment.set_state(state | {"actions": state["actions"] + 1.0})


def test_what_an_environment_remembers_differs_at_its_step_unless_it_is_made_anew() -> None:
    name = f"{__name__}:make_remembering"
    first, anew = replayed(name, is_made_anew=True), replayed(name, is_made_anew=True)
    states = [played(first, 5, seed) for seed in (5, 6)]
    for state in states:
        anew.set_state(state)
    used = replayed(name)
    used.set_state(states[0])
    expected = "seed 6 continued differently at step 3 of 5 .* or remembers something"
    with pytest.raises(EpisodeReplayError, match=expected):
        used.set_state(states[1])


def test_the_handler_tells_how_many_steps_were_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    event = make_event("", "run", environment_id=COUNTER, replay="reset", episode="")
    event |= {"weights": to_text(weights()), "fragment_steps": 7}
    assert handler(event, None)["replayed_steps"] == 0
    played(module.sandbox.environments[0], 3)
    episode = to_text(sent(module.sandbox.environments[0]).to_bytes())
    event |= {"episode_id": "r1-0", "episode": episode}
    held = handler(event, None)
    monkeypatch.setattr(module, "sandbox", Sandbox())
    elsewhere = handler(event, None)
    assert (held["replayed_steps"], elsewhere["replayed_steps"]) == (0, 3)
    assert held["trajectory"] == elsewhere["trajectory"]
