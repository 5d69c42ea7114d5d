"""The AWS Lambda fleet: one synchronous invocation of the actor function for each actor.

Each open invocation has a thread that waits for a free place and for its answer. A request that certainly did not run
(throttled, an error of Lambda's own, no connection) is repeated with growing, jittered pauses, under the same
invocation id. One that may have run is not: it ends as crashed, is billed at its possible maximum, and the caller may
start another.
"""

from __future__ import annotations

import base64
import json
import random
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_CRASHES = ("Runtime.ExitError", "Runtime.OutOfMemory")
_REPORT = re.compile(
    r"^REPORT RequestId: (?P<request>\S{1,100})\s+Duration: \d{1,9}(?:\.\d{1,9})? ms\s+"
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
    return Report(*(float(lines[-1][name] or 0) / 1000 for name in ("billed", "init")))


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
    """One invocation until its outcome is known.

    Attributes:
        is_sent: Whether it may be running.
        is_unwanted: Set when nobody waits for it any more.
    """

    invocation: Invocation
    is_sent: bool = False
    is_unwanted: threading.Event = field(default_factory=threading.Event)


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
        self._function_arn = function_arn
        self._timeout_s = timeout_s
        self._client = client or lambda_client(
            function_arn, timeout_s=timeout_s, concurrency=concurrency
        )
        self._places = threading.Semaphore(concurrency)
        self._changed = threading.Condition()
        self._calls: dict[str, _Call] = {}
        self._outcomes: list[Outcome] = []
        self._failure = ""

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts a thread for each, which waits for a free place.

        Raises:
            FleetError: No thread can be started.
        """
        calls = [_Call(invocation) for invocation in invocations]
        with self._changed:
            self._calls.update({call.invocation.invocation_id: call for call in calls})
        try:
            for call in calls:
                threading.Thread(
                    target=self._serve, args=[call], name="lambda-fleet", daemon=True
                ).start()
        except RuntimeError as error:
            raise FleetError(f"no thread can be started: {error}") from error

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call; see `runtime.fleet.interfaces.Fleet`.

        Raises:
            FleetError: Lambda refuses every invocation.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._outcomes or self._failure, timeout_s)
            if self._failure:
                raise FleetError(self._failure)
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Drops waiting invocations; waits a moment for the bills of running ones."""
        with self._changed:
            for call in [self._calls[key] for key in invocation_ids if key in self._calls]:
                call.is_unwanted.set()
                if call.is_sent:
                    timer = threading.Timer(ABANDON_GRACE_S, self._report, [self._unbilled(call)])
                    timer.daemon = True
                    timer.start()
                else:
                    self._report(Outcome.never_started(call.invocation.invocation_id))

    def close(self) -> None:
        """Returns at once: Lambda cannot end running invocations, and waiting threads do not keep the process alive."""
        self._drop_all()
        self._client.close()

    def _serve(self, call: _Call) -> None:
        """Invokes until there is an outcome, or nobody waits for it; in a thread."""
        pause_s = _PAUSE_FIRST_S
        try:
            with self._places:
                outcome: Outcome | None = None
                while outcome is None:
                    with self._changed:
                        call.is_sent = not call.is_unwanted.is_set()
                    if not call.is_sent:
                        outcome = Outcome.never_started(call.invocation.invocation_id)
                    elif (outcome := self._attempt(call)) is None:
                        call.is_sent = False
                        call.is_unwanted.wait(random.uniform(0.0, pause_s))
                        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self._report(outcome)
        except Exception as error:
            self._drop_all(
                f"AWS Lambda refuses {self._function_arn}: {type(error).__name__}: {error}"
            )

    def _attempt(self, call: _Call) -> Outcome | None:
        """Sends one request; returns None if it did not run and should be repeated."""
        invocation_id = call.invocation.invocation_id
        try:
            answer = self._client.invoke(
                FunctionName=self._function_arn,
                InvocationType="RequestResponse",
                LogType="Tail",
                Payload=json.dumps(call.invocation.event).encode(),
            )
            outcome = _outcome(invocation_id, answer, answer["Payload"].read(), self._timeout_s)
        except (ClientError, *PERHAPS_DONE, *NEVER_SENT) as error:
            if _never_ran(error):
                return None
            if isinstance(error, ClientError) and _http_status(error) < 500:
                raise
            text = f"no answer came, though it may have run: {error}"
            outcome = replace(
                self._unbilled(call), status="crashed", error=one_line(text, ERROR_CHARACTERS_MAX)
            )
        if call.is_unwanted.is_set() and outcome.status != "ok":
            return Outcome.abandoned(
                invocation_id,
                billed_s=outcome.billed_s,
                init_s=outcome.init_s,
                is_metered=outcome.is_metered,
            )
        return outcome

    def _report(self, outcome: Outcome) -> None:
        """Reports an outcome once."""
        with self._changed:
            if self._calls.pop(outcome.invocation_id, None) is not None:
                self._outcomes.append(outcome)
                self._changed.notify_all()

    def _unbilled(self, call: _Call) -> Outcome:
        """Returns the outcome of an abandoned invocation whose bill is unknown."""
        return Outcome.abandoned(
            call.invocation.invocation_id, billed_s=self._timeout_s, init_s=INIT_SECONDS_MAX
        )

    def _drop_all(self, failure: str = "") -> None:
        """Waits for no invocation any more."""
        with self._changed:
            self._failure = self._failure or failure
            for call in self._calls.values():
                call.is_unwanted.set()
            self._calls.clear()
            self._changed.notify_all()


def _never_ran(error: Exception) -> bool:
    """Returns whether a request certainly did not run and may succeed later."""
    if not isinstance(error, ClientError):
        return isinstance(error, NEVER_SENT)
    # Lambda's own errors have classes, and come before the function starts. A gateway's 5xx may come after that.
    is_lambdas = type(error) is not ClientError
    return (
        _http_status(error) == 429
        or (_http_status(error) >= 500 and is_lambdas)
        or code_of(error) in _PASSING_CONFLICTS
    )


def _http_status(error: ClientError) -> int:
    status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status


def _outcome(
    invocation_id: str, answer: Mapping[str, Any], payload: bytes, timeout_s: float
) -> Outcome:
    log = base64.b64decode(answer.get("LogResult", "")).decode(errors="replace")
    report = parse_report(log, answer["ResponseMetadata"].get("RequestId", ""))
    known = report or Report(timeout_s, INIT_SECONDS_MAX)
    content = json_object(payload)
    status: OutcomeStatus = "ok"
    error = ""
    if "FunctionError" in answer:
        status, error = _function_error(content, payload)
    elif content.get("invocation_id") != invocation_id:
        status = "error"
        error = (
            f"the function answered what no actor does: {payload[:200].decode(errors='replace')}"
        )
    return Outcome(
        invocation_id,
        status,
        response=content if status == "ok" else None,
        error=one_line(error, ERROR_CHARACTERS_MAX),
        billed_s=known.billed_s,
        init_s=known.init_s,
        is_metered=report is not None,
        error_type=str(content.get("errorType") or "") if status == "error" else "",
    )


def _function_error(content: Mapping[str, Any], payload: bytes) -> tuple[OutcomeStatus, str]:
    """Returns status and error of an invocation whose function failed."""
    message = str(content.get("errorMessage") or payload[:200].decode(errors="replace"))
    kind = str(content.get("errorType") or "")
    if kind in _CRASHES:
        return "crashed", message
    if kind == "Sandbox.Timedout" or (not kind and "Task timed out after" in message):
        return "timeout", message
    return "error", f"{kind}: {message}" if kind else message
