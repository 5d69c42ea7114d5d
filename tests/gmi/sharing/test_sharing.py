"""Shared memory of instances: data come out unchanged, and no chunk is lost or given out twice."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor.environments import make_environment
from lambda_actor.inline import ACCEPTED, LATE, to_text
from lambda_actor.rollout import roll_out
from lambda_actor.trial import random_policy, random_weights
from runtime.errors import RunError
from runtime.fleet.interfaces import Invocation
from runtime.fleet.processes import Child
from runtime.gmi.devices import Place
from runtime.gmi.fleet import INSTANCE_HANDLER
from runtime.gmi.sharing.channel import Channel, chunk_bytes
from runtime.gmi.sharing.fleets import ServingFleet, TrainingFleet
from runtime.gmi.sharing.migrator import Migrator, routes
from runtime.gmi.worker import Instance
from runtime.learner.functions.store import FolderStore, object_name
from runtime.money.work import Outcome
from tests.environments import EPISODE_STEPS, Pictures, StatefulCounter
from tests.gmi.test_updater import Machine
from tests.helpers import PATIENCE_S

CHUNKS, STEPS, BYTES_MAX = 7, 24, 100
CHUNK_BYTES = 1000


class Spy(StatefulCounter):
    """Its rewards show whether a child program has a descriptor of this process."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def step(self, action):
        observation, _, *rest = super().step(action)
        code = subprocess.call(["sh", "-c", f"test -e /dev/fd/{self.descriptor}"], close_fds=False)
        return observation, float(code == 0), *rest


class Hasty(Pictures):
    """Truncates its episode at each step, which gives the most frames."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, False, True, {}


@pytest.fixture
def migrator() -> Iterator[Migrator]:
    with closing(Migrator(CHUNK_BYTES, CHUNKS)) as made:
        yield made


def channel_of(migrator: Migrator) -> Channel:
    return Channel(**json.loads(json.dumps(migrator.memory["channel"])))


# Data come out unchanged


def test_chunks_hold_what_was_written_last(migrator: Migrator) -> None:
    player, trainer = channel_of(migrator), channel_of(migrator)
    last = {}
    for seed in range(60):
        draw = np.random.default_rng(seed)
        chunk, rows = seed * 5 % CHUNKS, seed % 6
        last[chunk] = {"version": np.array(seed), "actions": draw.random((rows, 3), np.float32)}
        last[chunk]["terminated"] = draw.random(rows) < 0.5
        last[chunk]["frames"] = draw.integers(0, 255, (rows, 2, 2), np.uint8)[:, ::-1]
        player.write(chunk, last[chunk])
        for other, wanted in last.items():
            found = trainer.read(other)
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes())


def test_what_does_not_fit_and_what_is_not_there_are_refused(migrator: Migrator) -> None:
    channel = channel_of(migrator)
    with pytest.raises(RunError, match="chunk 1 holds no fragment"):
        channel.read(1)
    with pytest.raises(RunError, match="a fragment has .* bytes, and a chunk 1000"):
        channel.write(0, {"rewards": np.zeros(CHUNK_BYTES // 8)})
    with pytest.raises(RunError, match="chunk 0 holds no fragment"):
        channel.read(0)


def test_there_is_room_for_the_most_frames() -> None:
    # A step's frames are larger than what is reckoned for headers.
    options = {"frame_stack": 3, "kwargs": {"shape": (48, 60, 2)}}
    environment = make_environment(f"{__name__}:Hasty", options=options)
    policy = random_policy(environment)
    pictures = make_environment("tests.environments:Pictures", options=options)
    left = roll_out(
        pictures, policy, fragment_steps=EPISODE_STEPS - 1, seed=0, round_index=0, slot=0
    ).open_episode
    fields = roll_out(
        environment, policy, fragment_steps=STEPS, seed=0, round_index=1, slot=0, open_episode=left
    ).fields() | {"policy_version": np.array(0)}
    assert fields["frames_shape"][0] == 2 * STEPS + 2
    with closing(Migrator(chunk_bytes(environment.spaces, STEPS), 1)) as migrator:
        channel = channel_of(migrator)
        channel.write(0, fields)
        assert np.array_equal(channel.read(0)["frames"], fields["frames"])


# Owners of chunks


def test_all_chunks_are_given_out_and_no_more(migrator: Migrator) -> None:
    assert {migrator.place(f"{number}") for number in range(CHUNKS)} == set(range(CHUNKS))
    migrator.give("2")
    for one in ("3", "3", "unknown"):
        migrator.release(one)
    assert migrator.place("another") != (chunk := migrator.chunk_of("2")), (
        "that one may still be trained on"
    )
    with pytest.raises(
        RunError,
        match=f"all {CHUNKS} chunks for experience hold fragments that were not trained on",
    ):
        migrator.place("one more")
    migrator.release_given()
    assert migrator.place("one more") == chunk


def fleets(
    folder: Path, migrator: Migrator, serving: Sequence[int], training: Sequence[int]
) -> tuple[Any, ...]:
    machine = Machine()
    playing = ServingFleet(
        machine,
        [Place(one) for one in serving],
        migrator=migrator,
        store=FolderStore(folder),
        token="run",
    )
    return (
        machine,
        playing,
        TrainingFleet(
            Machine(), [Place(one) for one in training], playing, migrator, reduction="mpr"
        ),
    )


def test_nothing_leaks_and_nothing_is_written_over_whatever_becomes_of_actors(
    tmp_path: Path,
) -> None:
    told = dict.fromkeys(("fine", "late"), to_text(bytes(BYTES_MAX)))
    drawn, held = random.Random(0), dict[str, int]()
    with closing(Migrator(CHUNK_BYTES, 12)) as migrator:
        machine, serving, training = fleets(tmp_path, migrator, [0, 1], [1, 0])
        for number in range(300):
            fates = {
                f"r{number}-{slot}": drawn.choice([*told, "fine", "crashed", "given up"])
                for slot in range(6)
            }
            serving.expect(fates)
            serving.start(
                [
                    Invocation(one, {"slot": slot, "episode_id": ""})
                    for slot, one in enumerate(fates)
                ]
            )
            held |= {one.invocation_id: one.event["chunk"] for one in machine.started[-6:]}
            assert len(set(held.values())) == len(held), "no chunk has two fragments"
            for one, fate in fates.items():
                if fate in ("late", "given up"):
                    assert serving.take(one) is None
                if fate == "given up":
                    serving.abandon([one])
                else:
                    response = (
                        {"status": ACCEPTED, "trajectory": told[fate]} if fate in told else None
                    )
                    machine._outcomes.append(
                        Outcome(one, "ok" if response else "crashed", response)
                    )
            statuses = {
                one.invocation_id: (one.response or {}).get("status") for one in serving.wait(0.0)
            }
            for one, fate in fates.items():
                assert statuses[one] == {"fine": ACCEPTED, "late": LATE}.get(fate)
                if fate == "fine":
                    assert serving.take(one) == bytes(BYTES_MAX)
                    assert training.event_of(one) == {"invocation_id": one, "chunk": held[one]}
                else:
                    assert serving.take(one) is None
                    del held[one]
            if number % 2:
                # Otherwise the round is rejected, and its actors play again.
                training.forget()
                held.clear()
        assert not (migrator._given or serving._played or serving._doors)
        assert {migrator.place(f"{number}") for number in range(12)} == set(range(12))


def test_trainers_take_what_is_near_or_else_what_is_left(
    tmp_path: Path, migrator: Migrator
) -> None:
    assert routes([9, 2, 2, 2, 2, 2], [0] * 6, [0, 0]) == {0: [0], 1: [1, 2, 3, 4, 5]}, (
        "the one with fewer steps"
    )
    assert routes([5, 5, 5], [2, 2, 1], [0, 1]) == {0: [0], 1: [1, 2]}, "no trainer is on device 2"
    assert list(routes([1, 9], [1, 0], [0, 1])) == [0, 1], (
        "the first instance is rank 0, whatever it takes"
    )
    _, _, training = fleets(tmp_path, migrator, [1, 0, 0], [0, 1])
    assert training.shares([3, 1, 2, 0], [9, 9, 9, 9]) == {0: [1, 2], 1: [0, 3]}, (
        "slot 3 is instance 0's"
    )


# An instance


def event(folder: Path, migrator: Migrator, **changes: Any) -> dict[str, Any]:
    text = dict.fromkeys(("run_id", "cache_url", "cache_credential", "episode_id", "episode"), "")
    return {
        **text,
        "cache_ttl_s": 1,
        "invocation_id": "r1-0",
        "environment_id": f"{__name__}:Spy",
        "preprocessing": "none",
        "truncate_at_fragment": True,
        "fragment_steps": STEPS,
        "policy_version": 0,
        "seed": 1,
        "round_index": 1,
        "slot": 0,
        "store": str(folder),
        "token": "run",
        "instance": 0,
        "cores": [],
        "variables": {},
        **migrator.memory,
        "chunk": 1,
        "worlds": 0,
        "environment_options": {"kwargs": {"descriptor": migrator.descriptor}},
        **changes,
    }


def test_another_process_writes_what_this_one_reads_and_what_it_starts_cannot(
    tmp_path: Path,
) -> None:
    spaces = make_environment(f"{__name__}:Spy", options={"kwargs": {"descriptor": -1}}).spaces
    FolderStore(tmp_path).put(object_name("run", "weights", 0), random_weights(spaces))
    with closing(Migrator(chunk_bytes(spaces, STEPS), 3)) as migrator:
        child = Child(
            "runtime.fleet.actor_process",
            INSTANCE_HANDLER,
            "alone",
            descriptors=[migrator.descriptor],
        )
        child.connection.send_bytes(json.dumps([event(tmp_path, migrator)]).encode())
        answers = []
        for _ in range(2):
            assert child.connection.poll(PATIENCE_S)
            answers.append(json.loads(child.connection.recv_bytes()))
        child.end()
        channel = channel_of(migrator)
        assert answers[1]["error"] == "" and answers[1]["response"]["status"] == ACCEPTED
        assert channel.read(1)["observations"][:, 0].tolist() == [
            step % EPISODE_STEPS for step in range(STEPS)
        ]
        assert channel.read(1)["rewards"].tolist() == [0.0] * STEPS, "no program has the memory"
        for chunk in (0, 2):
            with pytest.raises(RunError, match="holds no fragment"):
                channel.read(chunk)


def test_an_instance_tells_what_it_lacks(tmp_path: Path, migrator: Migrator) -> None:
    playing = event(tmp_path, migrator)
    with pytest.raises(RunError, match="the store does not hold policy version 0"):
        Instance().play([playing])
    channel_of(migrator).write(0, {"rewards": np.zeros(3)})
    with pytest.raises(RunError, match=r"trajectories have \[3\] steps instead of \[5\]"):
        Instance().train(
            {
                **migrator.memory,
                "slots": [{"invocation_id": "r1-0", "chunk": 0}],
                "columns": [1],
                "lengths": [4, 5],
            }
        )
