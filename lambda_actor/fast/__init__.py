"""Steps of environments that are faster than Gymnasium's own and equal to them to the digit.

The plain path is the environment's own `step`, for all environments that are unknown here.
"""

import os

PLAIN_VARIABLE = "NITRO_RL_PLAIN"
"""If set, the process takes the plain path here and in `runtime.learner.fast`."""


def is_plain() -> bool:
    """Whether the user wants the plain path."""
    return bool(os.environ.get(PLAIN_VARIABLE))
