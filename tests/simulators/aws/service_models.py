"""AWS' service models, read once by a process and all that it forks, however many sessions ask.

A third of a short command is that, and half of a call of the aws command.
"""

from __future__ import annotations

from functools import cache

import botocore.session
from botocore.loaders import JSONFileLoader, Loader


class _RememberingLoader(JSONFileLoader):
    load_file = staticmethod(cache(JSONFileLoader().load_file))


Loader.FILE_LOADER_CLASS = _RememberingLoader


def load(*services: str) -> None:
    """Reads what clients of these services need."""
    session = botocore.session.Session()
    for service in services:
        session.create_client(service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
