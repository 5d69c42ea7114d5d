"""Third-party judges of the app's output: cfn-lint, a validator of state machines, and shellcheck."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import boto3
import pytest

from runtime.errors import ExperimentError
from stacks.constructs.learner import BOOT_SCRIPT
from stacks.plan import Plan
from tests import judges
from tests.stacks.conftest import STACK, Assembly, Synthesise, experiment_text
from tests.stacks.iam.account import Account

WAYS = {
    "cache__kind": ("redis", "none"),
    "learner__kind": ("instance", "function", "stellaris"),
    "fleet__kind": ("auto", "local"),
    "actor__architecture": ("x86_64", "arm64"),
    "learner__market": (None, "spot"),
}
"""Settings on which templates depend; None leaves a key out."""
TEMPLATES_MAX = 12
REGIONS = boto3.Session().get_available_regions("cloudformation")
"""The commercial ones. Types of resources are not the same everywhere."""
CFN_LINT_IGNORED = {
    "W3005": "CDK's constructs state their dependencies even if a reference implies them",
    "W6001": "the bucket's name is also an output of the experiment's stack, where people look for it",
}
needs_judges = pytest.mark.skipif(
    not judges.are_here() and not os.environ.get("CI"),
    reason="python -m tests.judges installs them from npm",
)


def ways(folder: Path) -> list[dict[str, Any]]:
    """Returns experiments that cover every allowed pair of settings: few, not the minimum."""
    allowed = [
        way
        for way in itertools.product(*WAYS.values())
        if _is_allowed(_changes(way), folder / "one.yaml")
    ]
    missing = set().union(*map(_pairs, allowed))
    chosen = []
    while missing:
        best = max(allowed, key=lambda way: len(_pairs(way) & missing))
        chosen.append(_changes(best))
        missing -= _pairs(best)
    return chosen


def _changes(way: Iterable[str | None]) -> dict[str, Any]:
    """For actors on ARM, the learner's instance is also ARM."""
    found = {key: value for key, value in zip(WAYS, way, strict=True) if value}
    is_graviton = (found["learner__kind"], found["actor__architecture"]) == ("instance", "arm64")
    return found | ({"learner__instance_types": ["c7g.large"]} if is_graviton else {})


def _pairs(way: Iterable[str | None]) -> set[Any]:
    return set(itertools.combinations(enumerate(way), 2))


def _is_allowed(changes: dict[str, Any], file: Path) -> bool:
    file.write_text(experiment_text(**changes))
    try:
        Plan.from_context({"experiment": str(file)}.get)
    except ExperimentError:
        return False
    return True


def test_cfn_lint_finds_nothing_in_any_pair_of_ways_and_a_defect_in_another(
    synthesise: Synthesise, tmp_path: Path
) -> None:
    """Runs in one process, because most of the time is start-up."""
    made = [synthesise(cache=way.pop("cache__kind"), **way) for way in ways(tmp_path)]
    assert len(made) <= TEMPLATES_MAX
    # It shares no settings with the others, because it has no learner.
    made.append(synthesise(cache="external", context={"mail": "me@example.org"}))
    # Each file once: the shared stacks are the same every time.
    paths = {
        path.read_bytes(): path for one in made for path in one.directory.glob("*.template.json")
    }.values()
    assert len(paths) > 8
    broken = tmp_path / "broken.template.json"
    broken.write_text(json.dumps(_broken(made[0])))
    budget = tmp_path / "budget.template.json"
    budget.write_text(
        json.dumps(
            {
                "Resources": {
                    "Budget": {
                        "Type": "AWS::Budgets::Budget",
                        "Properties": {
                            "Budget": {
                                "BudgetType": "COST",
                                "TimeUnit": "MONTHLY",
                                "BudgetLimit": {"Amount": 2, "Unit": "USD"},
                            }
                        },
                    }
                }
            }
        )
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from cfnlint import runner; sys.exit(runner.main())",
            "--regions",
            *REGIONS,
            "--ignore-checks",
            *CFN_LINT_IGNORED,
            "--format",
            "parseable",
            "--template",
            *map(str, paths),
            str(broken),
            str(budget),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.stdout.splitlines()
    assert [line for line in found if not line.startswith((f"{broken}:", f"{budget}:"))] == []
    assert any("E3012" in line for line in found), done.stderr
    assert any("E3006" in line and "'eu-north-1'" in line for line in found), (
        "CloudFormation has no budgets there"
    )


def _broken(made: Assembly) -> dict[str, Any]:
    """Returns a template with a group whose size is a list."""
    template = made.template()
    (group,) = [
        one
        for one in template["Resources"].values()
        if one["Type"] == "AWS::AutoScaling::AutoScalingGroup"
    ]
    group["Properties"]["MaxSize"] = ["many"]
    return template


@pytest.fixture
def machine(synthesise: Synthesise) -> dict[str, Any]:
    """The state machine that runs the rounds if there is no instance."""
    account = Account(synthesise(cache="function"))
    (made,) = account.resources("AWS::StepFunctions::StateMachine", STACK).values()
    return json.loads(account.text(STACK, made["Properties"]["DefinitionString"]))


@needs_judges
def test_the_state_machine_is_valid_and_one_that_leads_nowhere_is_not(
    machine: dict[str, Any],
) -> None:
    broken = json.loads(json.dumps(machine))
    broken["StartAt"] = "Nowhere"
    loose = json.loads(json.dumps(machine))
    next(one for one in loose["States"].values() if "Retry" in one)["Retry"][0][
        "IntervalSeconds"
    ] = "soon"
    good, nowhere, interval = judges.ask("judge_states.mjs", [machine, broken, loose])
    assert good == ""
    assert "Nowhere" in nowhere
    assert "IntervalSeconds" in interval


def test_shellcheck_finds_nothing_in_the_boot_script_and_a_defect_in_another(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken.sh"
    broken.write_text(BOOT_SCRIPT.read_text() + "\ncd $here && rm -rf $unknown/*\n")
    answers = [
        subprocess.run(
            [Path(sys.executable).with_name("shellcheck"), "--shell=bash", path],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for path in (BOOT_SCRIPT, broken)
    ]
    assert answers[0] == ""
    assert "SC2115" in answers[1] or "SC2086" in answers[1]
