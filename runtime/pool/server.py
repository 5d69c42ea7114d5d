"""A pool for a program in another interpreter, such as RLlib's, started by `nitro_rl.integrations.remote_pool`.

    python -m runtime.pool.server CONTROL_FD SETTINGS

Settings are the arguments of `ActorPool` in JSON. Over the inherited socket, each request is one message: JSON, a line
feed, then a WEIGHTS message, a pool's state, or nothing. The JSON has ``do``, and that method's arguments:

    sample, submit   actors, steps; with weights
    collect          what the submitted calls bring
    state            the pool's state
    load_state       with a state
    close            alone: the pool closes, and the process ends

Each answer is a message of JSON, with ``messages`` and ``spent_usd``, then that number of messages: a TRAJECTORY for
each actor, or a state. A failed call is answered with ``error``, the error's class, and ``text``. The first answer
comes unasked once the pool is open, with the environment's spaces and the most actors and steps of a call. The process
ends with the one at the other end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import ActorError
from runtime.errors import RunError
from runtime.pool.pool import ActorPool
from runtime.pool.trajectory import Trajectory
from runtime.processes.inside import connect

CLOSE = b'{"do": "close"}\n'


def message_of(trajectory: Trajectory) -> bytes:
    """Encodes a trajectory of vectors as a TRAJECTORY message, without an open episode."""
    arrays = {
        name: getattr(trajectory, name)
        for name in (
            "observations",
            "actions",
            "log_probs",
            "rewards",
            "terminated",
            "truncated",
            "bootstrap_steps",
            "bootstrap_observations",
            "episode_returns",
            "episode_lengths",
        )
    }
    if trajectory.action_masks is not None:
        arrays["action_masks"] = trajectory.action_masks
    return wire.encode(
        wire.Kind.TRAJECTORY,
        {
            **arrays,
            "round_index": np.array(trajectory.call),
            "slot": np.array(trajectory.slot),
            "policy_version": np.array(trajectory.policy_version),
            "invocation_id": wire.text_field(""),
            "episode_first_versions": np.full(
                len(trajectory.episode_returns), trajectory.policy_version
            ),
            "continued_episode": wire.text_field(trajectory.continued_episode),
            "open_episode": wire.text_field(""),
        },
    )


def answer_to(pool: ActorPool, request: bytes) -> list[bytes]:
    """Executes a request, and returns the messages of its answer.

    Raises:
        RunError, ActorError: It fails, or is not a request.
    """
    head, _, body = request.partition(b"\n")
    try:
        asked = json.loads(head)
        do, arguments = (
            asked.pop("do"),
            {name: asked[name] for name in ("actors", "steps") if name in asked},
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise RunError(f"this is no request of a pool: {type(error).__name__}: {error}") from None
    match do:
        case "sample" if arguments:
            return [message_of(one) for one in pool.sample(body, **arguments)]
        case "submit" if arguments:
            pool.submit(body, **arguments)
        case "collect":
            return [
                message_of(one)
                for one in sorted(_collected(pool), key=lambda one: (one.call, one.slot))
            ]
        case "state":
            return [pool.state()]
        case "load_state":
            pool.load_state(body)
        case _:
            raise RunError(f"do = {do!r} with {sorted(arguments)} is no request of a pool")
    return []


def _collected(pool: ActorPool) -> list[Trajectory]:
    """What submitted calls bring; if some brought nothing, the others' are for the next request."""
    found = []
    try:
        for one in pool.as_completed():
            found.append(one)
    except RunError:
        pool._give_back(found)
        raise
    return found


def main(control_fd: int, settings: Mapping[str, Any]) -> None:
    """Answers requests until asked to close, or the other end hangs up."""
    connection, requests = connect(control_fd)

    def tell(head: Mapping[str, Any], messages: list[bytes]) -> None:
        for message in (json.dumps({**head, "messages": len(messages)}).encode(), *messages):
            connection.send_bytes(message)

    def refuse(error: Exception, spent_usd: float) -> None:
        tell({"error": type(error).__name__, "text": str(error), "spent_usd": spent_usd}, [])

    try:
        pool = ActorPool(**settings, is_quiet=True)
        if pool.spaces.is_pixels:
            pool.close()
            raise RunError(
                f"observations of {pool.spaces.observation_shape} are pixels; allowed here: vectors"
            )
    except (RunError, ActorError) as error:
        return refuse(error, 0.0)
    with pool:
        tell(
            {
                "spaces": asdict(pool.spaces),
                "actors_max": pool.actors_max,
                "steps_max": pool.steps_max,
                "spent_usd": pool.spent_usd,
            },
            [],
        )
        while (request := requests.get()) != CLOSE:
            try:
                messages = answer_to(pool, request)
                tell({"spent_usd": pool.spent_usd}, messages)
            except (RunError, ActorError) as error:
                refuse(error, pool.spent_usd)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
