"""Functions of tensors that run without the interpreter.

One call of a compiled function takes the interpreter's lock once and not at each of its operations: they cost less, and
two threads do not wait for each other.
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
    """Has a function of tensors and numbers, given by position, run compiled where no gradient is asked for.

    It may call others like it; they become part of it.

    By TorchScript, which ends with Python 3.13 and is deprecated in favour of torch.compile; but that takes half a
    minute and a C++ compiler.
    """
    if not HAS_SCRIPTS:
        return function
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        script = torch.jit.script(function)

    # What is copied leads the compiler from the one to the other; torch has no types for it.
    @functools.wraps(torch.jit.script_if_tracing(function))  # type: ignore[no-untyped-call]
    def call(*arguments: object) -> object:
        return function(*arguments) if torch.is_grad_enabled() else script(*arguments)

    return call  # type: ignore[return-value]  # it is called as the function
