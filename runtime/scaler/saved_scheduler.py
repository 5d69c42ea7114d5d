"""A learned scheduler: its inputs, and its file.

The file is one ``.safetensors``: the policy's arrays as in a WEIGHTS message, the critic's, and JSON in its metadata.
It has no pickle, and is checked before use.

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
VERSION: Final = 2
CRITIC: Final = "critic."
_FORMAT: Final = "nitro-rl scheduler"
_BYTES_MAX: Final = 4 * 1024 * 1024
_ACTORS_MAX: Final = 10_000
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
        return np.array(
            [0.0 if math.isnan(one) else min(max(one, -_LARGEST), _LARGEST) for one in found],
            np.float32,
        )


def return_share(return_mean: float, target_return: float) -> float:
    """Returns ``1 + (R − J)/|J|``, which is R/J for targets above 0, and 1 at the target; J = 0 counts as 1."""
    return 1.0 + (return_mean - target_return) / (abs(target_return) or 1.0)


@dataclass(frozen=True)
class SavedScheduler:
    """A scheduler, as stored.

    Attributes:
        weights: The policy's WEIGHTS message: the state's normalizer, two layers of tanh units, and an output for each
            number of actors.
        actors_min: Actors of the first output; each further output is one actor more.
        pricing: Seconds and prices of counted work, for its inputs of time and money.
        critic: The critic's parameters by name, for further training.
        history: Its trainings, oldest first, with their cost.
    """

    weights: bytes = field(repr=False)
    actors_min: int
    pricing: Pricing
    critic: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def policy(self) -> Policy:
        """Returns the policy."""
        return Policy.from_bytes(self.weights)

    @property
    def actors_max(self) -> int:
        """Returns the actors of the last output."""
        return (
            self.actors_min + len(wire.decode(self.weights, wire.Kind.WEIGHTS)["layer.2.bias"]) - 1
        )

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that affects decisions."""
        fields = sorted(wire.decode(self.weights, wire.Kind.WEIGHTS).items())
        return hashlib.sha256(
            b"%d" % self.actors_min
            + json.dumps(asdict(self.pricing)).encode()
            + b"".join(name.encode() + array.tobytes() for name, array in fields)
        ).hexdigest()

    @property
    def spent_usd(self) -> float:
        """Returns the cost of its training: all of its history."""
        return sum(float(entry.get("usd", 0.0)) for entry in self.history)

    def save(self, path: Path) -> None:
        """Writes the file."""
        arrays = {
            name: np.array(array)
            for name, array in wire.decode(self.weights, wire.Kind.WEIGHTS).items()
        }
        arrays |= {
            CRITIC + name: np.ascontiguousarray(array) for name, array in self.critic.items()
        }
        about = {
            "actors_min": self.actors_min,
            "features": FEATURES,
            "pricing": asdict(self.pricing),
            "history": self.history,
        }
        metadata = {
            "format": _FORMAT,
            "version": str(VERSION),
            "scheduler": json.dumps(about, allow_nan=False),
        }
        write_atomically(path, safetensors.numpy.save(arrays, metadata=metadata))


def load_scheduler(name: str) -> SavedScheduler:
    """Loads a scheduler.

    Args:
        name: Name of a shipped one, or the path of a file; a path has a slash, or ends with ``.safetensors``.

    Raises:
        ExperimentError: There is none, or the file is damaged or not a scheduler.
    """
    path = Path(name) if is_path(name) else SHIPPED / f"{name}{SUFFIX}"
    try:
        if path.exists() and not path.is_file():
            raise ValueError("this is no file")
        if path.stat().st_size > _BYTES_MAX:
            raise ExperimentError(
                f"scheduler {name!r} is larger than {_BYTES_MAX // 1024**2} MiB, which none is"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        names = shipped()
        raise ExperimentError(
            f"scheduler {name!r} cannot be read: {getattr(error, 'strerror', None) or error}; allowed: the path of a "
            f"{SUFFIX} file{', or one that is shipped: ' if names else ''}{' | '.join(names)}"
        ) from None
    try:
        return _parsed(data)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        safetensors.SafetensorError,
        ActorError,
    ) as error:
        raise ExperimentError(f"scheduler {name!r} is damaged, or none: {error}") from None


def _parsed(data: bytes) -> SavedScheduler:
    arrays = safetensors.numpy.load(data)
    # The header has been checked.
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"its metadata do not say that it is a {_FORMAT}")
    if metadata.get("version") != str(VERSION):
        raise ValueError(
            f"it is of version {metadata.get('version')}; this program reads {VERSION}"
        )
    about = json.loads(metadata["scheduler"])
    if about["features"] != list(FEATURES):
        raise ValueError(f"it sees {about['features']}; allowed: {list(FEATURES)}")
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise ValueError(f"{', '.join(broken)} holds NaN or infinity")
    critic = {
        name.removeprefix(CRITIC): array
        for name, array in arrays.items()
        if name.startswith(CRITIC)
    }
    weights = wire.encode(
        wire.Kind.WEIGHTS,
        {name: array for name, array in arrays.items() if not name.startswith(CRITIC)},
    )
    actors_min, history = about["actors_min"], about["history"]
    pricing = Pricing.of(about["pricing"])
    found = SavedScheduler(weights, actors_min, pricing, critic, tuple(history))
    found.policy.check(Spaces((len(FEATURES),), action_count=len(arrays["layer.2.bias"])))
    if (arrays["observation_std"] <= 0.0).any():
        raise ValueError("observation_std is not above 0 everywhere")
    if type(actors_min) is not int or not 1 <= actors_min <= found.actors_max <= _ACTORS_MAX:
        raise ValueError(
            f"it chooses from {actors_min} to {found.actors_max} actors; allowed: 1 to {_ACTORS_MAX}"
        )
    if not all(isinstance(entry, dict) for entry in history):
        raise ValueError("its history is no list of entries")
    for entry in history:
        usd = entry.get("usd", 0.0)
        if type(usd) not in (int, float) or not 0.0 <= usd <= _LARGEST:
            raise ValueError(f"its history has usd = {usd!r:.80}; allowed: 0 to {_LARGEST:g}")
    return found
