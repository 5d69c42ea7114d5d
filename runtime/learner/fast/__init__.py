"""Makes updates fast: a perceptron's gradient written out, oneDNN's products, and functions compiled without Python.

The plain path uses torch's own modules and autograd (`runtime.learner.networks`, `runtime.learner.trained_network`),
and Python runs the same functions of tensors. Networks for pictures always take the plain path.

A compiled function takes the interpreter's lock once per call, not at each operation. So calls cost less, and two
threads do not wait for each other.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from lambda_actor.fast import PLAIN_VARIABLE, is_plain

HAS_SCRIPTS = sys.version_info < (3, 14) and not is_plain()
"""Whether functions are compiled by TorchScript."""
# torch has no types for it.
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
"""Whether torch has the private operation that computes a layer's outputs in one call."""


Function = TypeVar("Function", bound=Callable[..., object])


def why_off() -> str:
    """Returns why updates are slower here than they could be; "" if they are not."""
    if is_plain():
        return f"{PLAIN_VARIABLE} is set"
    if not HAS_SCRIPTS:
        return "Python 3.14 and later have no TorchScript"
    if not HAS_ONEDNN:
        return f"torch {torch.__version__} has no mkldnn._linear_pointwise on this machine"
    return ""


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
