"""The parameter function against an oracle, written only from the formulas."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from runtime.learner.functions.parameter_function import ParameterFunction


def oracle(
    arrivals: list[list[int]], *, learners: int, decay: float | None, root: float | None
) -> list[list]:
    """Plays updates of arrivals, each with its staleness in aggregations (at most all so far); returns the applied
    ones.

    Recomputes every number from the history, and keeps nothing else.
    """
    applied: list[list] = []
    histories: list[list[int]] = []
    version = 0
    for k, update in enumerate(arrivals, 1):
        means = [Fraction(sum(one), len(one)) for one in histories if one]
        first = next((mean for mean in means if mean > 0), None)
        top = None if first is None else math.floor(first) + 1
        bound = (
            math.inf
            if top is None or decay is None
            else min(max(math.floor(top * decay ** (k - 1)) + 1, 1), top)
        )
        waiting: list[int] = []
        history: list[int] = []
        for index, behind in enumerate(update):
            waiting.append(version - min(behind, version))
            ages = [version - pulled for pulled in waiting]
            is_last = index == len(update) - 1
            if sum(ages) <= bound * len(ages) or len(ages) >= learners or is_last:
                applied.append(
                    [(age, 1.0 if root is None else (age or 1) ** -(1 / root)) for age in ages]
                )
                history += ages
                waiting, version = [], version + 1
        histories.append(history)
    return applied


def played(
    arrivals: list[list[int]], *, learners: int, decay: float | None, root: float | None
) -> list[list]:
    function: ParameterFunction = ParameterFunction(
        learners=learners, staleness_decay=decay, learning_rate_root=root
    )
    applied = []
    for update in arrivals:
        for number, behind in enumerate(update):
            steps = function.offer(number, function.version - min(behind, function.version))
            applied += [steps] if steps else []
        rest, _ = function.end_update()
        applied += [rest] if rest else []
        state = function.get_state()
        function.set_state(state)
    return [[(step.staleness, step.factor) for step in steps] for steps in applied]


@pytest.mark.parametrize(
    ("decay", "root"), [(0.9, 3.0), (None, 3.0), (0.5, None), (1.0, 1.0), (None, None)]
)
def test_it_applies_what_the_formulas_say(decay: float | None, root: float | None) -> None:
    chance = random.Random(0)
    for learners in (1, 2, 4, 7):
        arrivals = [[chance.randrange(2 * learners) for _ in range(12)] for _ in range(25)]
        expected = oracle(arrivals, learners=learners, decay=decay, root=root)
        found = played(arrivals, learners=learners, decay=decay, root=root)
        assert [[age for age, _ in one] for one in found] == [
            [age for age, _ in one] for one in expected
        ]
        assert [factor for one in found for _, factor in one] == pytest.approx(
            [factor for one in expected for _, factor in one]
        )
