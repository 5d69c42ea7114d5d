"""The vocabulary: the small interfaces through which the parts of a run know each other, by subject."""
