"""The results bucket, shared by all experiments, which outlives them."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.constructs.roles import acknowledge

NONCURRENT_DAYS = 1
"""S3's minimum; it deletes at the following midnight (UTC). Checkpoints are replaced after a few rounds: keeping a
game's for 30 days would cost a quarter to half of the run's budget, uncounted."""
INCOMPLETE_UPLOAD_DAYS = 7


class ResultsStack(Stack):
    """The results bucket, which remains when everything else is taken down.

    Attributes:
        bucket: Encrypted, versioned, reachable over TLS only, never public.
        arn: Its ARN, as other stacks import it.
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id, description="Nitro: results of all experiments")
        self.bucket = s3.Bucket(
            self,
            "Results",
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    noncurrent_version_expiration=Duration.days(NONCURRENT_DAYS),
                    abort_incomplete_multipart_upload_after=Duration.days(INCOMPLETE_UPLOAD_DAYS),
                    expired_object_delete_marker=True,
                )
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
        # Otherwise the bucket would outlive the policy that requires TLS.
        assert self.bucket.policy is not None, "enforce_ssl makes one"
        self.bucket.policy.apply_removal_policy(RemovalPolicy.RETAIN)
        self.export_value(self.bucket.bucket_name)
        self.arn = self.export_value(self.bucket.bucket_arn)
        acknowledge(
            self.bucket,
            "S1",
            "Access logs would need a second bucket that is itself never logged. Only the roles of "
            "an experiment's learner and actors reach this one, each its own run's prefix, and what they replace "
            f"or delete is kept for {NONCURRENT_DAYS} day. CloudTrail's data events can provide an audit trail",
        )
