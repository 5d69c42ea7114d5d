"""Asynchronous rounds: sections of a stream of actors. Start reading at `pacing`."""
