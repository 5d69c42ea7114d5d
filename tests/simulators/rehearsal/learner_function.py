"""The learner function's handler, whose calls to AWS are recorded."""

from __future__ import annotations

from runtime.learner.remote.handler import handler
from tests.simulators.rehearsal.recording import record_calls

__all__ = ["handler"]
record_calls("learner function")
