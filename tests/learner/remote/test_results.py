"""Results that no update can have produced are refused, and every honest one passes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.errors import WireError
from runtime.config.loading import experiment_from_tree
from runtime.errors import NotFiniteError
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.remote.messages import decode_result, encode_result
from runtime.learner.remote.results import check_result
from runtime.ports.learning import Batch, State, Update
from tests.learner.learning import VECTORS, roll

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("ppo", "impact", "impala")


@dataclasses.dataclass(frozen=True)
class Honest:
    """Returns the second update, as its function reports it."""

    before: State
    batch: Batch
    after: State
    update: Update


@cache
def honest(kind: str) -> Honest:
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1.0},
        "algorithm": {
            "kind": kind,
            "rounds": "synchronous",
            "minibatch_steps": 12,
            "normalize_rewards": True,
        },
    }
    fitted = (
        experiment_from_tree(tree, source="test").resolved().fitted(VECTORS, preprocessing="none")
    )
    spec = LearnerSpec(fitted.algorithm, VECTORS, fitted.network.kind, seed=3)
    learner = make_learner(spec, device="cpu")
    learner.update(roll(learner.weights(), VECTORS), progress=0.25)
    before, batch = learner.get_state(), roll(learner.weights(), VECTORS, seed=1)
    update = learner.update(batch, progress=0.5)
    return Honest(before, batch, learner.get_state(), update)


def check(one: Honest, state: State, update: Update) -> None:
    check_result(
        decode_result(encode_result(state, update)),
        before=one.before,
        batch=one.batch,
        spaces=VECTORS,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_result_passes(kind: str) -> None:
    one = honest(kind)
    check(one, one.after, one.update)


Lie = tuple[State, Update]


def _with_array(one: Honest, draw: Callable[[Any], Any]) -> Lie:
    """Alters an array of a state: not finite, of another shape or type, missing, or extra."""
    name = draw(
        st.sampled_from([name for name, array in sorted(one.after.arrays.items()) if array.size])
    )
    array = one.after.arrays[name].copy()
    wrongs = {
        "not finite": lambda: _with_one(
            array, draw(st.sampled_from([math.nan, math.inf, -math.inf])), draw
        ),
        "shape": lambda: array[None],
        "dtype": lambda: array.astype(np.float16),
        "missing": lambda: None,
        "in vain": lambda: array,
    }
    what = draw(st.sampled_from(sorted(wrongs)))
    arrays = {**one.after.arrays, f"{name}.too" if what == "in vain" else name: wrongs[what]()}
    return State(
        {key: value for key, value in arrays.items() if value is not None}, one.after.values
    ), one.update


def _with_value(one: Honest, draw: Callable[[Any], Any]) -> Lie:
    """Alters a value of a state: another value, another type, missing, or extra."""
    known = {
        "algorithm": ["a2c", ""],
        "policy_version": [1, 3, 0, -1, 2**62, 10**30],
        "kl_coefficient": [math.nan, math.inf],
    }
    name = draw(st.sampled_from(sorted(one.after.values)))
    values: dict[str, Any] = {**one.after.values}
    what = draw(
        st.sampled_from(["type", "missing", "in vain", *(["wrong"] if name in known else [])])
    )
    if what == "missing":
        del values[name]
    elif what == "wrong":
        values[name] = draw(st.sampled_from(known[name]))
    else:
        values[f"{name}_too" if what == "in vain" else name] = draw(
            st.sampled_from([None, [1], {"a": 1}, True])
        )
    return State(one.after.arrays, values), one.update


def _with_samples(one: Honest, draw: Callable[[Any], Any]) -> Lie:
    """Alters the samples: fewer, more, of other shapes, not finite, or not from the batch."""
    samples = vars(one.update.samples)
    what = draw(
        st.sampled_from(["fewer", "none", "twice", "not finite", "others", "outputs", "shape"])
    )
    if what in ("fewer", "none", "twice"):
        chosen = {"fewer": slice(1, None), "none": slice(0), "twice": [*range(36), 0]}[what]
        changed = {name: array[chosen] for name, array in samples.items()}
    elif what == "not finite":
        name = draw(
            st.sampled_from(
                ["advantages", "value_targets", "old_outputs", "observations", "log_probs"]
            )
        )
        changed = {
            name: _with_one(
                samples[name].copy(), draw(st.sampled_from([math.nan, -math.inf])), draw
            )
        }
    elif what == "outputs":
        changed = {"old_outputs": samples["old_outputs"][:, draw(st.integers(1, 4)) :]}
    else:
        name = draw(
            st.sampled_from(
                ["observations", "actions", "log_probs"]
                if what == "others"
                else ["observations", "actions"]
            )
        )
        changed = {
            name: samples[name] + 1.0 if what == "others" else np.hstack([samples[name]] * 2)
        }
    return one.after, dataclasses.replace(
        one.update, samples=dataclasses.replace(one.update.samples, **changed)
    )


def _with_report(one: Honest, draw: Callable[[Any], Any]) -> Lie:
    """Alters the staleness or number to one that the update cannot have."""
    what = draw(st.sampled_from(["staleness", "trajectories", *vars(one.update.metrics)]))
    if what in ("staleness", "trajectories"):
        staleness = one.update.staleness.copy()
        if what == "staleness":
            staleness[draw(st.integers(0, len(staleness) - 1))] = draw(
                st.integers(-(10**18), 10**18).filter(lambda age: age != 0)
            )
        else:
            staleness = staleness[: draw(st.integers(0, len(staleness) - 1))]
        return one.after, dataclasses.replace(one.update, staleness=staleness)
    figure = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    return one.after, dataclasses.replace(
        one.update, metrics=dataclasses.replace(one.update.metrics, **{what: figure})
    )


def _with_one(array: np.ndarray, value: float, draw: Callable[[Any], Any]) -> np.ndarray:
    array.reshape(-1)[draw(st.integers(0, array.size - 1))] = value
    return array


@settings(max_examples=600)
@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    lie=st.sampled_from([_with_array, _with_value, _with_samples, _with_report]),
)
def test_a_result_that_no_update_makes_is_refused(
    data: Any, kind: str, lie: Callable[[Honest, Callable[[Any], Any]], Lie]
) -> None:
    one = honest(kind)
    state, update = lie(one, data.draw)
    with pytest.raises((ValueError, NotFiniteError, WireError)):
        check(one, state, update)
