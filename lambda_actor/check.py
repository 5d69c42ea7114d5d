"""Tries an environment, and the actor image while it is built: ``python -m lambda_actor.check ID STEPS``.

An image that cannot act would otherwise be found out by the first round, with everything else already paid for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import ssl
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.episode_state import spanning_wrapper
from lambda_actor.errors import ActorError, EpisodeReplayError, EpisodeStateError
from lambda_actor.making import OPTIONS, PREPROCESSINGS
from lambda_actor.policy import Policy, default_network, parameter_shapes
from lambda_actor.replay import ReplayedEnvironment, check_continuation, continuation
from lambda_actor.rollout import Environment, Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces

IMPORTED_LATE = ("awslambdaric.bootstrap", "botocore.auth", "botocore.session", "lambda_actor.handler")
"""What runs, signs and serves in Lambda, but is imported by none of the modules here."""


STEPS_MAX = 1_000_000
"""As of ``actor.fragment_steps``."""


class CheckError(ActorError):
    """The image cannot do what an actor does."""


def check(
    environment_id: str, steps: int, preprocessing: str = "auto", options: Mapping[str, Any] | None = None, *,
    may_cut_episodes: bool = False,
) -> str:
    """Does everything that an actor does but talk to a cache; returns what was seen, for people.

    Args:
        steps: Of each fragment.
        preprocessing: ``environment.preprocessing``.
        options: How it is made besides; see `lambda_actor.making.OPTIONS`.
        may_cut_episodes: Whether an open episode need not be continued, as with ``environment.truncate_at_fragment``.

    Raises:
        CheckError: An import or the certificates are missing, a wrapper keeps something across episodes, or an open
            episode cannot be continued, or not as it would go on unbroken.
        ActorError: The environment cannot be made, or its fragment is not sound.
    """
    _check_imports()
    _check_certificates()

    def make() -> ActorEnvironment:
        return make_environment(environment_id, preprocessing, options)

    environment = make()
    if name := spanning_wrapper(environment.gymnasium_environment):
        raise CheckError(f"{environment_id}: wrapper {name} keeps moments across episodes, so that each actor would "
                         "see something else; allowed: without it")
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
        told = f"an open episode cannot be continued: {environment.cannot_save_reason}, and {error}"
        if may_cut_episodes:
            return f"{seen}; {told}"
        raise CheckError(f"{environment_id}: {told}; allowed: get_state() and set_state(state) in the environment, or "
                         "environment.truncate_at_fragment: true in the experiment file") from error
    return f"{seen}; an open episode was replayed"


def random_policy(environment: Environment) -> Policy:
    """A policy for it, read from a message as an actor reads it."""
    return Policy.from_bytes(random_weights(environment.spaces))


def random_weights(spaces: Spaces) -> bytes:
    """A weights message of a policy of full size, with small random weights."""
    network, moments = default_network(spaces), spaces.vector_size
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
    try:
        check_continuation(*(continuation(one, fragment.actions) for one in (environment, fresh)))
    except EpisodeStateError as error:
        raise CheckError(f"{environment.environment_id}: {error}") from error


_DESCRIPTION = """\
Do with an environment everything that an actor does, except for the cache, and say what is wrong.

examples:
  python -m lambda_actor.check Hopper-v5 64
  python -m lambda_actor.check my_package.environments:make 256
  python -m lambda_actor.check ALE/Breakout-v5 64 none '{"max_episode_steps": 1000}'"""


def main(arguments: list[str]) -> int:
    """Prints what was seen; 1 if an actor could not act."""
    parser = argparse.ArgumentParser(
        prog="python -m lambda_actor.check", usage="%(prog)s ID STEPS [PREPROCESSING [OPTIONS]] [--may-cut-episodes]",
        description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes:\n  0 an actor can act in it, 1 it cannot, 2 the arguments are wrong")
    parser.add_argument("environment_id", metavar="ID", help="environment.id of the experiment file")
    parser.add_argument("steps", type=_steps, metavar="STEPS", help="steps that are played, as actor.fragment_steps")
    parser.add_argument("preprocessing", nargs="?", choices=PREPROCESSINGS, default="auto", metavar="PREPROCESSING",
                        help=f"environment.preprocessing: {' | '.join(PREPROCESSINGS)} (default: auto)")
    parser.add_argument("options", nargs="?", type=_options, default={}, metavar="OPTIONS",
                        help=f"how it is made besides, as a JSON object of {', '.join(OPTIONS)} (default: {{}})")
    parser.add_argument("--may-cut-episodes", action="store_true", help="accept that open episodes cannot be "
                        "continued, as environment.truncate_at_fragment does (default: not)")
    asked = parser.parse_args(arguments)
    try:
        print(check(asked.environment_id, asked.steps, asked.preprocessing, asked.options,
                    may_cut_episodes=asked.may_cut_episodes))
    except ActorError as error:
        print(f"an actor cannot act: {error}", file=sys.stderr)
        return 1
    return 0


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= STEPS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from 1 to {STEPS_MAX:,}")
    return int(text)


def _options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.keys() - set(OPTIONS):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a JSON object with some of "
                                         + ", ".join(OPTIONS))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
