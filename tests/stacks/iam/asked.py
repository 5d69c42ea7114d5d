"""Derives from a call's parameters what it asks IAM for: actions, resources and condition keys.

Nothing is stated by hand for a single caller: the same parameters always give the same requests. Anything underivable
is an error, not a missed request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.stacks.iam.database import ACCOUNT, REGION, Call, actions_of, arn_patterns
from tests.stacks.iam.policies import Context, Request, Statement

Values = Mapping[str, Any]
Tags = Callable[[str], Mapping[str, str]]
"""The tags of a resource, by its ARN."""

WITHOUT_RIGHTS = {("sts", "GetCallerIdentity")}
"""STS API Reference: "No permissions are required to perform this operation"."""
NAMED_BY = {
    "TableName": "TableName",
    "BucketName": "Bucket",
    "ObjectName": "Key",
    "TopicName": "TopicArn",
    "GroupFriendlyName": "AutoScalingGroupName",
    "LogGroupName": "logGroupName",
    "LogStreamName": "logStreamName",
    "ServerlessCacheName": "ServerlessCacheName",
    "StackName": "StackName",
    "AlarmName": "AlarmName",
    "InternetGatewayId": "InternetGatewayId",
    "ResourceId": "ResourceId",
    "RouteTableId": "RouteTableId",
    "SecurityGroupId": "GroupId",
    "StateMachineName": "stateMachineArn",
    "UserGroupId": "UserGroupId",
    "UserId": "UserId",
    "ExecutionId": "executionArn",
    "InstanceId": "InstanceIds",
    "RoleNameWithPath": "RoleName",
    "ParameterNameWithoutLeadingSlash": "Name",
    "RepositoryName": "repositoryName",
    "DashboardName": "DashboardName",
    "ServiceCode": "ServiceCode",
    "QuotaCode": "QuotaCode",
}
"""The parameter that fills each part of an ARN. Its value may be a list or a whole ARN."""
_SAME_AS = {"AlarmNames": "AlarmName", "UserIds": "UserId", "name": "stateMachineArn"}
"""Other parameters that name the same."""
UNKNOWN = {"GroupId": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "Id": "*"}
"""Parts that no parameter holds, because AWS generates them. A stack that is called by its name may have any id."""
DERIVED_KEYS = frozenset(
    {
        "autoscaling:MaxSize",
        "autoscaling:MinSize",
        "aws:PrincipalAccount",
        "aws:RequestTag",
        "aws:ResourceTag",
        "aws:SourceAccount",
        "aws:TagKeys",
        "cloudformation:RoleArn",
        "cloudwatch:namespace",
        "dynamodb:Attributes",
        "dynamodb:LeadingKeys",
        "dynamodb:ReturnConsumedCapacity",
        "dynamodb:ReturnValues",
        "dynamodb:Select",
        "iam:AWSServiceName",
        "iam:PassedToService",
        "lambda:SourceFunctionArn",
        "s3:delimiter",
        "s3:max-keys",
        "s3:prefix",
    }
)
"""If one of these keys is absent, the request lacks it. A policy with any other key cannot be judged."""
_PLAIN_KEYS = {
    "autoscaling:MaxSize": "MaxSize",
    "autoscaling:MinSize": "MinSize",
    "cloudformation:RoleArn": "RoleARN",
    "cloudwatch:namespace": "Namespace",
    "dynamodb:ReturnConsumedCapacity": "ReturnConsumedCapacity",
    "dynamodb:ReturnValues": "ReturnValues",
    "dynamodb:Select": "Select",
    "iam:AWSServiceName": "AWSServiceName",
    "s3:delimiter": "Delimiter",
    "s3:max-keys": "MaxKeys",
    "s3:prefix": "Prefix",
}
_EXPRESSIONS = (
    "ProjectionExpression",
    "ConditionExpression",
    "UpdateExpression",
    "FilterExpression",
    "KeyConditionExpression",
)
_OLD_EXPRESSIONS = (
    "AttributesToGet",
    "AttributeUpdates",
    "Expected",
    "ScanFilter",
    "QueryFilter",
    "KeyConditions",
)
_SINGLE_ITEM = {"GetItem", "UpdateItem", "DeleteItem"}
_WORDS = {"SET", "REMOVE", "ADD", "DELETE", "AND", "OR", "NOT", "BETWEEN", "IN"}
_HEAD_OF_A_PATH = re.compile(r"(?<![\w.:#])(#?[A-Za-z_]\w*)(?![\w]*\s*\()")
_LISTS = ("Describe", "List", "Get", "Head", "Filter", "Scan")
_PASSED_BY = {
    "lambda": "lambda.amazonaws.com",
    "cloudformation": "cloudformation.amazonaws.com",
    "stepfunctions": "states.amazonaws.com",
}


class UnderivableError(Exception):
    """A call's requests to IAM cannot be derived from its parameters."""


def requests_of(
    service: str,
    operation: str,
    parameters: Values,
    *,
    account: str = ACCOUNT,
    region: str = REGION,
    tags: Tags = lambda _: {},
) -> list[Request]:
    """Returns the requests that one call makes to IAM.

    Args:
        service, operation: botocore's names.
        parameters: Parameters of the call, in botocore's form.
        account: Owner of the resources that are named without an ARN.
        region: Region of the call.
        tags: Returns the tags of a resource by its ARN.

    Raises:
        UnderivableError: The requests cannot be derived.
        KeyError: IAM knows no such action.
    """
    if (service, operation) in WITHOUT_RIGHTS:
        return []
    where = {"Partition": "aws", "Region": region, "Account": account}
    call = Call(
        service,
        operation,
        operation == "DescribeStacks" and "StackName" not in parameters,
    )
    asked = []
    for number, action in enumerate(actions_of(call)):
        if action == "iam:PassRole":
            asked += _passed(service, parameters)
            continue
        is_own = number == 0 or action.partition(":")[0] == service
        for resource in _resources(action, parameters, where) if is_own else ["*"]:
            context = {
                **_context(service, operation, parameters),
                **{f"aws:ResourceTag/{key}": (value,) for key, value in tags(resource).items()},
            }
            asked.append(Request(action, resource, context if number == 0 else {}))
    return asked


def unjudged(statements: Iterable[Statement], request: Request) -> set[str]:
    """Returns the condition keys that would decide about a request but that `requests_of` does not derive."""
    return {
        key
        for one in statements
        if one.covers(Request(request.action, request.resource), with_conditions=False)
        for _, key, _ in one.conditions
        if key.partition("/")[0] not in DERIVED_KEYS
    }


# Resources


def _resources(action: str, parameters: Values, where: Mapping[str, str]) -> list[str]:
    patterns = arn_patterns(action)
    if action.startswith("lambda:"):
        found = list(_functions(action, parameters, where)) if patterns else []
    else:
        found = [
            arn for pattern in patterns for arn in _filled(pattern, _opened(parameters), where)
        ]
    if not found and patterns and not action.partition(":")[2].startswith(_LISTS):
        raise UnderivableError(f"{action}: no parameter says on what: {', '.join(parameters)}")
    return list(dict.fromkeys(found)) or ["*"]


def _opened(parameters: Values) -> Values:
    """Merges the keys of several objects into one list. Adds the name of a service-linked role."""
    if "AWSServiceName" in parameters:
        return {"RoleName": f"aws-service-role/{parameters['AWSServiceName']}/*"}
    if "RoleArn" in parameters:
        return {"RoleName": parameters["RoleArn"]}
    objects = (
        parameters.get("Delete", {}).get("Objects")
        if isinstance(parameters.get("Delete"), Mapping)
        else None
    )
    named = {
        _SAME_AS[name]: value for name, value in parameters.items() if name in _SAME_AS
    } | parameters
    return {**named, "Key": [one["Key"] for one in objects]} if objects else named


def _filled(pattern: str, parameters: Values, where: Mapping[str, str]) -> Iterator[str]:
    """Yields the ARNs of that pattern that the parameters name; none if they do not name all of it."""
    names = re.findall(r"\$\{(\w+)\}", pattern)
    own = [name for name in names if name not in where]
    given = {name: parameters[NAMED_BY[name]] for name in own if NAMED_BY.get(name) in parameters}
    listed = [value for value in given.values() if isinstance(value, list)]
    for one in listed[0] if listed else [None]:
        values = {name: one if isinstance(value, list) else value for name, value in given.items()}
        whole = [value for value in values.values() if str(value).startswith("arn:")]
        if whole and _fits(pattern, whole[0]):
            yield whole[0]
        elif not whole and all(name in values or name in UNKNOWN for name in own) and values:
            known = {**UNKNOWN, **where, **values}
            pieces = re.split(r"\$\{(\w+)\}", pattern)
            yield "".join(
                _part(piece, str(known[piece])) if number % 2 else piece
                for number, piece in enumerate(pieces)
            )


def _part(name: str, value: str) -> str:
    return value.removeprefix("/") if name.endswith("WithoutLeadingSlash") else value


def _fits(pattern: str, arn: str) -> bool:
    return (
        re.fullmatch("[^:]*".join(map(re.escape, re.split(r"\$\{\w+\}", pattern))), arn) is not None
    )


def _functions(action: str, parameters: Values, where: Mapping[str, str]) -> Iterator[str]:
    """Yields a function's ARN with the requested version or alias, which may be part of its name."""
    if "FunctionName" not in parameters:
        return
    name, _, qualifier = str(parameters["FunctionName"]).rpartition(":function:")[2].partition(":")
    qualifier = parameters.get("Qualifier", qualifier)
    arn = f"arn:aws:lambda:{where['Region']}:{where['Account']}:function:{name}"
    if action == "lambda:DeleteAlias":
        qualifier = ""
    if not qualifier or action == "lambda:DeleteFunction":
        # No documentation says which of a version's ARNs IAM checks when it is deleted, so both are needed.
        yield arn
    if qualifier:
        yield f"{arn}:{qualifier}"


def _passed(service: str, parameters: Values) -> list[Request]:
    """Returns the right to pass a role, if the call names one."""
    roles = [parameters[name] for name in ("Role", "RoleARN", "roleArn") if name in parameters]
    return [
        Request("iam:PassRole", role, {"iam:PassedToService": (_PASSED_BY[service],)})
        for role in roles
    ]


# Condition keys of a request


def _context(service: str, operation: str, parameters: Values) -> Context:
    found: dict[str, tuple[str, ...]] = {
        key: (str(parameters[name]),)
        for key, name in _PLAIN_KEYS.items()
        if key.partition(":")[0] in (service, "iam") and name in parameters
    }
    tags = dict(_request_tags(parameters))
    if tags:
        found |= {
            "aws:TagKeys": tuple(tags),
            **{f"aws:RequestTag/{key}": (value,) for key, value in tags.items()},
        }
    if service == "dynamodb":
        found |= _item_context(operation, parameters)
    return found


def _request_tags(parameters: Values) -> Iterator[tuple[str, str]]:
    """Yields the requested tags, which each service writes differently."""
    given = [parameters.get(name) for name in ("Tags", "tags", "TagSpecifications")]
    for tags in given:
        if isinstance(tags, Mapping):
            yield from tags.items()
        for one in tags if isinstance(tags, list) else ():
            yield from (
                _request_tags(one)
                if "Tags" in one
                else [(one.get("Key", one.get("key")), one.get("Value", one.get("value", "")))]
            )


def _item_context(operation: str, parameters: Values) -> Context:
    """DynamoDB Developer Guide, "Using IAM policy conditions for fine-grained access control".

    Attributes are those named in the request, including its conditions. Attributes that are only returned do not count.
    """
    found: dict[str, tuple[str, ...]] = {}
    if operation in _SINGLE_ITEM:
        if len(parameters["Key"]) != 1:
            raise UnderivableError(
                f"{operation}: of a key with two attributes, the parameters do not say which leads"
            )
        (value,) = parameters["Key"].values()
        found["dynamodb:LeadingKeys"] = tuple(map(str, value.values()))
    elif operation not in ("Scan", "DescribeTable", "DescribeContinuousBackups"):
        raise UnderivableError(f"dynamodb {operation}: its keys are not derived here")
    old = [name for name in _OLD_EXPRESSIONS if name in parameters]
    if old:
        raise UnderivableError(f"dynamodb {operation}: {old[0]} is not derived here")
    names = parameters.get("ExpressionAttributeNames", {})
    used = dict.fromkeys(parameters.get("Key", {}))
    for expression in _EXPRESSIONS:
        for head in _HEAD_OF_A_PATH.findall(parameters.get(expression, "")):
            if head.upper() not in _WORDS:
                used[names[head] if head.startswith("#") else head] = None
    if used:
        found["dynamodb:Attributes"] = tuple(used)
    return found
