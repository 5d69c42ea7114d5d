"""The simulated account's endpoints as an instance reaches them: only requests with a valid AWS signature get in.

The signature is recomputed with botocore's own signer, from the secret that belongs to the access key. The request must
also be one that botocore's model of the service knows. Only then does moto see it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.session
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.simulators.aws.loopback import LoopbackServer, PassingHandler

SKEW_S = 300
"""Allowed error of a request's date."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)
_SERVICES = {"monitoring": "cloudwatch"}
"""Services whose name in botocore differs from their name in signatures."""
_S3 = {("GET", True): "GetObject", ("GET", False): "ListObjectsV2", ("PUT", True): "PutObject"}
_S3_NAMES = {"prefix": "Prefix"}
_MODELS: dict[str, Any] = {}


class RefusedError(Exception):
    """AWS' answer to a request that it rejects."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Handler(PassingHandler):
    def pass_on(self, body: bytes) -> None:
        door = self.server.owner
        try:
            service = _check_signature(self, body, door.credentials)
            operation, values = _call(service, self, body)
            _check_names(service, operation, values)
            door.enter(service, operation, values)
        except RefusedError as refused:
            self.answer(403, json.dumps({"__type": refused.code, "message": str(refused)}).encode())
            return
        status, _, content = self.ask(door.moto_url, body)
        with suppress(ConnectionError):
            self.answer(status, content)


class FrontDoor(LoopbackServer):
    """The account's endpoints on a loopback port, as a context manager.

    Attributes:
        credentials: Accepted credentials by access key, in the form of an instance's metadata. May change at any time.
        failing: Pattern of the calls to refuse, written as in `calls`; empty for none.
        calls: Calls that it let in or refused by the pattern, as ``aws SERVICE OPERATION NAME=VALUE …``.
    """

    def __init__(self, moto_url: str, note: Callable[[str], None] = lambda line: None) -> None:
        """Args:
        note: Called with each call, one at a time.
        """
        super().__init__(_Handler)
        self.moto_url, self.note = moto_url, note
        self.credentials: dict[str, Mapping[str, str]] = {}
        self.failing = ""
        self._lock = threading.Lock()

    def enter(self, service: str, operation: str, values: Mapping[str, Any]) -> None:
        """Notes the call.

        Raises:
            RefusedError: The call matches `failing`.
        """
        call = " ".join(
            [
                f"aws {service} {operation}",
                *(
                    f"{name}={value if isinstance(value, str) else json.dumps(value)}"
                    for name, value in values.items()
                ),
            ]
        )
        with self._lock:
            self.note(call)
        if any(fnmatchcase(call, one) for one in self.failing.split("|")):
            raise RefusedError("AccessDeniedException", "refused")


def _check_signature(
    handler: PassingHandler, body: bytes, known: Mapping[str, Mapping[str, str]]
) -> str:
    """Returns botocore's name of the service."""
    headers = handler.headers
    found = _AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    if not found:
        raise RefusedError("MissingAuthenticationToken", "the request is not signed")
    key, day, region, service, names, signature = found.groups()
    if key not in known:
        raise RefusedError(
            "UnrecognizedClientException", "the security token included in the request is invalid"
        )
    date = headers.get("X-Amz-Date", "")
    _check_date(date, day)
    signed = names.split(";")
    if missing := {"host", "x-amz-date", "x-amz-security-token"} - set(signed):
        raise RefusedError("InvalidSignatureException", f"not signed: {', '.join(sorted(missing))}")
    if headers["X-Amz-Security-Token"] != known[key]["Token"]:
        raise RefusedError(
            "InvalidClientTokenId", "the security token included in the request is invalid"
        )
    digest = headers.get("X-Amz-Content-SHA256")
    if digest != hashlib.sha256(body).hexdigest() and (service == "s3" or digest is not None):
        raise RefusedError("XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    host = headers["Host"].split(".")
    if [service, region] not in (host[:2], host[1:3]):
        raise RefusedError(
            "InvalidSignatureException", f"{headers['Host']} is not the endpoint of {service}"
        )
    request = AWSRequest(
        handler.command,
        f"https://{headers['Host']}{handler.path}",
        {name: headers[name] for name in signed},
        body,
    )
    request.context["timestamp"] = date
    signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(
        Credentials(key, known[key]["SecretAccessKey"], known[key]["Token"]), service, region
    )
    expected = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    if signature != expected:
        raise RefusedError(
            "SignatureDoesNotMatch", "the signature is not what the request and the secret make"
        )
    return _SERVICES.get(service, service)


def _check_date(date: str, day: str) -> None:
    try:
        said = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusedError("IncompleteSignatureException", f"X-Amz-Date is {date!r}") from None
    if date[:8] != day or abs((datetime.now(UTC) - said).total_seconds()) > SKEW_S:
        raise RefusedError("RequestExpired", f"signature expired: {date}")


def _call(service: str, handler: PassingHandler, body: bytes) -> tuple[str, dict[str, Any]]:
    """Returns the operation and its parameters, parsed by the service's protocol."""
    url = urlsplit(handler.path)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    if target := handler.headers.get("X-Amz-Target"):
        prefix, _, operation = target.partition(".")
        if prefix != _model(service).metadata["targetPrefix"]:
            raise RefusedError("UnknownOperationException", f"{target} is not of {service}")
        return operation, json.loads(body)
    if service == "s3":
        key = unquote(url.path[1:])
        bucket = handler.headers["Host"].partition(".s3.")[0]
        names = {_S3_NAMES[name]: value for name, value in query.items() if name != "list-type"}
        return _S3[handler.command, bool(key)], {
            "Bucket": bucket,
            **({"Key": key} if key else {}),
            **names,
        }
    if service == "lambda":
        operation = "DeleteProvisionedConcurrencyConfig"
        pattern = _model(service).operation_model(operation).http["requestUri"].partition("?")[0]
        name = re.fullmatch(pattern.replace("{FunctionName}", "([^/]+)"), url.path)
        if not name or handler.command != "DELETE":
            raise RefusedError("UnknownOperationException", handler.path)
        return operation, {"FunctionName": unquote(name[1]), **query}
    form = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True))
    operation, version = form.pop("Action"), form.pop("Version")
    if version != _model(service).api_version:
        raise RefusedError("InvalidAction", f"{service} has no version {version}")
    return operation, form


def _check_names(service: str, operation: str, values: Mapping[str, Any]) -> None:
    model = _model(service)
    if operation not in model.operation_names:
        raise RefusedError("InvalidAction", f"{service} has no operation {operation}")
    shape = model.operation_model(operation).input_shape
    names = {name.partition(".")[0] for name in values}
    if unknown := names - set(shape.members):
        raise RefusedError(
            "ValidationError", f"{operation} has no parameter {', '.join(sorted(unknown))}"
        )
    if missing := set(shape.required_members) - names:
        raise RefusedError("ValidationError", f"{operation} needs {', '.join(sorted(missing))}")


def _model(service: str) -> Any:
    if service not in _MODELS:
        _MODELS[service] = botocore.session.get_session().get_service_model(service)
    return _MODELS[service]
