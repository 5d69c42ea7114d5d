"""A deployment without a learner: the resources of a `nitro_rl.ActorPool` in the user's own process."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration
from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.names import FILES_OUTPUT, LEDGER_OUTPUT, POOL_ROLE_OUTPUT, WARM_OUTPUT
from stacks.constructs.acknowledgements import acknowledge_wildcard
from stacks.constructs.actor_function import ActorFunction
from stacks.constructs.learner import upload_files
from stacks.guard import GuardStack
from stacks.plan import Plan

SESSION_HOURS = 1
"""AWS' longest session for a role that another role assumes. The pool renews it."""


class Pool(Construct):
    """The role that a pool assumes, and the files that it reads.

    Attributes:
        role: Invokes this experiment's actors and writes its own attributes of the run's ledger entry. Any principal
            of the account with the right to assume it can do so.
        outputs: The stack's outputs that the pool reads.
    """

    outputs: Mapping[str, str]

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        guard: GuardStack,
        actor: ActorFunction,
    ) -> None:
        super().__init__(scope, construct_id)
        files = upload_files(self, plan)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.AccountRootPrincipal(),
            description="What a pool of actors may do",
            max_session_duration=Duration.hours(SESSION_HOURS),
        )
        actor.grant_invoke(self.role)
        guard.grant_write(self.role, plan.key)
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="OwnFiles",
                actions=["s3:GetObject"],
                resources=[files.bucket.arn_for_objects(files.s3_object_key)],
            )
        )
        acknowledge_wildcard(
            self.role, "*", "Of its actions, GetAccountSettings alone knows no resources"
        )
        self.outputs = {
            POOL_ROLE_OUTPUT: self.role.role_arn,
            FILES_OUTPUT: files.s3_object_url,
            LEDGER_OUTPUT: guard.ledger.table_name,
            WARM_OUTPUT: str(plan.provisioned_actors),
        }
