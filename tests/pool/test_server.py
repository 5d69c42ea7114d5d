"""A pool in a process of its own, for programs in another interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_rl import ActorPool, BudgetError, RunError
from nitro_rl.integrations.remote_pool import RemotePool
from runtime.pool.trajectory import Trajectory
from tests.helpers import ROOT, command_line, descendants, is_alive, wait_for
from tests.pool.test_pool import STEPS, ledger, policy, same, tree
from tests.test_imports import loaded_after


@pytest.fixture(autouse=True)
def finds_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone, as it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def open_pool(
            out: str = "remote",
            budget_usd: float = 1.0,
            python: str = sys.executable,
            **sections: Any,
        ) -> RemotePool:
            pool = RemotePool(
                python=python,
                experiment=tree() | sections,
                budget_usd=budget_usd,
                out=tmp_path / out,
            )
            stack.callback(pool.close)
            return pool

        yield open_pool


def servers() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"runtime.pool.server" in command_line(pid)]


def test_it_samples_what_a_pool_here_does(opens: Any, tmp_path: Path) -> None:
    """In both ways, and after its state was taken elsewhere."""
    remote, weights = opens(), policy()

    def identity(one: Trajectory) -> tuple[Any, ...]:
        return one.call, one.slot, one.policy_version, one.continued_episode

    with ActorPool(tree(), budget_usd=1.0, out=tmp_path / "here", is_quiet=True) as here:
        assert remote.spaces["observation_shape"] == list(here.spaces.observation_shape)
        assert (remote.actors_max, remote.steps_max) == (4, STEPS)
        for pool in (here, remote):
            assert len(pool.sample(weights, actors=3, steps=STEPS)) == 3
        state, other = remote.state(), opens("other")
        other.load_state(state)
        expected = here.sample(policy(seed=1), actors=4)
        for pool in (remote, other):
            pool.submit(policy(seed=1), actors=4, steps=STEPS)
            found = pool.collect()
            assert all(map(same, found, expected))
            assert list(map(identity, found)) == list(map(identity, expected))
        assert remote.spent_usd > 0


def test_a_trajectory_crosses_whole() -> None:
    arrays = [np.full((3, 2), number, np.float32) for number in range(10)]
    for masks in (None, np.ones((3, 2), bool)):
        sent = Trajectory(1, 2, 3, *arrays, action_masks=masks, continued_episode="1-0")
        found = vars(Trajectory.from_bytes(sent.to_bytes()))
        assert list(map(repr, found.values())) == list(map(repr, vars(sent).values()))


def test_refusals_are_told_cost_nothing_and_end_nothing(opens: Any, tmp_path: Path) -> None:
    pool = opens(budget_usd=1e-3)
    with pytest.raises(BudgetError, match="nothing was started"):
        pool.sample(policy(), actors=4, steps=STEPS)
    with pytest.raises(RunError, match="policy cannot act"):
        pool.sample(policy()[:-1], actors=1, steps=STEPS)
    with pytest.raises(RunError, match="actors = 0"):
        pool.sample(policy(), actors=0, steps=STEPS)
    assert pool.spent_usd == 0.0
    pool.load_state(pool.state())
    pool.close()
    assert (tmp_path / "remote" / "summary.json").exists()
    assert not servers()
    with pytest.raises(RunError, match="has ended"):
        pool.state()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"environment": {"id": "tests.environments:make_failing"}}, "make_failing"),
        ({"python": "/no/such/interpreter"}, "cannot be started"),
        ({"python": "/bin/true"}, r"has ended \(exit code 0\)"),
    ],
)
def test_what_cannot_be_opened_is_told_and_leaves_no_process(
    opens: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        opens(**more)
    assert not servers()


def test_a_pool_that_is_killed_leaves_no_actor_and_no_dollar_uncounted(
    opens: Any, tmp_path: Path
) -> None:
    pool = opens()
    pool.sample(policy(), actors=2, steps=STEPS)
    pool.submit(policy(), actors=4, steps=STEPS)
    (server,) = servers()
    below = descendants(server)
    assert below, "its actors"
    os.kill(server, signal.SIGKILL)
    with pytest.raises(RunError, match=r"has ended \(SIGKILL\)"):
        pool.collect()
    wait_for(lambda: not any(map(is_alive, [server, *below])), "its actors to end")
    left = ledger(tmp_path / "remote")
    with ActorPool(tree(), budget_usd=1.0, out=tmp_path / "remote", is_quiet=True) as again:
        # What its actors had run counts: more than nothing, and never more than what was reserved.
        forfeited = again.spent_usd * left["units_per_usd"] - left["spent"]
        assert 0 < forfeited <= sum(left["reserved"].values()) + 1
        assert again.sample(policy(), actors=1)[0].call == 3, "no number is used again"


_TRAINER = """
import json, sys
from nitro_rl.integrations.remote_pool import RemotePool
settings, weights = sys.argv[1:]
pool = RemotePool(python=sys.executable, **json.loads(settings))
pool.submit(bytes.fromhex(weights), actors=4, steps=12)
print("started", flush=True)
sys.stdin.read()
"""


def test_a_trainer_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    settings = {"experiment": tree(), "budget_usd": 1.0, "out": str(tmp_path / "pool")}
    process = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, json.dumps(settings), policy().hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"started\n"
    below = descendants(process.pid)
    assert len(below) >= 2, "the server and its actors"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "the server and its actors to end")


def test_an_interrupted_call_is_not_answered_by_the_next_ones(
    opens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens()

    def interrupt(_: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("multiprocessing.connection.Connection.recv_bytes", interrupt)
        pool.sample(policy(), actors=1, steps=STEPS)
    with pytest.raises(RunError, match="has ended"):
        pool.sample(policy(), actors=1, steps=STEPS)
    assert not servers()


def test_the_other_interpreter_needs_numpy_alone() -> None:
    loaded = loaded_after("import nitro_rl.integrations.remote_pool, runtime.pool.policies")
    assert (
        loaded & {"torch", "gymnasium", "pydantic", "yaml", "redis", "boto3", "safetensors"}
        == set()
    )
