"""A pool in a process of its own, for programs in another interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor import wire
from nitro_rl import ActorPool, BudgetError, RunError
from nitro_rl.integrations.remote_pool import RemotePool
from runtime.pool.server import answer_to, message_of
from runtime.pool.trajectory import for_trainers
from tests.helpers import ROOT, command_line, descendants, is_alive, wait_for
from tests.pool.test_pool import ARRAYS, STEPS, policy, same, tree
from tests.test_imports import loaded_after


@pytest.fixture(autouse=True)
def finds_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone, as it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def open_pool(out: str = "remote", budget_usd: float = 1.0, **more: Any) -> RemotePool:
            pool = RemotePool(
                python=more.pop("python", sys.executable),
                experiment=tree() | more,
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
    with ActorPool(tree(), budget_usd=1.0, out=tmp_path / "here", is_quiet=True) as here:
        assert remote.spaces["observation_shape"] == list(here.spaces.observation_shape)
        for call, actors in ((1, 3), (2, 4)):
            expected, found = (
                pool.sample(weights, actors=actors, steps=STEPS) for pool in (here, remote)
            )
            assert all(map(same, found, expected))
            assert [
                (one.call, one.slot, one.policy_version, one.continued_episode) for one in found
            ] == [
                (one.call, one.slot, one.policy_version, one.continued_episode) for one in expected
            ]
            assert (
                [one.continued_episode for one in found] == ["", "", ""]
                if call == 1
                else ["1-0", "1-1", "1-2", ""]
            )
        state, other = remote.state(), opens("other")
        other.load_state(state)
        expected = here.sample(policy(seed=1), actors=4)
        for pool in (remote, other):
            pool.submit(policy(seed=1), actors=4, steps=STEPS)
            found = pool.collect()
            assert all(map(same, found, expected)) and [one.slot for one in found] == [0, 1, 2, 3]
            assert found[0].policy_version == 1
        assert remote.spent_usd > 0


def test_a_budget_that_is_used_up_ends_nothing(opens: Any, tmp_path: Path) -> None:
    pool = opens(budget_usd=1e-3)
    with pytest.raises(BudgetError, match="nothing was started"):
        pool.sample(policy(), actors=4, steps=STEPS)
    assert pool.spent_usd == 0.0
    pool.load_state(pool.state())
    pool.close()
    assert (tmp_path / "remote" / "summary.json").exists()
    assert not servers()
    with pytest.raises(RunError, match="has ended"):
        pool.state()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"environment": {"id": "tests.environments:make_failing"}}, "make_failing"),
        (
            {"environment": {"id": "tests.environments:make_pictures"}},
            "are pixels; allowed here: vectors",
        ),
        ({"python": "/no/such/interpreter"}, "cannot be started"),
        ({"python": "/bin/true"}, r"ended \(exit code 0\)"),
    ],
)
def test_what_cannot_be_opened_is_told_and_leaves_no_process(
    opens: Any, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(RunError, match=told):
        opens(**more)
    assert not servers()


def test_a_bad_request_is_told_and_costs_nothing(opens: Any) -> None:
    pool = opens()
    for body, arguments, told in (
        (b"junk", {"actors": 1, "steps": STEPS}, "policy cannot act"),
        (policy()[:-1], {"actors": 1, "steps": STEPS}, "policy cannot act"),
        (
            policy("tests.environments:make_signs"),
            {"actors": 1, "steps": STEPS},
            "policy cannot act",
        ),
        (policy(), {"actors": 0, "steps": STEPS}, "actors = 0"),
        (policy(), {"actors": 1, "steps": "12"}, "steps = '12'"),
        (policy(), {}, "no request"),
    ):
        with pytest.raises(RunError, match=told):
            pool._ask("sample", body, **arguments)
    assert pool.spent_usd == 0.0
    assert len(pool.sample(policy(), actors=1, steps=STEPS)) == 1


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    with ActorPool(tree(), budget_usd=1.0, out=tmp_path / "pool", is_quiet=True) as pool:
        for request in (
            b"",
            b"\xff\n",
            b"[]\n",
            b"7\n",
            b"{}\n",
            b'{"do": "close", "now": 1}\n',
            b'{"do": ["sample"], "actors": 1}\n',
            b'{"do": "__class__"}\n',
            b'{"do": "sample"}\n',
        ):
            with pytest.raises(RunError, match="no request of a pool"):
                answer_to(pool, request)


def test_what_others_brought_is_kept_if_an_actor_keeps_failing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    made = {
        **tree(),
        "environment": {"id": "tests.environments:make_marked", "kwargs": {"marker": str(marker)}},
    }
    with ActorPool(made, budget_usd=1.0, out=tmp_path / "pool", is_quiet=True) as pool:
        marker.touch()
        answer_to(pool, b'{"do": "submit", "actors": 4, "steps": 12}\n' + policy())
        with pytest.raises(RunError, match="brought nothing"):
            answer_to(pool, b'{"do": "collect"}\n')
        assert len(answer_to(pool, b'{"do": "collect"}\n')) == pool.rows[0].actors_returned > 0


_LIAR = """#!{python}
import sys
import time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[3]))
for message in {messages!r}:
    connection.send_bytes(message)
time.sleep(9000)
"""


def hello(**more: Any) -> bytes:
    return json.dumps(
        {"spent_usd": 0.0, "messages": 0, "spaces": {}, "actors_max": 4, "steps_max": 1, **more}
    ).encode()


@pytest.mark.parametrize(
    "messages",
    [
        [b"junk"],
        [b"[]"],
        [b"{}"],
        [hello(spent_usd="many")],
        [hello(messages=-1)],
        [hello(messages=True)],
        [hello(messages=1), b"x", b"junk"],
        [hello(), b"junk"],
        [hello(), hello(messages=1), b"no trajectory"],
    ],
)
def test_a_process_that_answers_junk_is_ended(
    opens: Any, tmp_path: Path, messages: list[bytes]
) -> None:
    liar = tmp_path / "liar"
    liar.write_text(_LIAR.format(python=sys.executable, messages=messages))
    liar.chmod(0o755)
    with pytest.raises(RunError, match="answered what is none|no trajectory"):
        opens(python=liar).sample(b"", actors=1, steps=1)


def test_a_server_that_is_killed_is_told_and_leaves_no_actor(opens: Any) -> None:
    pool = opens()
    pool.sample(policy(), actors=4, steps=STEPS)
    (server,) = servers()
    below = descendants(server)
    assert below, "its actors"
    os.kill(server, signal.SIGKILL)
    with pytest.raises(RunError, match=r"ended \(SIGKILL\)"):
        pool.sample(policy(), actors=1, steps=STEPS)
    wait_for(lambda: not any(map(is_alive, [server, *below])), "its actors to end")


_TRAINER = """
import sys
from nitro_rl.integrations.remote_pool import RemotePool
from tests.pool.test_pool import policy, tree
pool = RemotePool(python=sys.executable, experiment=tree(), budget_usd=1.0, out={out!r})
pool.sample(policy(), actors=2, steps=12)
pool.submit(policy(), actors=4, steps=12)
print("started", flush=True)
sys.stdin.read()
"""


def test_a_trainer_that_is_killed_leaves_no_process_and_no_dollar_uncounted(tmp_path: Path) -> None:
    out = tmp_path / "pool"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_TRAINER).format(out=str(out))],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    below = descendants(process.pid)
    assert len(below) >= 2, "the server and its actors"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "the server and its actors to end")
    ledger = json.loads((out / "ledger.json").read_text())["budget"]
    with ActorPool(tree(), budget_usd=1.0, out=out, is_quiet=True) as pool:
        reserved = sum(ledger["reserved"].values())
        # What its actors had run counts: more than nothing, and never more than what was reserved.
        assert 0 < pool.spent_usd * ledger["units_per_usd"] - ledger["spent"] <= reserved + 1


def test_an_interrupted_call_is_not_answered_by_the_next_ones(
    opens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens()

    def interrupt(_: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool._child.connection, "recv_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.sample(policy(), actors=1, steps=STEPS)
    with pytest.raises(RunError, match="has ended"):
        pool.sample(policy(), actors=1, steps=STEPS)
    assert not servers()


def test_a_message_has_all_of_a_trajectory(tmp_path: Path) -> None:
    with ActorPool(tree(), budget_usd=1.0, out=tmp_path / "pool", is_quiet=True) as pool:
        (trajectory,) = pool.sample(policy(), actors=1)
    fields = vars(trajectory)
    assert fields.keys() == {
        *ARRAYS,
        "call",
        "slot",
        "policy_version",
        "continued_episode",
        "action_masks",
    }
    back = vars(for_trainers(wire.decode(message_of(trajectory), wire.Kind.TRAJECTORY)))
    assert all(
        np.array_equal(back[name], fields[name]) and back[name].dtype == fields[name].dtype
        for name in ARRAYS
    )
    assert all(back[name] == fields[name] for name in fields.keys() - set(ARRAYS))


def test_the_other_interpreter_needs_numpy_alone() -> None:
    loaded = loaded_after("import nitro_rl.integrations.remote_pool, runtime.pool.policies")
    assert (
        loaded & {"torch", "gymnasium", "pydantic", "yaml", "redis", "boto3", "rich", "safetensors"}
        == set()
    )
