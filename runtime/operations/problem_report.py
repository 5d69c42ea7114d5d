"""``python -m runtime report-problem``: collects what others need to diagnose a failed deployment in one file."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.stacks import find_stack, present, resources_of
from runtime.errors import RunError
from runtime.guard.ledger import find_ledger
from runtime.guard.limits import VCPU_QUOTAS
from runtime.names import SHARED_STACKS, stack_name
from runtime.operations.kept_runs import find_bucket, find_runs, newest_first
from runtime.operations.status import survey
from runtime.operations.texts import iso
from runtime.records import layout

Answer = TypeVar("Answer")
_STREAMS, _EVENTS, _RUNS = 20, 1000, 3
"""Most log streams of a group, events of a stream, and runs of an experiment in the report; the newest of each."""
_KEPT = (
    layout.CONFIG,
    layout.PRICES,
    layout.ROUNDS,
    layout.EVENTS,
    layout.SUMMARY,
    layout.LEDGER,
    layout.ENDED,
    layout.REFUSED,
)
_SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "CACHE_PASSWORD",
    "WANDB_API_KEY",
)
_HIDDEN = (
    (re.compile(r"(?:AKIA|ASIA)[A-Z0-9]{16}", re.IGNORECASE), "ACCESS-KEY"),
    # A password may contain slashes. A port is not a password, nor is text after an @ in a path.
    (
        re.compile(r'://(?:[^/\s:@"<>]{0,200}:[^\s"<>]{1,500}|[^/\s@"<>]{1,300})@'),
        "://CREDENTIALS@",
    ),
    (
        re.compile(
            r"""(authorization\\{0,8}["']?\s{0,9}[=:]\s{0,9}\\{0,8}["']?)[^\r\n"'\\]+""",
            re.IGNORECASE,
        ),
        r"\1SECRET",
    ),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,200}\b"), "ADDRESS"),
)
_NAMED_SECRET = re.compile(r"""(?ix)
    # A name; but no part of an ARN, and no exception
    ((?<!\d:) (?:secret(?!smanager) | token | password | passwd | signature | api[_-]?key)
     (?! \w{0,40}(?:exception|error)\b ) [\w-]{0,40} \\{0,8}["']? \s{0,9} [=:] \s{0,9} \\{0,8}["']?)
    # Its value: until its quote closes; without one, until a space
    ((?<=") (?:[^"\\\n] | \\(?!"))+ | (?<=') (?:[^'\\\n] | \\(?!'))+ | (?:[^\s"'\\&] | \\(?!["'nrt]))+)""")
_NO_SECRET = re.compile(r"(?:null|none|true|false)[\])},;]*", re.IGNORECASE)
_COUNT = re.compile(r"[\d.]{1,12}[\])},;]*")
_BOOT_FILE = re.compile(r"boot/\w[\w.-]{0,199}", re.ASCII)
_RUN = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
_README = """The results of python -m runtime report-problem.

Look through these files before you send them. The report replaces the account's number, access keys, users and
passwords in URLs, mail addresses, the values of {variables},
Authorization headers, and values whose name contains one of these words: secret, token, password, passwd, signature,
api_key (but not numbers of tokens). Other secrets are not recognized. The experiment, its events and its logs are
otherwise unchanged, and an environment may print anything. problems.txt lists what could not be read.
"""


@dataclass(frozen=True)
class _Stack:
    """A stack and its resources, as CloudFormation describes them."""

    described: Mapping[str, Any]
    resources: list[dict[str, Any]]

    @property
    def folder(self) -> str:
        """The stack's folder: deployments reuse a name, so it includes the end of the id."""
        return f"stacks/{self.described['StackName']}-{str(self.described['StackId']).rpartition('/')[2][:8]}"

    def texts(self) -> dict[str, str]:
        return {
            f"{self.folder}/stack.json": _json(self.described),
            f"{self.folder}/resources.json": _json(self.resources),
        }


def write_report(
    client: Client,
    experiment: str,
    path: Path,
    *,
    account: str,
    region: str,
    version: str,
    now_s: float,
) -> list[str]:
    """Collects AWS' and the bucket's data about an experiment without secrets, and lists what cannot be read.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Name of the experiment.
        path: The ZIP file to write; it must not exist.
        account: Number of the client's account.
        region: The client's.
        version: This program's.
        now_s: Seconds since 1970.

    Returns:
        The names of the files in it.

    Raises:
        RunError: The file already exists, or cannot be written.
    """
    found: dict[str, str] = {}
    problems: list[str] = []

    def attempt(name: str, question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except (RunError, LookupError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
            return None

    def gather(name: str, question: Callable[[], Mapping[str, str]]) -> None:
        found.update(attempt(name, question) or {})

    gather(
        "status",
        lambda: {
            "status.json": _json(survey(client, None, account=account, region=region, now_s=now_s))
        },
    )
    deployed = (
        attempt(
            "deployment",
            lambda: ask(lambda: find_stack(client("cloudformation"), stack_name(experiment))),
        )
        or {}
    )
    earlier = attempt("ledger", lambda: _earlier_stacks(client, experiment)) or []
    for name in filter(None, dict.fromkeys([deployed.get("StackId"), *earlier, *SHARED_STACKS])):
        if stack := attempt(f"stack {name}", partial(_read_stack, client, name)):
            found.update(stack.texts())
            gather(f"events of {name}", partial(_stack_events, client, stack))
            gather(f"logs of {name}", partial(_logs, client, stack))
    gather("quotas", lambda: {"quotas.json": _json(_quotas(client))})
    gather("bucket", lambda: _kept(client, experiment))
    found["versions.txt"] = (
        f"nitro {version}\npython {sys.version}\n{platform.platform()}\nregion {region}\n"
    )
    found["problems.txt"] = (
        "".join(f"{problem}\n" for problem in problems) or "everything could be read\n"
    )
    found["README.txt"] = _README.format(variables=", ".join(_SECRET_VARIABLES))
    found = {hidden(name, account): hidden(text, account) for name, text in found.items()}
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
            for name, text in sorted(found.items()):
                file.writestr(name, text)
    except FileExistsError:
        raise RunError(f"--out {path}: is there already; name another file") from None
    except OSError as error:
        # A partial file would block the next attempt.
        with suppress(OSError):
            path.unlink()
        raise RunError(f"--out {path}: cannot be written: {error.strerror or error}") from None
    return sorted(found)


def hidden(text: str, account: str) -> str:
    """Returns a text in which secrets, mail addresses and the account's number are replaced.

    Args:
        text: Any text from AWS or a run.
        account: Number of the account.
    """
    for name in _SECRET_VARIABLES:
        if value := os.environ.get(name):
            once = json.dumps(value)[1:-1]
            spellings = {value, once, json.dumps(once)[1:-1], quote(value, safe=""), quote(value)}
            either = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
            text = re.sub(either, name, text, flags=re.IGNORECASE)
    for pattern, word in _HIDDEN:
        text = pattern.sub(word, text)
    text = _NAMED_SECRET.sub(_without_value, text)
    return re.sub("[- ]?".join((account[:4], account[4:8], account[8:])), "000000000000", text)


def _without_value(match: re.Match[str]) -> str:
    name, value = match.groups()
    is_count = "token" in name.lower() and _COUNT.fullmatch(value)
    return match[0] if is_count or _NO_SECRET.fullmatch(value) else f"{name}SECRET"


def _earlier_stacks(client: Client, experiment: str) -> list[str]:
    """Returns the stacks in the ledger, which can be looked up by id."""
    ledger = find_ledger(client)
    return (
        [entry.stack for entry in ledger.entries() if entry.run.partition("/")[0] == experiment]
        if ledger
        else []
    )


def _read_stack(client: Client, name: str) -> _Stack | None:
    """Returns a stack by its name or id; None if CloudFormation does not know it."""
    formation = client("cloudformation")
    described = ask(lambda: find_stack(formation, name))
    if described is None:
        return None
    return _Stack(described, ask(lambda: resources_of(formation, described["StackId"])))


def _stack_events(client: Client, stack: _Stack) -> dict[str, str]:
    return {
        f"{stack.folder}/events.json": _json(
            pages_of(
                client("cloudformation"),
                "describe_stack_events",
                "StackEvents",
                StackName=stack.described["StackId"],
            )
        )
    }


def _logs(client: Client, stack: _Stack) -> dict[str, str]:
    """Returns the newest events of its existing log groups."""
    logs = client("logs")
    found = {}
    for group in present(stack.resources, "AWS::Logs::LogGroup"):
        streams = ask(
            lambda group=group: logs.describe_log_streams(  # type: ignore[misc]  # bound at once
                logGroupName=group, orderBy="LastEventTime", descending=True, limit=_STREAMS
            )
        )["logStreams"]
        found[f"{stack.folder}/logs/{group.strip('/').replace('/', '_')}.txt"] = "\n".join(
            _events(logs, group, stream["logStreamName"]) for stream in streams
        )
    return found


def _events(logs: Any, group: str, stream: str) -> str:
    events = ask(
        lambda: logs.get_log_events(
            logGroupName=group, logStreamName=stream, limit=_EVENTS, startFromHead=False
        )
    )["events"]
    return "".join(
        [
            f"{stream}\n",
            *(
                f"  {iso(event['timestamp'] / 1000)} {event['message'].rstrip()}\n"
                for event in events
            ),
        ]
    )


def _quotas(client: Client) -> dict[str, Any]:
    """Returns the quotas that a deployment can reach; for an unreadable one, the reason."""
    limits = ask(lambda: client("lambda").get_account_settings())["AccountLimit"]
    quotas = client("service-quotas")

    def vcpus(code: str) -> float | str:
        try:
            return float(
                ask(lambda: quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code))["Quota"][
                    "Value"
                ]
            )
        except RunError as error:
            return str(error)

    return {
        "lambda": limits,
        "vcpus": {
            f"{market}, {family}": vcpus(code) for (market, family), code in VCPU_QUOTAS.items()
        },
    }


def _kept(client: Client, experiment: str) -> dict[str, str]:
    """Returns the bucket's files of its newest runs, without checkpoints and policies; long files are cut to their end.

    A learner can write anything there, so names that lead elsewhere are left out.
    """
    runs = [
        run for run in find_runs(client, find_bucket(client), experiment) if _RUN.fullmatch(run.run)
    ]
    return {
        f"runs/{run.run}/{name}": run.text(name)
        for run, files in newest_first(runs)[:_RUNS]
        for name in files
        if name in _KEPT or _BOOT_FILE.fullmatch(name)
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str)
