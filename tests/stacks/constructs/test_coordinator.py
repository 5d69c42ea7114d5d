"""A deployment without an instance: two functions beside the actors', and a state machine that runs the rounds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from runtime.aws.guard.check import START_TYPE
from runtime.errors import ExperimentError
from runtime.times import LATE_S, LEG_S
from stacks.constructs.coordinator import HANDLER, UPDATE_HANDLER
from stacks.deploy.costs import limits
from stacks.plan import ROUND_S_MAX, Plan
from tests.stacks.conftest import NAME, RUN, STACK, Assembly, experiment_text, flat


@pytest.fixture(scope="module")
def made(variant: Callable[[str], Assembly]) -> Assembly:
    return variant("function")


def plan_of(tmp_path, context=None, **changes) -> Plan:
    path = tmp_path / "x.yaml"
    path.write_text(
        experiment_text(**{"cache__kind": "none", "learner__kind": "function", **changes})
    )
    return Plan.from_context({"experiment": str(path), **(context or {})}.get)


def test_both_functions_are_of_the_learner_image(made: Assembly) -> None:
    functions = {
        one["Properties"]["FunctionName"]: one["Properties"]
        for one in made.resources("AWS::Lambda::Function").values()
    }
    coordinator, learner = functions[f"{STACK}-coordinator"], functions[f"{STACK}-learner"]
    assert made.image_asset(of_learner=True)["dockerBuildArgs"]["TORCH"] == "cpu"
    for one, handler, timeout_s in ((coordinator, HANDLER, LEG_S), (learner, UPDATE_HANDLER, 60)):
        tag = made.image_asset(of_learner=True)["directory"].removeprefix("asset.")
        assert flat(one["Code"]["ImageUri"]).endswith(f":{tag}")
        assert one["ImageConfig"] == {
            "EntryPoint": ["python", "-m", "awslambdaric"],
            "Command": [handler],
        }
        assert (one["Timeout"], one["Architectures"]) == (timeout_s, ["x86_64"])
    # Only `make deploy` knows whether the account has room.
    assert "ReservedConcurrentExecutions" not in learner
    assert "ReservedConcurrentExecutions" not in coordinator


def test_legs_follow_each_other_until_one_says_that_it_was_the_last(made: Assembly) -> None:
    machine = made.only("AWS::StepFunctions::StateMachine")
    assert (machine["StateMachineName"], machine["StateMachineType"]) == (
        f"{STACK}-coordinator",
        "STANDARD",
    )
    definition = json.loads(flat(machine["DefinitionString"]))
    assert definition["TimeoutSeconds"] == 2 * 3600
    leg = definition["States"]["Leg"]
    assert leg["Parameters"]["Payload"] == {"started_at.$": "$$.Execution.StartTime"}
    assert leg["TimeoutSeconds"] > LEG_S
    throttled, failed = leg["Retry"]
    assert (failed["ErrorEquals"], failed["MaxAttempts"]) == (["States.ALL"], 2)
    # Of the entries that name an error, the first counts.
    assert "Lambda.TooManyRequestsException" in throttled["ErrorEquals"]
    assert "States.ALL" not in throttled["ErrorEquals"]
    pauses_s = [
        min(
            throttled["MaxDelaySeconds"],
            throttled["IntervalSeconds"] * throttled["BackoffRate"] ** number,
        )
        for number in range(throttled["MaxAttempts"])
    ]
    assert 300 < sum(pauses_s) < LATE_S, "the guard ends a run that is silent for longer"
    told = definition["States"]["Tell the guard"]["Parameters"]
    assert told["Key"] == {"run": {"S": f"{NAME}/{RUN}"}}
    assert told["ExpressionAttributeValues"][":stack"] == {"S": "<AWS::StackId>"}
    assert told["ConditionExpression"] == "#stack = :stack", "not a later deployment's entry"
    assert definition["States"]["Leg"]["Catch"][0]["Next"] == "Tell the guard"
    assert definition["States"]["Tell the guard"]["Next"] == "Failed"
    choice = definition["States"]["Done?"]
    assert (choice["Default"], choice["Choices"][0]["Variable"]) == ("Leg", "$.done")


def test_the_stack_itself_starts_the_rounds_when_all_else_is_there(made: Assembly) -> None:
    ((name, start),) = made.resources(START_TYPE).items()
    assert flat(start["Properties"]["ServiceToken"]).startswith(
        "<NitroGuard:ExportsOutputFnGetAttGuard"
    )
    assert (
        flat(start["Properties"]["Machine"]) == f"<{made.name('AWS::StepFunctions::StateMachine')}>"
    )
    assert start["Properties"]["Run"] == RUN
    assert start["DeletionPolicy"] == "Retain", "deletions do not invoke the guard"
    assert set(start["DependsOn"]) == made.template()["Resources"].keys() - {name}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache__kind": "redis"}, ["cache.kind = redis", "allowed: none"]),
        (
            {"cache__kind": "redis", "learner": {"kind": "external"}},
            ["which your process does not reach", "allowed: none"],
        ),
        ({"fleet__kind": "local"}, ["fleet.kind = local", "allowed: auto | lambda"]),
        ({"budget__lifetime_hours": 97}, ["budget.lifetime_hours = 97", "allowed: up to 96"]),
        ({"actor__provisioned": 2}, ["actor.provisioned = 2", "allowed: 0"]),
        (
            {
                "actor__timeout_s": 30,
                "learner__update_timeout_s": 600,
                "fleet__round_deadline_s": 120,
            },
            ["720 s", "learner.update_timeout_s = 600", f"{ROUND_S_MAX:.0f} s together"],
        ),
    ],
)
def test_what_would_have_to_stand_or_takes_too_long_is_refused(tmp_path, changes, words) -> None:
    with pytest.raises(ExperimentError) as caught:
        plan_of(tmp_path, **changes)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("left", "reserved", "at_once"),
    [(None, None, None), (1000, 4, 998), (109, None, 101), (7, None, 1)],
)
def test_as_many_learner_functions_run_at_once_as_there_are_learners(
    tmp_path, left, reserved, at_once
) -> None:
    plan = plan_of(tmp_path, {"actor_concurrency": left}, learner__kind="stellaris")
    assert (plan.reserved_learners, plan.concurrency) == (reserved, at_once)
    assert (plan.reserved_actors is None) == (reserved is None)
    told = limits(plan)["learner"]
    assert "no instance: up to 4 functions of 1769 MiB make updates, 60 s each" in told
