"""A moto server in its own process, with the additions of `tests.simulators.aws.moto_types`.

``python -m tests.simulators.aws.moto_server PORT`` serves on that port of this machine (0 for any free one), prints its
address on the first line, and ends when standard input closes. Standard input is a pipe that only its parent holds, so
the server ends however the parent ends.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3

ROOT = Path(__file__).resolve().parents[3]
REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
}
"""Environment variables with which any tool may call the server, in addition to AWS_ENDPOINT_URL."""


def as_variables(session: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for a role's credentials from STS."""
    return {
        "AWS_ACCESS_KEY_ID": session["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": session["SecretAccessKey"],
        "AWS_SESSION_TOKEN": session["SessionToken"],
    }


class MotoServer:
    """A server that runs for the length of a ``with`` block.

    Attributes:
        url: Value for AWS_ENDPOINT_URL. It says localhost because the CDK's command line requires that for its buckets.
    """

    def __init__(self, port: int = 0, **environment: str) -> None:
        """Args:
        port: 0 = any free one.
        environment: Additional environment variables of the server, such as the quotas of `moto_types`.
        """
        self._port = port
        self._environment = environment
        self.url = ""
        self._session = boto3.Session(
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> MotoServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.aws.moto_server", str(self._port)],
            cwd=ROOT,
            text=True,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__()
            raise RuntimeError("the moto server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()
        self._process.communicate()

    def client(self, service: str) -> Any:
        """Returns a plain boto3 client for the server; the same one for each service."""
        if service not in self._clients:
            self._clients[service] = self._session.client(service, endpoint_url=self.url)
        return self._clients[service]

    def reset(self) -> None:
        """Deletes every resource."""
        with urlopen(Request(f"{self.url}/moto-api/reset", method="POST")) as response:
            response.read()


def main(port: int) -> None:
    """Serves until standard input ends."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    import tests.simulators.aws.moto_types  # noqa: F401
    from tests.simulators.aws.free_tier import before
    from tests.simulators.aws.gate import Gate

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(
        "127.0.0.1",
        port,
        Gate(before(DomainDispatcherApplication(create_backend_app))),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ["MOTO_PORT"] = str(server.server_port)
    print(f"http://localhost:{server.server_port}", flush=True)
    server.serve_forever()


def _die_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
