"""Importing this reads the models of what actors, learners and their instances call."""

from __future__ import annotations

from tests.simulators.aws.service_models import load

load("autoscaling", "cloudformation", "cloudwatch", "dynamodb", "ecr", "lambda", "logs", "s3")
