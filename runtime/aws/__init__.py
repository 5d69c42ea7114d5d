"""The only door to boto3: clients, their errors, queries to the account, and stacks."""

from importlib.util import find_spec

from runtime.errors import MissingExtraError

if find_spec("boto3") is None:
    raise MissingExtraError("AWS", "boto3", "aws")
