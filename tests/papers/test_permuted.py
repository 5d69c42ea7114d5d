"""The permuted arm has a recorded run's counts, in another order within each third."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from papers.nitro.permuted import permuted_schedule


def test_each_part_has_its_counts_in_another_order(tmp_path: Path) -> None:
    recorded = [8, 8, 9, 30, 64, 12, 13, 20, 40]
    (tmp_path / "rounds.jsonl").write_text(
        "".join(json.dumps({"actor_count_wanted": one}) + "\n" for one in recorded)
    )
    found = permuted_schedule(tmp_path, seed=0)
    assert [round_index for round_index, _ in found] == list(range(1, 10))
    counts = [count for _, count in found]
    assert counts != recorded
    for part in (slice(0, 3), slice(3, 6), slice(6, 9)):
        assert Counter(counts[part]) == Counter(recorded[part])
    assert found == permuted_schedule(tmp_path, seed=0) != permuted_schedule(tmp_path, seed=1)
