"""The in-process sampler gives the same loop and rounds, without fleet, cache and bill."""

from __future__ import annotations

from pathlib import Path

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.spaces import Spaces
from runtime.config.loading import experiment_from_tree
from runtime.config.resolved import ResolvedExperiment
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.updater import InPlaceUpdater
from runtime.ports.learning import Learner
from runtime.records.checkpoint import Checkpoint
from runtime.records.events import EventLog
from runtime.records.rows import RoundRow
from runtime.training.assembly import Equipment, make_round_loop
from runtime.training.books import Books
from runtime.training.callbacks import Callbacks
from runtime.training.detection import make_detector
from runtime.training.loop import RoundLoop
from runtime.training.saving import Saving
from runtime.training.timing import Timing
from tests.fakes import FakeEvaluator, FreeMeter, ManualClock
from tests.helpers import overrides, results_only, rounds, train
from tests.sampling.in_process import InProcessSampler

SMALL = {
    "environment": {"id": "Pendulum-v1"},
    "budget": {"usd": 1.0},
    "scaler": {"kind": "nitro", "actors_min": 2, "actors_max": 4, "window_rounds": 3},
    "actor": {"fragment_steps": 32, "provisioned": 0},
    "detector": {"subset_size": 64, "lanczos_steps": 4},
    "algorithm": {"kind": "ppo", "epochs": 1, "minibatch_steps": 64},
    "learner": {"threads": 1, "device": "cpu"},
    "fleet": {"processes": 1},
    "stop": {"max_rounds": 4},
    "evaluation": {"every_rounds": 0},
    "seed": 5,
}


def make_experiment(**sections: dict) -> ResolvedExperiment:
    return experiment_from_tree(sections, base=SMALL, source="test").resolved()


def learner_of(experiment: ResolvedExperiment, spaces: Spaces) -> Learner:
    return make_learner(
        LearnerSpec(experiment.algorithm, spaces, experiment.network.kind, experiment.seed),
        device="cpu",
    )


def make_loop(
    experiment: ResolvedExperiment,
    environment: ActorEnvironment,
    path: Path,
    kept: list[tuple[RoundRow, Checkpoint]],
) -> RoundLoop:
    experiment = experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)
    return make_round_loop(
        experiment,
        Equipment(
            updater=InPlaceUpdater(learner_of(experiment, environment.spaces)),
            detector=make_detector(experiment),
            sampler=InProcessSampler(environment),
            evaluator=FakeEvaluator(ManualClock()),
            spaces=environment.spaces,
            actor_event={
                "fragment_steps": experiment.actor.fragment_steps,
                "seed": experiment.seed,
            },
        ),
        books=Books(FreeMeter(), EventLog(path / "events.jsonl", lambda: "now"), lambda: None),
        saving=Saving(lambda row, checkpoint, *_: kept.append((row, checkpoint))),
        callbacks=Callbacks([], experiment),
        timing=Timing(),
    )


def train_in_process(experiment: ResolvedExperiment, path: Path) -> list[RoundRow]:
    kept: list[tuple[RoundRow, Checkpoint]] = []
    make_loop(experiment, make_environment(experiment.environment.id), path, kept).run()
    return [row for row, _ in kept]


def test_it_trains_what_a_fleet_of_processes_trains(tmp_path: Path, one_thread: None) -> None:
    rows = train_in_process(make_experiment(), tmp_path)
    (tmp_path / "pendulum.yaml").write_text(make_experiment().to_yaml())
    done = train(tmp_path / "pendulum.yaml", tmp_path / "run", *overrides(fleet__kind="local"))
    assert done.returncode == 0, done.stderr
    assert results_only(vars(row) for row in rows) == results_only(rounds(tmp_path / "run"))


def test_asynchronous_rounds_run_on_it(tmp_path: Path, one_thread: None) -> None:
    rows = train_in_process(
        make_experiment(algorithm={"kind": "impact", "minibatch_steps": 32}), tmp_path
    )
    assert [row.round_index for row in rows] == [1, 2, 3, 4]
    assert [row.env_steps for row in rows] == [32 * row.actor_count_wanted for row in rows]
    assert all(row.round_cost_usd == 0.0 for row in rows)
