"""Displays of a run."""
