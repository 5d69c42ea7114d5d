"""One instance: the fragments that it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lambda_actor import wire
from runtime.gmi.worker import Instance
from tests.environments import policy_arrays


def event(version: int, slot: int) -> dict[str, Any]:
    return {
        "run_id": "run",
        "invocation_id": f"r{version}-{slot}",
        "preprocessing": "auto",
        "environment_id": "tests.environments:make_counter",
        "truncate_at_fragment": False,
        "fragment_steps": 5,
        "worlds": 0,
        "policy_version": version,
        "seed": 11,
        "round_index": version,
        "slot": slot,
        "episode_id": "",
    }


def test_an_instance_keeps_the_trajectories_of_the_newest_version_alone() -> None:
    instance = Instance()
    instance._trainer = SimpleNamespace(
        weights=lambda version: wire.encode(
            wire.Kind.WEIGHTS, policy_arrays(2, 1, policy_version=version)
        )
    )
    for version in (0, 1, 2):
        # One after the other, which the fleet may request.
        for slot in (0, 1):
            (answer,) = instance.play([event(version, slot)])
            assert isinstance(answer, dict), answer
        assert list(instance.kept) == [f"r{version}-0", f"r{version}-1"]
        assert {int(one["policy_version"]) for one in instance.kept.values()} == {version}
