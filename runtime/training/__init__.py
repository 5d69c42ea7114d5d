"""The training of one run: the loop, its pacings, and their parts."""
