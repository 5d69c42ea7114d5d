"""AWS Lambda in the rehearsal: moto has the functions and their limits, and this endpoint runs and bills them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.simulators.aws.lambda_endpoint import LambdaEndpoint

_BILLED = re.compile(r"Billed Duration: (\d+) ms\tMemory Size: (\d+) MB")


class MeteredEndpoint(LambdaEndpoint):
    """Adds up the billed time in its REPORT lines, even if the client has gone.

    Attributes:
        bills: Function and GiB-seconds of every invocation that ended.
    """

    def __init__(self, prepare: Callable[[str], None]) -> None:
        """Args:
        prepare: Called with a function's name before each of its invocations.
        """
        super().__init__()
        self._prepare = prepare
        self.bills: list[tuple[str, float]] = []

    def _find(self, name: str, qualifier: str) -> Any:
        self._prepare(name.partition(":function:")[2].partition(":")[0] or name.partition(":")[0])
        return super()._find(name, qualifier)

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
