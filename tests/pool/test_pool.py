"""A pool of actors, with real processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
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
from runtime.report.charts import spent_usd
from runtime.report.reading import read_groups
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
            out: str = "pool", environment_id: str = COUNTER, budget_usd: float = 1.0, **actor: Any
        ) -> ActorPool:
            return stack.enter_context(
                ActorPool(
                    tree(environment_id, **actor),
                    budget_usd=budget_usd,
                    out=tmp_path / out,
                    is_quiet=True,
                )
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
    (trajectory,) = opens(environment_id="tests.environments:make_limited").sample(
        policy("tests.environments:make_limited"), actors=1
    )
    after = trajectory.next_observations
    cut = set(trajectory.bootstrap_steps.tolist())
    assert trajectory.truncated.any() and cut
    for step in range(len(trajectory) - 1):
        if trajectory.terminated[step]:
            assert not after[step].any()
        else:
            assert np.array_equal(after[step], trajectory.observations[step + 1]) == (
                step not in cut
            )


def test_submitted_calls_overlap_and_come_as_they_end(opens: Opens) -> None:
    pool, weights = opens(), policy()
    calls = [pool.submit(weights, actors=count) for count in (3, 1, 2)]
    alone = pool.sample(weights, actors=1)
    found = list(pool.as_completed())
    assert sorted((one.call, one.slot) for one in found) == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (3, 0),
        (3, 1),
    ]
    assert [(one.call, one.slot) for one in alone] == [(4, 0)]
    assert all(call.has_ended and not call.error for call in calls)
    for one in found:
        assert same(one, fragment(weights, one.call, one.slot, None)), (
            "none had an episode to go on with"
        )
    assert [row.round_index for row in pool.rows] == [1, 2, 3, 4]
    # Each open episode is continued once.
    again = pool.sample(weights, actors=4)
    starts = [one.observations[0].tobytes() for one in again]
    assert {one.next_observations[-1].tobytes() for one in [*found, *alone]} >= set(starts)
    assert not list(pool.as_completed())


def test_an_environment_that_is_a_function_is_refused_with_how_to_name_it() -> None:
    with pytest.raises(
        RunError, match="allowed: text, here 'module:make_environment' of a module that actors can"
    ):
        ActorPool({"environment": {"id": make_environment}}, budget_usd=1.0)


def test_a_call_that_the_budget_does_not_hold_starts_nothing(opens: Opens, tmp_path: Path) -> None:
    dear = {"timeout_s": 900, "memory_mib": 10_240}
    # One actor's worst case is $0.152.
    pool = opens(budget_usd=0.4, **dear)
    with pytest.raises(
        BudgetError, match=r"another call of 3 actors, only of 2: \$0\.\d+ are free of \$0\.4"
    ):
        pool.sample(policy(), actors=3)
    assert pool.spent_usd == 0.0 and pool.rows == []
    assert json.loads((tmp_path / "pool" / "ledger.json").read_text())["budget"]["reserved"] == {}
    assert len(pool.sample(policy(), actors=2)) == 2
    call = pool.submit(policy(), actors=2)
    with pytest.raises(
        BudgetError, match=r"only of 0: .*, and calls in flight hold \$0\.30\d+; each"
    ):
        pool.submit(policy(), actors=1)
    assert len(list(pool.as_completed())) == 2 and call.has_ended
    with pytest.raises(
        nitro_rl.RunError, match=r"cannot hold a single actor, whose worst case is 0\.15"
    ):
        opens("other", budget_usd=0.1, **dear)
    assert not (tmp_path / "other").exists()


def test_whoever_is_killed_the_trajectories_are_the_same(opens: Opens, tmp_path: Path) -> None:
    pool, weights = opens(), policy()
    pool.sample(weights, actors=2)
    before = set(descendants(os.getpid()))
    pool.submit(weights, actors=4, steps=STEPS)
    for pid in before:
        if b"actor_process" in command_line(pid):
            os.kill(pid, signal.SIGKILL)
    found = sorted(pool.as_completed(), key=lambda one: one.slot)
    for slot, one in enumerate(found):
        episode = fragment(weights, 1, slot, None).open_episode if slot < 2 else None
        assert same(one, fragment(weights, 2, slot, episode))
    assert pool.rows[-1].actors_returned == 4


def test_actors_that_keep_failing_are_told_and_the_others_are_kept(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    made = {
        **tree(),
        "environment": {"id": "tests.environments:make_marked", "kwargs": {"marker": str(marker)}},
    }
    with ActorPool(made, budget_usd=1.0, out=tmp_path / "pool", is_quiet=True) as pool:
        expected = pool.sample(policy(), actors=4)
    with ActorPool(made, budget_usd=1.0, out=tmp_path / "other", is_quiet=True) as pool:
        marker.touch()
        with pytest.raises(
            ActorsKeepFailingError, match=r"of the 4 actors of call 1 brought nothing; .*on fire"
        ):
            pool.sample(policy(), actors=4)
        kept = list(pool.as_completed())
        assert 0 < len(kept) < 4
        for one in kept:
            assert same(one, expected[one.slot])
        assert pool.rows[0].actors_returned == len(kept)
        assert {one["attempt"] for one in events(tmp_path / "other", "actor_failed")} == {0, 1, 2}
        marker.unlink()
        assert len(pool.sample(policy(), actors=4)) == 4


def test_after_too_many_failures_the_pool_has_ended_for_everybody(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, error = (
        opens(),
        ActorsKeepFailingError("16 actors in a row failed; the last one: ", "on fire"),
    )

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(pool._failures, "succeeded", fails)
    pool.submit(policy(), actors=2)
    with pytest.raises(ActorsKeepFailingError, match="16 actors in a row failed"):
        pool.sample(policy(), actors=2)
    for wait in (lambda: list(pool.as_completed()), lambda: pool.submit(policy(), actors=1)):
        with pytest.raises(
            RunError,
            match="the pool ended with ActorsKeepFailingError: 16 actors in a row .* on fire",
        ):
            wait()
    ended = summary(tmp_path / "pool")
    assert ended["stop_reason"] == "failed" and "16 actors in a row failed" in ended["error"]


def raised(pool: ActorPool, error: BaseException | None) -> None:
    with pool:
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "stop_reason"),
    [
        (None, "closed"),
        (SystemExit(0), "closed"),
        (KeyboardInterrupt(), "interrupted"),
        (BudgetError("no"), "budget"),
        (ValueError("mine"), "failed"),
    ],
)
def test_a_summary_says_why_the_pool_ended(
    opens: Opens, tmp_path: Path, error: BaseException | None, stop_reason: str
) -> None:
    with suppress(BaseException):
        raised(opens(), error)
    ended = summary(tmp_path / "pool")
    assert (ended["stop_reason"], ended["error"]) == (
        stop_reason,
        "ValueError: mine" if error and stop_reason == "failed" else None,
    )
    assert not ended["was_resumed"]


def test_a_pool_that_asked_for_too_much_ended_by_its_budget(opens: Opens, tmp_path: Path) -> None:
    for out, then in (("one", 0), ("two", 1)):
        pool = opens(out, budget_usd=0.4, timeout_s=900, memory_mib=10_240)
        with pytest.raises(
            BudgetError, match=r"each actor may cost what it does until actor.timeout_s = 900"
        ):
            pool.sample(policy(), actors=4)
        for _ in range(then):
            pool.sample(policy(), actors=1)
        pool.close()
        assert summary(tmp_path / out)["stop_reason"] == ("closed" if then else "budget")


def test_all_but_environment_and_seed_may_change_in_a_directory(tmp_path: Path) -> None:
    def sampled(**changes: Any) -> tuple[int, int]:
        with ActorPool(
            {**tree(), **changes}, budget_usd=1.0, out=tmp_path / "pool", is_quiet=True
        ) as pool:
            return len(pool.sample(policy(), actors=pool.actors_max)), pool.steps_max

    assert sampled() == (4, STEPS)
    assert sampled(
        actor={"fragment_steps": 5, "timeout_s": 9, "memory_mib": 512},
        scaler={"kind": "fixed", "actors_fixed": 2},
    ) == (2, 5)
    assert summary(tmp_path / "pool")["was_resumed"]
    for changes, told in (
        ({"seed": 6}, "seed is 6 now, 5 there"),
        ({"environment": {"id": "tests.environments:make_limited"}}, "environment.id is"),
    ):
        with pytest.raises(RunError, match=told) as caught:
            sampled(**changes)
        assert "--" not in str(caught.value) and "learner" not in str(caught.value)


def test_dollars_of_calls_that_overlap_only_rise_and_their_seconds_are_those_of_the_clock(
    opens: Opens,
) -> None:
    pool = opens()
    began_s = time.monotonic()
    for _ in range(4):
        pool.submit(policy(), actors=4)
        pool.submit(policy(), actors=1)
    list(pool.as_completed())
    took_s = time.monotonic() - began_s
    assert sum(row.round_s for row in pool.rows) <= took_s
    spent = [row.spent_usd for row in pool.rows]
    assert spent == sorted(spent) and len(spent) == 8


def test_what_the_trial_found_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {
        **tree(),
        "environment": {"id": "tests.environments:make_outside", "truncate_at_fragment": True},
    }
    for is_quiet in (False, True):
        with ActorPool(made, budget_usd=1.0, out=tmp_path / "pool", is_quiet=is_quiet):
            pass
        found = capsys.readouterr()
        assert "! observations: " in (found.err if is_quiet else found.out)
        begins = "trying the environment: tests.environments:make_outside, up to 600 s\n"
        assert found.out.startswith(begins) if not is_quiet else not found.out


def test_a_state_goes_on_with_the_same_trajectories(opens: Opens, tmp_path: Path) -> None:
    pool, weights = opens(), policy()
    pool.sample(weights, actors=3)
    state = pool.state()
    expected = pool.sample(weights, actors=4)
    spent_usd = pool.spent_usd
    pool.load_state(state)
    assert [row.round_index for row in pool.rows] == [1]
    assert all(map(same, pool.sample(weights, actors=4), expected))
    assert pool.spent_usd > spent_usd, "what was done twice is paid for twice"
    assert [row.round_index for row in pool.rows] == [1, 2]
    pool.close()
    # Elsewhere, and in the same directory later.
    elsewhere = opens("elsewhere")
    elsewhere.load_state(state)
    assert all(map(same, elsewhere.sample(weights, actors=4), expected))
    assert [row.round_index for row in elsewhere.rows] == [2]
    later = opens()
    assert later.spent_usd >= spent_usd and len(later.rows) == 2
    assert later.sample(weights, actors=1)[0].call == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state[:-1],
        lambda state: b"",
        lambda state: state.replace(b"calls", b"colls"),
        lambda state: bytearray(state)[:40] + bytes([state[40] ^ 1]) + state[41:],
    ],
)
def test_a_spoilt_state_is_refused(opens: Opens, spoil: Callable[[bytes], bytes]) -> None:
    pool = opens()
    pool.sample(policy(), actors=1)
    with pytest.raises(RunError, match="this is no state of a pool"):
        pool.load_state(bytes(spoil(pool.state())))
    assert len(pool.sample(policy(), actors=1)) == 1


def test_states_are_between_calls_and_of_one_experiment(opens: Opens) -> None:
    pool, other = opens(), opens("other", environment_id="tests.environments:make_limited")
    with pytest.raises(RunError, match="of a pool of another experiment"):
        pool.load_state(other.state())
    pool.submit(policy(), actors=1)
    with pytest.raises(RunError, match="between calls: 1 are in flight"):
        pool.state()
    with pytest.raises(RunError, match="while calls are in flight"):
        pool.load_state(other.state())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"actors": 5}, r"actors = 5 is not allowed; allowed: 1 to 4"),
        ({"actors": 0}, "1 to 4"),
        ({"actors": 1.0}, "actors = 1.0"),
        ({"actors": True}, "actors = True"),
        ({"steps": 13}, r"steps = 13 is not allowed; allowed: 1 to 12, actor.fragment_steps"),
        ({"steps": -1}, "1 to 12"),
        ({"policy": "policy.onnx"}, "policy = str is none that actors can run"),
        ({"policy": b"NTRO"}, "cannot act"),
        (
            {
                "policy": nitro_rl.numpy_policy(
                    [(np.zeros((3, 99)), np.zeros(3)), (np.zeros((2, 3)), np.zeros(2))]
                )
            },
            "cannot act in this environment",
        ),
    ],
)
def test_what_is_not_allowed_is_named(opens: Opens, wrong: dict[str, Any], message: str) -> None:
    pool = opens()
    with pytest.raises(RunError, match=message):
        pool.sample(**{"policy": policy(), "actors": 1, **wrong})
    assert pool.spent_usd == 0.0


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [(np.zeros((2, 3)), np.zeros(3))],
        [(np.zeros(3), np.zeros(3))],
        [(np.zeros((4, 3)), np.zeros(4)), (np.zeros((2, 5)), np.zeros(2))],
        [("a", "b")],
        [np.zeros((4, 3))] * 2,
        [(np.zeros((4, 3)), None), (np.zeros((2, 4)), None)],
    ],
)
def test_layers_that_are_no_policy(layers: Any) -> None:
    with pytest.raises(
        RunError,
        match=r"no policy: .*; allowed: two layers or more, each a weight \[out, in\] and a",
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


def test_a_run_has_no_such_learner(tmp_path: Path) -> None:
    (file := tmp_path / "one.yaml").write_text(
        f"environment: {{id: {COUNTER}}}\nbudget: {{usd: 1}}\n"
    )
    refused = train(file, tmp_path / "run", *overrides(learner__kind="external"))
    assert refused.returncode == 2 and "only nitro_rl.ActorPool samples with it" in refused.stderr
    with ActorPool(file, out=tmp_path / "pool", is_quiet=True) as pool:
        assert len(pool.sample(policy(), actors=2)) == 2
    assert summary(tmp_path / "pool")["rounds"] == 1
    assert (tmp_path / "pool" / "report.html").exists()


def test_a_policy_that_was_trained_here_samples(opens: Opens, tmp_path: Path) -> None:
    (file := tmp_path / "one.yaml").write_text(
        f"environment: {{id: {COUNTER}}}\nbudget: {{usd: 1}}\nstop: {{max_rounds: 1}}\nactor: {{fragment_steps: 16}}\n"
        "evaluation: {every_rounds: 0}\n"
    )
    assert train(file, tmp_path / "run").returncode == 0
    trained = nitro_rl.load_policy(tmp_path / "run", environment=COUNTER, trust=True)
    assert len(opens().sample(trained, actors=2)) == 2


def test_a_closed_pool_has_ended_everything(opens: Opens) -> None:
    before = set(descendants(os.getpid()))
    pool = opens()
    pool.submit(policy(), actors=4)
    assert set(descendants(os.getpid())) - before
    pool.close()
    pool.close()
    wait_for(lambda: not set(descendants(os.getpid())) - before, "its processes to end")
    with pytest.raises(RunError, match="the pool is closed; open another one on"):
        pool.sample(policy(), actors=1)
    assert opens().spent_usd == pool.spent_usd


def test_two_pools_at_once_and_never_two_in_one_directory(opens: Opens) -> None:
    one, other, weights = opens("one"), opens("other"), policy()
    one.submit(weights, actors=2)
    other.submit(weights, actors=2)
    found = [sorted(pool.as_completed(), key=lambda one: one.slot) for pool in (one, other)]
    assert all(map(same, *found))
    with pytest.raises(RunError, match="out = .*one: a pool is open there"):
        opens("one")


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_pool_that_is_killed_leaves_no_process_and_no_dollar_uncounted(
    tmp_path: Path, number: int
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
    os.kill(process.pid, number)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "its actors to end")
    ledger = json.loads((out / "ledger.json").read_text())["budget"]
    with ActorPool(tree(), budget_usd=1.0, out=out, is_quiet=True) as pool:
        reserved = sum(ledger["reserved"].values())
        # What its actors had run counts: more than nothing, and never more than what was reserved.
        assert 0 < pool.spent_usd * ledger["units_per_usd"] - ledger["spent"] <= reserved + 1
        assert pool.sample(policy(), actors=1)[0].call == 3, (
            "the number of the call that was killed is not used again"
        )
    [run] = read_groups([out])[0].runs
    assert spent_usd(run)[-1] == summary(out)["spent_usd"] > 1.01 * run.total("round_cost_usd")


def test_an_interrupt_ends_it(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opens()

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("runtime.pool.pool.Call", interrupt)
        pool.submit(policy(), actors=2)
    assert pool._meter.reserved_usd == 0.0, "nothing has started"
    monkeypatch.setattr(pool._sampler, "next", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.sample(policy(), actors=2)
    with pytest.raises(RunError, match="ended with KeyboardInterrupt"):
        pool.sample(policy(), actors=2)


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
    made.check(spaces)
    for observation, action, log_prob in zip(
        trajectory.observations, trajectory.actions, trajectory.log_probs, strict=True
    ):
        outputs = made.outputs(observation).astype(np.float64)
        assert outputs[action] - np.log(np.exp(outputs).sum()) == pytest.approx(log_prob, abs=1e-5)
