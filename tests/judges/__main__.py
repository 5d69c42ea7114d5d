"""Installs the judges."""

from __future__ import annotations

import sys

from tests.judges import are_here, install

if __name__ == "__main__":
    sys.exit(0 if are_here() else install())
