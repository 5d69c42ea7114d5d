"""Tries an environment, also while an image is built: ``python -m lambda_actor.check ID STEPS``.

Otherwise the first round would discover an image that cannot act, with everything else already paid for.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import SemLock
from typing import Any, NoReturn

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from lambda_actor.guarding import (
    CLOSE_S,
    TimeIsUp,
    close_environments,
    closed_in_time,
    guard,
    time_limit,
)
from lambda_actor.making import OPTIONS
from lambda_actor.output import report_ignored_once

KEYS = ("preprocessing", "truncate_at_fragment", *OPTIONS)
"""Keys of an experiment's section ``environment`` that the check takes."""
PATIENCE_S = 600
"""Seconds after which a check that still runs ends, and prints where it is."""
_SECOND_S = 60
"""Seconds for making a second environment, which may wait for the first one's port or licence."""


class CheckError(ActorError):
    """No actor can play the environment."""


def check(environment_id: str, steps: int, section: Mapping[str, Any] | None = None) -> str:
    """Does everything that an actor does, except talking to a cache. Returns a description for users.

    Args:
        steps: ``actor.fragment_steps``.
        section: Some of `KEYS`, as they are written in an experiment file.

    Raises:
        CheckError: The environment raises or returns something unusable.
        ActorError: It cannot be made, or an open episode cannot be continued and may be longer than a fragment.
    """
    options = dict(section or {})
    preprocessing = options.pop("preprocessing", "auto")
    is_cut = options.pop("truncate_at_fragment", False)

    def make() -> ActorEnvironment:
        return make_environment(environment_id, preprocessing, options)

    environment = make()
    known = trial.facts(environment)
    if not is_cut:
        # Before a slow simulator plays.
        trial.TriedEnvironment(**known).dropped_because(steps)
    try:
        # A simulator that cannot exist twice may then be free.
        with closed_in_time(environment):
            played = trial.play(environment, make, steps=steps)
        differs = _continued(make, played) if played["episode"] else {}
    except (Exception, SystemExit) as error:
        raise CheckError(trial.explained(environment_id, error)) from error
    tried = trial.conclude(known, played, differs)
    warnings = tried.warnings
    problem = tried.obstacle()[0] if is_cut else tried.dropped_because(steps)
    if problem and not is_cut:
        warnings["dropped"] = trial.dropped(problem)
    if not played["episode"]:
        how = "no episode was left open"
    elif tried.single_because:
        how = f"no open episode was continued, because no second one can be made: {tried.single_because}"
    elif problem:
        how = "no open episode was continued"
    elif tried.can_save_episode:
        how = "an open episode was continued"
    else:
        how = f"an open episode was replayed, because {tried.cannot_save_reason}"
    fewer = f" of {steps:,}, because they are slow" if played["steps"] < steps else ""
    seen = f"{environment_id}: {played['steps']:,} steps{fewer}, mean reward {played['mean_reward']:.4g}; {how}"
    return "\n".join([*(f"! {name}: {text}" for name, text in warnings.items()), seen])


def _continued(
    make: Callable[[], ActorEnvironment], played: Mapping[str, Any]
) -> Mapping[str, str]:
    """Continues an episode in another environment, if there can be one."""
    try:
        with time_limit(_SECOND_S):
            environment = make()
    except TimeIsUp:
        return {"single_because": f"it was still being made after {_SECOND_S} s"}
    except ActorError as error:
        return {"single_because": str(error)}
    with closed_in_time(environment):
        return trial.go_on(environment, **played)


def _refuse_shared_memory() -> None:
    """Makes this process like Lambda, which has no /dev/shm. Calls from C are not seen."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSYS, "not on Lambda, which lacks /dev/shm")

    for needs_it in (SemLock, SharedMemory):
        needs_it.__init__ = refuse  # type: ignore[method-assign]  # what the kernel would do


def main(arguments: list[str]) -> int:
    """Prints the description. Returns 1 if an actor could not act."""
    parser = argparse.ArgumentParser(
        prog="python -m lambda_actor.check",
        description="Do with an environment everything that an actor does, except for the cache.",
    )
    parser.add_argument(
        "--lambda",
        dest="is_on_lambda",
        action="store_true",
        help="refuse Python's semaphores and shared memory, as Lambda does",
    )
    parser.add_argument("environment_id", metavar="ID", help="as environment.id")
    parser.add_argument("steps", type=int, metavar="STEPS", help="as actor.fragment_steps")
    parser.add_argument(
        "section",
        nargs="?",
        type=json.loads,
        metavar="ENVIRONMENT",
        help=f"a JSON object of other keys of the section environment: {', '.join(KEYS)}",
    )
    report_ignored_once()
    parsed = vars(parser.parse_args(arguments))
    if parsed.pop("is_on_lambda"):
        _refuse_shared_memory()
    try:
        print(check(**parsed))
    except ActorError as error:
        print(f"an actor cannot act: {error}", file=sys.stderr)
        return 1
    return 0


def run(arguments: list[str]) -> NoReturn:
    """Checks in a process of its own, and ends it, with all that the environment has started."""
    guard()
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    code = main(arguments)
    sys.stdout.flush()
    threading.Timer(CLOSE_S, os._exit, [code]).start()
    close_environments()
    # Threads and programs of the environment may still run.
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1:])
