"""The trajectory cache: ElastiCache Serverless, an ElastiCache node, the learner itself, or none."""

from __future__ import annotations

import math
from contextlib import closing

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticache as elasticache
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct, IDependable

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS
from lambda_actor.environments import make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.spaces import Spaces
from runtime.config.resolved import ResolvedExperiment
from runtime.cost.prices import CACHE_NODE_TYPE
from runtime.cost.sizes import TRAJECTORIES_MIB, weights_bytes
from runtime.names import CACHE_PORT, SERVERLESS_CACHE_PORT
from stacks.acknowledgements import acknowledge
from stacks.arns import arn_of
from stacks.network import ISOLATED, NetworkStack
from stacks.plan import Plan

NODE_ENGINE_VERSION = "8.2"
NODE_PARAMETER_FAMILY = "valkey8"
SERVERLESS_ENGINE_VERSION = "8"
ECPU_PER_S_MIN = 1000
ECPU_PER_S_MAX = 15_000_000
FRAGMENT_KIB = 1000
"""The largest MuJoCo environment's fragment, rounded up: an actor may move this per second in addition to weights."""
CREDENTIAL_OBJECT = "cache-credential.json"
_GAME = Spaces((4, 84, 84), (1, 84, 84), 4, action_count=18)


class Cache:
    """The cache as the rest of the stack sees it. This base class is no cache: requests and responses carry messages.

    Attributes:
        port: The port; None if there is no cache.
        group: The cache's security group; None if it shares the learner's.
        resource: The resource that must exist before a learner starts; None if there is none.
        url: ``rediss://host:port``, without credentials; empty if the learner finds out by itself.
        credential: Where the learner finds its credential (see `lambda_actor.credentials`); empty if it makes its own.
        actor_credential: Where actors find their credential; empty if there is no cache.
    """

    port: int | None = None
    group: ec2.ISecurityGroup | None = None
    resource: IDependable | None = None
    url = credential = actor_credential = ""

    def grant_learner(self, role: iam.IRole) -> None:
        """Lets ``role`` authenticate to this cache as the learner."""

    def grant_actors(self, role: iam.IRole) -> None:
        """Lets ``role`` authenticate to this cache as an actor."""


def make_cache(
    scope: Construct, *, plan: Plan, network: NetworkStack, results_bucket: s3.IBucket
) -> Cache:
    """Returns the cache that ``cache.kind`` names. For actors on the learner there is none; it runs its own."""
    kind = plan.experiment.cache.kind if plan.has_function else "none"
    if kind == "serverless":
        return ServerlessCache(scope, plan=plan, network=network)
    if kind == "node":
        return NodeCache(scope, plan=plan, network=network)
    return LearnerCache(plan=plan, results_bucket=results_bucket) if kind == "learner" else Cache()


class _CacheUsers(Construct):
    """The users of an ElastiCache cache, who authenticate with IAM tokens, and their group.

    A Valkey user group needs no user named ``default``. Without one, every connection must authenticate.
    """

    def __init__(self, scope: Construct, construct_id: str, *, plan: Plan) -> None:
        super().__init__(scope, construct_id)
        # IAM authentication requires equal ids and names.
        users = [
            elasticache.CfnUser(
                self,
                what,
                engine="valkey",
                user_id=name,
                user_name=name,
                authentication_mode={"Type": "iam"},
                access_string=rights,
            )
            for what, name, rights in (
                ("Learner", plan.cache_name, LEARNER_RIGHTS),
                ("Actors", plan.actor_user, ACTOR_RIGHTS),
            )
        ]
        self.group = elasticache.CfnUserGroup(
            self,
            "Group",
            engine="valkey",
            user_group_id=plan.cache_name,
            user_ids=[user.ref for user in users],
        )


class _ElastiCache(Construct, Cache):
    """An ElastiCache cache in the isolated subnets.

    Attributes:
        kind: The resource type in its ARN.
    """

    kind: str
    port: int
    group: ec2.ISecurityGroup

    def __init__(self, scope: Construct, *, plan: Plan, network: NetworkStack) -> None:
        super().__init__(scope, "Cache")
        self._name, self._actor_user = plan.cache_name, plan.actor_user
        self.group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=network.vpc,
            allow_all_outbound=False,
            description="Nitro trajectory cache: in from actors and learner, nothing out",
        )
        self.group.add_ingress_rule(network.actors, ec2.Port.tcp(self.port), "actors")
        self._subnet_ids = network.vpc.select_subnets(subnet_type=ISOLATED.subnet_type).subnet_ids

    def grant_learner(self, role: iam.IRole) -> None:
        self._grant_connect(role, self._name)

    def grant_actors(self, role: iam.IRole) -> None:
        self._grant_connect(role, self._actor_user)

    def _grant_connect(self, role: iam.IRole, user: str) -> None:
        """Grants ``elasticache:Connect`` on the ARNs of the cache and the user, whose names are in lower case."""
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="CacheConnect",
                actions=["elasticache:Connect"],
                resources=[
                    arn_of("elasticache", one)
                    for one in (f"{self.kind}:{self._name}", f"user:{user}")
                ],
            )
        )


class ServerlessCache(_ElastiCache):
    """ElastiCache Serverless for Valkey: no capacity to choose, and a ceiling on its cost."""

    kind, port = "serverlesscache", SERVERLESS_CACHE_PORT

    def __init__(self, scope: Construct, *, plan: Plan, network: NetworkStack) -> None:
        super().__init__(scope, plan=plan, network=network)
        self.resource = elasticache.CfnServerlessCache(
            self,
            "Cache",
            engine="valkey",
            major_engine_version=SERVERLESS_ENGINE_VERSION,
            serverless_cache_name=self._name,
            description=f"Trajectories of {plan.stack_name}",
            subnet_ids=self._subnet_ids,
            security_group_ids=[self.group.security_group_id],
            user_group_id=_CacheUsers(self, "Access", plan=plan).group.ref,
            cache_usage_limits=_usage_limits(plan),
            snapshot_retention_limit=0,
        )
        self.url = (
            f"rediss://{self.resource.attr_endpoint_address}:{self.resource.attr_endpoint_port}"
        )
        self.credential, self.actor_credential = (
            f"elasticache-iam://{user}@{self._name}?serverless=true"
            for user in (self._name, self._actor_user)
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


class NodeCache(_ElastiCache):
    """One small ElastiCache node for Valkey: the cheapest for runs of many hours."""

    kind, port = "replicationgroup", CACHE_PORT

    def __init__(self, scope: Construct, *, plan: Plan, network: NetworkStack) -> None:
        super().__init__(scope, plan=plan, network=network)
        subnets = elasticache.CfnSubnetGroup(
            self,
            "Subnets",
            description=f"Isolated subnets, for {plan.stack_name}",
            subnet_ids=self._subnet_ids,
        )
        # The default, volatile-lru, would silently evict trajectories, because every key here has a time to live.
        parameters = elasticache.CfnParameterGroup(
            self,
            "Parameters",
            cache_parameter_group_family=NODE_PARAMETER_FAMILY,
            description=f"Refuses what does not fit, for {plan.stack_name}",
            properties={"maxmemory-policy": "noeviction"},
        )
        self.resource = elasticache.CfnReplicationGroup(
            self,
            "Cache",
            replication_group_id=self._name,
            replication_group_description=f"Trajectories of {plan.stack_name}",
            engine="valkey",
            engine_version=NODE_ENGINE_VERSION,
            cache_node_type=CACHE_NODE_TYPE,
            cache_parameter_group_name=parameters.ref,
            cache_subnet_group_name=subnets.ref,
            security_group_ids=[self.group.security_group_id],
            user_group_ids=[_CacheUsers(self, "Access", plan=plan).group.ref],
            port=self.port,
            num_cache_clusters=1,
            automatic_failover_enabled=False,
            multi_az_enabled=False,
            at_rest_encryption_enabled=True,
            transit_encryption_enabled=True,
            transit_encryption_mode="required",
            snapshot_retention_limit=0,
        )
        self.url = (
            f"rediss://{self.resource.attr_primary_end_point_address}:"
            f"{self.resource.attr_primary_end_point_port}"
        )
        self.credential, self.actor_credential = (
            f"elasticache-iam://{user}@{self._name}" for user in (self._name, self._actor_user)
        )
        acknowledge(
            self.resource,
            "AEC6",
            "Its users prove themselves with IAM tokens, which the rule does not know",
        )
        acknowledge(
            self.resource,
            "AEC4",
            "Nothing in it outlives a round: if its zone fails, the learner samples "
            "the round again. A replica in another zone would double its price",
        )


class LearnerCache(Cache):
    """A Valkey server on the learner, which makes its own credential and stores it as an object in the bucket."""

    port = CACHE_PORT

    def __init__(self, *, plan: Plan, results_bucket: s3.IBucket) -> None:
        key = plan.prefix + CREDENTIAL_OBJECT
        self._object_arn = results_bucket.arn_for_objects(key)
        self.actor_credential = f"s3://{results_bucket.bucket_name}/{key}"

    def grant_actors(self, role: iam.IRole) -> None:
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="CacheCredential", actions=["s3:GetObject"], resources=[self._object_arn]
            )
        )
