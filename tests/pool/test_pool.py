"""A pool of actors, with real processes of this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nitro_rl
from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.policy import Policy, parameter_shapes
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out
from nitro_rl import ActorPool, ActorsKeepFailingError, BudgetError, RunError, Trajectory
from runtime.errors import FleetError
from runtime.fleet.flight import Flight
from runtime.fleet.local import LocalFleet
from runtime.pool import pool as pools
from runtime.pool.records import stop_reason_of
from runtime.training import opening
from runtime.training.backends.this_machine import ThisMachine
from runtime.training.opening import Resources, Run
from tests.fakes import ERROR, NEVER_RETURNS, OK, FakeCache, FakeFleet, ManualClock, Play
from tests.helpers import (
    ROOT,
    command_line,
    descendants,
    events,
    is_alive,
    overrides,
    summary,
    train,
    wait_for,
)

COUNTER = "tests.environments:make_counter"
STEPS = 12
ARRAYS = (
    "observations",
    "actions",
    "log_probs",
    "rewards",
    "terminated",
    "truncated",
    "bootstrap_steps",
    "bootstrap_observations",
    "episode_returns",
    "episode_lengths",
)
Opens = Callable[..., ActorPool]


def tree(environment_id: str = COUNTER, **actor: Any) -> dict[str, Any]:
    return {
        "environment": {"id": environment_id},
        "actor": {"fragment_steps": STEPS, "timeout_s": 30, **actor},
        "scaler": {"kind": "fixed", "actors_fixed": 4},
        "seed": 5,
    }


def policy(environment_id: str = COUNTER, seed: int = 0) -> bytes:
    environment = make_environment(environment_id, "none")
    drawn = np.random.default_rng(seed)
    spaces = environment.spaces
    environment.close()
    layers = [
        (drawn.normal(0, 0.5, (8, spaces.observation_size)), np.zeros(8)),
        (drawn.normal(0, 0.5, (spaces.output_size, 8)), np.zeros(spaces.output_size)),
    ]
    return nitro_rl.numpy_policy(
        layers, log_std=None if spaces.is_discrete else np.zeros(spaces.output_size)
    )


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with ExitStack() as stack:

        def open_pool(
            out: str = "pool",
            environment_id: str = COUNTER,
            budget_usd: float = 1.0,
            sections: dict[str, Any] | None = None,
            **actor: Any,
        ) -> ActorPool:
            made = tree(environment_id, **actor) | (sections or {})
            return stack.enter_context(
                ActorPool(made, budget_usd=budget_usd, out=tmp_path / out, is_quiet=True)
            )

        yield open_pool


def same(found: Trajectory, expected: Trajectory | Fragment) -> bool:
    return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in ARRAYS)


def fragment(
    weights: bytes, call: int, slot: int, episode: OpenEpisode | None, steps: int = STEPS
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


# What a call brings


def test_a_call_has_what_each_actor_plays_and_later_calls_go_on_with_its_episodes(
    opens: Opens,
) -> None:
    pool, weights = opens(), policy()
    first, second = pool.sample(weights, actors=3), pool.sample(weights, actors=3, steps=7)
    for slot in range(3):
        expected = fragment(weights, 1, slot, None)
        assert same(first[slot], expected)
        assert expected.open_episode is not None
        assert same(second[slot], fragment(weights, 2, slot, expected.open_episode, 7))
        assert np.array_equal(first[slot].next_observations[-1], second[slot].observations[0])
    assert [(one.call, one.slot, one.policy_version, len(one)) for one in second] == [
        (2, slot, 0, 7) for slot in range(3)
    ]
    assert pool.sample(policy(seed=1), actors=1)[0].policy_version == pool.policy_version == 1
    assert [row.env_steps for row in pool.rows] == [36, 21, 12]
    assert pool.rows[-1].env_steps_total == 69
    assert pool.spent_usd == pytest.approx(sum(row.round_cost_usd for row in pool.rows))
    assert pool.spent_usd > 0


def test_next_observations_are_those_of_the_environment(opens: Opens) -> None:
    """At a step that ends an episode by its time limit, what was observed last, and not the next episode's start."""
    limited = "tests.environments:make_limited"
    (trajectory,) = opens(environment_id=limited).sample(policy(limited), actors=1)
    after = trajectory.next_observations
    cut = set(trajectory.bootstrap_steps.tolist())
    assert trajectory.truncated.any() and cut
    for step in range(len(trajectory) - 1):
        if trajectory.terminated[step]:
            assert not after[step].any()
        else:
            is_next = np.array_equal(after[step], trajectory.observations[step + 1])
            assert is_next == (step not in cut)


def test_submitted_calls_overlap_and_come_as_they_end(opens: Opens) -> None:
    pool, weights, began_s = opens(), policy(), time.monotonic()
    calls = [pool.submit(weights, actors=count) for count in (3, 1, 2)]
    alone = pool.sample(weights, actors=1)
    found = list(pool.as_completed())
    took_s = time.monotonic() - began_s
    slots = [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 1)]
    assert sorted((one.call, one.slot) for one in found) == slots
    assert [(one.call, one.slot) for one in alone] == [(4, 0)]
    assert all(call.has_ended and not call.error for call in calls)
    for one in found:
        assert same(one, fragment(weights, one.call, one.slot, None)), "none had an open episode"
    assert [row.round_index for row in pool.rows] == [1, 2, 3, 4]
    assert sum(row.round_s for row in pool.rows) <= took_s
    spent = [row.spent_usd for row in pool.rows]
    assert spent == sorted(spent)
    # Each open episode is continued once, also by calls that overlap.
    pool.submit(weights, actors=3)
    pool.submit(weights, actors=4)
    again = list(pool.as_completed())
    continued = [one.continued_episode for one in again if one.continued_episode]
    assert len(set(continued)) == len(continued) == 7
    ends = {f"{one.call}-{one.slot}": one.next_observations[-1] for one in [*found, *alone]}
    for one in again:
        assert np.array_equal(one.observations[0], ends[one.continued_episode])


def test_a_call_goes_on_with_no_episode_that_an_unfinished_one_has_continued(opens: Opens) -> None:
    """One process plays one actor after the other, so the first call lasts while its first trajectory is here."""
    pool, weights = opens(sections={"fleet": {"processes": 1}}), policy()
    pool.sample(weights, actors=1)
    pool.submit(weights, actors=4)
    came = pool.as_completed()
    assert next(came).continued_episode == "1-0"
    pool.submit(weights, actors=1)
    assert [one.continued_episode for one in came] == ["", "", "", ""]


def test_pixels_are_stacked(opens: Opens) -> None:
    """As they are trained on; a decoded message is a policy, too."""
    environment_id = "tests.environments:make_pictures"
    pool, drawn = opens(environment_id=environment_id), np.random.default_rng(0)
    spaces = pool.spaces
    fields: dict[str, Any] = {
        **{
            name: drawn.normal(0, 0.1, shape).astype(np.float32)
            for name, shape in parameter_shapes(spaces, "conv").items()
        },
        "policy_version": np.array(0),
        "network": wire.text_field("conv"),
        "log_std": np.zeros(0, np.float32),
        "distribution": wire.text_field("categorical"),
        "observation_mean": np.zeros(0, np.float32),
        "observation_std": np.ones(0, np.float32),
        "observation_clip": np.array(np.inf, np.float32),
    }
    (trajectory,) = pool.sample(fields, actors=1)
    assert trajectory.observations.dtype == np.uint8
    assert trajectory.observations.shape == (STEPS, *spaces.picture_shape)
    assert trajectory.next_observations.shape == trajectory.observations.shape
    made = Policy(fields)
    for observation, action, log_prob in zip(
        trajectory.observations, trajectory.actions, trajectory.log_probs, strict=True
    ):
        outputs = made.outputs(observation).astype(np.float64)
        assert outputs[action] - np.log(np.exp(outputs).sum()) == pytest.approx(log_prob, abs=1e-5)


def test_threads_take_turns(opens: Opens) -> None:
    pool, found = opens(budget_usd=5.0), list[Trajectory]()

    def sample(number: int) -> None:
        for _ in range(2):
            if number % 2:
                pool.submit(policy(seed=number), actors=2)
                found.extend(pool.as_completed())
            else:
                found.extend(pool.sample(policy(seed=number), actors=2))

    threads = [threading.Thread(target=sample, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found += pool.as_completed()
    slots = [(call, slot) for call in range(1, 9) for slot in range(2)]
    assert sorted((one.call, one.slot) for one in found) == slots
    assert [row.round_index for row in pool.rows] == list(range(1, 9))
    assert pool.rows[-1].reserved_usd == 0.0


def play(monkeypatch: pytest.MonkeyPatch, script: Callable[[Any, int], Play]) -> None:
    """Lets a script decide how the actors of new pools end."""

    class Scripted(ThisMachine):
        def open(self, run: Run) -> Resources:
            cache = FakeCache()
            fleet = FakeFleet(cache, ManualClock(), script)
            return replace(super().open(run), cache=cache, fleet=fleet)

    monkeypatch.setattr(pools, "make_backend", Scripted)


# Money


def test_a_call_that_the_budget_does_not_hold_starts_nothing(opens: Opens, tmp_path: Path) -> None:
    dear = {"timeout_s": 900, "memory_mib": 10_240}
    # One actor's worst case is $0.152.
    pool = opens(budget_usd=0.4, **dear)
    with pytest.raises(
        BudgetError, match=r"another call of 3 actors, only of 2: \$0\.\d+ are free of \$0\.4"
    ):
        pool.sample(policy(), actors=3)
    assert pool.spent_usd == 0.0 and pool.rows == []
    assert ledger(tmp_path / "pool")["reserved"] == {}
    call = pool.submit(policy(), actors=2)
    with pytest.raises(
        BudgetError, match=r"only of 0: .*, and calls in flight hold \$0\.30\d+; each"
    ):
        pool.submit(policy(), actors=1)
    assert len(list(pool.as_completed())) == 2 and call.has_ended
    with pytest.raises(RunError, match=r"cannot hold a single actor, whose worst case is 0\.15"):
        opens("other", budget_usd=0.1, **dear)
    assert not (tmp_path / "other").exists()
    with opens("third", budget_usd=0.4, **dear) as third, pytest.raises(BudgetError):
        third.sample(policy(), actors=3)
    assert summary(tmp_path / "third")["stop_reason"] == "budget"


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
    opens: Opens,
) -> None:
    limits = {"processes": 2, "round_deadline_s": 3600}
    pool = opens(budget_usd=0.16, sections={"fleet": limits}, provisioned=2)
    first, second = (pool.submit(policy(), actors=actors) for actors in (4, 3))
    assert first.group.until_s - first.began_s == pytest.approx(2 * 3600)
    assert second.reserved_usd > first.reserved_usd
    with pytest.raises(BudgetError, match="less than what stands for one; nothing was started"):
        for _ in range(9):
            pool.submit(policy(), actors=4)
    assert {one.call for one in pool.as_completed()} >= {1, 2}
    assert pool.rows[-1].reserved_usd == 0.0


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
    for _ in range(3):
        pool.sample(policy(), actors=2)
        pool.load_state(state)
    assert len(set(names)) == len(names) == 6, "no invocation has the name of an earlier one"


_KILLED = """
import sys
sys.path.insert(0, {root!r})
from nitro_rl import ActorPool
from tests.pool.test_pool import policy, tree
pool = ActorPool(tree(), budget_usd=1.0, out={out!r}, is_quiet=True)
pool.sample(policy(), actors=2)
pool.submit(policy(), actors=4)
print("started", flush=True)
sys.stdin.read()
"""


def test_a_pool_that_is_killed_leaves_no_process_and_no_dollar_uncounted(
    tmp_path: Path,
) -> None:
    out = tmp_path / "pool"
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED.format(root=str(ROOT), out=str(out))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    below = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "its actors to end")
    left = ledger(out)
    with ActorPool(tree(), budget_usd=1.0, out=out, is_quiet=True) as pool:
        # What its actors had run counts: more than nothing, and never more than what was reserved.
        forfeited = pool.spent_usd * left["units_per_usd"] - left["spent"]
        assert 0 < forfeited <= sum(left["reserved"].values()) + 1
        assert pool.sample(policy(), actors=1)[0].call == 3, "no number is used again"
    assert ledger(out)["reserved"] == {}


def test_a_full_disk_ends_the_pool_and_forgets_no_dollar(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens()
    pool.submit(policy(), actors=2)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the disk is full"):
        patched.setattr(opening, "write_atomically", full)
        list(pool.as_completed())
    again = opens()
    assert again.spent_usd >= pool.spent_usd > 0.0
    assert len(again.sample(policy(), actors=2)) == 2


def test_what_cannot_be_settled_at_the_end_counts_as_spent(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise FleetError("the fleet is gone")

    play(monkeypatch, lambda event, nth: NEVER_RETURNS)
    monkeypatch.setattr(FakeFleet, "abandon", lost)
    with opens() as pool:
        pool.submit(policy(), actors=2)
        standing_usd = pool.spent_usd
    assert pool.spent_usd > standing_usd and ledger(tmp_path / "pool")["reserved"] == {}
    assert summary(tmp_path / "pool")["spent_usd"] == pool.spent_usd


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 30)])
def test_what_was_spent_outlives_a_spoilt_ledger(opens: Opens, tmp_path: Path, spoil: Any) -> None:
    pool = opens()
    pool.sample(policy(), actors=4)
    spent_usd = pool.spent_usd
    pool.close()
    spoil(tmp_path / "pool" / "ledger.json")
    again = opens()
    assert again.spent_usd == pytest.approx(spent_usd, rel=1e-9) and again.spent_usd >= spent_usd
    assert again.sample(policy(), actors=1)[0].call == 2


# Failures


def test_whoever_is_killed_the_trajectories_are_the_same(opens: Opens) -> None:
    pool, weights = opens(), policy()
    pool.sample(weights, actors=2)
    victims = [pid for pid in descendants(os.getpid()) if b"actor_process" in command_line(pid)]
    pool.submit(weights, actors=4, steps=STEPS)
    # An actor has three tries, and may be in each process when that is killed.
    for pid in victims[:2]:
        os.kill(pid, signal.SIGKILL)
    found = sorted(pool.as_completed(), key=lambda one: one.slot)
    for slot, one in enumerate(found):
        episode = fragment(weights, 1, slot, None).open_episode if slot < 2 else None
        assert same(one, fragment(weights, 2, slot, episode))
    assert pool.rows[-1].actors_returned == 4


def test_actors_that_keep_failing_are_told_and_the_others_are_kept(
    opens: Opens, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marked = {"id": "tests.environments:make_marked", "kwargs": {"marker": str(marker)}}
    expected = opens(sections={"environment": marked}).sample(policy(), actors=4)
    pool = opens("other", sections={"environment": marked})
    marker.touch()
    with pytest.raises(
        ActorsKeepFailingError, match=r"of the 4 actors of call 1 brought nothing; .*on fire"
    ):
        pool.sample(policy(), actors=4)
    kept = list(pool.as_completed())
    assert 0 < len(kept) == pool.rows[0].actors_returned < 4
    assert all(same(one, expected[one.slot]) for one in kept)
    assert {one["attempt"] for one in events(tmp_path / "other", "actor_failed")} == {0, 1, 2}
    marker.unlink()
    assert len(pool.sample(policy(), actors=4)) == 4


def test_a_call_ends_at_its_deadline_with_what_came(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, lambda event, nth: NEVER_RETURNS if event["slot"] == 1 else OK)
    pool = opens(timeout_s=1, sections={"fleet": {"processes": 2, "round_deadline_s": 1}})
    with pytest.raises(ActorsKeepFailingError, match="1 of the 3 .* the call's deadline passed"):
        pool.sample(policy(), actors=3)
    assert [one.slot for one in pool.as_completed()] == [0, 2]
    assert events(tmp_path / "pool", "actors_abandoned")[0]["count"] == 1
    assert (pool.rows[0].actors_failed, pool.rows[0].reserved_usd) == (1, 0.0)


def test_an_interrupt_ends_it(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opens()

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flight, "next", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.sample(policy(), actors=2)
    with pytest.raises(RunError, match="ended with KeyboardInterrupt"):
        pool.sample(policy(), actors=2)


@pytest.mark.parametrize(
    ("error", "lacked_budget", "expected"),
    [
        (None, False, ("closed", "")),
        (None, True, ("budget", "")),
        (SystemExit(0), False, ("closed", "")),
        (KeyboardInterrupt(), True, ("interrupted", "")),
        (BudgetError("no"), False, ("budget", "")),
        (ValueError("mine"), True, ("failed", "ValueError: mine")),
    ],
)
def test_a_summary_says_why_the_pool_ended(
    error: BaseException | None, lacked_budget: bool, expected: tuple[str, str]
) -> None:
    assert stop_reason_of(error, lacked_budget=lacked_budget) == expected


def test_a_closed_pool_has_ended_everything(opens: Opens) -> None:
    before = set(descendants(os.getpid()))
    pool, one_taken = opens(), threading.Event()
    told = list[str]()

    def consume() -> None:
        try:
            for _ in pool.as_completed():
                one_taken.set()
        except RunError as error:
            told.append(str(error))

    with pytest.raises(RunError, match=r"out = .*pool: a pool is open there"):
        opens()
    for _ in range(20):
        pool.submit(policy(), actors=4)
    thread = threading.Thread(target=consume)
    thread.start()
    one_taken.wait()
    pool.close()
    pool.close()
    thread.join()
    assert told == [f"the pool is closed; open another one on {pool.directory}"]
    wait_for(lambda: not set(descendants(os.getpid())) - before, "its processes to end")
    with pytest.raises(RunError, match="the pool is closed; open another one on"):
        pool.sample(policy(), actors=1)
    assert opens().spent_usd == pool.spent_usd


# Directories and states


def test_all_but_environment_and_seed_may_change_in_a_directory(
    opens: Opens, tmp_path: Path
) -> None:
    def sampled(**sections: Any) -> tuple[int, int]:
        with opens(sections=sections) as pool:
            return len(pool.sample(policy(), actors=pool.actors_max)), pool.steps_max

    assert sampled() == (4, STEPS)
    assert sampled(
        actor={"fragment_steps": 5, "timeout_s": 9, "memory_mib": 512},
        scaler={"kind": "fixed", "actors_fixed": 2},
    ) == (2, 5)
    assert summary(tmp_path / "pool")["was_resumed"]
    for sections, told in (
        ({"seed": 6}, "seed is 6 now, 5 there"),
        ({"environment": {"id": "tests.environments:make_limited"}}, "environment.id is"),
    ):
        with pytest.raises(RunError, match=told):
            sampled(**sections)


def test_a_state_goes_on_with_the_same_trajectories(opens: Opens) -> None:
    pool, weights = opens(), policy()
    pool.sample(weights, actors=3)
    state = pool.state()
    expected = pool.sample(weights, actors=4)
    other = pool.sample(policy(seed=1), actors=1)[0]
    spent_usd = pool.spent_usd
    pool.load_state(state)
    assert [row.round_index for row in pool.rows] == [1]
    again = pool.sample(weights, actors=4)
    assert all(map(same, again, expected))
    assert again[0].policy_version > other.policy_version, "warm actors know a policy by its number"
    assert pool.spent_usd > spent_usd, "what was done twice is paid for twice"
    assert [row.round_index for row in pool.rows] == [1, 2]
    pool.close()
    elsewhere = opens("elsewhere")
    elsewhere.load_state(state)
    assert elsewhere.spent_usd > 0.0 and elsewhere.rows == []
    later = opens()
    assert later.spent_usd >= spent_usd and len(later.rows) == 2
    assert later.sample(weights, actors=1)[0].call == 3


def test_states_are_between_calls_of_one_experiment_and_whole(opens: Opens) -> None:
    pool, other = opens(), opens("other", environment_id="tests.environments:make_limited")
    with pytest.raises(RunError, match="of a pool of another experiment"):
        pool.load_state(other.state())
    with pytest.raises(RunError, match="this is no state of a pool"):
        pool.load_state(pool.state()[:-1])
    pool.submit(policy(), actors=1)
    with pytest.raises(RunError, match="between calls: 1 are in flight"):
        pool.state()
    with pytest.raises(RunError, match="while calls are in flight"):
        pool.load_state(other.state())


# What is asked for


def test_what_is_not_allowed_is_named(opens: Opens) -> None:
    pool = opens()
    foreign = nitro_rl.numpy_policy(
        [(np.zeros((3, 99)), np.zeros(3)), (np.zeros((2, 3)), np.zeros(2))]
    )
    wrong: dict[str, tuple[str, Any]] = {
        r"actors = 5 is not allowed; allowed: 1 to 4": ("actors", 5),
        r"actors = 1.0": ("actors", 1.0),
        r"steps = 13 is not allowed; allowed: 1 to 12, actor.fragment_steps": ("steps", 13),
        r"policy = str is none that actors can run": ("policy", "policy.onnx"),
        r"cannot act": ("policy", b"NTRO"),
        r"cannot act in this environment": ("policy", foreign),
        r"WEIGHTS lacks": ("policy", {}),
    }
    for message, (name, value) in wrong.items():
        with pytest.raises(RunError, match=message):
            pool.sample(**{"policy": policy(), "actors": 1, name: value})
    assert pool.spent_usd == 0.0
    with pytest.raises(RunError, match="environment.id = .* allowed: non-empty text"):
        ActorPool({"environment": {"id": make_environment}}, budget_usd=1.0)


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [(np.zeros((2, 3)), np.zeros(3))],
        [(np.zeros((4, 3)), np.zeros(4)), (np.zeros((2, 5)), np.zeros(2))],
        [("a", "b")],
    ],
)
def test_layers_that_are_no_policy(layers: Any) -> None:
    with pytest.raises(
        RunError, match=r"no policy: .*; allowed: two layers or more, each a weight"
    ):
        nitro_rl.numpy_policy(layers)


def test_a_numpy_policy_is_torchs_network() -> None:
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(11, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    layers: Any = [
        (one.weight.detach().numpy(), one.bias.detach().numpy()) for one in (network[0], network[2])
    ]
    mean, std = np.linspace(-1, 1, 11), np.linspace(0.5, 2, 11)
    made = Policy.from_bytes(
        nitro_rl.numpy_policy(
            layers,
            activation="relu",
            log_std=np.zeros(3),
            observation_mean=mean,
            observation_std=std,
        )
    )
    observation = np.random.default_rng(0).normal(size=11).astype(np.float32)
    expected = network(torch.from_numpy(((observation - mean) / std).clip(-10, 10)).float())
    np.testing.assert_allclose(
        made.outputs(observation), expected.detach().numpy(), rtol=1e-5, atol=1e-6
    )


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
        printed = capsys.readouterr().out
        assert len(pool.sample(trained, actors=2, steps=8)) == 2
    assert "trying the environment" in printed
    counted = summary(tmp_path / "pool")
    assert (counted["rounds"], counted["env_steps_total"], counted["steps_dropped"]) == (1, 16, 0)
    assert (tmp_path / "pool" / "report.html").exists()
