"""Tries the actor image while it is built: ``python -m lambda_actor.check ID STEPS [PREPROCESSING [OPTIONS]]``.

An image that cannot act would otherwise be found out by the first round, with everything else already paid for.
"""

from __future__ import annotations

import importlib
import json
import ssl
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError, EpisodeReplayError
from lambda_actor.policy import Policy, parameter_shapes
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import Environment, Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces

IMPORTED_LATE = ("awslambdaric.bootstrap", "botocore.auth", "botocore.session", "lambda_actor.handler")
"""What runs, signs and serves in Lambda, but is imported by none of the modules here."""


class CheckError(ActorError):
    """The image cannot do what an actor does."""


def check(
    environment_id: str, steps: int, preprocessing: str = "auto", options: Mapping[str, Any] | None = None
) -> str:
    """Does everything that an actor does but talk to a cache; returns what was seen, for people.

    Args:
        steps: Of each fragment.
        preprocessing: ``environment.preprocessing``.
        options: How it is made besides; see `lambda_actor.making.OPTIONS`.

    Raises:
        CheckError: An import or the certificates are missing, or a continued episode differs from an unbroken one.
        ActorError: The environment cannot be made, or its fragment is not sound.
    """
    _check_imports()
    _check_certificates()

    def make() -> ActorEnvironment:
        return make_environment(environment_id, preprocessing, options)

    environment = make()
    used: Environment = environment if environment.can_save_episode else ReplayedEnvironment(make, is_made_anew=True)
    fragment = roll_out(used, random_policy(used), fragment_steps=steps, seed=0, round_index=0, slot=0)
    seen = f"{environment_id}: {steps} steps, mean reward {fragment.rewards.mean():.4g}"
    if fragment.open_episode is None:
        return f"{seen}; its episode ended with the fragment, so none was continued"
    if environment.can_save_episode:
        _check_continuation(environment, make(), fragment, fragment.open_episode)
        return f"{seen}; an open episode was continued"
    try:
        ReplayedEnvironment(make, is_made_anew=True).set_state(fragment.open_episode.state)
    except EpisodeReplayError as error:
        return f"{seen}; an open episode cannot be continued: {environment.cannot_save_reason}, and {error}"
    return f"{seen}; an open episode was replayed"


def random_policy(environment: Environment) -> Policy:
    """A policy for it, read from a message as an actor reads it."""
    return Policy.from_bytes(random_weights(environment.spaces))


def random_weights(spaces: Spaces) -> bytes:
    """A weights message of a policy of full size, with small random weights."""
    network = "conv" if spaces.is_pixels else "mlp"
    moments = 0 if spaces.is_pixels else spaces.observation_size
    draw = np.random.default_rng(0)
    return wire.encode(wire.Kind.WEIGHTS, {
        "policy_version": np.array(0, np.int64),
        "network": wire.text_field(network),
        "distribution": wire.text_field(spaces.distribution),
        "log_std": np.full(spaces.action_size, -1.0, np.float32),
        "observation_mean": np.zeros(moments, np.float32),
        "observation_std": np.ones(moments, np.float32),
        "observation_clip": np.array(10.0, np.float32),
        **{name: draw.normal(0.0, 0.1 if name.endswith("weight") else 0.0, shape).astype(np.float32)
           for name, shape in parameter_shapes(spaces, network).items()},
    })


def _check_imports() -> None:
    for name in IMPORTED_LATE:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise CheckError(f"{name} does not import: {error}") from error


def _check_certificates() -> None:
    """Else no cache could be trusted."""
    if not ssl.create_default_context().cert_store_stats()["x509_ca"]:
        raise CheckError("there are no root certificates; install ca-certificates")


def _check_continuation(
    environment: ActorEnvironment, fresh: ActorEnvironment, fragment: Fragment, open_episode: OpenEpisode
) -> None:
    """The open episode must go on in a fresh environment as it does where it was left open."""
    episode = OpenEpisode.from_bytes(open_episode.to_bytes())
    fresh.set_state(episode.state)
    for action in fragment.actions:
        (observation, *here), (restored, *there) = environment.step(action), fresh.step(action)
        if here != there or not np.array_equal(observation, restored):
            raise CheckError(f"{environment.environment_id}: a saved episode goes on differently elsewhere: "
                             "get_state() leaves something out")
        if here[1] or here[2]:
            return


def main(arguments: list[str]) -> int:
    """Prints what was seen; 1 if an actor could not act."""
    environment_id, steps, preprocessing, options = [*arguments, *("auto", "{}")[len(arguments) - 2:]]
    try:
        print(check(environment_id, int(steps), preprocessing, json.loads(options)))
    except ActorError as error:
        print(f"the actor image does not work: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
