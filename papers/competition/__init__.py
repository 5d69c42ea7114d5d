"""Which rule should choose how many actors a round gets: all of them on one engine (docs/results.md)."""
