"""AWS Lambda in the rehearsal: moto holds functions and limits. The local endpoint runs and bills them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from tests.simulators.aws.gate import ONLY_JUDGE
from tests.simulators.aws.lambda_endpoint import LambdaEndpoint, LambdaError
from tests.simulators.aws.loopback import LoopbackServer, PassingHandler

_INVOCATION = re.compile(r"/2015-03-31/functions/([^/]+)/invocations")
_BILLED = re.compile(r"Billed Duration: (\d+) ms\tMemory Size: (\d+) MB")
_PASSED_ON = (
    "content-type",
    "x-amzn-requestid",
    "x-amzn-errortype",
    "x-amz-function-error",
    "x-amz-log-result",
    "x-amz-executed-version",
)


class MeteredEndpoint(LambdaEndpoint):
    """Adds up the billed time in its REPORT lines, even if the client has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.bills: list[tuple[str, float]] = []
        """Function and GiB-seconds of every invocation that ended."""

    def _run(self, function: Any, invocation: Any) -> None:
        try:
            super()._run(function, invocation)
        finally:
            found = _BILLED.search(invocation.log[-1].decode()) if invocation.log else None
            billed_s, mib = (
                (int(found[1]) / 1000, int(found[2]))
                if found
                else (function.settings.timeout_s, function.settings.memory_mib)
            )
            self.bills.append((function.settings.name, billed_s * mib / 1024))


def _name(path: str) -> str:
    """Returns the function's name from its name or ARN in a request's path."""
    return (
        path.replace("%3A", ":").partition(":function:")[2].partition(":")[0]
        or path.partition("%3A")[0]
    )


class _Handler(PassingHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        # A learner that is killed closes its connection at any point.
        with suppress(ConnectionError):
            super().handle()

    def pass_on(self, body: bytes) -> None:
        invocation = _INVOCATION.match(self.path)
        url = self.server.owner.moto_url
        if invocation:
            answer = self._asked(self.server.owner.moto_url, b"", **{ONLY_JUDGE: "yes"})
            if answer is None or answer[0] >= 400:
                self._send(*(answer or (500, {}, b"")))
                return
            self.server.owner.prepare(_name(invocation[1]))
            refused = self.server.owner.refusal(invocation[1])
            if refused:
                self._send(
                    refused.status,
                    {"x-amzn-ErrorType": refused.code},
                    json.dumps(refused.body).encode(),
                )
                return
            url = self.server.owner.endpoint_url
        answer = self._asked(url, body)
        if answer is None:
            # Like the endpoint: the connection closes without an answer.
            self.close_connection = True
        else:
            self._send(*answer)

    def _asked(
        self, url: str, body: bytes, **headers: str
    ) -> tuple[int, dict[str, str], bytes] | None:
        """Works like `ask`, but keeps only the headers that are passed on. Returns None if there is no answer."""
        try:
            status, found, content = self.ask(
                url, body, **{"Content-Length": str(len(body)), **headers}
            )
        except (OSError, ValueError):
            return None
        return (
            status,
            {name: value for name, value in found.items() if name.lower() in _PASSED_ON},
            content,
        )

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        # The client may be gone.
        with suppress(OSError):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)


class FunctionsApi(LoopbackServer):
    """Serves AWS_ENDPOINT_URL_LAMBDA: invocations that moto allows go to the endpoint, all other calls to moto."""

    def __init__(
        self, client: Any, moto_url: str, endpoint_url: str, prepare: Callable[[str], None]
    ) -> None:
        """Args:
        client: A client of moto's Lambda.
        prepare: Called with a function's name before each of its invocations.
        """
        super().__init__(_Handler)
        self.prepare = prepare
        self._client, self.moto_url, self.endpoint_url = client, moto_url, endpoint_url

    def refusal(self, name: str) -> LambdaError | None:
        """Returns why a function may not run now: it does not exist, or 0 executions are reserved for it."""
        try:
            found = self._client.get_function_concurrency(FunctionName=_name(name))
        except ClientError as error:
            return LambdaError(404, error.response["Error"]["Code"], str(error))
        is_barred = found.get("ReservedConcurrentExecutions") in (0, "0")
        return LambdaError(429, "TooManyRequestsException", "Rate Exceeded.") if is_barred else None
