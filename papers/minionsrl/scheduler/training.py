"""Trains the scheduler with this project's own PPO, on a surrogate or on real runs, with one update per episode.

An episode is one run. Its rounds are the steps, in minibatches of one, two or four. The reward of round k is
``−β·P_k/T``, with P_k the round's seconds and T a typical run's. A run that misses its target also gets
``max_k R̄_k/J − 1`` in its last round. So a failure costs ten times a typical run's time, regardless of the return's
units.

On the surrogate of Hopper rounds come out right, and the seconds of large rounds a quarter too long.

Paper: MinionsRL, "Reward", "Training MinionsRL's Scheduler", Table 1. Departure: the paper adds seconds and returns,
without T and J (docs/decisions/0017-scheduler.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from papers.minionsrl.scheduler.recordings import Recording, read_recording
from papers.minionsrl.scheduler.surrogate import Surrogate, SurrogateRun
from runtime.errors import CheckpointError, RunError
from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.instance_types import CPU_TYPES
from runtime.learner.interfaces import Batch
from runtime.money.prices import PRICES
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.state import State
from runtime.scaler.minions_settings import SUFFIX
from runtime.scaler.saved_scheduler import FEATURES, Pricing, SavedScheduler, Seen

if TYPE_CHECKING:
    from runtime.learner.ppo import Ppo

BETA: Final = 0.1
NETWORK: Final = "mlp tanh 64 64"
LEARNING_RATES: Final = (0.001, 0.005, 0.01)
"""Paper: MinionsRL Table 1; its text names 0.005."""
MINIBATCHES: Final = (1, 2, 4)
"""Rounds per gradient step. Paper: MinionsRL Table 1."""
EPOCHS: Final = 4
"""Passes over an episode. The paper does not give the number."""
_SURROGATE_STREAM: Final = 0x5C4ED
_MOMENTS_WEIGHT: Final = 100


@dataclass(frozen=True)
class Episode:
    """One run, as its scheduler saw it.

    Attributes:
        states: float32 ``[K, 8]``.
        actions: Indices of counts, int64 ``[K]``.
        rewards: float64 ``[K]``.
        is_success: Whether it reached its target.
        seconds: Its time, by counts.
        usd: Its cost, by counts.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    is_success: bool
    seconds: float
    usd: float


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


def episode_of(run: Recording, *, actors_min: int, reference_s: float) -> Episode:
    """Returns a real run as an episode.

    Args:
        run: A run of ``scaler.kind = minions`` with its scheduler's bounds.
        actors_min: Actors of the scheduler's first output.
        reference_s: See `rewards`.
    """
    seen, states = Seen(), []
    for row, priced in zip(run.rows, run.priced, strict=True):
        states.append(
            seen.state(row.round_index, target_return=run.target_return, budget_usd=run.budget_usd)
        )
        seen = seen.after(row, priced)
    return Episode(
        np.stack(states),
        np.array([row.actor_count_wanted - actors_min for row in run.rows], np.int64),
        rewards(
            [one.round_s for one in run.priced],
            run.shares,
            is_success=run.is_success,
            reference_s=reference_s,
        ),
        run.is_success,
        run.seconds,
        run.spent_usd,
    )


Decide = Callable[[np.ndarray], int]
"""Maps a state to the index of a count."""


def play(surrogate: Surrogate, decide: Decide, generator: np.random.Generator) -> Episode:
    """Plays one run of the surrogate.

    Args:
        decide: Chooses a count; the first index is the workload's ``actors_min``.
        generator: Source of the surrogate's randomness.
    """
    run, workload = SurrogateRun(surrogate, generator), surrogate.workload
    target_return, budget_usd = float(workload["target_return"]), float(workload["budget_usd"])
    states, actions, round_s, goes_on = [], [], [], True
    while goes_on:
        states.append(
            run.seen.state(run.round_index, target_return=target_return, budget_usd=budget_usd)
        )
        actions.append(decide(states[-1]))
        goes_on = run.play(int(workload["actors_min"]) + actions[-1])
        round_s.append(run.seen.round_s)
    return Episode(
        np.stack(states),
        np.array(actions, np.int64),
        rewards(round_s, run.shares, is_success=run.is_success, reference_s=surrogate.reference_s),
        run.is_success,
        sum(round_s),
        run.seen.spent_usd,
    )


def sampled(policy: Policy, generator: np.random.Generator) -> Decide:
    """Returns a decision that draws from a scheduler's distribution."""
    return lambda state: int(policy.sample(policy.outputs(state), policy.noise(generator, 1)[0]))


def greedy(policy: Policy) -> Decide:
    """Returns a decision that takes the likeliest count."""
    return lambda state: int(policy.best_action(state))


def always(index: int) -> Decide:
    """Returns a decision that takes the same count in every round."""
    return lambda state: index


class SchedulerLearner:
    """A scheduler that is being trained.

    Attributes:
        actors_min: Actors of the first output.
        actors_max: Actors of the last one.
        ppo: Its learner.
        settings: Settings of its training, for the scheduler's history.
    """

    def __init__(
        self,
        actors_min: int,
        actors_max: int,
        *,
        learning_rate: float = 0.005,
        minibatch_rounds: int = 2,
        seed: int = 0,
    ) -> None:
        """Creates a new scheduler, which draws nearly uniformly.

        Args:
            actors_min: Fewest actors that it chooses.
            actors_max: Most actors that it chooses.
            learning_rate: Adam's learning rate, one of `LEARNING_RATES`.
            minibatch_rounds: Rounds per gradient step, one of `MINIBATCHES`.
            seed: Seed of its networks and of the order of its rounds.
        """
        # Imported here, so that uses without training need no torch.
        from runtime.learner import LearnerSpec
        from runtime.learner.ppo import Ppo

        self.actors_min, self.actors_max = actors_min, actors_max
        self.settings = {
            "learning_rate": learning_rate,
            "minibatch_rounds": minibatch_rounds,
            "epochs": EPOCHS,
        }
        settings = dict(
            learning_rate=learning_rate,
            discount=0.99,
            clip=0.2,
            kl_coefficient=0.0,
            entropy_coefficient=0.01,
            value_coefficient=0.5,
            minibatch_steps=minibatch_rounds,
            epochs=EPOCHS,
            normalize_observations=True,
        )
        self.ppo: Ppo = Ppo(
            LearnerSpec(
                ALGORITHMS.choose({"kind": "ppo", **settings}),
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
        from lambda_actor import wire

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


# On a surrogate


def train_on_surrogate(
    learner: SchedulerLearner,
    surrogate: Surrogate,
    *,
    episodes: int,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Trains for a number of episodes. Returns the entry for the scheduler's history, including the cost.

    The cost includes the recording and this training: its CPU seconds here, at an instance's price.
    """
    started_s, found = time.process_time(), []
    for number in range(1, episodes + 1):
        generator = np.random.default_rng((_SURROGATE_STREAM, seed, number))
        found.append(play(surrogate, sampled(learner.policy, generator), generator))
        learner.update(found[-1])
        if number % max(episodes // 10, 1) == 0:
            last = found[-max(episodes // 10, 1) :]
            say(
                f"episode {number:5d}: return {np.mean([one.rewards.sum() for one in last]):+.3f}, "
                f"target reached {np.mean([one.is_success for one in last]):.0%}, "
                f"{np.mean([one.seconds for one in last]):.0f} s, ${np.mean([one.usd for one in last]):.4f}"
            )
    seconds = time.process_time() - started_s
    return {
        "phase": "pre-trained on a surrogate",
        **_task(surrogate.workload),
        "episodes": episodes,
        "seed": seed,
        **learner.settings,
        "recording_usd": surrogate.recorded["usd"],
        "recording_s": surrogate.recorded["seconds"],
        "recorded_runs": surrogate.recorded["runs"],
        "held_out_r2": surrogate.held_out["return_gain"]["r2"],
        "usd": surrogate.recorded["usd"]
        + seconds / 3600.0 * PRICES.instance_hour_usd[CPU_TYPES[0]],
        "cpu_s": seconds,
    }


def compared(
    surrogate: Surrogate, policy: Policy, *, episodes: int, seed: int
) -> dict[str, list[Episode]]:
    """Plays a scheduler, random counts and fixed ones on the surrogate, each with the same random numbers."""
    lowest, highest = int(surrogate.workload["actors_min"]), int(surrogate.workload["actors_max"])
    fixed = sorted({round(one) for one in np.geomspace(lowest, highest, 5)})
    draws = np.random.default_rng((seed, lowest, highest))
    rules: dict[str, Decide] = {
        "scheduler, sampled": sampled(policy, draws),
        "scheduler, greedy": greedy(policy),
        "uniformly random": lambda state: int(draws.integers(highest - lowest + 1)),
        **{f"fixed at {count}": always(count - lowest) for count in fixed},
    }
    return {
        name: [
            play(surrogate, rule, np.random.default_rng((_SURROGATE_STREAM, seed, number, 2)))
            for number in range(episodes)
        ]
        for name, rule in rules.items()
    }


# On real runs

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
    phase: str,
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
        phase: Name of this phase in the history.
        identity: Values that must not change between calls.
        say: Prints a line.

    Raises:
        RunError: The directory holds another training, or a run failed.
    """
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
    while done < episodes:
        number = done + 1
        path, scheduler = (
            directory / f"episode-{number:04d}",
            directory / f"scheduler-{number:04d}{SUFFIX}",
        )
        learner.saved([], pricing).save(scheduler)
        play_run(number, scheduler, path)
        run = read_recording(path, pricing)
        reference_s = read_recording(directory / "episode-0001", pricing).seconds
        episode = episode_of(run, actors_min=learner.actors_min, reference_s=reference_s)
        learner.update(episode)
        state = learner.ppo.get_state()
        save_checkpoint(
            checkpoints,
            Checkpoint(number, state.arrays, {"learner": state.values, "identity": identity}),
        )
        done = number
        say(
            f"episode {number:4d}: return {episode.rewards.sum():+.3f}, {run.stop_reason}, {len(run.rows)} rounds, "
            f"{episode.actions.mean() + learner.actors_min:.1f} actors, {episode.seconds:.0f} s, ${episode.usd:.4f} "
            "(by counts)"
        )
    runs = [
        read_recording(directory / f"episode-{number:04d}", pricing)
        for number in range(1, episodes + 1)
    ]
    return {
        "phase": phase,
        **_task(runs[0].workload),
        "episodes": episodes,
        **learner.settings,
        "usd": sum(run.spent_usd for run in runs),
        "seconds": sum(run.seconds for run in runs),
        "reached": sum(run.is_success for run in runs),
    }


def _task(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {key: workload[key] for key in ("environment_id", "target_return", "budget_usd")}
