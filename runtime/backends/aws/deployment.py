"""What a learner that was deployed to AWS is told: by the stack, through variables of its service's environment."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from runtime.errors import ExperimentError
from runtime.names import ENVIRONMENT_PREFIX, run_key

_CLOCK_SKEW_S = 3600.0
_NUMBERS = {"provisioned": (r"\d{1,5}", "a whole number"), "tail_usd": (r"\d{1,6}(\.\d*)?", "dollars from 0"),
            "billed_since": (r"\d{1,12}(\.\d*)?", "seconds since 1970, not in the future")}
"""Of the attributes that are numbers: the pattern, and what is allowed, for people."""


@dataclass(frozen=True)
class Deployment:
    """One deployment of one experiment; each attribute is the variable NITRO_<ATTRIBUTE>.

    Attributes:
        experiment: Name of the experiment: its file's stem.
        run: Name of the run; the same one is resumed from the bucket.
        stack: Id of the CloudFormation stack; its rights go by that, not by its name.
        actor_function: ARN of the actor function's alias; empty where actors are processes of the learner.
        learner_function: ARN of the function that updates the policy; empty where the learner is an instance.
        provisioned: Actors that it keeps warm: no more than the account's quota left room for.
        cache_url: ``rediss://host:port`` without credentials; empty where the cache runs on the learner, or is none.
        cache_credential: Where the learner finds its credential for the cache; see `lambda_actor.credentials`. Empty
            where the cache runs on it.
        actor_credential: Where actors find theirs, which gives them fewer rights.
        results_bucket: The bucket that results and checkpoints are kept in.
        results_prefix: What the run's keys begin with; ends in ``/``.
        ledger_table: The ledger's.
        tail_usd: Part of the budget that is kept for taking the deployment down.
        learner_group: Name of the Auto Scaling group that holds the learner; empty if that is no instance.
        learner_resource: That group's logical id in the stack.
        billed_since: When the stack was created, or its rounds were begun by no instance, seconds since 1970: before
            that, nothing of it cost money.
        instance_id, instance_type, image_id: Of this instance. Of a coordinator, the first two are the leg's request
            id and memory.
        container_image: What runs on it, by its digest.
        private_address: Of this instance.
    """

    experiment: str
    run: str
    stack: str
    actor_function: str
    learner_function: str
    provisioned: str
    cache_url: str
    cache_credential: str
    actor_credential: str
    results_bucket: str
    results_prefix: str
    ledger_table: str
    tail_usd: str
    learner_group: str
    learner_resource: str
    billed_since: str
    instance_id: str
    instance_type: str
    image_id: str
    container_image: str
    private_address: str

    @property
    def key(self) -> str:
        """Of the run's entry in the ledger."""
        return run_key(self.experiment, self.run)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], now: Callable[[], float] = time.time,
    ) -> Deployment | None:
        """The deployment that ``environment`` describes; None if there is none.

        Args:
            environment: Variables.
            now: Seconds since 1970.

        Raises:
            ExperimentError: It describes one only in part, or an impossible one.
        """
        names = {field.name: ENVIRONMENT_PREFIX + field.name.upper() for field in fields(cls)}
        missing = [variable for variable in names.values() if variable not in environment]
        if len(missing) == len(names):
            return None
        if missing:
            raise ExperimentError(f"the variables {', '.join(missing)} are not set: on a deployed learner all of "
                                  f"{ENVIRONMENT_PREFIX}* are, on other machines none")
        made = cls(**{name: environment[variable] for name, variable in names.items()})
        for name, (pattern, allowed) in _NUMBERS.items():
            value = getattr(made, name)
            if not re.fullmatch(pattern, value, re.ASCII) or (
                    name == "billed_since" and float(value) > now() + _CLOCK_SKEW_S):
                raise ExperimentError(f"{names[name]} = {value!r} is not allowed; allowed: {allowed}")
        return made
