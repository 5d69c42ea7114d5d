"""``python -m tests.docs.one_process "train a.yaml" "train b.yaml"`` runs these commands in one process."""

import sys

from runtime.cli.main import main

for words in sys.argv[1:]:
    if main(words.split()) != 0:
        sys.exit(words)
