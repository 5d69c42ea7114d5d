"""Sockets between all members of a group, on one machine. All members notice a death at once."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import RunError
from runtime.fleet.processes import socket_parent

_DIRECTORY, _CALLED_OFF = "directory", "called-off"
PATIENCE_S = 0.2
"""Seconds in which to notice the death that made another member leave."""
_LOOK_S = 0.005
_HANG_UP = select.POLLHUP | select.POLLERR
Parts = Mapping[int, memoryview]
"""Bytes to or from each of some members."""
_Rest = dict[int, memoryview]


class Mesh:
    """One Unix-domain socket between every two members.

    The kernel closes a member's sockets when it dies, however it dies. So a waiting member learns at once of a death
    anywhere in the group, no matter which member it waits for. Orderly leavers first say so in the store.

    Attributes:
        rank: Rank of this member, from 0.
        size: Number of members.
        messages: Number of messages that this member has sent, without barriers.
        bytes_sent: Bytes of these messages.
        bytes_received: Bytes of the messages that it has received.
        waited_s: Seconds that it has waited for others.
    """

    def __init__(self, rank: int, size: int, store: Store, name: str, *, timeout_s: float) -> None:
        """Connects all members. Returns when all are connected.

        Args:
            rank: Rank of this member.
            size: Number of members.
            store: Where they find each other.
            name: Name of the group, new in this store.
            timeout_s: Maximum seconds that a member waits for another.

        Raises:
            RunError: A member does not join in time.
        """
        self.rank, self.size = rank, size
        self.messages = self.bytes_sent = self.bytes_received = 0
        self.waited_s = 0.0
        self._name, self._timeout_s = name, timeout_s
        self._store = PrefixStore(name, store)
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()
        directory: Path | None = None
        try:
            if rank == 0:
                # Only its owner may enter it and connect.
                directory = Path(tempfile.mkdtemp(prefix="gmi-", dir=socket_parent()))
                self._store.set(_DIRECTORY, str(directory))
            directory = Path(self._awaited(_DIRECTORY).decode())
            self._connect(directory)
            self.barrier(range(size))
        except BaseException as error:
            with suppress(RuntimeError):
                call_off(store, name)
            self.close()
            if isinstance(error, OSError | RuntimeError):
                raise RunError(
                    f"member {rank} of {size} cannot join group {name}: {error}"
                ) from error
            raise
        finally:
            if directory:
                shutil.rmtree(directory, ignore_errors=True)

    def exchange(self, sends: Parts, receives: Parts) -> None:
        """Sends and receives at the same time. Returns when both are done.

        Args:
            sends: Bytes to send.
            receives: Buffers to fill.

        Raises:
            RunError: A member is gone, or does not answer in time.
        """
        outgoing, incoming = (
            {rank: part for rank, part in parts.items() if len(part)} for parts in (sends, receives)
        )
        self.count(
            len(outgoing),
            sent=sum(map(len, outgoing.values())),
            received=sum(map(len, incoming.values())),
        )
        self._transfer(outgoing, incoming)

    def barrier(self, ranks: Sequence[int]) -> None:
        """Returns when all of these members have called it.

        All of them then see what each wrote to shared memory before the call: the kernel orders it.

        Raises:
            RunError: A member is gone, or does not call it in time.
        """
        token = memoryview(bytearray(1))
        first, *others = ranks
        if self.rank == first:
            self._transfer({}, dict.fromkeys(others, token))
            self._transfer(dict.fromkeys(others, token), {})
        else:
            self._transfer({first: token}, {first: token})

    def count(self, messages: int, *, sent: int, received: int) -> None:
        """Counts messages that were sent in another way."""
        self.messages += messages
        self.bytes_sent += sent
        self.bytes_received += received

    def send_file(self, descriptor: int, ranks: Iterable[int]) -> None:
        """Opens a file of this member in other members, which call `receive_file`.

        Raises:
            RunError: A member is gone.
        """
        with self._naming_the_dead():
            for rank in ranks:
                socket.send_fds(self._sockets[rank], [b"f"], [descriptor])

    def receive_file(self, rank: int) -> int:
        """Returns the descriptor of a file that another member has sent.

        Raises:
            RunError: The member is gone, or does not send one in time.
        """
        with self._naming_the_dead():
            while True:
                with suppress(BlockingIOError):
                    _, descriptors, _, _ = socket.recv_fds(self._sockets[rank], 1, 1)
                    if not descriptors:
                        raise ConnectionResetError(f"no more from member {rank}")
                    return descriptors[0]
                self._wait(set(), {rank})

    def watch(self, seconds: float) -> None:
        """Waits, but raises as soon as a member dies.

        Raises:
            RunError: A member is gone.
        """
        deadline_s = time.monotonic() + seconds
        while found := self._poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            self._hear(found)

    def close(self) -> None:
        """Leaves the group; idempotent."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self.rank}", "")
        for connection in self._sockets.values():
            connection.close()
        self._sockets, self._poll = {}, select.poll()

    def _connect(self, directory: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(directory / str(self.rank)))
            listener.listen(self.size)
            listener.settimeout(_LOOK_S)
            self._store.set(f"listens/{self.rank}", "")
            for other in range(self.size):
                self._awaited(f"listens/{other}")
            for other in range(self.rank):
                connection = self._sockets[other] = socket.socket(socket.AF_UNIX)
                connection.connect(str(directory / str(other)))
                connection.sendall(self.rank.to_bytes(4))
            deadline_s = time.monotonic() + self._timeout_s
            while len(self._sockets) < self.size - 1:
                self._check(deadline_s)
                with suppress(TimeoutError):
                    other_end, _ = listener.accept()
                    other_end.settimeout(self._timeout_s)
                    rank = bytearray(4)
                    other_end.recv_into(rank, 4, socket.MSG_WAITALL)
                    self._sockets[int.from_bytes(rank)] = other_end
        for connection in self._sockets.values():
            connection.setblocking(False)
            self._poll.register(connection, 0)

    def _awaited(self, key: str) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            self._check(deadline_s)
            if self._store.check([key]):
                return self._store.get(key)
            time.sleep(_LOOK_S)

    def _check(self, deadline_s: float) -> None:
        if self._store.check([_CALLED_OFF]):
            raise RunError(f"group {self._name} was called off")
        if time.monotonic() > deadline_s:
            raise RunError(
                f"not all members of group {self._name} came within {self._timeout_s:g} s"
            )

    def _transfer(self, outgoing: _Rest, incoming: _Rest) -> None:
        with self._naming_the_dead():
            while True:
                _advance(outgoing, lambda rank, part: self._sockets[rank].send(part))
                _advance(incoming, lambda rank, part: self._sockets[rank].recv_into(part))
                if not outgoing and not incoming:
                    return
                self._wait(outgoing.keys(), incoming.keys())

    @contextmanager
    def _naming_the_dead(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A member may have left because of a death that this one is about to notice.
            self.watch(PATIENCE_S)
            raise RunError(f"a member of group {self._name} has left: {error}") from error

    def _wait(self, senders: Set[int], receivers: Set[int]) -> None:
        needed = senders | receivers
        for rank in needed:
            events = (select.POLLOUT if rank in senders else 0) | (
                select.POLLIN if rank in receivers else 0
            )
            self._poll.register(self._sockets[rank], events)
        started_s = time.monotonic()
        found = self._poll.poll(self._timeout_s * 1000)
        self.waited_s += time.monotonic() - started_s
        for rank in needed:
            self._poll.register(self._sockets[rank], 0)
        if not found:
            raise RunError(
                f"no answer for {self._timeout_s:g} s from member {', '.join(map(str, sorted(needed)))} "
                f"of group {self._name}"
            )
        self._hear(found, needed)

    def _hear(self, found: list[tuple[int, int]], needed: Set[int] = frozenset()) -> None:
        ended = {descriptor for descriptor, events in found if events & _HANG_UP}
        ranks = (
            [rank for rank, connection in self._sockets.items() if connection.fileno() in ended]
            if ended
            else []
        )
        if lost := [str(rank) for rank in ranks if not self._store.check([f"left/{rank}"])]:
            raise RunError(f"group {self._name} lost member {', '.join(lost)} of {self.size}")
        for rank in ranks:
            if rank not in needed:
                self._poll.unregister(self._sockets[rank])


def call_off(store: Store, name: str) -> None:
    """Makes members that wait for a group to form give up, as one will not come. Formed groups continue."""
    PrefixStore(name, store).set(_CALLED_OFF, "")


def remove_directory(store: Store, name: str) -> None:
    """Removes files left behind if all members of a group were killed while connecting."""
    prefixed = PrefixStore(name, store)
    if prefixed.check([_DIRECTORY]):
        shutil.rmtree(prefixed.get(_DIRECTORY).decode(), ignore_errors=True)


def _advance(parts: _Rest, move: Callable[[int, memoryview], int]) -> None:
    for rank, part in list(parts.items()):
        with suppress(BlockingIOError):
            if not (moved := move(rank, part)):
                raise ConnectionResetError(f"no more from member {rank}")
            parts[rank] = part[moved:]
            if moved == len(part):
                del parts[rank]
