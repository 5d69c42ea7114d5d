"""Stellaris: recorded durations of learner functions, and the effects of its mechanisms in virtual time."""
