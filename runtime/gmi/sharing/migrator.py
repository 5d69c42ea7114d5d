"""The migrator: says which trainer gets which samples."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO

from runtime.gmi.sharing.control import Kind, Message, SharingError, greet, unpack
from runtime.gmi.sharing.plan import Plan


@dataclass(eq=False)
class _Instance:
    """What is known of a process at the other end of a socket.

    Attributes:
        samples: Sent to this trainer, and not taken yet.
        turn: When it got the last ones.
    """

    name: str
    number: int
    device: str
    connection: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    samples: int = 0
    turn: int = 0


class Migrator:
    """Owns the shared memory, and routes ranges of samples: each to one trainer, all fields together.

    A range goes to a trainer on its agent's device if there is one, else to any: of these to the one with the fewest
    samples to take, in turn where several have as few. Not for several threads at once.

    Attributes:
        accepted: By agent, the sequence number after the last sample that was handed over: there its successor begins.
        samples_lost: Those of chunks that trainers had not taken, or not in full, when they ended.
    """

    def __init__(self, plan: Plan) -> None:
        """Makes the shared memory. It has no name: nothing of it is left when the last instance ends, however it ends.

        Args:
            plan: The same in all instances.

        Raises:
            OSError: There is no such memory.
        """
        self._plan = plan
        self._memory = _anonymous_file(plan.agents * plan.agent_bytes)
        self._selector = selectors.DefaultSelector()
        self._agents: dict[int, _Instance] = {}
        self._trainers: dict[int, _Instance] = {}
        self._devices: dict[int, str] = {}
        # By agent and slot: who is to take it, None for nobody yet.
        self._routes: dict[tuple[int, int], tuple[Message, _Instance | None]] = {}
        self._waiting: deque[Message] = deque()
        self._turn = 0
        self.accepted = [0] * plan.agents
        self.samples_lost = 0

    def add_agent(self, agent: int, device: str = "cpu") -> socket.socket:
        """Takes in a serving instance, or one that replaces another of this number, which has ended.

        Args:
            agent: Its number, below the plan's ``agents``.
            device: Where it plays.

        Returns:
            Its end of the control socket. Let it inherit the descriptor, then close it here.
        """
        if not 0 <= agent < self._plan.agents:
            raise ValueError(f"agent {agent}; the plan has {self._plan.agents}")
        self._devices[agent] = device
        theirs = self._add(self._agents, "agent", agent, device)
        for slot in range(self._plan.chunks):
            if (agent, slot) not in self._routes:
                self._allow(agent, slot)
        return theirs

    def add_trainer(self, trainer: int, device: str = "cpu") -> socket.socket:
        """Takes in a trainer, as `add_agent` does."""
        theirs = self._add(self._trainers, "trainer", trainer, device)
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            self._route(message)
        return theirs

    def step(self, timeout_s: float) -> None:
        """Handles what has come, and what comes until something does.

        Args:
            timeout_s: Seconds to wait at most.

        Raises:
            SharingError: An instance broke the rules. It is out; the others go on with the next step.
        """
        self._flush()
        for key, events in self._selector.select(timeout_s):
            # Not if it has left since, over another one's message.
            if events & selectors.EVENT_READ and key.data.connection.fileno() >= 0:
                self._read(key.data)
        self._flush()

    def close(self) -> None:
        """Hangs up on all instances; idempotent."""
        for instance in list(self._instances()):
            self._leave(instance)
        self._selector.close()
        self._memory.close()

    def _instances(self) -> Iterator[_Instance]:
        yield from self._agents.values()
        yield from self._trainers.values()

    def _add(self, instances: dict[int, _Instance], role: str, number: int, device: str) -> socket.socket:
        while (before := instances.get(number)) is not None:
            # Its last messages may not have been read.
            if not self._read(before):
                raise ValueError(f"{before.name} has not ended")
        first = self.accepted[number] if instances is self._agents else 0
        ours, theirs = socket.socketpair()
        greet(ours, self._plan, self._memory.fileno(), number=number, first=first)
        ours.setblocking(False)
        instances[number] = instance = _Instance(f"{role} {number}", number, device, ours)
        self._selector.register(ours, selectors.EVENT_READ, instance)
        return theirs

    def _read(self, instance: _Instance) -> bool:
        """Handles what an instance has sent; returns whether there was anything, its end included."""
        try:
            data = instance.connection.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._leave(instance)
            return True
        try:
            instance.inbox += data
            for message in unpack(instance.inbox, instance.name):
                self._handle(instance, message)
        except SharingError:
            self._leave(instance)
            raise
        return True

    def _handle(self, instance: _Instance, message: Message) -> None:
        key = (message.agent, message.slot)
        is_agent = self._agents.get(instance.number) is instance
        if is_agent and message.kind is Kind.CHUNK:
            if (message.agent != instance.number or message.slot >= self._plan.chunks or key in self._routes
                    or not 0 < message.size <= self._plan.chunk_samples
                    or message.first != self.accepted[instance.number]):
                raise SharingError(f"{instance.name} hands out what it may not: {message}")
            self.accepted[instance.number] += message.size
            self._route(message)
        elif not is_agent and message.kind is Kind.DONE:
            chunk, trainer = self._routes.get(key, (message, None))
            if trainer is not instance:
                raise SharingError(f"{instance.name} has taken what it may not: {message}")
            instance.samples -= chunk.size
            self._release(key)
        else:
            raise SharingError(f"{instance.name} may not say {message.kind.name}")

    def _route(self, message: Message) -> None:
        near = [one for one in self._trainers.values() if one.device == self._devices[message.agent]]
        trainer = min(near or self._trainers.values(), key=lambda one: (one.samples, one.turn), default=None)
        self._routes[message.agent, message.slot] = message, trainer
        if trainer is None:
            self._waiting.append(message)
            return
        self._turn += 1
        trainer.turn = self._turn
        trainer.samples += message.size
        trainer.outbox += message.pack()

    def _release(self, key: tuple[int, int]) -> None:
        """Lets the agent write there again."""
        del self._routes[key]
        self._allow(*key)

    def _allow(self, agent: int, slot: int) -> None:
        if agent in self._agents:
            self._agents[agent].outbox += Message(Kind.FREE, agent, slot).pack()

    def _flush(self) -> None:
        """Sends what can be sent without waiting for an instance."""
        for instance in list(self._instances()):
            if instance.outbox:
                try:
                    del instance.outbox[:instance.connection.send(instance.outbox)]
                except BlockingIOError:
                    pass
                except ConnectionError:
                    # Reading tells of its end, after its last messages.
                    instance.outbox.clear()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if instance.outbox else 0)
            if self._selector.get_key(instance.connection).events != events:
                self._selector.modify(instance.connection, events, instance)

    def _leave(self, instance: _Instance) -> None:
        """Forgets an instance that has ended; what it was to take is lost."""
        self._selector.unregister(instance.connection)
        instance.connection.close()
        for instances in (self._agents, self._trainers):
            if instances.get(instance.number) is instance:
                del instances[instance.number]
        for key, (message, trainer) in list(self._routes.items()):
            if trainer is instance:
                self.samples_lost += message.size
                self._release(key)


def _anonymous_file(size: int) -> FileIO:
    """A file in memory, or one without a name where there are none."""
    if sys.platform == "linux":
        file = FileIO(os.memfd_create("experience"), "r+")
    else:
        with tempfile.TemporaryFile() as nameless:
            file = FileIO(os.dup(nameless.fileno()), "r+")
    file.truncate(size)
    return file
