"""An AWS account on this machine, and deployments in it from the real templates."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from botocore.exceptions import ClientError

from runtime.aws.ledger import Entry, Ledger
from runtime.errors import ExperimentError
from runtime.names import LEARNER_SUFFIX
from stacks.assembly import make_app
from stacks.constructs.actor_function import ALIAS
from tests.conftest import TcpServer, TlsTerminator, self_signed
from tests.fleet.lambda_fleets import ACTOR_ENVIRONMENT
from tests.fleet.lambda_fleets import client as lambda_client
from tests.helpers import ROOT
from tests.simulators.aws.gate import DECISIONS_VARIABLE
from tests.simulators.aws.moto_server import CREDENTIALS, REGION, MotoServer, as_variables
from tests.simulators.aws.moto_types import (
    ACCOUNT,
    BOOTSTRAP_PARAMETER,
    DELETION_S,
    EXECUTION_ROLE,
    deploy,
)
from tests.simulators.rehearsal import GUARD_FOLDER_VARIABLE
from tests.simulators.rehearsal.clock import PATH_VARIABLE, Clock
from tests.simulators.rehearsal.functions import MeteredEndpoint

RESULTS, NETWORK, GUARD = SHARED_STACKS = ("NitroResults", "NitroNetwork", "NitroGuard")
RUN = "rehearsal"
DEPLOYER = "Deployer"
"""Role of the person who types commands. It has the policy that the docs recommend."""
DEPLOYER_POLICY = ROOT / "docs" / "reference" / "deployer_policy.json"
EXECUTION_POLICIES = sorted(DEPLOYER_POLICY.parent.glob("execution_policy_*.json"))
TRUST_NOBODY = '{"Version": "2012-10-17", "Statement": []}'
_ADDRESS = "127.0.0.1"
_DESCRIBED = {
    "stacks": "cloudformation describe_stacks Stacks StackName",
    "auto scaling groups": "autoscaling describe_auto_scaling_groups AutoScalingGroups AutoScalingGroupName",
    "launch templates": "ec2 describe_launch_templates LaunchTemplates LaunchTemplateName",
    "volumes": "ec2 describe_volumes Volumes VolumeId",
    "caches": "elasticache describe_serverless_caches ServerlessCaches ServerlessCacheName",
    "state machines": "stepfunctions list_state_machines stateMachines name",
    "alarms": "cloudwatch describe_alarms MetricAlarms AlarmName",
    "dashboards": "cloudwatch list_dashboards DashboardEntries DashboardName",
    "buckets": "s3 list_buckets Buckets Name",
}
"""Service, operation, field of the answer, and name, by kind."""


class RehearsalError(Exception):
    """This machine cannot rehearse, or a deployment was refused. The text says why."""


class ElastiCache:
    """The server behind every serverless cache: Valkey with TLS and the users of the templates.

    Each user has the access string of its template, and the default user is disabled. *Not* real: a server on this
    machine cannot verify IAM tokens, so it accepts any password. Clients do make and send real tokens.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = TcpServer(directory, f"aclfile {directory / 'users.acl'}")
        self._users: dict[str, str] = {}

    def __enter__(self) -> Self:
        key, self.certificate = self_signed(self._directory)
        self._write_users()
        self._server.start()
        self._terminator = TlsTerminator(key, self.certificate, self._server.port).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._terminator.__exit__()
        self._server.stop()

    @property
    def endpoint(self) -> str:
        return f"{_ADDRESS}:{self._terminator.port}"

    def add_user(self, name: str, access: str) -> None:
        self._users[name] = access
        self._write_users()
        self.restart()

    def restart(self) -> None:
        """Loses all data, like a replaced node."""
        self._server.stop()
        self._server.start()

    def moved_bytes(self) -> int:
        """Returns the bytes received and sent since the last start."""
        with redis.Redis(port=self._server.port, username="watch", password="watch") as watch:
            stats = watch.info("stats")
        return stats["total_net_input_bytes"] + stats["total_net_output_bytes"]

    def _write_users(self) -> None:
        users = {
            "watch": "on nopass ~* +info",
            **{name: f"nopass {access}" for name, access in self._users.items()},
        }
        (self._directory / "users.acl").write_text(
            "user default off\n"
            + "".join(f"user {name} {access}\n" for name, access in users.items())
        )


@dataclass(frozen=True)
class Deployment:
    """One experiment's stack.

    Attributes:
        stack: Its name.
        stack_id: Its id.
        tags: Its tags, including its limits.
    """

    stack: str
    stack_id: str
    tags: Mapping[str, str]

    @property
    def run(self) -> str:
        """Its key in the ledger."""
        return f"{self.tags['nitro:experiment']}/{self.tags['nitro:run']}"

    @property
    def group(self) -> str:
        """Its learner's Auto Scaling group."""
        return f"{self.stack}-learner"

    @property
    def coordinator(self) -> str:
        """Name of the function that runs its rounds if it has no instance."""
        return f"{self.stack}-coordinator"

    def limit(self, name: str) -> float:
        return float(self.tags[f"nitro:{name}"])


class Account:
    """All of AWS that a deployment needs, on this machine.

    Attributes:
        clock: The clock of all processes of the account except moto, which uses wall-clock time.
        functions: Runs the functions.
        cache: The server behind each serverless cache.
        images: Folders of pushed images; see `tests.simulators.docker`.
        variables: Environment variables with which programs reach the account.
        calls: Folder in which each role's requests to IAM and the answers are recorded.
    """

    def __init__(self, directory: Path, **moto_variables: str) -> None:
        """Args:
        directory: An empty folder for all files of the account.
        moto_variables: See `tests.simulators.aws.moto_types`.
        """
        self.directory = directory
        self.calls = directory / "calls"
        self.images = directory / "images"
        self.clock = Clock(directory / "clock")
        self._prepared: set[str] = set()
        self._preparing = threading.Lock()
        self._faults = directory / "faults"
        self._moto_variables = moto_variables
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _check_this_machine()
        folder = self.directory / "cache"
        for path in (folder, self.calls, self.images):
            path.mkdir()
        self.clock.start()
        with ExitStack() as stack:
            self.cache = stack.enter_context(ElastiCache(folder))
            self.functions = stack.enter_context(MeteredEndpoint(self._prepare))
            self.moto = stack.enter_context(
                MotoServer(
                    MOTO_ELASTICACHE_ENDPOINT=self.cache.endpoint,
                    MOTO_CLOCK=str(self.clock.path),
                    MOTO_FAULTS=str(self._faults),
                    MOTO_LAMBDA_ENDPOINT=self.functions.url,
                    **{DECISIONS_VARIABLE: str(self.calls)},
                    **self._moto_variables,
                )
            )
            self._add_execution_role()
            self.variables = {
                **CREDENTIALS,
                "AWS_REGION": REGION,
                "AWS_ENDPOINT_URL": self.moto.url,
                "SSL_CERT_FILE": str(self.cache.certificate),
                PATH_VARIABLE: str(self.clock.path),
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self, service: str) -> Any:
        return self.moto.client(service)

    # Deploying

    def _add_execution_role(self) -> None:
        """Gives CloudFormation the rights that the docs recommend."""
        roles = self.client("iam")
        roles.create_role(RoleName=EXECUTION_ROLE, AssumeRolePolicyDocument=TRUST_NOBODY)
        for path in EXECUTION_POLICIES:
            roles.put_role_policy(
                RoleName=EXECUTION_ROLE, PolicyName=path.stem, PolicyDocument=path.read_text()
            )

    def set_faults(self, faults: Mapping[str, Any]) -> None:
        """Replaces all faults by these; see MOTO_FAULTS in `tests.simulators.aws.moto_types`."""
        self._faults.write_text(json.dumps(faults))

    def bootstrap(self) -> None:
        """Puts what `make deploy` looks for: the version of the CDK's bootstrap."""
        self.client("ssm").put_parameter(
            Name=BOOTSTRAP_PARAMETER, Value="30", Type="String", Overwrite=True
        )

    def write(self, name: str, experiment: str) -> Path:
        """Writes an experiment file with that name and text."""
        file = self.directory / f"{name}.yaml"
        file.write_text(experiment)
        return file

    def synthesise(
        self, name: str, experiment: str, context: Mapping[str, str] | None = None
    ) -> Path:
        """Returns the cloud assembly of an experiment file with that name and text.

        Args:
            context: Additional context from `make deploy`.

        Raises:
            RehearsalError: The app refuses it.
        """
        file = self.write(name, experiment)
        settings = json.loads((ROOT / "cdk.json").read_text())["context"]
        try:
            app = make_app({**settings, "run": RUN, **(context or {}), "experiment": str(file)})
        except ExperimentError as error:
            raise RehearsalError(f"the app does not synthesise: {error}") from error
        assembly = Path(app.synth().directory)
        # As if all images were pushed.
        for folder in assembly.glob("asset.*/"):
            if not (self.images / folder.name).exists():
                (self.images / folder.name).symlink_to(folder)
        return assembly

    def deploy_shared(self, assembly: Path) -> None:
        """Deploys the stacks that all experiments share. The guard's function runs from its zip."""
        outputs = {}
        for name in SHARED_STACKS:
            outputs[name] = deploy(self.client, assembly / f"{name}.template.json", name)
        (bucket,) = [
            one["PhysicalResourceId"]
            for one in self._resources(RESULTS)
            if (one["ResourceType"] == "AWS::S3::Bucket")
        ][:1]
        self.bucket = bucket
        # The policy refuses requests without TLS. moto ignores conditions, and would refuse everything.
        self.client("s3").delete_bucket_policy(Bucket=bucket)
        self.ledger = Ledger(self.client("dynamodb"), outputs[GUARD]["LedgerTable"])
        self.guard_function = outputs[GUARD]["GuardFunction"]
        self._add_guard(assembly)
        self._subscribe(outputs[GUARD]["ReportsTopic"])

    def deploy(self, assembly: Path, name: str, submit: Callable[..., Any] = deploy) -> Deployment:
        """Deploys the experiment's own stack, up to the point where it waits.

        Args:
            submit: Creates or updates it; see `tests.simulators.aws.moto_types`.
        """
        stack = f"Nitro-{name}"
        template = assembly / f"{stack}.template.json"
        for resource in json.loads(template.read_text())["Resources"].values():
            if resource["Type"] == "AWS::ElastiCache::User":
                self.cache.add_user(
                    resource["Properties"]["UserName"], resource["Properties"]["AccessString"]
                )
        # They may have changed.
        self._prepared -= {f"{stack}-{suffix}" for suffix in ("actor", "coordinator", "learner")}
        submit(self.client, template, stack)
        found = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
        tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
        return Deployment(stack, found["StackId"], tags)

    def remove_shared(self) -> None:
        """Deletes the shared stacks, as people do when nothing needs them any more."""
        for name in reversed(SHARED_STACKS):
            self.client("cloudformation").delete_stack(StackName=name)
            self.clock.advance(DELETION_S)
            self.stacks()

    def _add_guard(self, assembly: Path) -> None:
        (asset,) = [
            one["source"]["path"]
            for one in json.loads((assembly / f"{GUARD}.assets.json").read_text())["files"].values()
            if one["source"]["packaging"] == "zip"
        ]
        folder = self.directory / "guard"
        shutil.copytree(assembly / asset, folder)
        settings = self._add_function(
            self.guard_function,
            "tests.simulators.rehearsal.guard.handler",
            {"PYTHONPATH": f"{folder}:{ROOT}", GUARD_FOLDER_VARIABLE: str(folder)},
            # Without the folder that it starts in, which contains another runtime/.
            command=(sys.executable, "-P", "-m", "awslambdaric"),
            concurrency=None,
        )
        if settings["Handler"] != "runtime.aws.guard.function.handler":
            raise RehearsalError(f"the guard's handler is {settings['Handler']}")

    def _prepare(self, name: str) -> None:
        """Runs an experiment's function here from its first invocation on."""
        suffix = name.rpartition("-")[2]
        with self._preparing:
            if name in self._prepared or suffix not in ("actor", "coordinator", "learner"):
                return
            self._prepared.add(name)
            if suffix == "actor":
                self._add_actors(name)
            else:
                self._add_function(
                    name,
                    "tests.simulators.rehearsal.coordinator.handler"
                    if suffix == "coordinator"
                    else "runtime.learner.functions.handler.handler",
                    {"PYTHONPATH": str(ROOT)},
                )

    def _add_actors(self, name: str) -> None:
        try:
            warm = self.client("lambda").get_provisioned_concurrency_config(
                FunctionName=name, Qualifier=ALIAS
            )
        except ClientError:
            warm = {"RequestedProvisionedConcurrentExecutions": 0}
        self._add_function(
            name,
            "lambda_actor.handler.handler",
            ACTOR_ENVIRONMENT,
            qualifier=ALIAS,
            provisioned=warm["RequestedProvisionedConcurrentExecutions"],
        )

    def _add_function(
        self, name: str, handler: str, environment: Mapping[str, str], **more: Any
    ) -> Mapping[str, Any]:
        """Runs a function with moto's settings except the handler; returns those settings.

        Args:
            environment: Variables in addition to the function's own and those with which it reaches the account.
            more: See `tests.simulators.aws.lambda_endpoint.FunctionSettings`.
        """
        functions = self.client("lambda")
        settings: Mapping[str, Any] = functions.get_function_configuration(FunctionName=name)
        reserved = functions.get_function_concurrency(FunctionName=name).get(
            "ReservedConcurrentExecutions"
        )
        self.functions.add_function(
            name,
            handler=handler,
            timeout_s=settings["Timeout"],
            memory_mib=settings["MemorySize"],
            environment={
                **environment,
                **settings.get("Environment", {}).get("Variables", {}),
                **self._variables_of(settings),
            },
            **{"concurrency": None if reserved is None else int(reserved), **more},
        )
        return settings

    def _subscribe(self, topic: str) -> None:
        queues = self.client("sqs")
        self._queue = queues.create_queue(QueueName="reports")["QueueUrl"]
        arn = queues.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["QueueArn"])[
            "Attributes"
        ]["QueueArn"]
        self.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)

    def _variables_of(self, function: Mapping[str, Any]) -> dict[str, str]:
        """Returns the variables with which a function reaches the account in its role."""
        return {
            **self.variables,
            **as_variables(_session(self.client, function["Role"], function["FunctionName"])),
        }

    def session_of_instance(self, instance_id: str, group: str) -> dict[str, str]:
        """Returns the credentials in an instance's metadata: its role's, as STS returns them."""
        (profile,) = [
            one["PhysicalResourceId"]
            for one in self._resources(group.removesuffix(LEARNER_SUFFIX))
            if one["ResourceType"] == "AWS::IAM::InstanceProfile"
        ]
        (role,) = self.client("iam").get_instance_profile(InstanceProfileName=profile)[
            "InstanceProfile"
        ]["Roles"]
        return _session(self.client, role["Arn"], instance_id)

    # Events in the account

    def tick(self) -> dict[str, Any]:
        """Runs the guard once, as EventBridge does each minute; returns its answer or its error."""
        with closing(lambda_client(self.functions.url)) as functions:
            answer = functions.invoke(
                FunctionName=self.guard_function,
                Payload=json.dumps(
                    {"source": "aws.events", "detail-type": "Scheduled Event"}
                ).encode(),
            )
            return json.loads(answer["Payload"].read()) | (
                {"failed": answer["FunctionError"]} if "FunctionError" in answer else {}
            )

    def reports(self) -> list[tuple[str, str]]:
        """Returns subjects and texts of reports since the last call."""
        queues, found = self.client("sqs"), []
        while messages := queues.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in messages:
                body = json.loads(message["Body"])
                found.append((body.get("Subject", ""), body["Message"]))
                queues.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
        return found

    def entry(self, deployment: Deployment) -> Entry | None:
        """Returns its entry in the ledger."""
        return self.ledger.get(deployment.run)

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Returns a run's objects in the results bucket, by name."""
        store = self.client("s3")
        pages = store.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        found = {}
        for one in (one for page in pages for one in page.get("Contents", [])):
            # Other processes also remove objects meanwhile.
            with suppress(store.exceptions.NoSuchKey):
                found[one["Key"].removeprefix(prefix)] = store.get_object(
                    Bucket=self.bucket, Key=one["Key"]
                )["Body"].read()
        return found

    def inventory(self) -> dict[str, list[str]]:
        """Describes the resources that cost money or belong to an experiment, by kind. A list may be empty."""
        functions, groups = self.client("lambda"), self.client("logs").describe_log_groups()
        reservations = self.client("ec2").describe_instances()["Reservations"]
        names = self._names("lambda list_functions Functions FunctionName")
        found = {kind: self._names(words) for kind, words in _DESCRIBED.items()} | {
            "instances": [
                one["InstanceId"]
                for group in reservations
                for one in group["Instances"]
                if one["State"]["Name"] != "terminated"
            ],
            "functions": names,
            "provisioned concurrency": [
                one["FunctionArn"]
                for name in names
                for one in functions.list_provisioned_concurrency_configs(FunctionName=name)[
                    "ProvisionedConcurrencyConfigs"
                ]
            ],
            # Others empty themselves.
            "log groups without an end": [
                one["logGroupName"] for one in groups["logGroups"] if "retentionInDays" not in one
            ],
            "tables": self.client("dynamodb").list_tables()["TableNames"],
        }
        return {kind: sorted(names) for kind, names in found.items()}

    def stacks(self) -> list[str]:
        return self._names(_DESCRIBED["stacks"])

    def _names(self, words: str) -> list[str]:
        service, operation, field, name = words.split()
        return [one[name] for one in getattr(self.client(service), operation)()[field]]

    def _resources(self, stack: str) -> list[dict[str, Any]]:
        return self.client("cloudformation").describe_stack_resources(StackName=stack)[
            "StackResources"
        ]


def let_in(client: Callable[[str], Any], policy: str) -> dict[str, str]:
    """Returns the environment variables of people whose rights are this policy."""
    roles = client("iam")
    with suppress(roles.exceptions.EntityAlreadyExistsException):
        roles.create_role(RoleName=DEPLOYER, AssumeRolePolicyDocument=TRUST_NOBODY)
    roles.put_role_policy(RoleName=DEPLOYER, PolicyName="own", PolicyDocument=policy)
    return as_variables(_session(client, f"arn:aws:iam::{ACCOUNT}:role/{DEPLOYER}", "somebody"))


def _session(client: Callable[[str], Any], role: str, name: str) -> dict[str, str]:
    """Returns credentials of a role. IAM judges requests that they sign."""
    found: dict[str, str] = client("sts").assume_role(RoleArn=role, RoleSessionName=name)[
        "Credentials"
    ]
    return found


def _check_this_machine() -> None:
    """Raises: RehearsalError: Something is missing that the learner's instance has."""
    missing = [
        name for name in ("bash", "curl", "openssl", "timeout") if shutil.which(name) is None
    ]
    if missing:
        raise RehearsalError(f"a rehearsal needs programs that are not here: {', '.join(missing)}")


def difference(
    now: Mapping[str, list[str]], before: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Returns the new resources."""
    new = {kind: sorted(set(found) - set(before.get(kind, []))) for kind, found in now.items()}
    return {kind: found for kind, found in new.items() if found}
