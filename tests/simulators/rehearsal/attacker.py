"""An actor function in which one actor per round attacks, with and beyond its rights as a user of the cache.

Each attempt adds a line to the file that ATTACKS_VARIABLE names, with whether it was refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from lambda_actor.credentials import connection_options
from lambda_actor.handler import handler as act
from tests.simulators.rehearsal import ATTACKS_VARIABLE

_OVERSIZED_BYTES = 64 * 2**20
_FLOOD = 2000
Attack = Callable[[redis.Redis, Callable[[str], str], dict[str, Any]], Any]
STORED: dict[str, Attack] = {
    "garbage": lambda cache, key, event: cache.set(
        key(f"trajectory:{event['invocation_id']}"), os.urandom(2**16)
    ),
    "oversized": lambda cache, key, event: cache.set(
        key(f"trajectory:{event['invocation_id']}"), bytes(_OVERSIZED_BYTES)
    ),
    "somebody else's": lambda cache, key, event: cache.set(
        key(f"trajectory:{_neighbour(event)}"), b"not yours"
    ),
    "flood": lambda cache, key, event: [
        cache.set(key(f"trajectory:{event['invocation_id']}-{number}"), bytes(1024))
        for number in range(_FLOOD)
    ],
    "forged stop word": lambda cache, key, event: cache.set(key("stop"), event["stop_digest"]),
    # Rights of Redis 6, which are all that ElastiCache documents, do not tell reading a key from writing it.
    "weights": lambda cache, key, event: cache.set(
        key(f"weights:{event['policy_version']}"), b"mine"
    ),
    "episode": lambda cache, key, event: cache.set(key("episode:mine"), b"mine"),
    "reading": lambda cache, key, event: cache.get(key(f"trajectory:{_neighbour(event)}")),
}
"""Attacks that the cache permits, and the learner must withstand."""
ATTACKS: dict[str, Attack] = {
    **STORED,
    "other weights": lambda cache, key, event: cache.delete(
        key(f"weights:{event['policy_version']}")
    ),
    "closing a door": lambda cache, key, event: cache.delete(
        key(f"trajectory:{_neighbour(event)}")
    ),
    "names": lambda cache, key, event: cache.keys("*"),
    "emptying": lambda cache, key, event: cache.flushall(),
    "a script": lambda cache, key, event: cache.eval("while true do end", 0),
    "settings": lambda cache, key, event: cache.config_set("maxmemory", 1),
    "users": lambda cache, key, event: cache.acl_setuser(
        "mine", enabled=True, nopass=True, commands=["+@all"]
    ),
}


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Does the actor's work. The first try of slot 0 also attacks."""
    if event.get("slot") != 0 or not event["invocation_id"].endswith("-0-0"):
        return act(event, context)
    done = act(event, context)
    cache = redis.Redis.from_url(
        event["cache_url"], driver_info=None, **connection_options(event["cache_credential"])
    )
    # Two attacks spoil its own trajectory. One per round, so that the test sees each refused.
    spoilt = ("garbage", "oversized")[event["round_index"] % 2]
    with Path(os.environ[ATTACKS_VARIABLE]).open("a") as file:
        for name, attack in ATTACKS.items():
            if name == spoilt or name not in ("garbage", "oversized"):
                file.write(
                    json.dumps({"attack": name, "refused": _is_refused(attack, cache, event)})
                    + "\n"
                )
    return {**done, "status": "accepted", "env_steps": 10**9}


def _is_refused(attack: Attack, cache: redis.Redis, event: dict[str, Any]) -> bool:
    try:
        attack(cache, lambda name: f"{{{event['run_id']}}}:{name}", event)
    except redis.ResponseError:
        return True
    return False


def _neighbour(event: dict[str, Any]) -> str:
    """Returns the first try of slot 1 in the same round."""
    return f"{event['invocation_id'].removesuffix('-0-0')}-1-0"
