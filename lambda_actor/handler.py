"""The actor function: ``handler(event, context)`` rolls out one fragment and submits it.

The same code runs inside AWS Lambda and in the local fleet's processes. A sandbox keeps its environment, its
connection and the weights of the last policy version between invocations; nothing of it changes what is sampled. So an
environment whose state nobody knows is made anew each time.

The cache's endpoint comes in the event, and where its credential is to be found: an event is logged and retried in
places where a secret must not be. On one machine it is in the variables ``ACTOR_CACHE_USERNAME`` and
``ACTOR_CACHE_PASSWORD``; see `lambda_actor.credentials` for AWS. If there is no cache, the event itself holds the
messages; see `lambda_actor.inline`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError, EventError, RaisingEnvironmentError, raising_frame, told
from lambda_actor.events import check_event
from lambda_actor.inline import INLINE_FIELDS, InlineMessages
from lambda_actor.output import limited_output
from lambda_actor.policy import Policy
from lambda_actor.replay import REPLAYS, ReplayedEnvironment
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out

STOP_FIELDS: dict[str, type] = {
    "run_id": str,
    "cache_url": str,
    "cache_credential": str,
    "cache_ttl_s": int,
    "stop_digest": str,
}
"""What an event must carry whose field ``stop`` is the run's stop word: it tells all actors to give up."""
PREWARM_FIELDS: dict[str, type] = {
    **STOP_FIELDS,
    "invocation_id": str,
    "environment_id": str,
    "preprocessing": str,
}
"""What an event must carry that has a field ``prewarm``: it only proves that an actor can start, and warms it."""
EVENT_FIELDS: dict[str, type] = {
    **PREWARM_FIELDS,
    "truncate_at_fragment": bool,
    "fragment_steps": int,
    "policy_version": int,
    "seed": int,
    "round_index": int,
    "slot": int,
    "episode_id": str,
}
"""What any other event must carry; ``episode_id`` is empty if a fresh episode is to be started,
``cache_credential`` if the variables hold it, and ``cache_url`` if the event holds the messages (`INLINE_FIELDS`).
It may also carry ``environment_options``, as may a ``prewarm`` event, if the environment is made with any
(`lambda_actor.making`), ``replay``, how episodes are replayed if the environment cannot save them (`REPLAYS`), and
``drop_unfinished``, if the steps of an episode that the fragment's end cuts are left out, because no actor can continue
it."""
_OPTIONAL_FIELDS: dict[str, type] = {"environment_options": dict, "replay": str, "drop_unfinished": bool}
OUTPUT_CHARACTERS_MAX = 2000
"""What an environment may print during one invocation; the rest is dropped."""
PREWARMED = "prewarmed"
"""The status that a ``prewarm`` event is answered with."""


class Sandbox:
    """What stays warm between two invocations in one process."""

    def __init__(self) -> None:
        self.environment: ActorEnvironment | ReplayedEnvironment | None = None
        self.environment_key: tuple[str, ...] = ()
        self.cache: TrajectoryCache | None = None
        self.cache_key: tuple[str, ...] = ()
        self.policy: Policy | None = None
        self.policy_key: tuple[str, int] | None = None


sandbox = Sandbox()


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Fetches the event's policy version, rolls out one fragment, submits it under its invocation id.

    Args:
        event: See `EVENT_FIELDS`, `PREWARM_FIELDS` and `STOP_FIELDS`.
        context: Lambda's context object; not used.

    Returns:
        ``invocation_id``, ``status`` (accepted | late), ``env_steps`` (taken, dropped ones too), without a cache
        ``trajectory``, and ``replayed_steps`` if episodes are replayed. For a ``prewarm`` event only ``invocation_id``
        and ``status``: prewarmed; for a ``stop`` event ``status``: stopped.

    Raises:
        EventError: A field is missing or of the wrong type.
        RaisingEnvironmentError: The environment raised, where its own code says.
        ActorError: See `lambda_actor.errors`.
    """
    with limited_output(OUTPUT_CHARACTERS_MAX):
        if "stop" in event:
            return _stop(event)
        if "prewarm" in event:
            return _prewarm(event)
        return _sample(event)


def _sample(event: Mapping[str, Any]) -> dict[str, Any]:
    """Samples a fragment and submits it."""
    check_event(event, EVENT_FIELDS | {name: kind for name, kind in _OPTIONAL_FIELDS.items() if name in event})
    if event["fragment_steps"] < 1:
        raise EventError(f"the event's 'fragment_steps' is {event['fragment_steps']}, not at least 1")
    messages = _messages(event)
    policy = _policy(messages, event)
    open_episode = None
    if event["episode_id"]:
        open_episode = OpenEpisode.from_bytes(messages.fetch_episode(event["episode_id"]))
    fragment = _roll_out(event, policy, open_episode, messages)
    status = messages.submit(
        event["invocation_id"], wire.encode(fragment.kind, trajectory_fields(event, fragment)))
    return {
        "invocation_id": event["invocation_id"],
        "status": status,
        "env_steps": event["fragment_steps"],
        **({"replayed_steps": sandbox.environment.replayed_steps if open_episode else 0}
           if isinstance(sandbox.environment, ReplayedEnvironment) else {}),
        **({"trajectory": messages.trajectory} if isinstance(messages, InlineMessages) else {}),
    }


def _stop(event: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the stop key, for whoever cannot reach the cache."""
    check_event(event, {**STOP_FIELDS, "stop": str})
    _cache(event).stop(event["stop"])
    return {"status": "stopped"}


def _prewarm(event: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the environment and reaches the cache, if there is one, for the invocations to come."""
    check_event(event, PREWARM_FIELDS)
    if event["cache_url"]:
        _cache(event).ping()
    sandbox.environment = _environment(event)
    return {"invocation_id": event["invocation_id"], "status": PREWARMED}


def _messages(event: Mapping[str, Any]) -> TrajectoryCache | InlineMessages:
    if event["cache_url"]:
        return _cache(event)
    check_event(event, INLINE_FIELDS)
    return InlineMessages(event)


def _cache(event: Mapping[str, Any]) -> TrajectoryCache:
    key = (event["cache_url"], event["run_id"], event["stop_digest"])
    if sandbox.cache is None or sandbox.cache_key != key:
        if sandbox.cache is not None:
            sandbox.cache.close()
        sandbox.cache = TrajectoryCache(
            event["cache_url"], event["run_id"],
            username=os.environ.get("ACTOR_CACHE_USERNAME"), password=os.environ.get("ACTOR_CACHE_PASSWORD"),
            credential=event["cache_credential"], ttl_s=event["cache_ttl_s"], digest=event["stop_digest"],
        )
        sandbox.cache_key = key
    return sandbox.cache


def _environment(event: Mapping[str, Any]) -> ActorEnvironment | ReplayedEnvironment:
    """The sandbox's, if it is what the event asks for, or a new one."""
    options, replay = event.get("environment_options", {}), event.get("replay", "")
    key = (event["environment_id"], event["preprocessing"], json.dumps(options, sort_keys=True), replay)
    if sandbox.environment is not None and sandbox.environment_key == key:
        return sandbox.environment
    if replay not in REPLAYS:
        raise EventError(f"the event's 'replay' is {replay!r}; allowed: {' | '.join(map(repr, REPLAYS))}")

    def make() -> ActorEnvironment:
        return make_environment(event["environment_id"], event["preprocessing"], options)

    environment = ReplayedEnvironment(make, is_made_anew=replay == "anew") if replay else make()
    sandbox.environment_key = key
    return environment


def _policy(messages: TrajectoryCache | InlineMessages, event: Mapping[str, Any]) -> Policy:
    key = (event["run_id"], event["policy_version"])
    if sandbox.policy is None or sandbox.policy_key != key:
        sandbox.policy = Policy.from_bytes(messages.fetch_weights(event["policy_version"]))
        sandbox.policy_key = key
    return sandbox.policy


def _roll_out(
    event: Mapping[str, Any], policy: Policy, open_episode: OpenEpisode | None,
    messages: TrajectoryCache | InlineMessages,
) -> Fragment:
    environment = _environment(event)
    # An environment that raises is not trusted again.
    sandbox.environment = None
    try:
        fragment = roll_out(
            environment, policy,
            fragment_steps=event["fragment_steps"], seed=event["seed"], round_index=event["round_index"],
            slot=event["slot"], open_episode=open_episode, truncate_at_fragment=event["truncate_at_fragment"],
            drop_unfinished=event.get("drop_unfinished", False),
            should_stop=lambda: not messages.is_wanted(event["invocation_id"]),
        )
    except Exception as error:
        if isinstance(error, ActorError) or raising_frame(error) is None:
            raise
        raise RaisingEnvironmentError(f"{event['environment_id']} raised {told(error)}") from error
    if environment.can_save_episode:
        sandbox.environment = environment
    else:
        # It may remember things across resets, and who served which slot must not matter.
        environment.close()
    return fragment


def trajectory_fields(event: Mapping[str, Any], fragment: Fragment) -> dict[str, np.ndarray]:
    """The fields of a trajectory message: the fragment, and what it answers.

    Args:
        event: What asked for the fragment; see `EVENT_FIELDS`.
    """
    return {
        **fragment.fields(),
        "invocation_id": wire.text_field(event["invocation_id"]),
        "round_index": np.array(event["round_index"], np.int64),
        "slot": np.array(event["slot"], np.int64),
        "policy_version": np.array(event["policy_version"], np.int64),
        "continued_episode": wire.text_field(event["episode_id"]),
    }
