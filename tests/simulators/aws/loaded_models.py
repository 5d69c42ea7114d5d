"""Loads, on import, the service models that actors, learners and their instances use."""

from __future__ import annotations

from tests.simulators.aws.service_models import load

load("autoscaling", "cloudformation", "cloudwatch", "dynamodb", "ecr", "lambda", "logs", "s3")
