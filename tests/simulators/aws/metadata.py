"""The metadata that an EC2 instance finds about itself, version 2: nothing is told without a token."""

from __future__ import annotations

import secrets

from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

_TOKEN_PATH = "/latest/api/token"
_DATA_PATH = "/latest/meta-data/"


class _Handler(QuietHandler):
    def do_PUT(self) -> None:
        if self.path == _TOKEN_PATH and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
            self.answer(200, self.server.owner.token.encode())
        else:
            self.answer(400)

    def do_GET(self) -> None:
        values = self.server.owner.values
        name = self.path.removeprefix(_DATA_PATH)
        if self.headers.get("X-aws-ec2-metadata-token") != self.server.owner.token:
            self.answer(401)
        elif name in values:
            self.answer(200, values[name].encode())
        else:
            self.answer(404)


class InstanceMetadata(LoopbackServer):
    """The service, on a loopback port, as a context manager.

    Attributes:
        values: What there is below ``meta-data/``; may be changed at any time.
        token: What it wants to see.
        url: In the place of ``http://169.254.169.254``.
    """

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(_Handler)
        self.values, self.token = values, secrets.token_hex(28)
