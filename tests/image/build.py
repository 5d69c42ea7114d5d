"""Both images, built from their Dockerfiles, and the programs in them: ``python -m tests.image.build EXPERIMENT``.

Builds with buildah what the CDK would hand to Docker, without Docker, an AWS account or a registry. The base image is
made of Debian packages instead. The programs run as the images' user, on a file system that is read-only except for
/tmp, as in Lambda: the actor's check, the handlers of coordinator and learner function, and a round of the experiment.

Needs root on Debian with buildah and mmdebstrap, and the apt and pip settings of this machine, whose processor both
images are for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runtime.errors import ExperimentError, RunError
from runtime.experiment.loading import load_experiment, self_contained
from runtime.experiment.resolved import ResolvedExperiment
from stacks.constructs.actor_function import environment_arguments
from stacks.constructs.coordinator import HANDLER, UPDATE_HANDLER
from stacks.constructs.staging import actor_context, learner_context

TOOLS = ("buildah", "mmdebstrap")
_MIB = 2**20
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# The public image has no compiled standard library either, and the mirrors concern only this machine.
_AS_PUBLIC = 'find "$1"/usr/lib/python3* -name "*.pyc" -delete; rm -r "$1"/etc/apt/sources.list*'
_BASE_DOCKERFILE = """\
FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
# In a mount namespace that ends with it. /dev is bound without /dev/shm, which Lambda lacks too.
_READ_ONLY = """\
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --bind /dev {root}/dev
mount -t tmpfs -o size=512m,mode=1777 tmpfs {root}/tmp
cat > {root}/tmp/experiment.yaml
exec chroot --userspec={user} {root} env --chdir={folder} "$@"
"""


class ImageError(Exception):
    """The image, or a program in it, is wrong."""


@dataclass(frozen=True)
class Image:
    """A built image: its unpacked files, and its configuration in Docker's terms."""

    root: Path
    configuration: dict[str, Any]

    def run(self, *command: str, experiment: bytes = b"") -> str:
        """Returns the output of a program that runs as the image's user, in its folder and environment.

        Args:
            experiment: Contents of ``/tmp/experiment.yaml`` there.
        """
        script = _READ_ONLY.format(
            root=self.root,
            user=self.configuration["User"],
            folder=self.configuration["WorkingDir"],
        )
        words = [*self.configuration["Env"], "HOME=/tmp", *command]
        return _output(
            ["unshare", "--mount", "sh", "-e", "-c", script, "sh", *words], input=experiment
        )

    @property
    def mib(self) -> float:
        """Returns the size of its files in MiB."""
        files = (path for path in self.root.rglob("*") if not path.is_dir())
        return sum(path.lstat().st_size for path in files) / _MIB


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
        configuration, folders = pip_configuration()
        pip = folder / "pip.conf"
        pip.write_text(configuration)
        # The mirrors concern only this machine.
        self._mounted = [
            f"--volume={path}:{path}:ro"
            for path in ("/etc/apt", "/usr/share/keyrings", _CERTIFICATES, *folders)
        ] + [f"--volume={pip}:/etc/pip.conf:ro"]

    def make_base(self) -> None:
        """Builds the image ``base``: this machine's Debian release with Python."""
        context = self._folder / "base"
        context.mkdir()
        sources = _output(
            [
                "apt-get",
                "indextargets",
                "--format",
                "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
                "Identifier: Packages",
                "Origin: Debian",
            ]
        )
        _output(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                "--include=python3,python3-venv,ca-certificates",
                f"--customize-hook={_AS_PUBLIC}",
                sources.split()[2],
                str(context / "base.tar"),
                "-",
            ],
            input=sources.encode(),
        )
        (context / "Dockerfile").write_text(_BASE_DOCKERFILE)
        self._run("bud", "--quiet", "--tag", "base", str(context))
        (context / "base.tar").unlink()

    def build(self, name: str, context: Path, arguments: Mapping[str, str]) -> Image:
        """Builds and unpacks an image from the files that the CDK would upload.

        Raises:
            ImageError: The build fails.
        """
        began_s = time.perf_counter()
        given = {"BASE_IMAGE": "localhost/base", **arguments}
        self._run(
            "bud",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--layers=false",
            "--tag",
            name,
            *(f"--build-arg={key}={value}" for key, value in given.items()),
            *self._mounted,
            str(context),
        )
        seconds = time.perf_counter() - began_s
        facts = json.loads(self._run("inspect", "--type", "image", f"localhost/{name}"))["OCIv1"]
        container = self._run("from", "--pull-never", f"localhost/{name}").strip()
        image = Image(Path(self._run("mount", container).strip()), facts["config"])
        print(f"{name:<8} {image.mib:,.0f} MiB, built in {seconds:.0f} s", flush=True)
        return image

    def _run(self, *arguments: str) -> str:
        return _output(["buildah", *self._storage, *arguments])


def pip_configuration() -> tuple[str, list[str]]:
    """Returns pip's settings on this machine as one file, and the package folders that it names."""
    listed = _output([sys.executable, "-m", "pip", "config", "list"])
    settings = re.findall(r"^[^.\s]+\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    folders = {value for name, value in settings if name == "find-links" and Path(value).is_dir()}
    kept = {
        f"{name} = {value}"
        for name, value in settings
        if value in folders or not value.startswith(("/", "file:"))
    }
    return "\n".join(["[global]", *sorted(kept), f"cert = {_CERTIFICATES}", ""]), sorted(folders)


def show(path: Path, experiment: ResolvedExperiment, folder: Path) -> None:
    """Builds the images and runs their programs.

    Raises:
        ImageError: Something is wrong.
    """
    builder = Builder(folder)
    builder.make_base()
    environment = experiment.environment
    arguments = environment_arguments(environment)
    with actor_context(environment.package) as context:
        actor = builder.build("actor", context, arguments)
    print(actor.run("python", "-m", "lambda_actor.check", environment.id, "64").strip())
    with learner_context(environment.package) as context:
        learner = builder.build("learner", context, {"TORCH": "cpu", **arguments})
    modules = [handler.rpartition(".")[0] for handler in (HANDLER, UPDATE_HANDLER)]
    learner.run("python", "-c", f"import {', '.join(modules)}")
    words = "-m runtime train /tmp/experiment.yaml --out /tmp/run --set stop.max_rounds=1"
    printed = learner.run("python", *words.split(), experiment=self_contained(path))
    print("\n".join(line for line in printed.splitlines() if line.startswith("stopped by")))


def _output(command: Sequence[str], *, input: bytes = b"") -> str:
    """Returns what a program printed.

    Raises:
        ImageError: It failed; the text has what it printed.
    """
    done = subprocess.run(
        command, input=input, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    printed = done.stdout.decode(errors="replace")
    if done.returncode:
        raise ImageError(f"{' '.join(command[:3])} … failed:\n{printed}")
    return printed


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if an image is wrong, 2 if this machine cannot build it."""
    if os.getuid() or not all(map(shutil.which, TOOLS)):
        print(f"needs root, and on Debian: apt-get install {' '.join(TOOLS)}", file=sys.stderr)
        return 2
    try:
        path = Path(arguments[0])
        experiment = load_experiment(path).resolved(is_deployed=True)
        with TemporaryDirectory(prefix="images-") as folder:
            show(path, experiment, Path(folder))
    except (ImageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ExperimentError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
