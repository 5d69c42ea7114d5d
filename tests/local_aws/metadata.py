"""The metadata that an EC2 instance finds about itself, version 2: nothing is told without a token."""

from __future__ import annotations

import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TOKEN_PATH = "/latest/api/token"
_DATA_PATH = "/latest/meta-data/"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_PUT(self) -> None:
        if self.path == _TOKEN_PATH and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
            self._answer(200, self.server.metadata.token)
        else:
            self._answer(400)

    def do_GET(self) -> None:
        values = self.server.metadata.values
        name = self.path.removeprefix(_DATA_PATH)
        if self.headers.get("X-aws-ec2-metadata-token") != self.server.metadata.token:
            self._answer(401)
        elif name in values:
            self._answer(200, values[name])
        else:
            self._answer(404)

    def _answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


class InstanceMetadata:
    """The service, on a loopback port, as a context manager.

    Attributes:
        values: What there is below ``meta-data/``; may be changed at any time.
        token: What it wants to see.
        url: In the place of ``http://169.254.169.254``.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self.values, self.token = values, secrets.token_hex(28)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.metadata = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> InstanceMetadata:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
