"""A learned scheduler: the prices of finished rounds, its inputs, and its file.

Rounds are priced by their counts, so that a busy machine changes neither their seconds nor their dollars.

The file is one ``.safetensors``: the policy's arrays as in a WEIGHTS message, the critic's, and JSON in its metadata.
It has no pickle.

Paper: MinionsRL, "DRL-based Actor Scheduler".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import safetensors.numpy

from lambda_actor import wire
from lambda_actor.errors import ActorError
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError
from runtime.records.files import write_atomically

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow

FEATURES: Final = (
    "round",
    "loss",
    "return",
    "kl",
    "learner_s",
    "actor_s",
    "round_s",
    "budget_left",
)
"""A scheduler's inputs, in order."""
_LARGEST: Final = 1e6


@dataclass(frozen=True)
class Priced:
    """The price of a round.

    Attributes:
        actor_s: Mean seconds of an actor; None if none ended.
        learner_s: Seconds of the updates.
        round_s: Seconds until actors of equal length are back, and of the updates.
        usd: Dollars of all of it.
    """

    actor_s: float | None
    learner_s: float
    round_s: float
    usd: float


@dataclass(frozen=True)
class Pricing:
    """Seconds and dollars of each unit of counted work; `papers.pricing` makes them.

    Attributes:
        invocation_s, step_s, cold_start_s: Of an actor: whatever its length, for each step, and for a cold start.
        gradient_step_s, sample_s: Of an update: for each gradient step, and for each of their samples.
        evaluated_step_s: Of an evaluation, for each step.
        invocation_usd, actor_usd_per_s: Of an actor: its request and its traffic, and each second.
        learner_usd_per_s: Of the learner with its disk and address, for each second.
    """

    invocation_s: float
    step_s: float
    cold_start_s: float
    gradient_step_s: float
    sample_s: float
    evaluated_step_s: float
    invocation_usd: float
    actor_usd_per_s: float
    learner_usd_per_s: float

    def price(self, row: RoundRow) -> Priced:
        """Prices a finished round; an evaluation costs what outlasts the round's actors.

        Replays are free, as the processes that actors happen to reach decide how many there are.
        """
        invocations = row.actors_billed
        cold_starts = row.cold_starts or 0
        steps = row.env_steps + (row.lost_steps or 0)
        warm_s = (
            invocations * self.invocation_s + steps * self.step_s + (row.actors_waited_s or 0.0)
        )
        actors_s = warm_s + cold_starts * self.cold_start_s
        # The slowest actor of a round that starts any is one that starts cold.
        collect_s = warm_s / max(1, invocations) + (self.cold_start_s if cold_starts else 0.0)
        learner_s = (row.gradient_steps or 0) * self.gradient_step_s
        learner_s += (row.samples_trained or 0) * self.sample_s
        evaluate_s = (row.evaluated_steps or 0) * self.evaluated_step_s
        learner_usd = self.learner_usd_per_s * (
            collect_s + learner_s + max(0.0, evaluate_s - collect_s)
        )
        return Priced(
            actors_s / invocations if invocations else None,
            learner_s,
            collect_s + learner_s,
            invocations * self.invocation_usd + actors_s * self.actor_usd_per_s + learner_usd,
        )


@dataclass(frozen=True)
class Seen:
    """Values of the finished rounds for a scheduler: those of the last one, and the cost of all.

    Times and dollars are the counts of the rows at the seconds and prices in the scheduler's file, so decisions do not
    depend on the machine's load, and a resumed run decides like an uninterrupted one, whatever the interruption cost.

    Attributes:
        loss: Policy loss and value loss together.
        return_mean: Mean return of the last training episodes that ended; None before the first one.
    """

    loss: float = 0.0
    return_mean: float | None = None
    kl: float = 0.0
    learner_s: float = 0.0
    actor_s: float = 0.0
    round_s: float = 0.0
    spent_usd: float = 0.0

    def after(self, row: RoundRow, priced: Priced) -> Seen:
        """Returns the values after another finished round."""
        assert row.policy_loss is not None and row.value_loss is not None and row.kl is not None, (
            "it was trained on"
        )
        return Seen(
            loss=row.policy_loss + row.value_loss,
            return_mean=self.return_mean
            if row.episode_return_mean is None
            else row.episode_return_mean,
            kl=row.kl,
            learner_s=priced.learner_s,
            actor_s=self.actor_s if priced.actor_s is None else priced.actor_s,
            round_s=priced.round_s,
            spent_usd=self.spent_usd + priced.usd,
        )

    def state(self, round_index: int, *, target_return: float, budget_usd: float) -> np.ndarray:
        """Returns the state for a decision, float32 ``[8]``, in the order of `FEATURES`.

        k; sign(L)·ln(1 + |L|); the return as a share of the target; KL in nats; seconds of the learner, of an average
        actor, and of the round; the remaining share of the budget. Values that the last round lacks are 0.

        Paper: MinionsRL, "State". Departure: the return is divided by J, the budget by B, and losses are logarithmic,
        so that a scheduler's inputs mean the same in another task.
        """
        found = (
            round_index,
            math.copysign(math.log1p(abs(self.loss)), self.loss),
            0.0 if self.return_mean is None else return_share(self.return_mean, target_return),
            self.kl,
            self.learner_s,
            self.actor_s,
            self.round_s,
            1.0 - self.spent_usd / budget_usd,
        )
        return np.clip(np.nan_to_num(found), -_LARGEST, _LARGEST).astype(np.float32)


def return_share(return_mean: float, target_return: float) -> float:
    """Returns ``1 + (R − J)/|J|``, which is R/J for targets above 0, and 1 at the target; J = 0 counts as 1."""
    return 1.0 + (return_mean - target_return) / (abs(target_return) or 1.0)


@dataclass(frozen=True)
class SavedScheduler:
    """A scheduler, as stored.

    Attributes:
        arrays: The fields of the policy's WEIGHTS message (the state's normalizer, two layers of tanh units, and an
            output for each number of actors), and the critic's parameters after ``critic.``, for further training.
        actors_min: Actors of the first output; each further output is one actor more.
        pricing: Seconds and prices of counted work, for its inputs of time and money.
        history: Its trainings, oldest first, with their cost.
    """

    arrays: Mapping[str, np.ndarray] = field(repr=False)
    actors_min: int
    pricing: Pricing
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def policy(self) -> Policy:
        """Returns the policy, whose file says ``mlp`` and has other layers than that stands for."""
        units = " ".join(str(len(self.arrays[f"layer.{index}.bias"])) for index in (0, 1))
        return Policy({**self.arrays, "network": wire.text_field(f"mlp tanh {units}")})

    @property
    def actors_max(self) -> int:
        """Returns the actors of the last output."""
        return self.actors_min + len(self.arrays["layer.2.bias"]) - 1

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of its file."""
        return hashlib.sha256(self._data).hexdigest()

    @property
    def _data(self) -> bytes:
        about = {
            "actors_min": self.actors_min,
            "features": FEATURES,
            "pricing": asdict(self.pricing),
            "history": self.history,
        }
        arrays = {name: np.array(array, order="C") for name, array in self.arrays.items()}
        return safetensors.numpy.save(arrays, {"scheduler": json.dumps(about)})

    def save(self, path: Path) -> None:
        """Writes the file."""
        write_atomically(path, self._data)


def load_scheduler(path: Path) -> SavedScheduler:
    """Loads a scheduler.

    Raises:
        ExperimentError: There is no such file, or it is damaged or not a scheduler.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["scheduler"])
        if about["features"] != list(FEATURES):
            raise ValueError(f"it sees {about['features']}; allowed: {list(FEATURES)}")
        saved = SavedScheduler(
            safetensors.numpy.load_file(path),
            about["actors_min"],
            Pricing(**about["pricing"]),
            tuple(about["history"]),
        )
        action_count = len(saved.arrays["layer.2.bias"])
        saved.policy.check(Spaces((len(FEATURES),), action_count=action_count))
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        safetensors.SafetensorError,
        ActorError,
    ) as error:
        raise ExperimentError(
            f"scheduler {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}; allowed: a file "
            "that `python -m papers.minionsrl` has written, or the name of a shipped one"
        ) from None
    return saved
