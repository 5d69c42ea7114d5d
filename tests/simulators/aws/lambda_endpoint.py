"""AWS Lambda on this machine: a real boto3 client on one side, real ``awslambdaric`` processes on the other.

Simulates the parts this project uses: invocations that wait for their answer, by names, ARNs, versions and aliases,
execution environments that stay warm, start-up before first use with provisioned concurrency, time-outs, exits, handler
errors, log tails with their REPORT line, the bill of a container image, throttling at the reserved concurrency, and
payload limits. A function may be limited to a sandbox: a read-only root, its share of /tmp, no /dev/shm, its memory.
Signatures are not checked. moto answers all else about functions.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import HTTPServer, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from socket import SHUT_RDWR, socket
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.helpers import PATIENCE_S, ROOT
from tests.simulators.aws.loopback import QuietHandler

ACCOUNT, REGION = "123456789012", "us-east-1"
PAYLOAD_BYTES_MAX = 6 * 2**20
LOG_TAIL_BYTES = 4096

Fault = Literal["throttled", "broken", "denied", "dropped", "gateway"]
"""429; 500; 403; or the function runs, and the connection closes without an answer or a gateway answers 502."""

# A worker can write only /tmp, which is empty and limited to $1 MiB. /dev/shm holds nothing.
_SANDBOX = """
mount -t tmpfs -o "size=$1m" tmpfs /tmp && mount -t tmpfs -o ro,size=4k,mode=0 tmpfs /dev/shm || exit 125
while read -r _ place _; do
    case "$place" in /tmp|/dev*|/proc*|/sys*) ;; *) mount -o remount,bind,ro "$place" 2>/dev/null ;; esac
done </proc/self/mounts
shift
exec "$@"
"""
# Kills its process group, the workers', when the pipe that only this process holds closes.
_GUARDIAN = "cat >/dev/null; kill -9 0"
_INVOCATION = re.compile(r"/2018-06-01/runtime/invocation/([^/]+)/(response|error)")


class LambdaError(Exception):
    """An error that the service returns instead of a result."""

    def __init__(self, status: int, code: str, message: str, **fields: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.body = {
            "Type": "User" if status < 500 else "Service",
            "message": message,
            "Message": message,
            **fields,
        }


@dataclass(frozen=True)
class FunctionSettings:
    """One function.

    Attributes:
        handler: As in the image's CMD.
        command: Starts a worker, followed by the handler's name.
        environment: Variables of its workers, in addition to Lambda's own.
        concurrency: Reserved concurrency; None = no limit.
        provisioned: Environments of ``qualifier`` that start before their first use.
        qualifier: The alias, in addition to $LATEST and version 1.
        is_limited: Whether workers have a sandbox's file system, and are killed if one invocation uses more memory than
            they have. Only if `why_unlimited` is empty.
        scratch_mib: Size of /tmp in a sandbox.
    """

    name: str
    handler: str = "lambda_actor.handler.handler"
    command: Sequence[str] = (sys.executable, "-m", "awslambdaric")
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = 1024
    timeout_s: float = PATIENCE_S
    concurrency: int | None = None
    provisioned: int = 0
    qualifier: str = "live"
    is_limited: bool = False
    scratch_mib: int = 512

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"


@dataclass
class Invocation:
    """One invocation on its way through an environment; ``error`` is empty if the handler returned."""

    request_id: str
    arn: str
    payload: bytes
    timeout_s: float
    init_s: float = 0.0
    duration_s: float = 0.0
    body: bytes = b""
    error: str = ""
    status: str = ""
    log: list[bytes] = field(default_factory=list)

    def write(self, line: str) -> None:
        self.log.append(line.encode() + b"\n")

    def fail(self, error: str, message: str, status: str = "error") -> None:
        self.error, self.status = error, status
        self.body = json.dumps({"errorType": error, "errorMessage": message}).encode()

    def report(self, memory_mib: int, used_mib: int, *, is_init_shown: bool) -> str:
        """Returns the REPORT line. A container image's start-up is billed in the invocation that shows it."""
        init_s = self.init_s if is_init_shown else 0.0
        parts = [
            f"REPORT RequestId: {self.request_id}",
            f"Duration: {self.duration_s * 1000:.2f} ms",
            f"Billed Duration: {math.ceil((self.duration_s + init_s) * 1000 - 1e-6)} ms",
            f"Memory Size: {memory_mib} MB",
            f"Max Memory Used: {used_mib} MB",
        ]
        if init_s:
            parts.append(f"Init Duration: {init_s * 1000:.2f} ms")
        if self.status:
            parts.append(f"Status: {self.status}")
        if self.status == "error":
            parts.append(f"Error Type: {self.error}")
        return "\t".join([*parts, ""])


class _RuntimeApi(QuietHandler):
    """The Runtime API of one worker process; HTTP/1.0, so that a connection serves one request."""

    def do_GET(self) -> None:
        invocation = self.server.environment.hand_out()
        if invocation is None:
            return
        self.send_response(200)
        for name, value in (
            ("Lambda-Runtime-Aws-Request-Id", invocation.request_id),
            ("Lambda-Runtime-Deadline-Ms", str(int((time.time() + invocation.timeout_s) * 1000))),
            ("Lambda-Runtime-Invoked-Function-Arn", invocation.arn),
            ("Lambda-Runtime-Trace-Id", "Root=1-00000000-000000000000000000000000;Sampled=0"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(invocation.payload))),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(invocation.payload)

    def do_POST(self) -> None:
        body = self.body()
        found = _INVOCATION.fullmatch(self.path)
        kind = found[2] if found else "init_error"
        is_too_large = len(body) > PAYLOAD_BYTES_MAX
        self.server.environment.tell("too_large" if is_too_large else kind, body)
        self.answer(413 if is_too_large else 202)


class _Environment:
    """One execution environment: a worker process, its Runtime API and its output."""

    def __init__(
        self, settings: FunctionSettings, group: int, directory: Path, *, is_provisioned: bool
    ) -> None:
        self.settings, self.is_provisioned = settings, is_provisioned
        self.init_s = 0.0
        self._invocations: SimpleQueue[Invocation | None] = SimpleQueue()
        self._messages: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._server = HTTPServer(("127.0.0.1", 0), _RuntimeApi)
        self._server.environment = self
        self._log_path = directory / f"{settings.name}-{uuid.uuid4().hex}.log"
        self._since_s = time.perf_counter()
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*_sandbox(settings), *settings.command, settings.handler],
                cwd=ROOT,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=group,
            )
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._serve, self._await_exit)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, invocation: Invocation, *, is_cold: bool) -> bool:
        """Runs one invocation to its end; returns whether the environment can serve another one."""
        if is_cold:
            invocation.write("INIT_START Runtime Version: local")
        else:
            os.truncate(self._log_path, 0)
        invocation.write(f"START RequestId: {invocation.request_id} Version: $LATEST")
        self._invocations.put(invocation)
        kind, content = self._message(PATIENCE_S)
        started_s = time.perf_counter()
        if kind == "started":
            kind, content = self._message(invocation.timeout_s)
            invocation.duration_s = time.perf_counter() - started_s
        if is_cold:
            invocation.init_s = self.init_s
        if self.settings.is_limited and self._memory_used_mib() > self.settings.memory_mib:
            kind, content = "exited", -signal.SIGKILL
        self._conclude(invocation, kind, content)
        return kind in ("response", "error")

    def end(self) -> None:
        """Kills the process if it is alive, and closes its Runtime API."""
        self.process.kill()
        self._invocations.put(None)
        with suppress(OSError):
            self._server.socket.shutdown(SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.server_close()
        self._log_path.unlink()

    # For the Runtime API

    def hand_out(self) -> Invocation | None:
        """Waits for the next invocation and returns it."""
        self.init_s = self.init_s or time.perf_counter() - self._since_s
        invocation = self._invocations.get()
        if invocation is not None:
            self.tell("started", None)
        return invocation

    def tell(self, kind: str, content: Any) -> None:
        self._messages.put((kind, content))

    def _message(self, timeout_s: float) -> tuple[str, Any]:
        try:
            return self._messages.get(timeout=timeout_s)
        except Empty:
            return "timeout", None

    def _conclude(self, invocation: Invocation, kind: str, content: Any) -> None:
        prefix = f"RequestId: {invocation.request_id} Error: "
        late = ""
        if kind == "response":
            invocation.body = content
        elif kind in ("error", "init_error"):
            invocation.body, invocation.error = content, "Unhandled"
        elif kind == "exited":
            invocation.fail("Runtime.ExitError", prefix + _exit_text(content))
            late = f"{prefix}{_exit_text(content)}\nRuntime.ExitError"
        elif kind == "too_large":
            invocation.fail(
                "Function.ResponseSizeTooLarge",
                f"Response payload size exceeded maximum allowed payload size ({PAYLOAD_BYTES_MAX} bytes).",
            )
        else:
            invocation.duration_s = invocation.timeout_s
            late = f"Task timed out after {invocation.timeout_s:.2f} seconds"
            invocation.fail("Sandbox.Timedout", prefix + late, "timeout")
        invocation.log.append(self._log_path.read_bytes()[-LOG_TAIL_BYTES:])
        if invocation.log[-1][-1:] not in (b"", b"\n"):
            invocation.log.append(b"\n")
        if late:
            invocation.write(late)
        invocation.write(f"END RequestId: {invocation.request_id}")
        invocation.write(
            invocation.report(
                self.settings.memory_mib,
                self._memory_used_mib(),
                is_init_shown=not self.is_provisioned,
            )
        )

    def _memory_used_mib(self) -> int:
        """Returns the process's largest resident size; 0 if it is gone or unknown."""
        with suppress(OSError):
            found = re.search(
                r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text()
            )
            return int(found[1]) // 1024 if found else 0
        return 0

    def _serve(self) -> None:
        while True:
            try:
                connection, address = self._server.get_request()
            except OSError:
                return
            with suppress(OSError):
                self._server.finish_request(connection, address)
            self._server.shutdown_request(connection)

    def _await_exit(self) -> None:
        self.tell("exited", self.process.wait())

    def _variables(self) -> dict[str, str]:
        settings = self.settings
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "LAMBDA_TASK_ROOT": str(ROOT),
            "_HANDLER": settings.handler,
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "provisioned-concurrency"
            if self.is_provisioned
            else "on-demand",
            "AWS_LAMBDA_FUNCTION_NAME": settings.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(settings.memory_mib),
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{settings.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": "local",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "local-actor",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_SESSION_TOKEN": "local",
            "PYTHONDONTWRITEBYTECODE": "1",
            **settings.environment,
        }


class _Function:
    """A function's environments and its number of running invocations."""

    def __init__(self, settings: FunctionSettings, group: int, directory: Path) -> None:
        self.settings = settings
        self._group, self._directory = group, directory
        self._lock = threading.Lock()
        self._idle: deque[_Environment] = deque()
        self._all: set[_Environment] = set()
        self._is_closed = False
        self.running = 0
        self.faults: deque[Fault] = deque()
        self._idle.extend(self._spawn(is_provisioned=True) for _ in range(settings.provisioned))

    def process_ids(self) -> list[int]:
        """Returns the process ids of live workers."""
        with self._lock:
            return [
                environment.process.pid
                for environment in self._all
                if environment.process.poll() is None
            ]

    def run(self, invocation: Invocation) -> None:
        """Runs it in a warm environment, or in a fresh one if none is warm."""
        environment = self._warm()
        is_cold = environment is None
        if environment is None:
            environment = self._spawn(is_provisioned=False)
        if environment.run(invocation, is_cold=is_cold):
            with self._lock:
                self._idle.append(environment)
        else:
            self._discard(environment)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for environment in list(self._all):
            self._discard(environment)

    def _warm(self) -> _Environment | None:
        while True:
            with self._lock:
                environment = self._idle.pop() if self._idle else None
            if environment is None or environment.process.poll() is None:
                return environment
            self._discard(environment)

    def _spawn(self, *, is_provisioned: bool) -> _Environment:
        with self._lock:
            if self._is_closed:
                raise LambdaError(503, "ServiceUnavailableException", "closed")
            environment = _Environment(
                self.settings, self._group, self._directory, is_provisioned=is_provisioned
            )
            self._all.add(environment)
        return environment

    def _discard(self, environment: _Environment) -> None:
        with self._lock:
            is_ours = environment in self._all
            self._all.discard(environment)
        if is_ours:
            environment.end()


@dataclass(frozen=True)
class _Answer:
    """Sends an HTTP response; None drops the connection."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Api(QuietHandler):
    """Handles boto3's requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        try:
            answer = self.server.endpoint.answer(self.path, self.headers, self.body())
        except LambdaError as error:
            answer = _Answer(
                error.status, json.dumps(error.body).encode(), {"x-amzn-ErrorType": error.code}
            )
        if answer is None:
            self.close_connection = True
            return
        with suppress(OSError):
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    do_POST = do_GET


class _ApiServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, endpoint: LambdaEndpoint) -> None:
        self.endpoint = endpoint
        self.connections: set[socket] = set()
        super().__init__(("127.0.0.1", 0), _Api)

    def process_request(self, request: socket, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket, client_address: Any) -> None:
        """Ignores a client that hangs up, and prints all other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LambdaEndpoint:
    """The service on a loopback port, as a context manager. No worker outlives this process, however it ends."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}
        self._lock = threading.Lock()
        self._directory = tempfile.TemporaryDirectory()
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN], stdin=subprocess.PIPE, process_group=0
        )
        self._server = _ApiServer(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> LambdaEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_function(self, name: str, **settings: Any) -> str:
        """Adds a function and starts its provisioned environments.

        Args:
            settings: See `FunctionSettings`.

        Returns:
            The ARN of its alias.
        """
        made = FunctionSettings(name, **settings)
        self._functions[name] = _Function(made, self._guardian.pid, Path(self._directory.name))
        return f"{made.arn}:{made.qualifier}"

    def fail_next(self, name: str, *faults: Fault) -> None:
        """Adds faults to the function's next invocations, one each."""
        self._functions[name].faults.extend(faults)

    def process_ids(self, name: str) -> list[int]:
        """Returns the process ids of the function's live workers."""
        return self._functions[name].process_ids()

    def running(self, name: str) -> int:
        """Returns the number of running invocations; 0 if there is no such function."""
        return self._functions[name].running if name in self._functions else 0

    def close(self) -> None:
        """Kills all workers and hangs up on every client; idempotent."""
        if self._guardian.returncode is not None:
            return
        self._guardian.communicate()
        for function in self._functions.values():
            function.close()
        self._server.shutdown()
        self._thread.join()
        for connection in list(self._server.connections):
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
        self._server.server_close()
        self._directory.cleanup()

    # The service

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> _Answer | None:
        """Raises: LambdaError: The service refuses."""
        url = urlsplit(path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        function, qualifier = self._find(parts[2], parse_qs(url.query).get("Qualifier", [""])[0])
        if parts[3:] == ["invocations"]:
            return self._invoke(function, qualifier, headers, body)
        if parts[3:] == ["concurrency"]:
            reserved = {"ReservedConcurrentExecutions": function.settings.concurrency}
            return _Answer(200, json.dumps(reserved).encode())
        raise LambdaError(404, "UnknownOperationException", f"no such operation here: {url.path}")

    def _find(self, name: str, qualifier: str) -> tuple[_Function, str]:
        """Finds a function by name, ARN or partial ARN, and the version or alias it asks for."""
        words = name.split(":")
        words = words[words.index("function") + 1 :] if "function" in words else words
        name, qualifier = words[0], qualifier or (words[1] if len(words) > 1 else "$LATEST")
        function = self._functions.get(name)
        if function is None or qualifier not in ("$LATEST", "1", function.settings.qualifier):
            raise LambdaError(
                404,
                "ResourceNotFoundException",
                f"Function not found: arn:aws:lambda:{REGION}:{ACCOUNT}:function:{':'.join(words)}",
            )
        return function, qualifier

    def _invoke(
        self, function: _Function, qualifier: str, headers: Mapping[str, str], body: bytes
    ) -> _Answer | None:
        _check_payload(body)
        fault = function.faults.popleft() if function.faults else None
        _raise_fault(fault)
        invocation = Invocation(
            str(uuid.uuid4()),
            f"{function.settings.arn}:{qualifier}",
            body or b"{}",
            function.settings.timeout_s,
        )
        self._admit(function)
        self._run(function, invocation)
        if fault == "gateway":
            return _Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
        return None if fault == "dropped" else _result(invocation, qualifier, headers)

    def _admit(self, function: _Function) -> None:
        reserved = function.settings.concurrency
        with self._lock:
            if reserved is not None and function.running >= reserved:
                raise _throttled("ReservedFunctionConcurrentInvocationLimitExceeded")
            function.running += 1

    def _run(self, function: _Function, invocation: Invocation) -> None:
        try:
            function.run(invocation)
        finally:
            with self._lock:
                function.running -= 1


def why_unlimited() -> str:
    """Explains why no worker can have a sandbox's file system here; empty if it can."""
    if ROOT.is_relative_to("/tmp"):
        return "this checkout is below /tmp, which a sandbox has anew"
    tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    if tried.returncode:
        return "no mount namespace can be made here: that takes root"
    return ""


def _sandbox(settings: FunctionSettings) -> list[str]:
    """Returns the command that starts a worker in a sandbox; nothing if it is not limited."""
    return (
        ["unshare", "--mount", "sh", "-c", _SANDBOX, "sh", str(settings.scratch_mib)]
        if settings.is_limited
        else []
    )


def _check_payload(body: bytes) -> None:
    if len(body) > PAYLOAD_BYTES_MAX:
        raise LambdaError(
            413, "RequestTooLargeException", f"{len(body)} bytes exceed {PAYLOAD_BYTES_MAX}"
        )
    try:
        json.loads(body or b"{}")
    except ValueError as error:
        raise LambdaError(
            400,
            "InvalidRequestContentException",
            f"Could not parse request body into json: {error}",
        ) from error


def _raise_fault(fault: Fault | None) -> None:
    if fault == "throttled":
        raise _throttled("CallerRateLimitExceeded")
    if fault == "broken":
        raise LambdaError(500, "ServiceException", "The request cannot be processed.")
    if fault == "denied":
        message = "User: local is not authorized to perform: lambda:InvokeFunction"
        raise LambdaError(403, "AccessDeniedException", message)


def _throttled(reason: str) -> LambdaError:
    return LambdaError(429, "TooManyRequestsException", "Rate Exceeded.", Reason=reason)


def _result(invocation: Invocation, qualifier: str, headers: Mapping[str, str]) -> _Answer:
    found = {
        "x-amzn-RequestId": invocation.request_id,
        "X-Amz-Executed-Version": "$LATEST" if qualifier == "$LATEST" else "1",
    }
    if invocation.error:
        found["X-Amz-Function-Error"] = "Unhandled"
    if headers.get("X-Amz-Log-Type") == "Tail":
        found["X-Amz-Log-Result"] = base64.b64encode(
            b"".join(invocation.log)[-LOG_TAIL_BYTES:]
        ).decode()
    return _Answer(200, invocation.body, found)


def _exit_text(code: int) -> str:
    if code == 0:
        return "Runtime exited without providing a reason"
    if code > 0:
        return f"Runtime exited with error: exit status {code}"
    return f"Runtime exited with error: signal: {signal.strsignal(-code).lower()}"
