"""Steps of environments that are quicker than Gymnasium's own and equal to them to the digit.

The plain path is the environment's own `step`, which is taken whenever nothing here knows the environment.
"""

import os

PLAIN_VARIABLE = "NITRO_RL_PLAIN"
"""Set to anything, it has a process take the plain path here and in `runtime.learner.fast`."""


def is_plain() -> bool:
    """Whether the user wants the plain path."""
    return bool(os.environ.get(PLAIN_VARIABLE))
