"""The row of a finished round: the keys of `rounds.jsonl` with meaning, unit and group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, ClassVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from runtime.errors import RunDirectoryError

FIGURE_MAX = 1e250
"""Sums and products of a report's figures stay finite below it."""
Figure = Annotated[float, Field(gt=-FIGURE_MAX, lt=FIGURE_MAX)]
Usd = Annotated[float, Field(ge=0, lt=FIGURE_MAX)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Column:
    """The meaning of one key of a row.

    Attributes:
        meaning: One line of Markdown.
        group: Group in TensorBoard and W&B.
    """

    meaning: str
    group: str = "run"


_return = partial(Column, group="return")
_boosting = partial(Column, group="boosting")
_actors = partial(Column, group="actors")
_learner = partial(Column, group="learner")
_time = partial(Column, group="time")
_cost = partial(Column, group="cost")


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One finished round. Fields are the keys of `rounds.jsonl`, in order; None is written as `null`.

    A figure with a default is one that some learners do not count.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    round_index: Annotated[Count, Column("k, from 1")]
    policy_version: Annotated[
        Count,
        Column("version that this round's actors play; asynchronous: the newest at its start"),
    ]
    eigenvalue_min: Annotated[
        Figure | None, _boosting("extreme eigenvalues of that policy's Hessian")
    ]
    eigenvalue_max: Annotated[
        Figure | None, _boosting("extreme eigenvalues of that policy's Hessian")
    ]
    convexity_ratio: Annotated[
        Figure | None,
        _boosting(
            "R_k; null in round 1, if both eigenvalues have the same sign, or if the detector is late"
        ),
    ]
    hessian_products: Annotated[
        Count | None, _boosting("Hessian-vector products of the detector, or equally long work")
    ] = None
    product_samples: Annotated[Count | None, _boosting("samples of each product")] = None
    boosting_score: Annotated[Figure | None, _boosting("S_k, 0 to 1; null if the detector is late")]
    decay_weight: Annotated[Figure | None, _boosting("d^k")]
    actor_count_wanted: Annotated[Count, _actors("actors that the scaler asked for")]
    actor_count: Annotated[
        Count,
        _actors("actors started; asynchronous: trained on"),
    ]
    actors_returned: Annotated[Count, _actors("trajectories trained on")]
    actors_failed: Annotated[Count, _actors("invocations without an accepted trajectory")]
    actors_late: Annotated[Count, _actors("trajectories of abandoned actors; billed")]
    env_steps: Annotated[Count, Column("steps trained on, without replays")]
    env_steps_total: Annotated[Count, Column("total so far")]
    evaluation_return_mean: Annotated[
        Figure | None,
        _return(
            "mean return of the evaluation that took effect in this round, or of its confirmation"
        ),
    ]
    evaluation_round: Annotated[Count | None, Column("round whose policy it evaluated")]
    evaluated_steps: Annotated[Count | None, Column("steps of evaluations that ended")] = None
    episode_return_mean: Annotated[Figure | None, _return("means of training episodes that ended")]
    episode_length_mean: Annotated[Figure | None, _return("means of training episodes that ended")]
    episodes_finished: Annotated[Count, Column("their number")]
    episodes_spanning_versions: Annotated[Count, Column("those begun with an older policy")]
    replayed_steps: Annotated[
        Count | None,
        Column("steps repeated to restore open episodes, by actors that answered; billed"),
    ] = None
    episodes_dropped: Annotated[
        Count | None, Column("open episodes that no actor can continue")
    ] = None
    policy_loss: Annotated[
        Figure | None,
        _learner("means of the last epoch"),
    ]
    value_loss: Annotated[Figure | None, _learner("means of the last epoch")]
    entropy: Annotated[Figure | None, _learner("means of the last epoch")]
    kl: Annotated[
        Figure | None,
        _learner(
            "mean KL(old ‖ new) after the update; old is the acting policy, or IMPACT's target network; "
            "IMPALA's estimate may be negative",
        ),
    ]
    explained_variance: Annotated[
        Figure | None,
        _learner(
            "share of the value targets' variance that the critic explained before the update"
        ),
    ]
    learning_rate: Annotated[Figure | None, _learner("of the last update")]
    updates: Annotated[Count, _learner("policy updates; 1 if synchronous")]
    staleness_mean: Annotated[Figure, _learner("lag of trajectories, in policy versions")]
    staleness_max: Annotated[Count, _learner("lag of trajectories, in policy versions")]
    replayed_fraction: Annotated[Figure, _learner("share of trajectories trained on before")]
    gradient_steps: Annotated[Count | None, _learner("in all updates")] = None
    samples_trained: Annotated[
        Count | None, _learner("samples of these steps; each pass over a sample counts")
    ] = None
    gradients: Annotated[Count | None, _learner("gradients applied")] = None
    gradients_lost: Annotated[Count | None, _learner("gradients that failed or timed out")] = None
    gradients_late: Annotated[
        Count | None, _learner("gradients too late for their update; billed")
    ] = None
    aggregations: Annotated[Count | None, _learner("times that gradients were applied")] = None
    gradient_staleness_mean: Annotated[
        Figure | None, _learner("mean aggregations between computing and applying a gradient")
    ] = None
    staleness_bound: Annotated[
        Count | None,
        _learner("mean staleness at which gradients are applied; null without a bound"),
    ] = None
    truncated_fraction: Annotated[
        Figure | None, _learner("share of samples with a capped importance ratio")
    ] = None
    instances: Annotated[Count | None, _learner("their number")] = None
    reduce_s: Annotated[Figure | None, _time("time to sum gradients, mean per instance")] = None
    reduce_wait_s: Annotated[Figure | None, _time("the part of it spent waiting")] = None
    instance_memory_mib: Annotated[Figure | None, _learner("largest memory of an instance")] = None
    collect_s: Annotated[
        Figure,
        _time(
            "until all actors are back, detection included; asynchronous: the learner's idle time"
        ),
    ]
    learn_s: Annotated[Figure, _time("updates")]
    detect_s: Annotated[Figure | None, _time("detection")]
    evaluate_s: Annotated[Figure | None, _time("CPU time of the evaluation")]
    actors_billed: Annotated[Count, _actors("invocations billed, replacements included")]
    actor_billed_s_mean: Annotated[Figure | None, _time("their billed durations")]
    actor_billed_s_max: Annotated[Figure | None, _time("their billed durations")]
    actor_cpu_s_mean: Annotated[
        Figure | None, _time("their mean CPU time, without each process's first; null in AWS")
    ]
    actors_waited_s: Annotated[
        Figure | None, _time("their environments' waits together; null if unknown, as in AWS")
    ] = None
    cold_starts: Annotated[Count | None, _actors("cold starts among them")] = None
    lost_steps: Annotated[
        Count | None, _actors("steps of failed and late actors; a whole fragment if unknown")
    ] = None
    round_s: Annotated[Figure, _time("the whole round")]
    actors_cost_usd: Annotated[Usd, _cost("actors' durations, requests and cache traffic")]
    provisioned_cost_usd: Annotated[Usd, _cost("warm actors, by blocks of time that began")]
    learner_cost_usd: Annotated[
        Usd,
        _cost("learner, or all nodes on Ray, while the round ran"),
    ]
    infrastructure_cost_usd: Annotated[
        Usd, _cost("cache capacity, disk and address, for the same time")
    ]
    round_cost_usd: Annotated[Usd, _cost("the four together")]
    spent_usd: Annotated[Usd, _cost("total so far")]
    reserved_usd: Annotated[Usd, _cost("still reserved for actors in flight")]
    round_reserved_usd: Annotated[Usd, _cost("most reserved during the round")]

    @classmethod
    def from_json_line(cls, line: bytes) -> RoundRow:
        """Reads a line of `rounds.jsonl`.

        Raises:
            RunDirectoryError: It is not a JSON object, a key is missing or unknown, or a value is of another type,
                negative where it counts something, or too large.
        """
        try:
            return _READER.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            key, why = " ".join(map(str, first["loc"])), first["msg"][:80]
            if first["type"] not in ("missing", "json_invalid"):
                why = f"{first['input']!r:.40}. {why}"
            raise RunDirectoryError(
                "rounds.jsonl: another version of this program wrote a line, or it was altered: "
                f"{key}: {why}"
            ) from None

    def to_json_line(self) -> bytes:
        """Returns the row as a line of `rounds.jsonl`, with its line break.

        Raises:
            ValueError: A number is not finite.
        """
        return json.dumps(vars(self), allow_nan=False).encode() + b"\n"

    def scalars(self) -> dict[str, float]:
        """Returns the row's numbers under their names in TensorBoard and W&B, without None.

        Both show them against `env_steps_total`.
        """
        values = vars(self)
        return {
            f"{column.group}/{key}": values[key]
            for key, column in COLUMNS.items()
            if values[key] is not None
        }


_HINTS = get_type_hints(RoundRow, include_extras=True)
COLUMNS: Mapping[str, Column] = {
    field.name: get_args(_HINTS[field.name])[-1] for field in fields(RoundRow)
}
"""Describes each key, in the order of `rounds.jsonl`."""
_READER = TypeAdapter(RoundRow)


def return_digits(value: float) -> int:
    """Returns the decimals of a return: three below 10, otherwise one."""
    return 3 if abs(value) < 10 else 1


def return_text(value: float | None) -> str:
    """Returns a return for people; a dash for None."""
    return "–" if value is None else f"{value:,.{return_digits(value)}f}"
