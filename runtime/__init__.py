"""Everything that runs on the learner's side. `nitro_rl` is its public face.

Importing this package, as every actor process and the guard do, loads nothing but a table of names.
"""

import os

import runtime.registry  # noqa: F401  # the built-in kinds of all parts, by name

__version__ = "0.2.0.dev0"

# Before numpy is loaded: its threads spin while they wait, and one observation at a time gives them nothing to do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
