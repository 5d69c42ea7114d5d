"""The deployment as described by the stack in the environment variables of a learner's service."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runtime.errors import ExperimentError
from runtime.names import ENVIRONMENT_PREFIX, run_key


@dataclass(frozen=True)
class Deployment:
    """One deployment of one experiment; each attribute is the variable NITRO_<ATTRIBUTE>.

    Attributes:
        experiment: Name of the experiment, the stem of its file.
        run: Name of the run; a run with the same name resumes from the bucket.
        stack: Id of the CloudFormation stack; permissions depend on it, not on the name.
        actor_function: ARN of the actor function's alias; empty if actors are processes of the learner.
        learner_function: ARN of the function that updates the policy; empty if the learner is an instance.
        provisioned: Actors kept warm, within the account's quota.
        cache_url: ``rediss://host:port`` without credentials; empty if there is no cache in AWS.
        cache_credential: Where the learner finds its credential for the cache; see `lambda_actor.cache`.
        actor_credential: Where actors find theirs, which has fewer rights.
        results_bucket: Bucket for results and checkpoints.
        results_prefix: Prefix of the run's keys; ends in ``/``.
        files: ``s3://`` URL of a zip with the experiment file and the prices, as they were deployed.
        ledger_table: Name of the ledger's table.
        tail_usd: Part of the budget reserved for the teardown.
        learner_group: Name of the Auto Scaling group of the learner; empty if the learner is not an instance.
        learner_resource: The group's logical id in the stack.
        billed_since: When the stack was created, or without an instance when its rounds began, seconds since 1970;
            before that, nothing in it cost money.
        instance_id, instance_type, image_id: Of this instance. For a coordinator, the first two are the leg's request
            id and memory.
        container_image: Image that runs on it, with digest.
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
    files: str
    ledger_table: str
    tail_usd: str
    learner_group: str
    learner_resource: str
    billed_since: str
    instance_id: str
    instance_type: str
    image_id: str
    container_image: str

    @property
    def key(self) -> str:
        """Returns the key of the run's entry in the ledger."""
        return run_key(self.experiment, self.run)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **found: str) -> Deployment:
        """Returns the deployment that ``environment`` describes.

        Args:
            environment: Environment variables.
            found: Attributes that the stack does not know.

        Raises:
            ExperimentError: The description is incomplete.
        """
        names = {one.name: ENVIRONMENT_PREFIX + one.name.upper() for one in fields(cls)}
        given = {**environment, **{names[name]: value for name, value in found.items()}}
        missing = [variable for variable in names.values() if variable not in given]
        if missing:
            raise ExperimentError(
                f"the variables {', '.join(missing)} are not set, as they are on a deployed learner"
            )
        return cls(**{name: given[variable] for name, variable in names.items()})


def fetch_files(store: Any, url: str, folder: Path) -> Path:
    """Unpacks the run's own files, which no image contains, and returns the experiment file's path.

    Args:
        store: S3 client.
        url: ``s3://BUCKET/KEY`` of a zip.
        folder: Target folder.

    Raises:
        ClientError or BotoCoreError: They cannot be read.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    found = store.get_object(Bucket=bucket, Key=key)["Body"].read()
    with zipfile.ZipFile(io.BytesIO(found)) as files:
        files.extractall(folder)
    return folder / "experiment.yaml"
