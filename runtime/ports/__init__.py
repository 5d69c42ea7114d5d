"""Small interfaces through which the parts of a run use each other, by subject."""
