"""Compares the rules for the number of actors in a round, all on one engine (docs/results.md)."""
