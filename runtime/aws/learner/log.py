"""The deployed learner's logger, which writes to the instance's journal."""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("nitro.learner")
"""The deployed learner's logger."""


def log_to_standard_output() -> None:
    """Sends the learner's log to standard output, which the service's journal keeps."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers = [handler]
    LOG.propagate = False
    LOG.setLevel(logging.INFO)
