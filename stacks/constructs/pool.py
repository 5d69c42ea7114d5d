"""A deployment without a learner: the resources of a `nitro_rl.ActorPool` in the user's own process."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.names import (
    FILES_OUTPUT,
    FUNCTION_OUTPUT,
    LEDGER_OUTPUT,
    POOL_ROLE_OUTPUT,
    WARM_OUTPUT,
)
from stacks.constructs.actor_function import ActorFunction
from stacks.constructs.learner import files_statement, upload_files
from stacks.constructs.roles import make_role
from stacks.guard import GuardStack
from stacks.plan import Plan


class Pool(Construct):
    """The role that a pool assumes, and the files that it reads.

    The role invokes this experiment's actors and writes its own attributes of the run's ledger entry. Any principal of
    the account with the right to assume it can do so, for an hour at a time: the pool renews it.

    Attributes:
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
        rights = [*actor.statements, *guard.ledger_statements(plan.key), files_statement(files)]
        role = make_role(
            self,
            "Role",
            "What a pool of actors may do",
            iam.AccountRootPrincipal(),
            rights,
        )
        self.outputs = {
            FUNCTION_OUTPUT: actor.arn,
            POOL_ROLE_OUTPUT: role.role_arn,
            FILES_OUTPUT: files.s3_object_url,
            LEDGER_OUTPUT: guard.ledger.table_name,
            WARM_OUTPUT: str(plan.provisioned_actors),
        }
