"""IAM in front of moto: a role's request gets in if the role's own policies allow it.

The policies are the synthesized ones that CloudFormation gave the role in moto, with generated names. The request
itself shows which rights it needs (`tests.stacks.iam.asked`). Requests signed with a key that belongs to no role, such
as the rehearsal's own, are not judged.

MOTO_DECISIONS names a folder. Each role has a file there with its decisions, one line of JSON for each new one.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from botocore.loaders import JSONFileLoader
from moto.backends import get_backend
from moto.core.loaders import create_loader
from moto.core.model import ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request as HttpRequest
from moto.core.request import determine_request_protocol
from moto.core.routing import ServiceOperationRouter

from tests.stacks.iam.asked import requests_of, unjudged
from tests.stacks.iam.decisions import listed
from tests.stacks.iam.policies import Request, Statement, is_allowed, read_statement

DECISIONS_VARIABLE = "MOTO_DECISIONS"
_READING = {("s3", "GetObject"), ("s3", "HeadObject")}
_CREDENTIAL = re.compile(r"Credential=(\w+)/\d+/([\w-]+)/([\w-]+)/")
_SIGNED_AS = {
    "monitoring": "cloudwatch",
    "states": "stepfunctions",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
_ACCOUNT = "123456789012"
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass(frozen=True)
class Caller:
    """Owner of the temporary credentials that signed a request.

    Attributes:
        arn: ARN of the session.
        role: Name of its role.
        session: Session name from AWS: a function's name or an instance's id.
        is_function: Whether Lambda runs with the role.
    """

    arn: str
    role: str
    session: str
    is_function: bool


class Gate:
    """Moto's server, behind IAM."""

    running: Gate | None = None
    """The one of this process's server."""

    def __init__(self, application: Application) -> None:
        Gate.running = self
        self._application = application
        self._folder = (
            Path(os.environ[DECISIONS_VARIABLE]) if DECISIONS_VARIABLE in os.environ else None
        )
        self._known: set[str] = set()
        self._statements: dict[str, list[Statement]] = {}
        self._documents: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        found = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        caller = _caller(found[1]) if found else None
        if found and caller:
            service = _SIGNED_AS.get(found[3], found[3])
            try:
                refusal = self._refusal(caller, service, found[2], environ)
            except Exception as error:
                self._note(
                    caller, service, "?", Request(f"what cannot be judged: {error!r}"), False
                )
                raise
            if refusal:
                status, headers, body = refusal
                start_response(status, [*headers.items(), ("Content-Length", str(len(body)))])
                return [body]
        return self._application(environ, start_response)

    def _refusal(
        self, caller: Caller, service: str, region: str, environ: dict[str, Any]
    ) -> tuple[str, Mapping[str, str], bytes] | None:
        """Returns the answer to a request that the caller may not make; None if it may."""
        protocol, operation, parameters = _read(service, environ)
        denial = self.denial(caller, service, operation, parameters, region)
        if denial:
            return _denied(protocol, denial)
        statements = self._policies(caller.role)
        # S3 API Reference, GetObject: without s3:ListBucket a missing object is forbidden, not missing. A right that
        # depends on a prefix does not count, because this request has none.
        listed = Request("s3:ListBucket", f"arn:aws:s3:::{parameters.get('Bucket')}")
        if (
            (service, operation) in _READING
            and not is_allowed(statements, listed)
            and _is_missing(parameters)
        ):
            return _denied(protocol, _words(caller, statements, listed))
        return None

    def denial(
        self,
        caller: Caller,
        service: str,
        operation: str,
        parameters: Mapping[str, Any],
        region: str,
    ) -> str:
        """Returns why the caller's policies do not allow a call, as IAM words it; empty if they do.

        Raises:
            LookupError: A policy's condition is not derived from requests.
        """
        statements = self._policies(caller.role)
        for one in requests_of(
            service,
            operation,
            parameters,
            account=_ACCOUNT,
            region=region,
            tags=lambda arn: _tags(arn, region),
        ):
            asked = Request(one.action, one.resource, {**one.context, **_of(caller, region)})
            strange = unjudged(statements, asked)
            if strange:
                raise LookupError(
                    f"{asked.action}: {', '.join(strange)} is not derived from requests"
                )
            allowed = is_allowed(statements, asked)
            self._note(caller, service, operation, asked, allowed)
            if not allowed:
                return _words(caller, statements, asked)
        return ""

    def _policies(self, role: str) -> list[Statement]:
        """Returns the role's policies. A session outlives its role, which is deleted while its last processes end."""
        found = get_backend("iam")[_ACCOUNT]["aws"].roles.values()
        documents = next((list(one.policies.values()) for one in found if one.name == role), None)
        with self._lock:
            if documents is not None and documents != self._documents.get(role):
                self._documents[role] = documents
                self._statements[role] = [
                    read_statement(one, str)
                    for document in documents
                    for one in listed(_parsed(document)["Statement"])
                ]
                self._write(
                    f"{role}.policies", json.dumps([_parsed(one) for one in documents]), "w"
                )
            return self._statements[role]

    def _note(
        self, caller: Caller, service: str, operation: str, asked: Request, allowed: bool
    ) -> None:
        line = json.dumps(
            {
                "call": f"{service} {operation}",
                "action": asked.action,
                "resource": asked.resource,
                "context": asked.context,
                "allowed": allowed,
            },
            sort_keys=True,
        )
        with self._lock:
            if (key := f"{caller.role} {line}") not in self._known:
                self._known.add(key)
                self._write(caller.role, line + "\n", "a")

    def _write(self, name: str, text: str, mode: str) -> None:
        if self._folder is not None:
            with (self._folder / name).open(mode) as file:
                file.write(text)


def _caller(key: str) -> Caller | None:
    session = get_backend("sts")[_ACCOUNT]["aws"].get_assumed_role_from_access_key(key)
    if session is None:
        return None
    name = session.role_arn.rpartition("/")[2]
    trusts = next(
        (
            str(one.assume_role_policy_document)
            for one in get_backend("iam")[_ACCOUNT]["aws"].roles.values()
            if one.name == name
        ),
        "",
    )
    return Caller(session.arn, name, session.session_name, "lambda.amazonaws.com" in trusts)


def _of(caller: Caller, region: str) -> dict[str, tuple[str, ...]]:
    """Returns the condition keys that depend on the caller."""
    function = f"arn:aws:lambda:{region}:{_ACCOUNT}:function:{caller.session}"
    return {
        "aws:PrincipalAccount": (_ACCOUNT,),
        **({"lambda:SourceFunctionArn": (function,)} if caller.is_function else {}),
    }


def _read(service: str, environ: dict[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
    """Returns protocol, operation and parameters of a request. Its body can be read again."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    # Rights do not depend on the contents of an S3 object.
    if length and not (service == "s3" and environ["REQUEST_METHOD"] == "PUT"):
        body = environ["wsgi.input"].read(length)
        environ["wsgi.input"] = BytesIO(body)
        # Clients compress long bodies.
        plain = gzip.decompress(body) if environ.get("HTTP_CONTENT_ENCODING") == "gzip" else body
        own = {**environ, "wsgi.input": BytesIO(plain), "CONTENT_LENGTH": str(len(plain))}
    else:
        own = {**environ, "wsgi.input": BytesIO(b""), "CONTENT_LENGTH": "0"}
        own.pop("HTTP_TRANSFER_ENCODING", None)
    request = HttpRequest(own)
    model, router = _model(service)
    operation, url_parameters = router.match(request)
    protocol = determine_request_protocol(model, request.content_type)
    parsed = PROTOCOL_PARSERS[protocol](model.operation_model(operation.name)).parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": request.data,
            "url_path": request.path,
            "url_params": url_parameters,
        }
    )
    return (
        protocol,
        operation.name,
        {name: value for name, value in parsed.items() if value is not None},
    )


@cache
def _model(service: str) -> tuple[ServiceModel, ServiceOperationRouter]:
    """Loads a separate copy: an S3 client removes the bucket from the paths of its own model."""
    loader = create_loader()
    loader.file_loader = JSONFileLoader()
    model = ServiceModel(loader.load_service_model(service, "service-2"), service)
    return model, ServiceOperationRouter(model)


def _tags(arn: str, region: str) -> Mapping[str, str]:
    """Returns the tags of a resource of EC2. No policy depends on tags of anything else."""
    if ":ec2:" not in arn:
        return {}
    found = get_backend("ec2")[_ACCOUNT][region].describe_tags(
        {"resource-id": [arn.rpartition("/")[2]]}
    )
    return {tag["key"]: tag["value"] for tag in found}


def _is_missing(parameters: Mapping[str, Any]) -> bool:
    bucket = get_backend("s3")[_ACCOUNT]["aws"].buckets.get(parameters["Bucket"])
    return bucket is not None and parameters["Key"] not in bucket.keys


def _words(caller: Caller, statements: Iterable[Statement], asked: Request) -> str:
    """Returns the message as IAM words it: IAM User Guide, "Troubleshoot access denied error messages"."""
    is_explicit = any(one.effect == "Deny" and one.covers(asked) for one in statements)
    why = (
        "with an explicit deny in an identity-based policy"
        if is_explicit
        else f"because no identity-based policy allows the {asked.action} action"
    )
    on = f" on resource: {asked.resource}" if asked.resource != "*" else ""
    return f"User: {caller.arn} is not authorized to perform: {asked.action}{on} {why}"


def _denied(protocol: str, message: str) -> tuple[str, Mapping[str, str], bytes]:
    """Returns the refusal in the given protocol."""
    if protocol == "json":
        return (
            "400 BAD REQUEST",
            {"Content-Type": "application/x-amz-json-1.0"},
            json.dumps(
                {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": message}
            ).encode(),
        )
    if protocol == "rest-json":
        return (
            "403 FORBIDDEN",
            {"Content-Type": "application/json", "x-amzn-ErrorType": "AccessDeniedException"},
            (json.dumps({"Message": message}).encode()),
        )
    code, text = "AccessDenied", escape(message)
    if protocol == "ec2":
        code, text = (
            "UnauthorizedOperation",
            f"You are not authorized to perform this operation. {text}",
        )
    error = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
    whole = {
        "ec2": f"<Response><Errors>{error}</Errors></Response>",
        "rest-xml": error,
        "query": f"<ErrorResponse>{error}</ErrorResponse>",
    }[protocol]
    return "403 FORBIDDEN", {"Content-Type": "text/xml"}, whole.encode()


def _parsed(document: Any) -> dict[str, Any]:
    return json.loads(document) if isinstance(document, str) else document
