"""Adds to moto what this project's stacks need of CloudFormation and a few services, to be created and deleted there.

Importing this module extends moto for the whole process, and changes nothing until a stack is created. moto calls the
types registered here while it handles ``create_stack``. They create their resources through moto's own API, with a
client whose requests never leave the process. So they work both inside a moto server and under ``mock_aws``, and
botocore checks every property of a template against the service's model.

Some settings come from the environment, as in moto:

- MOTO_LAMBDA_CONCURRENCY_QUOTA: concurrent executions, 1000;
- MOTO_EC2_VCPU_QUOTA, MOTO_EC2_GPU_VCPU_QUOTA: vCPUs of running standard instances (5, AWS' default) and of G and VT
  instances (64); on demand and spot each;
- MOTO_ELASTICACHE_ENDPOINT: ``host:port`` of every serverless cache, instead of a name that does not resolve;
- MOTO_CLOCK: a file written by `tests.simulators.rehearsal.clock`. With it, stacks wait for the signals of their
  creation policies, or are rolled back;
- MOTO_LAMBDA_ENDPOINT: the URL at which functions run. Without it, custom resources are created without invoking
  anything;
- MOTO_FAILING_DELETIONS: ``STACK=COUNT``: the first COUNT deletions of that stack end in DELETE_FAILED, or its
  rollbacks in ROLLBACK_FAILED;
- MOTO_FAULTS: a JSON file, read each time, if it exists. ``{TYPE: [SECONDS, REASON]}``: resources of that type fail
  SECONDS after they were begun, by the clock, and nothing that needs them is created. Until then, a cache is in
  creation.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import boto3
import requests
from botocore import UNSIGNED, xform_name
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.model import Shape
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.awslambda.exceptions import LambdaClientError
from moto.awslambda.responses import LambdaResponse
from moto.awslambda.urls import url_paths as lambda_url_paths
from moto.backends import get_backend
from moto.cloudformation import models as formation
from moto.cloudformation import parsing
from moto.cloudformation.custom_model import CustomModel
from moto.cloudformation.exceptions import UnformattedGetAttTemplateException
from moto.cloudformation.exceptions import ValidationError as StackError
from moto.cloudformation.models import CloudFormationBackend, Event, Stack
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.botocore_stubber import BotocoreStubber
from moto.core.common_models import CloudFormationModel
from moto.core.config import default_user_config
from moto.core.models import botocore_stubber
from moto.core.responses import ActionResult, BaseResponse, EmptyResult
from moto.ec2.models.instances import Instance
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.subnets import Subnet
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.elasticache.exceptions import ElastiCacheException
from moto.elasticache.models import ElastiCacheBackend
from moto.elasticache.responses import ElastiCacheResponse
from moto.kms.models import kms_backends
from moto.logs.models import LogGroup
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.models import Parameter, ParameterDict

from runtime.aws.guard.check import CHECK_TYPE, ENDS_AT, START_TYPE
from runtime.aws.guard.needs import UNRESERVABLE_CONCURRENCY
from tests.simulators.aws import quick_moto  # noqa: F401
from tests.simulators.aws.gate import Caller as IamCaller
from tests.simulators.aws.gate import Gate
from tests.simulators.aws.loopback import LoopbackServer, QuietHandler
from tests.simulators.rehearsal.clock import Clock

Values = Mapping[str, Any]
Call = Callable[[str, Values], dict[str, Any]]
"""Calls an operation of one service, such as ``call("DeleteUser", {"UserId": "learner"})``."""

ACCOUNT, REGION = "123456789012", "us-east-1"
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
IMAGE_PARAMETER_PREFIX = "/aws/service/ecs/optimized-ami/"
IMAGE_ID = "ami-1e749f67"
"""Value of every parameter below that prefix: an image that moto provides."""
GROUP_ENDED_S = 60.0
"""If a creation is aborted, functions are deleted after their dependents: when the group's instance is gone."""
DELETION_S = 20.0
"""Least seconds that the deletion of a stack takes."""
_TAKEN_BACK_S = 5.0
"""Seconds from a custom resource's refusal until CloudFormation rolls back its stack."""
_CONCURRENCY_QUOTA = 1000
_PASSED_ON = (
    "Content-Type",
    "X-Amz-Executed-Version",
    "X-Amz-Function-Error",
    "X-Amz-Log-Result",
    "X-Amz-Log-Type",
    "x-amzn-ErrorType",
    "x-amzn-RequestId",
)
"""Headers of an invocation and its answer."""
_ELASTICACHE_ARN = re.compile(r"arn:aws:elasticache:[^:]*:[0-9]*:[a-z]+:.+")
_VCPU_QUOTAS = {
    "L-1216C47A": (
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        "MOTO_EC2_VCPU_QUOTA",
        5,
    ),
    "L-34B43A08": (
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        "MOTO_EC2_VCPU_QUOTA",
        5,
    ),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", "MOTO_EC2_GPU_VCPU_QUOTA", 64),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", "MOTO_EC2_GPU_VCPU_QUOTA", 64),
}
"""Name of each quota, the variable that sets it, and its default."""


def deploy(
    client: Callable[[str], Any],
    template: Path,
    name: str,
    parameters: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Creates the stack ``name`` from a synthesized template; returns its outputs, or none if it waits for a signal.

    Args:
        client: Makes a client of a service, as ``boto3.client`` and
            `tests.simulators.aws.moto_server.MotoServer.client` do.
        template: A file of the cloud assembly, ``….template.json``. If the assembly's manifest is beside it, the
            stack's own tags come from there, as for the CDK's command line.
        parameters: Values of the template's parameters that differ from the default.

    Raises:
        ClientError: The stack was refused, or one with that name exists.
    """
    # The template names it, and the CDK's command line checks it first.
    client("ssm").put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String", Overwrite=True)
    given = [
        {"ParameterKey": key, "ParameterValue": value} for key, value in (parameters or {}).items()
    ]
    stack = _submit(client, template, name, "create_stack", Parameters=given)
    assert stack["StackStatus"] in ("CREATE_COMPLETE", "CREATE_IN_PROGRESS"), stack["StackStatus"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}


def update(client: Callable[[str], Any], template: Path, name: str) -> str:
    """Updates a stack from a synthesized template, as a second `cdk deploy` does; returns its status."""
    return str(_submit(client, template, name, "update_stack")["StackStatus"])


def _submit(
    client: Callable[[str], Any], template: Path, name: str, operation: str, **more: Any
) -> dict[str, Any]:
    _upload_assets(client, template.with_name(f"{name}.assets.json"))
    formation = client("cloudformation")
    getattr(formation, operation)(
        StackName=name,
        Tags=_stack_tags(template, name),
        TemplateBody=template.read_text(),
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"],
        **more,
    )
    (stack,) = formation.describe_stacks(StackName=name)["Stacks"]
    return dict(stack)


def _upload_assets(client: Callable[[str], Any], assets: Path) -> None:
    """Uploads the template's files to the CDK's own bucket, as the CDK's command line does."""
    files = json.loads(assets.read_text())["files"].values() if assets.exists() else []
    for file in [file for file in files if file["source"]["packaging"] == "zip"]:
        with TemporaryDirectory() as folder:
            archive = shutil.make_archive(
                f"{folder}/asset", "zip", assets.parent / file["source"]["path"]
            )
            for place in file["destinations"].values():
                bucket, key = (
                    place[name]
                    .replace("${AWS::AccountId}", ACCOUNT)
                    .replace("${AWS::Region}", REGION)
                    for name in ("bucketName", "objectKey")
                )
                client("s3").create_bucket(Bucket=bucket)
                client("s3").upload_file(archive, bucket, key)


def _stack_tags(template: Path, name: str) -> list[dict[str, str]]:
    manifest = template.with_name("manifest.json")
    artifacts = json.loads(manifest.read_text())["artifacts"] if manifest.exists() else {}
    tags = artifacts.get(name, {}).get("properties", {}).get("tags", {})
    return [{"Key": key, "Value": value} for key, value in tags.items()]


# How a type reaches moto


@cache
def _client(service: str, region: str) -> Any:
    client = boto3.Session(region_name=region).client(
        service,
        config=Config(
            signature_version=UNSIGNED,
            ignore_configured_endpoint_urls=True,
            retries={"total_max_attempts": 1},
        ),
    )
    into_moto = BotocoreStubber()
    into_moto.enabled = True
    # botocore calls every handler it finds. Under mock_aws, each request would be answered and carried out twice.
    client.meta.events.unregister("before-send", botocore_stubber)
    client.meta.events.register("before-send", into_moto)
    return client


def _shape(service: str, operation: str, region: str) -> Shape:
    model = _client(service, region).meta.service_model
    return model.operation_model(operation).input_shape


def _caller(service: str, region: str) -> Call:
    client = _client(service, region)
    return lambda operation, values: getattr(client, xform_name(operation))(
        **_typed(values, _shape(service, operation, region))
    )


EXECUTION_ROLE = "cdk-hnb659fds-cfn-exec-role"
"""CloudFormation's role. If the account has it, what a stack's creation and deletion call here is judged by it."""


def _as_cloudformation(service: str, region: str) -> Call:
    """Returns a caller with the rights of `EXECUTION_ROLE`."""
    call = _caller(service, region)

    def judged(operation: str, values: Values) -> dict[str, Any]:
        _check_right(service, operation, values, region)
        return call(operation, values)

    return judged


def _check_right(service: str, operation: str, values: Values, region: str) -> None:
    """Raises: StackError: CloudFormation's role may not make this call."""
    roles = get_backend("iam")[ACCOUNT]["aws"].roles.values()
    if Gate.running is None or not any(one.name == EXECUTION_ROLE for one in roles):
        return
    arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{EXECUTION_ROLE}/AWSCloudFormation"
    caller = IamCaller(arn, EXECUTION_ROLE, "AWSCloudFormation", is_function=False)
    parameters = _typed(values, _shape(service, operation, region))
    denial = Gate.running.denial(caller, service, operation, parameters, region)
    if denial:
        raise StackError(message=denial)


def _typed(value: Any, shape: Shape) -> Any:
    """Converts ``value`` from a template to the operation's types.

    In a template, numbers and booleans may be text, tags are always a list, documents and lists are not text, and all
    names begin with a capital.

    Raises:
        ValueError: The operation knows no such parameter.
    """
    if shape.type_name == "structure":
        names = {name: _member(name, shape) for name in value}
        return {names[name]: _typed(one, shape.members[names[name]]) for name, one in value.items()}
    if shape.type_name == "list":
        return [_typed(member, shape.member) for member in value]
    if shape.type_name == "map":
        tags = {tag["Key"]: tag["Value"] for tag in value} if isinstance(value, list) else value
        return {name: _typed(member, shape.value) for name, member in tags.items()}
    if shape.type_name == "boolean":
        return (
            value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
        )
    return {
        "integer": int,
        "long": int,
        "float": float,
        "double": float,
        "string": _text,
        "timestamp": _moment,
    }[shape.type_name](value)


def _member(name: str, shape: Shape) -> str:
    for known in (name, name[0].lower() + name[1:]):
        if known in shape.members:
            return known
    raise ValueError(f"{shape.name} has no {name}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def _moment(text: str) -> datetime.datetime:
    """Reads a time as CloudFormation's documentation of AWS::AutoScaling::ScheduledAction writes it.

    Raises:
        ValueError: It is not of that form.
    """
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)


def _without(properties: Values, *names: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in names}


def _forgiving(delete: Callable[[], Any]) -> None:
    """Ignores that a resource is already gone, as CloudFormation does."""
    try:
        delete()
    except ClientError as error:
        if not any(word in error.response["Error"]["Code"] for word in ("NotFound", "NoSuch")):
            raise


@dataclass(frozen=True)
class _Kind:
    """How CloudFormation makes a type of resource, with one operation, and deletes it.

    What is known of a resource: its properties, its name, the answer to its creation, and what ``then`` adds.

    Attributes:
        service: The service.
        creation: The operation that creates one.
        deletion: The operation that deletes one and its parameters, by the names under which they are known.
        physical_id: Format of the physical id from what is known.
        name: The property that holds the name, if the type has one.
        convert: Makes the creation's parameters from the properties.
        then: Does what the creation leaves to other operations, with what is known; returns what else is known then.
    """

    service: str
    creation: str
    deletion: str
    physical_id: str
    name: str = ""
    convert: Callable[[Values], Values] = dict
    then: Callable[[Call, Values], Values] = lambda call, known: {}


class _Resource:
    """A resource of a stack."""

    TYPE: str
    KIND: _Kind

    def __init__(self, known: Values) -> None:
        self.physical_resource_id, self._known = self.KIND.physical_id.format_map(known), known

    @classmethod
    def cloudformation_type(cls) -> str:
        return cls.TYPE

    @classmethod
    def cloudformation_name_type(cls) -> str:
        return cls.KIND.name

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        """Is asked before there is one. `get_cfn_attribute` knows."""
        return True

    def get_cfn_attribute(self, attribute_name: str) -> str:
        if attribute_name not in self._known:
            raise UnformattedGetAttTemplateException
        return str(self._known[attribute_name])

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Values,
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> _Resource:
        kind, properties = cls.KIND, dict(cloudformation_json["Properties"])
        if kind.name:
            properties.setdefault(kind.name, resource_name)
        call = _as_cloudformation(kind.service, region_name)
        known = (
            properties | call(kind.creation, kind.convert(properties)) | {"Name_": resource_name}
        )
        return cls(known | kind.then(call, known))

    def delete(self, account_id: str, region_name: str) -> None:
        call = _as_cloudformation(self.KIND.service, region_name)
        operation, *names = self.KIND.deletion.split() or [""]
        if operation:
            _forgiving(lambda: call(operation, {name: self._known[name] for name in names}))


# Security groups


def _permission(rule: Values) -> dict[str, Any]:
    """Converts a template's rule to the API's IpPermission."""
    permission = {name: rule[name] for name in ("IpProtocol", "FromPort", "ToPort") if name in rule}
    described = {"Description": rule["Description"]} if "Description" in rule else {}
    group = rule.get("SourceSecurityGroupId") or rule.get("DestinationSecurityGroupId")
    if group:
        permission["UserIdGroupPairs"] = [{"GroupId": group, **described}]
    else:
        permission["IpRanges"] = [{"CidrIp": rule["CidrIp"], **described}]
    return permission


def _rule(direction: str) -> _Kind:
    return _Kind(
        "ec2",
        f"AuthorizeSecurityGroup{direction}",
        f"RevokeSecurityGroup{direction} GroupId SecurityGroupRuleIds",
        "{GroupId}/{SecurityGroupRuleIds[0]}",
        convert=lambda given: {"GroupId": given["GroupId"], "IpPermissions": [_permission(given)]},
        then=lambda call, known: {
            "SecurityGroupRuleIds": [known["SecurityGroupRules"][0]["SecurityGroupRuleId"]]
        },
    )


# Custom resources, and state machines, which moto runs only on request


class _Answers(QuietHandler):
    def do_PUT(self) -> None:
        self.server.owner.answer = json.loads(self.body())
        self.answer(200)


def _make_custom(
    cls: type[CustomModel],
    resource_name: str,
    cloudformation_json: Values,
    account_id: str,
    region_name: str,
    **known: Any,
) -> CustomModel:
    """Creates it without invoking its function: `_create_resources` does that for an experiment's stack. The guard's
    own function is served once its stack exists.
    """
    function = cloudformation_json["Properties"]["ServiceToken"]
    _check_right("lambda", "Invoke", {"FunctionName": function}, region_name)
    made = cls(region_name, "", known["LogicalId"], resource_name)
    made.set_data(
        _CUSTOM_DATA.get(known["LogicalId"], {})
        if os.environ.get("MOTO_LAMBDA_ENDPOINT")
        else _UNASKED
    )
    return made


_CUSTOM_DATA: dict[str, Values] = {}
"""The last answers of custom resources' functions, by logical id."""
_UNASKED = {ENDS_AT: "2099-01-01T00:00:00Z"}
"""The attributes of a custom resource whose function is not there to be asked."""


def _refusal(stack: Stack, name: str, resource: Values, old: Values | None = None) -> str:
    """Returns why a custom resource's function refuses its creation, or the change of ``old``; empty if it agrees."""
    if not os.environ.get("MOTO_LAMBDA_ENDPOINT"):
        return ""
    properties = parsing.clean_json(resource["Properties"], stack.resource_map)
    request = {
        "RequestType": "Create",
        "ResourceType": resource["Type"],
        "LogicalResourceId": name,
        "StackId": stack.stack_id,
        "RequestId": str(uuid4()),
        "ResourceProperties": _as_text(properties),
    }
    if old is not None:
        before = _as_text(parsing.clean_json(old["Properties"], stack.resource_map))
        request |= {
            "RequestType": "Update",
            "OldResourceProperties": before,
            "PhysicalResourceId": "guard",
        }
    with LoopbackServer(_Answers) as place:
        place.answer = {}
        done = _client("lambda", REGION).invoke(
            FunctionName=properties["ServiceToken"],
            Payload=json.dumps({**request, "ResponseURL": f"{place.url}/answer"}),
        )
        if "FunctionError" in done or not place.answer:
            return f"CloudFormation did not receive a response from your Custom Resource: {done['Payload'].read()!r}"
        if any(
            place.answer[key] != request[key]
            for key in ("StackId", "RequestId", "LogicalResourceId")
        ):
            raise ValueError(f"the answer is another request's: {place.answer}")
    _CUSTOM_DATA[name] = place.answer.get("Data", {})
    return place.answer["Reason"] if place.answer["Status"] == "FAILED" else ""


def _as_text(properties: Values) -> dict[str, str]:
    return {key: str(value) for key, value in properties.items()}


class _ClockTime(datetime.datetime):
    """Times of executions and stacks, by the clock if there is one."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        now_s = _clock_s()
        return (
            datetime.datetime.now(tz)
            if now_s is None
            else datetime.datetime.fromtimestamp(now_s, tz)
        )


@cache
def _let_machines_run() -> None:
    """Lets moto run state machines."""
    # Not before it is needed: importing their language takes a second.
    from moto.stepfunctions.parser import models
    from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils
    from moto.stepfunctions.parser.backend import execution

    own_client = lambda_eval_utils.boto_client_for

    def client_for(region: str, service: str, state_credentials: Any = None) -> Any:
        # It waits for as long as a function runs.
        is_ours = service == "lambda"
        return (
            _client(service, region) if is_ours else own_client(region, service, state_credentials)
        )

    lambda_eval_utils.boto_client_for = client_for
    for module in (models, execution):
        module.datetime = SimpleNamespace(datetime=_ClockTime, timezone=datetime.timezone)
    default_user_config["stepfunctions"]["execute_state_machine"] = True


# The clock


def _clock_s() -> float | None:
    """Returns seconds since 1970 by the clock of MOTO_CLOCK; None without one."""
    path = os.environ.get("MOTO_CLOCK")
    return Clock(Path(path)).now() if path else None


# Types that moto lacks, or gets wrong


def _finish_function(call: Call, known: Values) -> Values:
    if "ReservedConcurrentExecutions" in known:
        names = ("FunctionName", "ReservedConcurrentExecutions")
        call("PutFunctionConcurrency", {name: known[name] for name in names})
    return {"Arn": known["FunctionArn"]}


def _warm_up(call: Call, known: Values) -> Values:
    if "ProvisionedConcurrencyConfig" in known:
        alias = {"FunctionName": known["FunctionName"], "Qualifier": known["Name"]}
        wanted = known["ProvisionedConcurrencyConfig"]
        call("PutProvisionedConcurrencyConfig", {**alias, **wanted})
    return {}


CACHE_TYPE = "AWS::ElastiCache::ServerlessCache"
_ENDED_FIRST = ("AWS::AutoScaling::AutoScalingGroup", "AWS::Lambda::Alias")


def _check_start(call: Call, known: Values) -> Values:
    """Raises: ValueError: It is in the past."""
    if _moment(known["StartTime"]).timestamp() <= _ClockTime.now().timestamp():
        raise ValueError(f"{known['ScheduledActionName']}: {known['StartTime']} is in the past")
    return {}


def _schedule_warm_actors(call: Call, known: Values) -> Values:
    """The target of Application Auto Scaling is here the warm actors of an alias, which must exist."""
    _, function, alias = known["ResourceId"].split(":")
    _caller("lambda", REGION)("GetAlias", {"FunctionName": function, "Name": alias})
    target = {key: known[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
    for action in known.get("ScheduledActions", []):
        call("PutScheduledAction", {**target, **action})
    return {}


def _machine(given: Values) -> Values:
    _let_machines_run()
    names = {
        "StateMachineName": "name",
        "DefinitionString": "definition",
        "StateMachineType": "type",
    }
    return {names.get(name, name): value for name, value in given.items()}


_KINDS = {
    "AWS::EC2::SecurityGroupEgress": _rule("Egress"),
    "AWS::EC2::SecurityGroupIngress": _rule("Ingress"),
    "AWS::ElastiCache::User": _Kind("elasticache", "CreateUser", "DeleteUser UserId", "{UserId}"),
    "AWS::ElastiCache::UserGroup": _Kind(
        "elasticache", "CreateUserGroup", "DeleteUserGroup UserGroupId", "{UserGroupId}"
    ),
    CACHE_TYPE: _Kind(
        "elasticache",
        "CreateServerlessCache",
        "DeleteServerlessCache ServerlessCacheName",
        "{ServerlessCacheName}",
        name="ServerlessCacheName",
        then=lambda call, known: {
            f"Endpoint.{part}": value
            for part, value in known["ServerlessCache"]["Endpoint"].items()
        },
    ),
    # moto's own loses PackageType, Architectures and Tags.
    "AWS::Lambda::Function": _Kind(
        "lambda",
        "CreateFunction",
        "DeleteFunction FunctionName",
        "{FunctionName}",
        name="FunctionName",
        convert=lambda given: _without(given, "ReservedConcurrentExecutions"),
        then=_finish_function,
    ),
    "AWS::Lambda::Version": _Kind(
        "lambda",
        "PublishVersion",
        "DeleteFunction FunctionName Qualifier",
        "{FunctionArn}",
        then=lambda call, known: {"Qualifier": known["Version"]},
    ),
    "AWS::Lambda::Alias": _Kind(
        "lambda",
        "CreateAlias",
        "DeleteAlias FunctionName Name",
        "{AliasArn}",
        convert=lambda given: _without(given, "ProvisionedConcurrencyConfig"),
        then=_warm_up,
    ),
    # moto keeps one for each function, whatever the qualifier.
    "AWS::Lambda::EventInvokeConfig": _Kind(
        "lambda",
        "PutFunctionEventInvokeConfig",
        "DeleteFunctionEventInvokeConfig FunctionName Qualifier",
        "{FunctionName}:{Qualifier}",
    ),
    # moto's own never runs.
    "AWS::StepFunctions::StateMachine": _Kind(
        "stepfunctions",
        "CreateStateMachine",
        "DeleteStateMachine stateMachineArn",
        "{stateMachineArn}",
        convert=_machine,
    ),
    # moto's own takes a template's numbers and times for text.
    "AWS::AutoScaling::AutoScalingGroup": _Kind(
        "autoscaling",
        "CreateAutoScalingGroup",
        "DeleteAutoScalingGroup AutoScalingGroupName ForceDelete",
        "{AutoScalingGroupName}",
        name="AutoScalingGroupName",
        then=lambda call, known: {"ForceDelete": True},
    ),
    "AWS::AutoScaling::ScheduledAction": _Kind(
        "autoscaling",
        "PutScheduledUpdateGroupAction",
        "DeleteScheduledAction AutoScalingGroupName ScheduledActionName",
        "{AutoScalingGroupName}|{ScheduledActionName}",
        name="ScheduledActionName",
        then=_check_start,
    ),
    "AWS::ApplicationAutoScaling::ScalableTarget": _Kind(
        "application-autoscaling",
        "RegisterScalableTarget",
        "DeregisterScalableTarget ResourceId ScalableDimension ServiceNamespace",
        "{ResourceId}|{ScalableDimension}|{ServiceNamespace}",
        convert=lambda given: _without(given, "ScheduledActions"),
        then=_schedule_warm_actors,
    ),
    "AWS::CloudWatch::Alarm": _Kind(
        "cloudwatch",
        "PutMetricAlarm",
        "DeleteAlarms AlarmNames",
        "{AlarmName}",
        name="AlarmName",
        then=lambda call, known: {"AlarmNames": [known["AlarmName"]]},
    ),
    "AWS::Logs::MetricFilter": _Kind(
        "logs",
        "PutMetricFilter",
        "DeleteMetricFilter LogGroupName FilterName",
        "{LogGroupName}/{FilterName}",
        name="FilterName",
    ),
    # Is deleted with its topic.
    "AWS::SNS::TopicPolicy": _Kind(
        "sns",
        "SetTopicAttributes",
        "",
        "{Name_}",
        convert=lambda given: {
            "TopicArn": given["Topics"],
            "AttributeName": "Policy",
            "AttributeValue": given["PolicyDocument"],
        },
    ),
    "AWS::S3::BucketPolicy": _Kind(
        "s3",
        "PutBucketPolicy",
        "DeleteBucketPolicy Bucket",
        "{Bucket}",
        convert=lambda given: {"Bucket": given["Bucket"], "Policy": given["PolicyDocument"]},
    ),
}
# moto finds only direct subclasses of CloudFormationModel, as long as somebody holds them.
_CLASSES = [
    type(name, (_Resource, CloudFormationModel), {"TYPE": name, "KIND": kind})
    for name, kind in _KINDS.items()
]


# Operations that moto lacks


def _as_it_is(cache: Values) -> dict[str, Any]:
    """Returns a serverless cache in its current state: it may still be in creation."""
    is_there = (_clock_s() or cache["available_at_s"]) >= cache["available_at_s"]
    return {
        **_without(cache, "available_at_s"),
        "Status": cache["Status"] if is_there else "creating",
    }


class _ElastiCacheOperations:
    """Serverless caches and user groups, each available at once."""

    def _all(self, kind: str) -> dict[str, dict[str, Any]]:
        """They lie in moto's backend of that account and region, and are reset with it."""
        kinds: dict[str, Any] = vars(self.elasticache_backend).setdefault("additions", {})
        return kinds.setdefault(kind, {})

    def _one(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self._all(kind):
            raise _cache_error(f"{kind}NotFoundFault", f"{kind} {name} not found.")
        return self._all(kind)[name]

    def _add(self, kind: str, name: str, **more: Any) -> dict[str, Any]:
        if name in self._all(kind):
            raise _cache_error(f"{kind}AlreadyExistsFault", f"{kind} {name} already exists.")
        backend, given = self.elasticache_backend, self._get_params()
        # moto lists tags only of the kinds it knows.
        backend.arn_regex = _ELASTICACHE_ARN
        arn = (
            f"arn:aws:elasticache:{backend.region_name}:{backend.account_id}:{kind.lower()}:{name}"
        )
        backend.tagging_service.tag_resource(arn, given.get("Tags", []))
        self._all(kind)[name] = {**_without(given, "Tags"), "ARN": arn, **more}
        return self._all(kind)[name]

    def create_serverless_cache(self) -> ActionResult:
        given = self._get_params()
        name = given["ServerlessCacheName"]
        if "UserGroupId" in given:
            self._one("UserGroup", given["UserGroupId"])
        host, _, port = os.environ.get(
            "MOTO_ELASTICACHE_ENDPOINT", f"{name}-moto00.serverless.use1.cache.amazonaws.com:6379"
        ).rpartition(":")
        until_s, _ = _faults().get(CACHE_TYPE, (0.0, ""))
        cache = self._add(
            "ServerlessCache",
            name,
            Status="available",
            available_at_s=(_clock_s() or 0.0) + until_s,
            Endpoint={"Address": host, "Port": int(port)},
        )
        return ActionResult({"ServerlessCache": _as_it_is(cache)})

    def describe_serverless_caches(self) -> ActionResult:
        name = self._get_params().get("ServerlessCacheName")
        kind = "ServerlessCache"
        found = [self._one(kind, name)] if name else self._all(kind).values()
        return ActionResult({"ServerlessCaches": [_as_it_is(cache) for cache in found]})

    def delete_serverless_cache(self) -> ActionResult:
        name = self._get_params()["ServerlessCacheName"]
        cache = _as_it_is(self._one("ServerlessCache", name))
        if cache["Status"] == "creating":
            message = f"ServerlessCache {name} is not in a valid state."
            raise _cache_error("InvalidServerlessCacheStateFault", message)
        del self._all("ServerlessCache")[name]
        return ActionResult({"ServerlessCache": {**cache, "Status": "deleting"}})

    def create_user_group(self) -> ActionResult:
        given = self._get_params()
        for user in given.get("UserIds", []):
            self.elasticache_backend.describe_users(user)
        return ActionResult(self._add("UserGroup", given["UserGroupId"], Status="active"))

    def delete_user_group(self) -> ActionResult:
        group = self._one("UserGroup", self._get_params()["UserGroupId"])
        return ActionResult(self._all("UserGroup").pop(group["UserGroupId"]))


def _cache_error(code: str, message: str) -> ElastiCacheException:
    error = ElastiCacheException(message)
    error.code = code
    return error


_delete_user = ElastiCacheBackend.delete_user


def _delete_user_for_good(self: ElastiCacheBackend, user_id: str) -> Any:
    """Makes the deletion final; moto would show the user as being deleted forever."""
    user = _delete_user(self, user_id)
    del self.users[user_id]
    return user


class _LambdaOperations:
    """Provisioned concurrency, which is ready at once, the account's limits, and invocations elsewhere."""

    def _name(self) -> str:
        words = unquote(self.path.split("/")[3]).split(":")
        return words[words.index("function") + 1] if "function" in words else words[0]

    def invoke(self) -> Any:
        """Runs a function at MOTO_LAMBDA_ENDPOINT, if there is one with that name that may run."""
        url = os.environ.get("MOTO_LAMBDA_ENDPOINT")
        if not url:
            return _own_invocation(self)
        if self.backend.get_function(self._name()).reserved_concurrency in (0, "0"):
            raise _lambda_error(429, "TooManyRequestsException", "Rate Exceeded.")
        asked = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        path = f"{url}{self.path}?{urlsplit(self.uri).query}"
        body = self.body.encode() if isinstance(self.body, str) else self.body
        done = requests.post(path, data=body, headers=asked)
        answered = {name: done.headers[name] for name in _PASSED_ON if name in done.headers}
        return done.status_code, answered, done.content

    @staticmethod
    def _enrich_response(headers: dict[str, str], body: Any) -> tuple[dict[str, str], Any]:
        """Keeps the request id of an invocation, which its bill names; moto would give it another."""
        own = headers.pop("x-amzn-RequestId", None)
        headers, body = BaseResponse._enrich_response(headers, body)
        if own is not None:
            headers["x-amzn-requestid"] = own
        return headers, body

    def put_function_concurrency(self) -> Any:
        """Refuses to leave too little for functions without a reservation, which moto does not mind."""
        wanted = int(self.json_body["ReservedConcurrentExecutions"])
        quota, reserved = self._concurrency()
        left = (
            quota
            - reserved
            + int(self.backend.get_function(self._name()).reserved_concurrency or 0)
        )
        least = min(UNRESERVABLE_CONCURRENCY, quota)
        if wanted and left - wanted < least:
            raise _lambda_error(
                400,
                "InvalidParameterValueException",
                "Specified ReservedConcurrentExecutions for function decreases account's "
                f"UnreservedConcurrentExecution below its minimum value of [{least}].",
            )
        return _own_reservation(self)

    def _alias(self) -> Any:
        """Returns the alias that is asked about. It holds the number of its warm environments, while it has any."""
        return self.backend.get_alias(self.querystring["Qualifier"][0], self._name())

    def put_provisioned_concurrency_config(self) -> tuple[int, dict[str, Any], str]:
        alias = self._alias()
        alias.provisioned = self.json_body["ProvisionedConcurrentExecutions"]
        return 202, {"status": 202}, json.dumps(_provisioned_answer(alias))

    def list_provisioned_concurrency_configs(self) -> tuple[int, dict[str, Any], str]:
        aliases = [one for one in self.backend.list_aliases(self._name()) if _is_warm(one)]
        listed = {"ProvisionedConcurrencyConfigs": [_provisioned_answer(one) for one in aliases]}
        return 200, {}, json.dumps(listed)

    def get_provisioned_concurrency_config(self) -> tuple[int, dict[str, Any], str]:
        if self.querystring.get("List") == ["ALL"]:
            return self.list_provisioned_concurrency_configs()
        alias = self._alias()
        if not _is_warm(alias):
            raise _lambda_error(
                404,
                "ProvisionedConcurrencyConfigNotFoundException",
                "No Provisioned Concurrency Config found for this function",
            )
        return 200, {}, json.dumps(_provisioned_answer(alias))

    def delete_provisioned_concurrency_config(self) -> tuple[int, dict[str, Any], str]:
        vars(self._alias()).pop("provisioned", None)
        return 204, {"status": 204}, ""

    def _concurrency(self) -> tuple[int, int]:
        """Returns the account's quota, and how much of it is reserved."""
        functions = self.backend.list_functions()
        reserved = sum(int(function.reserved_concurrency or 0) for function in functions)
        return int(os.environ.get("MOTO_LAMBDA_CONCURRENCY_QUOTA", _CONCURRENCY_QUOTA)), reserved

    def get_account_settings(self) -> tuple[int, dict[str, Any], str]:
        quota, reserved = self._concurrency()
        limits = {
            "ConcurrentExecutions": quota,
            "UnreservedConcurrentExecutions": quota - reserved,
        }
        return 200, {}, json.dumps({"AccountLimit": limits, "AccountUsage": {}})


def _is_warm(alias: Any) -> bool:
    return hasattr(alias, "provisioned")


def _provisioned_answer(alias: Any) -> dict[str, Any]:
    kinds = ("Requested", "Available", "Allocated")
    return {
        **{f"{kind}ProvisionedConcurrentExecutions": alias.provisioned for kind in kinds},
        "FunctionArn": alias.arn,
        "Status": "READY",
        "LastModified": "2026-01-01T00:00:00+0000",
    }


def _lambda_error(status: int, code: str, message: str) -> LambdaClientError:
    error = LambdaClientError(code, message)
    error.code = status
    return error


class _StackOperations:
    """Signals. Without a clock no stack waits for them, but those it would wait for are accepted."""

    def signal_resource(self) -> EmptyResult:
        told = {
            name: self._get_param(name)
            for name in ("StackName", "LogicalResourceId", "UniqueId", "Status")
        }
        if told["Status"] not in ("SUCCESS", "FAILURE"):
            raise StackError(message=f"Status {told['Status']} is neither SUCCESS nor FAILURE")
        stack = self.cloudformation_backend.get_stack(told["StackName"])
        resource = stack.template_dict["Resources"].get(told["LogicalResourceId"])
        if resource is None or stack.status.startswith("DELETE"):
            raise StackError(
                message=f"Resource {told['LogicalResourceId']} does not exist for stack {stack.name}"
            )
        taken = [
            event
            for event in stack.events
            if event.logical_resource_id == told["LogicalResourceId"]
        ]
        if len(taken) >= resource.get("CreationPolicy", {}).get("ResourceSignal", {}).get(
            "Count", 0
        ):
            raise StackError(
                message=f"Stack {stack.stack_id} is in {stack.status} state and cannot be signaled"
            )
        stack.events.append(
            Event(
                stack.stack_id,
                stack.name,
                told["LogicalResourceId"],
                told["LogicalResourceId"],
                resource["Type"],
                "CREATE_IN_PROGRESS" if told["Status"] == "SUCCESS" else "CREATE_FAILED",
                f"Received {told['Status']} signal with UniqueId {told['UniqueId']}",
                None,
            )
        )
        if stack.status == "CREATE_IN_PROGRESS" and told["Status"] == "SUCCESS":
            stack.mark_creation_complete()
        elif stack.status == "CREATE_IN_PROGRESS":
            _roll_back(stack, f"Received 1 FAILURE signal(s) out of 1: {told['UniqueId']}")
        return EmptyResult()


def _faults() -> Any:
    path = Path(os.environ.get("MOTO_FAULTS", "/nowhere"))
    return json.loads(path.read_text()) if path.exists() else {}


def _create_resources(stack: Stack) -> None:
    """Works like moto. With a clock, it also waits for signals, and failing resources hold back their dependents."""
    resources, faults = stack.template_dict["Resources"], _faults()
    # Until creation begins, queries find nothing: moto would create whatever they ask about.
    stack.status, stack.resource_map._resource_json_map = "CREATE_IN_PROGRESS", {}
    refused = {
        name: reason
        for name, one in resources.items()
        if one["Type"] == CHECK_TYPE and (reason := _refusal(stack, name, one))
    }
    now_s = _clock_s()
    if now_s is None and refused:
        raise StackError(message=str(refused))
    if now_s is None:
        _own_creation(stack)
        return
    failing = {
        name: faults[one["Type"]] for name, one in resources.items() if one["Type"] in faults
    } | {name: [_TAKEN_BACK_S, reason] for name, reason in refused.items()}
    late = _that_need(resources, set(failing))
    stack.status, stack.description = "CREATE_IN_PROGRESS", stack.template_dict.get("Description")
    stack.template_dict["Resources"] = {
        name: one for name, one in resources.items() if name not in late
    }
    stack.resource_map.create(stack.template_dict)
    signals = [
        one["CreationPolicy"]["ResourceSignal"]["Timeout"]
        for one in resources.values()
        if ("CreationPolicy" in one)
    ]
    ends = [
        (now_s + seconds, f"{name}: {reason}") for name, (seconds, reason) in failing.items()
    ] or [
        (
            now_s + float(timeout.removeprefix("PT").removesuffix("S")),
            "Received 0 SUCCESS signal(s) out of 1",
        )
        for timeout in signals
    ]
    # Last, as it depends on everything else.
    starts = [
        (now_s, reason)
        for name, one in resources.items()
        if one["Type"] == START_TYPE and not ends and (reason := _refusal(stack, name, one))
    ]
    if ends or starts:
        stack.given_up = min(ends + starts)
    else:
        stack.mark_creation_complete()


def _update_stack(
    stack: Stack,
    template: str,
    role_arn: str | None = None,
    parameters: Any = None,
    tags: Any = None,
) -> None:
    """Asks the check of an experiment's stack, and rolls the update back if it refuses: see `_refusal`.

    Raises:
        ValueError: It agrees, which it never does while the stack is there.
    """
    old, old_tags, old_template = stack.template_dict["Resources"], stack.tags, stack.template
    stack.template, stack.tags = template, tags if tags is not None else stack.tags
    stack._parse_template()
    new = stack.template_dict["Resources"]
    _set_status(stack, "UPDATE_IN_PROGRESS", "User Initiated")
    checks = [name for name, one in new.items() if one["Type"] == CHECK_TYPE and one != old[name]]
    refusals = [_refusal(stack, name, new[name], old[name]) for name in checks]
    if not any(refusals):
        raise ValueError(f"nothing here changes {stack.name}")
    stack.template, stack.tags = old_template, old_tags
    stack._parse_template()
    _set_status(stack, "UPDATE_ROLLBACK_COMPLETE", refusals[0])


def _that_need(resources: Values, names: set[str]) -> set[str]:
    """Returns the other resources that depend on these, directly or indirectly."""
    found = set(names)
    while more := {
        name
        for name, one in resources.items()
        if name not in found and any(f'"{other}"' in json.dumps(one) for other in found)
    }:
        found |= more
    return found - names


def _outputs(stack: Stack) -> list[dict[str, Any]] | None:
    """Returns None until the stack is complete."""
    return None if stack.status.startswith(("CREATE_IN", "ROLLBACK")) else _own_outputs(stack)


def _roll_back(stack: Stack, reason: str) -> None:
    """Deletes what depends on the functions first, and the functions when nothing uses them any more."""
    _set_status(
        stack, "ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to create. {reason}"
    )
    stack.last_resources, stack.functions_at_s = (
        list(_own_stack_resources(stack)),
        (_clock_s() or 0.0) + GROUP_ENDED_S,
    )
    # moto would create the resources they name again.
    stack.template_dict["Outputs"] = {}
    stack.output_map = stack._create_output_map()
    for one in stack.last_resources:
        kind = one.cf_resource_type
        if kind in _ENDED_FIRST or (kind == CACHE_TYPE and not _is_in_creation(one)):
            one.delete(stack.account_id, stack.region_name)
            for known in (stack.resource_map._parsed_resources, stack.template_dict["Resources"]):
                del known[one.logical_resource_id]


def _set_status(stack: Stack, status: str, reason: str) -> None:
    stack.status, stack.stack_status_reason = status, reason
    stack._add_stack_event(status, reason)


def _is_in_creation(cache: _Resource) -> bool:
    found = _caller("elasticache", REGION)("DescribeServerlessCaches", {})["ServerlessCaches"]
    return any(
        one["ServerlessCacheName"] == cache.physical_resource_id and one["Status"] == "creating"
        for one in found
    )


def _stack_resources(stack: Stack) -> list[Any]:
    """Also works for a deleted stack, which CloudFormation remembers. moto would create its resources again."""
    last = getattr(stack, "last_resources", None)
    return list(_own_stack_resources(stack)) if last is None else last


def _delete_stack(backend: CloudFormationBackend, name_or_id: str) -> None:
    """Works like moto. A deletion that is to fail deletes nothing."""
    stack = next(
        (one for one in backend.stacks.values() if name_or_id in (one.name, one.stack_id)), None
    )
    if stack is not None and stack.status == "ROLLBACK_IN_PROGRESS":
        raise StackError(
            message=f"Stack [{stack.name}] cannot be deleted while in status {stack.status}"
        )
    if stack is not None and stack.status == "CREATE_IN_PROGRESS":
        stack.functions_at_s = (_clock_s() or 0.0) + GROUP_ENDED_S
    if stack is not None and _waits(stack):
        stack.status = "DELETE_IN_PROGRESS"
    elif stack is not None and _is_to_fail(stack):
        _set_status(
            stack, "DELETE_FAILED", "The following resource(s) failed to delete: [Learner]."
        )
    else:
        if stack is not None:
            stack.last_resources = list(stack.stack_resources)
        _own_stack_deletion(backend, name_or_id)


def _end_rollback(stack: Stack) -> None:
    if _waits(stack):
        return
    if _is_to_fail(stack):
        _set_status(
            stack, "ROLLBACK_FAILED", "The following resource(s) failed to delete: [Learner]."
        )
        return
    stack.resource_map.delete()
    _set_status(stack, "ROLLBACK_COMPLETE", stack.stack_status_reason)


def _is_to_fail(stack: Stack) -> bool:
    name, _, count = os.environ.get("MOTO_FAILING_DELETIONS", "").partition("=")
    return stack.name == name and int(count) > sum(
        one.resource_status in ("DELETE_FAILED", "ROLLBACK_FAILED") for one in stack.events
    )


def _waits(stack: Stack) -> bool:
    """Whether CloudFormation waits before it deletes: for a cache in creation, and always for some time.

    *Not* real: for a function in a VPC it waits 25 to 40 minutes
    (aws-cloudformation/cloudformation-coverage-roadmap#392).
    """
    now_s = _clock_s()
    if now_s is None:
        return False
    if now_s < getattr(stack, "functions_at_s", 0.0):
        return True
    resources = stack.stack_resources
    if any(one.cf_resource_type == CACHE_TYPE and _is_in_creation(one) for one in resources):
        return True
    if getattr(stack, "deleted_at_s", None) is None:
        stack.deleted_at_s = now_s + DELETION_S
    return now_s < stack.deleted_at_s


def _describe_stacks(backend: CloudFormationBackend, name_or_id: str) -> list[Stack]:
    """Works like moto, after doing what is due by now."""
    for stack in list(backend.stacks.values()):
        given_up_at_s, reason = getattr(stack, "given_up", (math.inf, ""))
        if stack.status == "DELETE_IN_PROGRESS":
            _delete_stack(backend, stack.stack_id)
        elif stack.status == "CREATE_IN_PROGRESS" and (_clock_s() or 0.0) >= given_up_at_s:
            _roll_back(stack, reason)
        elif stack.status == "ROLLBACK_IN_PROGRESS":
            _end_rollback(stack)
    return _own_description(backend, name_or_id)


# Additions to moto's own types


def _register() -> None:
    for function in (parsing.get_model_list, parsing.get_model_map, parsing.get_name_type_map):
        function.cache_clear()
    for operations, responses in (
        (_ElastiCacheOperations, ElastiCacheResponse),
        (_LambdaOperations, LambdaResponse),
        (_StackOperations, CloudFormationResponse),
    ):
        for name, method in vars(operations).items():
            if callable(method):
                setattr(responses, name, method)
    for path in (
        r"functions/(?P<function_name>[\w_:%-]+)/provisioned-concurrency",
        "account-settings",
    ):
        lambda_url_paths[rf"{{0}}/(?P<api_version>[^/]+)/{path}/?$"] = LambdaResponse.dispatch
    ElastiCacheBackend.delete_user = _delete_user_for_good


def _remove_route_table(call: Call, table: RouteTable) -> None:
    for association in list(table.associations):
        call("DisassociateRouteTable", {"AssociationId": association})
    call("DeleteRouteTable", {"RouteTableId": table.id})


def _remove_gateway(call: Call, gateway: InternetGateway) -> None:
    if gateway.vpc:
        call("DetachInternetGateway", {"InternetGatewayId": gateway.id, "VpcId": gateway.vpc.id})
    call("DeleteInternetGateway", {"InternetGatewayId": gateway.id})


def _create_subnet(
    cls: type[Subnet], name: str, template: Values, account_id: str, region: str, **known: Any
) -> Any:
    """Also finds a zone by its permanent id, which moto ignores."""
    properties = template["Properties"]
    if "AvailabilityZoneId" in properties:
        zones = _caller("ec2", region)(
            "DescribeAvailabilityZones", {"ZoneIds": [properties["AvailabilityZoneId"]]}
        )
        template = {
            **template,
            "Properties": {
                **properties,
                "AvailabilityZone": zones["AvailabilityZones"][0]["ZoneName"],
            },
        }
    return _own_subnet_creation(cls, name, template, account_id, region, **known)


def _let_delete(model: type[CloudFormationModel], remove: Callable[[Call, Any], Any]) -> None:
    def delete(self: Any, account_id: str, region_name: str) -> None:
        _forgiving(lambda: remove(_as_cloudformation("ec2", region_name), self))

    model.delete = delete


def _first_override(group: FakeAutoScalingGroup) -> str:
    """Returns the instance type of a group. If several are allowed, moto launches the first."""
    overrides = (group.mixed_instances_policy or {}).get("LaunchTemplate", {}).get("Overrides", [])
    types = [override["InstanceType"] for override in overrides if "InstanceType" in override]
    return types[0] if types else _own_instance_type(group)


def _terminate(instance: Instance) -> Any:
    """Ends an instance. If a group launched it, also deletes its network interface, which moto would leave behind."""
    group = getattr(instance, "autoscaling_group", None)
    if group is None:
        return _own_terminate(instance)
    if instance.state == "terminated":
        return copy(instance._state)
    instance.nics[0].delete_on_termination = True
    answer = _own_terminate(instance)
    # A replacement, if its group still wants one.
    states = [state for state in group.instance_states if state.instance is not instance]
    if len(states) < (group.desired_capacity or 0):
        group.instance_states = states
        group.set_desired_capacity(group.desired_capacity)
    return answer


def _add_block_device(
    instance: Instance, size: int, device_path: str, *more: Any, **options: Any
) -> None:
    """Replaces the root volume that moto has created, at any image's path, and would leave behind."""
    for path, volume in list(instance.block_device_mapping.items()):
        instance.ec2_backend.detach_volume(volume.volume_id, instance.id, path)
        instance.ec2_backend.delete_volume(volume.volume_id)
    _own_block_device(instance, size, device_path, *more, **options)


def _interface_groups(version: LaunchTemplateVersion) -> list[str]:
    """Returns the security groups of a launch template, including those of its network interface."""
    interfaces = version.data.get("NetworkInterfaces", [])
    return _own_security_groups(version) + [
        group for interface in interfaces for group in interface.get("Groups", [])
    ]


def _log_group_attribute(group: LogGroup, name: str) -> str:
    """Appends ``:*``: CloudFormation's ARN of a log group covers all its streams, unlike the API's."""
    return _own_log_group_attribute(group, name) + (":*" if name == "Arn" else "")


def _get_service_quota(
    backend: ServiceQuotasBackend, service_code: str, quota_code: str
) -> dict[str, Any]:
    if service_code != "ec2" or quota_code not in _VCPU_QUOTAS:
        return _own_service_quota(backend, service_code, quota_code)
    name, variable, vcpus = _VCPU_QUOTAS[quota_code]
    return {
        "ServiceCode": service_code,
        "QuotaCode": quota_code,
        "QuotaName": name,
        "Value": float(os.environ.get(variable, vcpus)),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _default_disk_key(response: ElasticBlockStore) -> ActionResult:
    """Answers GetEbsDefaultKmsKeyId, which moto does not know: AWS' own key by its alias, as AWS does."""
    backend = response.ec2_backend
    keys = kms_backends[backend.account_id][backend.region_name]
    own, alias = backend.default_kms_key_id, "alias/aws/ebs"
    is_of_aws = not own or keys.alias_exists(alias) and keys.describe_key(alias).arn == own
    return ActionResult({"KmsKeyId": alias if is_of_aws else own})


def _load_image_parameter(parameters: ParameterDict, key: str) -> None:
    """Adds AWS' public parameters of machine images for containers on demand. No API call can put them.

    moto has some of them, and makes thousands of objects before it finds one.
    """
    if not str(key).startswith(IMAGE_PARAMETER_PREFIX):
        _own_loading(parameters, key)
    elif not dict.get(parameters, key):
        dict.__setitem__(
            parameters,
            key,
            [
                Parameter(
                    account_id=parameters.account_id,
                    name=key,
                    value=IMAGE_ID,
                    parameter_type="String",
                    description="",
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=1.8e9,
                    version=1,
                    data_type="text",
                )
            ],
        )


def _parse_template(template: str) -> dict[str, Any]:
    """Parses like moto, but JSON without YAML, which takes a third of a stack's creation time."""
    try:
        return json.loads(template)
    except ValueError:
        return _own_parsing(template)


_own_parsing = Stack.parse_template
_own_invocation, _own_reservation = LambdaResponse.invoke, LambdaResponse.put_function_concurrency
_own_instance_type = FakeAutoScalingGroup.instance_type.fget
_own_terminate = Instance.terminate
formation.utcnow = lambda: _ClockTime.now(datetime.UTC).replace(tzinfo=None)
_own_creation = Stack.create_resources
_own_outputs = Stack.outputs.fget
_own_block_device = Instance.add_block_device
_own_description = CloudFormationBackend.describe_stacks
_own_log_group_attribute = LogGroup.get_cfn_attribute
_own_subnet_creation = Subnet.create_from_cloudformation_json.__func__
_own_stack_deletion = CloudFormationBackend.delete_stack
_own_stack_resources = Stack.stack_resources.fget
_own_security_groups = LaunchTemplateVersion.security_groups.fget
_own_service_quota = ServiceQuotasBackend.get_service_quota
_own_loading = ParameterDict._check_loading_status

_register()
ElasticBlockStore.get_ebs_default_kms_key_id = _default_disk_key
Subnet.create_from_cloudformation_json = classmethod(_create_subnet)
_let_delete(RouteTable, _remove_route_table)
_let_delete(InternetGateway, _remove_gateway)
LogGroup.get_cfn_attribute = _log_group_attribute
CustomModel.create_from_cloudformation_json = classmethod(_make_custom)
CustomModel.delete = lambda self, account_id, region_name: None
FakeAutoScalingGroup.instance_type = property(_first_override)
Instance.terminate = _terminate
Instance.add_block_device = _add_block_device
CloudFormationBackend.delete_stack = _delete_stack
CloudFormationBackend.describe_stacks = _describe_stacks
Stack.stack_resources = property(_stack_resources)
Stack.create_resources = _create_resources
Stack.update = _update_stack
Stack.outputs = property(_outputs)
Stack.parse_template = staticmethod(_parse_template)
LaunchTemplateVersion.security_groups = property(_interface_groups)
ServiceQuotasBackend.get_service_quota = _get_service_quota
ParameterDict._check_loading_status = _load_image_parameter
