"""The trajectory cache: ElastiCache Serverless."""

from __future__ import annotations

import math
from contextlib import closing

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticache as elasticache
from constructs import Construct

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS
from lambda_actor.environments import make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.spaces import Spaces
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.sizes import TRAJECTORIES_MIB, weights_bytes
from runtime.names import CACHE_PORT
from stacks.constructs.roles import allow, arn_of
from stacks.network import NetworkStack
from stacks.plan import Plan

SERVERLESS_ENGINE_VERSION = "8"
ECPU_PER_S_MIN = 1000
ECPU_PER_S_MAX = 15_000_000
FRAGMENT_KIB = 1000
"""The largest MuJoCo environment's fragment, rounded up: an actor may move this per second in addition to weights."""
_GAME = Spaces((4, 84, 84), (1, 84, 84), 4, action_count=18)


class CacheConstruct(Construct):
    """ElastiCache Serverless for Valkey: no capacity to choose, and a ceiling on its cost.

    It has no public address. Its users authenticate with IAM tokens. A Valkey user group needs no user named
    ``default``. Without one, every connection must authenticate.

    Attributes:
        group: Its security group.
        resource: The cache itself.
        url: ``rediss://host:port``, without credentials.
        credential, actor_credential: Where the learner and the actors find theirs; see `lambda_actor.cache`.
        learner_statement, actor_statement: The rights to log in as one.
    """

    def __init__(self, scope: Construct, *, plan: Plan, network: NetworkStack) -> None:
        super().__init__(scope, "Cache")
        name, actors = plan.cache_name, plan.actor_user
        self.group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=network.vpc,
            allow_all_outbound=False,
            description="Nitro trajectory cache: in from actors and learner, nothing out",
        )
        self.group.add_ingress_rule(network.actors, ec2.Port.tcp(CACHE_PORT), "actors")
        # IAM authentication requires equal ids and names.
        users = [
            elasticache.CfnUser(
                self,
                what,
                engine="valkey",
                user_id=user,
                user_name=user,
                authentication_mode={"Type": "iam"},
                access_string=rights,
            )
            for what, user, rights in (
                ("LearnerUser", name, LEARNER_RIGHTS),
                ("ActorsUser", actors, ACTOR_RIGHTS),
            )
        ]
        user_group = elasticache.CfnUserGroup(
            self,
            "Users",
            engine="valkey",
            user_group_id=name,
            user_ids=[user.ref for user in users],
        )
        self.resource = elasticache.CfnServerlessCache(
            self,
            "Cache",
            engine="valkey",
            major_engine_version=SERVERLESS_ENGINE_VERSION,
            serverless_cache_name=name,
            description=f"Trajectories of {plan.stack_name}",
            subnet_ids=network.subnets,
            security_group_ids=[self.group.security_group_id],
            user_group_id=user_group.ref,
            cache_usage_limits=_usage_limits(plan),
            snapshot_retention_limit=0,
        )
        self.url = (
            f"rediss://{self.resource.attr_endpoint_address}:{self.resource.attr_endpoint_port}"
        )
        self.credential, self.actor_credential = (
            f"elasticache-iam://{user}@{name}" for user in (name, actors)
        )
        self.learner_statement, self.actor_statement = (
            # The ARNs' names are in lower case.
            allow(
                "CacheConnect",
                ["elasticache:Connect"],
                [
                    arn_of("elasticache", f"serverlesscache:{name}"),
                    arn_of("elasticache", f"user:{user}"),
                ],
            )
            for user in (name, actors)
        )


def _usage_limits(plan: Plan) -> elasticache.CfnServerlessCache.CacheUsageLimitsProperty:
    """Allows a gigabyte more than trajectories need, for weights and episodes: a full cache would evict, not refuse."""
    gigabytes = TRAJECTORIES_MIB // 1024 + 1
    # One unit is one KiB moved. All actors of a round fetch the weights at once.
    weights_kib = math.ceil(_weights_bytes(plan.experiment) / 1024)
    units = plan.experiment.scaler.most_actors * (weights_kib + FRAGMENT_KIB)
    return elasticache.CfnServerlessCache.CacheUsageLimitsProperty(
        data_storage=elasticache.CfnServerlessCache.DataStorageProperty(
            unit="GB", maximum=gigabytes
        ),
        ecpu_per_second=elasticache.CfnServerlessCache.ECPUPerSecondProperty(
            maximum=min(max(units, ECPU_PER_S_MIN), ECPU_PER_S_MAX)
        ),
    )


def _weights_bytes(experiment: ResolvedExperiment) -> int:
    """Returns the size of the policy's weights; a game's, the largest, if the environment cannot be made here."""
    section = experiment.environment
    try:
        environment = make_environment(section.id, section.preprocessing, section.options)
    except UnusableEnvironmentError:
        return weights_bytes(_GAME, "conv")
    with closing(environment):
        fitted = experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)
        return weights_bytes(environment.spaces, fitted.network.architecture)
