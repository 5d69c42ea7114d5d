"""Trains deep-RL policies with serverless actors, within a budget.

`train` and `load_policy` are the stable API: docs/reference/python.md explains them. Each is imported when it is first
used, so that importing this package, as every actor process and the guard do, loads nothing but a table of names.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

import runtime.registry  # noqa: F401  # the built-in kinds of all parts, by name

if TYPE_CHECKING:
    from runtime.cli.in_python import train
    from runtime.export.policy import load_policy

__version__ = "0.2.0.dev0"
__all__ = ["__version__", "load_policy", "train"]

_HOMES = {"load_policy": "runtime.export.policy", "train": "runtime.cli.in_python"}

# Before numpy is loaded: its threads spin while they wait, and one observation at a time gives them nothing to do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
