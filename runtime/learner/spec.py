"""What a learner is made of, as another process is told it: values that JSON can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.config.schema import AlgorithmSection, add_kind
from runtime.learner import LearnerSpec
from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.kinds import is_import_path


def spec_values(spec: LearnerSpec) -> dict[str, Any]:
    """Returns what a learner is made of as values that JSON can hold."""
    # Another process need not know all kinds that were added to this one.
    others = {ALGORITHMS.key(kind) for kind in ALGORITHMS.settings} - {spec.algorithm.chosen_key}
    return {**vars(spec), "algorithm": spec.algorithm.model_dump(mode="json", exclude=others),
            "spaces": dataclasses.asdict(spec.spaces)}


def spec_of(values: Mapping[str, Any]) -> LearnerSpec:
    """Returns what a learner is made of, from what `spec_values` returned."""
    if is_import_path(kind := values["algorithm"]["kind"]):
        add_kind(kind)
    spaces: dict[str, Any] = {name: _tuples(value) for name, value in values["spaces"].items()}
    return LearnerSpec(**{**values, "algorithm": AlgorithmSection.model_validate(values["algorithm"]),
                          "spaces": Spaces(**spaces)})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
