"""Prices Stellaris' rounds afterwards by recorded durations, compares them, and draws its returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREY, ORANGE, panels
from benchmarks.provenance import ROOT
from papers.estimates import over_seeds
from papers.pricing import lambda_speed, units_of
from papers.runs import Estimates, Results, Run, returns, rounds_compared
from papers.stellaris.virtual import Durations
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.model import learner_function_prices
from runtime.money.prices import PRICES

SERVERS_HOUR_USD = 3.06 + 2.04 + 2 * 17.92 / 30 / 24
"""Both arms' servers in the authors' config.py: a p3.2xlarge and one for actors, each with its disk and address."""
COLOURS = (GREY, ORANGE, BLUE)


@dataclass(frozen=True)
class StellarisBill:
    """Seconds and dollars of an arm's rounds: its actors play, then its learners compute gradients.

    Attributes:
        experiment: The arm's.
        basis: ``servers``, the authors': always on, with a core for each actor and learner. Or ``functions``: actors,
            learners and the loop by the millisecond, with starts and requests.
        sharing: Learners that share each gradient's samples and wait for each other.
    """

    experiment: ResolvedExperiment
    basis: str
    sharing: int

    @classmethod
    def of(cls, study: Mapping[str, Any], arm: str, basis: str, sharing: int = 1) -> StellarisBill:
        """Returns the bill of an arm of a study of the protocol."""
        settings = {**study["settings"], **study["arms"][arm]}
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        return cls(load_experiment(ROOT / study["file"], overrides).resolved(), basis, sharing)

    def rounds(self, run: Run, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the seconds and the dollars of each round. Evaluations cost nothing."""
        actor, learner = self.experiment.actor, self.experiment.learner
        units = units_of(self.experiment)
        is_on_servers = self.basis == "servers"
        actor_speed, learner_speed = (
            1.0 if is_on_servers else lambda_speed(memory_mib)
            for memory_mib in (actor.memory_mib, learner.function_memory_mib)
        )
        durations = Durations.read(ROOT / learner.durations, is_warm=is_on_servers)
        mib_s_usd = PRICES.functions[actor.architecture].on_demand_usd / 1024
        gradient = learner_function_prices(PRICES, learner, architecture=actor.architecture)
        priced = []
        for version, steps in enumerate(run["env_steps"]):
            actors = run["actor_count"][version]
            actor_s = units["invocation_s"] + steps / actors * units["step_s"]
            if version == 0 and not is_on_servers:
                actor_s += units["init_s"]
            actor_s /= actor_speed
            update_s, gradients_s = durations.update_s(
                seed,
                version,
                run["gradient_steps"][version] * self.sharing,
                samples=self.experiment.algorithm.minibatch_steps // self.sharing,
                learners=learner.learners,
            )
            if self.sharing > 1:
                update_s = np.reshape(gradients_s, (-1, self.sharing)).max(axis=1).sum()
            round_s = actor_s + update_s / learner_speed
            if is_on_servers:
                usd = round_s / 3600 * SERVERS_HOUR_USD
            else:
                usd = round_s * COORDINATOR_MEMORY_MIB * mib_s_usd
                usd += actors * (PRICES.request_usd + actor_s * actor.memory_mib * mib_s_usd)
                for gradient_s in gradients_s:
                    usd += gradient.usd(
                        is_provisioned=False, billed_s=gradient_s / learner_speed, traffic_bytes=0
                    )
            priced.append((round_s, usd))
        seconds, dollars = np.transpose(priced)
        return seconds, dollars


def saving(
    results: Results,
    *,
    studies: Mapping[str, str],
    ours: str,
    theirs: str,
    basis: str,
    of: str,
    at: str,
    sharing: int = 1,
) -> Estimates:
    """Returns the share of the other arm's seconds or dollars that an arm saves. Notes have the means of both.

    Args:
        studies: By label.
        basis: See `StellarisBill`.
        of: ``seconds`` or ``cents``.
        at: See `rounds_compared`.
        sharing: Learners that share each gradient of the other arm; see `StellarisBill`.
    """
    estimates = {}
    for label, study in studies.items():
        definition = results.studies[study]
        bills = (
            StellarisBill.of(definition, ours, basis),
            StellarisBill.of(definition, theirs, basis, sharing),
        )
        our_runs, their_runs = (results.runs(study).get(arm, {}) for arm in (ours, theirs))
        spent = []
        for seed in our_runs:
            if seed in their_runs:
                pair = our_runs[seed], their_runs[seed]
                counts = rounds_compared(pair, at)
                spent.append(
                    [
                        bill.rounds(run, int(seed))[of == "cents"][:count].sum()
                        for bill, run, count in zip(bills, pair, counts, strict=True)
                    ]
                )
        estimate = over_seeds(1.0 - mine / other for mine, other in spent)
        if spent:
            mine, other = np.mean(spent, axis=0) * (100.0 if of == "cents" else 1.0)
            estimate["note"] = f"{mine:.2g} against {other:.2g} {of}"
        estimates[label] = estimate
    return estimates


def returns_and_seconds(results: Results, picture: Mapping[str, Any]) -> Any:
    """Draws returns over rounds, and below them over seconds on the authors' servers; a column for each study.

    Lines are means over seeds, and bands go from the lowest to the highest quarter.

    Args:
        picture: ``studies`` by title; ``arms`` by label.
    """
    studies = {title: study for title, study in picture["studies"].items() if results.runs(study)}
    figure, axes = panels(len(studies), (4.0 * len(studies), 5.6), 2, squeeze=False, sharey="col")
    for (title, study), (above, below) in zip(studies.items(), axes.T, strict=True):
        for (label, arm), colour in zip(picture["arms"].items(), COLOURS, strict=True):
            runs = results.runs(study).get(arm, {})
            if not runs:
                continue
            bill = StellarisBill.of(results.studies[study], arm, "servers")
            curves = np.array([returns(run) for run in runs.values()])
            low, high = np.quantile(curves, (0.25, 0.75), axis=0)
            round_s = np.mean(
                [bill.rounds(run, int(seed))[0] for seed, run in runs.items()], axis=0
            )
            for axis, x in ((above, np.arange(len(round_s)) + 1), (below, np.cumsum(round_s))):
                axis.plot(x, curves.mean(axis=0), color=colour, label=label)
                axis.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
        above.set(title=title, xlabel="round")
        above.xaxis.get_major_locator().set_params(integer=True)
        below.set_xlabel("seconds")
        below.set_ylim(bottom=0)
    for axis in axes[:, 0]:
        axis.set_ylabel("return")
    axes[0, 0].legend(frameon=False)
    return figure
