"""Collects the trajectories of a round."""
