"""Dispensers, migrator and batchers, all in one process: whose samples go where, and what is refused."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lambda_actor.environments import make_environment
from lambda_actor.rollout import Fragment, roll_out
from lambda_actor.trial import random_policy
from runtime.gmi.sharing import control
from runtime.gmi.sharing.batcher import Batcher, Experience
from runtime.gmi.sharing.control import Kind, Message, SharingError
from runtime.gmi.sharing.dispenser import Dispenser
from runtime.gmi.sharing.migrator import Migrator
from runtime.gmi.sharing.plan import Field, Plan
from runtime.learner.batch import assemble_batch
from tests.gmi.sharing.samples import FIELDS, plan, require_whole, samples, sequences


class Machine:
    """The instances of a plan, each of which acts when a test lets it."""

    def __init__(self, shared: Plan) -> None:
        self.plan, self._stack = shared, ExitStack()
        self.migrator = self._stack.enter_context(closing(Migrator(shared)))

    def agent(self, number: int = 0, device: str = "cpu") -> Dispenser:
        return self._stack.enter_context(closing(
            Dispenser(self.migrator.add_agent(number, device).detach(), self.plan)))

    def trainer(self, number: int = 0, device: str = "cpu", *, batch: int) -> Batcher:
        return self._stack.enter_context(closing(
            Batcher(self.migrator.add_trainer(number, device).detach(), self.plan, batch)))

    def close(self) -> None:
        self._stack.close()

    def settle(self) -> None:
        """Lets the migrator read and send all that there is."""
        for _ in range(5):
            self.migrator.step(0.0)

    def take(self, trainer: Batcher) -> Experience | None:
        """A batch, if there are samples for one."""
        self.settle()
        return trainer.take(0.0)

    def write(self, agent: Dispenser, first: int, count: int) -> None:
        self.settle()
        agent.write(samples(agent.agent, first, count), first, timeout_s=0.0)


@pytest.fixture
def machine() -> Iterator[Callable[[Plan], Machine]]:
    made: list[Machine] = []

    def make(shared: Plan) -> Machine:
        made.append(Machine(shared))
        return made[-1]

    yield make
    for one in made:
        one.close()


MakeMachine = Callable[[Plan], Machine]


def taken(batch: Experience | None) -> Experience:
    assert batch is not None
    require_whole(batch)
    return batch


# What comes out is what went in


@pytest.mark.parametrize("is_uni_channel", [False, True])
@pytest.mark.parametrize("chunk_samples", [1, 4])
@pytest.mark.parametrize("batch_samples", [3, 4, 10], ids=["sliced", "as they are", "stacked"])
def test_samples_arrive_whole_in_order_and_once(
    machine: MakeMachine, is_uni_channel: bool, chunk_samples: int, batch_samples: int
) -> None:
    here = machine(plan(chunk_samples=chunk_samples, chunks=12 // chunk_samples, is_uni_channel=is_uni_channel))
    agents, trainer = [here.agent(0), here.agent(1)], here.trainer(batch=batch_samples)
    ranges = []
    for start in range(0, 60, 6):
        for agent in agents:
            here.write(agent, start, 6)
        while (batch := here.take(trainer)) is not None:
            assert len(taken(batch).fields["actions"]) == batch_samples
            ranges += batch.ranges
    for number in (0, 1):
        found = sequences(ranges, number)
        assert found == list(range(len(found)))
        assert len(found) > 60 - batch_samples - chunk_samples


def test_channels_that_lag_at_random_never_lose_step(machine: MakeMachine) -> None:
    here = machine(plan(chunks=4))
    agents, trainer = [here.agent(0), here.agent(1)], here.trainer(batch=5)
    random = np.random.default_rng(0)
    ends = {(agent, name): 0 for agent in (0, 1) for name in FIELDS}
    ranges = []
    for _ in range(3000):
        number, name = int(random.integers(2)), str(random.choice(list(FIELDS)))
        first = ends[number, name]
        # The slowest channel's chunk is open, so that this one may be up to three chunks further.
        room = (min(end for (agent, _), end in ends.items() if agent == number) // 4 + 4) * 4 - first
        count = min(int(random.integers(1, 7)), room)
        if not count:
            continue
        while (batch := here.take(trainer)) is not None:
            ranges += taken(batch).ranges
        here.settle()
        agents[number].write({name: samples(number, first, count)[name]}, first, timeout_s=0.0)
        ends[number, name] += count
    found = [sequences(ranges, number) for number in (0, 1)]
    assert found == [list(range(len(one))) for one in found]
    assert min(map(len, found)) > 300


def test_a_closed_dispenser_has_handed_out_what_is_complete(machine: MakeMachine) -> None:
    here = machine(plan())
    agent, trainer = here.agent(), here.trainer(batch=6)
    here.write(agent, 0, 6)
    agent.write({"actions": samples(0, 6, 1)["actions"]}, 6, timeout_s=0.0)
    assert here.take(trainer) is None
    agent.close()
    assert taken(here.take(trainer)).ranges == [(0, 0, 5)]


def test_fragments_become_the_batch_that_the_learner_knows(machine: MakeMachine) -> None:
    environment = make_environment("CartPole-v1")
    fragments = [roll_out(environment, random_policy(environment), fragment_steps=24, seed=seed, round_index=0, slot=0,
                          truncate_at_fragment=seed % 2 == 0) for seed in range(6)]
    by_step = ("observations", "actions", "log_probs", "rewards", "terminated")
    fields = {name: Field(value.dtype.str, value.shape) for name in by_step
              for value in (getattr(fragments[0], name),)}
    fields["bootstrap_mask"] = Field("bool", (24,))
    fields["bootstrap_observations"] = Field("float32", (4,), rows_max=24)
    here = machine(Plan(fields, agents=1, chunk_samples=2, chunks=3))
    agent, trainer = here.agent(), here.trainer(batch=3)
    here.settle()

    def written(fragment: Fragment) -> dict[str, Any]:
        mask = np.isin(np.arange(24), fragment.bootstrap_steps)
        return {**{name: getattr(fragment, name)[None] for name in by_step}, "bootstrap_mask": mask[None],
                "bootstrap_observations": [fragment.bootstrap_observations]}

    for sequence, fragment in enumerate(fragments):
        agent.write(written(fragment), sequence, timeout_s=0.0)
    for start in (0, 3):
        batch = here.take(trainer)
        assert batch is not None and batch.ranges == [(0, start, start + 2)]
        wanted = assemble_batch([{**fragment.fields(), "policy_version": np.array(0)}
                                 for fragment in fragments[start:start + 3]], environment.spaces)
        for name in (*by_step, "bootstrap_mask"):
            np.testing.assert_array_equal(np.swapaxes(batch.fields[name], 0, 1), getattr(wanted, name), err_msg=name)
        np.testing.assert_array_equal(batch.fields["bootstrap_observations"], wanted.bootstrap_observations)


# Who gets it


def test_a_chunk_goes_where_the_least_is_to_be_taken(machine: MakeMachine) -> None:
    here = machine(plan(chunks=8))
    agent, slow, quick = here.agent(), here.trainer(0, batch=4), here.trainer(1, batch=4)
    order = []
    for start in range(0, 32, 4):
        here.write(agent, start, 4)
        if (batch := here.take(quick)) is not None:
            order.append(taken(batch).ranges[0].first)
    assert order == [4, 8, 12, 16, 20, 24, 28], "the slow one has one chunk to take, and gets no second one"
    assert taken(here.take(slow)).ranges == [(0, 0, 3)]


def test_trainers_that_have_taken_everything_get_chunks_in_turn(machine: MakeMachine) -> None:
    here = machine(plan())
    agent, trainers = here.agent(), [here.trainer(number, batch=4) for number in (0, 1)]
    got = []
    for start in range(0, 16, 4):
        here.write(agent, start, 4)
        got.append([here.take(trainer) is not None for trainer in trainers])
    assert got == [[True, False], [False, True]] * 2


def test_a_trainer_on_the_agents_device_comes_first(machine: MakeMachine) -> None:
    here = machine(plan(chunks=8))
    far, near = here.trainer(0, "cuda:0", batch=4), here.trainer(1, "cuda:1", batch=4)
    agent, stranger = here.agent(0, "cuda:1"), here.agent(1, "cuda:2")
    here.write(agent, 0, 12)
    here.write(stranger, 0, 4)
    assert taken(here.take(far)).ranges == [(1, 0, 3)], "with no trainer on its device, the one with less to take"
    assert here.take(far) is None
    for start in (0, 4, 8):
        assert taken(here.take(near)).ranges == [(0, start, start + 3)]


def test_samples_wait_for_the_first_trainer(machine: MakeMachine) -> None:
    here = machine(plan())
    here.write(here.agent(), 0, 8)
    here.settle()
    assert taken(here.take(here.trainer(batch=8))).ranges == [(0, 0, 7)]


# An agent that is ahead


def test_an_agent_far_ahead_waits_and_gives_up_without_a_trace(machine: MakeMachine) -> None:
    here = machine(plan())
    agent, trainer = here.agent(), here.trainer(batch=4)
    here.write(agent, 0, 11)
    with pytest.raises(TimeoutError, match="no room for samples of agent 0 within 0 s: nobody takes"):
        here.write(agent, 11, 2)
    here.write(agent, 11, 1)
    assert [taken(here.take(trainer)).ranges for _ in range(3)] == [[(0, 0, 3)], [(0, 4, 7)], [(0, 8, 11)]]
    here.write(agent, 12, 12)
    assert taken(here.take(trainer)).ranges == [(0, 12, 15)]


def test_a_batch_larger_than_the_memory_is_filled_over_several_calls(machine: MakeMachine) -> None:
    here = machine(plan(chunks=2))
    agent, trainer = here.agent(), here.trainer(batch=20)
    for start in range(0, 20, 4):
        assert here.take(trainer) is None
        here.write(agent, start, 4)
    assert taken(here.take(trainer)).ranges == [(0, 0, 19)]


def test_a_channel_too_far_ahead_of_another_is_refused_at_once(machine: MakeMachine) -> None:
    here = machine(plan())
    agent = here.agent()
    here.settle()
    agent.write({"actions": samples(0, 0, 12)["actions"]}, 0, timeout_s=0.0)
    with pytest.raises(SharingError, match=r"samples 0 to 12 are not complete, more than the 3 chunks of 4 hold"):
        agent.write({"actions": samples(0, 12, 1)["actions"]}, 12, timeout_s=60.0)


def test_a_write_larger_than_the_memory_is_refused_at_once(machine: MakeMachine) -> None:
    here = machine(plan())
    agent = here.agent()
    here.settle()
    with pytest.raises(SharingError, match="more than the 3 chunks of 4 hold"):
        agent.write(samples(0, 0, 13), 0, timeout_s=60.0)


# Those that end


def test_a_trainer_that_ends_costs_what_it_had_not_taken_and_counts_no_more(machine: MakeMachine) -> None:
    here = machine(plan(chunks=4))
    agent, ending = here.agent(), here.trainer(0, batch=6)
    here.write(agent, 0, 16)
    taken(here.take(ending))
    ending.close()
    here.settle()
    assert here.migrator.samples_lost == 12, "the chunk that was taken in part is lost with it"
    successor = here.trainer(0, batch=4)
    here.write(agent, 16, 16)
    assert [taken(here.take(successor)).ranges for _ in range(4)] == [
        [(0, start, start + 3)] for start in (16, 20, 24, 28)]
    assert here.migrator.samples_lost == 12


def test_an_agent_that_ends_costs_what_it_had_not_handed_over(machine: MakeMachine) -> None:
    here = machine(plan())
    ending, trainer = here.agent(), here.trainer(batch=4)
    here.write(ending, 0, 7)
    ending._link.close()
    successor = here.agent()
    assert successor.first == here.migrator.accepted[0] == 4
    # One chunk of its predecessor is still to be taken, two are free.
    here.write(successor, 4, 8)
    with pytest.raises(TimeoutError):
        here.write(successor, 12, 1)
    assert [taken(here.take(trainer)).ranges for _ in range(3)] == [[(0, 0, 3)], [(0, 4, 7)], [(0, 8, 11)]]
    here.write(successor, 12, 12)


def test_one_that_lives_is_not_replaced(machine: MakeMachine) -> None:
    here = machine(plan())
    agent, trainer = here.agent(1), here.trainer(0, batch=4)
    with pytest.raises(ValueError, match="agent 1 has not ended"):
        here.migrator.add_agent(1)
    with pytest.raises(ValueError, match="trainer 0 has not ended"):
        here.migrator.add_trainer(0)
    with pytest.raises(ValueError, match="agent 2; the plan has 2"):
        here.migrator.add_agent(2)
    here.write(agent, 0, 4)
    taken(here.take(trainer))


def test_instances_end_with_the_migrator(machine: MakeMachine) -> None:
    here = machine(plan())
    agent, trainer = here.agent(), here.trainer(batch=4)
    here.write(agent, 0, 3)
    for instance in list(here.migrator._instances()):
        here.migrator._leave(instance)
    with pytest.raises(SharingError, match="the migrator is gone"):
        trainer.take(60.0)
    with pytest.raises(SharingError, match="the migrator is gone"):
        agent.write(samples(0, 3, 8), 3, timeout_s=60.0)
    agent.close()


# What is refused


@pytest.mark.parametrize(("change", "told"), [
    ({"actions": np.zeros(2, np.int32)}, r"actions: int32\[2\]; the plan says int64"),
    ({"observations": np.zeros((2, 4), np.float32)},
     r"observations: float32\[2, 4\]; the plan says float32\[3\] of each"),
    ({"rewards": np.zeros((), np.float64)}, r"rewards: float64\[\]"),
    ({"rewards": [0.0, 1.0]}, r"rewards: list\[2\]"),
    ({"after": [np.zeros((5, 2), np.float32)] * 2}, "after: 5 rows of a sample; the plan says 4 at most"),
    ({"after": [np.zeros((1, 3), np.float32)] * 2}, r"after: float32\[1, 3\]"),
    ({"rewards": np.zeros(3)}, "fields of different samples: .*'rewards': 3"),
    ({"reward": np.zeros(2)}, "no field 'reward' in the plan: observations, actions"),
], ids=["dtype", "shape", "no samples", "list", "too many rows", "rows", "counts", "unknown"])
def test_a_field_that_is_not_the_plans_is_refused_and_nothing_written(
    machine: MakeMachine, change: dict[str, Any], told: str
) -> None:
    here = machine(plan())
    agent, trainer = here.agent(), here.trainer(batch=4)
    here.settle()
    with pytest.raises(SharingError, match=told):
        agent.write({**samples(0, 0, 2), **change}, 0, timeout_s=0.0)
    here.write(agent, 0, 4)
    assert taken(here.take(trainer)).ranges == [(0, 0, 3)]


@pytest.mark.parametrize("sequence", [3, 5])
def test_a_gap_and_a_repetition_are_refused(machine: MakeMachine, sequence: int) -> None:
    here = machine(plan())
    agent = here.agent()
    here.write(agent, 0, 4)
    with pytest.raises(SharingError, match=f"observations: sample {sequence} comes, 4 is the next one"):
        agent.write(samples(0, sequence, 1), sequence, timeout_s=0.0)


@pytest.mark.parametrize(("other", "told"), [
    (replace(plan(), fields={**FIELDS, "actions": Field("int32")}), "field actions: .*int32.* here, .*int64.* there"),
    (replace(plan(), fields={**FIELDS, "values": Field("float32")}), "field values: .*float32.* here, None there"),
    (plan(chunks=4), "chunks: 4 here, 3 there"),
    (plan(is_uni_channel=True), "is_uni_channel: True here, False there"),
])
def test_both_sides_check_the_plan(other: Plan, told: str) -> None:
    with closing(Migrator(plan())) as migrator:
        with pytest.raises(SharingError, match=told):
            Dispenser(migrator.add_agent(0).detach(), other)
        with pytest.raises(SharingError, match=told):
            Batcher(migrator.add_trainer(0).detach(), other, 4)


def test_objects_are_not_shared() -> None:
    with pytest.raises(ValueError, match="states: Python objects cannot be shared"):
        Migrator(Plan({"states": Field("O")}, 1, 1, 1))


def test_a_trainer_cannot_change_what_an_agent_wrote(machine: MakeMachine) -> None:
    trainer = machine(plan()).trainer(batch=4)
    with pytest.raises(ValueError, match="read-only"):
        trainer._channels[0]["actions"][0, 0] = 1


@pytest.mark.parametrize("place", range(control._BYTES))
def test_corrupted_control_bytes_are_told_of_and_only_their_sender_is_out(machine: MakeMachine, place: int) -> None:
    here = machine(plan())
    agent, trainer, socket_of_other = here.agent(), here.trainer(batch=4), here.migrator.add_agent(1)
    data = bytearray(Message(Kind.CHUNK, 1, 0, 4, 0).pack())
    data[place] ^= 0x10
    with closing(socket_of_other):
        socket_of_other.sendall(data)
        with pytest.raises(SharingError, match=f"a control message of agent 1 is corrupted: {data.hex()}"):
            here.settle()
        here.write(agent, 0, 4)
        assert taken(here.take(trainer)).ranges == [(0, 0, 3)]
        here.write(here.agent(1), 0, 4)
        assert taken(here.take(trainer)).ranges == [(1, 0, 3)]


@pytest.mark.parametrize(("role", "message"), [
    ("agent", Message(Kind.CHUNK, 0, 0, 4, 0)),
    ("agent", Message(Kind.CHUNK, 1, 3, 4, 0)),
    ("agent", Message(Kind.CHUNK, 1, 0, 5, 0)),
    ("agent", Message(Kind.CHUNK, 1, 0, 0, 0)),
    ("agent", Message(Kind.CHUNK, 1, 0, 4, 8)),
    ("agent", Message(Kind.DONE, 1, 0)),
    ("trainer", Message(Kind.CHUNK, 1, 0, 4, 0)),
    ("trainer", Message(Kind.DONE, 0, 0)),
    ("trainer", Message(Kind.DONE, 1, 7)),
], ids=["another's", "no slot", "too long", "empty", "gap", "agent's done", "trainer's chunk", "another trainer's",
        "no chunk"])
def test_what_an_instance_may_not_say_is_refused(machine: MakeMachine, role: str, message: Message) -> None:
    here = machine(plan())
    first, trainer = here.agent(), here.trainer(0, batch=4)
    here.write(first, 0, 4)
    here.settle()
    add = here.migrator.add_agent if role == "agent" else here.migrator.add_trainer
    with closing(add(1)) as liar:
        liar.sendall(message.pack())
        with pytest.raises(SharingError, match=f"{role} 1"):
            here.settle()
    assert taken(here.take(trainer)).ranges == [(0, 0, 3)]
    assert here.migrator.samples_lost == 0


def test_a_chunk_is_not_handed_out_twice(machine: MakeMachine) -> None:
    here = machine(plan())
    with closing(here.migrator.add_agent(0)) as liar:
        liar.sendall(Message(Kind.CHUNK, 0, 0, 4, 0).pack() + Message(Kind.CHUNK, 0, 0, 4, 4).pack())
        with pytest.raises(SharingError, match="agent 0 hands out what it may not"):
            here.settle()


def test_half_a_message_at_the_end_costs_nothing_else(machine: MakeMachine) -> None:
    here = machine(plan())
    ending, trainer = here.migrator.add_agent(1), here.trainer(batch=4)
    ending.sendall(Message(Kind.CHUNK, 1, 0, 4, 0).pack()[:11])
    ending.close()
    here.settle()
    here.write(here.agent(1), 0, 4)
    assert taken(here.take(trainer)).ranges == [(1, 0, 3)]


def test_a_message_may_come_in_two_parts(machine: MakeMachine) -> None:
    here = machine(plan(agents=1))
    with closing(here.migrator.add_agent(0)) as agent:
        data = Message(Kind.CHUNK, 0, 0, 4, 0).pack() + Message(Kind.CHUNK, 0, 1, 4, 4).pack()
        for part in (data[:40], data[40:]):
            agent.sendall(part)
            here.settle()
    assert here.migrator.accepted == [8]


@pytest.mark.parametrize(("has_memory", "hello", "text", "told"), [
    (False, Message(Kind.HELLO, 0, 0), b"", "the migrator says no hello"),
    (True, Message(Kind.FREE, 0, 0), b"", "the migrator says no hello"),
    (True, Message(Kind.HELLO, 0, 0, 2), b"{}", "the migrator's plan is corrupted"),
])
def test_what_does_not_greet_as_a_migrator_does_is_refused(
    has_memory: bool, hello: Message, text: bytes, told: str
) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), tempfile.TemporaryFile() as memory:
        socket.send_fds(ours, [hello.pack() + text], [memory.fileno()] if has_memory else [])
        with pytest.raises(SharingError, match=told):
            Dispenser(theirs.detach(), plan())


def test_an_instances_socket_is_not_inherited_by_what_it_starts() -> None:
    with closing(Migrator(plan())) as migrator:
        theirs = migrator.add_agent(0)
        os.set_inheritable(theirs.fileno(), True)
        descriptor = theirs.detach()
        agent = Dispenser(descriptor, plan())
        assert not os.get_inheritable(descriptor)
        agent.close()
