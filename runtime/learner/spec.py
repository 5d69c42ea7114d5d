"""Converts a learner's specification to and from JSON values, for other processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.kinds import is_import_path
from runtime.experiment.schema import add_kind
from runtime.learner import LearnerSpec


def spec_values(spec: LearnerSpec) -> dict[str, Any]:
    """Returns a learner's specification as JSON values."""
    return {
        **vars(spec),
        "algorithm": spec.algorithm.model_dump(mode="json"),
        "spaces": dataclasses.asdict(spec.spaces),
    }


def spec_of(values: Mapping[str, Any]) -> LearnerSpec:
    """Returns a learner's specification, given the result of `spec_values`."""
    if is_import_path(kind := values["algorithm"]["kind"]):
        add_kind(kind)
    spaces = Spaces.from_json(values["spaces"])
    algorithm = ALGORITHMS.choose(values["algorithm"])
    return LearnerSpec(**{**values, "algorithm": algorithm, "spaces": spaces})
