"""The learner's boot script, as a deployed stack hands it to an instance, run in a folder of this machine."""

from __future__ import annotations

import base64
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.guard.ledger import FINISHED, STARTING, TRAINING, Ledger
from runtime.aws.learner.deployment import Deployment
from runtime.names import METRIC_NAMESPACE
from stacks.assembly import make_app
from stacks.components.learner import BOOT_SCRIPT, user_data
from stacks.plan import LAUNCHES_MAX
from tests.helpers import PATIENCE_S, ROOT, wait_for
from tests.simulators import docker
from tests.simulators.aws.front_door import FrontDoor
from tests.simulators.aws.metadata import InstanceMetadata
from tests.simulators.aws.moto_server import REGION, MotoServer
from tests.simulators.aws.moto_types import deploy
from tests.simulators.docker import DIGEST
from tests.simulators.warm_python import WarmPython
from tests.stacks.conftest import RUN, SETTINGS, Assembly, experiment_text

STEPS = [
    "lifetime",
    "docker",
    "connections",
    "identify",
    "launches",
    "stack",
    "guard",
    "files",
    "image",
    "environment",
    "learner",
    "logs",
]
TOOLS = (
    "base64",
    "bash",
    "cat",
    "chmod",
    "curl",
    "date",
    "env",
    "grep",
    "install",
    "mkdir",
    "sleep",
    "sort",
    "tee",
    "timeout",
    "touch",
)
"""Programs that the script may expect of an image, in addition to Python and the stubs."""
STUBS = ("systemctl", "shutdown", "chown")
ADDRESS = "10.0.3.7"

# Alone, as in the image: without our packages.
_PYTHON = f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n'
_REFUSING = """\
#!/bin/sh
case "${0##*/} $*" in $FAILING) echo "${0##*/}: refused" >&2; exit 254;; esac
"""
_STUB = """\
#!/bin/sh
printf '%s\\n' "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in $FAILING) echo "${0##*/}: refused" >&2; exit 254;; esac
"""


@dataclass(frozen=True)
class Stack:
    """A deployed experiment stack, and the instance that its group launched."""

    server: MotoServer
    assembly: Assembly
    outputs: dict[str, str]
    stack_id: str
    instance: dict[str, Any]
    user_data: str
    session: dict[str, str]
    """Credentials of the instance's role. IAM judges requests that they sign."""

    @property
    def group(self) -> str:
        return self.outputs["LearnerGroupName"]

    @property
    def prefix(self) -> str:
        return self.outputs["ResultsPrefix"]

    def objects(self, folder: str = "") -> dict[str, bytes]:
        """Returns the contents of the run's folder in the results bucket, by name."""
        store, bucket = self.server.client("s3"), self.outputs["ResultsBucket"]
        found = store.list_objects_v2(Bucket=bucket, Prefix=self.prefix + folder).get(
            "Contents", []
        )
        return {
            one["Key"].removeprefix(self.prefix + folder): store.get_object(
                Bucket=bucket, Key=one["Key"]
            )["Body"].read()
            for one in found
        }

    def reports(self) -> dict[str, dict[str, Any]]:
        """Returns the reports under boot/, by step."""
        return {
            name.partition("-")[2]
            if name.startswith("unknown")
            else name.rpartition(f"{self.instance['InstanceId']}-")[2]: json.loads(data)
            for name, data in (
                (name.removesuffix(".json"), data) for name, data in self.objects("boot/").items()
            )
        }

    def put(self, name: str, data: bytes = b"") -> None:
        self.server.client("s3").put_object(
            Bucket=self.outputs["ResultsBucket"], Key=self.prefix + name, Body=data
        )

    def upload_files(self, folder: Path) -> None:
        """Uploads the zip to the CDK's place in the template."""
        bucket, key = self.told("BOOT_FILES_BUCKET"), self.told("BOOT_FILES_KEY")
        archive = shutil.make_archive(str(folder.parent / "files"), "zip", folder)
        self.server.client("s3").create_bucket(Bucket=bucket)
        self.server.client("s3").upload_file(archive, bucket, key)

    def told(self, name: str) -> str:
        (line,) = [
            line for line in self.user_data.splitlines() if line.startswith(f"export {name}=")
        ]
        return line.partition("=")[2].strip("'")

    @property
    def desired(self) -> int:
        (group,) = self.server.client("autoscaling").describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.group]
        )["AutoScalingGroups"]
        return group["DesiredCapacity"]

    def boot_failures(self) -> float:
        """Returns CloudWatch's count over all tests so far."""
        now = datetime.datetime.now(datetime.UTC)
        answer = self.server.client("cloudwatch").get_metric_statistics(
            Namespace=METRIC_NAMESPACE,
            MetricName="BootFailures",
            Statistics=["Sum"],
            Period=86_400,
            Dimensions=[
                {"Name": "Experiment", "Value": self.told("NITRO_EXPERIMENT")},
                {"Name": "Run", "Value": RUN},
            ],
            StartTime=now - datetime.timedelta(days=1),
            EndTime=now + datetime.timedelta(days=1),
        )
        return sum(point["Sum"] for point in answer["Datapoints"])

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.server.client("dynamodb"), self.told("NITRO_LEDGER_TABLE"))

    @property
    def run(self) -> str:
        return self.prefix.rstrip("/")

    def forget(self) -> None:
        """Restores the state before the first launch."""
        self.server.client("dynamodb").delete_item(
            TableName=self.told("NITRO_LEDGER_TABLE"), Key={"run": {"S": self.run}}
        )
        store = self.server.client("s3")
        for name in self.objects():
            store.delete_object(Bucket=self.outputs["ResultsBucket"], Key=self.prefix + name)
        self.server.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=self.group, DesiredCapacity=1
        )


@pytest.fixture(scope="module")
def server() -> Iterator[MotoServer]:
    with MotoServer() as running:
        yield running


@pytest.fixture(scope="module")
def python3() -> Iterator[str]:
    """Text of a program that replaces ``python -S -E``."""
    with WarmPython() as running:
        yield running.program


@pytest.fixture(scope="module")
def stacks(server: MotoServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stack]:
    """Returns the stack of an experiment with that kind of cache."""
    made: dict[str, Stack] = {}

    def make(kind: str) -> Stack:
        if kind not in made:
            made[kind] = _deploy(server, kind, tmp_path_factory.mktemp(kind), is_first=not made)
        return made[kind]

    return make


def _deploy(server: MotoServer, kind: str, directory: Path, *, is_first: bool) -> Stack:
    experiment = directory / f"{kind}.yaml"
    experiment.write_text(experiment_text(cache__kind=kind))
    app = make_app({**SETTINGS, "run": RUN, "experiment": str(experiment)})
    assembly = Assembly(Path(app.synth().directory), f"Nitro-{kind}")
    for name in ["NitroResults", "NitroNetwork", "NitroGuard"] * is_first:
        deploy(server.client, assembly.directory / f"{name}.template.json", name)
    outputs = deploy(
        server.client, assembly.directory / f"{assembly.stack}.template.json", assembly.stack
    )
    # The policy refuses requests without TLS. moto ignores conditions, and would refuse everything.
    server.client("s3").delete_bucket_policy(Bucket=outputs["ResultsBucket"])
    stack_id = server.client("cloudformation").describe_stacks(StackName=assembly.stack)["Stacks"][
        0
    ]["StackId"]
    (group,) = server.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[outputs["LearnerGroupName"]]
    )["AutoScalingGroups"]
    (launched,) = [one["InstanceId"] for one in group["Instances"]]
    machines = server.client("ec2")
    instance = machines.describe_instances(InstanceIds=[launched])["Reservations"][0]["Instances"][
        0
    ]
    user_data = machines.describe_instance_attribute(InstanceId=launched, Attribute="userData")[
        "UserData"
    ]["Value"]
    (role,) = [
        one["Arn"]
        for one in server.client("iam").list_roles()["Roles"]
        if one["RoleName"].startswith(f"{assembly.stack}-LearnerRole")
    ]
    session = server.client("sts").assume_role(RoleArn=role, RoleSessionName=launched)[
        "Credentials"
    ]
    return Stack(
        server, assembly, outputs, stack_id, instance, base64.b64decode(user_data).decode(), session
    )


class Machine:
    """This machine as the instance: a folder for its root, and no programs but those on its PATH.

    Attributes:
        root: Replaces the root folder for the script.
        stack: The instance's stack.
        metadata: The instance's metadata.
        door: Endpoint for its requests to AWS.
        made_at_s: Creation time, by the wall clock.
    """

    def __init__(
        self, folder: Path, stack: Stack, metadata: InstanceMetadata, door: FrontDoor, python3: str
    ) -> None:
        self.root, self.stack, self.metadata, self.door = folder / "root", stack, metadata, door
        self.made_at_s = time.time()
        self._calls, self._programs = folder / "calls", folder / "bin"
        door.note, door.credentials = (
            self._note,
            {metadata.credentials["AccessKeyId"]: metadata.credentials},
        )
        self._script = folder / "part-001"
        self._script.write_text(stack.user_data)
        self._programs.mkdir()
        self.root.mkdir()
        for name in TOOLS:
            (self._programs / name).symlink_to(shutil.which(name))
        for name, text in {
            "python3": python3,
            **dict.fromkeys(STUBS, _STUB),
            "docker": _REFUSING + f'exec python3 {docker.__file__} "$@"\n',
        }.items():
            self.add_program(name, text)

    def _note(self, call: str) -> None:
        with self._calls.open("a") as calls:
            calls.write(f"{call}\n")

    def add_program(self, name: str, text: str) -> None:
        path = self._programs / name
        path.unlink(missing_ok=True)  # It may be a link to one of this machine's own programs.
        path.write_text(text)
        path.chmod(0o755)

    def boot(
        self, *arguments: str, script: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the script. FAILING, if given, is a pattern of the calls that fail."""
        return self.run("bash", str(script or self._script), *arguments, **variables)

    def run(
        self, program: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs, or one of this machine's by its path."""
        self.door.failing = variables.get("FAILING", "")
        return subprocess.run(
            [self._programs / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self.root,
            env={
                "PATH": str(self._programs),
                "HOME": str(self.root),
                "LANG": "C.UTF-8",
                "CALLS": str(self._calls),
                "FAILING": "",
                "BOOT_PAUSE_S": "0",
                "PYTHONPATH": str(ROOT),
                "IMAGES": str(self.stack.assembly.directory),
                "BOOT_ROOT": str(self.root),
                "BOOT_METADATA": self.metadata.url,
                "BOOT_AWS": self.door.url,
                **variables,
            },
        )

    def run_unit(self, name: str, **variables: str) -> None:
        """Runs that unit of the script's as systemd would."""
        _, script, *arguments = shlex.split(
            _unit(self.root / "etc/systemd/system" / name)["ExecStart"]
        )
        done = self.boot(*arguments, script=Path(script), **variables)
        assert done.returncode == 0, done.stdout + done.stderr

    def tell(self, name: str, value: str) -> None:
        """Changes a setting of the stack."""
        told = self._script.read_text().splitlines(keepends=True)
        (index,) = [
            number for number, line in enumerate(told) if line.startswith(f"export {name}=")
        ]
        told[index] = f"export {name}={shlex.quote(value)}\n"
        self._script.write_text("".join(told))

    def change(self, old: str, new: str) -> None:
        """Replaces a part of its script."""
        text, script = BOOT_SCRIPT.read_text(), self.root.parent / "changed.sh"
        assert text.count(old) == 1
        script.write_text(text.replace(old, new))
        exports = [
            line.removeprefix("export ").partition("=")
            for line in self._script.read_text().splitlines()
            if line.startswith("export ")
        ]
        self._script.write_text(
            user_data({name: shlex.split(value)[0] for name, _, value in exports}, script)
        )

    def calls(self, beginning: str = "") -> list[str]:
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call for call in calls if call.startswith(beginning)]

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def settings(self) -> dict[str, str]:
        """Returns the environment of the learner's service."""
        lines = self.read("etc/nitro/deployment.env").splitlines()
        return dict(line.partition("=")[::2] for line in lines)


@pytest.fixture
def machine_of(
    stacks: Callable[[str], Stack], server: MotoServer, python3: str, tmp_path: Path
) -> Iterator[Callable[[str], Machine]]:
    """Makes a fresh machine of a fresh deployment with that kind of cache."""
    with ExitStack() as running, FrontDoor(server.url) as door:

        def make(kind: str = "redis") -> Machine:
            stack = stacks(kind)
            stack.forget()
            metadata = running.enter_context(
                InstanceMetadata(
                    {
                        "instance-id": stack.instance["InstanceId"],
                        "instance-type": stack.instance["InstanceType"],
                        "ami-id": stack.instance["ImageId"],
                    },
                    stack.session,
                )
            )
            stack.upload_files(stack.assembly.learner_asset())
            return Machine(tmp_path, stack, metadata, door, python3)

        yield make


@pytest.fixture
def machine(machine_of: Callable[[str], Machine]) -> Machine:
    return machine_of("redis")


def steps(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the steps that began."""
    words = [
        line.split(" ", 1)
        for line in done.stdout.splitlines()
        if line[:2] == "20" and "Z " in line and "Z phase: " not in line
    ]
    return [word[1] for word in words]


@pytest.fixture(params=["redis", "none"])
def booted(machine_of: Callable[[str], Machine], request: pytest.FixtureRequest) -> Machine:
    machine = machine_of(request.param)
    machine.add_program("python3", _PYTHON)
    failures = machine.stack.boot_failures()
    done = machine.boot()
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps(done) == [*STEPS, "done"]
    assert machine.read("var/log/nitro/boot.log") == done.stdout
    assert (machine.stack.reports(), machine.stack.boot_failures() - failures) == ({}, 0.0)
    return machine


def test_an_instance_boots_and_starts_its_learner(booted: Machine) -> None:
    _check_environment(booted)
    _check_launch(booted)
    _check_ledger(booted)
    _check_image(booted)
    _check_units(booted)
    _check_container(booted)
    _check_log(booted)
    _check_that_nothing_is_secret(booted)


def _check_environment(machine: Machine) -> None:
    stack = machine.stack
    kind = stack.assembly.stack.removeprefix("Nitro-")
    cache = {
        "redis": (
            f"rediss://nitro-{kind}-moto00.serverless.use1.cache.amazonaws.com:6379",
            f"elasticache-iam://nitro-{kind}@nitro-{kind}",
            f"elasticache-iam://nitro-{kind}-75bf5735@nitro-{kind}",
        ),
        "none": ("", "", ""),
    }[kind]
    created = stack.server.client("cloudformation").describe_stacks(StackName=stack.assembly.stack)[
        "Stacks"
    ][0]["CreationTime"]
    settings = machine.settings()
    assert settings.pop("AWS_REGION") == settings.pop("AWS_DEFAULT_REGION") == REGION
    assert set(settings) == {f"NITRO_{field.name.upper()}" for field in fields(Deployment)}
    assert Deployment.from_environment(settings) == Deployment(
        experiment=kind,
        run=RUN,
        stack=stack.told("NITRO_STACK"),
        actor_function=stack.outputs["ActorFunction"],
        learner_function="",
        provisioned="0",
        cache_url=cache[0],
        cache_credential=cache[1],
        actor_credential=cache[2],
        results_bucket=stack.outputs["ResultsBucket"],
        results_prefix=f"{kind}/{RUN}/",
        ledger_table=stack.told("NITRO_LEDGER_TABLE"),
        tail_usd=stack.told("NITRO_TAIL_USD"),
        learner_group=f"Nitro-{kind}-learner",
        learner_resource="LearnerGroup",
        billed_since=str(int(created.timestamp())),
        instance_id=stack.instance["InstanceId"],
        instance_type="c7i.large",
        image_id=stack.instance["ImageId"],
        container_image=f"{stack.told('BOOT_IMAGE').rpartition(':')[0]}@{DIGEST}",
    )
    assert (machine.root / "etc/nitro/deployment.env").stat().st_mode & 0o777 == 0o600


def _check_launch(machine: Machine) -> None:
    deployment = machine.stack.stack_id.rpartition("/")[2]
    assert list(machine.stack.objects("launches/")) == [
        f"{deployment}/{machine.stack.instance['InstanceId']}"
    ]
    assert machine.stack.desired == 1
    assert machine.calls("shutdown") == machine.calls("aws cloudformation SignalResource") == []


def _check_ledger(machine: Machine) -> None:
    entry = machine.stack.ledger.get(machine.stack.run)
    instance = machine.stack.instance["InstanceId"]
    assert (entry.stack, entry.state, entry.writer, entry.instance_id) == (
        machine.stack.stack_id,
        STARTING,
        instance,
        instance,
    )
    assert machine.made_at_s <= entry.heartbeat_at_s <= time.time()


def _check_image(machine: Machine) -> None:
    image = machine.stack.told("BOOT_IMAGE")
    assert machine.calls("systemctl") == [
        "systemctl daemon-reload",
        "systemctl enable --now nitro-lifetime.timer",
        "systemctl daemon-reload",
        "systemctl enable --now nitro-image.timer",
        "systemctl disable --now ecs",
        "systemctl enable --now docker",
        "systemctl restart systemd-sysctl",
        "systemctl daemon-reload",
        "systemctl enable --now nitro-first-actors.timer",
        "systemctl enable --now nitro-learner.service",
    ]
    assert machine.calls("docker") == [
        f"docker login --username AWS --password-stdin {image.partition('/')[0]}",
        f"docker pull --quiet {image}",
        "docker image inspect --format {{index .RepoDigests 0}} " + image,
    ]
    assert image.partition("/")[2].startswith("cdk-hnb659fds-container-assets-")


def _check_units(machine: Machine) -> None:
    folder = machine.root / "etc/systemd/system"
    learner = _unit(folder / "nitro-learner.service")
    here = machine.root / "opt/nitro"
    (files,) = machine.stack.assembly.learner_asset().glob("experiment.yaml")
    assert (here / "experiment.yaml").read_bytes() == files.read_bytes()
    assert learner["OnFailure"] == "nitro-give-up.service"
    assert learner["StandardOutput"] == f"append:{machine.root}/var/log/nitro/learner.log"
    assert _unit(folder / "nitro-give-up.service")["ExecStart"].split()[1:3] == [
        f"{here}/boot.sh",
        "give-up",
    ]
    assert (here / "boot.sh").read_text() == machine.stack.user_data
    # After a signal, Docker's exit code is 128 more. The unit restarts after any signal that can end a learner.
    assert {int(code) for code in learner["SuccessExitStatus"].split()} == {75, 129, 130, 143}
    forced = {int(code) for code in learner["RestartForceExitStatus"].split()}
    assert forced == {74, 125} | {
        128 + number
        for number in (
            signal.SIGHUP,
            signal.SIGINT,
            signal.SIGILL,
            signal.SIGABRT,
            signal.SIGBUS,
            signal.SIGFPE,
            signal.SIGKILL,
            signal.SIGSEGV,
            signal.SIGTERM,
            7,
        )
    }
    _check_lifetime(machine, folder)
    if shutil.which("systemd-analyze"):
        _verify(folder)


def _check_container(machine: Machine) -> None:
    """Checks Docker's arguments, and that the container is the learner, which reads its file and its environment."""
    unit = _unit(machine.root / "etc/systemd/system/nitro-learner.service")
    docker, run, *words = shlex.split(unit["ExecStart"])
    here, run_folder = machine.root / "opt/nitro", machine.root / "var/lib/nitro"
    assert (run, words[-3:]) == (
        "run",
        [machine.stack.told("BOOT_IMAGE"), f"{here}/experiment.yaml", f"{run_folder}/run"],
    )
    options = {
        word.partition("=")[0]: word.partition("=")[2]
        for word in words[:-3]
        if "log-opt" not in word
    }
    assert all(word.startswith("--") for word in words[:-3])
    assert (options["--network"], options["--ipc"]) == ("host", "host")
    assert options.get("--gpus", "") == machine.stack.told("BOOT_GPUS")
    assert int(options["--ulimit"].partition("=")[2].partition(":")[0]) >= 65_536
    assert options["--pids-limit"] == "-1"
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < int(options["--memory"].removesuffix("k")) * 1024 < memory_bytes
    assert (options["--cap-drop"], options["--security-opt"]) == ("ALL", "no-new-privileges")
    assert options["--env-file"] == f"{machine.root}/etc/nitro/deployment.env"
    assert [word for word in words if word.startswith("--volume=")] == [
        f"--volume={here}:{here}:ro",
        f"--volume={run_folder}:{run_folder}",
    ]
    assert machine.calls("chown") == [f"chown 65534:65534 {run_folder}"]
    logged = dict(word.split("=", 2)[1:] for word in words if word.startswith("--log-opt="))
    assert (options["--log-driver"], logged) == (
        "awslogs",
        {
            "awslogs-region": REGION,
            "awslogs-group": machine.stack.outputs["LearnerLogs"],
            "awslogs-stream": f"{machine.stack.instance['InstanceId']}/learner",
            "mode": "non-blocking",
        },
    )
    (here / "experiment.yaml").write_text("budget: {usd: much}")
    done = machine.run(docker, run, *words)
    assert "budget.usd = 'much'" in done.stdout + done.stderr, done


def _check_lifetime(machine: Machine, folder: Path) -> None:
    timer = _unit(folder / "nitro-lifetime.timer")
    ends, told = (
        datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
        for text, form in (
            (timer["OnCalendar"], "%Y-%m-%d %H:%M:%S UTC"),
            (machine.stack.told("BOOT_ENDS_AT"), "%Y-%m-%dT%H:%M:%SZ"),
        )
    )
    assert ends == told, "whenever this instance was launched"
    assert (timer["Persistent"], timer["WantedBy"]) == ("true", "timers.target")


def _unit(path: Path) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line)


def _verify(folder: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, folder.glob("nitro-*"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nitro-" not in done.stderr + done.stdout, done.stderr


def _check_log(machine: Machine) -> None:
    events = machine.stack.server.client("logs").get_log_events(
        logGroupName=machine.stack.outputs["LearnerLogs"],
        startFromHead=True,
        logStreamName=f"{machine.stack.instance['InstanceId']}/boot",
    )["events"]
    shipped = [event["message"] for event in events]
    assert shipped == machine.read("var/log/nitro/boot.log").splitlines()[:-1], (
        "all but that it is done"
    )


def _check_that_nothing_is_secret(machine: Machine) -> None:
    secrets = [
        text.encode()
        for text in (
            machine.metadata.token,
            *(machine.metadata.credentials[name] for name in ("SecretAccessKey", "Token")),
        )
    ]
    files = [path for path in machine.root.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []
    assert not any(secret.decode() in call for secret in secrets for call in machine.calls())
    # Needed for actors on Lambda: see runtime/aws/clients.py.
    assert (
        machine.read("etc/sysctl.d/90-nitro.conf").splitlines()[0]
        == "net.ipv4.tcp_keepalive_time=60"
    )


# Failures


def no_files(machine: Machine) -> None:
    bucket, key = machine.stack.told("BOOT_FILES_BUCKET"), machine.stack.told("BOOT_FILES_KEY")
    machine.stack.server.client("s3").delete_object(Bucket=bucket, Key=key)


def no_metadata(machine: Machine) -> None:
    machine.metadata.forget()


def no_image(machine: Machine) -> None:
    machine.tell("BOOT_IMAGE", machine.stack.told("BOOT_IMAGE") + "0")


def nothing(machine: Machine) -> None:
    pass


@pytest.mark.parametrize(
    ("step", "arrange", "failing", "words"),
    [
        ("lifetime", nothing, "systemctl enable*", 'systemctl enable --now "$1.timer"'),
        ("docker", nothing, "systemctl enable*docker", "systemctl enable --now docker"),
        ("identify", no_metadata, "", "metadatum instance-id"),
        ("connections", nothing, "systemctl restart*", "systemctl restart systemd-sysctl"),
        ("launches", nothing, "aws s3 PutObject */launches/*", "mark_launch launches/"),
        ("launches", nothing, "aws s3 ListObjectsV2*", "aws s3 ListObjectsV2: 403"),
        (
            "stack",
            nothing,
            "aws cloudformation DescribeStacks*",
            "aws cloudformation DescribeStacks: 403",
        ),
        ("guard", nothing, "aws dynamodb*", "aws dynamodb UpdateItem: 403"),
        ("files", no_files, "", "aws s3 GetObject: 403"),
        ("image", nothing, "aws ecr*", "log_in"),
        ("image", nothing, "docker login*", "log_in"),
        ("image", no_image, "", "manifest unknown"),
        (
            "learner",
            nothing,
            "systemctl enable*learner*",
            "systemctl enable --now nitro-learner.service",
        ),
    ],
)
def test_a_step_that_fails_is_reported_everywhere_once_and_ends_the_instance(
    machine: Machine, step: str, arrange: Callable[[Machine], None], failing: str, words: str
) -> None:
    arrange(machine)
    failures = machine.stack.boot_failures()
    done = machine.boot(FAILING=failing)
    assert done.returncode == 1, done.stdout + done.stderr
    assert steps(done) == STEPS[: STEPS.index(step) + 1]
    ((reported, report),) = machine.stack.reports().items()
    assert (reported, report["step"]) == (step, step)
    assert report["message"].startswith(f"step '{step}' failed in line ")
    assert words in report["message"] + report["log"]
    assert machine.stack.boot_failures() - failures == 1
    named, told = machine.calls("aws cloudformation SignalResource")
    is_unknown = step in ("lifetime", "docker", "connections") or arrange is no_metadata
    known = "unknown" if is_unknown else machine.stack.instance["InstanceId"]
    assert named == f"{told}-{step}", "the stack's event shows it"
    assert told == (
        f"aws cloudformation SignalResource StackName={machine.stack.stack_id} Status=FAILURE "
        f"LogicalResourceId=LearnerGroup UniqueId={known}"
    )
    assert machine.calls("shutdown") == ["shutdown -h now"] == machine.calls()[-1:]
    # A launch that fails before it is counted would be repeated forever.
    is_counted = STEPS.index(step) > STEPS.index("launches")
    assert machine.stack.desired == is_counted
    if step != "guard":
        entry = machine.stack.ledger.get(machine.stack.run)
        assert (entry.state, entry.reason) == (
            STARTING if is_counted else FINISHED,
            report["message"],
        )
    assert report["message"] in done.stdout, "cloud-init shows it on the console"
    assert machine.metadata.credentials["SecretAccessKey"] not in json.dumps(report)


def test_without_metadata_only_the_console_hears_of_it(machine: Machine) -> None:
    """The metadata also holds the credentials."""
    done = machine.boot(BOOT_METADATA="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "step 'identify' failed in line " in done.stdout
    assert "aws logs PutLogEvents: [Errno 111] Connection refused" in done.stdout
    assert (machine.stack.reports(), machine.calls("aws")) == ({}, [])
    assert machine.calls("shutdown") == ["shutdown -h now"]


def test_what_is_signed_with_another_secret_is_refused_and_the_instance_ends_itself(
    machine: Machine,
) -> None:
    known = machine.metadata.credentials
    machine.door.credentials = {known["AccessKeyId"]: known | {"SecretAccessKey": "another"}}
    done = machine.boot()
    assert done.returncode == 1
    assert "aws s3 PutObject: 403 Forbidden" in done.stdout
    assert "SignatureDoesNotMatch" in done.stdout
    assert (machine.calls("aws"), machine.calls("shutdown")) == ([], ["shutdown -h now"])


def test_an_instance_that_can_tell_nobody_ends_itself_all_the_same(machine: Machine) -> None:
    done = machine.boot(FAILING="aws *")
    assert (done.returncode, machine.calls("shutdown")) == (1, ["shutdown -h now"])


def test_what_has_bad_moments_is_tried_again(machine: Machine) -> None:
    moments = machine.root.parent / "moments"
    machine.add_program(
        "curl",
        f"""#!/bin/sh
echo >>{moments}
calls=$(grep -c "" {moments})
[ $calls -gt 3 ] && [ $calls -ne 5 ] || exit 7
exec {shutil.which("curl")} "$@"
""",
    )
    done = machine.boot(FAILING="aws s3 ListObjectsV2*")
    assert steps(done) == STEPS[: STEPS.index("launches") + 1]


def test_a_launch_is_counted_though_the_first_calls_fail(machine: Machine) -> None:
    note, seen = machine.door.note, []

    def note_and_refuse_first(call: str) -> None:
        note(call)
        service, operation = call.split()[1:3]
        is_counting = operation in ("PutObject", "ListObjectsV2") and "/launches/" in call
        machine.door.failing = (
            f"aws {service} {operation}*" if is_counting and operation not in seen else ""
        )
        seen.append(operation)

    machine.door.note = note_and_refuse_first
    done = machine.boot()
    assert done.returncode == 0
    assert f"launch 1 of {LAUNCHES_MAX}" in done.stdout
    assert [one for one in seen if one in ("PutObject", "ListObjectsV2")] == ["PutObject"] * 2 + [
        "ListObjectsV2"
    ] * 2
    (mark,) = machine.stack.objects("launches/").values()
    assert mark.startswith(b"20")
    assert machine.stack.desired == 1


def test_a_learner_whose_run_another_continues_ends_its_instance(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    command = _unit(machine.root / "etc/systemd/system/nitro-learner.service")["ExecStopPost"]
    shell, *arguments = shlex.split(command.replace("$$", "$"))
    for code in ("0", "143", "TERM", "75"):
        assert machine.run(shell, *arguments, EXIT_STATUS=code).returncode == 0
        assert machine.calls("shutdown") == ["shutdown -h now"] * (code == "75"), code


def test_logs_that_are_not_shipped_are_reported_and_the_learner_starts(machine: Machine) -> None:
    failures = machine.stack.boot_failures()
    done = machine.boot(FAILING="aws logs PutLogEvents*")
    assert (done.returncode, steps(done)) == (0, [*STEPS, "done"])
    ((step, report),) = machine.stack.reports().items()
    assert (step, report["message"]) == ("logs", "logs are not shipped")
    assert machine.stack.boot_failures() - failures == 1
    assert machine.calls("systemctl")[-1] == "systemctl enable --now nitro-learner.service"
    assert machine.calls("shutdown") == []


def test_iam_denies_a_write_to_the_ledger_whose_condition_names_the_order(machine: Machine) -> None:
    """As in every deployment's first boot once: conditions name attributes, and only the guard may name this one."""
    machine.change(
        'for name in values}, "ReturnValues": "ALL_NEW"',
        """for name in [*values, "teardown"]},
            "ConditionExpression": "attribute_not_exists(#teardown) OR #teardown.#stack <> :stack\"""",
    )
    done = machine.boot()
    assert (done.returncode, steps(done)) == (1, STEPS[: STEPS.index("guard") + 1])
    arn = machine.stack.server.client("dynamodb").describe_table(
        TableName=machine.stack.told("NITRO_LEDGER_TABLE")
    )["Table"]["TableArn"]
    assert (
        f"is not authorized to perform: dynamodb:UpdateItem on resource: {arn} because no identity-based policy "
        "allows the dynamodb:UpdateItem action"
    ) in done.stdout
    assert machine.stack.ledger.get(machine.stack.run) is None


def test_a_launch_too_many_ends_the_group_and_fetches_nothing(machine: Machine) -> None:
    stack = machine.stack
    own, earlier = stack.stack_id.rpartition("/")[2], "an-earlier-deployment"
    for number in range(LAUNCHES_MAX):
        stack.put(f"launches/{own}/i-{number}")
    stack.put(f"launches/{earlier}/i-0")
    done = machine.boot()
    assert (done.returncode, steps(done)) == (0, STEPS[: STEPS.index("launches") + 1])
    assert stack.desired == 0
    assert (
        len(
            machine.calls(
                f"aws cloudformation SignalResource StackName={stack.stack_id} Status=FAILURE"
            )
        )
        == 2
    )
    (report,) = stack.reports().values()
    assert report["message"] == f"this was launch {LAUNCHES_MAX + 1} of at most {LAUNCHES_MAX}"
    assert machine.calls("docker") == machine.calls("shutdown") == []
    assert machine.calls("systemctl")[-1] == "systemctl restart systemd-sysctl"
    assert not (machine.root / "opt/nitro/files.zip").exists()


def test_the_last_launch_that_is_allowed_goes_on(machine: Machine) -> None:
    own = machine.stack.stack_id.rpartition("/")[2]
    for number in range(LAUNCHES_MAX - 1):
        machine.stack.put(f"launches/{own}/i-{number}")
    machine.stack.put("launches/an-earlier-deployment/i-0")
    done = machine.boot(FAILING="aws cloudformation DescribeStacks*")
    assert f"launch {LAUNCHES_MAX} of {LAUNCHES_MAX}" in done.stdout
    assert steps(done) == STEPS[: STEPS.index("stack") + 1]


def test_the_instance_of_a_deployment_that_is_being_taken_down_ends_itself(
    machine: Machine,
) -> None:
    stack = machine.stack
    stack.ledger.order(stack.run, stack=stack.stack_id, reason="its budget", now_s=time.time())
    done = machine.boot()
    assert (done.returncode, steps(done)) == (0, STEPS[: STEPS.index("guard") + 1])
    entry = stack.ledger.get(stack.run)
    assert (stack.desired, entry.state, entry.reason) == (
        0,
        FINISHED,
        "the deployment is being taken down",
    )
    assert entry.order_for(stack.stack_id).reason == "its budget"
    (report,) = stack.reports().values()
    assert report["message"] == "the deployment is being taken down"
    assert machine.calls("docker") == []


def test_a_later_deployment_of_a_run_takes_its_entry_over(machine: Machine) -> None:
    stack = machine.stack
    stack.ledger.order(stack.run, stack="an earlier one", reason="its budget", now_s=1.0)
    stack.ledger.close(stack.run, stack="an earlier one", spent_usd=0.5, now_s=2.0)
    machine.boot(FAILING="systemctl enable*learner*")
    entry = stack.ledger.get(stack.run)
    assert (entry.stack, entry.state, entry.spent_usd) == (stack.stack_id, STARTING, 0.5)


def test_giving_up_ends_the_group_or_at_least_the_instance(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    (machine.root / "var/log/nitro/learner.log").write_text("its last words")
    machine.run_unit("nitro-give-up.service", FAILING="aws autoscaling*")
    assert (machine.stack.desired, machine.calls("shutdown")) == (1, ["shutdown -h now"])
    machine.run_unit("nitro-give-up.service", FAILING="aws cloudformation SignalResource*")
    assert (machine.stack.desired, machine.calls("shutdown")) == (0, ["shutdown -h now"])
    entry = machine.stack.ledger.get(machine.stack.run)
    assert (entry.state, entry.reason) == (FINISHED, "the learner keeps dying; its log tells why")
    assert machine.calls("aws lambda") == []
    ((step, report),) = machine.stack.reports().items()
    assert (step, report["message"], report["log"]) == (
        "give-up",
        "the learner keeps dying; its log tells why",
        "its last words",
    )
    assert report["instance_id"] == machine.stack.instance["InstanceId"]


def test_a_ledger_that_cannot_be_told_of_the_end_is_reported(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    machine.run_unit("nitro-give-up.service", FAILING="aws dynamodb*")
    (report,) = machine.stack.reports().values()
    assert (
        report["message"]
        == "the learner keeps dying; its log tells why; the ledger could not be told"
    )
    assert machine.stack.desired == 0


def test_a_lifetime_that_is_over_ends_an_instance_that_does_not_know_itself(
    machine: Machine,
) -> None:
    no_metadata(machine)
    assert machine.boot().returncode == 1
    assert not (machine.root / "etc/nitro/deployment.env").exists()
    machine.stack.forget()
    machine.run_unit("nitro-lifetime.service")
    assert machine.stack.desired == 0
    ((step, report),) = machine.stack.reports().items()
    assert (step, report["message"], report["instance_id"]) == (
        "give-up",
        "its lifetime is over",
        None,
    )
    assert "metadatum instance-id" in report["log"]
    assert machine.calls("aws cloudformation SignalResource")[-1].endswith("UniqueId=unknown")


def test_an_instance_that_is_launched_when_the_lifetime_is_over_ends_at_once(
    machine: Machine,
) -> None:
    script = machine.root / "late.sh"
    text = machine.stack.user_data
    told = machine.stack.told("BOOT_ENDS_AT")
    script.write_text(text.replace(told, "2026-01-01T00:00:00Z"))
    assert script.read_text() != text
    machine.boot(script=script)
    timer = _unit(machine.root / "etc/systemd/system/nitro-lifetime.timer")
    ends = datetime.datetime.strptime(timer["OnCalendar"], "%Y-%m-%d %H:%M:%S UTC").replace(
        tzinfo=datetime.UTC
    )
    # systemd would not start a timer in the past.
    assert machine.made_at_s < ends.timestamp() <= time.time() + 31.0


@pytest.mark.parametrize("phase", ["image", "first actors"])
def test_a_phase_that_takes_too_long_is_named_and_ends_the_instance(
    machine: Machine, phase: str
) -> None:
    stopped_by = {"image": "docker pull*", "first actors": ""}[phase]
    machine.boot(FAILING=stopped_by)
    if phase == "image":
        # As if it hung there: there is no report yet.
        machine.stack.forget()
    before = len(machine.calls())
    unit = f"nitro-{phase.replace(' ', '-')}"
    limit_s = {"image": 450, "first actors": 300}[phase]
    timer = _unit(machine.root / f"etc/systemd/system/{unit}.timer")
    ends_s = datetime.datetime.strptime(timer["OnCalendar"], "%Y-%m-%d %H:%M:%S UTC").replace(
        tzinfo=datetime.UTC
    )
    assert machine.made_at_s - 1 <= ends_s.timestamp() - limit_s <= time.time()
    machine.run_unit(f"{unit}.service")
    ((step, report),) = machine.stack.reports().items()
    assert (step, report["message"]) == (
        phase,
        f"phase '{phase}' of the start was not over after {limit_s} s",
    )
    assert f"phase: {phase}, at most {limit_s} s" in report["log"]
    calls = machine.calls()[before:]
    named, told = [call for call in calls if call.startswith("aws cloudformation SignalResource")]
    assert named == f"{told}-{phase.replace(' ', '-')}"
    assert told.endswith(f"UniqueId={machine.stack.instance['InstanceId']}")
    assert (calls[-1], machine.stack.desired) == ("shutdown -h now", 1), (
        "another may take its place"
    )


def test_an_instance_that_hangs_before_it_was_counted_is_not_launched_again(
    machine: Machine,
) -> None:
    machine.boot(FAILING="aws s3 PutObject */launches/*")
    machine.stack.forget()
    machine.run_unit("nitro-image.service")
    entry = machine.stack.ledger.get(machine.stack.run)
    assert (machine.stack.desired, entry.state) == (0, FINISHED), (
        "nothing else would bound the launches"
    )
    assert machine.calls()[-1] == "shutdown -h now"


def test_a_phase_that_is_over_in_time_ends_nothing(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    machine.run_unit("nitro-image.service")
    machine.run_unit("nitro-first-actors.service", FAILING="aws dynamodb GetItem*")
    stack = machine.stack
    stack.ledger.take_over(
        stack.run, stack=stack.stack_id, writer="w", instance_id="i", now_s=time.time()
    )
    stack.ledger.record(stack.run, writer="w", state=TRAINING)
    machine.run_unit("nitro-first-actors.service")
    assert stack.reports() == {}
    assert machine.calls("shutdown") == machine.calls("aws cloudformation SignalResource") == []


def test_giving_up_takes_the_warm_actors_away_if_it_can(machine: Machine) -> None:
    machine.tell("NITRO_PROVISIONED", "3")
    assert machine.boot().returncode == 0
    function, _, alias = machine.stack.outputs["ActorFunction"].rpartition(":")
    machine.stack.server.client("lambda").put_provisioned_concurrency_config(
        FunctionName=function, Qualifier=alias, ProvisionedConcurrentExecutions=3
    )
    for failing in ("aws lambda*", ""):
        before = len(machine.calls())
        machine.run_unit("nitro-give-up.service", FAILING=failing)
        calls = machine.calls()[before:]
        ended, released = (
            next(place for place, call in enumerate(calls) if call.startswith(f"aws {what}"))
            for what in ("lambda", "autoscaling")
        )
        assert {call for call in calls if call.startswith("aws lambda")} == {
            f"aws lambda DeleteProvisionedConcurrencyConfig FunctionName={function} Qualifier={alias}"
        }
        assert ended < released
        assert machine.stack.desired == 0
        machine.stack.forget()


def test_a_spot_instance_that_ec2_takes_back_stops_its_learner_and_ends_itself(
    machine_of: Callable[[str], Machine],
) -> None:
    machine = machine_of("redis")
    machine.tell("BOOT_MARKET", "spot")
    assert machine.boot().returncode == 0
    folder = machine.root / "etc/systemd/system"
    learner, watch = (
        _unit(folder / "nitro-learner.service"),
        _unit(folder / "nitro-interruption.service"),
    )
    assert learner["Wants"].split()[-1] == "nitro-interruption.service"
    assert watch["Type"] == "exec", "systemd does not wait for its end"
    before = len(machine.calls())
    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(machine.run_unit, "nitro-interruption.service")
        wait_for(lambda: machine.metadata.asked.count("spot/instance-action") > 2, "its looks")
        assert machine.calls()[before:] == []
        machine.metadata.values["spot/instance-action"] = (
            '{"action": "terminate", "time": "2026-11-25T09:32:00Z"}'
        )
        watching.result()
    assert machine.calls()[before:] == ["systemctl stop nitro-learner.service", "shutdown -h now"]
    # Within the two minutes: SIGTERM, on which the learner saves, and SIGKILL if that takes too long.
    assert learner["ExecStop"].split()[1:4] == ["stop", "-t", "85"]
    assert int(learner["TimeoutStopSec"]) < 120
