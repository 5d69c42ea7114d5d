"""Tries an environment, and the actor image while it is built: ``python -m lambda_actor.check ID STEPS``.

Otherwise the first round would discover an image that cannot act, with everything else already paid for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import ssl
import sys
from collections.abc import Mapping
from typing import Any

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from lambda_actor.making import OPTIONS, PREPROCESSINGS

IMPORTED_LATE = (
    "awslambdaric.bootstrap",
    "botocore.auth",
    "botocore.session",
    "lambda_actor.handler",
)
"""Modules that run, sign and serve in Lambda, but that no module here imports."""


class CheckError(ActorError):
    """The image cannot do an actor's work."""


def check(
    environment_id: str,
    steps: int,
    preprocessing: str = "auto",
    options: Mapping[str, Any] | None = None,
    *,
    may_cut_episodes: bool = False,
) -> str:
    """Does everything that an actor does, except talking to a cache. Returns a description for users.

    Args:
        steps: ``actor.fragment_steps``.
        preprocessing: ``environment.preprocessing``.
        options: Further options for making it; see `lambda_actor.making.OPTIONS`.
        may_cut_episodes: Whether open episodes may be cut, as with ``environment.truncate_at_fragment``.

    Raises:
        CheckError: An import or the certificates are missing, or the environment raises or returns something unusable.
        ActorError: The environment cannot be made, or an open episode cannot be continued and may be longer than a
            fragment.
    """
    _check_imports()
    _check_certificates()

    def make() -> ActorEnvironment:
        return make_environment(environment_id, preprocessing, options)

    environment = make()
    try:
        known = trial.facts(environment)
        played = trial.play(environment, make, steps=steps)
        differs = trial.go_on(make(), **played) if played["episode"] else trial.NOTHING_DIFFERS
    except (Exception, SystemExit) as error:
        raise CheckError(trial.explained(environment_id, error)) from error
    tried = trial.conclude(known, played, differs)
    warnings = tried.warnings
    how = (
        "an open episode was continued"
        if played["saved"]
        else "an open episode was replayed"
        if played["episode"]
        else "no episode was left open"
    )
    if tried.state_bytes:
        how += f", because {tried.cannot_save_reason}"
    if may_cut_episodes:
        how = tried.obstacle()[0] or how
    elif problem := tried.dropped_because(steps):
        warnings["dropped"], how = trial.dropped(problem), "no open episode was continued"
    seen = f"{environment_id}: {played['steps']:,} steps, mean reward {played['mean_reward']:.4g}; {how}"
    return "\n".join([*(f"! {name}: {text}" for name, text in warnings.items()), seen])


def _check_imports() -> None:
    for name in IMPORTED_LATE:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise CheckError(f"{name} does not import: {error}") from error


def _check_certificates() -> None:
    """Checks that root certificates exist, without which no cache can be trusted."""
    if not ssl.create_default_context().cert_store_stats()["x509_ca"]:
        raise CheckError("there are no root certificates; install ca-certificates")


def main(arguments: list[str]) -> int:
    """Prints the description. Returns 1 if an actor could not act."""
    parser = argparse.ArgumentParser(
        prog="python -m lambda_actor.check",
        description="Do with an environment everything that an actor does, except for the cache.",
    )
    parser.add_argument("environment_id", metavar="ID", help="as environment.id")
    parser.add_argument("steps", type=int, metavar="STEPS", help="as actor.fragment_steps")
    parser.add_argument("preprocessing", nargs="?", choices=PREPROCESSINGS, default="auto")
    parser.add_argument(
        "options",
        nargs="?",
        type=json.loads,
        default={},
        metavar="OPTIONS",
        help=f"a JSON object of {', '.join(OPTIONS)}",
    )
    parser.add_argument(
        "--may-cut-episodes", action="store_true", help="as environment.truncate_at_fragment"
    )
    asked = parser.parse_args(arguments)
    try:
        print(
            check(
                asked.environment_id,
                asked.steps,
                asked.preprocessing,
                asked.options,
                may_cut_episodes=asked.may_cut_episodes,
            )
        )
    except ActorError as error:
        print(f"an actor cannot act: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
