"""The public names and their homes; `nitro_rl/__init__.py` imports each on first use."""

from lambda_actor.errors import ActorError as ActorError
from nitro_rl.training import TrainingResult as TrainingResult, train as train
from runtime import __version__ as __version__
from runtime.errors import (
    ActorsKeepFailingError as ActorsKeepFailingError,
    BudgetError as BudgetError,
    FleetError as FleetError,
    RunError as RunError,
)
from runtime.experiment.algorithm import AlgorithmSettings as AlgorithmSettings
from runtime.experiment.fleet import FleetSettings as FleetSettings
from runtime.experiment.learner import UpdaterSettings as UpdaterSettings
from runtime.experiment.scaler import ScalerSettings as ScalerSettings
from runtime.experiment.section import Actors as Actors, Field as Field, Positive as Positive
from runtime.fleet import FleetSetup as FleetSetup
from runtime.fleet.interfaces import Fleet as Fleet, Invocation as Invocation
from runtime.learner.actor_critic import ActorCritic as ActorCritic
from runtime.learner.advantages import generalized_advantages as generalized_advantages
from runtime.learner.batch import Tensors as Tensors
from runtime.learner.interfaces import (
    Batch as Batch,
    TrainingSamples as TrainingSamples,
    Update as Update,
)
from runtime.learner.updaters import Updater as Updater
from runtime.money.work import Outcome as Outcome
from runtime.pool.policies import OnnxPolicy as OnnxPolicy, numpy_policy as numpy_policy
from runtime.pool.pool import ActorPool as ActorPool
from runtime.pool.trajectory import Trajectory as Trajectory
from runtime.records.rows import RoundRow as RoundRow
from runtime.records.state import State as State
from runtime.scaler.interfaces import (
    RoundView as RoundView,
    Scaler as Scaler,
    ScalingDecision as ScalingDecision,
)
from runtime.show.exported_policy import TrainedPolicy as TrainedPolicy, load_policy as load_policy
from runtime.training.callbacks import Callback as Callback, RunControl as RunControl
