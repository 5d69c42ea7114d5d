"""AWS' service models, read once per process and its forks, however many sessions use them.

Reading them takes a third of a short command. Looking which services have any takes as long as ten calls.
"""

from __future__ import annotations

from functools import cache

import botocore.session
from botocore.loaders import JSONFileLoader, Loader


class _RememberingLoader(JSONFileLoader):
    load_file = staticmethod(cache(JSONFileLoader().load_file))


_list = Loader.list_available_services
_listed = cache(lambda kind, *paths: _list(Loader(paths, include_default_search_paths=False), kind))
Loader.list_available_services = lambda loader, type_name: _listed(type_name, *loader.search_paths)
Loader.FILE_LOADER_CLASS = _RememberingLoader


def load(*services: str) -> None:
    """Reads the models that clients of these services need."""
    session = botocore.session.Session()
    for service in services:
        session.create_client(
            service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
        )
