"""An account with one deployment: the templates' resources by ARN, and who runs with which role."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from runtime.names import POOL_ROLE_OUTPUT, RESULTS_STACK, SHARED_STACKS
from tests.stacks.conftest import Assembly
from tests.stacks.iam.database import ACCOUNT, REGION, schema_of
from tests.stacks.iam.policies import Statement, read_statement

STACK_UUID = "0a1b2c3d"
_HERE = f"{REGION}:{ACCOUNT}"
_ARNS = {
    "AWS::AutoScaling::AutoScalingGroup": f"autoscaling:{_HERE}:autoScalingGroup:4e5f:autoScalingGroupName/{{}}",
    "AWS::DynamoDB::Table": f"dynamodb:{_HERE}:table/{{}}",
    "AWS::ECR::Repository": f"ecr:{_HERE}:repository/{{}}",
    "AWS::ElastiCache::ServerlessCache": f"elasticache:{_HERE}:serverlesscache:{{}}",
    "AWS::ElastiCache::User": f"elasticache:{_HERE}:user:{{}}",
    "AWS::IAM::Role": f"iam::{ACCOUNT}:role/{{}}",
    "AWS::Lambda::Function": f"lambda:{_HERE}:function:{{}}",
    "AWS::Logs::LogGroup": f"logs:{_HERE}:log-group:{{}}:*",
    "AWS::S3::Bucket": "s3:::{}",
    "AWS::SNS::Topic": f"sns:{_HERE}:{{}}",
    "AWS::StepFunctions::StateMachine": f"states:{_HERE}:stateMachine:{{}}",
}
_PSEUDO = {
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::URLSuffix": "amazonaws.com",
}


class Account:
    """The shared stacks, and one experiment's."""

    def __init__(self, made: Assembly) -> None:
        self.made = made
        self.templates = {stack: made.template(stack) for stack in (*SHARED_STACKS, made.stack)}

    def resources(self, kind: str, stack: str) -> dict[str, dict[str, Any]]:
        return self.made.resources(kind, stack)

    def arns(self, stack: str) -> list[str]:
        """Returns the ARNs of all resources in a stack that IAM can name; for a log group, one of its streams."""
        found = [
            self._arn(stack, name)
            for name, resource in self.templates[stack]["Resources"].items()
            if resource["Type"] in _ARNS or resource["Type"] == "AWS::Lambda::Alias"
        ]
        return [
            stack_id(stack),
            *(
                f"{arn.removesuffix('*')}log-stream:one" if ":log-group:" in arn else arn
                for arn in found
            ),
        ]

    def text(self, stack: str, value: Any) -> str:
        """Returns a CloudFormation value as text, with names where AWS generates some."""
        if isinstance(value, str):
            return value
        ((function, argument),) = value.items()
        if function == "Ref":
            return self._reference(stack, argument)
        if function == "Fn::GetAtt":
            return self._arn(stack, argument[0]) if argument[1] == "Arn" else ".".join(argument)
        if function == "Fn::Join":
            return argument[0].join(self.text(stack, part) for part in argument[1])
        if function == "Fn::Sub":
            for name, known in _PSEUDO.items():
                argument = argument.replace(f"${{{name}}}", known)
            return argument
        if function == "Fn::Base64":
            return self.text(stack, argument)
        if function == "Fn::ImportValue":
            return self._exports[argument]
        return str(value)

    @cached_property
    def _exports(self) -> dict[str, str]:
        return {
            output["Export"]["Name"]: self.text(stack, output["Value"])
            for stack in SHARED_STACKS
            for output in self.templates[stack].get("Outputs", {}).values()
            if "Export" in output
        }

    def _reference(self, stack: str, name: str) -> str:
        if name == "AWS::StackId":
            return stack_id(stack)
        if name in _PSEUDO:
            return _PSEUDO[name]
        kind = self.templates[stack]["Resources"].get(name, {}).get("Type")
        if kind in ("AWS::Lambda::Alias", "AWS::SNS::Topic"):
            return self._arn(stack, name)
        return self._name(stack, name) if kind else f"{stack}-{name}"

    def _name(self, stack: str, name: str) -> str:
        resource = self.templates[stack]["Resources"][name]
        (path, *_) = schema_of(resource["Type"])["primaryIdentifier"]
        # A state machine's identifier is its ARN.
        given = resource["Properties"].get(path.rpartition("/")[2]) or resource["Properties"].get(
            "StateMachineName"
        )
        return self.text(stack, given) if given else f"{stack}-{name}"

    def _arn(self, stack: str, name: str) -> str:
        resource = self.templates[stack]["Resources"][name]
        if resource["Type"] == "AWS::Lambda::Alias":
            function, alias = (resource["Properties"][key] for key in ("FunctionName", "Name"))
            return f"arn:aws:lambda:{_HERE}:function:{self.text(stack, function)}:{alias}"
        if resource["Type"] not in _ARNS:
            return f"{stack}-{name}.Arn"
        return f"arn:aws:{_ARNS[resource['Type']].format(self._name(stack, name))}"

    @property
    def is_external(self) -> bool:
        """Whether there are only actors and a pool's role."""
        return POOL_ROLE_OUTPUT in self.templates[self.made.stack].get("Outputs", ())

    @property
    def has_instance(self) -> bool:
        """Whether a learner instance exists."""
        return bool(self.resources("AWS::EC2::LaunchTemplate", self.made.stack))

    def role_of_function(self, stack: str, suffix: str = "") -> tuple[str, dict[str, Any]]:
        """Returns role name and properties of the only function of the stack whose name has that ending."""
        (function,) = [
            one
            for one in self.resources("AWS::Lambda::Function", stack).values()
            if not suffix or one["Properties"]["FunctionName"].endswith(suffix)
        ]
        return self.text(stack, function["Properties"]["Role"]).rpartition("/")[2], function[
            "Properties"
        ]

    def role_of_instances(self) -> str:
        (profile,) = self.resources("AWS::IAM::InstanceProfile", self.made.stack).values()
        (role,) = profile["Properties"]["Roles"]
        return self.text(self.made.stack, role)

    def variables(self) -> dict[str, str]:
        """Returns the exports of the learner's user data, the coordinator's environment, or a pool's outputs."""
        if self.is_external:
            outputs = self.templates[self.made.stack]["Outputs"]
            (bucket,) = [
                self.text(RESULTS_STACK, {"Ref": name})
                for name in self.resources("AWS::S3::Bucket", RESULTS_STACK)
            ]
            return {
                **{name: self.text(self.made.stack, one["Value"]) for name, one in outputs.items()},
                "NITRO_RESULTS_BUCKET": bucket,
                "NITRO_CACHE_CREDENTIAL": "",
                "NITRO_ACTOR_CREDENTIAL": "",
            }
        if not self.has_instance:
            _, function = self.role_of_function(self.made.stack, "-coordinator")
            return {
                name: self.text(self.made.stack, value)
                for name, value in function["Environment"]["Variables"].items()
            }
        (template,) = self.resources("AWS::EC2::LaunchTemplate", self.made.stack).values()
        lines = self.text(
            self.made.stack, template["Properties"]["LaunchTemplateData"]["UserData"]
        ).splitlines()
        return dict(
            shlex.split(line)[1].partition("=")[::2]
            for line in lines
            if line.startswith(("export NITRO_", "export BOOT_"))
        )

    def statements(self, role: str) -> list[Statement]:
        """Returns the statements of a role's policies, which are all inline."""
        return [
            statement
            for stack in self.templates
            for name, made in self.resources("AWS::IAM::Role", stack).items()
            if self._name(stack, name) == role
            for policy in made["Properties"]["Policies"]
            for statement in self.document(stack, policy["PolicyDocument"])
        ]

    def document(self, stack: str, document: Mapping[str, Any]) -> Iterator[Statement]:
        for statement in document["Statement"]:
            yield read_statement(statement, lambda value: self.text(stack, value))


def stack_id(stack: str) -> str:
    return f"arn:aws:cloudformation:{_HERE}:stack/{stack}/{STACK_UUID}"
