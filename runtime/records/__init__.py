"""A run's files."""
