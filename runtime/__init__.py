"""What runs on the learner instance, and on a laptop: the round loop and the parts that it composes."""

import os

# Before numpy is loaded: its threads spin while they wait, and one observation at a time gives them nothing to do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
