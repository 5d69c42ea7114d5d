"""The environments to try: groups of packages (environments.yaml), and our own odd environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.conformance.odd import ACTIONS, OBSERVATIONS

FOUND = "found.json"
"""File with a row's findings, in the row's folder."""


@dataclass(frozen=True)
class Row:
    """One environment, and how it is trained.

    Attributes:
        environment: ``environment`` of the experiment file.
        algorithm: ``ppo``, ``impact`` or ``impala``.
        fragment_steps: ``actor.fragment_steps``; shorter than an episode, so that some episodes remain open.
    """

    environment: dict[str, Any]
    algorithm: str = "ppo"
    fragment_steps: int = 16


@dataclass(frozen=True)
class Group:
    """Packages that are installed together over the project's own environment.

    Attributes:
        title: Heading of the group.
        packages: Packages whose versions are recorded.
        requirements: Arguments for pip; empty if the project's requirements suffice.
        variables: Environment variables of the processes that try it.
    """

    title: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    rows: tuple[Row, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def _row(id: str, algorithm: str = "ppo", fragment_steps: int = 16, **environment: Any) -> Row:
    return Row({"id": id, **environment}, algorithm, fragment_steps)


def _odd(oddity: str, **kwargs: Any) -> Row:
    return _row("benchmarks.conformance.odd:make", kwargs={"oddity": oddity, **kwargs})


def _group(
    title: str,
    packages: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    requirements: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Group:
    return Group(
        title,
        tuple(packages),
        tuple(requirements),
        tuple(_row(**row) for row in rows),
        variables or {},
    )


FAULTS = (
    "huge_rewards",
    "reward_array",
    "several_rewards",
    "nondeterministic",
    "clock",
    "list_observations",
    "outside_its_space",
    "prints",
    "another_shape",
    "raises",
    "exits",
    "nan_reward",
    "nan_observation",
)
GROUPS = {
    name: _group(**group)
    for name, group in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
} | {
    "own": Group(
        "Odd ones of our own",
        ("gymnasium",),
        (),
        (
            *map(_odd, (*OBSERVATIONS, *ACTIONS, *FAULTS)),
            _row(
                "benchmarks.conformance.odd:make",
                kwargs={"oddity": "huge_rewards"},
                wrappers=[
                    {"gymnasium.wrappers.ClipReward": {"min_reward": -10.0, "max_reward": 10.0}}
                ],
            ),
            _odd("float64", limit=None),
            *(
                _odd(name, fault_step=5)
                for name in ("another_shape", "raises", "exits", "nan_reward")
            ),
            _row(
                "benchmarks.conformance.odd:Odd",
                kwargs={"oddity": "dict"},
                truncate_at_fragment=True,
            ),
        ),
    ),
}
