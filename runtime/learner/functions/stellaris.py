"""The updater of Stellaris: learner functions compute gradients in parallel, and the parameter function applies them.

    1. the batch becomes samples, and every minibatch of every epoch one job
    2. each free learner gets a job, the number of the newest policy, and the numbers that all learners pulled last
    3. it computes one gradient and puts it into the store
    4. the parameter function takes it on arrival, applies what is due, and stores the next policy
    5. after the last job, waiting gradients are applied, and the next policy version begins

A learner function that dies, is slow, or answers twice costs its own gradient and its own bill. Its gradient is not
computed again: it would be stale. The same holds for a gradient that is not finite.

Advantages are estimated once, when the batch is submitted, as in PPO. Policies are numbered and never change, so a
gradient is a function of its event. A policy remains in the store until the last gradient that names it has ended.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from runtime.errors import BudgetError, NotFiniteError, RunError
from runtime.learner.functions.invoking import InvokingUpdater, ObjectRequest, Remote, check_finite
from runtime.learner.functions.messages import decode_state, encode_arrays, encode_state
from runtime.learner.functions.parameter_function import ParameterFunction, Step
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import (
    Batch,
    LossMeans,
    TrainingSamples,
)
from runtime.learner.ppo import Ppo
from runtime.money.work import LEARNER, Outcome, Work
from runtime.records.state import State

_STATE_KEY = "parameter_function"


@dataclass
class _UnderWay:
    """An update that is under way.

    Attributes:
        reported: The update's report covers this many of the last jobs.
        jobs: Number and samples of each gradient that has not started.
        reserved: Number of jobs, from the first one, with a reservation.
        arrived: Losses of each gradient, by its job, and how many of its samples were cut.
        staleness: Of each applied gradient.
        aggregations: Times that gradients were applied.
        problems: Why each lost gradient was lost.
    """

    samples: TrainingSamples
    reported: int
    jobs: deque[tuple[int, torch.Tensor]]
    reserved: int = 0
    arrived: dict[int, tuple[LossMeans, int]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)
    aggregations: int = 0
    problems: list[Exception] = field(default_factory=list)


@dataclass
class _GradientRequest(ObjectRequest):
    """A gradient; `attempt` is its number in the update.

    Attributes:
        update: The update that it belongs to.
        learner: Index of the learner that computes it.
        pulled: The policy at which it is computed.
        oldest: The oldest policy that its event names, which must remain in the store.
    """

    update: _UnderWay
    learner: int
    pulled: int
    oldest: int


class StellarisUpdater(InvokingUpdater[_GradientRequest]):
    """Gets gradients from learner functions, which move the policy and the optimizer here."""

    learner: Ppo

    def __init__(self, learner: Ppo, remote: Remote, settings: Any) -> None:
        """Takes over a learner; the settings are `runtime.learner.functions.settings.StellarisSettings`."""
        super().__init__(learner, remote)
        self._learners = settings.learners
        self._truncation = settings.truncation
        self._parameters = ParameterFunction(
            learners=settings.learners,
            staleness_decay=settings.staleness_decay,
            learning_rate_root=settings.learning_rate_root,
        )
        # The newest policy's number, the aggregations at each policy in the store, and what each learner pulled last.
        self._published = 0
        self._versions: dict[int, int] = {}
        self._pulled: list[int | None] = [None] * settings.learners

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Starts the update's first gradients.

        Raises:
            BudgetError: The budget does not hold a single gradient.
            RunError: The store cannot be written.
        """
        learner = self.learner
        learner.begin([batch], progress=progress)
        samples = learner.samples(batch)
        epochs = [learner.minibatches(batch, epoch) for epoch in range(learner.settings.passes)]
        self._put(
            object_name(self._token, "samples", self.policy_version), encode_arrays(samples.arrays)
        )
        self._publish()
        # Nothing was under way, so every learner that has pulled once has the current policy.
        newest = self._published if self._parameters.updates else None
        self._pulled = [newest] * self._learners
        jobs = deque(enumerate(indices for minibatches in epochs for indices in minibatches))
        self._go_on(_UnderWay(samples, len(epochs[-1]), jobs))

    def get_state(self) -> State:
        """Returns the learner's state with the parameter function's state."""
        state = super().get_state()
        return State(state.arrays, {**state.values, _STATE_KEY: self._parameters.get_state()})

    def set_state(self, state: State) -> None:
        """Continues from a state."""
        super().set_state(state)
        self._parameters.set_state(state.values[_STATE_KEY])

    def _go_on(self, under_way: _UnderWay) -> None:
        """Starts the next gradient on each free learner, as far as the budget holds them; after the last, finishes."""
        busy = {request.learner for request in self._running.values()}
        for learner in sorted({*range(self._learners)} - busy):
            if not under_way.jobs or not self._is_reserved(under_way):
                break
            self._begin(under_way, learner)
        if under_way.jobs and not self._running:
            # No running gradient could give money back.
            if not under_way.reserved:
                raise BudgetError(
                    f"the budget does not hold a gradient of policy version {self.policy_version + 1}"
                )
            self._remote.events.append(
                "update_shrunk",
                policy_version=self.policy_version,
                gradients=under_way.jobs[0][0],
                wanted=under_way.jobs[-1][0] + 1,
                free_usd=self._remote.meter.free_usd,
            )
            under_way.jobs.clear()
        if not self._running:
            self._finish(under_way)

    def _is_reserved(self, under_way: _UnderWay) -> bool:
        """Whether the next gradient has a reservation. If not, reserves as many of the next ones as fit, up to a limit.

        So the ledger is written once for several gradients, and if the run is killed, few count as spent.
        """
        job = under_way.jobs[0][0]
        last = under_way.jobs[-1][0]
        if job >= under_way.reserved:
            granted = self._reserve(
                [
                    Work(LEARNER, number)
                    for number in range(job, min(job + self._learners, last) + 1)
                ]
            )
            under_way.reserved = job + granted
        return job < under_way.reserved

    def _begin(self, under_way: _UnderWay, learner: int) -> None:
        """Starts the next gradient on a learner."""
        job, indices = under_way.jobs.popleft()
        self._pulled[learner] = self._published
        published = {number for number in self._pulled if number is not None}
        is_cut = self._truncation is not None and None not in self._pulled
        event = {
            "update": self.policy_version,
            "job": job,
            "slot": learner,
            "indices": indices.tolist(),
            "pulled_version": self._published,
            "published_versions": sorted(published) if is_cut else [],
            "truncation": float(self._truncation or 1.0),
            "learner": self._spec,
        }
        name = object_name(self._token, "gradient", self.policy_version, job)
        work = Work(LEARNER, job)
        request = _GradientRequest(
            name, work, job, under_way, learner, self._published, min(published)
        )
        self._ask(request, {name: event})

    def _ended(self, request: _GradientRequest, outcome: Outcome) -> None:
        super()._ended(request, outcome)
        self._go_on(request.update)

    def _take(self, request: _GradientRequest, data: bytes) -> None:
        under_way = request.update
        sent = decode_state(data)
        losses = torch.from_numpy(sent.arrays.pop("losses"))
        with np.errstate(over="ignore"):
            # Adam keeps the square. Where it is infinite, no later gradient would move the policy.
            squares = {
                f"the square of the {name}'s gradient": np.square(array)
                for name, array in sent.arrays.items()
            }
        check_finite({"a loss": losses.numpy(), **squares})
        means = LossMeans(losses, sent.values["samples"])
        under_way.arrived[request.attempt] = means, sent.values["truncated"]
        gradient = {name: torch.from_numpy(array) for name, array in sent.arrays.items()}
        self._apply(under_way, self._parameters.offer(gradient, self._versions[request.pulled]))

    def _failed(self, request: _GradientRequest, problem: Exception) -> None:
        request.update.problems.append(problem)

    def _apply(self, under_way: _UnderWay, steps: list[Step]) -> None:
        """Steps along gradients, and publishes the next policy if a learner may pull it."""
        self.learner.apply([(step.gradient, step.factor) for step in steps])
        under_way.staleness += [step.staleness for step in steps]
        under_way.aggregations += bool(steps)
        if steps and under_way.jobs:
            self._publish()

    def _finish(self, under_way: _UnderWay) -> None:
        bound = self._parameters.bound
        steps, mean = self._parameters.end_update()
        self._apply(under_way, steps)
        if not under_way.staleness:
            problem = under_way.problems[-1]
            if isinstance(problem, NotFiniteError):
                raise problem
            raise RunError(
                f"no gradient of policy version {self.policy_version + 1} has arrived: "
                f"{len(under_way.problems)} learner functions failed, the last one: {problem}"
            )
        means, cuts = zip(
            *(arrived for _, arrived in sorted(under_way.arrived.items())), strict=True
        )
        update = self.learner.finish(under_way.samples, means[-under_way.reported :])
        columns = {
            "gradients": len(under_way.staleness),
            "gradients_lost": len(under_way.problems),
            "gradients_late": self._late,
            "aggregations": under_way.aggregations,
            "gradient_staleness_mean": mean,
            "staleness_bound": None if math.isinf(bound) else int(bound),
            "truncated_fraction": sum(cuts) / sum(loss.sample_count for loss in means),
        }
        self.ended.append(replace(update, columns=columns))
        self._late = 0
        self._delete(self._names)

    def _publish(self) -> None:
        """Stores the current policy for learners, and removes policies that none of them needs any more."""
        self._published += 1
        self._versions[self._published] = self._parameters.version
        name = object_name(self._token, "policy", self._published)
        self._put(name, encode_state(self.learner.snapshot()))
        needed = [number for number in self._pulled if number is not None]
        named = [request.oldest for request in self._running.values()]
        oldest = min([self._published, *needed, *named])
        old = [number for number in self._versions if number < oldest]
        self._delete(object_name(self._token, "policy", number) for number in old)
        for number in old:
            del self._versions[number]
