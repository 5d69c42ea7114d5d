"""Properties of every way to deploy: resources, ends, tags, rights, order, deletion."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime.aws.guard.check import (
    ANSWER_S,
    CHECK_TYPE,
    LIFETIME_PROPERTY,
    START_TYPE,
    VERSION,
    VERSION_TYPE,
)
from runtime.aws.guard.needs import Needs
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.learner import metrics
from runtime.money.prices import WATCHED_USD_PER_HOUR
from runtime.names import GUARD_STACK, NETWORK_STACK, RESULTS_STACK
from stacks.plan import Plan
from tests.stacks.conftest import CORPORATE, NAME, RUN, STACK, VARIANTS, Assembly, flat
from tests.stacks.iam.account import Account
from tests.stacks.iam.database import ACCOUNT
from tests.stacks.iam.policies import Request, is_allowed, read_statement

SHARED = (NETWORK_STACK, RESULTS_STACK, GUARD_STACK)
UNTAGGED = {
    "AWS::AutoScaling::ScheduledAction",
    "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::IAM::InstanceProfile",
    "AWS::Lambda::Alias",
    "AWS::Lambda::Version",
    CHECK_TYPE,
    START_TYPE,
}
"""Types that CloudFormation or the CDK does not tag."""
CUSTOM = {CHECK_TYPE, START_TYPE, VERSION_TYPE}
TAGS = {"nitro:experiment": NAME, "nitro:run": RUN, "nitro:budget-usd": "1.0"}
FREE = {
    "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::AutoScaling::ScheduledAction",
    "AWS::EC2::LaunchTemplate",
    "AWS::EC2::SecurityGroup",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::ElastiCache::User",
    "AWS::ElastiCache::UserGroup",
    "AWS::IAM::InstanceProfile",
    "AWS::IAM::Role",
    "AWS::Lambda::Version",
    *CUSTOM,
}
"""Types that cost nothing. Those of `money` do, and each has an end there."""
ENDS_AT = {"Fn::GetAtt": ["GuardCheck", "EndsAt"]}


def resources(made: Assembly, stack: str | None = None) -> dict[str, dict[str, Any]]:
    return made.template(stack)["Resources"]


def every(made: Assembly) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields stack, logical id and resource of everything that is deployed."""
    for stack in (*SHARED, STACK):
        for name, resource in resources(made, stack).items():
            yield stack, name, resource


def manifest(made: Assembly) -> dict[str, Any]:
    return json.loads((made.directory / "manifest.json").read_text())["artifacts"]


def test_whatever_costs_money_has_an_end(made: Assembly) -> None:
    """Without the guard and the learner, too, except for the cache, which no service of AWS ends."""

    def of_group(name: str, _: dict[str, Any]) -> bool:
        end = made.only("AWS::AutoScaling::ScheduledAction")
        return end == {
            "AutoScalingGroupName": {"Ref": name},
            "StartTime": ENDS_AT,
            "MinSize": 0,
            "MaxSize": 0,
            "DesiredCapacity": 0,
        }

    def of_alias(name: str, _: dict[str, Any]) -> bool:
        # Before that it changes nothing: no policy scales, and a minimum of 0 brings back no ended actor.
        target = made.only("AWS::ApplicationAutoScaling::ScalableTarget")
        (action,) = target["ScheduledActions"]
        at = ["at(", {"Fn::Select": [0, {"Fn::Split": ["Z", ENDS_AT]}]}, ")"]
        return (
            flat(target["ResourceId"]).endswith(":live")
            and target["MinCapacity"] == 0
            and action["ScalableTargetAction"] == {"MinCapacity": 0, "MaxCapacity": 0}
            and action["Schedule"] == {"Fn::Join": ["", at]}
        )

    def of_cache(_: str, one: dict[str, Any]) -> bool:
        limits = one["CacheUsageLimits"]
        return (
            limits["DataStorage"] == {"Unit": "GB", "Maximum": 2}
            and "Maximum" in limits["ECPUPerSecond"]
        )

    def of_machine(_: str, one: dict[str, Any]) -> bool:
        lifetime_s = float(made.only(CHECK_TYPE)[LIFETIME_PROPERTY])
        return json.loads(flat(one["DefinitionString"]))["TimeoutSeconds"] == round(lifetime_s)

    money = {
        "AWS::AutoScaling::AutoScalingGroup": of_group,
        "AWS::ElastiCache::ServerlessCache": of_cache,
        "AWS::Lambda::Alias": of_alias,
        "AWS::Lambda::Function": lambda _, one: one["Timeout"] <= 900,
        "AWS::StepFunctions::StateMachine": of_machine,
        "AWS::Logs::LogGroup": lambda _, one: one["RetentionInDays"] == 7,
    }
    for name, one in resources(made).items():
        if one["Type"] not in FREE:
            assert money[one["Type"]](name, one["Properties"]), name


def test_everything_waits_until_the_guard_has_said_that_it_guards(made: Assembly) -> None:
    ((name, check),) = made.resources(CHECK_TYPE).items()
    properties = check["Properties"]
    assert flat(properties.pop("ServiceToken")).startswith(
        f"<{GUARD_STACK}:ExportsOutputFnGetAttGuard"
    )
    assert float(properties.pop(LIFETIME_PROPERTY)) > 3600
    needs = Needs.read(properties)
    told = {"ServiceTimeout": str(ANSWER_S), "Version": VERSION, **needs.properties()}
    assert properties == told
    others = {other: one for other, one in resources(made).items() if other != name}
    assert [other for other, one in others.items() if name not in one.get("DependsOn", [])] == []
    assert GUARD_STACK in manifest(made)[STACK]["dependencies"], "it is there before"
    assert f'"{GUARD_STACK}:' in json.dumps(made.template()), (
        "CloudFormation keeps what is imported"
    )


def test_the_learner_starts_last(made: Assembly) -> None:
    rest = {"AWS::AutoScaling::ScheduledAction", START_TYPE}
    for kind in ("AWS::AutoScaling::AutoScalingGroup", START_TYPE):
        for name in made.resources(kind):
            later = [other for other in _before(made, name) if other != name]
            missing = resources(made).keys() - {name, *later}
            kinds = {resources(made)[other]["Type"] for other in missing}
            assert kinds <= rest | {"AWS::IAM::InstanceProfile"}, kinds


def _before(made: Assembly, name: str) -> set[str]:
    """Returns all resources that must exist before creation of this one begins."""
    own = resources(made)[name]
    text = json.dumps(own)
    found = {
        other
        for other in resources(made)
        if other != name
        and (
            other in own.get("DependsOn", [])
            or f'"Ref": "{other}"' in text
            or f'"Fn::GetAtt": ["{other}"' in text
        )
    }
    return found.union(*(_before(made, other) for other in found))


def test_all_that_can_be_tagged_is(made: Assembly) -> None:
    for name, one in resources(made).items():
        tags = one["Properties"].get("Tags", [])
        if one["Type"] == "AWS::EC2::LaunchTemplate":
            specified = one["Properties"]["LaunchTemplateData"]["TagSpecifications"]
            assert {spec["ResourceType"] for spec in specified} == {"instance", "volume"}
            tags = min((spec["Tags"] for spec in specified), key=len)
        elif one["Type"] == "AWS::AutoScaling::AutoScalingGroup":
            assert all(tag["PropagateAtLaunch"] for tag in tags)
        if one["Type"] not in UNTAGGED:
            assert TAGS.items() <= {tag["Key"]: tag["Value"] for tag in tags}.items(), name


@pytest.mark.parametrize("name", VARIANTS)
def test_the_guard_finds_the_stack_by_its_own_tags_and_they_are_the_estimates(
    variant: Callable[[str], Assembly], name: str
) -> None:
    made = variant(name)
    tags = manifest(made)[STACK]["properties"]["tags"]
    deployed = read_deployment(
        {
            "StackName": STACK,
            "StackId": "id",
            "StackStatus": "CREATE_COMPLETE",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            "CreationTime": datetime.datetime.now(datetime.UTC),
        }
    )
    assert deployed is not None
    assert (deployed.run, deployed.unreadable) == (f"{NAME}/{RUN}", "")
    context = {"experiment": str(made.file), **(VARIANTS[name].get("context") or {})}
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("CDK_DEFAULT_REGION", VARIANTS[name].get("region", "us-east-1"))
        plan = Plan.from_context(context.get)
    assert deployed.lifetime_s == plan.experiment.budget.lifetime_hours * 3600
    for key in ("burn", "floor", "cache", "provisioned"):
        figure = f"{key}_usd_per_hour"
        assert 0.0 <= getattr(deployed, figure) - getattr(plan.estimate, figure) <= 0.0001
    assert 0.0 <= deployed.tail_usd - plan.estimate.tail_usd <= 0.0001
    for stack in SHARED:
        assert "nitro:run" not in manifest(made)[stack]["properties"].get("tags", {})


def test_nothing_but_logs_outlives_the_stack(made: Assembly) -> None:
    for name, one in resources(made).items():
        # A question to the guard leaves nothing behind.
        is_left = one["Type"] in CUSTOM or one["Type"] == "AWS::Logs::LogGroup"
        expected = "Retain" if is_left else "Delete"
        assert one.get("DeletionPolicy", "Delete") == expected, name
        assert one.get("UpdateReplacePolicy", "Delete") == expected, name
        assert "LogGroupName" not in one["Properties"], "the next deployment would meet it"
    assert "UpdatePolicy" not in json.dumps(made.template()), "an update would end a learner"


def test_roles_have_their_rights_in_themselves_and_are_for_one_principal(made: Assembly) -> None:
    boundary = "arn:<AWS::Partition>:iam::<AWS::AccountId>:policy/acme-boundary"
    for stack, name, one in every(made):
        assert one["Type"] not in ("AWS::IAM::Policy", "AWS::IAM::User", "AWS::IAM::ManagedPolicy")
        if one["Type"] != "AWS::IAM::Role":
            continue
        properties = one["Properties"]
        assert [policy["PolicyName"] for policy in properties["Policies"]] == ["Rights"]
        assert "ManagedPolicyArns" not in properties
        (trust,) = properties["AssumeRolePolicyDocument"]["Statement"]
        ((_, principal),) = trust["Principal"].items()
        assert (trust["Action"], flat(principal)) == ("sts:AssumeRole", _principal(made, name)), (
            name
        )
        if "states" in flat(principal):
            assert trust["Condition"] == {
                "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
            }
        found = properties.get("PermissionsBoundary")
        assert (flat(found) if found else None) == (boundary if _is_corporate(made) else None)
        # IAM's limit for all inline policies of a role, with every reference resolved to something long.
        text = json.dumps(properties["Policies"][0]["PolicyDocument"], separators=(",", ":"))
        assert len(text) < 10_240, f"{stack} {name}"


def _principal(made: Assembly, role: str) -> str:
    if role.startswith("PoolRole"):
        return "arn:<AWS::Partition>:iam::<AWS::AccountId>:root"
    if role.startswith("LearnerMachineRole"):
        return "states.amazonaws.com"
    profiles = made.resources("AWS::IAM::InstanceProfile").values()
    is_instance = any(flat(one["Properties"]["Roles"][0]) == f"<{role}>" for one in profiles)
    return "ec2.amazonaws.com" if is_instance else "lambda.amazonaws.com"


def _is_corporate(made: Assembly) -> bool:
    return "acme" in made.template()["Parameters"]["BootstrapVersion"]["Default"]


def test_every_alarm_notifies_the_guards_topic_which_lets_cloudwatch_publish(
    made: Assembly,
) -> None:
    account = Account(made)
    (topic,) = [arn for arn in account.arns(GUARD_STACK) if ":sns:" in arn]
    alarms = [
        (stack, one["Properties"])
        for stack, _, one in every(made)
        if one["Type"] == "AWS::CloudWatch::Alarm"
    ]
    for stack, alarm in alarms:
        assert [account.text(stack, action) for action in alarm["AlarmActions"]] == [topic]
    assert {stack for stack, _ in alarms} == {GUARD_STACK}
    (policy,) = account.resources("AWS::SNS::TopicPolicy", GUARD_STACK).values()
    admitted = [
        read_statement(one, lambda value: account.text(GUARD_STACK, value))
        for one in policy["Properties"]["PolicyDocument"]["Statement"]
        if one["Principal"] in ("*", {"AWS": "*"}, {"Service": "cloudwatch.amazonaws.com"})
    ]
    context = {"aws:SourceAccount": (ACCOUNT,), "aws:SecureTransport": ("true",)}
    assert is_allowed(admitted, Request("sns:Publish", topic, context))


def test_what_cloudwatch_keeps_is_what_is_counted(serverless: Assembly) -> None:
    # With images with CUDA: 3.3 and 0.3 GB.
    month_usd = 0.30 * len(metrics.METRICS) + 0.10 * 3.6
    assert pytest.approx(month_usd / 730 + 60 * 0.00001) == WATCHED_USD_PER_HOUR


def test_experiments_import_only_what_is_always_exported(made: Assembly) -> None:
    """The shared stacks are the same with any experiment, so no deployment removes what another one uses."""
    for stack in SHARED:
        exports = {
            output["Export"]["Name"]
            for output in made.template(stack).get("Outputs", {}).values()
            if "Export" in output
        }
        imports = set(re.findall(rf'"({stack}:[^"]+)"', json.dumps(made.template())))
        assert imports <= exports


@pytest.mark.parametrize("stack", SHARED)
def test_the_shared_stacks_do_not_depend_on_the_experiment(
    variant: Callable[[str], Assembly], stack: str
) -> None:
    names = [
        name for name in VARIANTS if name not in ("corporate", "two zones", "warm", "stellaris")
    ]
    texts = {json.dumps(variant(name).template(stack)) for name in names}
    assert len(texts) == 1
    assert variant("warm").template(stack) == variant("stellaris").template(stack)


def test_no_secret_in_any_template(made: Assembly) -> None:
    pattern = re.compile(
        rb"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:password|secret|token)[\"']?\s*[:=]\s*"
        rb"[\"'][^\"'{}$]{6,}|://[^/\s:\"']+:[^/\s@\"']+@"
    )
    for path in made.directory.glob("*.template.json"):
        assert pattern.findall(path.read_bytes()) == [], path.name
    assert pattern.search(b'{"password": "hunter22"}')


def test_only_a_cache_needs_a_network_of_functions(made: Assembly) -> None:
    has_cache = bool(made.resources("AWS::ElastiCache::ServerlessCache"))
    for one in made.resources("AWS::Lambda::Function").values():
        assert ("VpcConfig" in one["Properties"]) == has_cache
    rules = {
        kind: sorted(
            (flat(rule[key]), rule["FromPort"], rule["ToPort"])
            for rule in (
                one["Properties"]
                for one in made.resources(f"AWS::EC2::SecurityGroup{kind}").values()
            )
            for key in (
                "GroupId",
                f"{'Source' if kind == 'Ingress' else 'Destination'}SecurityGroupId",
            )
        )
        for kind in ("Ingress", "Egress")
    }
    if not has_cache:
        assert rules == {"Ingress": [], "Egress": []}
        return
    groups = {
        re.match("Cache|Learner", name)[0]: f"<{name}>"
        for name in made.resources("AWS::EC2::SecurityGroup")
    }
    (actors,) = made.only("AWS::Lambda::Function")["VpcConfig"]["SecurityGroupIds"]
    cache, learner = ((groups[name], 6379, 6379) for name in ("Cache", "Learner"))
    assert rules["Ingress"] == sorted([cache, cache, learner, (flat(actors), 6379, 6379)])
    assert rules["Egress"] == sorted([cache, learner])


def test_an_organisations_requirements_are_met_by_every_stack(
    variant: Callable[[str], Assembly],
) -> None:
    made, plain = variant("corporate"), variant("none")
    texts = {path.name: path.read_text() for path in made.directory.glob("*.json")}
    assert [name for name, text in texts.items() if "hnb659fds" in text] == []
    for stack in (*SHARED, "NitroMail", STACK):
        tags = manifest(made)[stack]["properties"]["tags"]
        assert (tags["team"], tags["cost-center"]) == ("rl", "42")
        assert len(tags) <= 50
    for stack in (*SHARED, STACK):
        for name, one in resources(made, stack).items():
            before = json.dumps(resources(plain, stack).get(name, {}))
            # Every resource with tags has these, and keeps the ones it had.
            if '"Tags"' in before or '"TagSpecifications"' in before:
                assert '"cost-center"' in json.dumps(one), name
                assert ('"nitro:run"' in before) == ('"nitro:run"' in json.dumps(one)), name
    assert {one["Type"] for one in resources(made, NETWORK_STACK).values()} == {
        "AWS::CloudFormation::WaitConditionHandle"
    }
    data = made.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    assert data["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is False
    assert data["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] == CORPORATE["ebs_key"]
    assert made.only(CHECK_TYPE)["DiskKey"] == CORPORATE["ebs_key"], "the guard checks the default"
    subnets = made.only("AWS::AutoScaling::AutoScalingGroup")["VPCZoneIdentifier"]
    assert subnets == CORPORATE["subnets"].split(",")
    group = made.only("AWS::EC2::SecurityGroup")
    assert (group["VpcId"], "SecurityGroupIngress" in group) == (CORPORATE["vpc"], False)
    out = [(rule["IpProtocol"], rule["FromPort"]) for rule in group["SecurityGroupEgress"]]
    assert out == [("tcp", 443), ("udp", 53), ("tcp", 53)], "its name servers may be its own"
