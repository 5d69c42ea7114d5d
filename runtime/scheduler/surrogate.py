"""A surrogate of a workload: what a round would bring, fitted to recorded runs whose counts were drawn at random.

With r = R̄/J (`runtime.scaler.saved_scheduler.return_share`), n actors in round k, and n' in the round before, whose
update made the policy that round k shows, it is

    r_k − r_{k−1}   = f · (1, r, r², ln n', r·ln n', ln k)_{r = r_{k−1}} + e,       e ~ N(0, (a + b·r)²)
    ln actor_s      ~ N(μ, σ²)
    learner_s       = l · (1, n) + e
    round_s         = p · (1, actor_s, learner_s, ln n) + e
    dollars         = c · (1, n·actor_s, round_s)
    ln KL, ln loss  = q · (1, r, ln n, ln k) + e

Each row of coefficients is by least squares, each e by the residuals. Errors are on runs that were left out, each run
once (`held_out`): R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)², with ȳ of the runs that were not left out. Rounds of one run are not
independent, so rows are never left out by themselves. ``return_gain_without_actors`` is the same regression without
ln n': what the number of actors explains is the difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime.errors import RunDirectoryError
from runtime.records.files import to_json, write_atomically
from runtime.scaler.saved_scheduler import Seen
from runtime.scheduler.recordings import Recording

VERSION: Final = 1
_TINY: Final = 1e-9
_HIGHEST_SHARE: Final = 3.0

Points = dict[str, np.ndarray]


def _gain(p: Points) -> list[Any]:
    return [1.0, p["share"], p["share"] ** 2, p["log_before"], p["share"] * p["log_before"], p["log_k"]]


def _regressors(p: Points) -> list[Any]:
    return [1.0, p["share"], p["log_n"], p["log_k"]]


FORMS: Final[Mapping[str, Callable[[Points], list[Any]]]] = {
    "return_gain": _gain,
    "return_gain_without_actors": lambda p: [1.0, p["share"], p["share"] ** 2, p["log_k"]],
    "log_actor_s": lambda p: [1.0],
    "learner_s": lambda p: [1.0, p["n"]],
    "round_s": lambda p: [1.0, p["actor_s"], p["learner_s"], p["log_n"]],
    "usd": lambda p: [1.0, p["n"] * p["actor_s"], p["round_s"]],
    "log_kl": _regressors,
    "log_loss": _regressors,
}
"""Regressors of each quantity."""


@dataclass(frozen=True)
class Surrogate:
    """A fitted workload; see the head of this file.

    Attributes:
        workload: As of `Recording.workload`.
        coefficients: Of each quantity of `FORMS`.
        noise: Standard deviation of each residual; that of the gain is ``(a, b)``, over the share.
        start: Mean and standard deviation of the first share.
        reached_share: The training episodes' share at which evaluations find the target reached.
        reserve_usd: What was left when recorded runs ended for want of budget: the next round's worst case.
        reference_s: Mean modelled seconds of a recorded run.
        held_out: By quantity, ``r2`` and ``rmse`` on runs that were left out.
        recorded: ``runs``, ``rounds``, and what they have cost: ``usd``, ``modelled_s``.
    """

    workload: Mapping[str, Any]
    coefficients: Mapping[str, Sequence[float]]
    noise: Mapping[str, Sequence[float]]
    start: Sequence[float]
    reached_share: float
    reserve_usd: float
    reference_s: float
    held_out: Mapping[str, Mapping[str, float]]
    recorded: Mapping[str, float]

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        write_atomically(path, to_json({"version": VERSION, **vars(self)}))

    @classmethod
    def load(cls, path: Path) -> Surrogate:
        """Reads it.

        Raises:
            RunDirectoryError: It cannot be read, or is none.
        """
        try:
            tree = json.loads(path.read_bytes())
            if tree.pop("version") != VERSION:
                raise ValueError("it is of another version of this program")
            found = cls(**tree)
            sizes = {name: len(form({key: np.zeros(1) for key in _KEYS})) for name, form in FORMS.items()}
            if {name: len(values) for name, values in found.coefficients.items()} != sizes:
                raise ValueError("its coefficients do not fit its form")
            if not np.isfinite([one for values in found.coefficients.values() for one in values]).all():
                raise ValueError("its coefficients are not finite")
            return found
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunDirectoryError(f"{path} is no surrogate: {error}") from None

    def predicted(self, name: str, points: Points) -> float:
        """Returns a quantity without its noise, of one point."""
        return float(np.dot(self.coefficients[name], [float(np.squeeze(one)) for one in FORMS[name](points)]))


_KEYS: Final = ("share", "log_before", "log_n", "log_k", "n", "actor_s", "learner_s", "round_s")


def points_of(run: Recording) -> Points:
    """Returns regressors and quantities of a run's rounds, float64 ``[K]`` each; NaN where there is none.

    ``share`` is that before the round, as all that a round's results depend on.
    """
    rows, shares = run.rows, np.array(run.shares)
    counts = np.array([row.actor_count for row in rows], np.float64)
    before = np.concatenate([[np.nan], shares[:-1]])
    # Where no episode has ended yet there is no share, and none to gain on.
    before[[i for i in range(len(rows)) if all(row.episode_return_mean is None for row in rows[:i])]] = np.nan
    actor_s = np.array([row.actor_billed_s_mean or math.nan for row in rows])
    with np.errstate(invalid="ignore"):
        return {
            "share": before, "return_gain": shares - before, "log_k": np.log(np.arange(1.0, len(rows) + 1.0)),
            "n": counts, "log_n": np.log(counts), "log_before": np.log(np.concatenate([[np.nan], counts[:-1]])),
            "actor_s": actor_s, "log_actor_s": np.log(actor_s),
            "learner_s": np.array([row.modelled_learn_s for row in rows]),
            "round_s": np.array([row.modelled_round_s for row in rows]),
            "usd": np.array([row.round_cost_usd for row in rows]),
            "log_kl": np.log(np.maximum([row.kl for row in rows], _TINY)),
            "log_loss": np.log(np.maximum(np.abs([row.policy_loss + row.value_loss for row in rows]), _TINY))}


def fit(runs: Sequence[Recording]) -> Surrogate:
    """Fits the surrogate of recorded runs of one workload.

    Raises:
        RunDirectoryError: They are fewer than two, or too short.
    """
    if len(runs) < 2 or sum(len(run.rows) for run in runs) < 20:
        raise RunDirectoryError(f"{len(runs)} recorded runs with {sum(len(run.rows) for run in runs)} rounds; a "
                                "surrogate takes two runs and 20 rounds at least")
    each = [points_of(run) for run in runs]
    whole = _joined(each)
    coefficients = {name: _least_squares(name, whole) for name in FORMS}
    firsts = np.array([next((share for share, row in zip(run.shares, run.rows, strict=True)
                             if row.episode_return_mean is not None), 0.0) for run in runs])
    reached = [run.shares[-1] for run in runs if run.is_success]
    left = [run.budget_usd - sum(row.round_cost_usd for row in run.rows) for run in runs if run.stop_reason == "budget"]
    return Surrogate(
        workload=runs[0].workload, coefficients={name: list(map(float, one)) for name, one in coefficients.items()},
        noise=_noise(whole, coefficients), start=[float(firsts.mean()), float(firsts.std())],
        reached_share=float(np.mean(reached)) if reached else 1.0, reserve_usd=float(np.mean(left)) if left else 0.0,
        reference_s=float(np.mean([run.modelled_s for run in runs])), held_out=_held_out(each),
        recorded={"runs": len(runs), "rounds": sum(len(run.rows) for run in runs),
                  "usd": sum(run.spent_usd for run in runs), "modelled_s": sum(run.modelled_s for run in runs)})


def _joined(each: Sequence[Points]) -> Points:
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


def _design(name: str, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """The regressors ``[K, P]`` and the quantity ``[K]`` of all points that have both."""
    y = points[name.removesuffix("_without_actors")]
    x = np.stack(np.broadcast_arrays(*FORMS[name](points), y)[:-1], axis=1)
    known = np.isfinite(x).all(1) & np.isfinite(y)
    return x[known], y[known]


def _least_squares(name: str, points: Points) -> np.ndarray:
    x, y = _design(name, points)
    found: np.ndarray = np.linalg.lstsq(x, y, rcond=None)[0]
    return found


def _noise(points: Points, coefficients: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    noise = {}
    for name, one in coefficients.items():
        x, y = _design(name, points)
        noise[name] = [float(np.std(y - x @ one))]
    x, y = _design("return_gain", points)
    size = np.abs(y - x @ coefficients["return_gain"])
    line = np.linalg.lstsq(x[:, :2], size, rcond=None)[0] * math.sqrt(math.pi / 2.0)
    return noise | {"return_gain": list(map(float, line))}


def _held_out(each: Sequence[Points]) -> dict[str, dict[str, float]]:
    found = {}
    for name in FORMS:
        squares = total = count = 0.0
        for left_out in range(len(each)):
            others = _joined([*each[:left_out], *each[left_out + 1:]])
            x, y = _design(name, each[left_out])
            squares += float(np.square(y - x @ _least_squares(name, others)).sum())
            total += float(np.square(y - _design(name, others)[1].mean()).sum())
            count += len(y)
        found[name] = {"r2": 1.0 - squares / total if total > 0.0 else 0.0, "rmse": math.sqrt(squares / max(count, 1))}
    return found


class SurrogateRun:
    """One run of the surrogate: like a run of the engine, with rounds and an end.

    Attributes:
        seen: What a scheduler has seen.
        round_index: The round that is to be decided about, from 1.
        shares: R̄/J of the finished rounds.
    """

    def __init__(self, surrogate: Surrogate, generator: np.random.Generator) -> None:
        self._surrogate, self._generator = surrogate, generator
        self.seen, self.round_index = Seen(), 1
        self.shares: list[float] = []
        self.is_success = False
        self._count_before, self._steps = 0, 0

    def play(self, actors: int) -> bool:
        """Plays a round with so many actors; returns whether the run goes on."""
        surrogate, n = self._surrogate, float(actors)
        share = self.shares[-1] if self.shares else 0.0
        at: dict[str, Any] = {
            "share": share, "log_before": math.log(self._count_before or n), "n": n, "log_n": math.log(n),
            "log_k": math.log(self.round_index)}
        at["actor_s"] = math.exp(self._drawn("log_actor_s", at))
        at["learner_s"] = max(self._drawn("learner_s", at), 0.0)
        at["round_s"] = max(self._drawn("round_s", at), at["learner_s"])
        usd = max(surrogate.predicted("usd", at), 0.0)
        if self.shares:
            slope = surrogate.noise["return_gain"]
            share += surrogate.predicted("return_gain", at) + self._generator.normal() * max(
                slope[0] + slope[1] * share, _TINY)
        else:
            share = surrogate.start[0] + self._generator.normal() * surrogate.start[1]
        self.shares.append(min(max(share, -_HIGHEST_SHARE), _HIGHEST_SHARE))
        target = float(surrogate.workload["target_return"])
        self.seen = Seen(
            loss=math.exp(self._drawn("log_loss", at)),
            return_mean=target + (self.shares[-1] - 1.0) * (abs(target) or 1.0), kl=math.exp(self._drawn("log_kl", at)),
            learner_s=at["learner_s"], actor_s=at["actor_s"], round_s=at["round_s"],
            spent_usd=self.seen.spent_usd + usd)
        self._count_before, self._steps = actors, self._steps + actors * int(surrogate.workload["fragment_steps"])
        self.is_success = self.shares[-1] >= surrogate.reached_share and self._left_usd >= 0.0
        self.round_index += 1
        return not (self.is_success or self._is_over())

    @property
    def _left_usd(self) -> float:
        return float(self._surrogate.workload["budget_usd"]) - self.seen.spent_usd

    def _is_over(self) -> bool:
        workload = self._surrogate.workload
        return (self._left_usd < max(self._surrogate.reserve_usd, _TINY)
                or (workload["max_steps"] is not None and self._steps >= workload["max_steps"])
                or (workload["max_rounds"] is not None and self.round_index > workload["max_rounds"])
                or self.round_index > ROUNDS_MAX)

    def _drawn(self, name: str, at: Points) -> float:
        return self._surrogate.predicted(name, at) + self._generator.normal() * self._surrogate.noise[name][0]


ROUNDS_MAX: Final = 2000
"""Rounds of a surrogate's run, whatever its limits."""
