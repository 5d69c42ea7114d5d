"""Actors for other libraries' trainers. Each module needs its library."""
