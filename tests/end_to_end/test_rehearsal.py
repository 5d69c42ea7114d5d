"""Deployments from the first template to the last Describe, played by ``python -m tests.simulators.rehearsal``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulators.rehearsal.rehearsal import Rehearsal
from tests.simulators.rehearsal.scenarios import rehearse
from tests.stacks.iam import decisions


def test_a_deployment_ends_within_its_budget_and_leaves_only_the_bucket(tmp_path: Path) -> None:
    result = rehearse("budget", tmp_path)
    assert (result["result"], result["problems"]) == ("ok", [])
    assert json.loads((tmp_path / "rehearsal.json").read_text()) == result
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
    assert {
        "rounds.jsonl",
        "events.jsonl",
        "summary.json",
        "report.html",
        "ended.json",
        "policy.safetensors",
    } <= set(names)


def _check_decisions(out: Path) -> None:
    """`make rehearse-all` has recorded the same decisions. If this fails, run it to have the other evaluator judge them
    too.

    The machine's speed decides which attributes of the ledger are written together.
    """
    now, known = (
        {one._replace(context="") for one in found}
        for found in (decisions.read(out / "decisions.json"), decisions.read())
    )
    assert now - known == set()


def test_nothing_is_made_unguarded_and_a_rehearsal_fails_where_anything_is_left(
    tmp_path: Path,
) -> None:
    with Rehearsal("cut-short", tmp_path) as world:
        # No permission lets the guard look, and it reports this to CloudFormation.
        world.is_guarded = False
        world.deploy("unguarded")
        assert world.found_deployed == {"stacks": ["Nitro-unguarded"]}
        world.is_guarded = True
        world.deploy()
        world.step()
        result = world.conclude()
    assert result["result"] == "failed"
    left = "; ".join(result["problems"])
    for name in (
        "Nitro-hopper-learner",
        "nitro-hopper",
        "Nitro-hopper-actor",
        "something that costs money",
        "has not recorded its end",
    ):
        assert name in left
    assert result["spend"]["hopper"]["counted_usd"] > 0.0
