"""The learner's instance: its cost, its protection, its settings, and that it comes last."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from runtime.aws.learner.deployment import Deployment
from runtime.experiment.instance_types import machine_image
from runtime.experiment.loading import load_experiment
from stacks.constructs.learner import BOOT_SCRIPT, user_data
from stacks.plan import expected_cost
from tests.stacks.conftest import (
    NAME,
    RUN,
    STACK,
    Assembly,
    Synthesise,
    flat,
    variables,
)
from tests.stacks.conftest import user_data as rendered_user_data

FOUND_ON_THE_INSTANCE = {
    "billed_since",
    "instance_id",
    "instance_type",
    "image_id",
    "container_image",
}
USER_DATA_BYTES_MAX = 16_384
"""EC2's limit."""
USER_DATA_LINES_MAX = 120
"""Of the script without exports, comments and empty lines: a person reads it in minutes."""


def launch(made: Assembly) -> dict:
    return made.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]


def instances(made: Assembly) -> tuple[list[str], dict]:
    policy = made.only("AWS::AutoScaling::AutoScalingGroup")["MixedInstancesPolicy"]
    return (
        [override["InstanceType"] for override in policy["LaunchTemplate"]["Overrides"]],
        policy["InstancesDistribution"],
    )


def test_types_that_earn_cpu_credits_buy_none(synthesise: Synthesise, serverless: Assembly) -> None:
    """T3 and T4g buy them by default, and neither the guard nor the meter would count that."""
    made = synthesise(cache="none", learner__instance_types=["t3.small", "t3.micro"])
    assert launch(made)["CreditSpecification"] == {"CpuCredits": "standard"}
    assert "CreditSpecification" not in launch(serverless)


def test_one_instance_of_the_types_in_their_order(serverless: Assembly) -> None:
    group = serverless.only("AWS::AutoScaling::AutoScalingGroup")
    assert (group["MinSize"], group["MaxSize"], group["DesiredCapacity"]) == ("0", "1", "1")
    assert instances(serverless) == (
        ["c7i.large", "m7i.large"],
        {
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": 100,
            "OnDemandAllocationStrategy": "prioritized",
        },
    )
    assert "InstanceType" not in launch(serverless)
    assert len(group["VPCZoneIdentifier"]) == 2
    assert group["AutoScalingGroupName"] == f"{STACK}-learner"


def test_spot_is_all_spot(synthesise: Synthesise) -> None:
    types = ["g5.xlarge", "g4dn.xlarge"]
    assert instances(synthesise(learner__market="spot", learner__instance_types=types)) == (
        types,
        {
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": 0,
            "SpotAllocationStrategy": "price-capacity-optimized",
        },
    )


def test_a_learner_that_does_not_come_up_fails_the_deployment(serverless: Assembly) -> None:
    (group,) = serverless.resources("AWS::AutoScaling::AutoScalingGroup").values()
    assert group["CreationPolicy"] == {"ResourceSignal": {"Count": 1, "Timeout": "PT1050S"}}
    assert "UpdatePolicy" not in group, "a redeployment must not end a learner that trains"


def test_the_instance_is_protected(serverless: Assembly) -> None:
    data = launch(serverless)
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }
    assert data["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/xvda",
            "Ebs": {
                "DeleteOnTermination": True,
                "Encrypted": True,
                "VolumeSize": 30,
                "VolumeType": "gp3",
            },
        }
    ]
    assert "KeyName" not in data
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate", (
        "a stopped instance's volume costs money"
    )
    (interface,) = data["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is True
    assert [flat(group).startswith("<LearnerSecurityGroup") for group in interface["Groups"]] == [
        True
    ]
    (group,) = [
        found["Properties"]
        for name, found in serverless.resources("AWS::EC2::SecurityGroup").items()
        if name.startswith("Learner")
    ]
    assert "SecurityGroupIngress" not in group
    assert [rule["FromPort"] for rule in group["SecurityGroupEgress"]] == [443]


def test_images_for_gpus_need_a_larger_disk(variant: Callable[[str], Assembly]) -> None:
    (device,) = launch(variant("gpu"))["BlockDeviceMappings"]
    assert device["Ebs"]["VolumeSize"] == 100


def test_the_image_is_found_at_deployment(synthesise: Synthesise) -> None:
    made = synthesise(learner__instance_types=["c7g.4xlarge"])
    images = {
        name: parameter["Default"]
        for name, parameter in made.template()["Parameters"].items()
        if parameter["Type"] == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    }
    assert list(images.values()) == [machine_image(["c7g.4xlarge"])]
    (reference,) = [{"Ref": name} for name in images]
    assert launch(made)["ImageId"] == reference


@pytest.mark.parametrize(
    ("types", "image", "gpus", "platform", "torch"),
    [
        (["g4dn.xlarge", "g6.xlarge"], "gpu/recommended/image_id", "all", "linux/amd64", "cuda"),
        (["c7i.4xlarge"], "recommended/image_id", "", "linux/amd64", "cpu"),
        (["c7g.4xlarge"], "arm64/recommended/image_id", "", "linux/arm64", "cpu"),
    ],
)
def test_both_images_fit_the_types(
    synthesise: Synthesise, types: list[str], image: str, gpus: str, platform: str, torch: str
) -> None:
    made = synthesise(learner__instance_types=types, budget__usd=20.0)
    source = made.image_asset(of_learner=True)
    assert f"/aws/service/ecs/optimized-ami/amazon-linux-2023/{image}" in {
        parameter.get("Default") for parameter in made.template()["Parameters"].values()
    }
    assert variables(made)["BOOT_GPUS"] == gpus
    assert (source["platform"], source["dockerBuildArgs"]) == (
        platform,
        {
            "TORCH": torch,
            "ENVIRONMENT_ID": "Hopper-v5",
            "ENVIRONMENT": '{"preprocessing": "auto", "truncate_at_fragment": true, "rescale_actions": true}',
        },
    )


def test_it_is_told_exactly_what_it_reads(serverless: Assembly) -> None:
    told = variables(serverless)
    read = {f"NITRO_{field.name.upper()}" for field in fields(Deployment)}
    found = {f"NITRO_{name.upper()}" for name in FOUND_ON_THE_INSTANCE}
    assert found < read
    assert {name for name in told if name.startswith("NITRO_")} == read - found
    deployment = Deployment.from_environment({**told, **dict.fromkeys(found, "1")})
    assert (deployment.experiment, deployment.results_prefix) == (NAME, f"{NAME}/{RUN}/")
    experiment = load_experiment(serverless.file).resolved(is_deployed=True)
    assert told["NITRO_TAIL_USD"] == f"{expected_cost(experiment).tail_usd:.6f}"
    assert told["NITRO_FILES"] == f"s3://{serverless.learner_key()}"


def test_the_user_data_are_plain_and_short(serverless: Assembly) -> None:
    text = rendered_user_data(serverless)
    assert text.startswith("#!/bin/bash\nexport ")
    assert text.endswith(BOOT_SCRIPT.read_text())
    room = 140 * sum("<" in value for value in variables(serverless).values())
    assert len(text.encode()) + room < USER_DATA_BYTES_MAX, (
        "with every reference resolved to something long"
    )
    lines = re.sub(r"(?m)^\s*(#.*)?\n", "", BOOT_SCRIPT.read_text()).splitlines()
    assert len(lines) <= USER_DATA_LINES_MAX


def test_whatever_a_variable_holds_the_shell_gets_it_whole(tmp_path: Path) -> None:
    script = tmp_path / "boot.sh"
    script.write_text('printf "%s|%s" "$ONE" "$TWO"')
    values = {"ONE": 'it\'s $HOME `id` \\ "x"; exit', "TWO": ""}
    done = subprocess.run(
        ["bash", "-c", user_data(values, script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{values['ONE']}|"


def test_the_boot_script_reads_what_it_is_told_and_no_more(serverless: Assembly) -> None:
    read = set(re.findall(r"\$\{?((?:BOOT|NITRO|AWS)_[A-Z_]+)", BOOT_SCRIPT.read_text()))
    told = set(variables(serverless))
    # What begins with NITRO_ is for the container, to which all of it is given.
    assert read - told == {"BOOT_ROOT"}
    assert {name for name in told if name.startswith("BOOT_")} <= read
