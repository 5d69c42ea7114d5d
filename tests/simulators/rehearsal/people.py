"""``python -m runtime`` by the rehearsal's clock: ``python -m tests.simulators.rehearsal.people stop NAME --yes``."""

from __future__ import annotations

import sys
import time

from tests.simulators.rehearsal.clock import Clock

if __name__ == "__main__":
    # Before anything of runtime/ takes the clock on the wall for its own.
    time.time = Clock.of_this_process().now
    from runtime.cli.main import main

    sys.exit(main())
