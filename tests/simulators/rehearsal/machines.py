"""Plays EC2, cloud-init and systemd for the learner's instances in moto. Each instance is a folder and processes here.

The user data runs as the instance's root would run it. Its unit is started, restarted and ended by systemd's rules, as
far as the unit uses them. Programs that cannot run here (systemctl, shutdown and the like) are stubs that log their
calls; `Machine.step` acts on them.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime.aws.learner.instance import ENDPOINT_VARIABLE
from runtime.experiment.instance_types import has_gpu
from tests.helpers import ROOT
from tests.simulators import aws_command
from tests.simulators.aws.metadata import InstanceMetadata
from tests.simulators.aws.moto_server import MotoServer, as_variables
from tests.simulators.docker import ENTRY_VARIABLE, GPUS_VARIABLE
from tests.simulators.rehearsal.clock import PATH_VARIABLE, Clock

Tell = Callable[..., None]
"""``tell(who, what, **numbers)``."""

TOOLS = ("bash", "cat", "env", "grep", "mkdir", "sh", "tail", "timeout")
"""Programs that the user data may expect of an image, in addition to those below."""
_STUBS = ("systemctl", "shutdown", "chown", "sleep")
_STUB = """\
#!/bin/sh
printf '%s\\n' "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in $FAILING) echo "${0##*/}: refused" >&2; exit 254 ;; esac
"""
"""Fails if the call matches the pattern $FAILING."""
_DATE = f"""\
#!/bin/sh
read -r wall_s clock_s rate <"${PATH_VARIABLE}"
now_s=$({shutil.which("date")} +%s.%N)
case " $* " in
*" -d "*) ;;
*) set -- -d "@$({shutil.which("awk")} "BEGIN {{ printf \\"%d\\", $clock_s + ($now_s - $wall_s) * $rate }}")" "$@" ;;
esac
exec {shutil.which("date")} "$@"
"""
_STARTS_MAX, _START_WINDOW_S, _STOP_S = 5, 3600.0, 90.0


@dataclass(frozen=True)
class Unit:
    """A service as its unit file describes it.

    Attributes:
        settings: The file's settings; the last of each name counts.
    """

    settings: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Unit:
        return cls(
            dict(line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line)
        )

    @property
    def command(self) -> list[str]:
        return shlex.split(self.settings["ExecStart"])

    def codes(self, name: str) -> set[int]:
        return {int(code) for code in self.settings.get(name, "").split()}

    def is_restarted_after(self, code: int) -> bool:
        return code in self.codes("RestartForceExitStatus")

    def has_failed_with(self, code: int) -> bool:
        return code != 0 and code not in self.codes("SuccessExitStatus")


@dataclass
class _Service:
    """A unit's process and its start time."""

    unit: Unit
    process: subprocess.Popen | None = None
    restart_at_s: float | None = None
    stop_until_s: float | None = None
    starts_s: list[float] = field(default_factory=list)


class Machine:
    """One instance.

    Attributes:
        id: Its id.
        group: Name of its Auto Scaling group.
        root: Replaces the root folder for the user data.
        is_off: Whether it has shut itself down.
    """

    def __init__(
        self,
        directory: Path,
        instance: Mapping[str, Any],
        user_data: str,
        *,
        address: str,
        variables: Mapping[str, str],
        session: Mapping[str, str],
        clock: Clock,
        tell: Tell,
        stack: ExitStack,
    ) -> None:
        """Args:
        address: An address of its own on this machine.
        session: Credentials of its role.
        variables: Environment variables with which its programs reach AWS.
        """
        self.id, self.root, self.is_off = instance["InstanceId"], directory / "root", False
        self.group = _tag(instance, "aws:autoscaling:groupName")
        self.began_at_s, self.learner_began_s = clock.now(), None
        self._clock = clock
        self._tell, self._calls, self._programs = tell, directory / "calls", directory / "bin"
        metadata = stack.enter_context(
            InstanceMetadata(
                {
                    "instance-id": self.id,
                    "instance-type": instance["InstanceType"],
                    "ami-id": instance["ImageId"],
                    "local-ipv4": address,
                },
                session,
            )
        )
        install(directory, self.id)
        script = directory / "part-001"
        script.write_text(user_data)
        self._variables = {
            "PATH": str(self._programs),
            "HOME": str(self.root),
            "LANG": "C.UTF-8",
            "CALLS": str(self._calls),
            "FAILING": "",
            "PYTHONPATH": str(ROOT),
            "BOOT_ROOT": str(self.root),
            ENDPOINT_VARIABLE: metadata.url,
            # The learner uses the rehearsal's clock.
            ENTRY_VARIABLE: "tests.simulators.rehearsal.learner",
            **variables,
            **as_variables(session),
            GPUS_VARIABLE: str(int(has_gpu(instance["InstanceType"]))),
        }
        self._services: dict[str, _Service] = {}
        self._timers: dict[str, float] = {}
        self._calls_read = 0
        with self.log.open("ab") as output:
            self._boot: subprocess.Popen | None = self._run(["bash", str(script)], output=output)
        self._others: list[subprocess.Popen] = []

    @property
    def learner(self) -> subprocess.Popen | None:
        """The learner's process, if it is alive."""
        service = self._services.get("nitro-learner.service")
        return service.process if service else None

    @property
    def is_busy(self) -> bool:
        """Whether it boots or ends, which takes as much time here as it does in AWS."""
        return (
            self._boot is not None
            or bool(self._others)
            or any(one.stop_until_s is not None for one in self._services.values())
        )

    @property
    def run_directory(self) -> Path:
        return self.root / "var/lib/nitro/run"

    @property
    def log(self) -> Path:
        """Of cloud-init's, its boot's and its learner's output."""
        return self.root / "var/log/cloud-init-output.log"

    def step(self) -> None:
        """Does everything that is due now."""
        for call in self._new_calls():
            self._do(call)
        if self._boot is not None and self._boot.poll() is not None:
            self._boot = None
        self._others = [one for one in self._others if one.poll() is None]
        for unit, at_s in list(self._timers.items()):
            if self._clock.now() >= at_s:
                del self._timers[unit]
                self._start(unit.replace(".timer", ".service"))
        for name, service in list(self._services.items()):
            self._see_to(name, service)

    def stop(self) -> None:
        """Ends it as AWS ends an instance: no timer, SIGTERM, and SIGKILL after the unit's stop timeout."""
        self._timers.clear()
        if self._boot is not None:
            self._boot.kill()
        for service in self._services.values():
            service.restart_at_s = None
            if service.process is not None and service.stop_until_s is None:
                service.process.send_signal(signal.SIGTERM)
                service.stop_until_s = self._clock.now() + _STOP_S

    def kill(self) -> None:
        """Ends all its processes at once."""
        self._timers.clear()
        for process in [
            self._boot,
            *self._others,
            *(one.process for one in self._services.values()),
        ]:
            if process is not None and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for service in self._services.values():
            service.process = service.restart_at_s = service.stop_until_s = None
        self._boot, self._others = None, []

    @property
    def is_running(self) -> bool:
        """Whether any of its processes is alive."""
        return any(
            process is not None and process.poll() is None
            for process in [self._boot, *(one.process for one in self._services.values())]
        )

    # Effects of programs that cannot run here

    def _do(self, call: str) -> None:
        program, *arguments = call.split()
        if program == "shutdown":
            self.is_off |= arguments[-1] == "now"
        elif program == "docker" and arguments[0] == "run":
            has_gpus = any(word.startswith("--gpus=") for word in arguments)
            self._tell(
                "instance", f"Docker starts the learner {'with' if has_gpus else 'without'} a GPU"
            )
        elif (
            program == "systemctl"
            and arguments[:2] == ["enable", "--now"]
            and arguments[2].startswith("nitro-")
        ):
            name = arguments[2]
            if name.endswith(".timer"):
                unit = Unit.read(self.root / "etc/systemd/system" / name)
                self._timers[name] = (
                    datetime.strptime(unit.settings["OnCalendar"], "%Y-%m-%d %H:%M:%S UTC")
                    .replace(tzinfo=UTC)
                    .timestamp()
                )
            else:
                self._start(name)

    def _new_calls(self) -> Iterator[str]:
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls_read, new = len(calls), calls[self._calls_read :]
        yield from new

    def _start(self, name: str) -> None:
        unit = Unit.read(self.root / "etc/systemd/system" / name)
        if unit.settings.get("Type") == "oneshot":
            self._tell("instance", f"systemd starts {name}")
            self._others.append(self._run(unit.command))
            return
        service = self._services.setdefault(name, _Service(unit))
        now_s = self._clock.now()
        service.starts_s = [at_s for at_s in service.starts_s if now_s - at_s < _START_WINDOW_S] + [
            now_s
        ]
        service.restart_at_s = None
        if len(service.starts_s) > _STARTS_MAX:
            self._fail(unit)
            return
        self.learner_began_s = time.time()
        with self.log.open("ab") as output:
            service.process = self._run(unit.command, output=output)
        self._tell(
            "instance",
            f"systemd starts {name}"
            + (
                f" again ({len(service.starts_s)} of {_STARTS_MAX})"
                if len(service.starts_s) > 1
                else ""
            ),
        )

    def _see_to(self, name: str, service: _Service) -> None:
        if service.restart_at_s is not None and self._clock.now() >= service.restart_at_s:
            self._start(name)
        process = service.process
        if process is None:
            return
        if process.poll() is None:
            if service.stop_until_s is not None and self._clock.now() >= service.stop_until_s:
                os.killpg(process.pid, signal.SIGKILL)
            return
        code, service.process = process.returncode, None
        # Here the process is the container itself. Docker's own exit code tells which signal ended a container.
        code = code if code >= 0 else 128 - code
        was_stopped, service.stop_until_s = service.stop_until_s is not None, None
        self._tell("instance", f"{name} ended: exit code {code}")
        if was_stopped:
            return
        post = shlex.split(
            service.unit.settings.get("ExecStopPost", "").removeprefix("+").replace("$$", "$")
        )
        if post:
            self._others.append(self._run(post, EXIT_STATUS=str(code)))
        if service.unit.is_restarted_after(code):
            service.restart_at_s = self._clock.now() + float(service.unit.settings["RestartSec"])
        elif service.unit.has_failed_with(code):
            self._fail(service.unit)

    def _fail(self, unit: Unit) -> None:
        self._start(unit.settings["OnFailure"])

    def _run(
        self, command: list[str], *, output: Any = subprocess.DEVNULL, **variables: str
    ) -> subprocess.Popen:
        return subprocess.Popen(
            [self._programs / Path(command[0]).name, *command[1:]],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=self._variables | variables,
            start_new_session=True,
        )


def install(directory: Path, instance_id: str) -> None:
    """Makes a new instance's folders ``bin``, for PATH, and ``root``, as the user data finds them."""
    root, programs = directory / "root", directory / "bin"
    for folder in ("etc/systemd/system", "var/lib/cloud/data", "var/log"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/cloud/data/instance-id").write_text(f"{instance_id}\n")
    programs.mkdir()
    texts = {name: f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n' for name in TOOLS}
    texts |= {
        "date": _DATE,
        **dict.fromkeys(_STUBS, _STUB),
        "aws": _STUB.replace("sh", "bash", 1) + aws_command.program(),
        "docker": f'{_STUB}exec {sys.executable} -m tests.simulators.docker "$@"\n',
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


class Machines:
    """The learners' instances of all groups in moto.

    Attributes:
        all: Every instance so far, by id.
    """

    def __init__(
        self,
        directory: Path,
        moto: MotoServer,
        clock: Clock,
        tell: Tell,
        variables: Mapping[str, str],
        session_of: Callable[[str, str], Mapping[str, str]],
    ) -> None:
        """Args:
        session_of: Returns the credentials of an instance's role, by its id and its group's name.
        variables: Environment variables with which an instance's programs reach AWS.
        """
        self.all: dict[str, Machine] = {}
        self._variables, self._session_of = variables, session_of
        self._directory, self._moto, self._clock, self._tell = directory, moto, clock, tell
        self._stack = ExitStack()
        directory.mkdir()
        self._running: set[str] = set()

    def step(self) -> None:
        """Launches, steps and ends the instances that are due now."""
        running = {instance["InstanceId"]: instance for instance in self._described()}
        for instance_id, instance in running.items():
            if instance_id not in self._running:
                self._launch(instance)
        for gone in self._running - running.keys():
            self._tell("instance", f"{gone} is ended", instance=gone, state="ended")
            if gone in self.all:
                self.all[gone].stop()
        self._running = set(running)
        for machine in self.all.values():
            machine.step()
            if machine.is_off and machine.id in self._running:
                self._tell(
                    "instance",
                    f"{machine.id} shuts itself down",
                    instance=machine.id,
                    state="ended",
                )
                self._running.discard(machine.id)
                machine.kill()
                self._moto.client("ec2").terminate_instances(InstanceIds=[machine.id])

    @property
    def alive(self) -> list[Machine]:
        """The running instances."""
        return [machine for machine in self.all.values() if machine.id in self._running]

    def close(self) -> None:
        for machine in self.all.values():
            machine.kill()
        self._stack.close()

    def _described(self) -> list[dict[str, Any]]:
        found = self._moto.client("ec2").describe_instances(
            Filters=[
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
                {"Name": "tag-key", "Values": ["aws:autoscaling:groupName"]},
            ]
        )
        return [
            instance
            for reservation in found["Reservations"]
            for instance in reservation["Instances"]
        ]

    def _launch(self, instance: Mapping[str, Any]) -> None:
        instance_id = instance["InstanceId"]
        self._tell(
            "instance",
            f"{instance_id} ({instance['InstanceType']}) is launched",
            instance=instance_id,
            state="launched",
            instance_type=instance["InstanceType"],
        )
        user_data = self._moto.client("ec2").describe_instance_attribute(
            InstanceId=instance_id, Attribute="userData"
        )["UserData"]["Value"]
        self.all[instance_id] = Machine(
            self._directory / instance_id,
            instance,
            base64.b64decode(user_data).decode(),
            address=_loopback_address(len(self.all)),
            variables=self._variables,
            clock=self._clock,
            tell=self._tell,
            stack=self._stack,
            session=self._session_of(instance_id, _tag(instance, "aws:autoscaling:groupName")),
        )


def _loopback_address(number: int) -> str:
    """Returns an address of its own, so that two rehearsals do not collide on the cache's port."""
    return f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}.{number + 1}"


def _tag(instance: Mapping[str, Any], key: str) -> str:
    return next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == key), "")
