"""The guard: ends deployments. A deployable leaf that needs only boto3."""
