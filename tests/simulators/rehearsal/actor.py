"""The actors' handler, whose calls to AWS are recorded."""

from __future__ import annotations

from lambda_actor.handler import handler
from tests.simulators.rehearsal.recording import record_calls

__all__ = ["handler"]
record_calls("actor")
