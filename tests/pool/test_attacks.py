"""What goes wrong around a pool: it loses no dollar, gives no trajectory twice, and never waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nitro_rl
from lambda_actor import wire
from nitro_rl import ActorPool, ActorsKeepFailingError, BudgetError, RunError
from runtime.backends.this_machine import ThisMachine
from runtime.config.loading import experiment_from_tree
from runtime.learner.remote.messages import decode_state, encode_state
from runtime.pool import pool as pools
from runtime.ports.fleet import Outcome
from runtime.ports.learning import State
from runtime.ports.run import RunContext, Supplies
from runtime.ports.sampling import Actor, Ended
from tests.fakes import ManualClock
from tests.helpers import ROOT, descendants, events, is_alive, wait_for
from tests.pool.test_pool import Opens, fragment, opens, policy, same, tree

__all__ = ["opens"]


# States


def test_a_policy_after_an_older_state_is_not_the_one_that_warm_actors_remember(
    opens: Opens,
) -> None:
    pool, other = opens(), opens("other")
    pool.sample(policy(seed=0), actors=4)
    state = pool.state()
    pool.sample(policy(seed=1), actors=4)
    for one in (pool, other):
        one.load_state(state)
    found, expected = (one.sample(policy(seed=2), actors=4) for one in (pool, other))
    assert all(map(same, found, expected))
    assert [one.policy_version for one in found] == [2] * 4, "no number is given twice"
    # Of a pool whose newest policy is another one with the same number.
    third = opens("third")
    for seed in (5, 6, 7):
        third.sample(policy(seed=seed), actors=4)
    state = third.state()
    pool.load_state(state)
    assert all(
        map(same, pool.sample(policy(seed=7), actors=4), third.sample(policy(seed=7), actors=4))
    )


def test_no_invocation_has_the_name_of_an_earlier_one(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, names = opens(), list[str]()
    start = pool._sampler.start

    def noting(actors: list[Actor]) -> None:
        names.extend(one.invocation_id for one in actors)
        start(actors)

    monkeypatch.setattr(pool._sampler, "start", noting)
    state = pool.state()
    for _ in range(3):
        pool.sample(policy(), actors=2)
        pool.load_state(state)
    assert len(set(names)) == len(names) == 6


def test_a_state_in_another_directory_has_rows_from_its_next_call_on(
    opens: Opens, tmp_path: Path
) -> None:
    pool, other = opens(), opens("other")
    for _ in range(3):
        pool.sample(policy(), actors=1)
    other.load_state(pool.state())
    other.sample(policy(), actors=2)
    other.submit(policy(), actors=1)
    assert len(list(other.as_completed())) == 1
    assert [row.round_index for row in other.rows] == [4, 5]
    other.close()
    again = opens("other")
    assert [row.round_index for row in again.rows] == [4, 5]
    assert again.sample(policy(), actors=1)[0].call == 6 and again.rows[-1].round_index == 6
    again.load_state(pool.state())
    assert again.rows == [] and again.sample(policy(), actors=1)[0].call == 4


@pytest.mark.parametrize(
    "values",
    [
        {"calls": -1},
        {"calls": 2**70},
        {"spent_usd": -1.0},
        {"spent_usd": 1e400},
        {"policy": [1]},
        {"policy": [0, "xyz"]},
        {"episodes": {}},
    ],
)
def test_a_state_that_is_refused_changes_nothing(opens: Opens, values: dict[str, Any]) -> None:
    pool, other = opens(), opens("other")
    for one in (pool, other):
        one.sample(policy(), actors=2)
    found = decode_state(pool.state())
    try:
        spoilt = encode_state(
            State({}, {**found.values, "episodes": {"episode_ids": []}, **values})
        )
    except ValueError:
        return
    spent_usd = pool.spent_usd
    with pytest.raises(RunError, match="this is no state of a pool"):
        pool.load_state(spoilt)
    assert pool.spent_usd == spent_usd
    assert all(map(same, pool.sample(policy(), actors=3), other.sample(policy(), actors=3)))


# Records


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"{"),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "calls": "many"})),
        lambda path: path.write_text(path.read_text().replace('"spent": ', '"spent": -')),
    ],
)
def test_what_was_spent_outlives_a_spoilt_ledger(opens: Opens, tmp_path: Path, spoil: Any) -> None:
    pool = opens()
    pool.sample(policy(), actors=4)
    spent_usd = pool.spent_usd
    pool.close()
    spoil(tmp_path / "pool" / "ledger.json")
    again = opens()
    assert again.spent_usd == pytest.approx(spent_usd, rel=1e-9) and again.spent_usd >= spent_usd
    assert again.sample(policy(), actors=1)[0].call == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-10],
        lambda data: b"junk\n" + data,
        lambda data: data + b"\xff\xfe\n",
    ],
)
def test_spoilt_rows_are_left_out_or_refused(opens: Opens, tmp_path: Path, spoil: Any) -> None:
    pool = opens()
    pool.sample(policy(), actors=1)
    pool.sample(policy(), actors=1)
    spent_usd = pool.spent_usd
    pool.close()
    rounds = tmp_path / "pool" / "rounds.jsonl"
    rounds.write_bytes(spoil(rounds.read_bytes()))
    again = opens()
    assert again.spent_usd >= spent_usd
    assert again.sample(policy(), actors=1)[0].call == 3, "no number is used again"


_OWNER = """
import sys
sys.path.insert(0, {root!r})
from nitro_rl import ActorPool
from tests.pool.test_pool import policy, tree
with ActorPool(tree(), budget_usd=1.0, out={out!r}, is_quiet=True) as pool:
    while True:
        for _ in range(2):
            pool.submit(policy(), actors=2)
        for one in pool.as_completed():
            print(one.call, one.slot, pool.spent_usd, flush=True)
"""


def test_an_owner_that_is_killed_at_any_moment_gives_nothing_twice_and_forgets_no_dollar(
    tmp_path: Path,
) -> None:
    out, seen, spent_usd = tmp_path / "pool", list[tuple[str, str]](), 0.0
    for moment in (1, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", _OWNER.format(root=str(ROOT), out=str(out))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(moment)]
        below = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        lines += process.communicate()[0].splitlines(keepends=True)
        for call, slot, spent in (line.split() for line in lines if line.endswith("\n")):
            seen.append((call, slot))
            assert float(spent) >= spent_usd
            spent_usd = float(spent)
        wait_for(lambda below=below: not any(map(is_alive, below)), "its actors to end")
    assert len(set(seen)) == len(seen)
    with ActorPool(tree(), budget_usd=1.0, out=out, is_quiet=True) as pool:
        assert pool.spent_usd >= spent_usd
        assert [row.round_index for row in pool.rows] == sorted(
            {row.round_index for row in pool.rows}
        )
    assert json.loads((out / "ledger.json").read_text())["budget"]["reserved"] == {}


def test_a_full_disk_ends_the_pool_and_forgets_no_dollar(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens()
    for _ in range(2):
        pool.submit(policy(), actors=2)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(pools, "write_atomically", full)
    with pytest.raises(OSError, match="the disk is full"):
        list(pool.as_completed())
    monkeypatch.undo()
    again = opens()
    assert again.spent_usd >= pool.spent_usd > 0.0
    assert len(again.sample(policy(), actors=2)) == 2


def test_a_disk_that_is_full_at_the_end_keeps_nothing_from_the_guard(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, told = opens(), list[Any]()

    def full(_: Path) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(pools, "try_to_write_report", full)
    monkeypatch.setattr(pool._keeping, "on_end", told.append)
    with pytest.raises(OSError, match="the disk is full"):
        pool.close()
    assert told


# Whoever calls


def test_nothing_waits_for_what_a_closed_pool_has_given_up(opens: Opens) -> None:
    pool = opens()
    pool.submit(policy(), actors=4)
    pool.submit(policy(), actors=4)
    came = pool.as_completed()
    next(came)
    pool.close()
    with pytest.raises(RunError, match="the pool is closed"):
        list(came)
    with pytest.raises(RunError, match="the pool is closed"):
        list(pool.as_completed())


def test_a_closed_pool_changes_no_rows_of_the_next_one(opens: Opens, tmp_path: Path) -> None:
    pool = opens()
    state = pool.state()
    pool.sample(policy(), actors=1)
    pool.close()
    again = opens()
    with pytest.raises(RunError, match="the pool is closed"):
        pool.load_state(state)
    assert (
        len((tmp_path / "pool" / "rounds.jsonl").read_text().splitlines()) == len(again.rows) == 1
    )


def test_threads_take_turns(opens: Opens) -> None:
    pool, found, errors = opens(budget_usd=5.0), list[tuple[int, int]](), list[BaseException]()

    def sample(number: int) -> None:
        try:
            for _ in range(2):
                if number % 2:
                    pool.submit(policy(seed=number), actors=2)
                    came = list(pool.as_completed())
                else:
                    came = pool.sample(policy(seed=number), actors=2)
                found.extend((one.call, one.slot) for one in came)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=sample, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found += [(one.call, one.slot) for one in pool.as_completed()]
    assert not errors
    assert sorted(found) == [(call, slot) for call in range(1, 9) for slot in range(2)]
    assert [row.round_index for row in pool.rows] == list(range(1, 9))
    assert pool._meter.reserved_usd == 0.0


def test_a_thread_can_close_it_while_another_one_waits(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, is_waiting, told = opens(), threading.Event(), list[str]()
    next_one = pool._sampler.next

    def nobody_ends(timeout_s: float) -> Any:
        is_waiting.set()
        return None if threading.current_thread() is thread else next_one(timeout_s)

    def sample() -> None:
        try:
            pool.sample(policy(), actors=1)
        except RunError as error:
            told.append(str(error))

    monkeypatch.setattr(pool._sampler, "next", nobody_ends)
    thread = threading.Thread(target=sample)
    thread.start()
    is_waiting.wait()
    pool.close()
    thread.join()
    assert told == [f"the pool is closed; open another one on {pool.directory}"]
    assert pool._meter.reserved_usd == 0.0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_leaves_the_pool_to_its_owner(opens: Opens) -> None:
    pool = opens()
    call = pool.submit(policy(), actors=4)
    child = os.fork()
    if not child:
        status = 1
        try:
            with pool:
                pool.sample(policy(), actors=1)
        except RunError as error:
            status = 0 if f"the pool is process {os.getppid()}'s" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(pool.as_completed())) == 4 and not call.error


def test_a_trajectory_that_is_damaged_at_the_deadline_costs_its_own_actor_alone(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = opens()
    call = pool.submit(policy(), actors=2)

    def damaged(actor: Actor) -> None:
        pool._sampler._delivered[actor.invocation_id] = 0
        raise wire.CorruptedMessageError("the checksum does not match")

    monkeypatch.setattr(pool._sampler, "deliver", damaged)
    pool._give_up(call)  # Its deadline has passed, whether or not its actors have ended.
    with pytest.raises(ActorsKeepFailingError, match="the checksum does not match"):
        list(pool.as_completed())
    assert len(events(tmp_path / "pool", "actor_failed")) == 2
    monkeypatch.undo()
    assert len(pool.sample(policy(), actors=2)) == 2


def test_each_wave_of_actors_has_a_deadline_and_what_stands_is_reserved_until_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, clock, given_up = (
        {"processes": 2, "round_deadline_s": 3600},
        ManualClock(0.0),
        dict[int, float](),
    )
    made = tree(provisioned=2) | {"fleet": limits}
    with ActorPool(made, budget_usd=0.16, out=tmp_path / "pool", is_quiet=True) as pool:
        give_up = pool._give_up
        monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=clock))
        monkeypatch.setattr(pools, "_LOOK_S", 600.0)
        monkeypatch.setattr(pool._sampler, "next", clock.advance)
        monkeypatch.setattr(pool._sampler, "give_up_all", list)
        monkeypatch.setattr(
            pool, "_give_up", lambda call: (given_up.update({call.number: clock()}), give_up(call))
        )
        for actors in (4, 3):
            pool.submit(policy(), actors=actors)
        reserved_usd = pool._meter.reserved_usd
        with pytest.raises(BudgetError, match="less than what stands for one; nothing was started"):
            pool.submit(policy(), actors=4)
        assert pool._meter.reserved_usd == reserved_usd
        while len(given_up) < 2:
            pool._advance()
    assert given_up == {1: 2 * 3600.0, 2: 4 * 3600.0}
    assert not events(tmp_path / "pool", "reservation_exceeded")


def test_an_actor_that_was_given_up_hides_no_earlier_failure(opens: Opens) -> None:
    pool = opens()
    call = pool.submit(policy(), actors=1)
    (actor,) = pool._sampler.in_flight.values()
    call.tally.last_error = "timed out after 4 s"
    pool._take_in(
        Ended(actor, Outcome(actor.invocation_id, "abandoned"), None, "still running", None), 0
    )
    assert call.tally.last_error == "timed out after 4 s"


# Policies


def test_a_policy_that_is_no_policy_costs_nothing(opens: Opens) -> None:
    pool = opens()
    size, outputs = pool.spaces.observation_size, pool.spaces.output_size
    layers = [
        (np.zeros((4, size)), np.zeros(4)),
        (np.zeros((outputs, 4)), np.full(outputs, np.nan)),
    ]
    broken = nitro_rl.numpy_policy(
        layers, log_std=None if pool.spaces.is_discrete else np.zeros(outputs)
    )
    for given, told in (
        (broken, r"layer\.1\.bias is not finite"),
        ({}, "WEIGHTS lacks"),
        ({"a": object()}, "cannot"),
        (wire.decode(policy(), wire.Kind.WEIGHTS) | {"log_std": np.array(["a"])}, "cannot act"),
    ):
        with pytest.raises(RunError, match=told):
            pool.sample(given, actors=1)
    assert pool.spent_usd == 0.0 and pool._meter.reserved_usd == 0.0


def test_a_pool_on_lambda_keeps_to_its_function_and_its_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local = experiment_from_tree(
        {
            **tree(),
            "learner": {"kind": "external"},
            "cache": {"kind": "none"},
            "budget": {"usd": 1},
        },
        source="test",
    ).resolved()

    class Here(ThisMachine):
        def supply(self, run: RunContext) -> Supplies:
            return super().supply(
                replace(run, experiment=run.experiment.model_copy(update={"fleet": local.fleet}))
            )

    monkeypatch.setattr(pools, "make_backend", lambda *_: Here(local))
    (path := tmp_path / "one.json").write_text(
        json.dumps({**tree(memory_mib=256), "fleet": {"kind": "lambda"}, "budget": {"usd": 1}})
    )
    with ActorPool(path, out=tmp_path / "pool", is_quiet=True) as pool:
        wide = [
            (np.zeros((2**19, pool.spaces.observation_size)), np.zeros(2**19)),
            (np.zeros((pool.spaces.output_size, 2**19)), np.zeros(pool.spaces.output_size)),
        ]
        with pytest.raises(
            RunError, match=r"a policy of [\d,]+ bytes and an open episode take a request of"
        ):
            pool.sample(
                nitro_rl.numpy_policy(wide, log_std=np.zeros(pool.spaces.output_size)), actors=1
            )
        assert pool.spent_usd == pool._meter.reserved_usd == 0.0
        assert len(pool.sample(policy(), actors=1)) == 1


def test_what_an_actor_says_of_itself_is_checked(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy's version, its call, its shapes and numbers: a liar is replaced, and others are not."""
    pool = opens()
    spoilt: list[dict[str, Any]] = [
        {"policy_version": np.array(1)},
        {"policy_version": np.array(-1)},
        {"round_index": np.array(2)},
        {"slot": np.array(1)},
        {"rewards": np.full(12, np.nan)},
        {"continued_episode": wire.text_field("9-9")},
        {"bootstrap_steps": np.array([99])},
    ]
    take, left = pool._sampler._cache.take, iter([one for spoil in spoilt for one in (spoil, {})])

    def lying(invocation_id: str) -> bytes:
        found = take(invocation_id)
        fields = {**wire.decode(found or b"", wire.Kind.TRAJECTORY), **next(left, {})}
        if len(fields["bootstrap_steps"]) != len(fields["bootstrap_observations"]):
            fields["bootstrap_observations"] = fields["observations"][:1]
        return wire.encode(wire.Kind.TRAJECTORY, fields)

    monkeypatch.setattr(pool._sampler._cache, "take", lying)
    for call in range(1, 9):
        (one,) = pool.sample(policy(), actors=1)
        assert one.call == call and one.policy_version == 0
        if call == 1:
            assert same(one, fragment(policy(), 1, 0, None))
    assert sum(row.actors_failed for row in pool.rows) == len(spoilt)
