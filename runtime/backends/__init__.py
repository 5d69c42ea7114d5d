"""What a run gets for a cache, a fleet, a meter and its keeping: this machine, or AWS.

`runtime.ports.run.Backend` is what a backend is; `runtime.backends.registry` chooses one by the experiment file.
"""
