"""Proves, before anything starts, that an environment's open episodes can be continued by replaying them.

A run leaves episodes open in one process and continues them in another. So an episode is begun here, and replayed in a
new process: if observations and rewards differ, the environment is not deterministic. Then some are replayed in one
environment after the other: if they differ there, each episode needs an environment of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from tempfile import TemporaryFile

from lambda_actor.check import random_policy
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.episode_state import spanning_wrapper
from lambda_actor.errors import ActorError, EpisodeReplayError, told
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import OpenEpisode, roll_out
from runtime.errors import ExperimentError, RunError, one_line
from runtime.fleet.local import process_variables

_FRAGMENTS, _STEPS_MAX, _TIMEOUT_S = 6, 256, 600


def check_wrappers(environment: ActorEnvironment) -> None:
    """Checks that no wrapper remembers anything across episodes.

    Raises:
        ExperimentError: One does.
    """
    if name := spanning_wrapper(environment.gymnasium_environment):
        raise ExperimentError(
            f"environment.id = {environment.environment_id!r}: wrapper {name} keeps moments across episodes, so that "
            "each actor would see something else; allowed: without it, as algorithm.*.normalize_observations and "
            "normalize_rewards do the same for all actors at once")


@cache
def prove_replay(made: str, fragment_steps: int) -> str:
    """Returns how episodes are replayed: ``reset``, or ``anew`` if each needs an environment of its own.

    Args:
        made: The arguments of `make_environment`, as JSON.
        fragment_steps: ``actor.fragment_steps``; episodes of so many steps are replayed, of 256 at most.

    Raises:
        ExperimentError: An episode goes on differently when it is replayed, or the environment raises.
        ActorError: It observes or returns what nobody here can use.
    """
    def make() -> ActorEnvironment:
        return make_environment(*json.loads(made))

    environment_id = json.loads(made)[0]
    environment, used = (ReplayedEnvironment(make, is_made_anew=is_anew) for is_anew in (True, False))
    try:
        episodes = list(_open_episodes(environment, min(fragment_steps, _STEPS_MAX)))
        if episodes:
            _replay_elsewhere(made, max(episodes, key=lambda one: one.length))
        try:
            for episode in episodes:
                used.set_state(episode.state)
        except EpisodeReplayError:
            return "anew"
        return "reset"
    except (RunError, ActorError):
        raise
    except (Exception, SystemExit) as error:
        raise ExperimentError(f"environment.id = {environment_id!r}: it raised when it was tried: "
                              f"{one_line(told(error))}") from error
    finally:
        environment.close()
        used.close()


def _open_episodes(environment: ReplayedEnvironment, steps: int) -> Iterator[OpenEpisode]:
    """Rolls out fragments; yields the episodes that they leave open."""
    policy = random_policy(environment)
    for slot in range(_FRAGMENTS):
        episode = roll_out(environment, policy, fragment_steps=steps, seed=0, round_index=0, slot=slot).open_episode
        if episode is not None:
            yield episode


def _replay_elsewhere(made: str, episode: OpenEpisode) -> None:
    environment_id = json.loads(made)[0]
    # A file, not a pipe: what the environment starts would keep a pipe open.
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "lambda_actor.replay", made], stdin=subprocess.PIPE, stdout=said, stderr=said,
            env=process_variables(), start_new_session=True)
        try:
            process.communicate(episode.to_bytes(), _TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"environment.id = {environment_id!r}: {episode.length} steps were not replayed in "
                                  f"another process within {_TIMEOUT_S} s") from None
        finally:
            # With what the environment has started.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        raise ExperimentError(
            f"environment.id = {environment_id!r}: its episodes cannot be continued by a later actor. In another "
            f"process: {one_line(lines[-1] if lines else f'exit status {process.returncode}')}. Allowed: get_state() "
            "and set_state(state) in the environment, actor.fragment_steps of a whole episode, or "
            "environment.truncate_at_fragment: true")
