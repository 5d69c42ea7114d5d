"""Deployments from the first template to the last Describe, played by ``python -m tests.simulators.rehearsal``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stacks.components.learner import BOOT_SCRIPT
from stacks.staging import GUARD_MODULE
from tests.simulators.rehearsal.rehearsal import Rehearsal
from tests.simulators.rehearsal.scenarios import rehearse
from tests.stacks.iam import decisions
from tests.stacks.iam.calls import Call, calls_from, calls_of_script
from tests.stacks.iam.database import actions_of


def test_a_deployment_ends_within_its_budget_and_leaves_only_the_bucket(tmp_path: Path) -> None:
    result = rehearse("budget", tmp_path, step_s=0.5)
    assert (result["result"], result["problems"]) == ("ok", [])
    assert json.loads((tmp_path / "rehearsal.json").read_text()) == result
    _check_calls(result)
    _check_decisions(tmp_path)
    assert {kind for kind, found in result["found_after"].items() if found} == {"buckets"}
    assert len(result["found_after"]) > 12
    (spend,) = result["spend"].values()
    assert 0.0 < spend["run_usd"] <= spend["ledger_usd"] <= spend["budget_usd"]
    # Counted from Describe's findings: not more than the ledger has, and not zero.
    assert 0.5 * spend["ledger_usd"] < spend["counted_usd"] < spend["budget_usd"]
    rows = [json.loads(row) for row in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [row["round_index"] for row in rows] == list(range(1, spend["rounds"] + 1))
    (names,) = result["bucket"].values()
    assert {"rounds.jsonl", "events.jsonl", "ledger.json", "summary.json", "report.html", "ended.json",
            "policy.safetensors"} <= set(names)


def _check_calls(result: Mapping[str, Any]) -> None:
    """Roles only requested permissions that the code that runs with them needs."""
    read = {"NitroGuard-Role": calls_from(GUARD_MODULE, "handler"),
            "Nitro-hopper-LearnerRole": {*calls_from("runtime.backends.aws.learner", "main"),
                                         *calls_of_script(BOOT_SCRIPT.read_text(), {})}}
    # Actors call AWS only if the learner serves the cache: they read its password.
    assert len(result["calls"]) == len(read)
    for role, lines in result["calls"].items():
        (made,) = [made for name, made in read.items() if role.startswith(name)]
        known = {action for call in made for action in actions_of(call)}
        assert {action for line in lines for action in actions_of(Call(*line.split()))} <= known, role


def _check_decisions(out: Path) -> None:
    """`make rehearse-all` has recorded the same decisions. If this fails, run it to have the other evaluator judge them
    too.

    The machine's speed decides which attributes of the ledger are written together.
    """
    now, known = ({one._replace(context="") for one in found} for found in (
        decisions.read(out / "decisions.json"), decisions.read()))
    assert now - known == set()


def test_nothing_is_made_unguarded_and_a_rehearsal_fails_where_anything_is_left(tmp_path: Path) -> None:
    with Rehearsal("cut-short", tmp_path) as world:
        # No permission lets the guard look, and it reports this to CloudFormation.
        world.is_guarded = False
        world.deploy("unguarded")
        assert world.found_deployed == {"stacks": ["Nitro-unguarded"]}
        world.is_guarded = world.machines.is_dead_on_arrival = True
        world.deploy()
        world.step()
        result = world.conclude()
    assert result["result"] == "failed"
    left = "; ".join(result["problems"])
    for name in ("Nitro-hopper-learner", "nitro-hopper", "Nitro-hopper-actor", "something that costs money",
                 "has not recorded its end"):
        assert name in left
    assert result["spend"]["hopper"]["counted_usd"] > 0.0
