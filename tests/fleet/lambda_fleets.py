"""Lambda fleets on a local endpoint, for tests."""

from __future__ import annotations

import os
from typing import Any

import boto3
from botocore.config import Config

from runtime.fleet.aws_lambda import LambdaFleet
from tests.fleet.fleet_actors import GENEROUS_S
from tests.fleet_environments import DIRECTORY_VARIABLE
from tests.helpers import PATIENCE_S
from tests.simulators.aws.lambda_endpoint import REGION, LambdaEndpoint

CREDENTIALS = {
    "aws_access_key_id": "local-test",
    "aws_secret_access_key": "local-test",
    "region_name": REGION,
}
ACTOR_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")},
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""One thread, and this machine's choice of BLAS kernels, which round differently from each other."""


def client(url: str, *, read_timeout_s: float = PATIENCE_S) -> Any:
    """Returns a client of a local endpoint that ignores this machine's AWS settings."""
    return boto3.client(
        "lambda",
        endpoint_url=url,
        **CREDENTIALS,
        config=Config(
            retries={"total_max_attempts": 1}, max_pool_connections=256, read_timeout=read_timeout_s
        ),
    )


class LambdaFleets:
    """Makes fleets, each with its own function. Closes them with the endpoint."""

    def __init__(self) -> None:
        self.endpoint = LambdaEndpoint()
        self.throttles = 0
        """Returns how often Lambda had no room for an actor."""
        self._made: list[LambdaFleet] = []

    def __enter__(self) -> LambdaFleets:
        return self

    def __exit__(self, *_: object) -> None:
        for fleet in self._made:
            fleet.close()
        self.endpoint.close()

    def make(
        self,
        actors: int = 2,
        *,
        timeout_s: float = GENEROUS_S,
        reserved: int | None = None,
        name: str = "",
        read_timeout_s: float = PATIENCE_S,
        **settings: Any,
    ) -> LambdaFleet:
        """Returns a fleet of ``actors`` at once. Its function has the same concurrency, or ``reserved``."""
        environment = {
            **ACTOR_ENVIRONMENT,
            DIRECTORY_VARIABLE: os.environ.get(DIRECTORY_VARIABLE, ""),
        }
        arn = self.endpoint.add_function(
            name or f"actors-{len(self._made)}",
            timeout_s=timeout_s,
            environment=environment,
            concurrency=actors if reserved is None else reserved,
            **settings,
        )
        made = client(self.endpoint.url, read_timeout_s=read_timeout_s)
        made.meta.events.register("after-call.lambda.Invoke", self._answered)
        self._made.append(LambdaFleet(arn, timeout_s=timeout_s, concurrency=actors, client=made))
        return self._made[-1]

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.throttles += http_response.status_code == 429
