"""All environments of an instance in one simulation by MuJoCo Warp, on the learner's device.

Samples are made and trained on there. The host only gets what a round's bookkeeping needs: in every step which episodes
end, and finally the rewards and the open episodes. With fragments of 32 steps that is about a quarter (Ant) or a fifth
(Humanoid) of the batch's bytes. Gymnasium's environment provides the model and starts the episodes, so each starts as
it does there. Each slot also has the same random numbers. So results do not depend on which slots share a simulation,
except for rounding: on a GPU, no two simulations are equal to the bit.

Paper: GMI-DRL §6.1; its simulator is Isaac Gym.
Departure: Numbers are float32, and contacts are solved by Newton's method, as PGS, which Humanoid-v5 asks for, is
missing. The friction of a nearly upright capsule on the floor has another pair of axes than in MuJoCo.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import (
    EpisodeStateError,
    NonFiniteTrajectoryError,
    UnusableEnvironmentError,
)
from lambda_actor.policy import LOG_2PI
from lambda_actor.rollout import Fragment, OpenEpisode, random_streams
from runtime.learner.actor_critic import ActorCritic

wp.config.log_level = wp.LOG_WARNING
_OBSERVED = {
    "Ant-v5": (("qpos", 2), ("qvel", 0), ("cfrc_ext", 1)),
    "Humanoid-v5": (
        ("qpos", 2),
        ("qvel", 0),
        ("cinert", 1),
        ("cvel", 1),
        ("qfrc_actuator", 6),
        ("cfrc_ext", 1),
    ),
}
"""Observed arrays of a simulation, and the first observed number or body of each."""
_WRITTEN = ("qpos", "qvel", "qacc_warmstart")
"""Arrays from which a simulation continues."""
_ANY = (-np.inf, np.inf)


class Worlds:
    """Several environments of one kind, each in a world of its own.

    Attributes:
        count: ``W``.
        steps_max: The time limit of an episode.
        observations: Observations of the current states, float32 ``[W, O]``.
    """

    def __init__(self, environment: ActorEnvironment, count: int, device: torch.device) -> None:
        """Compiles the simulation, which takes a minute the first time on a machine.

        Args:
            environment: Ant-v5 or Humanoid-v5, as registered.
            count: Number of worlds.
            device: Their device.
        """
        self.count, self.steps_max, self._environment = (
            count,
            environment.episode_steps_max or np.inf,
            environment,
        )
        bare: Any = environment.gymnasium_environment.unwrapped
        self._bare, model, self._observed = (
            bare,
            copy.copy(bare.model),
            _OBSERVED[environment.environment_id],
        )
        model.opt.solver = mjw.SolverType.NEWTON
        with wp.ScopedDevice(str(device)):
            self._model, self._data = mjw.put_model(model), mjw.make_data(model, nworld=count)
            # Compile first, because nothing can be compiled while recording.
            self._launch()
            with wp.ScopedCapture() as capture:
                self._launch()
        self._graph, is_ant = capture.graph, environment.environment_id == "Ant-v5"
        # Ant's progress is its torso's, Humanoid's its center of mass's.
        self._on_its_way = "xpos" if is_ant else "xipos"
        self._weights = (
            np.eye(model.nbody)[bare._main_body]
            if is_ant
            else model.body_mass / model.body_mass.sum()
        )
        self._now = {
            name: wp.to_torch(getattr(self._data, name))
            for name in {*_WRITTEN, "ctrl", self._on_its_way, *(name for name, _ in self._observed)}
        }
        self._bounds = [
            torch.from_numpy(bound).to(device)
            for bound in (bare.action_space.low, bare.action_space.high)
        ]
        self._weights_there = torch.from_numpy(self._weights).to(device, torch.float32)
        self.observations = torch.zeros((count, environment.spaces.observation_size), device=device)
        self._places = torch.zeros((count, 1), device=device)
        self._parts = (self.observations, *(self._now[name] for name in _WRITTEN), self._places)
        self._sizes = [part.shape[1] for part in self._parts]

    def fresh(self, seed: int) -> np.ndarray:
        """Returns Gymnasium's first state of an episode with this seed, float32 ``[S]``."""
        frame, data = self._environment.reset(seed), self._bare.data
        place = self._weights @ getattr(data, self._on_its_way)[:, :1]
        return np.concatenate(
            [frame, data.qpos, data.qvel, 0.0 * data.qvel, place], dtype=np.float32
        )

    def saved(self, episode: OpenEpisode) -> np.ndarray:
        """Returns the current state of an open episode, float32 ``[S]``.

        Raises:
            EpisodeStateError: The episode belongs to another environment.
        """
        state = np.concatenate(
            [episode.observation, episode.state.get("world", [])], dtype=np.float32
        )
        if state.shape != (sum(self._sizes),):
            raise EpisodeStateError(
                f"{self._environment.environment_id} has no state of {state.size} numbers"
            )
        return state

    def put(self, worlds: Sequence[int] | np.ndarray, states: Sequence[np.ndarray]) -> None:
        """Replaces the states of some worlds."""
        rows, places = (
            torch.as_tensor(one, device=self.observations.device)
            for one in (np.stack(states), worlds)
        )
        for part, new in zip(self._parts, torch.split(rows, self._sizes, 1), strict=True):
            part[places] = new

    def states(self) -> np.ndarray:
        """Returns the states of all worlds, float32 ``[W, S]``; an observation is the first part of each."""
        rows: np.ndarray = torch.cat(self._parts, 1).cpu().numpy()
        return rows

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a step in each world. Worlds without an action repeat their last one.

        Args:
            actions: Actions of the first worlds, ``[n, A]``.

        Returns:
            Their rewards, float32 ``[n]``, and whether the episode terminated, bool ``[n]``.
        """
        count, bare, now = len(actions), self._bare, self._now
        now["ctrl"][:count] = actions.clamp(*self._bounds)
        wp.capture_launch(self._graph)
        places = now[self._on_its_way][:, :, 0] @ self._weights_there
        forces = now["cfrc_ext"].clamp(*getattr(bare, "_contact_force_range", _ANY))
        contact_costs = bare._contact_cost_weight * forces.square().sum((1, 2))
        costs = bare._ctrl_cost_weight * now["ctrl"].square().sum(1) + contact_costs.clamp(
            *getattr(bare, "_contact_cost_range", _ANY)
        )
        heights, (lowest, highest) = now["qpos"][:, 2], bare._healthy_z_range
        is_healthy = (
            (lowest <= heights)
            & (heights <= highest)
            & torch.cat([now["qpos"], now["qvel"]], 1).isfinite().all(1)
        )
        rewards = (
            bare._forward_reward_weight * (places - self._places[:, 0]) / bare.dt
            + bare._healthy_reward * is_healthy
            - costs
        )
        self._places[:, 0] = places
        seen = {**now, "cfrc_ext": forces}
        torch.cat(
            [seen[name][:, first:].flatten(1) for name, first in self._observed],
            1,
            out=self.observations,
        )
        return rewards[:count], ~is_healthy[:count]

    def _launch(self) -> None:
        for _ in range(self._bare.frame_skip):
            mjw.step(self._model, self._data)
        mjw.rne_postconstraint(self._model, self._data)


def make_worlds(event: Mapping[str, Any], device: torch.device) -> Worlds:
    """Makes the worlds of an instance.

    Args:
        event: The first event that needs them; see `lambda_actor.handler.handler`.
        device: Their device.

    Raises:
        UnusableEnvironmentError: A callback changed the registered environment.
    """
    options = event.get("environment_options", {})
    if "kwargs" in options:
        raise UnusableEnvironmentError(
            f"environment.kwargs = {options['kwargs']} with environment.backend = warp"
        )
    return Worlds(
        make_environment(event["environment_id"], event["preprocessing"], options),
        event["worlds"],
        device,
    )


def roll_out(
    worlds: Worlds,
    learner: ActorCritic[Any],
    events: Sequence[Mapping[str, Any]],
    episodes: Sequence[OpenEpisode | None],
) -> list[Fragment | Exception]:
    """Rolls out the fragments of several events, as `lambda_actor.handler.roll_out_events` does.

    Args:
        worlds: At least one for each event.
        learner: Its policy acts.
        events: Events for one policy, with equal ``fragment_steps`` and ``truncate_at_fragment``.
        episodes: The episode that each continues, if any.

    Returns:
        For each event a fragment, with arrays of steps as tensors on the learner's device, or an error.

    Raises:
        EpisodeStateError: An open episode belongs to another environment.
    """
    steps, count, version = events[0]["fragment_steps"], len(events), learner.policy_version
    streams = [
        random_streams(event["seed"], event["round_index"], event["slot"]) for event in events
    ]

    def fresh(world: int) -> np.ndarray:
        return worlds.fresh(int(streams[world][1].integers(2**31)))

    worlds.put(
        range(count),
        [
            fresh(world) if episode is None else worlds.saved(episode)
            for world, episode in enumerate(episodes)
        ],
    )
    log_std, policy = learner.policy.log_std, learner.policy
    assert log_std is not None, "both have continuous actions"
    drawn = np.stack(
        [stream.standard_normal((steps, len(log_std)), np.float32) for stream, _ in streams], 1
    )
    noise = torch.from_numpy(drawn).to(learner.device)
    observations = noise.new_empty((steps, *worlds.observations[:count].shape))
    actions, rewards = torch.empty_like(noise), noise.new_empty((steps, count))
    terminated, truncated, cut = np.empty((3, steps, count), np.bool_)
    lengths = np.array([episode.length if episode else 0 for episode in episodes])
    after: list[list[torch.Tensor]] = [[] for _ in events]
    ends: list[list[tuple[int, int]]] = [[] for _ in events]
    with torch.no_grad():
        for step in range(steps):
            observations[step] = worlds.observations[:count]
            # Compute all worlds, because the rounding of a product depends on its number of rows.
            means = policy.layers(learner.inputs(worlds.observations))[:count]
            actions[step] = means + log_std.exp() * noise[step]
            rewards[step], is_over = worlds.step(actions[step])
            lengths += 1
            terminated[step] = is_over.cpu().numpy()
            truncated[step], is_last = lengths >= worlds.steps_max, step + 1 == steps
            cut[step] = ~terminated[step] & (truncated[step] | is_last)
            going_on = np.flatnonzero(cut[step])
            for place, row in zip(going_on, worlds.observations[going_on], strict=True):
                after[place].append(row)
            ended = np.flatnonzero(terminated[step] | truncated[step]).tolist()
            for world in ended:
                ends[world].append((step + 1, int(lengths[world])))
            if ended and not is_last:
                worlds.put(ended, [fresh(world) for world in ended])
                lengths[ended] = 0
        log_probs = -0.5 * noise.square().sum(2) - log_std.sum() - 0.5 * len(log_std) * LOG_2PI
        is_sound = (
            (observations.isfinite().all(2) & actions.isfinite().all(2) & rewards.isfinite())
            .all(0)
            .cpu()
        )
    states, earned = worlds.states(), rewards.double()
    told, size = rewards.cpu().double().numpy(), worlds.observations.shape[1]
    found: list[Fragment | Exception] = []
    for world, episode in enumerate(episodes):
        stops = [0, *(stop for stop, _ in ends[world])]
        is_open = stops[-1] < steps
        if not is_sound[world] or (is_open and not np.isfinite(states[world]).all()):
            found.append(
                NonFiniteTrajectoryError("a state, action or reward is not finite in MuJoCo Warp")
            )
            continue
        returns = [
            float(told[start:stop, world].sum()) for start, stop in pairwise([*stops, steps])
        ]
        returns[0] += episode.return_so_far if episode else 0.0
        versions = [episode.first_version if episode else version, *(version for _ in ends[world])]
        there: Any = {
            "observations": observations[:, world],
            "actions": actions[:, world],
            "log_probs": log_probs[:, world],
            "rewards": earned[:, world],
            "bootstrap_observations": torch.stack(after[world])
            if after[world]
            else observations[0, :0],
        }
        found.append(
            Fragment(
                **there,
                terminated=terminated[:, world],
                truncated=truncated[:, world],
                bootstrap_steps=np.flatnonzero(cut[:, world]),
                episode_returns=np.array(returns[: len(ends[world])], np.float64),
                episode_lengths=np.array([length for _, length in ends[world]], np.int64),
                episode_first_versions=np.array(versions[: len(ends[world])], np.int64),
                open_episode=OpenEpisode(
                    states[world, :size],
                    {"world": states[world, size:]},
                    returns[-1],
                    int(lengths[world]),
                    versions[-1],
                )
                if is_open and not events[0]["truncate_at_fragment"]
                else None,
            )
        )
    return found
