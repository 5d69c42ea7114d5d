"""Runs ``python -m runtime.aws.learner.learner`` by the rehearsal's clock. The instance's files precede the path."""

from __future__ import annotations

import sys

from runtime.aws.learner.learner import main
from tests.simulators.rehearsal.clock import Clock

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], now=Clock.of_this_process().now))
