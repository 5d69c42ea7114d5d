"""Settles open layout settings: from the run that it continues, or from a search's result."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, TypeVar

from runtime.experiment.schema import Experiment
from runtime.gmi.gmi_settings import GmiSettings
from runtime.gmi.kept_results import Key, kept_layout, key_of
from runtime.gmi.search import Layout

Fitted = TypeVar("Fitted", bound=Any)


def settled(experiment: Fitted, before: Experiment | None) -> tuple[Fitted, str]:
    """Returns an experiment whose layout of instances is settled.

    Args:
        experiment: The experiment, fitted to its environment.
        before: Settings of the run that it continues; None for a new run.

    Returns:
        The experiment, and a remark for users about an earlier search's layout; may be empty.
    """
    gmi = experiment.learner
    open_keys = {"instances", "environments"} - gmi.model_fields_set
    if gmi.reduction == "auto":
        open_keys.add("reduction")
    found: Any = None
    told = ""
    if before is not None:
        found = before.learner if before.learner.kind == experiment.learner.kind else None
    elif "instances" in open_keys and gmi.layout == "holistic":
        found, told = kept_layout(key_here(experiment))
        if found is not None and not _is_possible(found, experiment):
            found, told = (
                None,
                "the layout that was found before is ignored: it is not possible here",
            )
        told = told or (
            "as `plan --measure` has found for this machine and workload" if found else ""
        )
    if found is None:
        return experiment, told
    changed = gmi.model_copy(update={key: getattr(found, key) for key in open_keys})
    environment = experiment.environment.model_copy(update={"vector": changed.environments})
    return experiment.model_copy(update={"learner": changed, "environment": environment}), told


def _is_possible(found: Layout, experiment: Any) -> bool:
    """Whether a kept layout suits this experiment. Its file may have been altered."""
    try:
        GmiSettings.model_validate(asdict(found) | {"reduction": found.reduction or "auto"})
    except ValueError:
        return False
    # The run checks whether rings over its GPUs are possible.
    return found.instances <= experiment.scaler.most_actors and (
        found.reduction != "mrr" or experiment.learner.device != "cpu"
    )


def key_here(experiment: Any) -> Key:
    """Returns the key of a layout on this machine."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return key_of(experiment, cores=cores)
