"""Commands that inspect and end deployments from outside."""
