"""A cold actor for each test of the room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lambda_actor import handler


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[handler.Sandbox]:
    """Replaces what the actor function keeps between invocations."""
    fresh = handler.Sandbox()
    monkeypatch.setattr(handler, "sandbox", fresh)
    monkeypatch.delenv("ACTOR_CACHE_USERNAME", raising=False)
    monkeypatch.delenv("ACTOR_CACHE_PASSWORD", raising=False)
    yield fresh
    if fresh.cache is not None:
        fresh.cache.close()
