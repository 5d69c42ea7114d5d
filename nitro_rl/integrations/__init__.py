"""Actors of this project for other libraries' trainers; each module needs its library."""
