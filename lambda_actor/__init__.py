"""Everything that runs inside an actor function, and nothing else.

A leaf package: it imports NumPy, Gymnasium and redis, and a simulator when an environment needs it. It never imports
torch, boto3, ``runtime`` or ``stacks``.
"""
