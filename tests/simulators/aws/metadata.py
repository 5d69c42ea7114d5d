"""The instance metadata service of EC2, version 2: requests without a token get no answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

_TOKEN_PATH = "/latest/api/token"
_DATA_PATH = "/latest/meta-data/"
_CREDENTIALS = "iam/security-credentials/"
_ROLE = "learner"


class _Handler(QuietHandler):
    def do_PUT(self) -> None:
        if (
            self.path == _TOKEN_PATH
            and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
        ):
            self.answer(200, self.server.owner.token.encode())
        else:
            self.answer(400)

    def do_GET(self) -> None:
        values = self.server.owner.values
        name = self.path.removeprefix(_DATA_PATH)
        self.server.owner.asked.append(name)
        if self.headers.get("X-aws-ec2-metadata-token") != self.server.owner.token:
            self.answer(401)
        elif name in values:
            self.answer(200, values[name].encode())
        else:
            self.answer(404)


class InstanceMetadata(LoopbackServer):
    """The service on a loopback port, as a context manager.

    Attributes:
        values: Contents below ``meta-data/``. May change at any time.
        asked: Names of all values that were requested.
        token: The token that it expects.
        credentials: Credentials of the instance's role; also among `values`.
        url: Replaces ``http://169.254.169.254``.
    """

    def __init__(self, values: dict[str, str], session: Mapping[str, str] | None = None) -> None:
        """Args:
        session: Credentials of the instance's role, as STS returns them; None makes some that STS does not know.
        """
        super().__init__(_Handler)
        self.token, self.asked = secrets.token_hex(28), []
        given = session or {
            "AccessKeyId": "ASIA" + secrets.token_hex(8).upper(),
            "SecretAccessKey": secrets.token_urlsafe(30),
            "SessionToken": secrets.token_urlsafe(300),
        }
        self.credentials = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": given["AccessKeyId"],
            "SecretAccessKey": given["SecretAccessKey"],
            "Token": given["SessionToken"],
            "Expiration": "2099-01-01T00:00:00Z",
        }
        self.values = values | {
            _CREDENTIALS: _ROLE,
            _CREDENTIALS + _ROLE: json.dumps(self.credentials),
        }

    def forget(self) -> None:
        """Removes all values except the role's, so that the instance cannot find out what it is."""
        self.values = {
            name: value for name, value in self.values.items() if name.startswith(_CREDENTIALS)
        }
