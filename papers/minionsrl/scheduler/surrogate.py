"""A surrogate of a workload: predicts a round's results, fitted to recorded runs with random numbers of actors.

Let r = R̄/J (`runtime.scaler.saved_scheduler.return_share`), x the level around which r scatters, n the actors in round
k, whose update makes the policy of round k + 1, and N = Σ n so far. Then

    x_{k+1} − x_k   = f · (n, n·ln N) + e,       r_k = x_k + N(0, (a + b·x_k)²)
    ln actor_s      ~ N(μ, σ²)
    learner_s       = l · (1, n) + e
    round_s         = p · (1, actor_s, learner_s, ln n) + e
    dollars         = c · (1, n·actor_s, round_s)
    ln KL, ln loss  = q · (1, r, ln n, ln k) + e

Coefficients are fitted by least squares, and each e by the residuals. f is fitted to the level's gain in a window of 20
rounds (a third of the shortest run, if that is less), with the regressors of these rounds summed. The level is the mean
of five rounds, weighted by their episodes. From one round to the next, the chance of a few episodes outweighs an
update's gain, and a regression on the last round's return would mostly find regression to the mean. All actors of a
round contribute equally, and less the more samples there have been. More regressors (the level, ln k, ln n) explained
no more on nine held-out runs of Hopper, and less with constant counts.

Errors are measured on held-out runs, each once (`held_out`): R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)², with ȳ of the other runs.
Whole runs are held out because rounds of one run are not independent. KL and loss are not predicted (R² −0.14 and −0.03
on Hopper). ``return_gain_without_actors`` is a regression on (1, ln k): the difference to it is the part that the
number of actors explains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from papers.minionsrl.scheduler.recordings import BOUNDS, Recording
from runtime.errors import RunDirectoryError
from runtime.records.files import to_json, write_atomically
from runtime.scaler.saved_scheduler import Seen

VERSION: Final = 3
WINDOW_ROUNDS: Final = 20
_SMOOTHED_ROUNDS: Final = 5
_TINY: Final = 1e-9
_HIGHEST_SHARE: Final = 3.0

Points = dict[str, np.ndarray]


def _regressors(p: Points) -> list[Any]:
    return [1.0, p["share"], p["log_n"], p["log_k"]]


FORMS: Final[Mapping[str, Callable[[Points], list[Any]]]] = {
    "return_gain": lambda p: [p["n"], p["n"] * p["log_sum"]],
    "return_gain_without_actors": lambda p: [1.0, p["log_k"]],
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
    """A fitted workload; see the module's docstring.

    Attributes:
        workload: See `Recording.workload`.
        coefficients: Coefficients of each quantity of `FORMS`.
        noise: Standard deviation of each residual, for the gain of one round; ``share`` is ``(a, b)``.
        start: Mean and standard deviation of the first share.
        reached_share: The training episodes' level at which evaluations find the target reached.
        reserve_usd: Money left when recorded runs ended for lack of budget: the next round's worst case.
        reference_s: Mean seconds of a recorded run.
        window_rounds: Rounds over which gains were fitted.
        held_out: By quantity, ``r2`` and ``rmse`` on held-out runs; for the gain, over a window.
        recorded: ``runs``, ``rounds``, and their cost: ``usd``, ``seconds``.
        pricing: Seconds and prices of its rounds; see `runtime.scaler.saved_scheduler.Pricing`.
    """

    workload: Mapping[str, Any]
    coefficients: Mapping[str, Sequence[float]]
    noise: Mapping[str, Sequence[float]]
    start: Sequence[float]
    reached_share: float
    reserve_usd: float
    reference_s: float
    window_rounds: int
    held_out: Mapping[str, Mapping[str, float]]
    recorded: Mapping[str, float]
    pricing: Mapping[str, float]

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        write_atomically(path, to_json({"version": VERSION, **vars(self)}))

    @classmethod
    def load(cls, path: Path) -> Surrogate:
        """Reads a surrogate.

        Raises:
            RunDirectoryError: The file cannot be read, or is not a surrogate.
        """
        try:
            tree = json.loads(path.read_bytes())
            if tree.pop("version") != VERSION:
                raise ValueError("it is of another version of this program")
            found = cls(**tree)
            sizes = {
                name: len(form({key: np.zeros(1) for key in _KEYS})) for name, form in FORMS.items()
            }
            if {name: len(values) for name, values in found.coefficients.items()} != sizes:
                raise ValueError("its coefficients do not fit its form")
            return found
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunDirectoryError(f"{path} is no surrogate: {error}") from None

    def predicted(self, name: str, points: Points) -> float:
        """Returns a quantity of one point, without noise."""
        return float(
            np.dot(self.coefficients[name], [float(np.squeeze(one)) for one in FORMS[name](points)])
        )


_KEYS: Final = ("share", "log_n", "log_sum", "log_k", "n", "actor_s", "learner_s", "round_s")


def points_of(run: Recording) -> Points:
    """Returns regressors and quantities of a run's rounds, float64 ``[K]`` each; NaN if missing.

    ``share`` is the level, and ``scatter`` the difference of the round's own share from it.
    """
    rows = run.rows
    # Before the first episode ends there is no share.
    has_share = np.cumsum([row.episode_return_mean is not None for row in rows]) > 0
    shares = np.where(has_share, run.shares, np.nan)
    episodes = np.array([row.episodes_finished for row in rows], np.float64) + _TINY
    level = shares.copy()
    if has_share.any():
        around = [
            np.convolve(one, np.ones(_SMOOTHED_ROUNDS))[_SMOOTHED_ROUNDS // 2 :][: has_share.sum()]
            for one in (shares[has_share] * episodes[has_share], episodes[has_share])
        ]
        level[has_share] = around[0] / around[1]
    counts = np.array([row.actor_count for row in rows], np.float64)
    actor_s = np.array([one.actor_s or math.nan for one in run.priced])
    return {
        "share": level,
        "scatter": shares - level,
        "log_k": np.log(np.arange(1.0, len(rows) + 1.0)),
        "n": counts,
        "log_n": np.log(counts),
        "log_sum": np.log(np.cumsum(counts)),
        "actor_s": actor_s,
        "log_actor_s": np.log(actor_s),
        "learner_s": np.array([one.learner_s for one in run.priced]),
        "round_s": np.array([one.round_s for one in run.priced]),
        "usd": np.array([one.usd for one in run.priced]),
        "log_kl": np.log(np.maximum([row.kl or 0.0 for row in rows], _TINY)),
        "log_loss": np.log(
            np.maximum(
                np.abs([(row.policy_loss or 0.0) + (row.value_loss or 0.0) for row in rows]), _TINY
            )
        ),
    }


def fit(runs: Sequence[Recording]) -> Surrogate:
    """Fits a surrogate to recorded runs of one workload.

    Raises:
        RunDirectoryError: There are fewer than two, they are too short, or one has no return.
    """
    if len(runs) < 2 or sum(len(run.rows) for run in runs) < 20:
        raise RunDirectoryError(
            f"{len(runs)} recorded runs with {sum(len(run.rows) for run in runs)} rounds; a "
            "surrogate takes two runs and 20 rounds at least"
        )
    each = [points_of(run) for run in runs]
    if without := [
        run for run, one in zip(runs, each, strict=True) if not np.isfinite(one["share"]).any()
    ]:
        raise RunDirectoryError(
            f"in {len(without)} of {len(runs)} recorded runs no episode has ended; a surrogate "
            "takes runs that have returns, so record longer ones"
        )
    window = max(min(WINDOW_ROUNDS, min(len(run.rows) for run in runs) // 3), 1)
    coefficients = {name: _least_squares(_designs(name, each, window)) for name in FORMS}
    firsts = np.array(
        [
            next(
                (
                    share
                    for share, row in zip(run.shares, run.rows, strict=True)
                    if row.episode_return_mean is not None
                ),
                0.0,
            )
            for run in runs
        ]
    )
    reached = [one["share"][-1] for run, one in zip(runs, each, strict=True) if run.is_success]
    left = [run.budget_usd - run.spent_usd for run in runs if run.stop_reason == "budget"]
    return Surrogate(
        workload={
            **runs[0].workload,
            **{
                name: bound(run.workload[name] for run in runs)
                for name, bound in zip(BOUNDS, (min, max), strict=True)
            },
        },
        coefficients={name: list(map(float, one)) for name, one in coefficients.items()},
        noise=_noise(each, coefficients, window),
        start=[float(firsts.mean()), float(firsts.std())],
        reached_share=float(np.mean(reached)) if reached else 1.0,
        reserve_usd=float(np.mean(left)) if left else 0.0,
        reference_s=float(np.mean([run.seconds for run in runs])),
        window_rounds=window,
        held_out=_held_out(each, window),
        recorded={
            "runs": len(runs),
            "rounds": sum(len(run.rows) for run in runs),
            "usd": sum(run.spent_usd for run in runs),
            "seconds": sum(run.seconds for run in runs),
        },
        pricing=asdict(runs[0].pricing),
    )


Design = tuple[np.ndarray, np.ndarray]
"""Regressors ``[K, P]`` and the quantity ``[K]`` of all points with both."""


def _design(name: str, points: Points, window: int) -> Design:
    if name.startswith("return_gain"):
        x = np.stack(np.broadcast_arrays(*FORMS[name](points), points["share"])[:-1], axis=1)
        sums = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
        x, y = (
            sums[window:-1] - sums[: -1 - window],
            points["share"][window:] - points["share"][:-window],
        )
    else:
        y = points[name]
        x = np.stack(np.broadcast_arrays(*FORMS[name](points), y)[:-1], axis=1)
    known = np.isfinite(x).all(1) & np.isfinite(y)
    return x[known], y[known]


def _designs(name: str, each: Sequence[Points], window: int) -> Design:
    found = [_design(name, points, window) for points in each]
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


def _least_squares(design: Design) -> np.ndarray:
    found: np.ndarray = np.linalg.lstsq(*design, rcond=None)[0]
    return found


def _noise(
    each: Sequence[Points], coefficients: Mapping[str, np.ndarray], window: int
) -> dict[str, list[float]]:
    noise = {}
    for name, one in coefficients.items():
        x, y = _designs(name, each, window)
        rounds = window if name.startswith("return_gain") else 1
        noise[name] = [float(np.std(y - x @ one)) / math.sqrt(rounds)]
    share, scatter = (np.concatenate([one[name] for one in each]) for name in ("share", "scatter"))
    known = np.isfinite(share)
    # E|e| = σ·√(2/π). A mean of m values contains each of them with weight 1/m.
    line = np.polyfit(share[known], np.abs(scatter[known]), 1) * math.sqrt(
        math.pi / 2.0 * _SMOOTHED_ROUNDS / (_SMOOTHED_ROUNDS - 1)
    )
    return noise | {"share": [float(line[1]), float(line[0])]}


def _held_out(each: Sequence[Points], window: int) -> dict[str, dict[str, float]]:
    found = {}
    for name in FORMS:
        squares = total = count = 0.0
        for left_out in range(len(each)):
            others = _designs(name, [*each[:left_out], *each[left_out + 1 :]], window)
            x, y = _design(name, each[left_out], window)
            squares += float(np.square(y - x @ _least_squares(others)).sum())
            total += float(np.square(y - others[1].mean()).sum())
            count += len(y)
        found[name] = {
            "r2": 1.0 - squares / total if total > 0.0 else 0.0,
            "rmse": math.sqrt(squares / max(count, 1)),
        }
    return found


class SurrogateRun:
    """One run of the surrogate, with rounds and an end like a run of the engine.

    Attributes:
        seen: The scheduler's observations so far.
        round_index: The round to decide about, from 1.
        shares: R̄/J of the finished rounds.
    """

    def __init__(self, surrogate: Surrogate, generator: np.random.Generator) -> None:
        self._surrogate, self._generator = surrogate, generator
        self.seen, self.round_index = Seen(), 1
        self.shares: list[float] = []
        self.is_success = False
        self._level = surrogate.start[0] + generator.normal() * surrogate.start[1]
        self._actors = 0

    def play(self, actors: int) -> bool:
        """Plays a round with this number of actors, fewer if max_steps requires. Returns whether the run continues."""
        actors = max(1, self._room_for(actors))
        surrogate, n = self._surrogate, float(actors)
        self._actors += actors
        at: dict[str, Any] = {
            "share": self._level,
            "n": n,
            "log_n": math.log(n),
            "log_sum": math.log(self._actors),
            "log_k": math.log(self.round_index),
        }
        at["actor_s"] = _exp(self._drawn("log_actor_s", at))
        at["learner_s"] = max(self._drawn("learner_s", at), 0.0)
        at["round_s"] = max(self._drawn("round_s", at), at["learner_s"])
        usd = max(surrogate.predicted("usd", at), 0.0)
        slope = surrogate.noise["share"]
        share = self._level + self._generator.normal() * max(slope[0] + slope[1] * self._level, 0.0)
        self.shares.append(_within(share))
        target = float(surrogate.workload["target_return"])
        self.seen = Seen(
            loss=_exp(self._drawn("log_loss", at)),
            return_mean=target + (self.shares[-1] - 1.0) * (abs(target) or 1.0),
            kl=_exp(self._drawn("log_kl", at)),
            learner_s=at["learner_s"],
            actor_s=at["actor_s"],
            round_s=at["round_s"],
            spent_usd=self.seen.spent_usd + usd,
        )
        self.is_success = self._level >= surrogate.reached_share and self._left_usd >= 0.0
        self._level = _within(self._level + self._drawn("return_gain", at))
        self.round_index += 1
        return not (self.is_success or self._is_over())

    def _room_for(self, actors: int) -> int:
        workload = self._surrogate.workload
        if workload["max_steps"] is None:
            return actors
        return min(
            actors, int(workload["max_steps"]) // int(workload["fragment_steps"]) - self._actors
        )

    @property
    def _left_usd(self) -> float:
        return float(self._surrogate.workload["budget_usd"]) - self.seen.spent_usd

    def _is_over(self) -> bool:
        workload = self._surrogate.workload
        return (
            self._left_usd < max(self._surrogate.reserve_usd, _TINY)
            or self._room_for(1) < 1
            or (workload["max_rounds"] is not None and self.round_index > workload["max_rounds"])
            or self.round_index > ROUNDS_MAX
        )

    def _drawn(self, name: str, at: Points) -> float:
        return (
            self._surrogate.predicted(name, at)
            + self._generator.normal() * self._surrogate.noise[name][0]
        )


def _exp(logarithm: float) -> float:
    """Returns e^x, limited so that sums remain finite for values that no round has."""
    return math.exp(min(logarithm, 100.0))


def _within(share: float) -> float:
    return min(max(share, -_HIGHEST_SHARE), _HIGHEST_SHARE)


ROUNDS_MAX: Final = 2000
"""Maximum rounds of a surrogate's run."""
