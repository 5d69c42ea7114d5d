"""A learned scheduler: its inputs, and its file.

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

from lambda_actor.errors import ActorError
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError
from runtime.records.files import write_atomically
from runtime.scaler.pricing import Priced, Pricing
from runtime.scaler.shipped import SHIPPED, SUFFIX, is_path, shipped

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
        """Returns the policy."""
        return Policy(self.arrays)

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


def load_scheduler(name: str) -> SavedScheduler:
    """Loads a scheduler.

    Args:
        name: Name of a shipped one, or the path of a file; a path has a slash, or ends with ``.safetensors``.

    Raises:
        ExperimentError: There is none, or the file is damaged or not a scheduler.
    """
    path = Path(name) if is_path(name) else SHIPPED / f"{name}{SUFFIX}"
    try:
        return _parsed(path.read_bytes())
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        safetensors.SafetensorError,
        ActorError,
    ) as error:
        raise ExperimentError(
            f"scheduler {name!r} cannot be read: {getattr(error, 'strerror', None) or error}; allowed: the path of a "
            f"{SUFFIX} file that `python -m papers.minionsrl` has written, or {' | '.join(shipped())}"
        ) from None


def _parsed(data: bytes) -> SavedScheduler:
    arrays = safetensors.numpy.load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    about = json.loads(metadata["scheduler"])
    if about["features"] != list(FEATURES):
        raise ValueError(f"it sees {about['features']}; allowed: {list(FEATURES)}")
    pricing, history = Pricing(**about["pricing"]), tuple(about["history"])
    found = SavedScheduler(arrays, about["actors_min"], pricing, history)
    found.policy.check(Spaces((len(FEATURES),), action_count=len(arrays["layer.2.bias"])))
    return found
