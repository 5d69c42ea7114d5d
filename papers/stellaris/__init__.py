"""Stellaris: recorded durations of learner functions, and what its mechanisms change in virtual time."""
