"""IAM's decisions in `make rehearse-all`: every answer holds, each right was needed, and another evaluator agrees."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import judges
from tests.simulators.rehearsal.account import DEPLOYER, DEPLOYER_POLICY
from tests.stacks.iam import decisions
from tests.stacks.iam.decisions import Decision
from tests.stacks.iam.policies import Request, Statement, is_allowed, read_statement

needs_judges = pytest.mark.skipif(
    not judges.are_here() and not os.environ.get("CI"),
    reason="python -m tests.judges installs them from npm",
)


def statements_of(one: Decision) -> list[Statement]:
    return [read_statement(statement, str) for statement in json.loads(one.statements)]


def request_of(one: Decision) -> Request:
    return Request(
        one.action,
        one.resource,
        {key: tuple(values) for key, values in json.loads(one.context).items()},
    )


def with_less(statements: list[Statement], asked: Request) -> Iterator[tuple[str, list[Statement]]]:
    """Yields the policies without the action, and without each value of a condition that the request has."""
    yield asked.action, [one.without_action(asked.action) for one in statements]
    for operator, key, values in {
        condition for one in statements if one.covers(asked) for condition in one.conditions
    }:
        for value in set(asked.context.get(key, ())) & set(values):
            less = (operator, key, tuple(kept for kept in values if kept != value))
            yield (
                f"{key} {value}",
                [
                    replace(
                        one,
                        conditions=tuple(
                            less if condition == (operator, key, values) else condition
                            for condition in one.conditions
                        ),
                    )
                    for one in statements
                ],
            )


def test_each_answer_holds_and_without_the_action_or_a_value_of_its_conditions_it_is_no() -> None:
    found = decisions.read()
    mutants = 0
    for one in found:
        statements, asked = statements_of(one), request_of(one)
        assert is_allowed(statements, asked) is one.allowed, one
        for what, less in with_less(statements, asked):
            mutants += 1
            assert not is_allowed(less, asked), f"{asked.action} is allowed without {what}"
    assert len(found) > 50
    assert mutants > len(found)
    assert any(key == "dynamodb:Attributes" for one in found for key in json.loads(one.context))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = decisions.read()
    decisions.write(found, tmp_path / "again.json")
    assert decisions.read(tmp_path / "again.json") == found
    assert (tmp_path / "again.json").read_text() == decisions.KNOWN.read_text()


def test_people_may_do_what_they_did_in_rehearsals_with_the_policy_of_the_docs() -> None:
    allowed = [
        read_statement(one, str) for one in json.loads(DEPLOYER_POLICY.read_text())["Statement"]
    ]
    asked = [request_of(one) for one in decisions.read() if one.role == DEPLOYER]
    assert len(asked) > 30
    assert [one for one in asked if not is_allowed(allowed, one)] == []


@needs_judges
def test_another_evaluator_agrees_with_every_decision_and_notices_a_wrong_one() -> None:
    """docs/decisions/dependencies.md says that none differs."""
    kept = json.loads(decisions.KNOWN.read_text())
    wrong = [
        {**one, "decisions": [[action, resource, context, not allowed]]}
        for one in kept
        for action, resource, context, allowed in one["decisions"][:1]
    ]
    others = judges.ask("judge_policies.mjs", [*kept, *wrong])
    assert [[one["action"], one["resource"], one["context"], one["allowed"]] for one in others] == [
        row for one in wrong for row in one["decisions"]
    ]
