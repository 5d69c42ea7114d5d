"""The AWS command line, as far as a learner's instance uses it.

Requests go through boto3 to AWS_ENDPOINT_URL. botocore's models say which operations, options and values a service has;
anything else is refused with exit code 252, and what AWS refuses ends with 254, as there. The instance's program is a
client of this process, which has read the models: a Python of its own would take half a second for each call.
"""

from __future__ import annotations

import base64
import json
import re
import socketserver
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError, ParamValidationError

_NAMES = {"s3api": "s3"}
_TOKEN = re.compile(r"""'([^']*)'|([][{}=,'"])|([^][{}=,'"]+)""")
"""Of the shorthand syntax: a quoted text, a sign, or a plain text."""
_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)
_END = b"\0\4"
_CLIENT = f"""\
exec 3<>/dev/tcp/127.0.0.1/{{port}}
printf '%s\\0' {" ".join(f'"${name}"' for name in _VARIABLES)} "$@" >&3
printf '\\4' >&3
read -r code <&3
[ "$code" = 0 ] || exec >&2
cat <&3
exit "$code"
"""


class UsageError(Exception):
    """There is no such command."""


def call(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Returns the exit code and what it prints, with these environment variables."""
    try:
        session = boto3.Session(
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=variables["AWS_SESSION_TOKEN"] or None,
            region_name=variables["AWS_DEFAULT_REGION"],
        )
        return 0, f"{_run(session, variables['AWS_ENDPOINT_URL'] or None, *words)}\n"
    except (UsageError, ParamValidationError) as error:
        return 252, f"aws: {error}\n"
    except ClientError as error:
        return 254, f"aws: {error}\n"


def program() -> str:
    """Returns the program ``aws`` as text, for bash; it needs ``cat``."""
    return _CLIENT.format(port=_server().server_address[1])


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        received = b""
        while chunk := self.request.recv(2**16):
            received += chunk
            if received.endswith(_END):
                values = received.removesuffix(_END).decode().split("\0")
                count = len(_VARIABLES)
                variables = dict(zip(_VARIABLES, values[:count], strict=True))
                code, printed = call(values[count:], variables)
                self.request.sendall(f"{code}\n{printed}".encode())
                return


@cache
def _server() -> socketserver.TCPServer:
    """Returns this process's server, which serves to its end."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _run(session: boto3.Session, url: str | None, service: str, operation: str, *words: str) -> str:
    """Returns what the command prints."""
    known = session.get_available_services()
    if service not in known and service not in _NAMES:
        raise UsageError(f"{service} is none of {len(known)} services")
    with closing(session.client(_NAMES.get(service, service), endpoint_url=url)) as client:
        return _ask(client, service, operation, *words)


def _ask(client: Any, service: str, operation: str, *words: str) -> str:
    if (service, operation, words) == ("ecr", "get-login-password", ()):
        (data,) = client.get_authorization_token()["authorizationData"]
        return base64.b64decode(data["authorizationToken"]).decode().partition(":")[2]
    method = operation.replace("-", "_")
    if method not in client.meta.method_to_api_mapping:
        raise UsageError(f"{service} has no operation {operation}")
    shape = client.meta.service_model.operation_model(
        client.meta.method_to_api_mapping[method]
    ).input_shape
    options = dict(zip(words[::2], words[1::2], strict=True))
    query, output = options.pop("--query", ""), options.pop("--output", "")
    members = {f"--{xform_name(name, '-')}": name for name in shape.members}
    if unknown := options.keys() - members.keys():
        raise UsageError(f"{operation} has no option {', '.join(sorted(unknown))}")
    given = {
        members[name]: _value(shape.members[members[name]], text) for name, text in options.items()
    }
    answer = getattr(client, method)(**given)
    if (query == "") != (output == "") or output not in ("", "text"):
        raise UsageError(f"--output {output} without --query is not printed here")
    return str(jmespath.search(query, answer)) if query else ""


def _value(shape: Any, text: str) -> Any:
    """Returns an option's value for boto3, which checks it."""
    if shape.type_name == "blob":
        return Path(text).read_bytes()
    if shape.type_name in ("string", "timestamp"):
        return text
    if shape.type_name in ("integer", "long"):
        return int(text)
    # The shorthand syntax is JSON without its quotes.
    signs = {"=": ":"}
    tokens = [
        signs.get(one[2], one[2]) or json.dumps(one[1] if one[3] is None else one[3])
        for one in _TOKEN.finditer(text)
    ]
    try:
        value = json.loads(f"{{{''.join(tokens)}}}")
    except ValueError as error:
        raise UsageError(f"{text!r} is not the shorthand syntax: {error}") from error
    return [_typed(shape.member, value)] if shape.type_name == "list" else _typed(shape, value)


def _typed(shape: Any, value: Any) -> Any:
    """Returns the value with numbers as the shape wants them; boto3 checks all else."""
    if shape.type_name == "structure" and isinstance(value, dict):
        return {
            name: _typed(shape.members[name], one) if name in shape.members else one
            for name, one in value.items()
        }
    if shape.type_name == "map" and isinstance(value, dict):
        return {name: _typed(shape.value, one) for name, one in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [_typed(shape.member, one) for one in value]
    return float(value) if shape.type_name in ("double", "float") else value
