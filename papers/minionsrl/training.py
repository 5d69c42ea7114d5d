"""Trains the scheduler on real runs with this project's own PPO, with one update per episode.

An episode is one run. Its rounds are the steps. The reward of round k is ``−β·P_k/T``, with P_k the round's seconds and
T the first run's. A run that misses its target also gets ``max_k R̄_k/J − 1`` in its last round. So a failure costs ten
times a typical run's time, regardless of the return's units.

Paper: MinionsRL, "Reward", "Training MinionsRL's Scheduler", Table 1. Departure: the paper adds seconds and returns,
without T and J (docs/decisions/minionsrl.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lambda_actor import wire
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from papers.minionsrl.runs import FinishedRun, read_run
from runtime.errors import CheckpointError, RunError
from runtime.experiment.algorithm import ALGORITHMS
from runtime.learner.interfaces import Batch
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.state import State
from runtime.scaler.minions_settings import SUFFIX
from runtime.scaler.saved_scheduler import FEATURES, Pricing, SavedScheduler, Seen, return_share

if TYPE_CHECKING:
    from runtime.learner.ppo import Ppo

BETA: Final = 0.1
NETWORK: Final = "mlp tanh 64 64"
SETTINGS: Final[Mapping[str, Any]] = {
    "kind": "ppo",
    "learning_rate": 0.005,
    "discount": 0.99,
    "minibatch_steps": 2,
    "clip": 0.2,
    "kl_coefficient": 0.0,
    "entropy_coefficient": 0.01,
    "value_coefficient": 0.5,
    # Not in the paper. The authors' code has λ = 1, one epoch, and PyTorch's Adam.
    "gae_lambda": 1.0,
    "epochs": 4,
    "adam_epsilon": 1e-8,
    "normalize_observations": True,
}
"""Of Table 1's ranges, the middle or the value that the text names."""
_MOMENTS_WEIGHT: Final = 100


@dataclass(frozen=True)
class Episode:
    """One run, as its scheduler saw it.

    Attributes:
        states: float32 ``[K, 8]``.
        actions: Indices of counts, int64 ``[K]``.
        rewards: float64 ``[K]``.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


def rewards(
    round_s: Sequence[float], shares: Sequence[float], *, is_success: bool, reference_s: float
) -> np.ndarray:
    """Returns the reward of each round, float64 ``[K]``; see the module's docstring.

    Args:
        round_s: P_k, seconds of each round.
        shares: R̄_k/J of each round.
        is_success: Whether the run reached its target within its budget.
        reference_s: T, seconds of a typical run.
    """
    found = -BETA * np.asarray(round_s, np.float64) / reference_s
    if not is_success:
        found[-1] += min(max(shares) - 1.0, 0.0)
    return found


def episode_of(run: FinishedRun, *, actors_min: int, reference_s: float) -> Episode:
    """Returns a real run as an episode.

    Args:
        run: A run of ``scaler.kind = minions`` with its scheduler's bounds.
        actors_min: Actors of the scheduler's first output.
        reference_s: See `rewards`.
    """
    seen = Seen()
    states = []
    shares = []
    for row, priced in zip(run.rows, run.priced, strict=True):
        states.append(
            seen.state(
                row.round_index,
                target_return=run.target_return,
                budget_usd=run.experiment.budget.usd,
            )
        )
        seen = seen.after(row, priced)
        mean = seen.return_mean
        shares.append(0.0 if mean is None else return_share(mean, run.target_return))
    return Episode(
        np.stack(states),
        np.array([row.actor_count_wanted - actors_min for row in run.rows], np.int64),
        rewards(
            [priced.round_s for priced in run.priced],
            shares,
            is_success=run.is_success,
            reference_s=reference_s,
        ),
    )


class SchedulerLearner:
    """A scheduler that is being trained.

    Attributes:
        actors_min: Actors of the first output.
        actors_max: Actors of the last one.
        ppo: Its learner.
    """

    def __init__(self, actors_min: int, actors_max: int, *, seed: int = 0) -> None:
        """Creates a new scheduler, which draws nearly uniformly.

        Args:
            actors_min: Fewest actors that it chooses.
            actors_max: Most actors that it chooses.
            seed: Seed of its networks and of the order of its rounds.
        """
        # Imported here, so that uses without training need no torch.
        from runtime.learner import LearnerSpec
        from runtime.learner.ppo import Ppo

        self.actors_min = actors_min
        self.actors_max = actors_max
        self.ppo: Ppo = Ppo(
            LearnerSpec(
                ALGORITHMS.choose(dict(SETTINGS)),
                Spaces((len(FEATURES),), action_count=actors_max - actors_min + 1),
                NETWORK,
                seed,
            )
        )

    @property
    def policy(self) -> Policy:
        """What acts now."""
        return Policy.from_bytes(self.ppo.weights())

    def update(self, episode: Episode) -> None:
        """Trains on an episode played by `policy`."""
        policy = self.policy
        outputs = np.stack([policy.outputs(state).copy() for state in episode.states])
        count = len(episode.actions)
        ends = np.zeros((count, 1), bool)
        ends[-1] = True
        self.ppo.update(
            Batch(
                policy_versions=np.array([self.ppo.policy_version]),
                lengths=np.array([count]),
                observations=episode.states[:, None],
                actions=episode.actions[:, None],
                log_probs=policy.log_probs(outputs, episode.actions, np.zeros(count))[:, None],
                rewards=episode.rewards[:, None],
                terminated=ends,
                bootstrap_mask=np.zeros_like(ends),
                bootstrap_observations=np.zeros((0, len(FEATURES)), np.float32),
            ),
            progress=0.0,
        )

    def saved(self, history: Sequence[Mapping[str, Any]], pricing: Pricing) -> SavedScheduler:
        """Returns the scheduler in its file format, with the seconds and prices that it was trained with."""
        arrays = wire.decode(self.ppo.weights(), wire.Kind.WEIGHTS) | {
            name: array
            for name, array in self.ppo.snapshot().arrays.items()
            if name.startswith("critic.")
        }
        return SavedScheduler(arrays, self.actors_min, pricing, tuple(history))

    def take(self, saved: SavedScheduler) -> None:
        """Continues from a saved scheduler, with a new optimizer.

        Its observations so far count like `_MOMENTS_WEIGHT` rounds, so that a few episodes of another task shift the
        normalization of states.

        Raises:
            CheckpointError: It has different layers or counts.
        """
        fields = saved.arrays
        state = self.ppo.get_state()
        arrays = dict(state.arrays)
        for index, name in enumerate(("layers.0", "layers.2", "layers.4")):
            for part in ("weight", "bias"):
                arrays[f"policy.{name}.{part}"] = np.array(fields[f"layer.{index}.{part}"])
                if f"critic.{name}.{part}" not in fields:
                    raise CheckpointError(
                        "the scheduler's file has no critic, so that it cannot be trained further"
                    )
                arrays[f"critic.{name}.{part}"] = np.array(fields[f"critic.{name}.{part}"])
        if other := [
            name for name, array in arrays.items() if array.shape != state.arrays[name].shape
        ]:
            raise CheckpointError(
                f"the scheduler's file has a {other[0]} of another size than this program trains"
            )
        arrays["moments.mean"] = fields["observation_mean"].astype(np.float64)
        arrays["moments.variance"] = np.square(fields["observation_std"].astype(np.float64))
        self.ppo.set_state(State(arrays, {**state.values, "moments_count": _MOMENTS_WEIGHT}))


PlayRun = Callable[[int, Path, Path], None]
"""Trains the workload once, given the episode's number, from 1, the scheduler's file and the run's directory. Continues
a run in that directory."""


def train_on_runs(
    learner: SchedulerLearner,
    pricing: Pricing,
    directory: Path,
    play_run: PlayRun,
    *,
    episodes: int,
    identity: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Trains on a number of real runs. Returns the entry for the scheduler's history, including their cost.

    The directory keeps each run, and the learner's state after the last two, so that a killed process loses no finished
    episode.

    Args:
        learner: A new learner, or the start of fine-tuning.
        pricing: Seconds and prices of the rounds.
        directory: The directory of the runs.
        play_run: Plays an episode.
        episodes: Total number, including earlier calls.
        identity: Values that must not change between calls; `SETTINGS` are added.
        say: Prints a line.

    Raises:
        RunError: The directory holds another training, or a run failed.
    """

    def read(number: int) -> FinishedRun:
        return read_run(directory / f"episode-{number:04d}", pricing)

    identity = {**identity, **SETTINGS}
    directory.mkdir(parents=True, exist_ok=True)
    checkpoints = directory / "checkpoints"
    found = load_newest_checkpoint(checkpoints, lambda stem, reason: say(f"! {stem}: {reason}"))
    done = 0
    if found is not None:
        there = found.values["identity"]
        if different := [
            f"{key} = {there.get(key)!r}, here {value!r}"
            for key, value in identity.items()
            if there.get(key) != value
        ]:
            raise RunError(
                f"{directory}: holds another training ({'; '.join(different)}); name another --out"
            )
        learner.ppo.set_state(State(dict(found.arrays), found.values["learner"]))
        done = found.round_index
        say(f"going on after episode {done}")
    for number in range(done + 1, episodes + 1):
        scheduler = directory / f"scheduler-{number:04d}{SUFFIX}"
        learner.saved([], pricing).save(scheduler)
        play_run(number, scheduler, directory / f"episode-{number:04d}")
        run = read(number)
        episode = episode_of(run, actors_min=learner.actors_min, reference_s=read(1).seconds)
        learner.update(episode)
        state = learner.ppo.get_state()
        save_checkpoint(
            checkpoints,
            Checkpoint(number, state.arrays, {"learner": state.values, "identity": identity}),
        )
        say(
            f"episode {number:4d}: return {episode.rewards.sum():+.3f}, {run.stop_reason}, {len(run.rows)} rounds, "
            f"{episode.actions.mean() + learner.actors_min:.1f} actors, {run.seconds:.0f} s, ${run.spent_usd:.4f} "
            "(by counts)"
        )
    runs = [read(number) for number in range(1, episodes + 1)]
    experiment = runs[0].experiment
    return {
        "phase": "trained on real runs",
        "environment_id": experiment.environment.id,
        "target_return": runs[0].target_return,
        "budget_usd": experiment.budget.usd,
        "max_steps": experiment.stop.max_steps,
        "episodes": episodes,
        "reached": sum(run.is_success for run in runs),
        "env_steps": sum(row.env_steps for run in runs for row in run.rows),
        "seconds": sum(run.seconds for run in runs),
        "usd": sum(run.spent_usd for run in runs),
    }
