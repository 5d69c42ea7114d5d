r"""Tries environments of many packages, each for two rounds, and records which of them train here.

    python -m benchmarks.conformance --work WORK [--only GROUP …] [--jobs N]

Each group of packages gets a virtual environment under WORK on top of this Python's. Writes
benchmarks/results/conformance.json and docs/environments_table.md. Results of other groups are kept, and environments
with findings in WORK are not tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.conformance.environments import FOUND, GROUPS, Group
from benchmarks.conformance.page import PAGE, RESULTS, page
from benchmarks.conformance.verdicts import judged
from runtime.records.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]


def make_python(name: str, group: Group, work: Path) -> Path:
    """Returns the Python of a group: this one, or a virtual environment's that sees this one's packages.

    Raises:
        subprocess.CalledProcessError: Its packages cannot be installed.
    """
    if not group.requirements:
        return Path(sys.executable)
    folder = work / "venvs" / name
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join(group.requirements)
    if done.exists() and done.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)])
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(packages) / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-compile",
            *group.requirements,
        ]
    )
    done.write_text(wanted)
    return python


def try_group(name: str, group: Group, work: Path) -> dict[str, Any]:
    """Returns the findings for a group's environments."""
    print(f"{name}: {len(group.rows)} environments", flush=True)
    rows = {_row_name(row): row for row in map(asdict, group.rows)}
    folder = work / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    versions: dict[str, str] = {}
    missing: dict[str, Any] = {}
    try:
        python = make_python(name, group, work)
    except subprocess.CalledProcessError as error:
        missing = {
            "broken": "cannot be installed: "
            + (error.stderr.strip().splitlines() or [str(error)])[-1]
        }
    else:
        task = folder / "task.json"
        task.write_text(json.dumps({"packages": group.packages, "rows": rows}))
        done = _run(
            [str(python), "-m", "benchmarks.conformance.host", str(task), str(folder)],
            group.variables,
            folder,
        )
        versions = json.loads(done.stdout)
    print(f"{name}: done", flush=True)
    return {
        "title": group.title,
        "versions": versions,
        "requirements": list(group.requirements),
        "variables": dict(group.variables),
        "rows": [
            {**row, **judged(row, missing or json.loads((folder / key / FOUND).read_text()))}
            for key, row in rows.items()
        ],
    }


def _row_name(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12]


def _run(
    command: Sequence[str], variables: Mapping[str, str] | None = None, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        command,
        cwd=folder,
        check=True,
        text=True,
        capture_output=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": path,
            **(variables or {}),
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="where virtual environments and runs go"
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--jobs", type=int, default=2, help="groups that are tried at once")
    options = parser.parse_args(arguments)
    known: dict[str, Any] = json.loads(RESULTS.read_text())["groups"] if RESULTS.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        tried = {
            name: pool.submit(try_group, name, GROUPS[name], options.work.resolve())
            for name in options.only
        }
        for name, one in tried.items():
            known[name] = one.result()
            write_results({group: known[group] for group in GROUPS if group in known})
    return 0


def write_results(groups: Mapping[str, Any]) -> None:
    """Writes the results and their page."""
    results = {"python": platform.python_version(), "machine": platform.machine(), "groups": groups}
    write_atomically(RESULTS, json.dumps(results, indent=1).encode() + b"\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    sys.exit(main())
