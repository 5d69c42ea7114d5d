"""A deployed learner's instance, stack and group: what it reads of them and tells them."""

from __future__ import annotations

import os
from urllib.request import Request, urlopen

from runtime.aws.clients import clients
from runtime.aws.failures import BotoCoreError, ClientError, ResponseParserError
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.log import LOG

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Names the metadata service's address, for boto3 as well."""
_ENDPOINT = "http://169.254.169.254"
_IDENTITY = {"instance_id": "instance-id", "instance_type": "instance-type", "image_id": "ami-id"}
_ANSWER_S = 5.0


def read_metadata(name: str) -> str:
    """Returns a value of the instance's metadata.

    Raises:
        OSError: The metadata service does not answer, or has no such value.
    """
    root = os.environ.get(ENDPOINT_VARIABLE, _ENDPOINT).rstrip("/") + "/latest"
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    asked = Request(f"{root}/api/token", method="PUT", headers=headers)
    with urlopen(asked, timeout=_ANSWER_S) as answer:
        token = answer.read().decode()
    asked = Request(f"{root}/meta-data/{name}", headers={"X-aws-ec2-metadata-token": token})
    with urlopen(asked, timeout=_ANSWER_S) as answer:
        return str(answer.read().decode())


def read_identity() -> dict[str, str]:
    """Returns ``instance_id``, ``instance_type`` and ``image_id``; raises like `read_metadata`."""
    return {name: read_metadata(path) for name, path in _IDENTITY.items()}


def created_at_s(stack: str) -> float:
    """Returns when a stack was created, in seconds since 1970.

    Args:
        stack: Its id.

    Raises:
        ClientError or BotoCoreError: CloudFormation does not answer.
    """
    (found,) = clients()("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return float(found["CreationTime"].timestamp())


def tell_stack(deployment: Deployment, *, is_up: bool) -> bool:
    """Ends the stack's wait for its learner, if it waits.

    Returns:
        False if the stack could not be reached.
    """
    try:
        clients()("cloudformation").signal_resource(
            StackName=deployment.stack,
            LogicalResourceId=deployment.learner_resource,
            UniqueId=deployment.instance_id,
            Status="SUCCESS" if is_up else "FAILURE",
        )
    except ClientError as error:
        # It answered: an existing stack waits for no signal.
        LOG.info("the stack was not told: %s", error)
    except (BotoCoreError, ResponseParserError) as error:
        LOG.warning("the stack cannot be reached: %s", error)
        return False
    return True


def release(deployment: Deployment) -> None:
    """Ends this instance without a replacement. The guard ends all else, since nothing is left to do.

    Raises:
        ClientError: The instance could not be ended.
    """
    clients()("autoscaling").set_desired_capacity(
        AutoScalingGroupName=deployment.learner_group, DesiredCapacity=0, HonorCooldown=False
    )
