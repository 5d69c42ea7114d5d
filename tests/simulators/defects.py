"""Deliberate defects, each with the rehearsal that catches it: ``python -m tests.simulators.defects [NAME …]``.

Each is tried in a copy of the tree, and takes as long as its scenario. The exit code is 1 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import ROOT

_FOLDERS = ("docs", "experiments", "lambda_actor", "nitro_rl", "runtime", "stacks", "tests")
_GUARD, _BOOT = "runtime/aws/guard", "stacks/constructs/learner_boot.sh"
_LONGEST_S = 900


@dataclass(frozen=True)
class Defect:
    """Attributes:
    file: Of the product.
    right, wrong: A text that the file has once, and what it becomes.
    scenario: The one that must fail.
    """

    file: str
    right: str
    wrong: str
    scenario: str


DEFECTS = {
    "the guard does not notice silence": Defect(
        f"{_GUARD}/stacks.py", "> limit_s:", "> 100 * limit_s:", "learner-hangs"
    ),
    "the guard may not set a group to zero": Defect(
        "stacks/guard.py",
        '["autoscaling:SetDesiredCapacity"]',
        '["autoscaling:DescribeAutoScalingGroups"]',
        "learner-hangs",
    ),
    "the guard's bill is zero": Defect(
        f"{_GUARD}/teardown.py", "spent_usd=usd, now_s", "spent_usd=0.0 * usd, now_s", "budget"
    ),
    "the guard keeps nothing for the teardown": Defect(
        f"{_GUARD}/stacks.py",
        "if projected_usd > self.budget_usd - self.tail_usd:",
        "if projected_usd > 10 * self.budget_usd:",
        "external-pool",
    ),
    "gone is said before Describe finds the stack gone": Defect(
        f"{_GUARD}/teardown.py",
        'return "" if status == DELETED else f"CloudFormation ({status})"',
        'return ""',
        "superseded",
    ),
    "a start that is never over is not ended": Defect(
        f"{_GUARD}/stacks.py",
        "making_s > MAKING_LIMIT_S",
        "making_s > 100 * MAKING_LIMIT_S",
        "deploy-fails",
    ),
    "the cache is left to CloudFormation": Defect(
        f"{_GUARD}/teardown.py",
        'yield "cache", lambda: ends.end_cache(client, parts)',
        "pass",
        "deploy-fails",
    ),
    "a second run may replace one that runs": Defect(
        f"{_GUARD}/check.py", 'if request == "Update":', 'if request == "Never":', "superseded"
    ),
    "a failed boot tells CloudFormation nothing": Defect(
        _BOOT, "--status FAILURE \\", "--status FAILED \\", "boot-fails"
    ),
    "launches are not limited": Defect(
        _BOOT, '[ "$number" -le "$BOOT_LAUNCHES_MAX" ]\n', "", "boot-fails"
    ),
    "CloudFormation may not pass a role": Defect(
        "docs/reference/execution_policy_2.json", '"iam:PassRole"', '"iam:GetRole"', "budget"
    ),
    "a deployer may not read what is left": Defect(
        "docs/reference/deployer_policy.json", '"tag:GetResources"', '"tag:GetTagKeys"', "stop"
    ),
}


def catches(defect: Defect) -> bool:
    """Returns whether the scenario fails with the defect."""
    with tempfile.TemporaryDirectory(prefix="defect-") as folder:
        tree = Path(folder)
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, tree / name)
        for name in ("app.py", "cdk.json", "pyproject.toml", "constraints.txt", "requirements.txt"):
            shutil.copy(ROOT / name, tree / name)
        path = tree / defect.file
        path.write_text(path.read_text().replace(defect.right, defect.wrong))
        command = [sys.executable, "-m", "tests.simulators.rehearsal", defect.scenario]
        try:
            done = subprocess.run(
                command,
                cwd=tree,
                env={**os.environ, "PYTHONPATH": folder},
                stdout=subprocess.DEVNULL,
                check=False,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def main(names: Sequence[str]) -> int:
    """Tries the named defects, or all."""
    survivors = 0
    for name in names or DEFECTS:
        is_caught = catches(DEFECTS[name])
        survivors += not is_caught
        print(f"{'caught' if is_caught else 'SURVIVED'}: {name}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
