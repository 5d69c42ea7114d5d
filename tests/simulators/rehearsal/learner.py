"""``python -m runtime.deployed`` by the rehearsal's clock; the instance's own files come first on the path."""

from __future__ import annotations

import sys

from runtime.deployed import main
from tests.rehearsal.clock import Clock

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], now=Clock.of_this_process().now))
