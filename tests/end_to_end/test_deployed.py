"""``python -m runtime.aws.learner.learner`` as systemd runs it, with all of AWS, real actors and server on this
machine.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from runtime.aws.learner.instance import ENDPOINT_VARIABLE
from runtime.aws.learner.learner import END_INSTANCE, TRY_AGAIN
from runtime.aws.ledger import FINISHED, STARTING, TRAINING, Entry, Ledger
from runtime.money.prices import PRICES, WATCHED_USD_PER_HOUR, PriceTable, prices_to_json
from runtime.names import METRIC_NAMESPACE
from runtime.times import HEARTBEAT_S
from tests.conftest import TOKEN_USER
from tests.end_to_end.test_crashes import finished_rounds
from tests.fleet.lambda_fleets import ACTOR_ENVIRONMENT
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    SMALL_EXPERIMENT,
    create_ledger_table,
    events,
    results_only,
    rounds,
    summary,
    wait_for,
)
from tests.simulators.aws.lambda_endpoint import LambdaEndpoint
from tests.simulators.aws.loopback import LoopbackServer, QuietHandler
from tests.simulators.aws.metadata import InstanceMetadata
from tests.simulators.aws.moto_server import CREDENTIALS, REGION, MotoServer
from tests.simulators.rehearsal.clock import PATH_VARIABLE, Clock

BUCKET, PREFIX, GROUP, TABLE = "results", "small/first/", "Nitro-small-learner", "ledger"
FILES = "files"
OWN_LEARNER, CLOCKED_LEARNER = "runtime.aws.learner.learner", "tests.simulators.rehearsal.learner"
RUN, TAIL_USD = "small/first", 0.0625
CREDENTIAL = f"elasticache-iam://{TOKEN_USER}@nitro-small"
MOST_ACTORS = 6
ENDLESS_EXPERIMENT = SMALL_EXPERIMENT.replace("max_rounds: 5", "max_rounds: 5000")
_ANSWER = (
    '<{0}Response xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/">{1}</{0}Response>'
)
_STACK = (
    "<DescribeStacksResult><Stacks><member><CreationTime>{}</CreationTime></member></Stacks>"
    "</DescribeStacksResult>"
)


class _SignalHandler(QuietHandler):
    def do_POST(self) -> None:
        asked = dict(parse_qsl(self.body().decode()))
        if asked["Action"] == "DescribeStacks":
            content = _STACK.format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        else:
            content = ""
            self.server.owner.received.append(asked)
        self.answer(200, _ANSWER.format(asked["Action"], content).encode())


class Signals(LoopbackServer):
    """CloudFormation: a stack that is made now, and learners' signals to it."""

    def __init__(self) -> None:
        super().__init__(_SignalHandler)
        self.received: list[dict[str, str]] = []


@dataclass
class Account:
    """The deployment's resources in AWS, and the learners started in it."""

    directory: Path
    moto: MotoServer
    functions: LambdaEndpoint
    signals: Signals
    metadata: dict[str, InstanceMetadata] = field(default_factory=dict)
    function: str = ""
    cache_url: str = ""
    learners: list[subprocess.Popen] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    """Holds the instances' metadata."""

    def start(
        self,
        out: Path,
        *,
        instance: str = "i-1",
        text: str = SMALL_EXPERIMENT,
        prices: PriceTable = PRICES,
        clock: Clock | None = None,
        **changed: str,
    ) -> subprocess.Popen:
        """Starts a learner on ``instance``, with the variables that its container gets.

        Args:
            clock: Replaces the machine's.
        """
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as files:
            files.writestr("experiment.yaml", text)
            files.writestr("prices.json", prices_to_json(prices))
        self.moto.client("s3").put_object(Bucket=FILES, Key="small.zip", Body=packed.getvalue())
        metadata = self.metadata[instance] = self.stack.enter_context(
            InstanceMetadata(
                {"instance-id": instance, "instance-type": "g4dn.xlarge", "ami-id": "ami-1"}
            )
        )
        process = subprocess.Popen(
            [sys.executable, "-m", OWN_LEARNER if clock is None else CLOCKED_LEARNER, str(out)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **{
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(("AWS_", "CACHE_"))
                },
                **CREDENTIALS,
                "AWS_REGION": REGION,
                "SSL_CERT_FILE": str(self.authority),
                "PYTHONPATH": str(ROOT),
                "AWS_ENDPOINT_URL": self.moto.url,
                "AWS_ENDPOINT_URL_LAMBDA": self.functions.url,
                "AWS_ENDPOINT_URL_CLOUDFORMATION": self.signals.url,
                "NITRO_EXPERIMENT": "small",
                "NITRO_RUN": "first",
                "NITRO_STACK": "Nitro-small",
                "NITRO_ACTOR_FUNCTION": self.function,
                "NITRO_LEARNER_FUNCTION": "",
                "NITRO_PROVISIONED": "0",
                "NITRO_CACHE_URL": self.cache_url,
                "NITRO_CACHE_CREDENTIAL": CREDENTIAL,
                "NITRO_RESULTS_BUCKET": BUCKET,
                "NITRO_ACTOR_CREDENTIAL": CREDENTIAL,
                "NITRO_RESULTS_PREFIX": PREFIX,
                "NITRO_LEARNER_GROUP": GROUP,
                "NITRO_LEDGER_TABLE": TABLE,
                "NITRO_TAIL_USD": str(TAIL_USD),
                "NITRO_LEARNER_RESOURCE": "LearnerGroup",
                "NITRO_FILES": f"s3://{FILES}/small.zip",
                ENDPOINT_VARIABLE: metadata.url,
                "NITRO_CONTAINER_IMAGE": "learner@sha256:1",
                PATH_VARIABLE: str(clock.path) if clock else "",
                **changed,
            },
        )
        self.learners.append(process)
        return process

    def run(self, out: Path, **options: Any) -> tuple[int, str]:
        """Runs a learner to its end; returns its exit code and output."""
        return finish(self.start(out, **options))

    def add_function(self, name: str) -> str:
        """Adds a function that contains only this project; returns its ARN."""
        return self.functions.add_function(
            name,
            concurrency=MOST_ACTORS,
            environment={**ACTOR_ENVIRONMENT, "SSL_CERT_FILE": str(self.authority)},
        )

    def kept(self, name: str) -> bytes:
        """Returns the bucket's object of that name."""
        return self.moto.client("s3").get_object(Bucket=BUCKET, Key=PREFIX + name)["Body"].read()

    def names(self) -> set[str]:
        found = (
            self.moto.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=PREFIX).get("Contents", [])
        )
        return {one["Key"].removeprefix(PREFIX) for one in found}

    @property
    def authority(self) -> Path:
        """Certificate of the cache's authority, which learner and actors trust."""
        return self.directory / "authority.pem"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.moto.client("dynamodb"), TABLE)

    @property
    def entry(self) -> Entry:
        return self.ledger.get(RUN)

    @property
    def desired(self) -> int:
        (group,) = self.moto.client("autoscaling").describe_auto_scaling_groups(
            AutoScalingGroupNames=[GROUP]
        )["AutoScalingGroups"]
        return group["DesiredCapacity"]

    def told(self) -> list[tuple[str, str, str]]:
        """Returns the signals that the stack received, with their instances."""
        assert {one["Action"] for one in self.signals.received} <= {"SignalResource"}
        return [(one["StackName"], one["UniqueId"], one["Status"]) for one in self.signals.received]

    def forget(self) -> None:
        """Resets to the state right after a first deployment, with no earlier learner."""
        for learner in self.learners:
            learner.kill()
            learner.communicate()
        self.learners.clear()
        self.stack.close()
        self.signals.received.clear()
        store = self.moto.client("s3")
        for one in store.list_object_versions(Bucket=BUCKET).get("Versions", []):
            store.delete_object(Bucket=BUCKET, Key=one["Key"], VersionId=one["VersionId"])
        self.moto.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=GROUP, DesiredCapacity=1
        )
        self.moto.client("dynamodb").delete_item(TableName=TABLE, Key={"run": {"S": RUN}})
        self.ledger.tick(time.time())
        self.ledger.notice(RUN, stack="Nitro-small", began_at_s=0.0)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with MotoServer() as moto, LambdaEndpoint() as functions, Signals() as signals:
        account = Account(tmp_path_factory.mktemp("account"), moto, functions, signals)
        for bucket in (BUCKET, FILES):
            moto.client("s3").create_bucket(Bucket=bucket)
        moto.client("s3").put_bucket_versioning(
            Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}
        )
        create_ledger_table(moto.client("dynamodb"), TABLE)
        groups = moto.client("autoscaling")
        groups.create_launch_configuration(
            LaunchConfigurationName="learner", ImageId="ami-12c6146b", InstanceType="g4dn.xlarge"
        )
        groups.create_auto_scaling_group(
            AutoScalingGroupName=GROUP,
            LaunchConfigurationName="learner",
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            AvailabilityZones=[f"{REGION}a"],
        )
        account.function = account.add_function("Nitro-small-actor")
        yield account
        account.forget()


@pytest.fixture
def account(aws: Account, request: pytest.FixtureRequest) -> Iterator[Account]:
    """A fresh deployment, with a cache that speaks TLS, and takes any token."""
    aws.forget()
    server = request.getfixturevalue("tls_server")
    aws.cache_url = f"rediss://127.0.0.1:{server.port}"
    aws.authority.write_bytes(server.certificate.read_bytes())
    yield aws
    aws.forget()


def finish(learner: subprocess.Popen) -> tuple[int, str]:
    printed, _ = learner.communicate(timeout=PATIENCE_S)
    return learner.returncode, printed


def test_it_trains_as_on_one_machine_and_everything_is_kept(
    account: Account, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, printed = account.run(out)
    assert code == 0, printed
    assert results_only(rounds(out)) == results_only(rounds(reference))
    files = [path for path in out.rglob("*") if path.is_file() and path.name[0] != "."]
    files.remove(out / "ledger.json")
    assert account.entry.ledger == (out / "ledger.json").read_text()
    for path in files:
        name = path.relative_to(out).as_posix()
        assert account.kept(name) == path.read_bytes(), name
    ended = json.loads(account.kept("ended.json"))
    assert (ended["stop_reason"], ended["error"], ended["exit_code"]) == ("max_rounds", None, 0)
    assert (ended["stack"], ended["instance_id"], ended["image_id"]) == (
        "Nitro-small",
        "i-1",
        "ami-1",
    )
    _check_bill(account.entry, rounds(out), summary(out))
    _check_metrics(account, rounds(out))
    assert account.told()[0] == ("Nitro-small", "i-1", "SUCCESS")
    assert account.desired == 0


def _check_bill(entry: Entry, rows: list[dict[str, Any]], ended: dict[str, Any]) -> None:
    assert ended["cost_basis"] == "metered"
    spent = [row["spent_usd"] for row in rows]
    assert spent == sorted(spent)
    assert (
        0.0 < sum(row["round_cost_usd"] for row in rows) <= ended["spent_usd"] < ended["budget_usd"]
    )
    assert (entry.state, entry.reason, entry.stack) == (FINISHED, "max_rounds", "Nitro-small")
    # The ledger also has its own last write, which comes after the summary.
    assert 0.0 <= entry.spent_usd - ended["spent_usd"] < 1e-5
    assert entry.reserved_usd == 0.0
    assert entry.burn_usd_per_hour == pytest.approx(
        0.526 + 0.0084 + 0.005 + 30 * 0.08 / 730 + 360 * 12 * 0.005e-3 + WATCHED_USD_PER_HOUR
    )


def _check_metrics(account: Account, rows: list[dict[str, Any]]) -> None:
    client, now = account.moto.client("cloudwatch"), time.time()
    found = client.list_metrics(Namespace=METRIC_NAMESPACE)["Metrics"]
    assert {"EpisodeReturn", "Actors", "ConvexityRatio", "SpentUsd", "RoundReservedUsd"} <= {
        one["MetricName"] for one in found
    }
    (point,) = client.get_metric_statistics(
        Namespace=METRIC_NAMESPACE,
        MetricName="Actors",
        Period=10**6 // 60 * 60,
        Statistics=["Sum"],
        Dimensions=[{"Name": "Experiment", "Value": "small"}, {"Name": "Run", "Value": "first"}],
        StartTime=now - 80_000,
        EndTime=now + 3600,
    )["Datapoints"]
    assert point["Sum"] == sum(row["actor_count"] for row in rows)


def test_a_replacement_continues_from_the_bucket_and_then_there_is_nothing_left_to_do(
    account: Account, reference: Path, tmp_path: Path
) -> None:
    first = account.start(tmp_path / "first", text=ENDLESS_EXPERIMENT)
    wait_for(lambda: finished_rounds(tmp_path / "first") >= 2, "two rounds")
    first.kill()
    finish(first)
    assert account.desired == 1

    code, printed = account.run(tmp_path / "second", instance="i-2")
    assert code == 0, printed
    assert events(tmp_path / "second", "run_started")[-1]["resumed_after_round"] >= 1
    assert results_only(rounds(tmp_path / "second")) == results_only(rounds(reference))
    assert account.kept("rounds.jsonl") == (tmp_path / "second" / "rounds.jsonl").read_bytes()
    for name in ("policy.safetensors", "best_policy.safetensors"):
        assert account.kept(name) == (reference / name).read_bytes(), name
    assert events(tmp_path / "second", "reservation_forfeited"), (
        "the first one had reserved a round"
    )
    assert account.desired == 0

    account.signals.received.clear()
    assert account.run(tmp_path / "third", instance="i-3")[0] == 0
    assert account.told() == [("Nitro-small", "i-3", "SUCCESS")]
    assert rounds(tmp_path / "third") == rounds(tmp_path / "second")

    ended, other = account.kept("ended.json"), SMALL_EXPERIMENT.replace("seed: 3", "seed: 4")
    code, printed = account.run(tmp_path / "other", text=other)
    assert (code, "was another experiment" in printed) == (0, True), printed
    assert account.kept("ended.json") == ended, "a refusal does not change how the run ended"
    assert "seed is 4 now" in json.loads(account.kept("refused.json"))["error"]


def test_of_two_learners_the_older_ends_and_one_that_ec2_takes_back_keeps_everything(
    account: Account, tmp_path: Path
) -> None:
    older = account.start(tmp_path / "older", text=ENDLESS_EXPERIMENT)
    wait_for(
        lambda: finished_rounds(tmp_path / "older") >= 1 and "rounds.jsonl" in account.names(),
        "a round",
    )
    older.send_signal(signal.SIGSTOP)
    newer = account.start(tmp_path / "newer", text=ENDLESS_EXPERIMENT, instance="i-2")
    wait_for(lambda: finished_rounds(tmp_path / "newer") >= 2, "two rounds")

    older.send_signal(signal.SIGCONT)
    code, printed = finish(older)
    assert (code, "another learner or pool continues" in printed) == (END_INSTANCE, True), printed
    assert account.desired == 1
    assert "ended.json" not in account.names()

    rows = finished_rounds(tmp_path / "newer")
    wait_for(lambda: finished_rounds(tmp_path / "newer") > rows, "the newer one to continue")
    newer.send_signal(signal.SIGTERM)
    code, printed = finish(newer)
    assert code == 128 + signal.SIGTERM, printed
    assert account.entry.state == STARTING, "another one will come"
    assert account.desired == 1
    assert "ended.json" not in account.names()
    assert json.loads(account.kept("summary.json"))["stop_reason"] == "interrupted"
    for name in ("rounds.jsonl", "policy.safetensors", "events.jsonl"):
        assert account.kept(name) == (tmp_path / "newer" / name).read_bytes(), name
    assert account.entry.ledger == (tmp_path / "newer" / "ledger.json").read_text()


def test_an_environment_that_no_actor_can_import_ends_it_in_the_first_round(
    account: Account, tmp_path: Path
) -> None:
    module = tmp_path / "only_on_the_learner"
    module.mkdir()
    (module / "own_environment.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('Hopper-v5')\n"
    )
    text = SMALL_EXPERIMENT.replace(
        "{id: Hopper-v5}", "{id: 'own_environment:make', truncate_at_fragment: true}"
    )
    code, printed = account.run(
        tmp_path / "run",
        text=text,
        PYTHONPATH=f"{ROOT}:{module}",
        NITRO_ACTOR_FUNCTION=account.add_function("without-it"),
    )
    assert code == 0, printed
    assert finished_rounds(tmp_path / "run") == 0
    ended = json.loads(account.kept("ended.json"))
    assert (ended["stop_reason"], ended["exit_code"]) == ("failed", 1)
    assert "No module named 'own_environment'" in ended["error"]
    assert account.told()[-1] == ("Nitro-small", "i-1", "FAILURE")
    assert account.desired == 0


def test_trouble_that_may_pass_is_no_reason_to_end_the_deployment(
    account: Account, tmp_path: Path
) -> None:
    code, printed = account.run(tmp_path / "run", NITRO_CACHE_URL="rediss://127.0.0.1:1")
    assert (code, "ServerError" in printed or "does not answer" in printed) == (TRY_AGAIN, True), (
        printed
    )
    assert account.desired == 1
    assert account.told() == []
    assert not {"ended.json", "refused.json"} & account.names()


def test_a_learner_that_is_told_to_end_keeps_its_results_stops_its_actors_and_does_not_come_back(
    account: Account, tmp_path: Path
) -> None:
    clock = Clock(tmp_path / "clock")
    clock.start()
    learner = account.start(tmp_path / "run", text=ENDLESS_EXPERIMENT, clock=clock)
    wait_for(lambda: finished_rounds(tmp_path / "run") >= 2, "two rounds")
    entry = account.entry
    assert (entry.state, entry.order) == (TRAINING, None)
    account.ledger.order(RUN, stack="Nitro-small", reason="stopped by hand", now_s=time.time())
    clock.advance(HEARTBEAT_S)
    code, printed = finish(learner)
    assert code == 0, printed
    entry = account.entry
    assert (entry.state, entry.reason) == (FINISHED, "taken down: stopped by hand")
    assert (entry.reserved_usd, account.desired) == (0.0, 0)
    assert json.loads(account.kept("ended.json"))["stop_reason"] == "taken down: stopped by hand"
    assert account.kept("rounds.jsonl") == (tmp_path / "run" / "rounds.jsonl").read_bytes()

    code, printed = account.run(tmp_path / "late", instance="i-2", text=ENDLESS_EXPERIMENT)
    assert (code, "is being taken down" in printed) == (0, True), printed
    assert finished_rounds(tmp_path / "late") == 0
    _check_that_a_later_deployment_goes_on(account, tmp_path, len(rounds(tmp_path / "run")))


def _check_that_a_later_deployment_goes_on(account: Account, tmp_path: Path, done: int) -> None:
    """Uses a larger budget, and the prices of its own deployment."""
    spent_usd = account.entry.spent_usd
    account.ledger.close(RUN, stack="Nitro-small", spent_usd=spent_usd, now_s=time.time())
    account.ledger.notice(RUN, stack="a later one", began_at_s=time.time())
    text = SMALL_EXPERIMENT.replace("max_rounds: 5", f"max_rounds: {done + 1}")
    prices = PRICES.model_copy(
        update={"instance_hour_usd": dict.fromkeys(PRICES.instance_hour_usd, 7.0)}
    )
    code, printed = account.run(
        tmp_path / "again",
        instance="i-3",
        text=text.replace("usd: 1.0", "usd: 2.0"),
        prices=prices,
        NITRO_STACK="a later one",
    )
    assert code == 0, printed
    assert len(rounds(tmp_path / "again")) == done + 1
    entry = account.entry
    assert (entry.stack, entry.reason, entry.budget_usd) == ("a later one", "max_rounds", 2.0)
    assert entry.spent_usd > spent_usd
    assert 7.0 < entry.burn_usd_per_hour < 7.1


@pytest.mark.parametrize(("spent_usd", "tail_usd"), [(0.98, "0"), (0.0, "0.98")])
def test_what_was_spent_before_and_the_tail_are_not_the_learners_to_spend(
    account: Account, tmp_path: Path, spent_usd: float, tail_usd: str
) -> None:
    # Enough is left for actors, but not for a round's learner.
    account.ledger.close(RUN, stack="Nitro-small", spent_usd=spent_usd, now_s=time.time())
    account.ledger.notice(RUN, stack="Nitro-small", began_at_s=0.0)
    code, printed = account.run(tmp_path / "run", NITRO_TAIL_USD=tail_usd)
    assert code == 0, printed
    assert summary(tmp_path / "run")["rounds"] == 0
    assert (account.entry.state, account.entry.reason.partition(":")[0]) == (FINISHED, "budget")


def test_a_learner_does_not_begin_where_nobody_would_end_it(
    account: Account, tmp_path: Path
) -> None:
    account.ledger.tick(time.time() - 7200)
    code, printed = account.run(tmp_path / "run")
    assert (code, "the guard has not looked for 120 minutes" in printed) == (0, True), printed
    assert "rounds.jsonl" not in account.names()
    assert (account.entry.state, account.desired) == (FINISHED, 0)
