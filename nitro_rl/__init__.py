"""Trains deep-RL policies with serverless actors, within a budget.

This is the public package; see docs/reference/python.md. It contains `train`, `load_policy`, their results and errors,
and base classes for callbacks, scalers, algorithms, fleets and updaters of your own. ``__init__.pyi`` lists them.
Names are imported on first use, so ``import nitro_rl`` loads neither NumPy nor torch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
_HOME_OF = {
    name.name: line.module or ""
    for line in _STUB.body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
