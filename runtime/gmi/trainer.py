"""The learner of an instance, and the group that it trains with."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lambda_actor.inline import to_text
from runtime.errors import RunError
from runtime.gmi.group import InstanceGroup
from runtime.gmi.worlds.batched import make_worlds
from runtime.gmi.worlds.sampler import Sampler
from runtime.learner import make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import assemble_batch
from runtime.learner.functions.messages import (
    decode_state,
    encode_result,
    encode_state,
    spec_of,
    stored_state,
)
from runtime.learner.functions.store import Store, object_name
from runtime.learner.interfaces import Batch, Update
from runtime.learner.share import Alone, Share
from runtime.records.state import State

_WORLDS_STREAM = 0x3012


def learner_name(token: str) -> str:
    """Returns the name of the learner's specification in the store."""
    return f"{token}-learner"


class Trainer:
    """Keeps the learner of an instance and its group as long as they are usable."""

    def __init__(self, store: Store, token: str) -> None:
        """Makes an empty trainer.

        Args:
            store: Store of the states.
            token: Prefix of the names of its objects.
        """
        self._store = store
        self._token = token
        self._learner: ActorCritic[Any] | None = None
        self._is_new = False
        self._group: InstanceGroup | None = None
        self._group_path = ""
        self._sampler: Sampler | None = None

    def weights(self, version: int) -> bytes:
        """Returns the policy of a version as a WEIGHTS message.

        Raises:
            RunError: The store does not have it.
        """
        return self._at(version).weights()

    def train(
        self, event: Mapping[str, Any], trajectories: Sequence[Mapping[str, np.ndarray]]
    ) -> dict[str, Any]:
        """Makes the next version together with the others. The first instance puts it into the store.

        Args:
            event: The slots of an update and the group to train with; see `runtime.gmi.updater`.
            trajectories: This instance's trajectories.

        Returns:
            Seconds in sums, and peak memory.

        Raises:
            RunError: Another instance is gone.
        """
        return self._updated(
            event,
            np.array(event["columns"]),
            np.array(event["lengths"]),
            lambda _: assemble_batch(
                trajectories, self._spaces, clip_rewards=event["clip_rewards"]
            ),
        )

    def play_and_train(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Plays a round in this instance's worlds, and makes the next version with the others, as `train` does.

        Args:
            event: ``worlds`` describes them; see `runtime.gmi.worlds.updater`.

        Returns:
            As `train`, with the seconds of playing, and the episodes that ended.

        Raises:
            UnusableEnvironmentError: The environment is.
            RunError: Another instance is gone.
        """
        asked, instance = event["worlds"], event["instance"]
        counts, steps = asked["counts"], asked["steps"]

        def play(learner: ActorCritic[Any]) -> Batch:
            sampler = self._sampler_of(asked, learner.device, counts[instance], instance)
            return sampler.play(
                learner, asked["round_index"], seed=asked["seed"], instance=instance
            )

        first = sum(counts[:instance])
        columns = np.arange(first, first + counts[instance])
        answer = self._updated(event, columns, np.full(sum(counts), steps), play)
        assert self._sampler is not None
        episodes = {
            name: to_text(found.tobytes()) for name, found in self._sampler.episodes.items()
        }
        return answer | {"play_s": self._sampler.play_s, "episodes": episodes}

    def save_worlds(self, name: str) -> None:
        """Puts the state of this instance's worlds into the store; nothing if they have none."""
        if self._sampler is not None and (state := self._sampler.get_state()):
            self._store.put(name, encode_state(State(state, {})))

    def _sampler_of(
        self, asked: Mapping[str, Any], device: torch.device, count: int, instance: int
    ) -> Sampler:
        """Returns the sampler, made on first use: with stored worlds, or else with new episodes."""
        if self._sampler is None:
            torch.set_float32_matmul_precision("high" if asked["tf32"] else "highest")
            entropy = (_WORLDS_STREAM, asked["seed"], instance, asked["round_index"])
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            worlds = make_worlds(asked["environment"], count, device, seed)
            sampler = Sampler(worlds, asked["steps"])
            stored = self._store.get(asked["stored"][instance]) if asked["stored"] else None
            if stored is not None:
                sampler.set_state(decode_state(stored).arrays)
            self._sampler = sampler
        return self._sampler

    def _updated(
        self,
        event: Mapping[str, Any],
        columns: np.ndarray,
        lengths: np.ndarray,
        sample: Callable[[ActorCritic[Any]], Batch],
    ) -> dict[str, Any]:
        """Makes the next version.

        Args:
            columns: Which trajectories of the whole batch this instance has, int64.
            lengths: Steps of all trajectories, int64.
            sample: Returns this instance's.
        """
        learner = self._at(event["policy_version"])
        # Nobody waits in the group for an instance that plays.
        batch = sample(learner)
        is_alone = len(event["group"]["devices"]) == 1
        try:
            group = self._joined(event["group"], learner)
            before_s = group.reduce_s, group.waited_s
            learner.share = (
                Alone() if is_alone else Share(group, columns, lengths, device=learner.device)
            )
            update = learner.update(batch, progress=event["progress"])
            if group.rank == 0:
                self._store.put(
                    object_name(self._token, "result", learner.policy_version),
                    encode_result(learner.get_state(), _without_samples(update)),
                )
        except BaseException:
            # The learner may have made some steps, and the others cannot continue in this group.
            self._learner = None
            self._leave()
            raise
        return {
            "memory_mib": _memory_mib(),
            "reduce_s": group.reduce_s - before_s[0],
            "reduce_wait_s": group.waited_s - before_s[1],
        }

    def _at(self, version: int) -> ActorCritic[Any]:
        """Returns the learner at that version."""
        learner, self._learner = self._learner or self._made(), None
        if learner.policy_version != version or self._is_new:
            learner.set_state(stored_state(self._store, self._token, version))
        self._learner = learner
        self._is_new = False
        return learner

    def _made(self) -> ActorCritic[Any]:
        found = self._store.get(learner_name(self._token))
        if found is None:
            raise RunError("the store does not have the learner's specification")
        made = json.loads(found.decode())
        spec = spec_of(made["spec"])
        self._spaces = spec.spaces
        learner = make_learner(spec, device=made["device"])
        if not isinstance(learner, ActorCritic):
            raise RunError(
                f"{type(learner).__name__} cannot train on a part of a batch; learner.kind = gmi needs a "
                "learner that derives from ActorCritic"
            )
        self._is_new = True
        return learner

    def _joined(self, asked: Mapping[str, Any], learner: ActorCritic[Any]) -> InstanceGroup:
        """Returns the group for an update."""
        if self._group is None or self._group_path != asked["path"]:
            self._leave()
            self._group = InstanceGroup(
                **asked,
                device=str(learner.device),
                elements=sum(one.gradient.numel() for one in learner.trained.values()) + 3,
            )
            self._group_path = asked["path"]
        return self._group

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()


def encode_learner(spec: Mapping[str, Any], device: str) -> bytes:
    """Returns the learner's specification for `Trainer`.

    Args:
        spec: Result of `runtime.learner.functions.messages.spec_values`.
        device: ``cpu`` or ``cuda``.
    """
    return json.dumps({"spec": spec, "device": device}).encode()


def _memory_mib() -> float:
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _without_samples(update: Update) -> Update:
    """Returns an update without its samples, which remain here."""
    arrays = {
        name: torch.as_tensor(array[:0]).cpu().numpy()
        for name, array in vars(update.samples).items()
    }
    return replace(update, samples=type(update.samples)(**arrays))
