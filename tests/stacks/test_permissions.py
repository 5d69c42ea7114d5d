"""Compares every right in the templates with the code's requests: none is missing, and none is superfluous.

docs/design/permissions.md explains the method and its limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from runtime.aws.guard.check import CHECK_TYPE, START_TYPE, VERSION_TYPE
from runtime.names import GUARD_STACK, NETWORK_STACK
from tests.stacks.conftest import KINDS, STACK, Assembly, Synthesise, flat
from tests.stacks.iam.account import Account
from tests.stacks.iam.database import all_actions, condition_keys, deletion_actions
from tests.stacks.iam.needs import Role, roles_of
from tests.stacks.iam.policies import Statement


@pytest.fixture(scope="module", params=[*KINDS, "function", "external"])
def account(request: pytest.FixtureRequest, synthesise: Synthesise) -> Account:
    return Account(synthesise(cache=request.param))


@pytest.fixture(scope="module")
def roles(account: Account) -> list[Role]:
    return roles_of(account)


def test_each_role_has_what_it_needs_and_nothing_else(roles: list[Role]) -> None:
    assert [problem for role in roles for problem in role.problems()] == []


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
    assert len(mutants) > 60
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


def test_actors_interfaces_can_be_deleted_as_long_as_their_function_is_there(
    each_cache: Assembly,
) -> None:
    """Lambda deletes them with the function's role, so the role's rights must be deleted after the function.

    They must also be created long before it, in the role and not in a later policy: new rights take seconds to reach
    Lambda.
    """
    (function,) = each_cache.resources("AWS::Lambda::Function").values()
    policies = [
        name for name in each_cache.resources("AWS::IAM::Policy") if name.startswith("Actor")
    ]
    (role,) = [
        role
        for name, role in each_cache.resources("AWS::IAM::Role").items()
        if name.startswith("Actor")
    ]
    assert policies and set(policies) <= set(function["DependsOn"])
    assert [policy["PolicyName"] for policy in role["Properties"].get("Policies", [])] == (
        ["Network"] if "VpcConfig" in function["Properties"] else []
    )


def test_each_role_is_for_one_service_and_has_no_managed_policies(each_cache: Assembly) -> None:
    roles = {
        name: role
        for stack in (STACK, NETWORK_STACK, GUARD_STACK)
        for name, role in each_cache.resources("AWS::IAM::Role", stack).items()
    }
    trusted = {}
    for name, role in roles.items():
        assert "ManagedPolicyArns" not in role["Properties"]
        assert "Policies" not in role["Properties"] or name.startswith("Actor")
        (statement,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        trusted[re.match(r"[A-Z][a-z]+", name)[0]] = flat(statement["Principal"]["Service"])
    assert trusted == {
        "Actor": "lambda.amazonaws.com",
        "Learner": "ec2.amazonaws.com",
        "Vpc": "vpc-flow-logs.amazonaws.com",
        "Role": "lambda.amazonaws.com",
        "Interfaces": "lambda.amazonaws.com",
    }


def test_no_secret_in_any_template_or_asset(each_kind: Assembly) -> None:
    pattern = re.compile(
        rb"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:password|secret|token)[\"']?\s*[:=]\s*"
        rb"[\"'][^\"'{}$]{6,}|://[^/\s:\"']+:[^/\s@\"']+@"
    )
    for path in each_kind.directory.glob("*.template.json"):
        assert pattern.findall(path.read_bytes()) == [], path.name
