"""Functions of tensors that run without the interpreter.

A compiled function takes the interpreter's lock once per call, not at each operation. So calls cost less, and two
threads do not wait for each other.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from runtime.learner.fast import HAS_SCRIPTS

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles a function of tensors and numbers, passed by position, for calls without gradients.

    It may call other compiled functions, which become part of it.

    Uses TorchScript, which ends with Python 3.13 and is deprecated in favor of torch.compile. But torch.compile takes
    half a minute and a C++ compiler.
    """
    if not HAS_SCRIPTS:
        return function
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        script = torch.jit.script(function)

    # The copied attributes lead the compiler to the original. torch has no types for this.
    @functools.wraps(torch.jit.script_if_tracing(function))  # type: ignore[no-untyped-call]
    def call(*arguments: object) -> object:
        return function(*arguments) if torch.is_grad_enabled() else script(*arguments)

    return call  # type: ignore[return-value]  # it is called as the function
