"""The requests of each role to AWS in a deployment, and requests that must be denied.

Actions and the values of their condition keys come from requests that rehearsals recorded. Lists by hand cover only
what none of our requests shows, because AWS, Docker or an agent asks for it. Each list names its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from runtime.aws.guard.needs import VCPU_QUOTAS
from runtime.aws.ledger import GUARD_KEY, LEARNER_ATTRIBUTES
from runtime.names import (
    CACHE_PREFIX,
    EXPERIMENT_TAG,
    FILES_OUTPUT,
    GUARD_STACK,
    POOL_ROLE_OUTPUT,
    SHARED_STACKS,
    run_key,
)
from tests.stacks.conftest import NAME, RUN, STACK
from tests.stacks.iam import decisions
from tests.stacks.iam.account import Account
from tests.stacks.iam.asked import requests_of
from tests.stacks.iam.database import (
    ACCOUNT,
    REGION,
    expand,
    foreign_arns,
    resource_patterns,
)
from tests.stacks.iam.policies import Context, Request, Statement, is_allowed, matches

NETWORK = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)
"""Lambda Developer Guide, "Giving Lambda functions access to resources in an Amazon VPC", required permissions."""
FUNCTION_LOGS = ("logs:CreateLogStream", "logs:PutLogEvents")
"""AWSLambdaBasicExecutionRole, without CreateLogGroup: the groups already exist."""
DOCKER_LOGS = ("logs:CreateLogStream", "logs:PutLogEvents")
"""Docker's documentation of the awslogs driver, "Credentials". It makes a group only if awslogs-create-group is set."""
IMAGE_PULL = ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
"""AmazonEC2ContainerRegistryPullOnly, without GetAuthorizationToken, which the script asks for."""
WITHOUT_RESOURCES = {
    **dict.fromkeys(
        NETWORK,
        "Lambda checks them on every resource when the function is made; its code is denied them",
    ),
}
"""Actions that IAM can limit to resources but that are needed on all of them, with the reasons."""
OTHER = "other"
"""Name of another experiment in the account."""
INVOKE, _FUNCTION_COLONS = "lambda:InvokeFunction", "arn:aws:lambda:r:a:function:f".count(":")
REHEARSED = "Nitro-hopper"
"""The stack of rehearsals."""
LEARNER, GUARD, POOL = f"{REHEARSED}-LearnerRole", "NitroGuard-Role", f"{REHEARSED}-PoolRole"
_CONDITIONAL = (
    "s3:ListBucket",
    "cloudwatch:PutMetricData",
    "dynamodb:UpdateItem",
    "dynamodb:GetItem",
)
"""Actions whose values in a request decide."""
_OF_THE_CALLER = ("aws:PrincipalAccount", "lambda:SourceFunctionArn")
"""Keys about the caller, not the request."""
_OF_THE_RESOURCE = ("aws:ResourceTag/", "ec2:Vpc")
"""Keys about the resource: tags, and the network."""


NOT_PLAYED = {GUARD: ("ec2:TerminateInstances",), POOL: ("lambda:GetAccountSettings",)}
"""No rehearsal plays that a group has lost its instance, which the guard then ends itself, nor a pool whose function
has no reserve, so that it asks what the account has left. Their own tests do.
"""


@cache
def recorded(role: str) -> dict[str, list[Context]]:
    """Returns the actions that rehearsals recorded of roles of that name, each with its requests' condition keys."""
    found: dict[str, list[Context]] = {}
    for one in sorted(decisions.read()):
        if one.role.startswith(role):
            text = one.context.replace("hopper/rehearsal", run_key(NAME, RUN))
            context = {
                key: tuple(values)
                for key, values in json.loads(text.replace("hopper", NAME)).items()
                if key not in _OF_THE_CALLER
            }
            found.setdefault(one.action, []).append(context)
    assert found, f"no rehearsal recorded what {role} asks for"
    return found


class Role:
    """One role: its statements, the requests it needs, and the requests that must be denied."""

    def __init__(self, account: Account, name: str) -> None:
        self.account, self.name = account, name
        self.statements = account.statements(name)
        self.needs: list[Request] = []
        self.leaks: list[Request] = []

    def need(self, action: str, resource: str = "*", context: Context | None = None) -> None:
        request = Request(action, resource, context or {})
        if request not in self.needs:
            self.needs.append(request)

    def need_recorded(
        self,
        recorded_as: str,
        owned: list[str],
        contexts: Mapping[str, list[Context]] | None = None,
        *,
        without: Iterable[str] = (),
    ) -> None:
        """Adds what rehearsals recorded of a role, on the resources that are this one's.

        Args:
            recorded_as: Beginning of the role's name in rehearsals.
            owned: ARNs of the resources.
            contexts: Condition keys by action, if they are others than the recorded ones.
            without: Actions of other deployments with such a role.
        """
        of_role = recorded(recorded_as)
        for action in (*of_role, *NOT_PLAYED.get(recorded_as, ())):
            if action in without:
                continue
            for resource in _invoked(owned) if action == INVOKE else _resources(action, owned):
                decisive = of_role.get(action, []) if action in _CONDITIONAL else [{}]
                for context in (contexts or {}).get(action, decisive):
                    self.need(action, resource, context)

    def keep_out(self, contexts: Mapping[str, list[Context]]) -> None:
        """Denies other resources of the same kinds, and other values in a request.

        Args:
            contexts: Condition keys of requests that must be denied, by action.
        """
        universe = _universe(self.account)
        for action in {need.action for need in self.needs}:
            wanted = {need.resource for need in self.needs if need.action == action}
            if "*" not in wanted:
                fitting = [
                    arn
                    for arn in universe
                    if any(one.fullmatch(arn) for one in resource_patterns(action))
                ]
                context = {
                    key: value
                    for need in self.needs
                    if need.action == action
                    for key, value in need.context.items()
                    if not key.startswith(_OF_THE_RESOURCE)
                }
                self.leaks += [
                    Request(action, arn, context)
                    for arn in (*fitting, *foreign_arns(action))
                    if arn not in wanted
                ]
            self.leaks += [
                Request(action, arn, context)
                for arn in wanted
                for context in contexts.get(action, [])
            ]

    def problems(self, statements: list[Statement] | None = None) -> Iterator[str]:
        """Yields missing, leaking and superfluous rights of these statements (default: the role's own)."""
        held = self.statements if statements is None else statements
        for need in self.needs:
            if not is_allowed(held, need):
                yield f"{self.name} lacks {need.action} on {need.resource} with {dict(need.context)}"
        for leak in self.leaks:
            if is_allowed(held, leak):
                yield f"{self.name} may {leak.action} on {leak.resource} with {dict(leak.context)}"
        for statement in held:
            if statement.effect == "Allow":
                yield from self._superfluous(statement)

    def _superfluous(self, statement: Statement) -> Iterator[str]:
        on_all = {need.action for need in self.needs if need.resource == "*"}
        for action in statement.actions:
            for resource in statement.resources:
                if resource == "*" and action not in on_all:
                    yield f"{self.name}: {action} on everything in {statement.sid}"
                one = replace(statement, actions=(action,), resources=(resource,))
                covered = [
                    need
                    for need in self.needs
                    if need.action in expand(action) and one.covers(need)
                ]
                if not covered:
                    yield f"{self.name}: nothing needs {action} on {resource} in {statement.sid}"
                for operator, key, values in statement.conditions if covered else ():
                    found = {value for need in covered for value in need.context.get(key, ())}
                    yield from (
                        f"{self.name}: nothing needs {key} {value} in {statement.sid}"
                        for value in values
                        if operator != "Null" and not any(matches(value, one) for one in found)
                    )


def _invoked(owned: list[str]) -> list[str]:
    """Returns the functions that can be invoked: warm ones, and the guard's, by a version or an alias."""
    functions = [arn for arn in owned if ":function:" in arn]
    qualified = [arn for arn in functions if arn.count(":") > _FUNCTION_COLONS]
    return qualified or functions


def _resources(action: str, owned: list[str]) -> list[str]:
    if not resource_patterns(action) or action in WITHOUT_RESOURCES:
        return ["*"]
    return [arn for arn in owned if any(one.fullmatch(arn) for one in resource_patterns(action))]


def actor(account: Account) -> Role:
    """The actors' role. Lambda itself uses a part of it."""
    name, function = account.role_of_function(STACK, "-actor")
    role = Role(account, name)
    _need_cache(role, _credentials(account)[1])
    for action in NETWORK if "VpcConfig" in function else ():
        role.need(action)
    _need_logs(role, function, STACK)
    arn = _arn("lambda", f"function:{account.text(STACK, function['FunctionName'])}")
    contexts: dict[str, list[Context]] = {
        action: [{"lambda:SourceFunctionArn": (arn,)}] for action in NETWORK
    }
    role.keep_out(contexts if "VpcConfig" in function else {})
    return role


def learner(account: Account) -> Role:
    """The role of the learner's instance: of its boot script, its process, Docker and its agents."""
    role = Role(account, account.role_of_instances())
    told = account.variables()
    stream = _arn("logs", f"log-group:{told['BOOT_LOG_GROUP']}:log-stream:one")
    has_function = bool(account.resources("AWS::Lambda::Function", STACK))
    others = set() if has_function else {one for one in recorded(LEARNER) if "lambda:" in one}
    owned = [arn for arn in account.arns(STACK) if ":log-group:" not in arn]
    _need_run(role, owned, without=others)
    role.need("s3:GetObject", _object_arn(told["NITRO_FILES"]))
    _need_cache(role, _credentials(account)[0])
    for action in DOCKER_LOGS:
        role.need(action, stream)
    for action in IMAGE_PULL:
        role.need(
            action, _arn("ecr", f"repository/cdk-hnb659fds-container-assets-{ACCOUNT}-{REGION}")
        )
    _keep_run_out(role)
    return role


def coordinator(account: Account) -> Role:
    """The role of the function that runs the rounds if there is no instance."""
    name, function = account.role_of_function(STACK, "-coordinator")
    role = Role(account, name)
    _need_run(
        role,
        [_arn("lambda", f"function:{STACK}-actor")],
        without=("ecr:GetAuthorizationToken",),
    )
    role.need("lambda:InvokeFunction", _arn("lambda", f"function:{STACK}-learner"))
    role.need("s3:GetObject", _object_arn(account.variables()["NITRO_FILES"]))
    _need_logs(role, function, STACK)
    _keep_run_out(role)
    return role


def learner_function(account: Account) -> Role:
    """The role of the function that makes the updates."""
    name, function = account.role_of_function(STACK, "-learner")
    role, folder = Role(account, name), f"{run_key(NAME, RUN)}/updates/"
    bucket = f"arn:aws:s3:::{account.variables()['NITRO_RESULTS_BUCKET']}"
    # The reader also finds, by name, updaters in the registry that invoke it and delete old objects: a coordinator's.
    role.need_recorded(f"{REHEARSED}-LearnerLearnerRole", [bucket, f"{bucket}/{folder}one"])
    _need_logs(role, function, STACK)
    role.keep_out({"s3:ListBucket": [{"s3:prefix": (f"{run_key(NAME, RUN)}/",)}, {}]})
    return role


def pool(account: Account) -> Role:
    """The role that a user's process assumes for its pool. Finding and assuming it takes the user's own rights."""
    told, key = account.variables(), run_key(NAME, RUN)
    role = Role(account, told[POOL_ROLE_OUTPUT].rpartition("/")[2])
    owned = [arn for arn in account.arns(STACK) if ":function:" in arn]
    owned += [arn for arn in account.arns(GUARD_STACK) if ":table/" in arn]
    owned.append(_object_arn(told[FILES_OUTPUT]))
    role.need_recorded(POOL, owned)
    role.keep_out(_of_other_runs(key))
    return role


def machine(account: Account) -> Role:
    """The role of the state machine, whose definition names its calls."""
    (made,) = account.resources("AWS::StepFunctions::StateMachine", STACK).values()
    role = Role(account, account.text(STACK, made["Properties"]["RoleArn"]).rpartition("/")[2])
    states = json.loads(account.text(STACK, made["Properties"]["DefinitionString"]))[
        "States"
    ].values()
    for task in [one for one in states if one["Type"] == "Task"]:
        service, _, operation = task["Resource"].rpartition(":::")[2].partition(":")
        for asked in requests_of(service, operation[0].upper() + operation[1:], task["Parameters"]):
            role.need(asked.action, asked.resource, asked.context)
    key = run_key(NAME, RUN)
    role.keep_out(
        {
            "dynamodb:UpdateItem": [
                {
                    "dynamodb:LeadingKeys": (run_key(OTHER, RUN),),
                    "dynamodb:Attributes": ("run", "state"),
                },
                *(
                    {"dynamodb:LeadingKeys": (key,), "dynamodb:Attributes": ("run", one)}
                    for one in ("teardown", "spent_usd", "writer")
                ),
            ]
        }
    )
    return role


def _need_run(role: Role, owned: list[str], *, without: Iterable[str]) -> None:
    """Adds the needs of running the rounds: the run's objects, its entry in the ledger, and its metrics."""
    account, key = role.account, run_key(NAME, RUN)
    prefix, bucket = f"{key}/", f"arn:aws:s3:::{account.variables()['NITRO_RESULTS_BUCKET']}"
    ledger = [arn for arn in account.arns(GUARD_STACK) if ":table/" in arn]
    names = ("checkpoints/round_1.json", "updates/one", "ledger.json")
    objects = [f"{bucket}/{prefix}{name}" for name in names]
    delete = "s3:DeleteObject"
    role.need_recorded(LEARNER, [*owned, *ledger, bucket, *objects], without=[*without, delete])
    # It deletes only old checkpoints from the bucket, and updates if a function makes them.
    for name in objects[: 1 if account.has_instance else 2]:
        role.need(delete, name)


def _keep_run_out(role: Role) -> None:
    """Denies access to other runs, and to the guard's part of the ledger."""
    key = run_key(NAME, RUN)
    role.keep_out(
        {
            "s3:ListBucket": [
                {"s3:prefix": (f"{run_key(NAME, 'second')}/",)},
                {"s3:prefix": ("",)},
                {},
            ],
            "cloudwatch:PutMetricData": [{"cloudwatch:namespace": ("AWS/Lambda",)}],
            **_of_other_runs(key),
        }
    )


def _of_other_runs(key: str) -> dict[str, list[Context]]:
    """Returns writes to other runs' entries, and writes of attributes that a spender may not set."""
    return {
        "dynamodb:UpdateItem": [
            *(
                {"dynamodb:LeadingKeys": (one,), "dynamodb:Attributes": LEARNER_ATTRIBUTES}
                for one in (GUARD_KEY, run_key(OTHER, RUN))
            ),
            *(
                {"dynamodb:LeadingKeys": (key,), "dynamodb:Attributes": ("run", one)}
                for one in (
                    "teardown",
                    "closed_stack",
                    "seen_spent_usd",
                    "before_usd",
                    "began_at_s",
                    "learner_from_s",
                    "served_at_s",
                )
            ),
        ],
        "dynamodb:GetItem": [{"dynamodb:LeadingKeys": (run_key(OTHER, RUN),)}],
    }


def guard(account: Account) -> Role:
    """The guard's role, which serves every experiment, with a cache or without, and actors as a function or not."""
    name, function = account.role_of_function(GUARD_STACK)
    role = Role(account, name)
    own = [arn for arn in account.arns(GUARD_STACK) if ":table/" in arn or ":sns:" in arn]
    caches = [_arn("elasticache", f"serverlesscache:{CACHE_PREFIX}{NAME}")]
    functions = [_arn("lambda", f"function:{STACK}-actor{alias}") for alias in ("", ":live")]
    functions += [
        _arn("states", f"{what}:{STACK}-coordinator{one}")
        for what, one in (("stateMachine", ""), ("execution", ":first"))
    ]
    functions += [
        _arn("autoscaling", f"autoScalingGroup:4e5f:autoScalingGroupName/{STACK}-learner")
    ]
    barred = [
        _arn("lambda", f"function:{name}-{what}")
        for name in (STACK, _of_other(STACK))
        for what in ("coordinator", "learner")
    ]
    experiment = list(
        dict.fromkeys(
            [
                *(
                    arn
                    for arn in account.arns(STACK)
                    if not re.search(":log-group:|:role/", arn) and arn not in barred
                ),
                *caches,
                *functions,
            ]
        )
    )
    quotas = [_arn("servicequotas", f"ec2/{code}") for code in VCPU_QUOTAS.values()]
    owned = [
        *own,
        *quotas,
        _arn("ec2", "instance/i-0123"),
        *experiment,
        *map(_of_other, experiment),
    ]
    role.need_recorded(
        GUARD,
        owned,
        {"ec2:TerminateInstances": [{f"aws:ResourceTag/{EXPERIMENT_TAG}": (NAME,)}]},
    )
    # The functions of a learner without an instance are barred. They are in no network.
    for arn in barred:
        for action in ("lambda:GetFunctionConcurrency", "lambda:PutFunctionConcurrency"):
            role.need(action, arn)
    _need_logs(role, function, GUARD_STACK)
    role.keep_out({"ec2:TerminateInstances": [{}]})
    return role


def roles_of(account: Account) -> list[Role]:
    """Returns all roles."""
    actors = [actor(account)] if account.resources("AWS::Lambda::Function", STACK) else []
    runs = (
        [pool(account)]
        if account.is_external
        else [learner(account)]
        if account.has_instance
        else [coordinator(account), learner_function(account), machine(account)]
    )
    return [*actors, *runs, guard(account)]


def _credentials(account: Account) -> tuple[str, str]:
    """Returns where the learner and the actors find their credentials for the cache."""
    told = account.variables()
    return told["NITRO_CACHE_CREDENTIAL"], told["NITRO_ACTOR_CREDENTIAL"]


def _need_cache(role: Role, credential: str) -> None:
    """ElastiCache User Guide, "Authenticating with IAM": Connect on the cache and on the user."""
    parts = urlsplit(credential)
    if parts.scheme == "elasticache-iam":
        for resource in (f"serverlesscache:{parts.hostname}", f"user:{parts.username}"):
            role.need("elasticache:Connect", _arn("elasticache", resource))


def _need_logs(role: Role, function: Mapping[str, Any], stack: str) -> None:
    group = role.account.text(stack, function["LoggingConfig"]["LogGroup"])
    for action in FUNCTION_LOGS:
        role.need(action, _arn("logs", f"log-group:{group}:log-stream:one"))


def _universe(account: Account) -> list[str]:
    """Returns the ARNs of an account with two experiments of two runs each, and the shared resources."""
    told = account.variables()
    bucket = f"arn:aws:s3:::{told['NITRO_RESULTS_BUCKET']}"
    experiment = account.arns(STACK)
    names = ("ledger.json", "checkpoints/round_1.json", "updates/one")
    objects = [
        f"{bucket}/{key}"
        for key in (
            "ledger.json",
            *(
                f"{run_key(name, run)}/{key}"
                for name in (NAME, OTHER)
                for run in (RUN, "second")
                for key in names
            ),
        )
    ]
    return [
        *experiment,
        *map(_of_other, experiment),
        *objects,
        *(arn for stack in SHARED_STACKS for arn in account.arns(stack)),
    ]


def _of_other(arn: str) -> str:
    return arn.replace(NAME, OTHER)


def _arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


def _object_arn(url: str) -> str:
    return f"arn:aws:s3:::{url.removeprefix('s3://')}"
