"""The network that all experiments share.

It remains when an experiment is taken down: functions' network interfaces can delay a VPC's deletion for most of an
hour, and idle it costs nothing. To keep it free, it has no NAT gateways and no interface endpoints. Only the learner
has a public address: actors and caches have none, so the internet is out of their reach, and their security groups name
the cache's port alone. The actors' security group is here because the same interfaces would delay the deletion of a
group in the experiment's stack.
"""

from __future__ import annotations

from aws_cdk import CfnWaitConditionHandle, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from runtime.names import CACHE_PORT
from stacks.constructs.roles import acknowledge
from stacks.organisation import OwnNetwork

HTTPS_PORT = 443
ZONES = 2
"""ElastiCache Serverless needs two, and some accounts have no more, such as those in us-west-1."""
FIT_ZONES = {"us-east-1": ("use1-az2", "use1-az4")}
"""Permanent ids of zones, by region. In us-east-1 any letter can be use1-az3, which has no Lambda, no ElastiCache
Serverless and no recent GPUs. Elsewhere the region's first zones are fit."""


class NetworkStack(Stack):
    """A VPC with a subnet in each of two zones, and the actors' security group; or an existing VPC.

    Attributes:
        vpc: The VPC. Its default security group keeps AWS' default: open among its members. CloudFormation could close
            it only through a Lambda function with rights on EC2, which would be the larger hole. Nothing here is a
            member.
        is_own: Whether the VPC is an existing one. Then only learners run in it, without public addresses.
        subnets: Ids of the subnets in which learners start, and caches are.
        actors: Security group of every experiment's actors: out to the caches, nothing in. An existing VPC
            has none.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        region: str,
        own: OwnNetwork | None = None,
    ) -> None:
        """Composes the network.

        Args:
            scope: The app.
            construct_id: The stack's name.
            region: The region that the app is synthesized for.
            own: An existing VPC.
        """
        super().__init__(scope, construct_id, description="Nitro: the network of all experiments")
        self.is_own = own is not None
        if own is not None:
            # Only its id is used.
            self.vpc: ec2.IVpc = ec2.Vpc.from_vpc_attributes(
                self, "Vpc", vpc_id=own.vpc, availability_zones=[Fn.select(0, Fn.get_azs())]
            )
            self.subnets = list(own.subnets)
            # CloudFormation makes no stack without a resource.
            CfnWaitConditionHandle(self, "Nothing")
            return
        self._make_vpc(FIT_ZONES.get(region, ()))
        self.actors = self._make_actors_group()
        self._export_all()

    def _make_vpc(self, fit_zones: tuple[str, ...]) -> None:
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr("10.0.0.0/16"),
            availability_zones=[Fn.select(index, Fn.get_azs()) for index in range(ZONES)],
            nat_gateways=0,
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=20,
                    map_public_ip_on_launch=False,
                )
            ],
        )
        for subnet, zone in zip(self.vpc.public_subnets, fit_zones, strict=False):
            made = subnet.node.default_child
            assert isinstance(made, ec2.CfnSubnet), "the CDK's own subnet"
            made.availability_zone = None
            made.availability_zone_id = zone
        self.subnets = [subnet.subnet_id for subnet in self.vpc.public_subnets]
        acknowledge(
            self.vpc,
            "VPC7",
            "Security groups let nothing in but the caches' clients. A flow log would record the "
            "internet's probes of the learner's address; an organisation has its own for a VPC of its own",
        )

    def _make_actors_group(self) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self,
            "Actors",
            vpc=self.vpc,
            allow_all_outbound=False,
            description="Nitro actors: out to the caches",
        )
        group.add_egress_rule(
            ec2.Peer.ipv4(self.vpc.vpc_cidr_block), ec2.Port.tcp(CACHE_PORT), "a trajectory cache"
        )
        return group

    def _export_all(self) -> None:
        """Exports everything that any experiment may import.

        If the current experiment decided that, deploying it could remove an export that another one still uses.
        """
        self.export_value(self.vpc.vpc_id)
        self.export_value(self.actors.security_group_id)
        for subnet in self.subnets:
            self.export_value(subnet)
