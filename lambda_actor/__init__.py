"""Everything that runs inside an actor function, and nothing else.

A leaf package: it imports numpy, gymnasium and redis, and a simulator once an environment needs it; never torch, boto3,
``runtime`` or ``stacks``.
"""
