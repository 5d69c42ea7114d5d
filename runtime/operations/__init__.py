"""What looks at deployments and ends them from outside."""
