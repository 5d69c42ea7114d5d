"""An instance: plays its slots of a round, keeps the trajectories, and trains on them with the others.

It runs as a process of the local fleet. For a play event it plays some slots, keeps their trajectories and reports the
episodes. For a train event it computes its part of an update; with worlds, it first plays its part of the round. Asked
to save, it stores the state of its worlds. A replacement process has neither learner nor trajectories: it loads the
learner from the store, and plays again.

With ``layout: asynchronous`` an instance gets only one of the two kinds, and trajectories are in memory that all
instances share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.handler import (
    OUTPUT_CHARACTERS_MAX,
    roll_out_events,
    trajectory_fields,
)
from lambda_actor.inline import ACCEPTED, from_text, to_text
from lambda_actor.output import limited_output
from lambda_actor.policy import Policy
from lambda_actor.rollout import OpenEpisode
from runtime.errors import RunError
from runtime.gmi.sharing.channel import Channel
from runtime.learner.functions import open_store
from runtime.learner.functions.store import object_name

_TOLD = tuple(wire.SCHEMAS[wire.Kind.KEPT_TRAJECTORY])


class Instance:
    """State that an instance keeps between two events.

    Attributes:
        kept: Trajectories of this round by actor id, unless instances share memory.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, np.ndarray]] = {}
        self.policy: Policy | None = None
        self._trainer: Any = None
        self._channel: Channel | None = None
        self._is_placed = False

    def begin(self, event: Mapping[str, Any]) -> None:
        """Moves this process to its part of the machine."""
        if self._is_placed:
            return
        # Set them before loading torch, which reads them.
        os.environ.update(event["variables"])
        if event["cores"]:
            # Some sandboxes refuse this. Then the system chooses the cores.
            with suppress(OSError):
                os.sched_setaffinity(0, event["cores"])
        if "channel" in event:
            # Otherwise a program started by the environment would also keep it open.
            os.set_inheritable(event["channel"]["descriptor"], False)
        self._is_placed = True

    def trainer(self, event: Mapping[str, Any]) -> Any:
        """Returns the learner and its group. Makes it on first use."""
        if self._trainer is None:
            from runtime.gmi.trainer import Trainer

            self._trainer = Trainer(open_store(event["store"]), event["token"])
        return self._trainer

    def channel(self, event: Mapping[str, Any]) -> Channel:
        """Returns this instance's access to the shared memory."""
        if self._channel is None:
            self._channel = Channel(**event["channel"])
        return self._channel

    def play(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Exception]:
        """Plays these slots, and keeps their trajectories or writes them where all instances can read them."""
        by_version: dict[int, list[int]] = {}
        for place, event in enumerate(events):
            by_version.setdefault(event["policy_version"], []).append(place)
        answers: dict[int, dict[str, Any] | Exception] = {}
        for version, places in by_version.items():
            self._take_policy(version, events[0])
            answers.update(
                zip(places, self._played([events[place] for place in places]), strict=True)
            )
        return [answers[place] for place in range(len(events))]

    def _take_policy(self, version: int, event: Mapping[str, Any]) -> None:
        if self.policy is not None and self.policy.policy_version == version:
            return
        self.kept.clear()
        if "channel" not in event:
            self.policy = Policy.from_bytes(self.trainer(event).weights(version))
        elif (
            found := open_store(event["store"]).get(object_name(event["token"], "weights", version))
        ) is not None:
            self.policy = Policy.from_bytes(found)
        else:
            raise RunError(f"the store does not hold policy version {version}")

    def _played(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Exception]:
        """Plays slots with the current policy."""
        assert self.policy is not None
        episodes = [
            OpenEpisode.from_bytes(from_text(event["episode"])) if event["episode_id"] else None
            for event in events
        ]
        answers: list[dict[str, Any] | Exception] = []
        fragments = roll_out_events(events, self.policy, episodes, lambda _: True)
        for event, fragment in zip(events, fragments, strict=True):
            if isinstance(fragment, Exception):
                answers.append(fragment)
                continue
            fields = trajectory_fields(event, fragment) | {"steps": np.array(len(fragment.rewards))}
            if "channel" in event:
                written = {name: fields[name] for name in fields if name != "open_episode"}
                self.channel(event).write(event["chunk"], written)
            else:
                self.kept[event["invocation_id"]] = fields
            answers.append(
                {
                    "invocation_id": event["invocation_id"],
                    "status": ACCEPTED,
                    "env_steps": event["fragment_steps"],
                    "replayed_steps": fragment.replayed_steps,
                    "trajectory": to_text(
                        wire.encode(
                            wire.Kind.KEPT_TRAJECTORY, {name: fields[name] for name in _TOLD}
                        )
                    ),
                }
            )
        return answers

    def train(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Computes its part of an update.

        Raises:
            RunError: Another instance is gone, or a trajectory cannot be played again.
        """
        if "worlds" in event:
            return {
                "invocation_id": event["invocation_id"],
                **self.trainer(event).play_and_train(event),
            }
        if "channel" in event:
            trajectories = [self.channel(event).read(one["chunk"]) for one in event["slots"]]
        else:
            trajectories = self._played_once_more(event)
        lengths = [event["lengths"][column] for column in event["columns"]]
        if (steps := [len(one["rewards"]) for one in trajectories]) != lengths:
            raise RunError(
                f"trajectories have {steps} steps instead of {lengths}: one that was played again differs, so the "
                "environment is not deterministic"
            )
        return {
            "invocation_id": event["invocation_id"],
            **self.trainer(event).train(event, trajectories),
        }

    def save_worlds(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Puts the state of its worlds into the store, under the name ``saves``."""
        self.trainer(event).save_worlds(event["saves"])
        return {"invocation_id": event["invocation_id"]}

    def _played_once_more(self, event: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """Returns its trajectories. Plays those again that another process had."""
        missing = [one for one in event["slots"] if one["invocation_id"] not in self.kept]
        for answer in self.play(missing) if missing else ():
            if isinstance(answer, Exception):
                raise RunError("a lost trajectory cannot be played again") from answer
        return [self.kept[one["invocation_id"]] for one in event["slots"]]


instance = Instance()


def handler_together(
    events: Sequence[Mapping[str, Any]], context: object
) -> list[dict[str, Any] | Exception]:
    """Plays several slots, or computes a part of one update.

    Args:
        events: An actor's events, or events of an update, which have a ``group``; `runtime.gmi.fleet` makes them.
        context: Not used.

    Raises:
        RunError: The learner cannot be made, or another instance is gone.
        ActorError: See `lambda_actor.errors`.
    """
    instance.begin(events[0])
    with limited_output(OUTPUT_CHARACTERS_MAX * len(events)):
        if "group" in events[0]:
            answers: list[dict[str, Any] | Exception] = [instance.train(event) for event in events]
        elif "saves" in events[0]:
            answers = [instance.save_worlds(event) for event in events]
        else:
            answers = instance.play(events)
    here = {"instance": events[0]["instance"], "process": os.getpid()}
    return [answer if isinstance(answer, Exception) else answer | here for answer in answers]


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answers one event; see `handler_together`."""
    (answer,) = handler_together([event], context)
    if isinstance(answer, Exception):
        raise answer
    return answer
