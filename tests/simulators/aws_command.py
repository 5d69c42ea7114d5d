"""The AWS command line, as far as a learner's instance uses it: ``python -m tests.simulators.aws_command WORD …``.

Requests go through boto3 to AWS_ENDPOINT_URL. botocore's models say which operations, options and values a service has;
anything else is refused with exit code 252, and what AWS refuses ends with 254, as there.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError, ParamValidationError

_NAMES = {"s3api": "s3"}
_TOKEN = re.compile(r"""'([^']*)'|([][{}=,'"])|([^][{}=,'"]+)""")
"""Of the shorthand syntax: a quoted text, a sign, or a plain text."""


class UsageError(Exception):
    """There is no such command."""


def main(words: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        print(_run(*words))
    except (UsageError, ParamValidationError) as error:
        print(f"aws: {error}", file=sys.stderr)
        return 252
    except ClientError as error:
        print(f"aws: {error}", file=sys.stderr)
        return 254
    return 0


def _run(service: str, operation: str, *words: str) -> str:
    """Returns what the command prints."""
    if service not in (known := boto3.Session().get_available_services()) and service not in _NAMES:
        raise UsageError(f"{service} is none of {len(known)} services")
    client = boto3.client(_NAMES.get(service, service))
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
