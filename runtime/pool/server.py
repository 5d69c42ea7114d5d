"""A pool for a program in another interpreter, such as RLlib's, started by `nitro_rl.integrations.remote_pool`.

    python -m runtime.pool.server CONTROL_FD SETTINGS

Settings are the arguments of `ActorPool` in JSON. Over the inherited socket, a request is two messages: JSON with
``do`` and that method's arguments, then a policy, a pool's state, or nothing. An answer is a message of JSON, with
``messages`` and ``spent_usd``, then that number of messages: a trajectory for each actor, or a state. A failed call is
answered with ``error``, the error's class, and ``text``. The first answer comes unasked once the pool is open. The
process ends with the one at the other end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lambda_actor.errors import ActorError
from runtime.errors import RunError
from runtime.fleet.processes import connect
from runtime.pool.pool import ActorPool


def main(control_fd: int, settings: Mapping[str, Any]) -> None:
    """Answers requests until asked to close, or the other end hangs up."""
    connection, messages = connect(control_fd)

    def send(head: Mapping[str, Any], spent_usd: float, bodies: list[bytes]) -> None:
        fields = {**head, "spent_usd": spent_usd, "messages": len(bodies)}
        for message in (json.dumps(fields).encode(), *bodies):
            connection.send_bytes(message)

    def refuse(error: Exception, spent_usd: float) -> None:
        send({"error": type(error).__name__, "text": str(error)}, spent_usd, [])

    try:
        pool = ActorPool(**settings, is_quiet=True)
    except (RunError, ActorError) as error:
        return refuse(error, 0.0)
    with pool:
        limits = {"actors_max": pool.actors_max, "steps_max": pool.steps_max}
        send({"spaces": asdict(pool.spaces), **limits}, pool.spent_usd, [])
        while (request := json.loads(messages.get()))["do"] != "close":
            body = messages.get()
            answer = list[bytes]()
            try:
                match request:
                    case {"do": "sample", "actors": actors, "steps": steps}:
                        answer = [
                            trajectory.to_bytes()
                            for trajectory in pool.sample(body, actors=actors, steps=steps)
                        ]
                    case {"do": "submit", "actors": actors, "steps": steps}:
                        pool.submit(body, actors=actors, steps=steps)
                    case {"do": "collect"}:
                        answer = [trajectory.to_bytes() for trajectory in pool.collect()]
                    case {"do": "state"}:
                        answer = [pool.state()]
                    case {"do": "load_state"}:
                        pool.load_state(body)
                send({}, pool.spent_usd, answer)
            except (RunError, ActorError) as error:
                refuse(error, pool.spent_usd)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
