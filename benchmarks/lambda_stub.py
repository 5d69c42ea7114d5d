"""A fake Lambda over plain HTTP, which answers each invocation after a delay."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

ARN = "arn:aws:lambda:us-east-1:123456789012:function:actors:live"


async def serve(delay_s: float, answered: Callable[[Mapping[str, Any]], Callable[[], str]]) -> None:
    """Prints the port, and serves until standard input closes.

    Args:
        answered: Called with an invocation's event before its delay. Returns a function to call after the delay, which
            returns the status.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                event = json.loads(
                    await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
                )
                due_s = time.monotonic() + delay_s
                submit = answered(event)
                await asyncio.sleep(due_s - time.monotonic())
                body = json.dumps({"invocation_id": event["invocation_id"], "status": submit()})
                writer.write(
                    f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                    f"x-amzn-RequestId: r1\r\n\r\n{body}".encode()
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


@contextmanager
def stand_in(script: str, *arguments: str) -> Iterator[None]:
    """Makes this process's boto3 use ``python SCRIPT --serve ARGUMENTS``, which calls `serve`, instead of Lambda."""
    stub = subprocess.Popen(
        [sys.executable, script, "--serve", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert stub.stdout is not None
    os.environ.update(
        AWS_ENDPOINT_URL_LAMBDA=f"http://127.0.0.1:{int(stub.stdout.readline())}",
        AWS_ACCESS_KEY_ID="benchmark",
        AWS_SECRET_ACCESS_KEY="benchmark",
    )
    try:
        yield
    finally:
        stub.communicate()
