"""AWS' Free Tier API, which moto lacks: GetAccountPlanState. ``AWS_ENDPOINT_URL_FREETIER`` points boto3 to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

TARGET = "AWSFreeTierService.GetAccountPlanState"
PAID = {"accountId": "123456789012", "accountPlanType": "PAID", "accountPlanStatus": "ACTIVE"}
FREE = {**PAID, "accountPlanType": "FREE"}
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        assert self.headers["X-Amz-Target"] == TARGET
        assert json.loads(self.body()) == {}
        owner: FreeTier = self.server.owner
        if owner.failure:
            self.answer(
                400, json.dumps({"__type": owner.failure, "message": "as asked for"}).encode()
            )
        else:
            self.answer(200, json.dumps(owner.plan).encode())


class FreeTier(LoopbackServer):
    """The service on a loopback port, as a context manager.

    Attributes:
        plan: The answer to each request.
        failure: Error code that every request gets, or None.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.plan: dict[str, Any] = PAID
        self.failure: str | None = None


def before(application: Application) -> Application:
    """Wraps a WSGI application: answers for this service and passes on the rest. The account has the Paid plan."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("HTTP_X_AMZ_TARGET") != TARGET:
            return application(environ, start_response)
        content = json.dumps(PAID).encode()
        start_response(
            "200 OK",
            [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(content)))],
        )
        return [content]

    return answer
