"""A deployed learner's calls to its own stack and group."""

from __future__ import annotations

from runtime.aws.clients import clients
from runtime.aws.failures import BotoCoreError, ClientError, ResponseParserError
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.log import LOG


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
