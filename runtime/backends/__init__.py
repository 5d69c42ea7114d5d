"""Backends supply the cache, the fleet, the meter and the keeping of a run: this machine, Ray or AWS.

`runtime.ports.run.Backend` is the interface; `runtime.backends.registry` chooses one by the experiment file.
"""
