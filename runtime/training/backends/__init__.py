"""Backends supply the cache, the fleet, the meter and the keeping of a run: this machine, Ray or AWS."""
