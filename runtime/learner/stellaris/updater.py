"""The updater of Stellaris: learner functions compute gradients in parallel, and the parameter function applies them.

    1. the batch becomes samples, and every minibatch of every epoch one job
    2. each free learner gets a job, the number of the newest policy, and the numbers that all learners pulled last
    3. it computes one gradient and puts it into the store
    4. the parameter function takes it on arrival, applies what is due, and stores the next policy
    5. after the last job, waiting gradients are applied, and the next policy version begins

A learner function that dies, is slow, or answers twice costs its own gradient and its own bill. Its gradient is not
computed again: it would be stale. The same holds for a gradient that is not finite. But if gradients of two learners of
an update are not finite, training has diverged, and no further gradient is started.

Advantages are estimated once, when the batch is submitted, as in PPO. Policies are numbered and never change, so a
gradient is a function of its event. A policy remains in the store until the last gradient that names it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from lambda_actor.errors import WireError
from runtime.errors import BudgetError, NotFiniteError, RunError
from runtime.learner.ppo import Ppo
from runtime.learner.remote.messages import (
    SentGradient,
    decode_gradient,
    encode_samples,
    encode_state,
)
from runtime.learner.remote.store import gradient_name, policy_name, samples_name
from runtime.learner.remote.updater import Remote, RemoteUpdater
from runtime.learner.stellaris.parameter import ParameterFunction, Step
from runtime.ports.fleet import Invocation, Outcome
from runtime.ports.learning import (
    Aggregation,
    Batch,
    Gradients,
    LossMeans,
    State,
    TrainingSamples,
    Update,
)
from runtime.ports.money import LEARNER, Work

_STATE_KEY = "parameter_function"
_LOSSES = ("policy_loss", "value_loss", "entropy")


@dataclass
class _UnderWay:
    """An update that is under way.

    Attributes:
        number: The policy version at its start.
        aggregations_before: Aggregations of the parameter function at its start.
        reported: The update's report covers this many of the last jobs.
        jobs: Number and samples of each gradient that has not started.
        reserved: Number of jobs, from the first one, with a reservation.
        learners: The learner of each running job.
        named: The policies that each running job's event names. They must remain in the store until it has ended.
        sent: The policy and the number of samples that each job was sent.
        not_finite: For each learner with non-finite gradients, what was not finite.
    """

    number: int
    samples: TrainingSamples
    aggregations_before: int
    reported: int
    jobs: deque[tuple[int, torch.Tensor]]
    reserved: int = 0
    learners: dict[int, int] = field(default_factory=dict)
    named: dict[int, set[int]] = field(default_factory=dict)
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    losses: dict[int, LossMeans] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)
    lost: int = 0
    last_error: str = ""
    not_finite: dict[int, str] = field(default_factory=dict)
    samples_seen: int = 0
    samples_cut: int = 0


class StellarisUpdater(RemoteUpdater):
    """Gets gradients from learner functions; see `runtime.ports.learning.Updater`.

    Attributes:
        learner: Holds the newest policy and the optimizer. Gradients move it.
    """

    learner: Ppo

    def __init__(
        self,
        learner: Ppo,
        remote: Remote,
        *,
        learners: int,
        staleness_decay: float | None,
        learning_rate_root: float | None,
        truncation: float | None,
    ) -> None:
        """Takes over a learner.

        Args:
            remote: Where learner functions are invoked, and their prices.
            learners, staleness_decay, learning_rate_root, truncation: The keys of ``learner``.
        """
        super().__init__(learner, remote)
        self._learners, self._truncation = learners, truncation
        self._parameters: ParameterFunction[tuple[int, SentGradient]] = ParameterFunction(
            learners=learners,
            staleness_decay=staleness_decay,
            learning_rate_root=learning_rate_root,
        )
        self._published = self._late = 0
        self._versions: dict[int, int] = {}
        self._pulled: list[int | None] = [None] * learners
        self._under_way: _UnderWay | None = None

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
        number = self.policy_version
        self._put(samples_name(self._token, number), encode_samples(samples.arrays))
        self._publish()
        # Nothing was under way, so every learner that has pulled once has the current policy.
        newest = None if not self._parameters.updates else self._published
        self._pulled = [newest] * self._learners
        jobs = deque(enumerate(indices for minibatches in epochs for indices in minibatches))
        self._under_way = _UnderWay(
            number, samples, self._parameters.version, len(epochs[-1]), jobs
        )
        self._begin_jobs(self._under_way)

    def poll(self, timeout_s: float) -> list[Update]:
        """Takes the arrived gradients. Returns the update after its last gradient.

        Raises:
            NotFiniteError: Gradients of two learners, or of the only one, are not finite.
            RunError: No gradient of the update has arrived, or the store cannot be used.
        """
        under_way = self._under_way
        if under_way is None:
            return super().poll(timeout_s)
        for outcome in self._remote.fleet.wait(timeout_s):
            self._take(under_way, outcome)
        if not under_way.learners and not under_way.jobs:
            self._finish(under_way)
        return super().poll(timeout_s)

    def get_state(self) -> State:
        """Returns the learner's state with the parameter function's state."""
        state = super().get_state()
        return State(state.arrays, {**state.values, _STATE_KEY: self._parameters.get_state()})

    def set_state(self, state: State) -> None:
        """Continues from a state. Objects in the store then belong to another training."""
        super().set_state(state)
        self._parameters.set_state(state.values[_STATE_KEY])
        self._under_way = None

    def close(self) -> None:
        """Gives up running gradients, and empties the store."""
        under_way, self._under_way = self._under_way, None
        self._give_up(
            []
            if under_way is None
            else [self._id(under_way.number, job) for job in under_way.learners]
        )

    def _begin_jobs(self, under_way: _UnderWay) -> None:
        """Starts the next gradient on each free learner, if one is left and the budget holds it."""
        free = [one for one in range(self._learners) if one not in under_way.learners.values()]
        for learner in free:
            if not under_way.jobs or not self._is_reserved(under_way):
                break
            self._begin_job(under_way, learner)
        if under_way.jobs and not under_way.learners:
            # No running gradient could give money back.
            if not under_way.reserved:
                raise BudgetError(
                    f"the budget does not hold a gradient of policy version {under_way.number + 1}"
                )
            self._remote.events.append(
                "update_shrunk",
                policy_version=under_way.number,
                gradients=under_way.jobs[0][0],
                wanted=under_way.jobs[-1][0] + 1,
                free_usd=self._remote.meter.free_usd,
            )
            under_way.jobs.clear()

    def _is_reserved(self, under_way: _UnderWay) -> bool:
        """Whether the next gradient has a reservation. If not, reserves as many of the next ones as fit, up to a limit.

        So the ledger is written once for several gradients, and if the run is killed, few count as spent.
        """
        job, last = under_way.jobs[0][0], under_way.jobs[-1][0]
        if job >= under_way.reserved:
            works = [Work(LEARNER, one) for one in range(job, min(job + self._learners, last) + 1)]
            if granted := self._remote.meter.reserve(works):
                under_way.reserved = job + granted
                self._remote.save_ledger()
        return job < under_way.reserved

    def _begin_job(self, under_way: _UnderWay, learner: int) -> None:
        remote, (job, indices) = self._remote, under_way.jobs.popleft()
        under_way.learners[job] = learner
        self._pulled[learner] = self._published
        published = {one for one in self._pulled if one is not None}
        is_cut = self._truncation is not None and None not in self._pulled
        under_way.named[job] = {self._published, *published}
        under_way.sent[job] = self._published, len(indices)
        invocation_id = self._id(under_way.number, job)
        remote.fleet.start(
            [
                Invocation(
                    invocation_id,
                    {
                        "invocation_id": invocation_id,
                        "store": remote.store,
                        "token": self._token,
                        "update": under_way.number,
                        "job": job,
                        "slot": learner,
                        "indices": indices.tolist(),
                        "pulled_version": self._published,
                        "published_versions": sorted(published) if is_cut else [],
                        "truncation": float(self._truncation or 1.0),
                        "learner": self._spec,
                    },
                )
            ]
        )

    def _take(self, under_way: _UnderWay, outcome: Outcome) -> None:
        """Settles an invocation, and takes its gradient if it is usable."""
        job = next(
            (
                job
                for job in under_way.learners
                if outcome.invocation_id == self._id(under_way.number, job)
            ),
            None,
        )
        if job is None:
            self._late += 1
            return
        learner = under_way.learners.pop(job)
        del under_way.named[job]
        self._remote.meter.settle(Work(LEARNER, job), outcome)
        name = gradient_name(self._token, under_way.number, job)
        self._names.add(name)
        data = self._store.get(name)
        error = outcome.error or "it left no gradient"
        sent = None
        if data is not None:
            try:
                sent = self._checked(decode_gradient(data), *under_way.sent[job])
            except NotFiniteError as problem:
                error = under_way.not_finite[learner] = str(problem)
                if self._has_diverged(under_way):
                    self._drop_jobs(under_way)
            except (WireError, ValueError) as problem:
                error = str(problem)
        if sent is None:
            under_way.lost, under_way.last_error = under_way.lost + 1, error
            self._remote.events.append(
                "learner_failed",
                policy_version=under_way.number,
                attempt=job,
                status=outcome.status,
                error=error,
            )
        else:
            under_way.losses[job] = LossMeans(torch.from_numpy(sent.losses), sent.sample_count)
            under_way.samples_seen += sent.sample_count
            under_way.samples_cut += sent.truncated_count
            self._apply(
                under_way, self._parameters.offer((job, sent), self._versions[sent.pulled_version])
            )
        self._begin_jobs(under_way)

    def _apply(self, under_way: _UnderWay, steps: Sequence[Step[tuple[int, SentGradient]]]) -> None:
        """Steps along gradients, and publishes the next policy if a learner may pull it."""
        if not steps:
            return
        self.learner.apply(
            [
                (
                    Gradients(
                        {
                            name: torch.from_numpy(array)
                            for name, array in step.gradient[1].arrays.items()
                        },
                        under_way.losses[step.gradient[0]],
                    ),
                    step.factor,
                )
                for step in steps
            ]
        )
        under_way.staleness += [step.staleness for step in steps]
        if under_way.jobs:
            self._publish(under_way)

    def _has_diverged(self, under_way: _UnderWay) -> bool:
        """Whether the policy itself is at fault: more than one learner has computed non-finite gradients."""
        return len(under_way.not_finite) >= min(2, self._learners)

    def _drop_jobs(self, under_way: _UnderWay) -> None:
        """Releases the reservations of gradients that have not started, and drops these."""
        for job, _ in under_way.jobs:
            if job < under_way.reserved:
                self._remote.meter.settle(Work(LEARNER, job), None)
        under_way.jobs.clear()

    def _finish(self, under_way: _UnderWay) -> None:
        if self._has_diverged(under_way):
            raise NotFiniteError(next(iter(under_way.not_finite.values())))
        bound = self._parameters.bound
        steps, mean = self._parameters.end_update()
        self._apply(under_way, steps)
        if not under_way.staleness:
            raise RunError(
                f"no gradient of policy version {under_way.number + 1} has arrived: {under_way.lost} "
                f"learner functions failed, the last one: {under_way.last_error}"
            )
        last = sorted(under_way.losses)[-under_way.reported :]
        update = self.learner.finish(under_way.samples, [under_way.losses[job] for job in last])
        self.ended.append(
            replace(
                update,
                aggregation=Aggregation(
                    gradients=len(under_way.staleness),
                    gradients_lost=under_way.lost,
                    gradients_late=self._late,
                    aggregations=self._parameters.version - under_way.aggregations_before,
                    gradient_staleness_mean=mean,
                    staleness_bound=None if bound == float("inf") else int(bound),
                    truncated_fraction=under_way.samples_cut / max(1, under_way.samples_seen),
                ),
            )
        )
        self._late, self._under_way = 0, None
        self._delete(self._names)

    def _checked(self, sent: SentGradient, pulled_version: int, sample_count: int) -> SentGradient:
        """Refuses a gradient of another policy or sample count, and one whose square is not finite."""
        if (sent.pulled_version, sent.sample_count) != (pulled_version, sample_count):
            raise ValueError(
                f"the gradient is of {sent.sample_count} samples and policy {sent.pulled_version}; "
                f"allowed: {sample_count}, {pulled_version}"
            )
        losses = dict(zip(_LOSSES, sent.losses.reshape(3, 1), strict=True))
        for name, array in {**losses, **sent.arrays}.items():
            with np.errstate(over="ignore"):
                # Adam keeps the square. Where it is infinite, no later gradient would move the policy.
                is_finite = np.isfinite(np.square(array)).all()
            if not is_finite:
                raise NotFiniteError(f"{name} of a gradient, or its square, is not finite")
        return sent

    def _publish(self, under_way: _UnderWay | None = None) -> None:
        """Stores the current policy for learners, and removes policies that none of them needs any more."""
        self._published += 1
        self._versions[self._published] = self._parameters.version
        self._put(policy_name(self._token, self._published), encode_state(self.learner.snapshot()))
        named = under_way.named.values() if under_way is not None else ()
        needed = {self._published, *self._pulled}.union(*named)
        old = [number for number in self._versions if number not in needed]
        self._delete({policy_name(self._token, number) for number in old})
        for number in old:
            del self._versions[number]

    def _id(self, number: int, job: int) -> str:
        return f"{self._token}-gradient-{number}-{job}"
