"""Everything that runs inside an actor function, and nothing else.

A leaf package: it imports numpy, gymnasium and redis, never torch, boto3, ``runtime`` or ``stacks``.
"""
