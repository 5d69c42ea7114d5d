"""Every right that anything in the templates has, word for word, and that nothing has more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stacks.conftest import KINDS, NAME, RUN, STACK, Assembly, Synthesise, flat, listed

BUCKET = "<NitroResults:ExportsOutputFnGetAttResults25575328Arn5DD4F5AA>"
ACCOUNT = "arn:<AWS::Partition>:{}:<AWS::Region>:<AWS::AccountId>:{}"
CONNECT = {
    "serverless": [ACCOUNT.format("elasticache", f"{kind}:nitro-{NAME}") for kind in ("serverlesscache", "user")],
    "node": [ACCOUNT.format("elasticache", f"{kind}:nitro-{NAME}") for kind in ("replicationgroup", "user")],
}
NETWORK = ["ec2:AssignPrivateIpAddresses", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface",
           "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:UnassignPrivateIpAddresses"]
SESSION = ["ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
           "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"]
GUARD_NETWORK = ["ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:DescribeTags", "ec2:DescribeVpcs"]
DESCRIBE = ["autoscaling:DescribeAutoScalingGroups", "cloudformation:DescribeStacks", "ec2:DescribeInstances"]
LIST = ["cloudformation:ListStacks"]
"""Asked for, too, where DescribeStacks is called without a name."""
LEDGER = "<NitroGuard:ExportsOutputFnGetAttLedgerB7379752Arn8FB7B3DC>"
WITHOUT_RESOURCES = {
    **dict.fromkeys(NETWORK, "Lambda checks them on every resource when the function is made; its code is denied them"),
    **dict.fromkeys(SESSION, "as the Session Manager guide has them: the instance is not known before it starts"),
    "lambda:GetAccountSettings": "concerns the account",
    "cloudwatch:PutMetricData": "bound to one namespace by a condition",
    **dict.fromkeys(GUARD_NETWORK + DESCRIBE, "Describe calls know no resources"),
    **dict.fromkeys(LIST, "concerns all stacks of the account"),
}
"""Actions that IAM, or who checks them, knows no narrower resource for, and why."""
FREE_PARTS = {
    f"{BUCKET}/{NAME}/{RUN}/*": "the run's own objects",
    f"{BUCKET}/{NAME}/{RUN}/checkpoints/*": "the run's own checkpoints",
    ACCOUNT.format("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{STACK}-learner"):
        "the identifier in the middle is drawn by AWS",
}

Rights = dict[str, tuple[str, list[str], list[str], Any]]


def role_rights(made: Assembly, role: str, stack: str | None = None) -> Rights:
    """Statements of all policies of the role that begins with ``role``, by Sid: effect, actions, resources, when."""
    statements = [statement for name, policy in made.resources("AWS::IAM::Policy", stack).items()
                  if name.startswith(role)
                  for statement in policy["Properties"]["PolicyDocument"]["Statement"]]
    rights = {statement["Sid"]: (statement["Effect"], listed(statement["Action"]), listed(statement["Resource"]),
                                 statement.get("Condition")) for statement in statements}
    assert len(rights) == len(statements)
    return rights


def log_group(made: Assembly, whose: str) -> str:
    (name,) = [name for name in made.resources("AWS::Logs::LogGroup") if name.startswith(whose)]
    return f"<{name}>"


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_actor_may_do(synthesise: Synthesise, kind: str) -> None:
    made = synthesise(cache=kind)
    rights = role_rights(made, "Actor")
    effect, actions, resources, condition = rights.pop("NetworkForLambdaOnly")
    assert (effect, actions, resources) == ("Deny", NETWORK, ["*"])
    assert flat(condition["ArnEquals"]["lambda:SourceFunctionArn"]) == ACCOUNT.format(
        "lambda", f"function:{made.only('AWS::Lambda::Function')['FunctionName']}")
    credential = (
        {"CacheCredential": ("Allow", ["s3:GetObject"], [f"{BUCKET}/{NAME}/{RUN}/cache-credential.json"], None)}
        if kind == "learner" else {"CacheConnect": ("Allow", ["elasticache:Connect"], CONNECT[kind], None)})
    assert rights == {
        "Logs": ("Allow", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group(made, "Actor")], None),
        "Network": ("Allow", NETWORK, ["*"], None),
        **credential,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_learner_may_do(synthesise: Synthesise, kind: str) -> None:
    made = synthesise(cache=kind)
    alias, function = made.name("AWS::Lambda::Alias"), made.name("AWS::Lambda::Function")
    connect = {} if kind == "learner" else {
        "CacheConnect": ("Allow", ["elasticache:Connect"], CONNECT[kind], None)}
    assert role_rights(made, "Learner") == {
        "Results": ("Allow", ["s3:GetObject", "s3:PutObject"], [f"{BUCKET}/{NAME}/{RUN}/*"], None),
        "OldCheckpoints": ("Allow", ["s3:DeleteObject"], [f"{BUCKET}/{NAME}/{RUN}/checkpoints/*"], None),
        "ListResults": ("Allow", ["s3:ListBucket"], [BUCKET], {"StringLike": {"s3:prefix": f"{NAME}/{RUN}/*"}}),
        "OwnFiles": ("Allow", ["s3:GetObject"], [f"arn:<AWS::Partition>:s3:::{made.learner_key()}"], None),
        "Metrics": ("Allow", ["cloudwatch:PutMetricData"], ["*"],
                    {"StringEquals": {"cloudwatch:namespace": "Nitro"}}),
        "Logs": ("Allow", ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                 [log_group(made, "Learner")], None),
        "OwnStack": ("Allow", ["cloudformation:DescribeStacks", "cloudformation:SignalResource"], ["<AWS::StackId>"],
                     None),
        "OwnGroup": ("Allow", ["autoscaling:SetDesiredCapacity"], [ACCOUNT.format(
            "autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{STACK}-learner")], None),
        "SessionManager": ("Allow", SESSION, ["*"], None),
        "ActorInvoke": ("Allow", ["lambda:InvokeFunction"], [f"<{alias}>"], None),
        "ActorRelease": ("Allow", ["lambda:DeleteProvisionedConcurrencyConfig"], [f"<{alias}>"], None),
        "ActorConcurrency": ("Allow", ["lambda:GetFunctionConcurrency"], [f"<{function}>"], None),
        "AccountConcurrency": ("Allow", ["lambda:GetAccountSettings"], ["*"], None),
        "LedgerWrite": ("Allow", ["dynamodb:UpdateItem"], [LEDGER], {
            "ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [f"{NAME}/{RUN}"]}}),
        "LedgerRead": ("Allow", ["dynamodb:GetItem"], [LEDGER], {
            "ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [f"{NAME}/{RUN}", "guard"]}}),
        **connect,
    }


def test_what_the_guard_may_do(serverless: Assembly) -> None:
    functions = ACCOUNT.format("lambda", "function:Nitro-*-actor")
    rights = role_rights(serverless, "Role", "NitroGuard")
    ledger, topic, group = (f"<{name}>" for kind in ("DynamoDB::Table", "SNS::Topic", "Logs::LogGroup")
                            for name in serverless.resources(f"AWS::{kind}", "NitroGuard"))
    assert rights == {
        "Ledger": ("Allow", ["dynamodb:GetItem", "dynamodb:Scan", "dynamodb:UpdateItem"], [ledger], None),
        "Report": ("Allow", ["sns:Publish"], [topic], None),
        "Logs": ("Allow", ["logs:CreateLogStream", "logs:PutLogEvents"], [group], None),
        "FindStacks": ("Allow", ["cloudformation:DescribeStacks", "cloudformation:ListStacks"], ["*"], None),
        "DeleteStacks": ("Allow", ["cloudformation:DeleteStack", "cloudformation:ListStackResources"], [
            ACCOUNT.format("cloudformation", "stack/Nitro-*/*")], None),
        "FindLearners": ("Allow", ["autoscaling:DescribeAutoScalingGroups", "ec2:DescribeInstances"], ["*"], None),
        "EndGroups": ("Allow", ["autoscaling:UpdateAutoScalingGroup"], [
            ACCOUNT.format("autoscaling", "autoScalingGroup:*:autoScalingGroupName/Nitro-*-learner")], None),
        "EndLearners": ("Allow", ["ec2:TerminateInstances"], [ACCOUNT.format("ec2", "instance/*")],
                        {"Null": {"aws:ResourceTag/nitro:experiment": "false"}}),
        "BarActors": ("Allow", [
            "lambda:DeleteProvisionedConcurrencyConfig", "lambda:GetFunctionConcurrency",
            "lambda:GetProvisionedConcurrencyConfig", "lambda:InvokeFunction", "lambda:PutFunctionConcurrency"],
            [functions, f"{functions}:*"], None),
        "DeleteCaches": ("Allow", [
            "elasticache:DeleteReplicationGroup", "elasticache:DeleteServerlessCache",
            "elasticache:DescribeReplicationGroups", "elasticache:DescribeServerlessCaches"],
            [ACCOUNT.format("elasticache", f"{kind}:nitro-*") for kind in ("replicationgroup", "serverlesscache")],
            None),
        "CacheInterfaces": ("Allow", GUARD_NETWORK, ["*"], None),
    }


def test_each_role_is_for_one_service_and_has_no_other_policies(each_kind: Assembly) -> None:
    roles = {name: role for stack in (STACK, "NitroNetwork", "NitroGuard")
             for name, role in each_kind.resources("AWS::IAM::Role", stack).items()}
    trusted = {}
    for name, role in roles.items():
        assert "ManagedPolicyArns" not in role["Properties"]
        assert "Policies" not in role["Properties"]
        (statement,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        trusted[re.match(r"[A-Z][a-z]+", name)[0]] = flat(statement["Principal"]["Service"])
    assert trusted == {"Actor": "lambda.amazonaws.com", "Learner": "ec2.amazonaws.com",
                       "Vpc": "vpc-flow-logs.amazonaws.com", "Role": "lambda.amazonaws.com"}


def statements(tree: Any) -> Iterator[dict[str, Any]]:
    """Every policy statement in a template, wherever it stands."""
    if isinstance(tree, dict):
        if "Effect" in tree and "Action" in tree:
            yield tree
        tree = list(tree.values())
    for child in tree if isinstance(tree, list) else []:
        yield from statements(child)


@pytest.mark.parametrize("stack", ["NitroNetwork", "NitroResults", "NitroGuard", STACK])
def test_wildcards_only_where_no_resource_is_known(each_kind: Assembly, stack: str) -> None:
    found = [statement for statement in statements(each_kind.template(stack))
             if statement["Effect"] == "Allow" and "AssumeRole" not in str(statement["Action"])]
    assert bool(found) is (stack != "NitroResults")
    for statement in found:
        actions, resources = listed(statement["Action"]), listed(statement["Resource"])
        assert not any("*" in action for action in actions)
        for resource in resources:
            if resource == "*":
                assert [action for action in actions if action not in WITHOUT_RESOURCES] == []
            elif "*" in resource and stack == STACK:
                assert resource in FREE_PARTS


def test_the_walk_finds_statements_everywhere(serverless: Assembly) -> None:
    network = [listed(statement["Action"]) for statement in statements(serverless.template("NitroNetwork"))]
    assert ["s3:GetObject"] in network, "an endpoint's policy"
    assert any("logs:PutLogEvents" in actions for actions in network), "a role's policy"
    assert ["s3:*"] in [listed(found["Action"]) for found in statements(serverless.template("NitroResults"))]


def test_no_secret_in_any_template_or_asset(each_kind: Assembly) -> None:
    pattern = re.compile(rb"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:password|secret|token)[\"']?\s*[:=]\s*"
                         rb"[\"'][^\"'{}$]{6,}|://[^/\s:\"']+:[^/\s@\"']+@")
    for path in each_kind.directory.glob("*.template.json"):
        assert pattern.findall(path.read_bytes()) == [], path.name
