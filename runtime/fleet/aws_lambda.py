"""The AWS Lambda fleet: one synchronous invocation of the actor function for each actor.

Each open invocation has a thread that waits for its answer. A request that certainly did not run (throttled, an
internal error, no connection) is repeated with growing, jittered pauses, under the same invocation id. One that may
have run is not: it ends as crashed, is billed at its possible maximum, and the caller may start another.
"""

from __future__ import annotations

import base64
import json
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from runtime.aws.clients import Session, waiting_client
from runtime.aws.failures import (
    AWS_ERRORS,
    NEVER_SENT,
    PERHAPS_DONE,
    BotoCoreError,
    ClientError,
    code_of,
)
from runtime.errors import ERROR_CHARACTERS_MAX, FleetError, one_line
from runtime.fleet.interfaces import Invocation
from runtime.money.model import INIT_SECONDS_MAX
from runtime.money.work import Outcome, OutcomeStatus
from runtime.records.files import json_object

_ANSWER_MARGIN_S = 15
_CONNECT_TIMEOUT_S = 10
ABANDON_GRACE_S = 3.0
"""An actor notices within about a second that it is not wanted; its bill takes a moment more."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0

_PASSING_CONFLICTS = ("ResourceConflictException", "CodeArtifactUserPendingException")
_LASTING_FAULTS = re.compile(
    r"KMS.*|InvalidRuntimeException|InvalidZipFileException|EC2AccessDeniedException|"
    r"Invalid(Subnet|SecurityGroup)IDException"
)
_CRASHES = ("Runtime.ExitError", "Runtime.OutOfMemory")
_REPORT = re.compile(
    r"^REPORT RequestId: (?P<request>\S{1,100})\s+Duration: (?P<duration>\d{1,9}(?:\.\d{1,9})?) ms\s+"
    r"Billed Duration: (?P<billed>\d{1,9}) ms\b(?:.*?\bInit Duration: (?P<init>\d{1,9}(?:\.\d{1,9})?) ms\b)?",
    re.MULTILINE | re.ASCII,
)


@dataclass(frozen=True)
class Report:
    """Lambda's bill for one invocation, startup included; ``init_s`` is the startup's share."""

    billed_s: float
    init_s: float


def parse_report(log: str, request_id: str) -> Report | None:
    """Returns the bill in the log's REPORT line of that request, or None."""
    lines = [found for found in _REPORT.finditer(log) if found["request"] == request_id]
    if not lines:
        return None
    # The last one; the environment may have printed similar lines before.
    duration_s, billed_s, init_s = (
        float(lines[-1][name] or 0) / 1000 for name in ("duration", "billed", "init")
    )
    return Report(billed_s, min(init_s, max(0.0, billed_s - duration_s)))


def lambda_client(
    function_arn: str, *, timeout_s: float, concurrency: int, session: Session | None = None
) -> Any:
    """Makes a boto3 client that waits out the function's time limit and never repeats a request by itself.

    Args:
        function_arn: ARN of the function or its alias.
        timeout_s: The function's time limit in seconds.
        concurrency: Invocations at once.
        session: None = from the environment.

    Raises:
        FleetError: The ARN is invalid, or boto3 refuses its settings.
    """
    words = function_arn.split(":")
    if len(words) < 7 or words[2] != "lambda":
        raise FleetError(f"{function_arn!r} is not the ARN of a function")
    try:
        return waiting_client(
            "lambda",
            region=words[3],
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            read_timeout_s=timeout_s + INIT_SECONDS_MAX + _ANSWER_MARGIN_S,
            connections=max(10, concurrency),
            session=session,
        )
    except (BotoCoreError, ValueError) as error:
        raise FleetError(f"no client of AWS Lambda can be made: {error}") from error


def available_concurrency(client: Any, function_arn: str, wanted: int, *, others: int = 0) -> int:
    """Returns how many of ``wanted`` actors Lambda can run at once, by the function's reserve or the free quota.

    Args:
        client: Lambda client.
        function_arn: ARN of the actors' function.
        wanted: Upper limit.
        others: Other functions of the deployment that run at the same time.

    Raises:
        FleetError: There is no room, or Lambda does not say.
    """
    function = ":".join(function_arn.split(":")[:7])
    try:
        answer = client.get_function_concurrency(FunctionName=function)
        available: int | None = answer.get("ReservedConcurrentExecutions")
        whose = f"reserved for {function}"
        if available is None:
            # One is reserved for the guard, which would be blind without it.
            unreserved: int = client.get_account_settings()["AccountLimit"][
                "UnreservedConcurrentExecutions"
            ]
            available = unreserved - 1 - others
            whose = (
                f"that the account has left unreserved, less {1 + others} for the guard and others,"
            )
    except AWS_ERRORS as error:
        raise FleetError(f"the concurrency of {function} cannot be read: {error}") from error
    if available < 1:
        raise FleetError(f"no actor can run: the concurrency {whose} is {available}")
    return min(wanted, available)


@dataclass(eq=False)
class _Call:
    """One invocation until its outcome is known; guarded by the fleet's lock."""

    invocation: Invocation
    is_sent: bool = False
    is_abandoned: threading.Event = field(default_factory=threading.Event)
    reported_by_s: float | None = None


class LambdaFleet:
    """Runs invocations on AWS Lambda; see `runtime.fleet.interfaces.Fleet`.

    Lambda cannot end an invocation. So the caller first closes an abandoned invocation's door in the cache: the actor
    notices within about a second and ends, and its real bill arrives. An actor that does not is billed for its whole
    time limit, and counts as running until Lambda ends it.
    """

    def __init__(
        self, function_arn: str, *, timeout_s: float, concurrency: int, client: Any = None
    ) -> None:
        """Prepares invocations of a deployed function.

        Args:
            function_arn: ARN of the function's alias, or of a version.
            timeout_s: The function's time limit in seconds.
            concurrency: Invocations at once; see `available_concurrency`.
            client: Defaults to that of `lambda_client`.

        Raises:
            FleetError: No client can be made.
        """
        self.concurrency = concurrency
        self._function_arn, self._timeout_s = function_arn, timeout_s
        self._client = client or lambda_client(
            function_arn, timeout_s=timeout_s, concurrency=concurrency
        )
        self._changed = threading.Condition()
        self._calls: dict[str, _Call] = {}
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._unfinished = self._threads = 0
        self._outcomes: list[Outcome] = []
        self._failure = ""
        self._is_closed = False

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Queues these actors for the next free threads.

        Raises:
            FleetError: No thread can be started.
        """
        calls = [_Call(invocation) for invocation in invocations]
        with self._changed:
            self._calls.update({call.invocation.invocation_id: call for call in calls})
            self._unfinished += len(calls)
            missing = min(self.concurrency, self._unfinished) - self._threads
        for call in calls:
            self._queue.put(call)
        self._start_threads(missing)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call; see `runtime.fleet.interfaces.Fleet`.

        Raises:
            FleetError: Lambda refuses every invocation.
        """
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while (
                not (self._outcomes or self._failure)
                and (remaining_s := until_s - time.monotonic()) > 0
            ):
                self._changed.wait(min(remaining_s, self._until_grace_ends_s()))
                self._report_overdue()
            if self._failure:
                raise FleetError(self._failure)
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Drops waiting invocations; waits a moment for the bills of running ones."""
        with self._changed:
            for call in [self._calls[one] for one in invocation_ids if one in self._calls]:
                call.is_abandoned.set()
                if call.is_sent:
                    call.reported_by_s = time.monotonic() + ABANDON_GRACE_S
                else:
                    self._report_unstarted(call)

    def close(self) -> None:
        """Returns at once: Lambda cannot end running invocations, and waiting threads do not keep the process alive."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._drop_all()
        for _ in range(self._threads):
            self._queue.put(None)
        self._client.close()

    # One thread

    def _start_threads(self, count: int) -> None:
        for _ in range(count):
            try:
                threading.Thread(target=self._serve, name="lambda-fleet", daemon=True).start()
            except RuntimeError as error:
                if not self._threads:
                    raise FleetError(f"no thread can be started: {error}") from error
                return
            self._threads += 1

    def _serve(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                self._invoke(call)
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
            with self._changed:
                self._unfinished -= 1

    def _invoke(self, call: _Call) -> None:
        """Invokes until there is an outcome, or the invocation is abandoned."""
        pause_s = _PAUSE_FIRST_S
        while self._mark_sent(call):
            outcome = self._attempt(call.invocation)
            if outcome is not None:
                self._answered(call, outcome)
                return
            self._mark_unsent(call)
            call.is_abandoned.wait(random.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _attempt(self, invocation: Invocation) -> Outcome | None:
        """Sends one request; returns None if it did not run and should be repeated."""
        try:
            answer = self._client.invoke(
                FunctionName=self._function_arn,
                InvocationType="RequestResponse",
                LogType="Tail",
                Payload=json.dumps(invocation.event).encode(),
            )
            return _outcome(
                invocation.invocation_id, answer, answer["Payload"].read(), self._timeout_s
            )
        except ClientError as error:
            if self._is_passing(error):
                return None
            raise
        except NEVER_SENT:
            return None
        except PERHAPS_DONE as error:
            text = one_line(
                f"no answer came, though it may have run: {error}", ERROR_CHARACTERS_MAX
            )
            return Outcome(
                invocation.invocation_id,
                "crashed",
                error=text,
                billed_s=self._timeout_s,
                init_s=INIT_SECONDS_MAX,
            )

    def _is_passing(self, error: ClientError) -> bool:
        status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], code_of(error)
        return (
            status == 429
            or code in _PASSING_CONFLICTS
            or (status >= 500 and not _LASTING_FAULTS.fullmatch(code))
        )

    # Under the lock, or taking it

    def _mark_sent(self, call: _Call) -> bool:
        """Returns False if the invocation was abandoned."""
        with self._changed:
            call.is_sent = self._is_open(call)
            return call.is_sent

    def _mark_unsent(self, call: _Call) -> None:
        """Records that it did not run; if it was abandoned meanwhile, it never started."""
        with self._changed:
            call.is_sent = False
            if call.is_abandoned.is_set():
                self._report_unstarted(call)

    def _answered(self, call: _Call, outcome: Outcome) -> None:
        with self._changed:
            if call.is_abandoned.is_set() and outcome.status != "ok":
                outcome = replace(
                    outcome, status="abandoned", error="still running at the round's deadline"
                )
            self._report(call, outcome)

    def _report(self, call: _Call, outcome: Outcome) -> None:
        """Reports the outcome once."""
        if self._is_open(call):
            del self._calls[outcome.invocation_id]
            self._outcomes.append(outcome)
            self._changed.notify_all()

    def _report_unstarted(self, call: _Call) -> None:
        self._report(
            call,
            Outcome(
                call.invocation.invocation_id,
                "abandoned",
                was_started=False,
                error="never started before the deadline",
            ),
        )

    def _report_overdue(self) -> None:
        now_s = time.monotonic()
        for call in [
            one
            for one in self._calls.values()
            if one.reported_by_s is not None and one.reported_by_s <= now_s
        ]:
            self._report(
                call,
                Outcome(
                    call.invocation.invocation_id,
                    "abandoned",
                    billed_s=self._timeout_s,
                    init_s=INIT_SECONDS_MAX,
                    error="still running at the round's deadline",
                ),
            )

    def _until_grace_ends_s(self) -> float:
        ends_s = [
            call.reported_by_s for call in self._calls.values() if call.reported_by_s is not None
        ]
        return max(0.0, min(ends_s) - time.monotonic()) if ends_s else threading.TIMEOUT_MAX

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._failure = self._failure or f"AWS Lambda refuses {self._function_arn}: {reason}"
            self._drop_all()
            self._changed.notify_all()

    def _drop_all(self) -> None:
        for call in self._calls.values():
            call.is_abandoned.set()
        self._calls.clear()

    def _is_open(self, call: _Call) -> bool:
        return self._calls.get(call.invocation.invocation_id) is call


def _outcome(
    invocation_id: str, answer: Mapping[str, Any], payload: bytes, timeout_s: float
) -> Outcome:
    report = parse_report(_log(answer), answer["ResponseMetadata"].get("RequestId", ""))
    bill: dict[str, Any] = (
        {"billed_s": report.billed_s, "init_s": report.init_s, "is_metered": True}
        if report
        else {"billed_s": timeout_s, "init_s": INIT_SECONDS_MAX}
    )
    content = json_object(payload)
    if "FunctionError" in answer:
        status, error = _function_error(content, payload)
        return Outcome(invocation_id, status, error=error, **bill)
    if content.get("invocation_id") != invocation_id or not isinstance(content.get("status"), str):
        return Outcome(
            invocation_id,
            "error",
            error=one_line(
                f"the function answered what no actor does: {payload[:200].decode(errors='replace')}"
            ),
            **bill,
        )
    return Outcome(invocation_id, "ok", response=content, **bill)


def _log(answer: Mapping[str, Any]) -> str:
    """Returns the end of the invocation's log; empty if unreadable."""
    try:
        return base64.b64decode(answer.get("LogResult", "")).decode(errors="replace")
    except ValueError:
        return ""


def _function_error(content: Mapping[str, Any], payload: bytes) -> tuple[OutcomeStatus, str]:
    """Returns status and error of an invocation whose function failed."""
    fields = content or {"errorMessage": payload[:200].decode(errors="replace")}
    kind, message = str(fields.get("errorType") or ""), str(fields.get("errorMessage") or "")
    if kind in _CRASHES:
        return "crashed", one_line(message or kind, ERROR_CHARACTERS_MAX)
    if kind == "Sandbox.Timedout" or (not kind and "Task timed out after" in message):
        return "timeout", one_line(message, ERROR_CHARACTERS_MAX)
    return "error", one_line(f"{kind}: {message}" if kind else message, ERROR_CHARACTERS_MAX)
