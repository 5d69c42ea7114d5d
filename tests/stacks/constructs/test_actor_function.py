"""The actor function: its cost, its concurrency, and its settings."""

from __future__ import annotations

import re

import pytest

from runtime.fleet import ACTOR_VARIABLES
from stacks.constructs.actor_function import onnx_argument
from tests.helpers import ROOT
from tests.stacks.conftest import STACK, Assembly, Synthesise, flat

MOST_ACTORS, TIMEOUT_S = 6, 200
"""Limits of the small experiment."""


def test_size_and_limits_are_the_experiments(each_cache: Assembly) -> None:
    function = each_cache.only("AWS::Lambda::Function")
    assert (function["MemorySize"], function["Timeout"], function["Architectures"]) == (
        1024,
        TIMEOUT_S,
        ["x86_64"],
    )
    assert function["PackageType"] == "Image"
    assert "EphemeralStorage" not in function
    assert function["FunctionName"] == f"{STACK}-actor"


def test_memory_timeout_and_processor_follow_the_file(synthesise: Synthesise) -> None:
    made = synthesise(
        actor__memory_mib=2048,
        actor__timeout_s=77,
        actor__architecture="arm64",
        actor__provisioned=4,
    )
    function = made.only("AWS::Lambda::Function")
    assert (function["MemorySize"], function["Timeout"], function["Architectures"]) == (
        2048,
        77,
        ["arm64"],
    )
    assert made.image_asset()["platform"] == "linux/arm64"
    assert made.only("AWS::Lambda::Alias")["ProvisionedConcurrencyConfig"] == {
        "ProvisionedConcurrentExecutions": 4
    }


def test_no_more_actors_than_a_round_has_whoever_invokes(synthesise: Synthesise) -> None:
    made = synthesise(context={"actor_concurrency": "1000"})
    assert made.only("AWS::Lambda::Function")["ReservedConcurrentExecutions"] == MOST_ACTORS
    assert "ProvisionedConcurrencyConfig" not in made.only("AWS::Lambda::Alias")


def test_nothing_is_reserved_in_an_account_that_may_be_too_small(each_cache: Assembly) -> None:
    """Lambda refuses a reservation in a new account, which runs ten functions at once."""
    functions = each_cache.resources("AWS::Lambda::Function").values()
    assert [one for one in functions if "ReservedConcurrentExecutions" in one["Properties"]] == []


@pytest.mark.parametrize(
    ("left", "reserved", "provisioned"), [(10, None, None), (106, None, 4), (108, 6, 6)]
)
def test_a_small_account_degrades(
    synthesise: Synthesise, left: int, reserved: int | None, provisioned: int | None
) -> None:
    made = synthesise(context={"actor_concurrency": str(left)}, actor__provisioned=6)
    assert made.only("AWS::Lambda::Function").get("ReservedConcurrentExecutions") == reserved
    warm = made.only("AWS::Lambda::Alias").get("ProvisionedConcurrencyConfig", {})
    assert warm.get("ProvisionedConcurrentExecutions") == provisioned


def test_aws_itself_ends_warm_actors_when_the_lifetime_is_over(
    synthesise: Synthesise, serverless: Assembly
) -> None:
    made = synthesise(actor__provisioned=4)
    target = made.only("AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["ServiceNamespace"], target["ScalableDimension"]) == (
        "lambda",
        "lambda:function:ProvisionedConcurrency",
    )
    assert flat(target["ResourceId"]).startswith("function:")
    assert flat(target["ResourceId"]).endswith(":live")
    # Until then, it changes nothing: there is no policy, and its minimum brings back no ended actor.
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 4)
    (action,) = target["ScheduledActions"]
    assert action["ScalableTargetAction"] == {"MinCapacity": 0, "MaxCapacity": 0}
    assert action["Schedule"] == {
        "Fn::Join": [
            "",
            [
                "at(",
                {"Fn::Select": [0, {"Fn::Split": ["Z", {"Fn::GetAtt": ["GuardCheck", "EndsAt"]}]}]},
                ")",
            ],
        ]
    }
    assert not made.resources("AWS::ApplicationAutoScaling::ScalingPolicy")
    assert not serverless.resources("AWS::ApplicationAutoScaling::ScalableTarget")


def test_a_failed_invocation_is_not_repeated_behind_the_learners_back(serverless: Assembly) -> None:
    config = serverless.only("AWS::Lambda::EventInvokeConfig")
    assert (config["MaximumRetryAttempts"], config["MaximumEventAgeInSeconds"]) == (0, 60)
    (alias,) = serverless.resources("AWS::Lambda::Alias")
    assert alias in str(config["Qualifier"])


def test_without_a_cache_it_is_in_no_network(synthesise: Synthesise) -> None:
    made = synthesise(cache="none")
    assert "VpcConfig" not in made.only("AWS::Lambda::Function")


def test_it_runs_in_isolated_subnets(serverless: Assembly) -> None:
    network = serverless.only("AWS::Lambda::Function")["VpcConfig"]
    assert [re.search(r"Vpc(\w+?)Subnet", flat(subnet))[1] for subnet in network["SubnetIds"]] == [
        "Isolated"
    ] * 2
    assert [flat(group) for group in network["SecurityGroupIds"]] == [
        "<NitroNetwork:ExportsOutputFnGetAttActors3CD0DA6DGroupIdB050DC21>"
    ]


def test_it_logs_into_a_group_that_outlives_the_stack_for_a_week(serverless: Assembly) -> None:
    logs = serverless.resources("AWS::Logs::LogGroup")
    name = flat(serverless.only("AWS::Lambda::Function")["LoggingConfig"]["LogGroup"]).strip("<>")
    assert logs[name]["DeletionPolicy"] == "Retain"
    assert all(group["Properties"]["RetentionInDays"] == 7 for group in logs.values())


def test_its_variables_are_those_of_local_actors_and_hold_no_credentials(
    each_cache: Assembly,
) -> None:
    variables = each_cache.only("AWS::Lambda::Function")["Environment"]["Variables"]
    assert variables == ACTOR_VARIABLES
    source = "".join(path.read_text() for path in (ROOT / "lambda_actor").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\s*[\"'](\w+)", source))
    assert read == {"ACTOR_CACHE_USERNAME", "ACTOR_CACHE_PASSWORD"}, (
        "read by the handler, and only set locally"
    )


def test_the_image_is_built_for_the_processor_and_proves_its_environment(
    serverless: Assembly,
) -> None:
    source = serverless.image_asset()
    assert source["platform"] == "linux/amd64"
    assert source["dockerBuildArgs"] == {
        "ENVIRONMENT_ID": "Hopper-v5",
        "ENVIRONMENT": '{"preprocessing": "auto", "truncate_at_fragment": true}',
    }
    folder = serverless.directory / source["directory"]
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "lambda_actor").rglob("*")
        if path.suffix == ".py"
        or path.name in ("requirements.txt", "requirements-onnx.txt", "py.typed")
    }
    assert names == {"Dockerfile", "package/requirements.txt"} | ours


def test_onnxruntime_is_in_the_image_of_a_trainer_of_the_users_own_alone() -> None:
    assert onnx_argument("external") == {"ONNX": "true"}
    for kind in ("instance", "function", "stellaris", "gmi"):
        assert onnx_argument(kind) == {}
    lines = (ROOT / "lambda_actor" / "Dockerfile").read_text().splitlines()
    assert "ARG ONNX=false" in lines and 'RUN if [ "${ONNX}" = true ]; then \\' in lines


def test_the_dockerfile_ends_as_an_unprivileged_lambda_client() -> None:
    lines = (ROOT / "lambda_actor" / "Dockerfile").read_text().splitlines()
    check = lines.index(
        'RUN python -m lambda_actor.check "${ENVIRONMENT_ID}" 64 "${ENVIRONMENT}" && \\'
    )
    assert lines.index("USER 65534:65534") < check
    assert "lambda_actor.handler" in lines[check + 1]
    assert lines[check + 2 :] == [
        "",
        'ENTRYPOINT ["python", "-m", "awslambdaric"]',
        'CMD ["lambda_actor.handler.handler"]',
    ]
    assert "COPY package/ /package/" in lines
    assert (
        "    cd /package && pip install --constraint /installed.txt --requirement requirements.txt"
        in lines
    )
