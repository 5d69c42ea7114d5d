"""The row of a finished round: what `rounds.jsonl` holds, with the meaning, unit and group of every key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Annotated, Any, get_args, get_type_hints

from runtime.errors import RunDirectoryError, one_line
from runtime.records.files import INTEGER_MAX, from_json


@dataclass(frozen=True)
class Column:
    """What one key of a row means.

    Attributes:
        meaning: For people, one line of Markdown.
        group: Under which TensorBoard and W&B show it.
        unit: Empty for counts, versions and numbers without a unit.
    """

    meaning: str
    group: str = "run"
    unit: str = ""


_return = partial(Column, group="return")
_boosting = partial(Column, group="boosting")
_actors = partial(Column, group="actors")
_learner = partial(Column, group="learner")
_time = partial(Column, group="time", unit="s")
_cost = partial(Column, group="cost", unit="USD")


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One finished round. Fields are the keys of `rounds.jsonl`, in their order; None is written as `null`."""

    round_index: Annotated[int, Column("k, counted from 1")]
    policy_version: Annotated[int, Column(
        "version of the policy that this round's actors rolled out; in an asynchronous round, the newest one when it "
        "began. 0 is the initial policy")]
    eigenvalue_min: Annotated[float | None, _boosting(
        "smallest eigenvalue of the maximised objective's Hessian, for that policy")]
    eigenvalue_max: Annotated[float | None, _boosting(
        "largest eigenvalue of the maximised objective's Hessian, for that policy")]
    convexity_ratio: Annotated[float | None, _boosting(
        "R_k = −λ_max / λ_min; null without samples (round 1), without curvatures of both signs, or if the detector "
        "was not done before an asynchronous round ended")]
    gradient_noise: Annotated[float | None, _boosting(
        "tr Σ, variance of a single sample's gradient of the detector's objective, at that policy; null unless the "
        "scaler reads the noise scale, and as `convexity_ratio`")]
    gradient_square: Annotated[float | None, _boosting(
        "estimate of the squared norm of the true gradient, without bias, so that it may come out below 0")]
    noise_scale: Annotated[float | None, _boosting(
        "B_noise = tr Σ / |G|² in samples, the ratio of both smoothed over the rounds; null if the smoothed |G|² is "
        "not above 0")]
    boosting_score: Annotated[float | None, _boosting("S_k in [0, 1]; null if the detector was not done in time")]
    decay_weight: Annotated[float | None, _boosting("d^k")]
    actor_count_wanted: Annotated[int, _actors("actors that the scaler asked for")]
    actor_count: Annotated[int, _actors(
        "actors started; in an asynchronous round, those whose trajectories it trained on, or, with "
        "algorithm.round_steps, the most in flight at once. Fewer than wanted if the budget or stop.max_steps had no "
        "room for more, or if a deadline cut the round")]
    actors_returned: Annotated[int, _actors("trajectories that were accepted and trained on, each counted once")]
    actors_failed: Annotated[int, _actors(
        "invocations that ended without an accepted trajectory, replaced or not, in all attempts at the round")]
    actors_late: Annotated[int, _actors(
        "trajectories that came after the round had given them up; discarded, but billed")]
    env_steps: Annotated[int, Column("environment steps trained on in this round; replays do not count")]
    env_steps_total: Annotated[int, Column("environment steps trained on since the start; replays do not count")]
    evaluation_return_mean: Annotated[float | None, _return(
        "mean return of whole episodes with deterministic actions, by the evaluation that decided in this round; of "
        "one that reached the target, over the fresh episodes that confirm it; null in rounds without one")]
    evaluation_round: Annotated[int | None, Column(
        "the round that left the policy of that evaluation; null in rounds without one")]
    episode_return_mean: Annotated[float | None, _return(
        "mean return of the training episodes that ended in this round; null if none did")]
    episode_length_mean: Annotated[float | None, _return("their mean length in steps; null if none ended")]
    episodes_finished: Annotated[int, Column("training episodes that ended in this round")]
    episodes_spanning_versions: Annotated[int, Column(
        "how many of them an older policy version had begun, so that their return belongs to no single version")]
    replayed_steps: Annotated[int | None, Column(
        "steps that actors took again to continue open episodes, all of them billed; a process of this machine that "
        "left an episode open takes none. null if this environment's episodes are not replayed")] = None
    episodes_dropped: Annotated[int | None, Column(
        "episodes that were begun and that nobody finishes: the last ones of fragments, if this environment's episodes "
        "cannot be continued, of which no step is trained on; and open ones whose every continuation raised")] = None
    policy_loss: Annotated[float | None, _learner(
        "mean over the last epoch; null in a call of a pool, which trains nothing, as the next five")]
    value_loss: Annotated[float | None, _learner("mean over the last epoch")]
    entropy: Annotated[float | None, _learner("mean over the last epoch", unit="nats")]
    kl: Annotated[float | None, _learner(
        "mean KL(old ‖ new) over the whole batch after the update; old is the acting policy, for IMPACT the target "
        "network. For IMPALA it is estimated from the actions taken, and may come out a little below 0", unit="nats")]
    explained_variance: Annotated[float | None, _learner(
        "share of the value targets' variance that the critic explained before the update; null if they do not vary")]
    learning_rate: Annotated[float | None, _learner("of the last update")]
    updates: Annotated[int, _learner(
        "updates of the policy in this round, each a new version; 1 in a synchronous round")]
    staleness_mean: Annotated[float, _learner(
        "versions between the policy that acted and the one that was updated, mean over the trajectories of these "
        "updates, replayed ones included; 0 in a synchronous round")]
    staleness_max: Annotated[int, _learner("the most of them")]
    replayed_fraction: Annotated[float, _learner("share of these trajectories that had been trained on before")]
    gradients: Annotated[int | None, _learner(
        "learner.kind = stellaris: gradients of learner functions that were applied; null with any other, as the next "
        "six")] = None
    gradients_lost: Annotated[int | None, _learner("gradients whose learner function failed or took too long")] = None
    gradients_late: Annotated[int | None, _learner(
        "gradients of earlier updates that came since the last one; billed, but not applied")] = None
    aggregations: Annotated[int | None, _learner(
        "how often gradients were applied, each time a version that learners pull")] = None
    gradient_staleness_mean: Annotated[float | None, _learner(
        "aggregations between the policy that a gradient was computed at and the one that it was applied to, mean over "
        "the gradients")] = None
    staleness_bound: Annotated[int | None, _learner(
        "their mean staleness at which waiting gradients are applied; null if there was no bound")] = None
    truncated_fraction: Annotated[float | None, _learner("share of the samples whose importance ratio was cut")] = None
    instances: Annotated[int | None, _learner(
        "learner.kind = gmi: instances that made the update; null with any other, as the next three")] = None
    reduce_s: Annotated[float | None, _time(
        "in which an instance summed gradients with the others, mean over the instances")] = None
    reduce_wait_s: Annotated[float | None, _time("of them, those in which it waited for others")] = None
    instance_memory_mib: Annotated[float | None, _learner(
        "the most memory that an instance has had", unit="MiB")] = None
    collect_s: Annotated[float, _time(
        "until all actors were back, detection included; in an asynchronous round, how long the learner had nothing "
        "to do")]
    learn_s: Annotated[float, _time("the updates")]
    detect_s: Annotated[float | None, _time(
        "the detector, which runs while the first actors do; null if it did not run")]
    evaluate_s: Annotated[float | None, _time(
        "CPU-seconds of the evaluation that decided in this round, which ran beside it; null in rounds without one")]
    modelled_detect_s: Annotated[float | None, _time(
        "for how long the detector counts in the bill: its products times the seconds of `rates.json`; in AWS, "
        "`detect_s`")]
    modelled_learn_s: Annotated[float, _time("the same of the updates")]
    modelled_evaluate_s: Annotated[float | None, _time(
        "the same of the evaluation, without the time in which the learner had to wait for actors anyway")]
    modelled_round_s: Annotated[float, _time(
        "the round with every actor on a machine of its own: max(slowest first actor, `modelled_detect_s` + slowest "
        "boosted actor) + `modelled_learn_s`; asynchronous: max(billed seconds of all that ended / actors in flight, "
        "`modelled_learn_s`); with learner.kind = gmi, by the clock")]
    actors_billed: Annotated[int, _actors(
        "invocations that ended in this round and cost something, replacements included")]
    actor_billed_s_mean: Annotated[float | None, _time(
        "mean billed duration of an invocation that ended in this round; null if none did")]
    actor_billed_s_max: Annotated[float | None, _time(
        "longest billed duration of an invocation that ended in this round; null if none did")]
    actor_cpu_s_mean: Annotated[float | None, _time(
        "mean measured CPU time of those of them that were not the first of their process, which makes its "
        "environment; null if there is none, and in AWS")]
    round_s: Annotated[float, _time("the whole round, with what it waits for an evaluation")]
    actors_cost_usd: Annotated[float, _cost(
        "durations, requests and cache traffic of the actors that ended in this round")]
    provisioned_cost_usd: Annotated[float, _cost(
        "five-minute blocks of provisioned concurrency that began in this round")]
    learner_cost_usd: Annotated[float, _cost(
        "the learner instance for `modelled_round_s` + `modelled_evaluate_s`, rejected attempts at the round included; "
        "in AWS, by the clock; on a Ray cluster all of its nodes, by the clock")]
    infrastructure_cost_usd: Annotated[float, _cost("cache capacity, disk and public address for the same time")]
    round_cost_usd: Annotated[float, _cost("the four together, rejected attempts at the round included")]
    spent_usd: Annotated[float, _cost("spent since the start, after this round")]
    reserved_usd: Annotated[float, _cost("still reserved after this round: for actors in flight")]
    round_reserved_usd: Annotated[float, _cost(
        "the most that was reserved in this round: its worst case when all of its actors had started")]

    @staticmethod
    @cache
    def optional() -> frozenset[str]:
        """Keys that rows of an older version may lack; they are None then."""
        return frozenset(one.name for one in fields(RoundRow) if one.default is None)

    @staticmethod
    @cache
    def columns() -> Mapping[str, Column]:
        """Describes each key, in the order of `rounds.jsonl`."""
        hints = get_type_hints(RoundRow, include_extras=True)
        return {one.name: get_args(hints[one.name])[1] for one in fields(RoundRow)}

    @classmethod
    def from_json_line(cls, line: bytes) -> RoundRow:
        """Reads a line of `rounds.jsonl`.

        Raises:
            RunDirectoryError: It is no JSON object, or not one of this version's rows.
        """
        try:
            found = from_json(line)
        except ValueError as error:
            raise RunDirectoryError(f"rounds.jsonl: a line is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise RunDirectoryError(f"rounds.jsonl: a line is not a JSON object but {type(found).__name__}")
        return cls.from_mapping(found)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RoundRow:
        """Reads a row from its keys and values.

        Raises:
            RunDirectoryError: A key is missing or unknown, its value is of another type, or a number is not finite or
                is too large.
        """
        known = cls.columns()
        wrong = [f"{words} {', '.join(keys)}" for words, keys in {
            "lacks": [key for key in known if key not in mapping and key not in cls.optional()],
            "has the unknown": [key for key in mapping if key not in known],
        }.items() if keys]
        if wrong:
            raise RunDirectoryError(f"rounds.jsonl, round {mapping.get('round_index', 'of unknown number')}: "
                                    f"{' and '.join(wrong)}; another version of this program wrote it, or it was "
                                    "altered")
        return cls(**mapping).checked()

    def checked(self) -> RoundRow:
        """Returns the row itself.

        Raises:
            RunDirectoryError: A value is of another type, or a number is not finite or is too large.
        """
        where = f"rounds.jsonl, round {self.round_index}"
        for key, types in _types().items():
            value = getattr(self, key)
            if type(value) not in types:
                raise RunDirectoryError(f"{where}: {key} is {value!r}; "
                                        f"allowed: {' | '.join(one.__name__ for one in types)}")
            if value is not None and not (abs(value) <= INTEGER_MAX if type(value) is int else math.isfinite(value)):
                raise RunDirectoryError(f"{where}: {key} is {one_line(repr(value), 40)}; "
                                        f"allowed: finite numbers, whole ones up to {INTEGER_MAX}")
        return self

    def to_json_line(self) -> bytes:
        """Returns the row as a line of `rounds.jsonl`, its line break included.

        Raises:
            ValueError: A number is not finite.
        """
        return json.dumps(vars(self), allow_nan=False).encode() + b"\n"

    def scalars(self) -> dict[str, float]:
        """Returns the row's numbers under their names in TensorBoard and W&B; what is None is left out.

        Both show them against `env_steps_total`.
        """
        values = vars(self)
        return {f"{column.group}/{key}": values[key] for key, column in self.columns().items()
                if values[key] is not None}


def return_digits(value: float) -> int:
    """Digits of a return after the point: three below 10, where one would hide most of it, else one."""
    return 3 if abs(value) < 10 else 1


def return_text(value: float | None) -> str:
    """A return for people; a dash for None."""
    return "–" if value is None else f"{value:,.{return_digits(value)}f}"


@cache
def _types() -> Mapping[str, tuple[type, ...]]:
    """The JSON types that each key's value may have; a whole number may stand for a float."""
    allowed = {}
    for name, hint in get_type_hints(RoundRow).items():
        types = get_args(hint) or (hint,)
        allowed[name] = (*types, int) if float in types else types
    return allowed
