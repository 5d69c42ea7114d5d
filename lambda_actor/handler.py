"""The actor function: ``handler(event, context)`` rolls out one fragment and submits it.

The same code runs inside AWS Lambda and in the local fleet's processes, where `handler_together` serves several events
in lock-step. A sandbox keeps its environments, its connection and the last weights between invocations. These never
change the samples: an environment with an unknown state is made anew each time.

The event contains the cache's endpoint and where to find its credential. It never contains the credential itself,
because events are logged and retried in places unfit for secrets. On one machine the credential is in
``ACTOR_CACHE_USERNAME`` and ``ACTOR_CACHE_PASSWORD``; see `lambda_actor.cache` for AWS. Without a cache, the
event itself contains the messages; see `lambda_actor.inline`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError, RaisingEnvironmentError, describe_error, raising_frame
from lambda_actor.inline import InlineMessages
from lambda_actor.output import limited_output
from lambda_actor.policy import Policy, read_policy
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import Fragment, OpenEpisode, Request, roll_out_together
from lambda_actor.waiting import waits

OUTPUT_CHARACTERS_MAX = 2000
"""Maximum output of an environment per invocation. The rest is dropped."""
_ALIKE = (
    "cache_url",
    "run_id",
    "policy_version",
    "truncate_at_fragment",
    "fragment_steps",
    "drop_unfinished",
)
"""Fields that must be equal in events served in lock-step."""

Answer = dict[str, Any]
_Result = TypeVar("_Result")


class Sandbox:
    """Objects kept warm between two invocations of one process."""

    def __init__(self) -> None:
        self.environments: list[ActorEnvironment | ReplayedEnvironment] = []
        self.failed: list[ActorEnvironment | ReplayedEnvironment] = []
        self.environment_key = ""
        self.cache: TrajectoryCache | None = None
        self.cache_key: tuple[str, ...] = ()
        self.policy: Policy | None = None
        self.policy_key: tuple[str, int] | None = None


sandbox = Sandbox()


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Fetches the event's policy version, rolls out one fragment, submits it under its invocation id.

    Args:
        event: JSON with these fields, which the learner sends:
            ``run_id``, ``invocation_id``. With a cache, ``cache_url``, ``cache_ttl_s``, and
            ``cache_credential``, empty if the variables hold it; without one, ``weights`` and ``episode``, messages
            (`lambda_actor.inline`).
            ``environment_id``, ``preprocessing``, and optional ``environment_options`` (`lambda_actor.making`).
            ``fragment_steps``, ``truncate_at_fragment``, ``policy_version``; ``seed``, ``round_index``, ``slot``;
            ``episode_id``, empty for a fresh episode. Optional ``replay``: how episodes are replayed that cannot be
            saved. Optional ``drop_unfinished``: drops the steps of an episode that the fragment's end cuts.
        context: Lambda's context object; not used.

    Returns:
        ``invocation_id``, ``status`` (accepted | late), ``env_steps`` (steps taken, including dropped ones),
        ``replayed_steps`` (None if the environment does not replay), and without a cache ``trajectory``.

    Raises:
        KeyError: A field is missing.
        RaisingEnvironmentError: The environment's code raised; the message names the place.
        ActorError: See `lambda_actor.errors`.
    """
    with limited_output(OUTPUT_CHARACTERS_MAX):
        (answer,) = _serve([event])
    if isinstance(answer, Exception):
        raise answer
    return answer


def handler_together(
    events: Sequence[Mapping[str, Any]], context: object
) -> list[Answer | Exception]:
    """Serves several events as `handler` does, similar ones in lock-step.

    Args:
        events: Events for `handler`.
        context: Not used.

    Returns:
        For each event, the result of `handler`, or its exception.
    """
    groups: dict[str, list[int]] = {}
    for index, event in enumerate(events):
        groups.setdefault(repr([event.get(name) for name in _ALIKE]), []).append(index)
    answers: dict[int, Answer | Exception] = {}
    with limited_output(OUTPUT_CHARACTERS_MAX * len(events)):
        for indices in groups.values():
            answers.update(zip(indices, _serve([events[index] for index in indices]), strict=True))
    return [answers[index] for index in sorted(answers)]


@waits.counted()
def roll_out_events(
    events: Sequence[Mapping[str, Any]],
    policy: Policy,
    episodes: Sequence[OpenEpisode | None],
    is_wanted: Callable[[str], bool],
) -> list[Fragment | Exception]:
    """Rolls out the fragments of several events in lock-step, in environments of the sandbox.

    Args:
        events: See `handler`. They have the same policy, ``fragment_steps``, ``truncate_at_fragment`` and
            ``drop_unfinished``.
        policy: The policy of their version.
        episodes: The episode that each continues, if any.
        is_wanted: Whether an invocation, given by id, is still awaited. Called once a second.

    Returns:
        For each event, its fragment or its error: the environment cannot be made, it raised, or `roll_out` raised. An
        environment that raised, or whose episodes cannot be saved, is not used again.
    """
    environments = [_tried(_take_environment, event) for event in events]
    playing = {
        index: environment
        for index, environment in enumerate(environments)
        if not isinstance(environment, Exception)
    }

    def request(index: int) -> Request:
        event = events[index]
        return Request(
            event["seed"],
            event["round_index"],
            event["slot"],
            episodes[index],
            lambda: not is_wanted(event["invocation_id"]),
        )

    fragments = roll_out_together(
        list(playing.values()),
        policy,
        [request(index) for index in playing],
        fragment_steps=events[0]["fragment_steps"],
        truncate_at_fragment=events[0]["truncate_at_fragment"],
        drop_unfinished=events[0].get("drop_unfinished", False),
    )
    # Where no environment could be made, the exception remains.
    results: list[Any] = list(environments)
    for (index, environment), fragment in zip(playing.items(), fragments, strict=True):
        if isinstance(fragment, Fragment):
            _give_back(environment, events[index])
            results[index] = fragment
        else:
            # Do not use an environment again after it raised. Closing it may hang, so the answer goes first.
            sandbox.failed.append(environment)
            results[index] = _explained(fragment, events[index])
    return results


def _serve(events: Sequence[Mapping[str, Any]]) -> list[Answer | Exception]:
    """Serves similar events."""
    jobs = [_tried(_fetched, event) for event in events]
    playing = {index: job for index, job in enumerate(jobs) if not isinstance(job, Exception)}
    # A failed job's exception is its answer.
    answers: list[Any] = list(jobs)
    if playing:
        messages, policy, _ = next(iter(playing.values()))
        fragments = roll_out_events(
            [events[index] for index in playing],
            policy,
            [episode for _, _, episode in playing.values()],
            messages.is_wanted,
        )
        for (index, (own_messages, _, _)), fragment in zip(playing.items(), fragments, strict=True):
            answers[index] = _tried(_submit, events[index], own_messages, fragment)
    return answers


def _tried(function: Callable[..., _Result], *arguments: Any) -> _Result | Exception:
    """Returns a function's result or exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _fetched(
    event: Mapping[str, Any],
) -> tuple[TrajectoryCache | InlineMessages, Policy, OpenEpisode | None]:
    """Returns an event's messages, its policy and the episode that it continues."""
    messages = _cache(event) if event.get("cache_url") else InlineMessages(event)
    policy = _policy(messages, event)
    episode_id = event["episode_id"]
    return (
        messages,
        policy,
        OpenEpisode.from_bytes(messages.fetch_episode(episode_id)) if episode_id else None,
    )


def _submit(
    event: Mapping[str, Any],
    messages: TrajectoryCache | InlineMessages,
    fragment: Fragment | Exception,
) -> Answer:
    """Submits a fragment."""
    if isinstance(fragment, Exception):
        raise fragment
    status = messages.submit(
        event["invocation_id"], wire.encode(fragment.kind, trajectory_fields(event, fragment))
    )
    answer: Answer = {
        "invocation_id": event["invocation_id"],
        "status": status,
        "env_steps": event["fragment_steps"],
        "replayed_steps": fragment.replayed_steps,
    }
    if isinstance(messages, InlineMessages):
        answer["trajectory"] = messages.trajectory
    return answer


def _cache(event: Mapping[str, Any]) -> TrajectoryCache:
    key = (event["cache_url"], event["run_id"])
    if sandbox.cache is None or sandbox.cache_key != key:
        if sandbox.cache is not None:
            sandbox.cache.close()
        sandbox.cache = TrajectoryCache(
            event["cache_url"],
            event["run_id"],
            username=os.environ.get("ACTOR_CACHE_USERNAME"),
            password=os.environ.get("ACTOR_CACHE_PASSWORD"),
            credential=event["cache_credential"],
            ttl_s=event["cache_ttl_s"],
        )
        sandbox.cache_key = key
    return sandbox.cache


def _environment_key(event: Mapping[str, Any]) -> str:
    names = ("environment_id", "preprocessing", "environment_options", "replay")
    return json.dumps([event.get(name) for name in names], sort_keys=True)


def _take_environment(event: Mapping[str, Any]) -> ActorEnvironment | ReplayedEnvironment:
    """Returns one of the sandbox's environments if they match the event, otherwise a new one."""
    key = _environment_key(event)
    while sandbox.failed:
        sandbox.failed.pop().close()
    if sandbox.environment_key != key:
        while sandbox.environments:
            sandbox.environments.pop().close()
    elif sandbox.environments:
        return sandbox.environments.pop(0)

    def make() -> ActorEnvironment:
        options = event.get("environment_options")
        return make_environment(event["environment_id"], event["preprocessing"], options)

    replay = event.get("replay")
    environment = ReplayedEnvironment(make, is_made_anew=replay == "anew") if replay else make()
    sandbox.environment_key = key
    return environment


def _policy(messages: TrajectoryCache | InlineMessages, event: Mapping[str, Any]) -> Policy:
    key = (event["run_id"], event["policy_version"])
    if sandbox.policy is None or sandbox.policy_key != key:
        sandbox.policy = read_policy(messages.fetch_weights(event["policy_version"]))
        sandbox.policy_key = key
    return sandbox.policy


def _give_back(
    environment: ActorEnvironment | ReplayedEnvironment, event: Mapping[str, Any]
) -> None:
    """Keeps an environment for later events."""
    if environment.can_save_episode and sandbox.environment_key == _environment_key(event):
        sandbox.environments.append(environment)
    else:
        # It may remember things across resets, but results must not depend on which process served a slot.
        environment.close()


def _explained(error: BaseException, event: Mapping[str, Any]) -> Exception:
    """Returns a rollout's error, or an error that names the environment's code if that raised."""
    if isinstance(error, Exception) and (
        isinstance(error, ActorError) or raising_frame(error) is None
    ):
        return error
    explained = RaisingEnvironmentError(f"{event['environment_id']} raised {describe_error(error)}")
    explained.__cause__ = error
    return explained


def trajectory_fields(event: Mapping[str, Any], fragment: Fragment) -> dict[str, np.ndarray]:
    """Returns the fields of a trajectory message: the fragment, and identifiers of its event.

    Args:
        event: The fragment's event; see `handler`.
    """
    return {
        **fragment.fields(),
        "invocation_id": wire.text_field(event["invocation_id"]),
        "round_index": np.array(event["round_index"], np.int64),
        "slot": np.array(event["slot"], np.int64),
        "policy_version": np.array(event["policy_version"], np.int64),
        "continued_episode": wire.text_field(event["episode_id"]),
    }
