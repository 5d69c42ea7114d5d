"""Samples whose every field tells whose they are, and which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from runtime.gmi.sharing.batcher import Experience, Range
from runtime.gmi.sharing.plan import Field, Plan

FIELDS = {"observations": Field("float32", (3,)), "actions": Field("int64"), "frames": Field("uint8", (2, 2)),
          "rewards": Field("float64"), "terminated": Field("bool"), "after": Field("float32", (2,), rows_max=4)}


def plan(*, agents: int = 2, chunk_samples: int = 4, chunks: int = 3, is_uni_channel: bool = False) -> Plan:
    return Plan(FIELDS, agents, chunk_samples, chunks, is_uni_channel)


def samples(agent: int, first: int, count: int) -> dict[str, Any]:
    """Samples as a dispenser takes them."""
    sequence = np.arange(first, first + count)
    key = 10_000 * agent + sequence
    return {
        "observations": key[:, None].astype(np.float32) + np.array([0, 0.25, 0.5], np.float32),
        "actions": key,
        "frames": np.broadcast_to((key % 251).astype(np.uint8)[:, None, None], (count, 2, 2)),
        "rewards": -key.astype(np.float64),
        "terminated": key % 2 == 1,
        "after": [np.full((one % 4, 2), one, np.float32) for one in key],
    }


def require_whole(batch: Experience) -> None:
    """Every field of every sample is the one that its range says."""
    for name in FIELDS:
        parts = [samples(agent, first, last - first + 1)[name] for agent, first, last in batch.ranges]
        if name == "after":
            parts = [rows for part in parts for rows in part]
            np.testing.assert_array_equal(batch.row_counts[name], [len(rows) for rows in parts])
        found, wanted = batch.fields[name], np.concatenate(parts)
        assert found.dtype == np.dtype(FIELDS[name].dtype)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def sequences(ranges: Iterable[Range], agent: int) -> list[int]:
    """Numbers of an agent's samples, in the order of the ranges."""
    return [number for one in ranges if one.agent == agent for number in range(one.first, one.last + 1)]
