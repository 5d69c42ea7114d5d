"""AWS' service models, read once per process and its forks, however many sessions use them.

Reading them takes a third of a short command. Looking for the services of which there are any takes a new session's
first client longer than all else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import botocore.session
from botocore.loaders import JSONFileLoader, Loader


class _RememberingLoader(JSONFileLoader):
    load_file = staticmethod(cache(JSONFileLoader().load_file))


_own_list = Loader.list_available_services
_lists: dict[Any, list[str]] = {}


def _list(loader: Loader, type_name: str) -> list[str]:
    key = type_name, *loader.search_paths
    if key not in _lists:
        _lists[key] = _own_list(loader, type_name)
    return _lists[key]


Loader.FILE_LOADER_CLASS = _RememberingLoader
Loader.list_available_services = _list


def load(*services: str) -> None:
    """Reads the models that clients of these services need."""
    session = botocore.session.Session()
    for service in services:
        session.create_client(service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
