"""Actors for a trainer of your own: `ActorPool` samples fragments within a budget, and trains nothing."""
