"""Trains deep-RL policies with serverless actors, within a budget.

This is the public package; see docs/reference/python.md. It contains `train`, `load_policy`, their results and errors,
and base classes for callbacks, scalers, algorithms, fleets and updaters of your own. Names are imported on first use,
so ``import nitro_rl`` loads neither NumPy nor torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from runtime import __version__ as __version__

if TYPE_CHECKING:
    from lambda_actor.errors import ActorError as ActorError
    from nitro_rl.training import TrainingResult as TrainingResult
    from nitro_rl.training import train as train
    from runtime.errors import ActorsKeepFailingError as ActorsKeepFailingError
    from runtime.errors import BudgetError as BudgetError
    from runtime.errors import FleetError as FleetError
    from runtime.errors import RunError as RunError
    from runtime.experiment.algorithm import (
        AlgorithmSettings as AlgorithmSettings,
    )
    from runtime.experiment.fleet import FleetSettings as FleetSettings
    from runtime.experiment.learner import (
        UpdaterSettings as UpdaterSettings,
    )
    from runtime.experiment.scaler import ScalerSettings as ScalerSettings
    from runtime.experiment.section import Actors as Actors
    from runtime.experiment.section import Field as Field
    from runtime.experiment.section import Positive as Positive
    from runtime.fleet import FleetSetup as FleetSetup
    from runtime.fleet.interfaces import Fleet as Fleet
    from runtime.fleet.interfaces import Invocation as Invocation
    from runtime.learner.actor_critic import ActorCritic as ActorCritic
    from runtime.learner.advantages import generalized_advantages as generalized_advantages
    from runtime.learner.batch import Tensors as Tensors
    from runtime.learner.interfaces import Batch as Batch
    from runtime.learner.interfaces import (
        TrainingSamples as TrainingSamples,
    )
    from runtime.learner.interfaces import Update as Update
    from runtime.learner.updaters import Updater as Updater
    from runtime.money.work import Outcome as Outcome
    from runtime.pool.policies import OnnxPolicy as OnnxPolicy
    from runtime.pool.policies import numpy_policy as numpy_policy
    from runtime.pool.pool import ActorPool as ActorPool
    from runtime.pool.trajectory import Trajectory as Trajectory
    from runtime.records.rows import RoundRow as RoundRow
    from runtime.records.state import State as State
    from runtime.scaler.interfaces import RoundView as RoundView
    from runtime.scaler.interfaces import Scaler as Scaler
    from runtime.scaler.interfaces import ScalingDecision as ScalingDecision
    from runtime.show.exported_policy import TrainedPolicy as TrainedPolicy
    from runtime.show.exported_policy import load_policy as load_policy
    from runtime.training.callbacks import Callback as Callback
    from runtime.training.callbacks import RunControl as RunControl

_HOMES = {
    "lambda_actor.errors": "ActorError",
    "nitro_rl.training": "TrainingResult train",
    "runtime.errors": "ActorsKeepFailingError BudgetError FleetError RunError",
    "runtime.experiment.algorithm": "AlgorithmSettings",
    "runtime.experiment.fleet": "FleetSettings",
    "runtime.experiment.learner": "UpdaterSettings",
    "runtime.experiment.scaler": "ScalerSettings",
    "runtime.experiment.section": "Actors Field Positive",
    "runtime.fleet": "FleetSetup",
    "runtime.fleet.interfaces": "Fleet Invocation",
    "runtime.learner.actor_critic": "ActorCritic",
    "runtime.learner.advantages": "generalized_advantages",
    "runtime.learner.batch": "Tensors",
    "runtime.learner.interfaces": "Batch TrainingSamples Update",
    "runtime.learner.updaters": "Updater",
    "runtime.money.work": "Outcome",
    "runtime.pool.policies": "OnnxPolicy numpy_policy",
    "runtime.pool.pool": "ActorPool",
    "runtime.pool.trajectory": "Trajectory",
    "runtime.records.rows": "RoundRow",
    "runtime.records.state": "State",
    "runtime.scaler.interfaces": "RoundView Scaler ScalingDecision",
    "runtime.show.exported_policy": "TrainedPolicy load_policy",
    "runtime.training.callbacks": "Callback RunControl",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
