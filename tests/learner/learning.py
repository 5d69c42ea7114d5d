"""Batches for learners, sampled by their own published policies with the actors' numpy inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.adam import Adam
from runtime.learner.interfaces import Batch, TrainingSamples
from runtime.learner.trained_network import TrainedNetwork

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


def roll(
    weights: bytes,
    spaces: Spaces,
    *,
    steps: int = 12,
    trajectories: int = 3,
    seed: int = 0,
    offset: float = 2.0,
    reward: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Batch:
    """Returns a batch of the policy's actions on random observations.

    Vector features have different scales and an outlier. A tenth of the steps terminates, and another tenth is cut.

    Args:
        reward: Computes rewards from actions; None for random rewards.
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
        rewards=random.normal(size=shape) if reward is None else reward(actions),
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


def descend_plainly(learner: ActorCritic) -> None:
    """Plain gradient descent in place of Adam: a parameter changes by learning rate × gradient."""
    for name, trained in learner.trained.items():
        # With autograd, because the compiled steps of `is_by_hand` are always Adam's.
        learner.trained[name] = plain = TrainedNetwork(trained.network, learning_rate=1.0)
        plain.optimizer = PlainDescent(plain.values, plain.gradient, learning_rate=1.0)


class PlainDescent(Adam):
    """Follows the gradient itself."""

    def __init__(self, values: torch.Tensor, gradient: torch.Tensor, **options) -> None:
        super().__init__(values, gradient, **options)
        self.step = lambda: values.sub_(self.learning_rate * gradient)


def parameters_of(learner: ActorCritic) -> np.ndarray:
    """Returns the policy's parameters, then the critic's."""
    return flat(parameters(learner))


def parameters(learner: ActorCritic) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters of policy and critic by name."""
    return {
        f"{name}.{key}": parameter
        for name, network in (("policy", learner.policy), ("critic", learner.critic))
        for key, parameter in network.named_parameters()
    }


def gradients(
    learner: ActorCritic, samples: TrainingSamples, indices: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Returns the gradient of the loss by parameter."""
    learner.gradients(samples.tensors, indices)
    return {name: one.grad.clone() for name, one in parameters(learner).items()}


def flat(tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Returns all numbers of tensors, by name."""
    return np.concatenate([tensor.detach().numpy().ravel().copy() for tensor in tensors.values()])


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
    """Returns torch's own distribution."""
    if spaces.is_discrete:
        return torch.distributions.Categorical(logits=outputs)
    means, log_stds = outputs.chunk(2, dim=1)
    return torch.distributions.Independent(torch.distributions.Normal(means, log_stds.exp()), 1)


def check_gradient(
    learner: ActorCritic,
    spaces: Spaces,
    samples: TrainingSamples,
    surrogate: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Compares losses and gradient with autograd of the loss, written out.

        − mean surrogate + c_v·½·mean (V − target)² − c_H·mean H + β·mean KL(old ‖ π)

    Args:
        surrogate: Returns each sample's objective, given log π(a|s).
    """
    tensors, settings = samples.tensors, learner.settings
    policy = distribution_of(spaces, learner.policy(tensors["observations"]))
    values = learner.critic(tensors["observations"])
    parts = [
        -surrogate(policy.log_prob(tensors["actions"])).mean(),
        0.5 * ((values - tensors["value_targets"]) ** 2).mean(),
        policy.entropy().mean(),
    ]
    old = distribution_of(spaces, tensors["old_outputs"])
    loss = (
        parts[0]
        + settings.value_coefficient * parts[1]
        - settings.entropy_coefficient * parts[2]
        + learner.kl_coefficient * torch.distributions.kl_divergence(old, policy).mean()
    )
    expected = torch.autograd.grad(loss, list(parameters(learner).values()))
    found = learner.gradients(samples.tensors)
    np.testing.assert_allclose(
        flat(found.tensors), torch.cat([one.ravel() for one in expected]), rtol=2e-3, atol=2e-6
    )
    assert found.losses.means.tolist() == pytest.approx(
        [float(part.detach()) for part in parts], rel=1e-4, abs=1e-6
    )
