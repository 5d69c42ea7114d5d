"""Judges by others of all that the app writes, each with a deliberate defect that it finds."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_cdk import aws_s3 as s3

from stacks.assembly import make_app
from tests import judges
from tests.helpers import ROOT
from tests.stacks.conftest import SETTINGS, STACK, VARIANTS, Assembly
from tests.stacks.iam.account import Account

REGIONS = boto3.Session().get_available_regions("cloudformation")
"""The commercial ones. Types of resources are not the same everywhere."""
CFN_LINT_IGNORED = {
    "W3005": "CDK's constructs state their dependencies even if a reference implies them",
    "W6001": "the bucket's name is also an output of the experiment's stack, where people look for it",
}
BUDGET = {
    "Budget": {
        "BudgetType": "COST",
        "TimeUnit": "MONTHLY",
        "BudgetLimit": {"Amount": 2, "Unit": "USD"},
    }
}
needs_judges = pytest.mark.skipif(
    not judges.are_here() and not os.environ.get("CI"),
    reason="python -m tests.judges installs them from npm",
)


def test_cfn_lint_finds_nothing_in_any_region(
    variant: Callable[[str], Assembly], tmp_path: Path
) -> None:
    """Runs in one process, because most of the time is start-up."""
    made = [variant(name) for name in VARIANTS]
    # Each file once: the shared stacks are the same almost every time.
    paths = {
        path.read_bytes(): path for one in made for path in one.directory.glob("*.template.json")
    }.values()
    size = made[0].template()
    (group,) = made[0].resources("AWS::AutoScaling::AutoScalingGroup")
    size["Resources"][group]["Properties"]["MaxSize"] = ["many"]
    budget = {"Resources": {"Budget": {"Type": "AWS::Budgets::Budget", "Properties": BUDGET}}}
    defects = {tmp_path / "size.json": size, tmp_path / "budget.json": budget}
    for path, template in defects.items():
        path.write_text(json.dumps(template))
    program = "import sys; from cfnlint import runner; sys.exit(runner.main())"
    options = ["--ignore-checks", *CFN_LINT_IGNORED, "--format", "parseable"]
    done = subprocess.run(
        [sys.executable, "-c", program, "--regions", *REGIONS, *options, "--template"]
        + [str(path) for path in (*paths, *defects)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.stdout.splitlines()
    assert [line for line in found if not line.startswith(str(tmp_path))] == []
    assert any("E3012" in line for line in found), done.stderr
    # CloudFormation has no budgets in half of the regions.
    assert any("E3006" in line and "'eu-north-1'" in line for line in found)


def test_cdk_nag_finds_what_nobody_answered_for() -> None:
    """Every synthesis of these tests passed it. This one must fail."""
    app = make_app({**SETTINGS, "experiment": str(ROOT / "experiments" / "hopper.yaml")})
    s3.Bucket(app.node.find_child("Nitro-hopper"), "Careless")
    with pytest.raises(RuntimeError, match="Careless"):
        app.synth()


@needs_judges
def test_the_state_machine_is_valid(variant: Callable[[str], Assembly]) -> None:
    account = Account(variant("function"))
    (made,) = account.resources("AWS::StepFunctions::StateMachine", STACK).values()
    machine = json.loads(account.text(STACK, made["Properties"]["DefinitionString"]))
    nowhere: dict[str, Any] = {**machine, "StartAt": "Nowhere"}
    loose = copy.deepcopy(machine)
    loose["States"]["Leg"]["Retry"][0]["IntervalSeconds"] = "soon"
    answers = judges.ask("judge_states.mjs", [machine, nowhere, loose])
    assert answers[0] == ""
    assert "Nowhere" in answers[1]
    assert "IntervalSeconds" in answers[2]
