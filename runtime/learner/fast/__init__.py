"""Makes updates fast: a perceptron's gradient written out, oneDNN's products, and functions compiled without Python.

The plain path uses torch's own modules and autograd (`runtime.learner.networks`, `runtime.learner.trained_network`),
and Python runs the same functions of tensors. Networks for pictures always take the plain path.
"""

from __future__ import annotations

import sys

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


def why_off() -> str:
    """Returns why updates are slower here than they could be; "" if they are not."""
    if is_plain():
        return f"{PLAIN_VARIABLE} is set"
    if not HAS_SCRIPTS:
        return "Python 3.14 and later have no TorchScript"
    if not HAS_ONEDNN:
        return f"torch {torch.__version__} has no mkldnn._linear_pointwise on this machine"
    return ""
