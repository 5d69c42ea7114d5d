"""Actions as an environment's spaces define them."""

from __future__ import annotations

import numpy as np
import pytest

from lambda_actor.spaces import Spaces


@pytest.mark.parametrize(
    ("spaces", "actions", "expected"),
    [
        (Spaces((2,), action_count=3), [0, 2, 1], True),
        (Spaces((2,), action_count=3), [0, 3], False),
        (Spaces((2,), action_count=3), [-1, 0], False),
        (Spaces((2,), action_counts=(2, 4)), [[1, 3], [0, 0]], True),
        (Spaces((2,), action_counts=(2, 4)), [[3, 1]], False),
        (Spaces((2,), action_size=1), [[-7.5]], True),
    ],
)
def test_only_choices_that_exist_are_allowed(spaces: Spaces, actions: list, expected: bool) -> None:
    assert spaces.has_choices(np.array(actions)) is expected
