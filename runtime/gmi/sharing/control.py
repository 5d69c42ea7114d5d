"""Messages about samples: what lies where, and who is done with it."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from enum import IntEnum
from typing import NamedTuple

from runtime.errors import RunError
from runtime.gmi.sharing.plan import Plan


class SharingError(RunError):
    """Instances cannot share experience: one of them broke the rules, or what they talk to is gone."""


class Kind(IntEnum):
    HELLO = 1
    """To an instance, first of all: its number, its plan, and the shared memory's descriptor."""
    CHUNK = 2
    """From an agent to the migrator, and on to a trainer: samples to be taken."""
    DONE = 3
    """From a trainer: they are taken."""
    FREE = 4
    """To an agent: it may write there."""


class Message(NamedTuple):
    """One message.

    Attributes:
        agent: Whose samples; of HELLO the instance's own number.
        slot: The chunk's place in the agent's memory; of HELLO the checksum of the plan that follows.
        size: Samples of the chunk; of HELLO bytes of the plan.
        first: Sequence number of the chunk's first sample; of HELLO that of an agent's first one.
    """

    kind: Kind
    agent: int
    slot: int
    size: int = 0
    first: int = 0

    def pack(self) -> bytes:
        body = _BODY.pack(_MAGIC, self.kind, self.agent, self.slot, self.size, self.first)
        return body + _CHECKSUM.pack(zlib.crc32(body))


_MAGIC = b"XS"
_BODY, _CHECKSUM = struct.Struct("<2sBxIIIQ"), struct.Struct("<I")
_BYTES = _BODY.size + _CHECKSUM.size
_KINDS = {int(kind): kind for kind in Kind}


def unpack(inbox: bytearray, sender: str) -> list[Message]:
    """Takes the whole messages out of what has come.

    Raises:
        SharingError: These are no messages of ours.
    """
    whole = len(inbox) // _BYTES * _BYTES
    found = []
    for start in range(0, whole, _BYTES):
        magic, kind, *rest = _BODY.unpack_from(inbox, start)
        (checksum,) = _CHECKSUM.unpack_from(inbox, start + _BODY.size)
        if magic != _MAGIC or kind not in _KINDS or zlib.crc32(inbox[start:start + _BODY.size]) != checksum:
            raise SharingError(f"a control message of {sender} is corrupted: {inbox[start:start + _BYTES].hex()}")
        found.append(Message(_KINDS[kind], *rest))
    del inbox[:whole]
    return found


def greet(connection: socket.socket, plan: Plan, memory: int, *, number: int, first: int) -> None:
    """Sends the HELLO of a new instance, with the descriptor of the shared memory."""
    text = plan.to_json().encode()
    hello = Message(Kind.HELLO, number, zlib.crc32(text), len(text), first).pack()
    socket.send_fds(connection, [hello + text], [memory])


class Link:
    """An instance's end of its socket to the migrator.

    Attributes:
        hello: What it was told first.
        memory: That all instances share.
    """

    def __init__(self, control_fd: int, plan: Plan, access: int) -> None:
        """Waits for the HELLO.

        Args:
            control_fd: Descriptor that this process has got from the one with the migrator.
            plan: What this instance expects.
            access: To the memory, as `mmap.mmap` takes it.

        Raises:
            SharingError: The migrator's plan is another one, or it is gone.
        """
        # Else a program that this process starts would keep it open after this process' end.
        os.set_inheritable(control_fd, False)
        self._socket, self._inbox = socket.socket(fileno=control_fd), bytearray()
        with ExitStack() as received, ExitStack() as on_failure:
            on_failure.callback(self._socket.close)
            data, descriptors, _, _ = socket.recv_fds(self._socket, _BYTES, 1)
            for descriptor in descriptors:
                received.callback(os.close, descriptor)
            greeting = unpack(bytearray(data), "the migrator")
            if not greeting or greeting[0].kind is not Kind.HELLO or not descriptors:
                raise SharingError("the migrator says no hello")
            self.hello = greeting[0]
            text = self._socket.recv(self.hello.size, socket.MSG_WAITALL)
            if zlib.crc32(text) != self.hello.slot:
                raise SharingError("the migrator's plan is corrupted")
            if differences := plan.differences(text.decode()):
                raise SharingError(f"the migrator's plan is another one: {differences}")
            self.memory = mmap.mmap(descriptors[0], plan.agents * plan.agent_bytes, access=access)
            on_failure.pop_all()

    def send(self, messages: Iterable[Message]) -> None:
        """Sends messages, oldest first.

        Raises:
            SharingError: The migrator is gone.
        """
        try:
            self._socket.settimeout(None)
            self._socket.sendall(b"".join(message.pack() for message in messages))
        except OSError as error:
            raise SharingError(f"the migrator is gone: {error}") from error

    def receive(self, timeout_s: float) -> list[Message]:
        """Returns the messages that have come, or the next that come in time; none if none do.

        Raises:
            SharingError: The migrator is gone, or its messages are corrupted.
        """
        try:
            self._socket.settimeout(max(timeout_s, 0.0))
            data = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError as error:
            raise SharingError(f"the migrator is gone: {error}") from error
        if not data:
            raise SharingError("the migrator is gone")
        self._inbox += data
        return unpack(self._inbox, "the migrator")

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()
