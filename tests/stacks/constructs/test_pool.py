"""A deployment without a learner: actors, and the role for the pool of a user's process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.aws.guard.stacks import read_deployment
from runtime.errors import ExperimentError
from runtime.money.prices import POOL_USD_PER_HOUR
from stacks.deploy.command import expected_text, limits
from stacks.plan import Plan
from tests.stacks.conftest import NAME, RUN, STACK, Assembly, Synthesise, experiment_text, flat


@pytest.fixture(scope="module")
def made(synthesise: Synthesise) -> Assembly:
    return synthesise(cache="external")


def plan_of(tmp_path, context=None, **changes) -> Plan:
    path = tmp_path / "x.yaml"
    path.write_text(
        experiment_text(**{"cache__kind": "none", "learner": {"kind": "external"}, **changes})
    )
    return Plan.from_context({"experiment": str(path), **(context or {})}.get)


def test_there_are_actors_and_a_role_and_nothing_else(made: Assembly) -> None:
    kinds = {resource["Type"].split("::")[1] for resource in made.template()["Resources"].values()}
    assert kinds == {"Lambda", "IAM", "Logs", "NitroGuardCheck"}
    function = made.only("AWS::Lambda::Function")
    assert (function["FunctionName"], "VpcConfig" in function) == (f"{STACK}-actor", False)
    # The guard finds and limits it like any other.
    tags = [{"Key": key, "Value": value} for key, value in _tags(made).items()]
    deployed = read_deployment(
        {
            "StackName": STACK,
            "StackId": "id",
            "StackStatus": "CREATE_COMPLETE",
            "Tags": tags,
            "CreationTime": _Now(),
        }
    )
    assert deployed is not None and not deployed.unreadable
    assert (deployed.run, deployed.floor_usd_per_hour) == (
        f"{NAME}/{RUN}",
        pytest.approx(POOL_USD_PER_HOUR, abs=1e-4),
    )


class _Now:
    def timestamp(self) -> float:
        return 1.0


def _tags(made: Assembly) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in made.only("AWS::Logs::LogGroup")["Tags"]}


def test_whoever_in_the_account_has_the_right_may_assume_the_role_for_an_hour(
    made: Assembly,
) -> None:
    (role,) = [
        one["Properties"]
        for name, one in made.resources("AWS::IAM::Role").items()
        if name.startswith("Pool")
    ]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert (trust["Action"], trust["Effect"], role["MaxSessionDuration"]) == (
        "sts:AssumeRole",
        "Allow",
        3600,
    )
    assert flat(trust["Principal"]["AWS"]) == "arn:<AWS::Partition>:iam::<AWS::AccountId>:root"
    assert not role.keys() & {"ManagedPolicyArns", "Policies"}


def test_on_everything_it_has_only_a_right_that_knows_no_resources(made: Assembly) -> None:
    (policy,) = [
        one["Properties"]
        for name, one in made.resources("AWS::IAM::Policy").items()
        if name.startswith("Pool")
    ]
    statements = policy["PolicyDocument"]["Statement"]
    assert {one["Action"] for one in statements if one["Resource"] == "*"} == {
        "lambda:GetAccountSettings"
    }
    others = [flat(one["Resource"]) for one in statements if one["Resource"] != "*"]
    assert not [one for one in others if "*" in one]
    assert {one["Action"] for one in statements} == {
        "lambda:InvokeFunction",
        "lambda:GetFunctionConcurrency",
        "lambda:GetAccountSettings",
        "dynamodb:UpdateItem",
        "dynamodb:GetItem",
        "s3:GetObject",
    }


def test_the_outputs_tell_what_a_pool_needs(made: Assembly) -> None:
    outputs = {name: flat(one["Value"]) for name, one in made.template()["Outputs"].items()}
    assert outputs.keys() == {
        "ActorLogs",
        "ActorFunction",
        "PoolRole",
        "PoolFiles",
        "LedgerTable",
        "WarmActors",
    }
    assert outputs["PoolFiles"] == f"s3://{made.learner_key()}"
    assert sorted(path.name for path in made.learner_asset().iterdir()) == [
        "experiment.yaml",
        "prices.json",
    ]
    assert outputs["LedgerTable"] == made.exported("NitroGuard", "LedgerTable")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"cache__kind": "redis"},
            ["cache.kind = redis", "which your process does not reach", "allowed: none"],
        ),
        ({"fleet__kind": "local"}, ["fleet.kind = local", "allowed: auto | lambda"]),
    ],
)
def test_what_a_process_elsewhere_cannot_use_is_refused(tmp_path, changes, words) -> None:
    with pytest.raises(ExperimentError) as caught:
        plan_of(tmp_path, **changes)
    assert [word for word in words if word not in str(caught.value)] == []


def test_without_a_word_about_a_cache_there_is_none(tmp_path) -> None:
    (path := tmp_path / "x.yaml").write_text(
        "environment: {id: Pendulum-v1}\nlearner: {kind: external}\nbudget: {usd: 1}\n"
    )
    plan = Plan.from_context({"experiment": str(path)}.get)
    assert (plan.experiment.cache.kind, plan.experiment.fleet.kind) == ("none", "lambda")


def test_no_limit_of_a_coordinator_counts(tmp_path) -> None:
    plan = plan_of(
        tmp_path, budget__lifetime_hours=200, fleet__round_deadline_s=3600, actor__provisioned=2
    )
    assert (plan.has_instance, plan.has_coordinator, plan.provisioned_actors) == (False, False, 2)
    assert replace(plan, actor_concurrency=7).concurrency == 7


def test_what_it_costs_is_told_without_a_learner(tmp_path) -> None:
    plan = plan_of(tmp_path, actor__provisioned=2, budget__usd=1.0)
    told = " ".join(" ".join(limits(plan)).split())
    for words in (
        "learner none: your own process, which samples with nitro_rl.ActorPool",
        "when the pool is closed",
        "when the pool is silent for 10 minutes",
        "when none was opened in 45",
        "2 kept warm",
    ):
        assert words in told
    assert "for a call of " in expected_text(plan, 1e-3)
    for words in ("promised", "c7i", "coordinator", "results bucket, ", "dashboard"):
        assert words not in told
    expected = plan.estimate
    assert expected.burn_usd_per_hour == pytest.approx(
        POOL_USD_PER_HOUR + expected.provisioned_usd_per_hour
    )
    assert expected.provisioned_usd_per_hour > 10 * POOL_USD_PER_HOUR
    assert plan.start.phases[0].expected_s == pytest.approx(210.0)
    assert replace(plan, actor_concurrency=100).start.phases[0].expected_s == pytest.approx(90.0)
