"""Docker's command line, as far as a learner's instance uses it: ``python -m tests.simulators.docker WORD …``.

An image is the folder that it would be built from: ``$IMAGES/asset.TAG``, as the CDK stages it. Its container is a
process of this machine that starts in that folder. Mounted files remain where they are.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ENTRY_VARIABLE = "CONTAINER_MODULE"
"""Module that runs instead of the one that the image's entry point names."""
GPUS_VARIABLE = "MACHINE_GPUS"
"""Number of the machine's GPUs, by default none. A container that asks for what is not there is refused."""
DIGEST = "sha256:" + 64 * "d"
_NO_IMAGE, _REFUSED = 125, 1


def main(words: Sequence[str]) -> int:
    """Returns the exit code, unless a container replaces this process."""
    verb = words[0]
    if verb == "login" and not sys.stdin.read():
        return _REFUSED
    if verb == "pull" and not _folder(words[-1]).is_dir():
        print("manifest unknown", file=sys.stderr)
        return _REFUSED
    if words[:2] == ["image", "inspect"]:
        print(f"{words[-1].rpartition(':')[0]}@{DIGEST}")
    if verb == "run":
        return _run(words[1:])
    return 0


def _run(words: Sequence[str]) -> int:
    count = next(index for index, word in enumerate(words) if not word.startswith("-"))
    folder, environment = _folder(words[count]), dict(os.environ)
    if not folder.is_dir():
        return _NO_IMAGE
    if (
        any(word.startswith("--gpus=") for word in words[:count])
        and environment.get(GPUS_VARIABLE, "0") == "0"
    ):
        print('could not select device driver "" with capabilities: [[gpu]]', file=sys.stderr)
        return _NO_IMAGE
    for name, _, value in (word.partition("=") for word in words[:count]):
        lines = (
            Path(value).read_text().splitlines()
            if name == "--env-file"
            else [value] * (name == "--env")
        )
        environment |= dict(line.partition("=")[::2] for line in lines)
    (entry,) = re.findall(r"(?m)^ENTRYPOINT (.*)$", (folder / "Dockerfile").read_text())
    _, option, module = json.loads(entry)
    os.chdir(folder)
    command = [sys.executable, option, environment.get(ENTRY_VARIABLE, module), *words[count + 1 :]]
    return os.execve(sys.executable, command, environment)


def _folder(image: str) -> Path:
    return Path(os.environ["IMAGES"]) / f"asset.{image.rpartition(':')[2]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
