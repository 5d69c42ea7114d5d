"""The guard: ends deployments. A deployable leaf that needs nothing but boto3."""
