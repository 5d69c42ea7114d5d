"""Both images, built from their Dockerfiles, and the programs in them: ``python -m tests.image.build EXPERIMENT``.

Builds with buildah what the CDK would hand to Docker, without Docker, an AWS account or a registry. The base image is
made of Debian packages instead. The image's own entry point starts the actors, as in Lambda: as an unprivileged user,
on a file system that is read-only except for /tmp. They serve the local Lambda endpoint, and reach a server on this
machine. In the learner image, its user trains the experiment for a round, with the image's own server beside its
actors. Coordinator and learner function are loaded there as in Lambda, and refuse an empty event.

Both images are for the processors that the experiment names; QEMU emulates other processors. tests/image/arm64.yaml
names arm64.

Needs root on Debian with the packages of `TOOLS` (and of `EMULATION`), and the apt and pip settings of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import boto3
import numpy as np
from botocore.config import Config

from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.frames import stack_frames, unpack_frames
from lambda_actor.inline import ACCEPTED
from lambda_actor.spaces import Spaces
from lambda_actor.trial import random_weights
from runtime.errors import ExperimentError, RunError
from runtime.experiment.instance_types import processor
from runtime.experiment.loading import load_experiment, self_contained
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet import ACTOR_VARIABLES
from stacks.constructs.actor_function import environment_arguments
from stacks.constructs.coordinator import ENTRYPOINT, HANDLER, UPDATE_HANDLER
from stacks.constructs.staging import actor_context, learner_context
from tests.conftest import TcpServer
from tests.helpers import PATIENCE_S
from tests.simulators.aws.lambda_endpoint import REGION, LambdaEndpoint

TOOLS = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
"""Programs, and the Debian packages that contain them."""
EMULATION = {"arch-test": "arch-test", "qemu-aarch64-static": "qemu-user-static"}
"""The same, for images of another processor."""
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
"""Debian's names, by the images' names."""
WARM_INVOCATIONS = 20
ABSENT_MODULE = "absent_simulator"
_MIB = 2**20
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": REGION,
}
_REFUSALS = {HANDLER: "NITRO_EXPERIMENT", UPDATE_HANDLER: "KeyError"}

# The public image has no compiled standard library either, and the mirrors concern only this machine.
_AS_PUBLIC = 'find "$1"/usr/lib/python3* -name "*.pyc" -delete; rm -r "$1"/etc/apt/sources.list*'
_BASE_DOCKERFILE = """\
FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
# Replaces the worker's interpreter, in a mount namespace that ends with it. /dev is bound without /dev/shm, which
# # Lambda lacks too. Every step is an exec, so that the endpoint's worker is the actor itself.
_WORKER = """\
#!/usr/bin/env -S unshare --mount sh -e
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --bind /dev {root}/dev
mount -t tmpfs -o size=512m,mode=1777 tmpfs {root}/tmp
exec chroot --userspec={user} {root} env --chdir={folder} {command}
"""
# If PyTorch's own index is unreachable: PyPI's newest build for arm64 without CUDA.
_TORCH_OF_PYPI = (
    "torch==2.10.0 --hash=sha256:3282d9febd1e4e476630a099692b44fdc214ee9bf8ee5377732d9d9dfe5712e4\n"
)
_SPACES = """
import dataclasses, json, sys
from lambda_actor.environments import make_environment
print(json.dumps(dataclasses.asdict(make_environment(*sys.argv[1:]).spaces)))
"""


class ImageError(Exception):
    """The image, or an actor in it, is wrong."""


@dataclass(frozen=True)
class Image:
    """A built image: its unpacked files, and its configuration in Docker's terms."""

    root: Path
    configuration: dict[str, Any]
    size_bytes: int

    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.configuration["Env"])

    def run(self, *command: str) -> str:
        """Returns the output of a program that runs as the image's user, in its folder and environment."""
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return _output(
            "chroot",
            f"--userspec={self.configuration['User']}",
            str(self.root),
            "env",
            f"--chdir={self.configuration['WorkingDir']}",
            *variables,
            "HOME=/tmp",
            *command,
        )

    def worker(self, path: Path) -> Path:
        """Writes a program to ``path`` that runs the image's command, whatever its arguments; returns it."""
        configuration = self.configuration
        path.write_text(
            _WORKER.format(
                root=self.root,
                user=configuration["User"],
                folder=configuration["WorkingDir"],
                command=" ".join(configuration["Entrypoint"] + configuration["Cmd"]),
            )
        )
        path.chmod(0o755)
        return path


class Builder:
    """buildah with its own storage in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage = [
            "--root",
            str(folder / "storage"),
            "--runroot",
            str(folder / "run"),
            "--storage-driver",
            "vfs",
        ]
        self._pip = folder / "pip.conf"
        configuration, folders = pip_configuration()
        self._pip.write_text(configuration)
        # The mirrors concern only this machine.
        self._mounted = [
            f"{path}:{path}:ro"
            for path in ("/etc/apt", "/usr/share/keyrings", _CERTIFICATES, *folders)
        ] + [f"{self._pip}:/etc/pip.conf:ro"]

    def make_base(self, architecture: str) -> None:
        """Builds the image ``base-ARCHITECTURE``: this machine's Debian release with Python."""
        context = self._folder / f"base-{architecture}"
        context.mkdir()
        sources = _output(
            "apt-get",
            "indextargets",
            "--format",
            "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Identifier: Packages",
            "Origin: Debian",
        )
        subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                f"--arch={architecture}",
                "--variant=minbase",
                "--include=python3,python3-venv,ca-certificates",
                f"--customize-hook={_AS_PUBLIC}",
                sources.split()[2],
                str(context / "base.tar"),
                "-",
            ],
            input=sources,
            text=True,
            check=True,
        )
        (context / "Dockerfile").write_text(_BASE_DOCKERFILE)
        self._run("bud", "--quiet", "--arch", architecture, "--tag", context.name, str(context))
        (context / "base.tar").unlink()

    def build(self, name: str, context: Path, architecture: str, **arguments: str) -> str:
        """Builds the image ``name`` from the files that the CDK would upload; returns the output.

        Raises:
            ImageError: The build fails.
        """
        base = {"BASE_IMAGE": f"localhost/base-{architecture}"}
        given = [f"--build-arg={key}={value}" for key, value in {**base, **arguments}.items()]
        volumes = [f"--volume={mounted}" for mounted in self._mounted]
        return self._run(
            "bud",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--layers=false",
            "--tag",
            name,
            "--arch",
            architecture,
            *given,
            *volumes,
            str(context),
        )

    def build_actor(self, name: str, experiment: ResolvedExperiment) -> str:
        with actor_context(experiment.environment.package) as context:
            return self.build(
                name,
                context,
                _actor_architecture(experiment),
                **environment_arguments(experiment.environment),
            )

    def build_learner(self, name: str, experiment: ResolvedExperiment) -> str:
        with learner_context(experiment.environment.package) as context:
            torch = context / "requirements-cpu.txt"
            if _learner_architecture(experiment) == "arm64" and not _can_be_had(torch):
                torch.write_text(_TORCH_OF_PYPI)
            return self.build(
                name,
                context,
                _learner_architecture(experiment),
                TORCH="cpu",
                **environment_arguments(experiment.environment),
            )

    def unpack(self, name: str) -> Image:
        facts = json.loads(self._run("inspect", "--type", "image", f"localhost/{name}"))["OCIv1"]
        container = self._run(
            "from", "--pull-never", "--arch", facts["architecture"], f"localhost/{name}"
        ).strip()
        root = Path(self._run("mount", container).strip())
        return Image(root, facts["config"], _bytes_in(root))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["buildah", *self._storage, *arguments],
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise ImageError(f"buildah {arguments[0]} failed:\n{done.stdout}")
        return done.stdout


def pip_configuration() -> tuple[str, list[str]]:
    """Returns pip's settings on this machine as one file, and the package folders that it names."""
    listed = _output(sys.executable, "-m", "pip", "config", "list")
    settings = re.findall(r"^[^.\s]+\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    folders = {value for name, value in settings if name == "find-links" and Path(value).is_dir()}
    kept = {
        f"{name} = {value}"
        for name, value in settings
        if value in folders or not value.startswith(("/", "file:"))
    }
    return "\n".join(["[global]", *sorted(kept), f"cert = {_CERTIFICATES}", ""]), sorted(folders)


class Actors:
    """The learner's side: invokes actors of an image and collects their results."""

    def __init__(
        self, image: Image, experiment: ResolvedExperiment, folder: Path, stack: ExitStack
    ) -> None:
        """Args:
        stack: Ends everything that was started.
        """
        server = TcpServer(folder)
        server.start()
        stack.callback(server.stop)
        url = f"redis://127.0.0.1:{server.port}"
        stack.enter_context(mock.patch.dict(os.environ, _SETTINGS))
        endpoint = stack.enter_context(LambdaEndpoint())
        self._function = endpoint.add_function(
            "actors",
            command=[str(image.worker(folder / "worker"))],
            memory_mib=experiment.actor.memory_mib,
            timeout_s=PATIENCE_S,
            environment={
                **image.environment(),
                **ACTOR_VARIABLES,
                **_SETTINGS,
                "LAMBDA_TASK_ROOT": image.configuration["WorkingDir"],
            },
        )
        self._client = boto3.client(
            "lambda",
            endpoint_url=endpoint.url,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE_S),
        )
        self._experiment, self._event = experiment, _event(experiment, url)
        self._spaces = _spaces(image, experiment)
        self._cache = stack.enter_context(closing(TrajectoryCache(url, self._event["run_id"])))
        self._cache.publish_weights(0, random_weights(self._spaces))

    def invoke(self, slot: int) -> float:
        """Returns the seconds of one actor, from the call to its answer.

        Raises:
            ImageError: It failed, or its trajectory is wrong.
        """
        invocation_id = f"image-{slot}"
        self._cache.expect([invocation_id])
        seconds, response = _timed(
            self._answer, {**self._event, "invocation_id": invocation_id, "slot": slot}
        )
        if response.get("status") != ACCEPTED:
            raise ImageError(f"the actor failed: {response}")
        self._check(invocation_id, self._cache.take(invocation_id))
        return seconds

    def _answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(
            self._client.invoke(FunctionName=self._function, Payload=json.dumps(event))[
                "Payload"
            ].read()
        )

    def _check(self, invocation_id: str, taken: bytes | None) -> None:
        if taken is None:
            raise ImageError("the actor's trajectory is not in the cache")
        spaces, steps = self._spaces, self._experiment.actor.fragment_steps
        fields = wire.decode(
            taken, wire.Kind.FRAME_TRAJECTORY if spaces.is_pixels else wire.Kind.TRAJECTORY
        )
        if spaces.is_pixels:
            observed = stack_frames(unpack_frames(fields), fields["observation_frames"])
        else:
            observed = fields["observations"]
        shapes = observed.shape, fields["actions"].shape, fields["rewards"].shape
        action_shape = () if spaces.is_discrete else (spaces.action_size,)
        if shapes != ((steps, *spaces.observation_shape), (steps, *action_shape), (steps,)):
            raise ImageError(
                f"the trajectory's arrays are of other shapes than asked for: {shapes}"
            )
        if (found := wire.field_text(fields["invocation_id"])) != invocation_id:
            raise ImageError(f"the trajectory of {found} came instead of {invocation_id}'s")
        if not np.isfinite(fields["log_probs"]).all() or not fields["actions"].any():
            raise ImageError("the trajectory's actions are no policy's")


def show(path: Path, experiment: ResolvedExperiment, folder: Path) -> None:
    """Builds the images and runs their programs; prints measurements.

    Raises:
        ImageError: Something is wrong.
    """
    builder = Builder(folder)
    for architecture in sorted(
        {_actor_architecture(experiment), _learner_architecture(experiment)}
    ):
        base_s, _ = _timed(builder.make_base, architecture)
        size_bytes = builder.unpack(f"base-{architecture}").size_bytes
        print(
            f"base image    {size_bytes / _MIB:,.0f} MiB, {base_s:.1f} s, {architecture}",
            flush=True,
        )
    build_s, printed = _timed(builder.build_actor, "actor", experiment)
    image = builder.unpack("actor")
    print(f"actor image   {image.size_bytes / _MIB:,.0f} MiB with it, {build_s:.1f} s")
    print(f"its check     {_line(printed, experiment.environment.id)}", flush=True)
    with ExitStack() as stack:
        actors = Actors(image, experiment, folder, stack)
        print(f"cold actor    {actors.invoke(0):.3f} s for {experiment.actor.fragment_steps} steps")
        warm_s = [actors.invoke(slot) for slot in range(1, 1 + WARM_INVOCATIONS)]
    print(f"warm actors   {median(warm_s):.4f} s, median of {WARM_INVOCATIONS}", flush=True)
    print(f"without the environment's package: {_refusal(builder, experiment)}", flush=True)
    build_s, _ = _timed(builder.build_learner, "learner", experiment)
    image = builder.unpack("learner")
    print(f"learner image {image.size_bytes / _MIB:,.0f} MiB with it, {build_s:.1f} s")
    for handler, refusal in _REFUSALS.items():
        answer_s, answer = _timed(_as_function, image, handler, experiment, folder)
        print(
            f"as function   {_line(answer, refusal)}, {answer_s:.1f} s from a cold start",
            flush=True,
        )
    (image.root / "tmp" / "experiment.yaml").write_bytes(self_contained(path))
    trained_s, printed = _timed(
        image.run,
        "python",
        "-m",
        "runtime",
        "train",
        "/tmp/experiment.yaml",
        "--out",
        "/tmp/run",
        "--set",
        "stop.max_rounds=1",
    )
    print(f"its training  {_line(printed, 'stopped')}, {trained_s:.1f} s with all that it starts")


def _as_function(image: Image, handler: str, experiment: ResolvedExperiment, folder: Path) -> str:
    """Returns the answer of a function of the learner image to an empty event."""
    function = replace(
        image, configuration={**image.configuration, "Entrypoint": ENTRYPOINT, "Cmd": [handler]}
    )
    with LambdaEndpoint() as endpoint:
        name = endpoint.add_function(
            "learner",
            command=[str(function.worker(folder / "function"))],
            timeout_s=PATIENCE_S,
            memory_mib=experiment.learner.function_memory_mib,
            environment={
                **image.environment(),
                "LAMBDA_TASK_ROOT": image.configuration["WorkingDir"],
            },
        )
        with closing(
            boto3.client(
                "lambda",
                endpoint_url=endpoint.url,
                region_name=REGION,
                aws_access_key_id="local",
                aws_secret_access_key="local",
                config=Config(read_timeout=PATIENCE_S),
            )
        ) as client:
            answer = client.invoke(
                FunctionName=name, Payload=b'{"started_at": "2026-01-01T00:00:00Z"}'
            )
            found = json.loads(answer["Payload"].read())
            return f"{found.get('errorType')}: {found.get('errorMessage')}"


def _refusal(builder: Builder, experiment: ResolvedExperiment) -> str:
    """Returns the build's message if the environment's module is missing from the package.

    Raises:
        ImageError: It builds, or fails without naming the module.
    """
    section = experiment.environment.model_copy(update={"id": f"{ABSENT_MODULE}:make"})
    try:
        builder.build_actor("absent", experiment.model_copy(update={"environment": section}))
    except ImageError as error:
        return _line(str(error), "an actor cannot act", ABSENT_MODULE)
    raise ImageError("an image without the environment's module builds")


def _event(experiment: ResolvedExperiment, url: str) -> dict[str, Any]:
    return {
        "run_id": "image",
        "cache_url": url,
        "cache_credential": "",
        "cache_ttl_s": 600,
        "stop_digest": "",
        "environment_id": experiment.environment.id,
        "preprocessing": experiment.environment.preprocessing,
        "truncate_at_fragment": experiment.environment.truncate_at_fragment,
        "fragment_steps": experiment.actor.fragment_steps,
        "policy_version": 0,
        "seed": experiment.seed,
        "round_index": 1,
        "episode_id": "",
    }


def _actor_architecture(experiment: ResolvedExperiment) -> str:
    return ARCHITECTURES[experiment.actor.architecture]


def _learner_architecture(experiment: ResolvedExperiment) -> str:
    return ARCHITECTURES[processor(experiment.learner.instance_types[0])]


def _own_architecture() -> str:
    return _output("dpkg", "--print-architecture").strip()


def _can_be_had(requirements: Path) -> bool:
    """Whether pip finds them here for arm64."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--target",
        "none",
        "--retries",
        "0",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--platform",
        "manylinux_2_28_aarch64",
        "--python-version",
        "3.11",
        "--requirement",
        str(requirements),
    ]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _spaces(image: Image, experiment: ResolvedExperiment) -> Spaces:
    """Returns the environment's spaces, read inside the image because it need not be installed here."""
    printed = image.run(
        "python", "-c", _SPACES, experiment.environment.id, experiment.environment.preprocessing
    )
    fields = json.loads(printed.splitlines()[-1])
    return Spaces(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
    )


def _line(text: str, *words: str) -> str:
    """Returns the last line that contains all these words. Raises ImageError if there is none."""
    for line in reversed(text.splitlines()):
        if all(word in line for word in words) and not line.startswith(("STEP", "Error: ")):
            return line
    raise ImageError(f"the build says nothing of {' and '.join(words)}:\n{text}")


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Returns the seconds that ``work`` took, and its result."""
    started_s = time.perf_counter()
    returned = work(*arguments)
    return time.perf_counter() - started_s, returned


def _what_is_missing(architectures: set[str]) -> str:
    """Returns the preparations that this machine still needs before it can build such images; empty if none."""
    foreign = architectures - {_own_architecture()} if shutil.which("dpkg") else set()
    tools = {**TOOLS, **(EMULATION if foreign else {})}
    missing = [package for program, package in tools.items() if shutil.which(program) is None]
    if os.getuid():
        return "the image is built as root"
    if missing:
        return f"missing here: apt-get install {' '.join(missing)}"
    if any(
        subprocess.run(["arch-test", one], check=False, stdout=subprocess.DEVNULL).returncode
        for one in foreign
    ):
        return (
            "this machine's kernel runs no programs of another processor yet: mount -t binfmt_misc none "
            "/proc/sys/fs/binfmt_misc; /usr/lib/systemd/systemd-binfmt qemu-aarch64.conf"
        )
    return ""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if the image is wrong, 2 if this machine cannot build it."""
    try:
        path = Path(arguments[0])
        experiment = load_experiment(path).resolved(is_deployed=True)
        if problem := _what_is_missing(
            {_actor_architecture(experiment), _learner_architecture(experiment)}
        ):
            print(problem, file=sys.stderr)
            return 2
        with TemporaryDirectory(prefix="images-") as folder:
            show(path, experiment, Path(folder))
    except (ImageError, RunError, subprocess.CalledProcessError) as error:
        print(f"error: {error}\n{getattr(error, 'stdout', None) or ''}", file=sys.stderr)
        return 2 if isinstance(error, ExperimentError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
