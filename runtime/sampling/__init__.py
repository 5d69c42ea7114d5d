"""How the trajectories of a round come to be."""
