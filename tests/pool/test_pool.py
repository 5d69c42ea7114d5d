"""A pool of actors, with real processes of this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nitro_rl
from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.policy import Policy
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out
from nitro_rl import ActorPool, ActorsKeepFailingError, BudgetError, RunError, Trajectory
from runtime.errors import FleetError
from runtime.fleet.flight import Flight
from runtime.fleet.local import LocalFleet
from runtime.fleet.opening import Opening
from runtime.pool import pool as pools
from runtime.training import opening
from runtime.training.backends.this_machine import ThisMachine
from runtime.training.opening import Resources
from tests.environments import policy_arrays
from tests.fakes import ERROR, NEVER_RETURNS, OK, FakeCache, FakeFleet, ManualClock, Play
from tests.helpers import command_line, descendants, events, overrides, summary, train, wait_for

COUNTER, LIMITED = "tests.environments:make_counter", "tests.environments:make_limited"
STEPS = 12
DEAR = {"actor": {"fragment_steps": STEPS, "timeout_s": 900, "memory_mib": 10_240}}
"""One actor's worst case is $0.152."""
Opens = Callable[..., ActorPool]


def tree(environment_id: str = COUNTER, **sections: Any) -> dict[str, Any]:
    return {
        "environment": {"id": environment_id},
        "actor": {"fragment_steps": STEPS, "timeout_s": 30},
        "scaler": {"kind": "fixed", "actors_fixed": 4},
        "seed": 5,
    } | sections


def policy(seed: int = 0) -> bytes:
    """Returns a policy for the counters."""
    return wire.encode(wire.Kind.WEIGHTS, policy_arrays(seed=seed))


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with ExitStack() as stack:

        def open_pool(
            out: str = "pool", environment_id: str = COUNTER, budget_usd: float = 1.0, **more: Any
        ) -> ActorPool:
            experiment = tree(environment_id, **more)
            return stack.enter_context(
                ActorPool(experiment, budget_usd=budget_usd, out=tmp_path / out, is_quiet=True)
            )

        yield open_pool


def same(found: Trajectory, expected: Trajectory | Fragment) -> bool:
    return all(
        np.array_equal(value, getattr(expected, name))
        for name, value in vars(found).items()
        if isinstance(value, np.ndarray)
    )


def fragment(
    weights: bytes, call: int, slot: int, episode: OpenEpisode | None = None, steps: int = STEPS
) -> Fragment:
    environment = make_environment(COUNTER, "none")
    try:
        return roll_out(
            environment,
            Policy.from_bytes(weights),
            fragment_steps=steps,
            seed=5,
            round_index=call,
            slot=slot,
            open_episode=episode,
        )
    finally:
        environment.close()


def ledger(directory: Path) -> dict[str, Any]:
    budget: dict[str, Any] = json.loads((directory / "ledger.json").read_text())["budget"]
    return budget


def play(monkeypatch: pytest.MonkeyPatch, script: Callable[[Any, int], Play]) -> None:
    """Lets a script decide how the actors of new pools end."""

    class Scripted(ThisMachine):
        def open(self, opening: Opening) -> Resources:
            cache = FakeCache()
            fleet = FakeFleet(cache, ManualClock(), script)
            fleet.concurrency = opening.experiment.fleet.processes
            return replace(super().open(opening), cache=cache, fleet=fleet)

    monkeypatch.setattr(pools, "make_backend", Scripted)


# What a call brings


def test_a_call_has_what_each_actor_plays_and_later_calls_go_on_with_its_episodes(
    opens: Opens,
) -> None:
    """Whoever is killed meanwhile, and however long a busy machine takes to start others."""
    pool = opens(fleet={"processes": 2, "round_deadline_s": 3600})
    weights = policy()
    first = pool.sample(weights, actors=3)
    victims = [pid for pid in descendants(os.getpid()) if b"actor_process" in command_line(pid)]
    pool.submit(weights, actors=4, steps=7)
    # An actor has three tries, and may be in each process when that is killed.
    for pid in victims[:2]:
        os.kill(pid, signal.SIGKILL)
    second = pool.collect()
    assert [(one.call, one.slot, len(one)) for one in second] == [(2, slot, 7) for slot in range(4)]
    for slot, later in enumerate(second):
        earlier = fragment(weights, 1, slot)
        assert slot == 3 or same(first[slot], earlier)
        assert same(
            later, fragment(weights, 2, slot, earlier.open_episode if slot < 3 else None, 7)
        )
    assert pool.sample(policy(seed=1), actors=1)[0].policy_version == pool.policy_version == 1
    assert [row.env_steps_total for row in pool.rows] == [36, 64, 76]
    assert pool.spent_usd == pytest.approx(sum(row.round_cost_usd for row in pool.rows))


def test_next_observations_are_those_of_the_environment(opens: Opens) -> None:
    """At a step that ends an episode by its time limit, what was observed last, and not the next episode's start."""
    (trajectory,) = opens(environment_id=LIMITED).sample(policy(), actors=1)
    cut = set(trajectory.bootstrap_steps.tolist())
    assert trajectory.truncated.any() and not trajectory.terminated.any()
    for step, after in enumerate(trajectory.next_observations[:-1]):
        is_next = np.array_equal(after, trajectory.observations[step + 1])
        assert is_next == (step not in cut)


def test_submitted_calls_overlap_and_each_open_episode_is_continued_once(opens: Opens) -> None:
    pool, weights, began_s = opens(), policy(), time.monotonic()
    for count in (3, 1, 2):
        pool.submit(weights, actors=count)
    alone = pool.sample(weights, actors=1)
    found = pool.collect()
    slots = [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1)]
    assert [(one.call, one.slot) for one in found] == slots
    assert all(same(one, fragment(weights, one.call, one.slot)) for one in [*found, *alone])
    assert sum(row.round_s for row in pool.rows) <= time.monotonic() - began_s
    pool.submit(weights, actors=3)
    pool.submit(weights, actors=4)
    again = pool.collect()
    ends = {f"{one.call}-{one.slot}": one.next_observations[-1] for one in [*found, *alone]}
    assert {one.continued_episode for one in again} == ends.keys()
    for one in again:
        assert np.array_equal(one.observations[0], ends[one.continued_episode])


def test_a_call_goes_on_with_no_episode_that_an_unfinished_one_has_continued(opens: Opens) -> None:
    """One process plays one actor after the other, so the first call lasts while its first trajectory is here."""
    pool, weights = opens(fleet={"processes": 1}), policy()
    pool.sample(weights, actors=1)
    pool.submit(weights, actors=4)
    came = pool.as_completed()
    assert next(came).continued_episode == "1-0"
    pool.submit(weights, actors=1)
    assert [one.continued_episode for one in came] == ["", "", "", ""]


def test_pixels_are_stacked(opens: Opens) -> None:
    """As they are trained on, also after a time limit."""
    pool = opens(environment_id="tests.environments:make_limited_pictures")
    fields = policy_arrays(spaces=pool.spaces, network="conv")
    (found,) = pool.sample(wire.encode(wire.Kind.WEIGHTS, fields), actors=1)
    made = Policy(fields)
    for observation, action, log_prob in zip(
        found.observations, found.actions, found.log_probs, strict=True
    ):
        outputs = made.outputs(observation).astype(np.float64)
        assert outputs[action] - np.log(np.exp(outputs).sum()) == pytest.approx(log_prob, abs=1e-5)
    assert found.next_observations.shape == found.observations.shape


def test_threads_take_turns(opens: Opens) -> None:
    pool = opens(budget_usd=5.0)

    def sample(number: int) -> list[Trajectory]:
        if number % 2:
            return pool.sample(policy(seed=number), actors=2)
        pool.submit(policy(seed=number), actors=2)
        return list(pool.as_completed())

    with ThreadPoolExecutor(4) as threads:
        found = [one for came in threads.map(sample, range(8)) for one in came]
    slots = [(call, slot) for call in range(1, 9) for slot in range(2)]
    assert sorted((one.call, one.slot) for one in [*found, *pool.collect()]) == slots
    assert pool.rows[-1].reserved_usd == 0.0


# Money


def test_a_call_that_the_budget_does_not_hold_starts_nothing(opens: Opens, tmp_path: Path) -> None:
    pool = opens(budget_usd=0.4, **DEAR)
    with pytest.raises(
        BudgetError, match=r"another call of 3 actors, only of 2: \$0\.\d+ are free of \$0\.4"
    ):
        pool.sample(policy(), actors=3)
    assert pool.spent_usd == 0.0 and ledger(tmp_path / "pool")["reserved"] == {}
    pool.submit(policy(), actors=2)
    with pytest.raises(
        BudgetError, match=r"only of 0: .*, and calls in flight hold \$0\.30\d+; each"
    ):
        pool.submit(policy(), actors=1)
    assert len(pool.collect()) == 2
    with pytest.raises(BudgetError), opens("third", budget_usd=0.4, **DEAR) as third:
        third.sample(policy(), actors=3)
    assert summary(tmp_path / "third")["stop_reason"] == "budget"
    with pytest.raises(RunError, match=r"cannot hold a single actor, whose worst case is 0\.15"):
        opens("other", budget_usd=0.1, **DEAR)
    assert not (tmp_path / "other").exists()


def test_calls_are_reserved_by_what_the_last_ones_took_and_the_budget_is_used_up(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random.Random(0)

    def script(event: Any, nth: int) -> Play:
        if event["round_index"] < 20 and not nth and drawn.random() < 0.1:
            return ERROR
        return Play(billed_s=drawn.uniform(4.0, 8.0))

    play(monkeypatch, script)
    pool = opens(budget_usd=0.02)
    with pytest.raises(BudgetError, match="does not hold another call of 4 actors"):
        while True:
            assert len(pool.sample(policy(), actors=4)) == 4
    assert pool.rows[0].round_reserved_usd > 0.0035
    # Besides seconds, the largest answers that could leave AWS stay reserved.
    assert 0.018 < pool.spent_usd <= 0.02
    assert events(tmp_path / "pool", "limits_tightened")


def test_each_wave_of_actors_has_a_deadline_and_what_stands_is_reserved_until_the_last(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a later call with an earlier deadline, and behind a call that does not fit."""
    play(monkeypatch, lambda event, _: NEVER_RETURNS if event["slot"] == 1 else OK)
    pool = opens(
        budget_usd=0.08,
        fleet={"processes": 2, "round_deadline_s": 3600},
        actor={"fragment_steps": STEPS, "timeout_s": 30, "provisioned": 2},
    )
    first = pool.submit(policy(), actors=3)
    assert first.group.until_s - first.began_s == pytest.approx(2 * 3600)
    assert len(pool.sample(policy(), actors=1)) == 1
    third = pool.submit(policy(), actors=1)
    assert third.group.until_s < first.group.until_s
    assert third.reserved_usd > 0.9 * first.reserved_usd
    for _ in range(2):
        with pytest.raises(
            BudgetError, match=r"only of 0: .* hold \$0\.06\d+; .* nothing was started"
        ):
            pool.submit(policy(), actors=4)
    first.group.until_s = time.monotonic()
    monkeypatch.setattr(pools, "_LOOK_S", 0.01)
    with pytest.raises(ActorsKeepFailingError, match="1 of the 3 .* the call's deadline passed"):
        pool.collect()
    assert pool.rows[-1].reserved_usd == 0.0
    in_rows_usd = sum(row.round_cost_usd for row in pool.rows)
    assert 0.0 < in_rows_usd == pytest.approx(pool.spent_usd)


def test_the_ledger_has_a_call_before_its_actors_start(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, names, start = opens(), list[str](), LocalFleet.start

    def noting(fleet: LocalFleet, invocations: Any) -> None:
        assert len(ledger(tmp_path / "pool")["reserved"]) == len(invocations) + 1
        names.extend(one.invocation_id for one in invocations)
        start(fleet, invocations)

    monkeypatch.setattr(LocalFleet, "start", noting)
    state = pool.state()
    for _ in range(2):
        pool.sample(policy(), actors=2)
        pool.load_state(state)
    assert len(set(names)) == len(names) == 4, "no invocation has the name of an earlier one"


def test_a_full_disk_ends_the_pool_and_forgets_no_dollar(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens()
    pool.submit(policy(), actors=2)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the disk is full"):
        patched.setattr(opening, "write_atomically", full)
        pool.collect()
    assert opens().spent_usd >= pool.spent_usd > 0.0


def test_what_cannot_be_settled_at_the_end_counts_as_spent(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise FleetError("the fleet is gone")

    play(monkeypatch, lambda event, nth: NEVER_RETURNS)
    monkeypatch.setattr(FakeFleet, "abandon", lost)
    with opens() as pool:
        pool.submit(policy(), actors=2)
        assert pool.spent_usd == 0.0
    assert pool.spent_usd > 0.0 and ledger(tmp_path / "pool")["reserved"] == {}
    assert summary(tmp_path / "pool")["spent_usd"] == pool.spent_usd


# Failures


def test_actors_that_keep_failing_are_told_and_the_others_are_kept(
    opens: Opens, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marked = {"id": "tests.environments:make_marked", "kwargs": {"marker": str(marker)}}
    expected = opens(environment=marked).sample(policy(), actors=4)
    pool = opens("other", environment=marked)
    marker.touch()
    with pytest.raises(
        ActorsKeepFailingError, match=r"of the 4 actors of call 1 brought nothing; .*on fire"
    ):
        pool.sample(policy(), actors=4)
    kept = pool.collect()
    assert 0 < len(kept) == pool.rows[0].actors_returned < 4
    assert all(same(one, expected[one.slot]) for one in kept)
    assert {one["attempt"] for one in events(tmp_path / "other", "actor_failed")} == {0, 1, 2}
    pool.submit(policy(), actors=4)
    with pytest.raises(ActorsKeepFailingError, match="brought nothing"):
        pool.collect()
    assert 0 < len(pool.collect()) < 4
    marker.unlink()
    assert len(pool.sample(policy(), actors=4)) == 4


def test_a_call_ends_at_its_deadline_with_what_came_and_rows_stay_in_order(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(
        monkeypatch,
        lambda event, _: NEVER_RETURNS if (event["round_index"], event["slot"]) == (1, 1) else OK,
    )
    pool = opens(fleet={"processes": 2, "round_deadline_s": 30})
    monkeypatch.setattr(pools, "_LOOK_S", 0.01)
    late = pool.submit(policy(), actors=3)
    late.group.until_s = time.monotonic() + 1.0
    assert len(pool.sample(policy(), actors=1)) == 1 and not pool.rows
    with pytest.raises(ActorsKeepFailingError, match="1 of the 3 .* the call's deadline passed"):
        pool.collect()
    assert [(one.call, one.slot) for one in pool.collect()] == [(1, 0), (1, 2)]
    assert [(row.round_index, row.actors_failed) for row in pool.rows] == [(1, 1), (2, 0)]
    assert pool.rows[-1].reserved_usd == 0.0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), ("interrupted", None)),
        (ValueError("mine"), ("failed", "ValueError: mine")),
    ],
)
def test_whatever_interrupts_a_call_ends_the_pool(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: Any
) -> None:
    pool = opens()

    def interrupt(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(Flight, "next", interrupt)
    with pytest.raises(type(error)):
        pool.sample(policy(), actors=2)
    with pytest.raises(RunError, match=f"ended with {type(error).__name__}"):
        pool.sample(policy(), actors=2)
    found = summary(pool.directory)
    assert (found["stop_reason"], found["error"]) == expected


def test_a_closed_pool_has_ended_everything(opens: Opens) -> None:
    before = set(descendants(os.getpid()))
    pool, one_taken = opens(), threading.Event()

    def consume() -> None:
        for _ in pool.as_completed():
            one_taken.set()

    with pytest.raises(RunError, match=r"out = .*pool: .* a pool is open"):
        opens()
    for _ in range(20):
        pool.submit(policy(), actors=4)
    with ThreadPoolExecutor(1) as thread:
        consumed = thread.submit(consume)
        one_taken.wait()
        pool.close()
        pool.close()
        with pytest.raises(RunError, match="the pool is closed; open another one on"):
            consumed.result()
    wait_for(lambda: not set(descendants(os.getpid())) - before, "its processes to end")
    with pytest.raises(RunError, match="the pool is closed; open another one on"):
        pool.sample(policy(), actors=1)
    assert summary(pool.directory)["stop_reason"] == "closed"
    assert opens().spent_usd == pool.spent_usd


# Directories and states


def test_all_but_environment_and_seed_may_change_in_a_directory(
    opens: Opens, tmp_path: Path
) -> None:
    """And what was spent there outlives a damaged ledger, and a row that was cut."""
    with opens() as pool:
        pool.sample(policy(), actors=4)
    os.truncate(tmp_path / "pool" / "ledger.json", 30)
    with (tmp_path / "pool" / "rounds.jsonl").open("a") as rows:
        rows.write('{"round_index": 2, ')
    two = {"scaler": {"kind": "fixed", "actors_fixed": 2}}
    with opens(actor={"fragment_steps": 5, "timeout_s": 9, "memory_mib": 512}, **two) as again:
        assert (again.actors_max, again.steps_max) == (2, 5)
        assert again.spent_usd == pytest.approx(pool.spent_usd, rel=1e-9)
        assert again.sample(policy(), actors=2)[0].call == 2
    with opens() as later:
        assert [row.round_index for row in later.rows] == [1, 2]
    assert summary(tmp_path / "pool")["was_resumed"]
    for more, words in (
        ({"seed": 6}, "seed is 6 now, 5 there"),
        ({"environment_id": LIMITED}, "environment.id is"),
    ):
        with pytest.raises(RunError, match=words):
            opens(**more)


def test_a_state_goes_on_with_the_same_trajectories(opens: Opens) -> None:
    pool, weights = opens(), policy()
    pool.sample(weights, actors=3)
    state = pool.state()
    expected = pool.sample(weights, actors=4)
    other, spent_usd = pool.sample(policy(seed=1), actors=1)[0], pool.spent_usd
    pool.load_state(state)
    again = pool.sample(weights, actors=4)
    assert all(map(same, again, expected))
    assert again[0].policy_version > other.policy_version, "warm actors know a policy by its number"
    assert pool.spent_usd > spent_usd, "what was done twice is paid for twice"
    assert [row.round_index for row in pool.rows] == [1, 2]
    pool.close()
    elsewhere = opens("elsewhere")
    elsewhere.load_state(state)
    assert elsewhere.spent_usd > 0.0
    assert elsewhere.sample(weights, actors=1)[0].policy_version == 1
    later = opens()
    assert later.spent_usd >= spent_usd and len(later.rows) == 2


def test_states_are_between_calls_of_one_experiment_and_whole(opens: Opens) -> None:
    pool, other = opens(), opens("other", environment_id=LIMITED)
    for state, words in (
        (other.state(), "of a pool of another experiment"),
        (pool.state()[:-1], "this is no state of a pool"),
    ):
        with pytest.raises(RunError, match=words):
            pool.load_state(state)
    pool.submit(policy(), actors=1)
    for ask in (pool.state, lambda: pool.load_state(b"")):
        with pytest.raises(RunError, match="between calls: 1 are in flight"):
            ask()


# What is asked for


def test_what_is_not_allowed_is_named(opens: Opens) -> None:
    pool = opens()
    foreign = nitro_rl.numpy_policy(
        [(np.zeros((3, 99)), np.zeros(3)), (np.zeros((2, 3)), np.zeros(2))]
    )
    for message, wrong in (
        (r"actors = 5 is not allowed; allowed: 1 to 4", {"actors": 5}),
        (r"actors = 1.0", {"actors": 1.0}),
        (r"steps = 13 is not allowed; allowed: 1 to 12, actor.fragment_steps", {"steps": 13}),
        (r"policy = str is none that actors can run", {"policy": "policy.onnx"}),
        (r"cannot act", {"policy": b"NTRO"}),
        (r"cannot act in this environment", {"policy": foreign}),
    ):
        asked: dict[str, Any] = {"policy": policy(), "actors": 1, **wrong}
        with pytest.raises(RunError, match=message):
            pool.sample(**asked)
    assert pool.spent_usd == 0.0


def test_a_numpy_policy_is_its_layers_on_normalised_observations() -> None:
    drawn = np.random.default_rng(0)
    first, last = drawn.normal(size=(16, 11)), drawn.normal(size=(3, 16))
    layers = [(first, np.full(16, 0.5)), (last, np.full(3, -0.5))]
    mean, std = np.linspace(-1, 1, 11), np.linspace(0.5, 2, 11)
    made = nitro_rl.numpy_policy(
        layers,
        activation="relu",
        log_std=np.zeros(3),
        observation_mean=mean,
        observation_std=std,
    )
    seen = drawn.normal(size=11).astype(np.float32)
    hidden = np.maximum(first @ ((seen - mean) / std).clip(-10, 10) + 0.5, 0)
    np.testing.assert_allclose(
        Policy.from_bytes(made).outputs(seen), last @ hidden - 0.5, rtol=1e-4
    )
    wrong: list[Any] = [[], layers[:1], [layers[0], layers[0]], [("a", "b")]]
    for one in wrong:
        with pytest.raises(RunError, match=r"no policy: .*; allowed: two layers or more"):
            nitro_rl.numpy_policy(one)


def test_a_file_and_a_policy_that_was_trained_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "one.yaml").write_text(
        "environment: {id: 'tests.environments:make_outside'}\nbudget: {usd: 1}\nstop: {max_rounds: 1}\n"
        "actor: {fragment_steps: 16}\nevaluation: {every_rounds: 0}\n"
    )
    refused = train(file, tmp_path / "run", *overrides(learner__kind="external"))
    assert refused.returncode == 2 and "only nitro_rl.ActorPool samples with it" in refused.stderr
    assert train(file, tmp_path / "run").returncode == 0
    trained = nitro_rl.load_policy(tmp_path / "run", trust=True)
    with ActorPool(file, out=tmp_path / "pool") as pool:
        assert len(pool.sample(trained, actors=2, steps=8)) == 2
    printed = capsys.readouterr().out
    assert "trying the environment" in printed and "spent $" in printed
    assert "max_rounds" not in printed, "a pool reads no such key"
    counted = summary(tmp_path / "pool")
    assert (counted["rounds"], counted["env_steps_total"], counted["steps_dropped"]) == (1, 16, 0)
    assert (tmp_path / "pool" / "report.html").exists()
