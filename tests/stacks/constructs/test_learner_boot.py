"""The learner's user data, as a deployed stack hands it to an instance, run by bash in a folder of this machine."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.instance import ENDPOINT_VARIABLE
from runtime.aws.ledger import FINISHED, STARTING, Entry, Ledger
from stacks.assembly import make_app
from stacks.plan import LAUNCHES_MAX
from tests.helpers import PATIENCE_S, ROOT, wait_for
from tests.simulators.aws.metadata import InstanceMetadata
from tests.simulators.aws.moto_server import CREDENTIALS, REGION, MotoServer, as_variables
from tests.simulators.aws.moto_types import deploy
from tests.simulators.docker import DIGEST
from tests.simulators.rehearsal.clock import PATH_VARIABLE, Clock
from tests.simulators.rehearsal.machines import Unit, install
from tests.stacks.conftest import RUN, SETTINGS, Assembly, experiment_text

STEPS = ["lifetime", "command-line", "launch", "guard", "docker", "image", "learner"]
FOUND_LATER = {"billed_since", "instance_id", "instance_type", "image_id"}
"""Attributes of a deployment that the container finds out itself."""


@dataclass(frozen=True)
class Stack:
    """A deployed experiment stack with a cache, and the instance that its group launched.

    Attributes:
        session: Credentials of the instance's role. IAM judges what it asks for.
    """

    server: MotoServer
    assembly: Assembly
    instance: dict[str, Any]
    user_data: str
    session: dict[str, str]

    def told(self, name: str) -> str:
        (line,) = [one for one in self.user_data.splitlines() if one.startswith(f"export {name}=")]
        return shlex.split(line)[1].partition("=")[2]

    @property
    def desired(self) -> int:
        (group,) = self.server.client("autoscaling").describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.told("NITRO_LEARNER_GROUP")]
        )["AutoScalingGroups"]
        return group["DesiredCapacity"]

    @property
    def entry(self) -> Entry:
        ledger = Ledger(self.server.client("dynamodb"), self.told("NITRO_LEDGER_TABLE"))
        return ledger.get(self.told("NITRO_RESULTS_PREFIX").rstrip("/"))

    def objects(self, folder: str) -> dict[str, str]:
        """Returns the contents of that folder of the run, by name."""
        store, bucket = self.server.client("s3"), self.told("NITRO_RESULTS_BUCKET")
        prefix = self.told("NITRO_RESULTS_PREFIX") + folder
        return {
            one["Key"].removeprefix(prefix): store.get_object(Bucket=bucket, Key=one["Key"])["Body"]
            .read()
            .decode()
            for one in store.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        }

    def put(self, name: str) -> None:
        self.server.client("s3").put_object(
            Bucket=self.told("NITRO_RESULTS_BUCKET"), Key=self.told("NITRO_RESULTS_PREFIX") + name
        )

    def forget(self) -> None:
        """Restores the state before the first launch, in which the guard has noticed the stack."""
        store, bucket = self.server.client("s3"), self.told("NITRO_RESULTS_BUCKET")
        for name in self.objects(""):
            store.delete_object(Bucket=bucket, Key=self.told("NITRO_RESULTS_PREFIX") + name)
        self.forget_entry()
        self.notice(self.told("NITRO_STACK"))
        self.server.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=self.told("NITRO_LEARNER_GROUP"), DesiredCapacity=1
        )

    def forget_entry(self) -> None:
        self.server.client("dynamodb").delete_item(
            TableName=self.told("NITRO_LEDGER_TABLE"),
            Key={"run": {"S": self.told("NITRO_RESULTS_PREFIX").rstrip("/")}},
        )

    def notice(self, stack: str) -> None:
        """Opens the run's account for a stack, as the guard does."""
        ledger = Ledger(self.server.client("dynamodb"), self.told("NITRO_LEDGER_TABLE"))
        ledger.notice(self.told("NITRO_RESULTS_PREFIX").rstrip("/"), stack=stack, began_at_s=1.0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    experiment = directory / "booted.yaml"
    experiment.write_text(experiment_text(cache__kind="redis"))
    app = make_app({**SETTINGS, "run": RUN, "experiment": str(experiment)})
    assembly = Assembly(Path(app.synth().directory), "Nitro-booted", experiment)
    with MotoServer() as server:
        for name in ("NitroResults", "NitroNetwork", "NitroGuard", assembly.stack):
            template = assembly.directory / f"{name}.template.json"
            deploy(server.client, template, name)
        machines = server.client("ec2")
        (found,) = machines.describe_instances()["Reservations"]
        (instance,) = found["Instances"]
        user_data = machines.describe_instance_attribute(
            InstanceId=instance["InstanceId"], Attribute="userData"
        )["UserData"]["Value"]
        (role,) = [
            one["Arn"]
            for one in server.client("iam").list_roles()["Roles"]
            if one["RoleName"].startswith(f"{assembly.stack}-LearnerRole")
        ]
        session = server.client("sts").assume_role(RoleArn=role, RoleSessionName="instance")
        made = Stack(
            server,
            assembly,
            instance,
            base64.b64decode(user_data).decode(),
            session["Credentials"],
        )
        # The policy refuses requests without TLS. moto ignores conditions, and would refuse everything.
        server.client("s3").delete_bucket_policy(Bucket=made.told("NITRO_RESULTS_BUCKET"))
        yield made


class Instance:
    """This machine as the instance: a folder for its root, and no programs but those on its PATH.

    Attributes:
        root: Replaces the root folder for the user data.
        stack: The instance's stack.
        variables: Its processes' environment.
    """

    def __init__(self, folder: Path, stack: Stack, metadata: InstanceMetadata) -> None:
        self.root, self.stack = folder / "root", stack
        install(folder, stack.instance["InstanceId"])
        self.programs, self._calls, self._script = folder / "bin", folder / "calls", folder / "part"
        self._script.write_text(stack.user_data)
        clock = Clock(folder / "clock")
        clock.start()
        (self.root / "var/log/cloud-init-output.log").write_text("what was printed\n")
        self.variables = {
            **CREDENTIALS,
            **as_variables(stack.session),
            "AWS_ENDPOINT_URL": stack.server.url,
            "PATH": str(self.programs),
            "PYTHONPATH": str(ROOT),
            "CALLS": str(self._calls),
            "IMAGES": str(stack.assembly.directory),
            "BOOT_ROOT": str(self.root),
            "FAILING": "",
            ENDPOINT_VARIABLE: metadata.url,
            PATH_VARIABLE: str(clock.path),
        }

    def tell(self, name: str, value: str) -> None:
        """Changes an export of the user data."""
        text, line = self._script.read_text(), f"export {name}={shlex.quote(value)}"
        changed, count = re.subn(rf"(?m)^export {name}=.*$", line, text)
        assert count == 1
        self._script.write_text(changed)

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts its user data, or one of its programs."""
        words = list(command or ["/bin/bash", str(self._script)])
        return subprocess.Popen(
            [self.programs / Path(words[0]).name, *words[1:]],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=self.variables | variables,
        )

    def run(self, *command: str, **variables: str) -> tuple[int, str]:
        """Runs its user data, or one of its programs; returns the exit code and what it printed.

        FAILING is a pattern of the calls that fail.
        """
        return self.finish(self.start(*command, **variables))

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        printed, _ = process.communicate(timeout=PATIENCE_S)
        # Whatever AWS answers, each command exists as it is written.
        assert not re.findall(r"(?m)^aws: (?!An error occurred|refused).*$", printed)
        return process.returncode, printed

    def unit(self, name: str) -> Unit:
        return Unit.read(self.root / "etc/systemd/system" / name)

    def calls(self, beginning: str = "") -> list[str]:
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call for call in calls if call.startswith(beginning)]

    @property
    def id(self) -> str:
        return self.stack.instance["InstanceId"]


@pytest.fixture
def instance(stack: Stack, tmp_path: Path) -> Iterator[Instance]:
    """A fresh instance of a fresh deployment."""
    stack.forget()
    facts = {
        "instance-id": stack.instance["InstanceId"],
        "instance-type": stack.instance["InstanceType"],
        "ami-id": stack.instance["ImageId"],
    }
    with InstanceMetadata(facts, stack.session) as metadata:
        yield Instance(tmp_path, stack, metadata)


def steps(printed: str) -> list[str]:
    return [line[21:] for line in printed.splitlines() if line[:2] == "20" and line[19:21] == "Z "]


def upload_files(stack: Stack, folder: Path, text: str) -> None:
    """Uploads the run's files with that experiment to the CDK's place in the template."""
    shutil.copytree(stack.assembly.learner_asset(), folder)
    (folder / "experiment.yaml").write_text(text)
    bucket, _, key = stack.told("NITRO_FILES").removeprefix("s3://").partition("/")
    stack.server.client("s3").create_bucket(Bucket=bucket)
    stack.server.client("s3").upload_file(
        shutil.make_archive(str(folder), "zip", folder), bucket, key
    )


def test_an_instance_boots_and_its_container_is_the_learner_of_its_deployment(
    instance: Instance, tmp_path: Path
) -> None:
    stack, before_s = instance.stack, int(time.time())
    # It is the last launch that is allowed.
    own = stack.told("NITRO_STACK").rpartition("/")[2]
    for number in range(LAUNCHES_MAX - 1):
        stack.put(f"launches/{own}/i-{number}")
    stack.put("launches/an-earlier-deployment/i-0")
    code, printed = instance.run()
    assert (code, steps(printed)) == (0, [*STEPS, "done"]), printed
    assert stack.objects("boot/") == {}
    assert instance.calls("shutdown") == instance.calls("aws cloudformation") == []
    _check_launch(stack, before_s)
    _check_environment(instance)
    _check_units(instance)
    _check_container(instance)
    _check_that_nothing_is_secret(instance)
    # It reads its identity and its files, refuses what it reads, says so in the bucket, and ends its group.
    upload_files(stack, tmp_path / "files", "budget: {usd: much}")
    code, printed = instance.run(*instance.unit("nitro-learner.service").command)
    assert code == 0, printed
    assert "budget.usd = 'much'" in printed
    refused = json.loads(stack.objects("refused.json")[""])
    assert (refused["instance_id"], refused["instance_type"], refused["image_id"]) == (
        instance.id,
        stack.instance["InstanceType"],
        stack.instance["ImageId"],
    )
    assert refused["container_image"] == f"{stack.told('BOOT_IMAGE').rpartition(':')[0]}@{DIGEST}"
    assert (stack.desired, stack.entry.state) == (0, FINISHED)


def _check_launch(stack: Stack, before_s: int) -> None:
    deployment = stack.told("NITRO_STACK").rpartition("/")[2]
    assert f"{deployment}/{stack.instance['InstanceId']}" in stack.objects("launches/")
    entry = stack.entry
    assert (entry.stack, entry.state, entry.reason, entry.instance_id, stack.desired) == (
        stack.told("NITRO_STACK"),
        STARTING,
        "",
        stack.instance["InstanceId"],
        1,
    )
    assert before_s <= entry.heartbeat_at_s <= time.time()


def _check_environment(instance: Instance) -> None:
    file = instance.root / "etc/nitro.env"
    settings = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
    assert settings.pop("AWS_DEFAULT_REGION") == REGION
    assert set(settings) == {
        f"NITRO_{one.name.upper()}" for one in fields(Deployment) if one.name not in FOUND_LATER
    }
    stack = instance.stack
    actor = stack.server.client("lambda").get_function_configuration(
        FunctionName=f"{stack.assembly.stack}-actor"
    )
    assert settings["NITRO_ACTOR_FUNCTION"] == actor["FunctionArn"]
    assert file.stat().st_mode & 0o777 == 0o600


def _check_units(instance: Instance) -> None:
    ends_at = instance.stack.told("BOOT_ENDS_AT")
    timer, learner = instance.unit("nitro-lifetime.timer"), instance.unit("nitro-learner.service")
    assert timer.settings["OnCalendar"] == f"{ends_at[:10]} {ends_at[11:19]} UTC"
    assert timer.settings["Persistent"] == "true"
    assert instance.run(*instance.unit("nitro-lifetime.service").command)[0] == 0
    assert instance.calls("shutdown") == ["shutdown -h now"]
    assert instance.calls("systemctl")[0] == "systemctl enable --now nitro-lifetime.timer"
    assert instance.calls("systemctl")[-1] == "systemctl enable --now nitro-learner.service"
    assert learner.settings["OnFailure"] == "nitro-give-up.service"
    # After a signal, Docker's exit code is 128 more. The unit restarts after any signal that can end a learner.
    ended = "SIGHUP SIGINT SIGILL SIGABRT SIGBUS SIGFPE SIGKILL SIGSEGV SIGTERM".split()
    assert learner.codes("RestartForceExitStatus") == {74, 125} | {
        128 + getattr(signal, name) for name in ended
    } | {134, 135}
    assert learner.codes("SuccessExitStatus") == {75, 129, 130, 143}
    for code in ("0", "143", "75"):
        command = shlex.split(learner.settings["ExecStopPost"].replace("$$", "$"))
        assert instance.run(*command, EXIT_STATUS=code)[0] == 0
        assert len(instance.calls("shutdown")) == 1 + (code == "75")
    # Within the two minutes that EC2 gives: SIGTERM, on which the learner saves, and SIGKILL.
    assert learner.settings["ExecStop"].split()[1:4] == ["stop", "-t", "85"]
    assert int(learner.settings["TimeoutStopSec"]) < 120
    if analyze := shutil.which("systemd-analyze"):
        units = (instance.root / "etc/systemd/system").glob("nitro-*")
        done = subprocess.run(
            [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if "is not executable" not in line]
        assert "nitro-" not in "".join(said), said


def _check_container(instance: Instance) -> None:
    stack, home = instance.stack, f"{instance.root}/var/lib/nitro"
    image, registry = stack.told("BOOT_IMAGE"), stack.told("BOOT_IMAGE").partition("/")[0]
    (logs,) = stack.server.client("logs").describe_log_groups(
        logGroupNamePrefix=f"{stack.assembly.stack}-LearnerLogs"
    )["logGroups"]
    assert instance.calls("docker") == [
        f"docker login --username AWS --password-stdin {registry}",
        f"docker pull --quiet {image}",
        "docker image inspect --format {{index .RepoDigests 0}} " + image,
    ]
    _, run, *options = instance.unit("nitro-learner.service").command
    assert (run, options[-2:]) == ("run", [image, f"{home}/run"])
    assert set(options[:-2]) >= {
        "--network=host",
        "--ipc=host",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--pids-limit=-1",
        "--ulimit=nofile=65536:65536",
        f"--env-file={instance.root}/etc/nitro.env",
        f"--volume={home}:{home}",
        "--log-driver=awslogs",
        f"--log-opt=awslogs-region={REGION}",
        f"--log-opt=awslogs-group={logs['logGroupName']}",
        f"--log-opt=awslogs-stream={instance.id}/learner",
        "--log-opt=mode=non-blocking",
    }
    assert not any(one.startswith("--gpus") for one in options)
    (memory,) = [one.partition("=")[2] for one in options if one.startswith("--memory=")]
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < int(memory.removesuffix("k")) * 1024 < machine_bytes
    assert instance.calls("chown") == [f"chown 65534:65534 {home}"]


def _check_that_nothing_is_secret(instance: Instance) -> None:
    secrets = [instance.stack.session[name] for name in ("SecretAccessKey", "SessionToken")]
    files = [path for path in instance.root.parent.rglob("*") if path.is_file()]
    assert len(files) > 12
    assert not [path for path in files for one in secrets if one.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("step", "failing", "words"),
    [
        ("lifetime", "systemctl enable*lifetime*", "systemctl: refused"),
        ("launch", "aws s3api list-objects-v2*", "aws: refused"),
        ("docker", "systemctl enable*docker", "systemctl: refused"),
        ("image", "docker login*", "docker: refused"),
        ("image", "docker pull*", "docker: refused"),
        ("learner", "systemctl enable*learner*", "systemctl: refused"),
    ],
)
def test_a_step_that_fails_is_reported_everywhere_and_ends_the_instance(
    instance: Instance, step: str, failing: str, words: str
) -> None:
    code, printed = instance.run(FAILING=failing)
    assert (code != 0, steps(printed)) == (True, STEPS[: STEPS.index(step) + 1]), printed
    assert words in printed
    is_counted = STEPS.index(step) > STEPS.index("launch")
    _check_end(instance, step, f"{step}: this step of the boot failed", is_counted=is_counted)


def _check_end(instance: Instance, step: str, reason: str, *, is_counted: bool) -> None:
    """Checks who has heard of the end, that it is one, and that launches are limited."""
    stack = instance.stack
    assert stack.objects("boot/") == {f"{instance.id}-{step}.log": "what was printed\n"}
    signals = [call.split() for call in instance.calls("aws cloudformation signal-resource")]
    assert [words[-1] for words in signals] == [f"{instance.id}-{step}", instance.id]
    assert all(stack.told("NITRO_STACK") in one and "FAILURE" in one for one in signals)
    assert (stack.entry.state, stack.entry.reason, stack.desired) == (
        (STARTING, reason, 1) if is_counted else (FINISHED, reason, 0)
    )
    # The first one in case a report hangs.
    assert instance.calls("shutdown") == ["shutdown -h +5", "shutdown -h now"]
    assert instance.calls()[-1] == "shutdown -h now"


def test_an_instance_that_can_tell_nobody_tries_and_ends_itself_all_the_same(
    instance: Instance,
) -> None:
    code, _ = instance.run(FAILING="aws *")
    assert (code != 0, instance.calls()[-1]) == (True, "shutdown -h now")
    assert instance.calls("sleep")[:3] == ["sleep 5", "sleep 20", "sleep 60"]
    assert len(instance.calls("aws s3api put-object")) == 4 + 1


def test_the_entry_of_another_deployment_is_not_touched(instance: Instance) -> None:
    stack = instance.stack
    stack.forget_entry()
    stack.notice("another")
    code, printed = instance.run()
    assert (code != 0, steps(printed)[-1]) == (True, "guard"), printed
    assert (stack.entry.stack, stack.entry.state, stack.entry.instance_id) == ("another", "", "")


def test_a_boot_that_takes_too_long_is_reported_and_ends_the_instance(instance: Instance) -> None:
    """`timeout` here is the test, so that no machine is too slow for it."""
    hanging = instance.root.parent / "hanging"
    instance.add_program("timeout", 'echo "timeout $1" >>"$CALLS"; shift; exec "$@"')
    hang = f"echo >{hanging}; exec {shutil.which('sleep')} 999"
    instance.add_program("docker", f'case "$1" in login) cat >/dev/null ;; *) {hang} ;; esac')
    boot = instance.start()
    wait_for(lambda: hanging.exists() or boot.poll() is not None, "a pull that hangs")
    assert instance.calls("timeout") == ["timeout 450"]
    os.killpg(boot.pid, signal.SIGTERM)
    code, printed = instance.finish(boot)
    assert (code, steps(printed)[-1]) == (1, "image")
    _check_end(instance, "image", "image: the boot was not over after 450 s", is_counted=True)


def test_a_launch_too_many_ends_the_group_and_fetches_nothing(instance: Instance) -> None:
    own = instance.stack.told("NITRO_STACK").rpartition("/")[2]
    for number in range(LAUNCHES_MAX):
        instance.stack.put(f"launches/{own}/i-{number}")
    assert instance.run()[0] == 1
    ends_at = instance.stack.told("BOOT_ENDS_AT")
    reason = f"launch: this is launch {LAUNCHES_MAX + 1} of at most {LAUNCHES_MAX}, until {ends_at}"
    _check_end(instance, "launch", reason, is_counted=False)
    assert instance.calls("docker") == []


def test_a_launch_after_the_lifetime_ends_the_group(instance: Instance) -> None:
    """systemd would not start a timer in the past."""
    instance.tell("BOOT_ENDS_AT", "2026-01-01T00:00:00Z")
    assert instance.run()[0] == 1
    _check_end(
        instance,
        "launch",
        f"launch: this is launch 1 of at most {LAUNCHES_MAX}, until 2026-01-01T00:00:00Z",
        is_counted=False,
    )


def test_with_a_gpu_and_without_the_command_line_and_a_learner_that_keeps_dying(
    instance: Instance,
) -> None:
    instance.tell("BOOT_GPUS", "all")
    command = instance.programs / "aws"
    command.rename(instance.root / "aws")
    ln = shutil.which("ln")
    instance.add_program("dnf", f'echo "dnf $*" >>"$CALLS"; {ln} -s {instance.root}/aws {command}')
    (instance.programs / "dnf").chmod(0o755)
    assert instance.run()[0] == 0
    assert instance.calls("dnf") == ["dnf install -y -q awscli-2"]
    assert "--gpus=all" in instance.unit("nitro-learner.service").command
    instance.run(*instance.unit("nitro-give-up.service").command)
    reason = "learner: it keeps dying, and its log tells why"
    _check_end(instance, "learner", reason, is_counted=False)
