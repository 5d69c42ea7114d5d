"""One instance: plays its slots of a round, keeps the trajectories, and trains on them together with the others.

It runs as a process of the local fleet and answers two kinds of events. An event to play makes it play some slots, keep
their trajectories and report the episodes. An event to train makes it compute its part of an update. A process that
replaces another one has neither learner nor trajectories: it loads the learner from the store, and plays again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.cache import ACCEPTED
from lambda_actor.events import check_event
from lambda_actor.handler import (
    EVENT_FIELDS,
    OPTIONAL_FIELDS,
    OUTPUT_CHARACTERS_MAX,
    roll_out_events,
    trajectory_fields,
)
from lambda_actor.inline import from_text, to_text
from lambda_actor.output import limited_output
from lambda_actor.policy import Policy
from lambda_actor.rollout import OpenEpisode
from runtime.errors import RunError
from runtime.gmi.fleet import INSTANCE_FIELDS
from runtime.learner.remote.places import open_store

PLAY_FIELDS = EVENT_FIELDS | INSTANCE_FIELDS | {"episode": str, "worlds": int}
"""What an event to play must carry, besides what any actor's may; ``worlds`` of a simulation on the learner's device,
0 if each slot has an environment of its own."""
TRAIN_FIELDS: dict[str, type] = {
    **INSTANCE_FIELDS, "invocation_id": str, "policy_version": int, "progress": float, "clip_rewards": bool,
    "slots": list, "columns": list, "lengths": list, "group": dict}
"""What an event to train must carry: the events of the slots that this instance played, where these stand among all
trajectories of the round, the steps of each of those, and whom it trains with."""
_TOLD = tuple(wire.SCHEMAS[wire.Kind.KEPT_TRAJECTORY])


class Instance:
    """State that an instance keeps between two events.

    Attributes:
        kept: Trajectories of this round by the id of their actor.
        trainer: The learner and its group; made when it is needed.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, np.ndarray]] = {}
        self.policy: Policy | None = None
        self.trainer: Any = None
        self._is_placed = False

    def begin(self, event: Mapping[str, Any]) -> None:
        """Goes where the instance belongs."""
        if not self._is_placed:
            # Before torch is loaded, which reads them.
            os.environ.update(event["variables"])
            if event["cores"] and hasattr(os, "sched_setaffinity"):
                # Some sandboxes refuse it: then it runs wherever the system lets it.
                with suppress(OSError):
                    os.sched_setaffinity(0, event["cores"])
            self._is_placed = True
        if self.trainer is None:
            from runtime.gmi.trainer import Trainer

            self.trainer = Trainer(open_store(event["store"]), event["token"])

    def play(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Exception]:
        """Plays these slots and keeps their trajectories."""
        version = events[0]["policy_version"]
        if self.policy is None or self.policy.policy_version != version:
            self.kept.clear()
            self.policy = Policy.from_bytes(self.trainer.weights(version))
        episodes = [OpenEpisode.from_bytes(from_text(event["episode"])) if event["episode_id"] else None
                    for event in events]
        answers: list[dict[str, Any] | Exception] = []
        fragments = (self.trainer.roll_out(events, episodes) if events[0]["worlds"]
                     else roll_out_events(events, self.policy, episodes, lambda _: True))
        for event, fragment in zip(events, fragments, strict=True):
            if isinstance(fragment, Exception):
                answers.append(fragment)
                continue
            fields = trajectory_fields(event, fragment) | {"steps": np.array(len(fragment.rewards))}
            self.kept[event["invocation_id"]] = fields
            answers.append({
                "invocation_id": event["invocation_id"], "status": ACCEPTED, "env_steps": event["fragment_steps"],
                "trajectory": to_text(wire.encode(wire.Kind.KEPT_TRAJECTORY, {name: fields[name] for name in _TOLD}))})
        return answers

    def train(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Does its part of an update.

        Raises:
            RunError: Another instance is gone, or something cannot be played once more.
        """
        process_id = os.getpid()
        missing = [one for one in event["slots"] if one["invocation_id"] not in self.kept]
        for answer in self.play(missing) if missing else ():
            if isinstance(answer, Exception):
                raise RunError("a lost trajectory cannot be played again") from answer
        if os.getpid() != process_id:
            # The environment forked, and this is the copy.
            os._exit(0)
        trajectories = [self.kept[one["invocation_id"]] for one in event["slots"]]
        lengths = [event["lengths"][column] for column in event["columns"]]
        if (steps := [int(one["steps"]) for one in trajectories]) != lengths:
            raise RunError(f"trajectories that were played again have {steps} steps instead of {lengths}: the "
                           "environment is not deterministic")
        return {"invocation_id": event["invocation_id"], **self.trainer.train(event, trajectories)}


instance = Instance()


def handler_together(events: Sequence[Mapping[str, Any]], context: object) -> list[dict[str, Any] | Exception]:
    """Plays several slots, or does the part of one update; see `PLAY_FIELDS` and `TRAIN_FIELDS`.

    Raises:
        EventError: A field is missing or of the wrong type.
        RunError: The learner cannot be made, or another instance is gone.
        ActorError: See `lambda_actor.errors`.
    """
    for event in events:
        fields = TRAIN_FIELDS if "group" in event else PLAY_FIELDS
        check_event(event, fields | {name: kind for name, kind in OPTIONAL_FIELDS.items() if name in event})
    instance.begin(events[0])
    with limited_output(OUTPUT_CHARACTERS_MAX * len(events)):
        answers = [instance.train(event) for event in events] if "group" in events[0] else instance.play(events)
    here = {"instance": events[0]["instance"], "process": os.getpid()}
    return [answer if isinstance(answer, Exception) else answer | here for answer in answers]


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answers one event; see `handler_together`."""
    (answer,) = handler_together([event], context)
    if isinstance(answer, Exception):
        raise answer
    return answer
