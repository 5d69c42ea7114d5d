"""Sends one request to AWS as the learner's instance, and prints the answer.

    python3 aws.py SERVICE OPERATION [NAME=VALUE …] [-]

The machine image has python3 but no AWS command line, so this signs the request itself (Signature Version 4) with the
credentials from the instance's metadata. It is packed into the user data: a failure can be reported before anything is
downloaded. Names are as in AWS' API references. ``-`` reads the body from standard input: the object for S3's
PutObject, the whole request as JSON for other operations. Runs on Python 3.9.

BOOT_AWS, for tests, is where all requests go instead. BOOT_METADATA and BOOT_PAUSE_S are as in the boot script.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

_QUERY = {
    "autoscaling": ("autoscaling", "2011-01-01"),
    "cloudformation": ("cloudformation", "2010-05-15"),
    "cloudwatch": ("monitoring", "2010-08-01"),
}
"""Services that take a form: endpoint, and version of the API."""
_JSON = {
    "dynamodb": ("dynamodb", "DynamoDB_20120810", "1.0"),
    "logs": ("logs", "Logs_20140328", "1.1"),
    "ecr": ("api.ecr", "AmazonEC2ContainerRegistry_V20150921", "1.1"),
}
"""Services that take JSON: endpoint, prefix of the operation's name, and version of the format."""
_S3_METHODS = {"GetObject": "GET", "ListObjectsV2": "GET", "PutObject": "PUT"}
_UNRESERVED = "-_.~"
_PATIENCE = "Throttl", "ProvisionedThroughputExceeded", "RequestLimitExceeded"
_PAUSES_S = (1.0, 4.0)
_METADATA_S, _ANSWER_S = 5.0, 30.0
_FAILURES = (OSError, HTTPException, ValueError)


class RefusedError(OSError):
    """AWS refused the request.

    Attributes:
        is_passing: Whether a retry may succeed.
    """

    def __init__(self, status: int, reason: str, content: bytes) -> None:
        text = content.decode(errors="replace")
        super().__init__(f"{status} {reason} {text}")
        self.is_passing = status >= 500 or status == 429 or any(word in text for word in _PATIENCE)


class AwsCall(NamedTuple):
    """One request, not yet signed.

    Attributes:
        endpoint: The beginning of the host name.
        path: Percent-encoded.
        query: Encoded and in order.
    """

    service: str
    endpoint: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


def call_of(service: str, operation: str, values: dict[str, str], body: bytes | None) -> AwsCall:
    """Returns the request for an operation.

    Args:
        values: The operation's parameters.
        body: The text of standard input; None without ``-``.
    """
    if service in _QUERY:
        endpoint, version = _QUERY[service]
        form = urlencode({"Action": operation, "Version": version, **values}).encode()
        return AwsCall(
            endpoint,
            endpoint,
            "POST",
            "/",
            "",
            {"Content-Type": "application/x-www-form-urlencoded"},
            form,
        )
    if service in _JSON:
        endpoint, prefix, version = _JSON[service]
        headers = {
            "Content-Type": f"application/x-amz-json-{version}",
            "X-Amz-Target": f"{prefix}.{operation}",
        }
        return AwsCall(
            service,
            endpoint,
            "POST",
            "/",
            "",
            headers,
            json.dumps(values).encode() if body is None else body,
        )
    if service == "s3":
        path = "/" + quote(values.get("Key", ""), safe="/" + _UNRESERVED)
        query = (
            f"list-type=2&prefix={quote(values['Prefix'], safe=_UNRESERVED)}"
            if "Prefix" in values
            else ""
        )
        return AwsCall(
            "s3", f"{values['Bucket']}.s3", _S3_METHODS[operation], path, query, {}, body or b""
        )
    if (service, operation) == ("lambda", "DeleteProvisionedConcurrencyConfig"):
        path = f"/2019-09-30/functions/{quote(values['FunctionName'], safe=_UNRESERVED)}/provisioned-concurrency"
        return AwsCall(
            "lambda",
            "lambda",
            "DELETE",
            path,
            urlencode({"Qualifier": values["Qualifier"]}),
            {},
            b"",
        )
    raise SystemExit(f"{service} {operation} is not known here")


def signed(
    call: AwsCall, host: str, region: str, credentials: dict[str, str], date: str
) -> dict[str, str]:
    """Returns the request's headers, including the signature.

    Args:
        credentials: The credentials in the format of the instance's metadata.
        date: ``20261125T093000Z``.
    """
    digest = hashlib.sha256(call.body).hexdigest()
    headers = {
        **call.headers,
        "Host": host,
        "X-Amz-Date": date,
        "X-Amz-Content-SHA256": digest,
        "X-Amz-Security-Token": credentials["Token"],
    }
    lines = sorted((name.lower(), value.strip()) for name, value in headers.items())
    names = ";".join(name for name, _ in lines)
    # All services but S3 encode the path a second time.
    path = call.path if call.service == "s3" else quote(call.path, safe="/" + _UNRESERVED)
    listed = [f"{name}:{value}" for name, value in lines]
    request = "\n".join([call.method, path, call.query, *listed, "", names, digest])
    scope = f"{date[:8]}/{region}/{call.service}/aws4_request"
    text = "\n".join(
        ["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()]
    )
    key = ("AWS4" + credentials["SecretAccessKey"]).encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return {
        **headers,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={credentials['AccessKeyId']}/{scope}, "
        f"SignedHeaders={names}, Signature={key.hex()}",
    }


def read_credentials() -> dict[str, str]:
    """Returns the instance's credentials from its metadata.

    Raises:
        OSError, HTTPException or ValueError: They are not available.
    """
    metadata = os.environ.get("BOOT_METADATA", "http://169.254.169.254") + "/latest"
    token = _send(
        "PUT", f"{metadata}/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, _METADATA_S
    )
    path = f"{metadata}/meta-data/iam/security-credentials/"
    headers = {"X-aws-ec2-metadata-token": token.decode()}
    role = _send("GET", path, headers, _METADATA_S).decode()
    found = json.loads(_send("GET", path + role, headers, _METADATA_S))
    if (
        not isinstance(found, dict)
        or not {"AccessKeyId", "SecretAccessKey", "Token"} <= found.keys()
    ):
        raise ValueError(f"the metadata have no credentials of {role}")
    return found


def ask(call: AwsCall) -> bytes:
    """Returns AWS' answer. Retries passing failures.

    Raises:
        OSError, HTTPException or ValueError: AWS refuses, or cannot be reached.
    """
    region, domain = os.environ["BOOT_REGION"], os.environ["BOOT_DOMAIN"]
    host = f"{call.endpoint}.{region}.{domain}"
    url = (
        os.environ.get("BOOT_AWS", f"https://{host}")
        + call.path
        + (f"?{call.query}" if call.query else "")
    )
    for pause_s in (*_PAUSES_S, None):
        try:
            headers = signed(
                call,
                host,
                region,
                read_credentials(),
                time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            )
            return _send(call.method, url, headers, _ANSWER_S, call.body)
        except _FAILURES as error:
            if pause_s is None or isinstance(error, RefusedError) and not error.is_passing:
                raise
            time.sleep(float(os.environ.get("BOOT_PAUSE_S", pause_s)))
    raise AssertionError("the last try raises")


def _send(
    method: str, url: str, headers: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> bytes:
    parts = urlsplit(url)
    connection = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(
        parts.netloc, timeout=timeout_s
    )
    try:
        connection.request(
            method, url[url.index(parts.netloc) + len(parts.netloc) :], body, dict(headers)
        )
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise RefusedError(answer.status, answer.reason, content)
    return content


def main(words: list[str]) -> None:
    """Sends the request and prints the answer. SystemExit carries the error message."""
    service, operation, *values = words
    body = sys.stdin.buffer.read() if values[-1:] == ["-"] else None
    call = call_of(
        service, operation, dict(one.split("=", 1) for one in values if one != "-"), body
    )
    try:
        sys.stdout.buffer.write(ask(call))
    except _FAILURES as error:
        raise SystemExit(f"aws {service} {operation}: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
