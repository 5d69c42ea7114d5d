"""Computes one gradient in a learner function: for one minibatch, at the pulled policy, with the truncated loss.

    r_j = π_j(a|s)/μ(a|s)          π_j: the policy that learner j pulled last
    cap = max(ρ, min_j r_j)
    a ratio above the cap becomes the cap, and its sample has no gradient

Source: Stellaris (SC 2024), global importance sampling truncation, and its authors' artifact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from lambda_actor.events import check_event
from runtime.errors import RunError
from runtime.learner import make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.remote.messages import (
    SentGradient,
    decode_samples,
    decode_state,
    encode_gradient,
)
from runtime.learner.remote.places import open_store
from runtime.learner.remote.store import gradient_name, policy_name, samples_name
from runtime.learner.spec import spec_of
from runtime.ports.learning import DetectorSamples, State

EVENT_FIELDS: dict[str, type] = {
    "invocation_id": str,
    "store": str,
    "token": str,
    "update": int,
    "job": int,
    "slot": int,
    "indices": list,
    "pulled_version": int,
    "published_versions": list,
    "truncation": float,
    "learner": dict,
}
"""Required fields of an event: place of the store, prefix of the objects' names, the update and the number of its
gradient, the learner that computes it (from 0), the samples of the minibatch, the version to pull, the versions that
all learners pulled last (none = nothing is cut), ρ, and the learner's specification."""
COMPUTED, MADE_BEFORE = "computed", "made_before"
_POLICIES_KEPT = 32
_REQUESTS = ThreadPoolExecutor(thread_name_prefix="store")


def compute(
    learner: ActorCritic[Any],
    other: ActorCritic[Any],
    samples: DetectorSamples,
    indices: np.ndarray,
    policies: Mapping[int, State],
    *,
    pulled: int,
    published: Sequence[int],
    truncation: float,
) -> SentGradient:
    """Computes one gradient.

    Args:
        learner: Loads the pulled policy.
        other: Loads each published policy in turn.
        samples: Samples of the update.
        indices: The minibatch, int64.
        policies: Snapshots, by the parameter function's version.
        pulled: The policy version at which to compute the gradient.
        published: The versions that all learners pulled last, including this one; none = nothing is cut.
        truncation: ρ.
    """
    learner.load_snapshot(policies[pulled])
    arrays = DetectorSamples(**{name: array[indices] for name, array in vars(samples).items()})
    tensors = learner.tensors(arrays)
    truncated = 0
    if published:
        log_ratios = {version: _log_ratios(other, one, arrays) for version, one in policies.items()}
        caps = (
            torch.stack([log_ratios[version] for version in published])
            .amin(0)
            .clamp(min=math.log(truncation))
        )
        truncated = int((log_ratios[pulled] > caps).sum())
        tensors["log_caps"] = caps
    found = learner.gradients_of(tensors)
    return SentGradient(
        pulled,
        {name: tensor.numpy() for name, tensor in found.tensors.items()},
        found.losses.means.numpy(),
        len(indices),
        truncated,
    )


def answer(event: Mapping[str, Any]) -> dict[str, Any]:
    """Computes an event's gradient and puts it into the store, unless it is there already.

    Raises:
        EventError: A field is missing or of the wrong type.
        StoreError: The store cannot be read or written.
        RunError: An object is missing, or belongs to another learner.
        WireError: An object is damaged.
    """
    check_event(event, EVENT_FIELDS)
    place, token = event["store"], event["token"]
    versions = sorted({event["pulled_version"], *event["published_versions"]})
    # Requests to a bucket are slow, so they run in parallel.
    waiting = _REQUESTS.submit(_samples, place, samples_name(token, event["update"]))
    policies = dict(
        zip(versions, _REQUESTS.map(lambda one: _policy(place, token, one), versions), strict=True)
    )
    learner, other = _learners(json.dumps(event["learner"], sort_keys=True))
    gradient = compute(
        learner,
        other,
        waiting.result(),
        np.array(event["indices"], np.int64),
        policies,
        pulled=event["pulled_version"],
        published=event["published_versions"],
        truncation=event["truncation"],
    )
    is_first = open_store(place).put(
        gradient_name(token, event["update"], event["job"]), encode_gradient(gradient)
    )
    return {
        "invocation_id": event["invocation_id"],
        "samples": len(event["indices"]),
        "status": COMPUTED if is_first else MADE_BEFORE,
    }


def _log_ratios(
    learner: ActorCritic[Any], snapshot: State, arrays: DetectorSamples
) -> torch.Tensor:
    """Returns log π(a|s) − log μ(a|s) of a snapshot's policy, ``[n]``."""
    learner.load_snapshot(snapshot)
    outputs = torch.from_numpy(learner.evaluate(learner.policy, arrays.observations))
    outputs = learner.objective.allowed(
        outputs, {"old_outputs": torch.from_numpy(arrays.old_outputs)}
    )
    log_probs = learner.distribution.log_prob(outputs, torch.from_numpy(arrays.actions))
    return log_probs - torch.from_numpy(arrays.log_probs)


# A warm process keeps these: objects never change, and loading a snapshot replaces a learner's whole state.


@cache
def _learners(values: str) -> tuple[ActorCritic[Any], ActorCritic[Any]]:
    learner, other = (make_learner(spec_of(json.loads(values)), device="cpu") for _ in range(2))
    if not isinstance(learner, ActorCritic) or not isinstance(other, ActorCritic):
        raise RunError("this algorithm's learner computes no gradients elsewhere")
    return learner, other


@lru_cache(maxsize=1)
def _samples(place: str, name: str) -> DetectorSamples:
    return decode_samples(_object(place, name))


@lru_cache(maxsize=_POLICIES_KEPT)
def _policy(place: str, token: str, version: int) -> State:
    return decode_state(_object(place, policy_name(token, version)))


def _object(place: str, name: str) -> bytes:
    data = open_store(place).get(name)
    if data is None:
        raise RunError(f"{name} is not in the store")
    return data
