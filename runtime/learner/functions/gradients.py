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

from runtime.errors import RunError
from runtime.learner import make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.functions import open_store
from runtime.learner.functions.messages import decode_state, encode_state, spec_of, stored
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import DetectorSamples
from runtime.records.state import State

_POLICIES_KEPT = 32
_REQUESTS = ThreadPoolExecutor(thread_name_prefix="store")


def compute(
    learner: ActorCritic[Any],
    samples: DetectorSamples,
    indices: np.ndarray,
    policies: Mapping[int, State],
    *,
    pulled: int,
    published: Sequence[int],
    truncation: float,
) -> State:
    """Computes one gradient.

    Args:
        learner: Loads each policy in turn, the pulled one last.
        samples: Samples of the update.
        indices: The minibatch, int64.
        policies: Snapshots, by number.
        pulled: The policy at which to compute the gradient.
        published: The policies that all learners pulled last, including this one; none = nothing is cut.
        truncation: ρ.

    Returns:
        The gradient by network, the mean ``losses`` before any step, float32 ``[3]``, and the number of ``samples``
        and of those that were ``truncated``.
    """
    arrays = DetectorSamples(**{name: array[indices] for name, array in vars(samples).items()})
    log_ratios = {version: _log_ratios(learner, policies[version], arrays) for version in published}
    learner.load_snapshot(policies[pulled])
    tensors = learner.tensors(arrays)
    truncated = 0
    if published:
        least = torch.stack(list(log_ratios.values())).amin(0)
        tensors["log_caps"] = least.clamp(min=math.log(truncation))
        truncated = int((log_ratios[pulled] > tensors["log_caps"]).sum())
    gradient, losses = learner.gradients(tensors)
    return State(
        {name: tensor.numpy() for name, tensor in {**gradient, "losses": losses.means}.items()},
        {"samples": len(indices), "truncated": truncated},
    )


def put_gradient(event: Mapping[str, Any]) -> None:
    """Computes an event's gradient and puts it into the store, unless it is there already.

    Args:
        event: The place of the ``store`` and the ``token`` that begins the objects' names, the ``update`` and the
            ``job`` that number the gradient, the ``slot`` of the learner that computes it, the ``learner``'s
            specification, and the arguments of `compute`.

    Raises:
        StoreError: The store cannot be read or written.
        RunError: An object is missing.
        WireError: An object is damaged.
    """
    address = event["store"]
    token = event["token"]
    update = event["update"]
    versions = sorted({event["pulled_version"], *event["published_versions"]})
    # Requests to a bucket are slow, so they run in parallel.
    waiting = _REQUESTS.submit(_samples, address, object_name(token, "samples", update))
    names = [object_name(token, "policy", version) for version in versions]
    policies = zip(versions, _REQUESTS.map(lambda name: _policy(address, name), names), strict=True)
    gradient = compute(
        _learner(json.dumps(event["learner"], sort_keys=True)),
        waiting.result(),
        np.array(event["indices"], np.int64),
        dict(policies),
        pulled=event["pulled_version"],
        published=event["published_versions"],
        truncation=event["truncation"],
    )
    name = object_name(token, "gradient", update, event["job"])
    open_store(address).put(name, encode_state(gradient))


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
def _learner(values: str) -> ActorCritic[Any]:
    learner = make_learner(spec_of(json.loads(values)), device="cpu")
    if not isinstance(learner, ActorCritic):
        raise RunError("this algorithm's learner computes no gradients elsewhere")
    return learner


@lru_cache(maxsize=1)
def _samples(address: str, name: str) -> DetectorSamples:
    return DetectorSamples(**decode_state(stored(open_store(address), name)).arrays)


@lru_cache(maxsize=_POLICIES_KEPT)
def _policy(address: str, name: str) -> State:
    return decode_state(stored(open_store(address), name))
