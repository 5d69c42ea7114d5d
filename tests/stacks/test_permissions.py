"""Compares every right in the templates with the code's requests: none is missing, and none is superfluous.

docs/design/permissions.md explains the method and its limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from runtime.aws.guard.check import CHECK_TYPE, START_TYPE, VERSION_TYPE
from tests.stacks.conftest import Assembly, Synthesise
from tests.stacks.iam.account import Account
from tests.stacks.iam.database import all_actions, condition_keys, deletion_actions
from tests.stacks.iam.needs import Role, roles_of
from tests.stacks.iam.policies import Statement


@pytest.fixture(
    scope="module", params=["redis", "none", "warm", "local", "function", "external", "pool"]
)
def account(request: pytest.FixtureRequest, variant: Callable[[str], Assembly]) -> Account:
    return Account(variant(request.param))


@pytest.fixture(scope="module")
def roles(account: Account) -> list[Role]:
    return roles_of(account)


def test_each_role_has_what_it_needs_and_nothing_else(roles: list[Role]) -> None:
    assert [problem for role in roles for problem in role.problems()] == []


def test_no_role_goes_unjudged(account: Account, roles: list[Role]) -> None:
    """A new role's wildcards are acknowledged to cdk-nag by themselves, so this comparison has to see every role."""
    made = {
        account.text(stack, {"Ref": name})
        for stack in account.templates
        for name in account.resources("AWS::IAM::Role", stack)
    }
    assert {role.name for role in roles} == made


def without_one(role: Role) -> Iterator[tuple[str, list[Statement]]]:
    """Yields a role's statements without one action, one resource or one condition, or with all resources."""
    for index, one in enumerate(role.statements):
        before, after = role.statements[:index], role.statements[index + 1 :]
        changed = [(f"without {action}", one.without_action(action)) for action in one.actions]
        changed += [(f"without {name}", one.without_resource(name)) for name in one.resources]
        changed += [
            (
                f"without {condition}",
                replace(
                    one, conditions=tuple(other for other in one.conditions if other != condition)
                ),
            )
            for condition in one.conditions
        ]
        if one.effect == "Allow" and one.resources != ("*",):
            changed.append(("on everything", replace(one, resources=("*",))))
        for what, statement in changed:
            yield f"{one.sid} {what}", [*before, statement, *after]


def test_no_part_of_a_policy_can_be_taken_away_unseen(roles: list[Role]) -> None:
    mutants = [(role, name, changed) for role in roles for name, changed in without_one(role)]
    assert len(mutants) > 40
    assert [
        (role.name, name) for role, name, changed in mutants if not any(role.problems(changed))
    ] == []


def test_no_action_can_be_added_unseen(synthesise: Synthesise) -> None:
    """Adds each action of each service that a role uses to each of its statements."""
    for role in roles_of(Account(synthesise())):
        needed = {need.action for need in role.needs}
        services = {action.partition(":")[0] for action in needed} | {"iam"}
        more = tuple(
            action
            for service in sorted(services)
            for action in all_actions(service)
            if action not in needed
        )
        for index, one in enumerate(role.statements):
            if one.effect == "Allow":
                changed = [
                    *role.statements[:index],
                    replace(one, actions=one.actions + more),
                    *role.statements[index + 1 :],
                ]
                seen = " ".join(role.problems(changed))
                assert [action for action in more if f"needs {action} on" not in seen] == []


def test_everything_in_a_statement_means_something(roles: list[Role]) -> None:
    """IAM accepts anything else, but it never matches: an action without wildcards, and keys that its requests have."""
    for statement in [one for role in roles for one in role.statements]:
        for action in statement.actions:
            assert action in all_actions(action.partition(":")[0]), f"{statement.sid}: {action}"
            keys = {
                key.partition("/")[0]
                for _, key, _ in statement.conditions
                if not key.startswith("lambda:Source")
            }
            assert keys <= condition_keys(action), f"{statement.sid}: {action}"


def test_stacks_are_deleted_by_the_role_that_the_bootstrap_made(account: Account) -> None:
    """CloudFormation remembers the role that created a stack, and uses its rights for deletions.

    Deleting the stack takes no right to pass that role: CloudFormation User Guide, "CloudFormation service role".
    """
    manifest = json.loads((account.made.directory / "manifest.json").read_text())["artifacts"]
    for stack, template in account.templates.items():
        assert (
            "role/cdk-hnb659fds-cfn-exec-role-"
            in manifest[stack]["properties"]["cloudFormationExecutionRoleArn"]
        )
        # Retained resources, such as questions to the guard, are not deleted.
        for kind in {resource["Type"] for resource in template["Resources"].values()} - {
            CHECK_TYPE,
            START_TYPE,
            VERSION_TYPE,
        }:
            assert deletion_actions(kind), f"it is unknown what the deletion of {kind} needs"
