"""Asynchronous rounds: stretches of a stream of actors. Start reading at `pacing`."""
