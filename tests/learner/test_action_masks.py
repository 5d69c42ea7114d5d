"""Learners of environments that say which actions are allowed train on the distribution that acted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.environments import make_environment
from lambda_actor.handler import trajectory_fields
from lambda_actor.policy import FORBIDDEN, Policy
from lambda_actor.rollout import roll_out
from lambda_actor.spaces import Spaces
from runtime.experiment.loading import experiment_from_tree
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import assemble_batch
from runtime.learner.functions.messages import decode_state, encode_arrays
from runtime.learner.interfaces import DetectorSamples
from runtime.learner.samples import flat
from tests.environments import EPISODE_STEPS
from tests.learner import learning
from tests.learner.learning import MASKED, SEVERAL_MASKED, roll, scramble

pytestmark = pytest.mark.usefixtures("one_thread")
BY_SPACES = pytest.mark.parametrize(
    "spaces", [MASKED, SEVERAL_MASKED], ids=["one choice", "several"]
)
BY_ALGORITHM = pytest.mark.parametrize("kind", ["ppo", "impact", "impala"])


def make(kind: str, spaces: Spaces, **settings: Any) -> ActorCritic[Any]:
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1.0},
        "algorithm": {"kind": kind, "rounds": "synchronous", **settings},
    }
    fitted = (
        experiment_from_tree(tree, source="test").resolved().fitted(spaces, preprocessing="none")
    )
    learner = make_learner(LearnerSpec(fitted.algorithm, spaces, "mlp", seed=3), device="cpu")
    assert isinstance(learner, ActorCritic)
    scramble(learner.policy, 0.1)
    return learner


def log_probs_of(learner: ActorCritic[Any], batch: Any, spaces: Spaces) -> np.ndarray:
    """Returns log π(a|s) of the masked distribution, in plain numpy with −∞ for forbidden actions."""
    logits = learner.evaluate(learner.policy, flat(batch, batch.observations)).astype(np.float64)
    logits[~flat(batch, batch.action_masks)] = -np.inf
    actions = flat(batch, batch.actions).reshape(len(logits), -1)
    found = np.zeros(len(logits))
    for part, chosen in zip(
        np.split(logits, spaces.choice_starts[1:], axis=1), actions.T, strict=True
    ):
        shifted = part - part.max(1, keepdims=True)
        found += shifted[np.arange(len(part)), chosen] - np.log(np.exp(shifted).sum(1))
    return found


@BY_SPACES
@BY_ALGORITHM
def test_samples_say_what_was_forbidden_and_ratios_begin_at_1(kind: str, spaces: Spaces) -> None:
    learner = make(kind, spaces)
    batch = roll(learner.weights(), spaces)
    assert batch.action_masks is not None
    learner.begin([batch], progress=0.0)
    samples = learner.samples(batch)
    masks = flat(batch, batch.action_masks)
    assert ((samples.arrays.old_outputs == FORBIDDEN) == ~masks).all()
    seen = learner.mean_at_present(
        lambda outputs, part: (
            ((outputs > 0.5 * float(FORBIDDEN)) == (part["old_outputs"] > 0.5 * float(FORBIDDEN)))
            .all(1)
            .float()
        ),
        samples,
    )
    assert seen == 1.0
    found = learner.mean_at_present(
        lambda outputs, part: learner.distribution.log_prob(outputs, part["actions"]), samples
    )
    assert found == pytest.approx(log_probs_of(learner, batch, spaces).mean(), abs=1e-4)


@BY_SPACES
@BY_ALGORITHM
def test_the_written_gradient_is_that_of_the_masked_loss(kind: str, spaces: Spaces) -> None:
    learner = make(kind, spaces)
    batch = roll(learner.weights(), spaces)
    learner.begin([batch], progress=0.0)
    samples = learner.samples(batch)
    scramble(learner.policy, 0.1, seed=1)
    written = learning.gradients(learner, samples)
    tensors, masks = samples.tensors, torch.from_numpy(flat(batch, batch.action_masks))
    outputs = learner.policy(tensors["observations"])
    outputs.retain_grad()
    # Only allowed actions contribute to these sums.
    loss = learner.objective.loss(outputs, learner.critic(tensors["observations"]), tensors)
    gradients = torch.autograd.grad(loss, [*learning.parameters(learner).values(), outputs])
    *of_parameters, of_outputs = gradients
    assert (of_outputs[~masks] == 0.0).all() and (of_outputs[masks] != 0.0).any()
    norms = {
        name: torch.cat(
            [
                one.flatten()
                for key, one in zip(learning.parameters(learner), of_parameters, strict=True)
                if key.startswith(name)
            ]
        ).norm()
        for name in ("policy", "critic")
    }
    limit = learner.settings.max_gradient_norm
    for (name, one), gradient in zip(written.items(), of_parameters, strict=True):
        factor = (
            1.0 if limit is None else min(1.0, limit / float(norms[name.partition(".")[0]] + 1e-6))
        )
        np.testing.assert_allclose(
            one.numpy(), factor * gradient.numpy(), rtol=2e-3, atol=1e-6, err_msg=name
        )


@BY_SPACES
@pytest.mark.parametrize("objective", ["log_prob", "surrogate", "total_loss"])
def test_the_detectors_objectives_are_of_what_is_allowed(objective: str, spaces: Spaces) -> None:
    learner = make("ppo", spaces)
    batch = roll(learner.weights(), spaces)
    update = learner.update(batch, progress=0.0)
    problem = learner.curvature_problem(
        objective, DetectorSamples(**decode_state(encode_arrays(update.samples)).arrays)
    )
    value = problem.criterion(problem.module(problem.inputs), problem.targets)
    if objective == "log_prob":
        # Mean log π·Â of the masked distribution.
        expected = (log_probs_of(learner, batch, spaces) * update.samples.advantages).mean()
        assert float(value.detach()) == pytest.approx(expected, abs=1e-4)
    gradients = torch.autograd.grad(value, list(problem.module.parameters()), create_graph=True)
    again = torch.autograd.grad(
        sum(one.sum() for one in gradients), list(problem.module.parameters())
    )
    assert all(torch.isfinite(one).all() for one in again), "it can be differentiated twice"


@BY_ALGORITHM
def test_a_training_with_masks_improves(kind: str) -> None:
    """The reward is the action's number, so the best policy takes the highest allowed action."""
    environment = make_environment("tests.environments:make_masked")
    environment.reset(0)
    settings = {
        "learning_rate": 3e-3,
        "entropy_coefficient": 0.0,
        "discount": 0.5,
        "minibatch_steps": 40,
    } | {
        "ppo": {"epochs": 4},
        "impact": {"target_update_frequency": 1, "buffer_batches": 1, "uses_max": 1},
        "impala": {},
    }[kind]
    learner, shares = make(kind, environment.spaces, **settings), []
    for round_index in range(25):
        policy = Policy.from_bytes(learner.weights())
        fragments = [
            roll_out(
                environment,
                policy,
                fragment_steps=2 * EPISODE_STEPS,
                seed=1,
                round_index=round_index,
                slot=slot,
            )
            for slot in range(8)
        ]
        best = np.concatenate([4 - one.action_masks[:, ::-1].argmax(1) for one in fragments])
        shares.append((np.concatenate([one.rewards for one in fragments]) == best).mean())
        learner.update(
            assemble_batch(
                [_sent(one, slot) for slot, one in enumerate(fragments)], environment.spaces
            ),
            progress=0.0,
        )
    assert shares[0] < 0.5 < 0.9 < np.mean(shares[-3:])


def _sent(fragment: Any, slot: int) -> Mapping[str, np.ndarray]:
    return trajectory_fields(
        {
            "invocation_id": "one",
            "round_index": 1,
            "slot": slot,
            "policy_version": 0,
            "episode_id": "",
        },
        fragment,
    )
