"""Batches for learners, sampled by their own published policies with the actors' numpy inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lambda_actor.policy import FORBIDDEN, Policy, default_network
from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.interfaces import Batch
from runtime.learner.settings import ImpactSettings, ImpalaSettings, PpoSettings

VECTORS = Spaces((3,), action_size=2)
DISCRETE = Spaces((3,), action_count=4)
SEVERAL = Spaces((3,), binary_parts=((1, 3),), action_counts=(3, 1, 2))
MASKED = Spaces((3,), action_count=4, has_action_mask=True)
SEVERAL_MASKED = Spaces((3,), action_counts=(3, 1, 4), has_action_mask=True)
PIXELS = Spaces((2, 20, 17), frame_shape=(1, 20, 17), frame_stack=2, action_count=3)
_BYTES = 3 * 17 * 19 + 4 * 4
COMBINED = Spaces(
    (1, 1, _BYTES),
    frame_shape=(1, 1, _BYTES),
    beside_shape=(3, 17, 19),
    binary_parts=((0, 1),),
    action_count=3,
)


SECTIONS = {"ppo": PpoSettings, "impact": ImpactSettings, "impala": ImpalaSettings}


def spec_of(
    kind: str = "ppo",
    spaces: Spaces = VECTORS,
    network: str = "",
    *,
    seed: int = 0,
    threads: int = 1,
    **settings: Any,
) -> LearnerSpec:
    """Returns the specification of a learner of the algorithm with these settings."""
    options = {"normalize_observations": spaces.vector_size > 0, "staleness_max": 32} | settings
    section = SECTIONS[kind](kind=kind, **options)
    return LearnerSpec(section, spaces, network or default_network(spaces), seed, threads)


def make(*arguments: Any, **settings: Any) -> Any:
    """Returns a learner; see `spec_of`."""
    return make_learner(spec_of(*arguments, **settings), device="cpu")


def roll(
    weights: bytes,
    spaces: Spaces,
    *,
    steps: int = 12,
    trajectories: int = 3,
    seed: int = 0,
    offset: float = 2.0,
) -> Batch:
    """Returns a batch of the policy's actions on random observations.

    Vector features have different scales and an outlier. A tenth of the steps terminates, and another tenth is cut.
    """
    random = np.random.default_rng(seed)
    policy = Policy.from_bytes(weights)
    policy.check(spaces)
    shape = (steps, trajectories)
    observations = random_observations(random, spaces, shape, offset)
    if not spaces.is_pixels:
        observations[0, 0, 0] = 500.0
    masks = random_masks(random, spaces, shape) if spaces.has_action_mask else None
    columns = [
        _act(policy, observations[:, column], random, None if masks is None else masks[:, column])
        for column in range(trajectories)
    ]
    actions, log_probs = (np.stack(arrays, axis=1) for arrays in zip(*columns, strict=True))
    ending = random.random(shape)
    terminated = ending < 0.1
    bootstrap_mask = (ending >= 0.1) & (ending < 0.2)
    bootstrap_mask[-1] = ~terminated[-1]
    return Batch(
        policy_versions=np.full(trajectories, policy.policy_version),
        lengths=np.full(trajectories, steps),
        observations=observations,
        actions=actions,
        log_probs=log_probs,
        rewards=random.normal(size=shape),
        terminated=terminated,
        bootstrap_mask=bootstrap_mask,
        bootstrap_observations=random_observations(
            random, spaces, (int(bootstrap_mask.sum()),), offset
        ),
        action_masks=masks,
    )


def joined(*batches: Batch) -> Batch:
    """Returns one batch of all their trajectories."""
    fields = {
        name: [getattr(batch, name) for batch in batches]
        for name, one in vars(batches[0]).items()
        if one is not None
    }
    along = {"policy_versions": 0, "lengths": 0, "bootstrap_observations": 0}
    return Batch(
        **{name: np.concatenate(arrays, axis=along.get(name, 1)) for name, arrays in fields.items()}
    )


def parameters_of(learner: ActorCritic) -> np.ndarray:
    """Returns the policy's parameters, then the critic's."""
    return np.concatenate(
        [one.detach().numpy().ravel().copy() for one in parameters(learner).values()]
    )


def parameters(learner: ActorCritic) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters of policy and critic by name."""
    both = torch.nn.ModuleDict({"policy": learner.policy, "critic": learner.critic})
    return dict(both.named_parameters())


def scramble(network: torch.nn.Module, scale: float, *, seed: int = 0) -> None:
    """Moves the parameters away from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def everything(learner: ActorCritic) -> dict[str, np.ndarray]:
    """Returns everything in a state."""
    state = learner.get_state()
    return {name: np.array(value) for name, value in {**state.arrays, **state.values}.items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Asserts equality bit for bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def random_observations(
    random: np.random.Generator, spaces: Spaces, shape: tuple[int, ...], offset: float = 2.0
) -> np.ndarray:
    """Returns observations ``[*shape, …]``. For ``COMBINED`` they have a vector's numbers, and begin with 0 or 1."""
    if spaces.is_combined:
        picture = random.integers(0, 256, (*shape, math.prod(spaces.beside_shape)), dtype=np.uint8)
        numbers = random_observations(random, Spaces((spaces.vector_size,)), shape, offset)
        numbers[..., 0] = numbers[..., 0] > offset
        return np.concatenate([picture, numbers.view(np.uint8)], axis=-1)[..., None, None, :]
    if spaces.is_pixels:
        return random.integers(0, 256, (*shape, *spaces.observation_shape), dtype=np.uint8)
    scales = 10.0 ** np.arange(spaces.observation_size) / 10.0
    return (offset + random.normal(size=(*shape, spaces.observation_size)) * scales).astype(
        np.float32
    )


def random_masks(random: np.random.Generator, spaces: Spaces, shape: tuple[int, ...]) -> np.ndarray:
    """Returns masks ``[*shape, M]`` that allow about half of the values, and at least one of each choice."""
    masks = random.random((*shape, spaces.output_size)) < 0.5
    for part in np.split(masks, spaces.choice_starts[1:], axis=-1):
        always = random.integers(part.shape[-1], size=shape)
        np.put_along_axis(part, always[..., None], True, axis=-1)
    return masks


def _act(
    policy: Policy,
    observations: np.ndarray,
    random: np.random.Generator,
    masks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns actions and their log-probabilities along one trajectory."""
    noise = policy.noise(random, len(observations))
    outputs = np.stack(
        [
            policy.outputs(observation, None if masks is None else masks[step])
            for step, observation in enumerate(observations)
        ]
    )
    actions = np.array(
        [policy.sample(output, row) for output, row in zip(outputs, noise, strict=True)]
    )
    return actions, policy.log_probs(outputs, actions, noise)


def ragged(batch: Batch, lengths: Sequence[int]) -> tuple[Batch, list[Batch]]:
    """Cuts trajectories to these lengths; returns the padded batch and each trajectory alone."""
    alone, ends = [], np.cumsum(batch.bootstrap_mask.sum(axis=0))
    bootstraps = np.split(batch.bootstrap_observations, ends[:-1])
    by_step = [
        name for name, array in vars(batch).items() if np.shape(array)[:2] == batch.rewards.shape
    ]
    padded = {name: np.zeros_like(getattr(batch, name)) for name in by_step}
    for column, length in enumerate(lengths):
        one = {name: getattr(batch, name)[:length, [column]].copy() for name in by_step}
        one["terminated"][-1], one["bootstrap_mask"][-1] = True, False
        for name, array in one.items():
            padded[name][:length, column] = array[:, 0]
        alone.append(
            Batch(
                policy_versions=batch.policy_versions[[column]],
                lengths=np.array([length]),
                **one,
                bootstrap_observations=bootstraps[column][: one["bootstrap_mask"].sum()],
            )
        )
    return Batch(
        policy_versions=batch.policy_versions,
        lengths=np.array(lengths),
        **padded,
        bootstrap_observations=np.concatenate([one.bootstrap_observations for one in alone]),
    ), alone


def distribution_of(spaces: Spaces, outputs: torch.Tensor) -> torch.distributions.Distribution:
    """Returns torch's own distribution. Smaller choices of several are filled up with forbidden values."""
    if spaces.action_counts:
        most = max(spaces.action_counts)
        choices = [
            torch.nn.functional.pad(one, (0, most - one.shape[1]), value=float(FORBIDDEN))
            for one in outputs.split(spaces.action_counts, dim=1)
        ]
        each = torch.distributions.Categorical(logits=torch.stack(choices, 1))
        return torch.distributions.Independent(each, 1)
    if spaces.is_discrete:
        return torch.distributions.Categorical(logits=outputs)
    means, log_stds = outputs.chunk(2, dim=1)
    return torch.distributions.Independent(torch.distributions.Normal(means, log_stds.exp()), 1)


def written_out(
    learner: Any,
    spaces: Spaces,
    samples: Mapping[str, torch.Tensor],
    outputs: torch.Tensor,
    values: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Returns the means of an objective, and its terms, as the papers have them. ``total_loss`` is the negated loss.

    PPO: min(r·Â, clip(r, 1 − ε, 1 + ε)·Â), r = π/μ, at most the cap of Stellaris. IMPACT:
    r = clip(μ/π_target, 0, 2)·π/μ. IMPALA: log π·Â. Forbidden actions have no part in it.
    """
    if spaces.has_action_mask:
        allowed = samples["old_outputs"] > 0.5 * FORBIDDEN
        outputs = torch.where(allowed, outputs, float(FORBIDDEN))
    policy, old = (distribution_of(spaces, one) for one in (outputs, samples["old_outputs"]))
    log_probs = policy.log_prob(samples["actions"])
    weighted = log_probs * samples["advantages"]
    ratios = torch.exp(log_probs - samples["log_probs"])
    if learner.kind == "impact":
        of_target = old.log_prob(samples["actions"])
        ratios = torch.exp(samples["log_probs"] - of_target).clip(max=2.0) * ratios
    if "log_caps" in samples:
        caps = torch.exp(samples["log_caps"])
        ratios = torch.where(ratios <= caps, ratios, caps)
    surrogate = weighted
    if learner.kind != "impala":
        limited = ratios.clip(1.0 - learner.settings.clip, 1.0 + learner.settings.clip)
        surrogate = torch.minimum(ratios * samples["advantages"], limited * samples["advantages"])
    means = {
        "log_prob": weighted.mean(),
        "surrogate": surrogate.mean(),
        "value_loss": 0.5 * ((values - samples["value_targets"]) ** 2).mean(),
        "entropy": policy.entropy().mean(),
        "kl": torch.distributions.kl_divergence(old, policy).mean(),
    }
    means["total_loss"] = (
        means["surrogate"]
        - learner.settings.value_coefficient * means["value_loss"]
        + learner.settings.entropy_coefficient * means["entropy"]
        - learner.kl_coefficient * means["kl"]
    )
    return means
