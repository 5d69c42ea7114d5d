"""MuJoCo Warp's worlds against Gymnasium's environments, and training in them, on the GPU if there is one.

A machine's first run compiles.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.policy import Policy
from lambda_actor.rollout import Fragment, OpenEpisode, Request, roll_out_together
from runtime.learner import LearnerSpec
from runtime.learner.normaliser import moments_of
from runtime.learner.ppo import Ppo
from runtime.learner.settings import PpoSettings
from tests.end_to_end.test_crashes import start
from tests.end_to_end.test_instances import instances_of, without_failures
from tests.helpers import overrides, rounds, train, wait_for

pytest.importorskip("mujoco_warp", reason="needs the extra warp")

from runtime.gmi.warp import Worlds, make_worlds, roll_out  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
to_the_bit = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="on a GPU no two simulations are equal to the bit"
)
STEP_ARRAYS = ("observations", "actions", "log_probs", "rewards", "bootstrap_observations")
EPISODE_ARRAYS = (
    "terminated",
    "truncated",
    "bootstrap_steps",
    "episode_lengths",
    "episode_first_versions",
)
EXPERIMENT = """\
environment: {id: Humanoid-v5, backend: warp}
network: {hidden_sizes: [16]}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 64}
scaler: {kind: fixed, actors_fixed: 6}
actor: {fragment_steps: 16, timeout_s: 300}
learner: {device: DEVICE, kind: gmi, instances: 2, environments: 2, reduction: mpr}
budget: {usd: 1.0}
stop: {max_rounds: 5}
evaluation: {every_rounds: 0}
seed: 3
""".replace("DEVICE", DEVICE.type)


def event(environment_id: str, slot: int, **changes: Any) -> dict[str, Any]:
    return {
        "environment_id": environment_id,
        "preprocessing": "none",
        "seed": 5,
        "round_index": 2,
        "slot": slot,
        "fragment_steps": 40,
        "truncate_at_fragment": False,
        "worlds": 4,
        **changes,
    }


def learner(environment: ActorEnvironment) -> Ppo:
    """Returns a policy with normalized observations and nontrivial moments."""
    section = PpoSettings(kind="ppo", normalize_observations=True)
    found = Ppo(
        LearnerSpec(section, environment.spaces, "mlp tanh 16 16", seed=1), device=DEVICE.type
    )
    seen = np.random.default_rng(0).normal(0.1, 2.0, (64, environment.spaces.observation_size))
    found.moments.add(*moments_of(seen))
    found.policy_version = 7
    return found


def played(
    worlds: Worlds,
    agent: Ppo,
    asked: list[dict[str, Any]],
    episodes: list[OpenEpisode | None] | None = None,
) -> list[Fragment]:
    return roll_out(worlds, agent, asked, episodes or [None] * len(asked))  # type: ignore[return-value]


@pytest.mark.parametrize("environment_id", ["Ant-v5", "Humanoid-v5"])
def test_each_step_is_gymnasiums(environment_id: str) -> None:
    """Compares until the episode ends, each time from Gymnasium's state; an Ant that never falls is lifted.

    Friction uses cones, so the axes do not matter, and both solve contacts by Newton's method. Forces are the least
    exact part of the observations.
    """
    environment = make_environment(environment_id, "none")
    bare: Any = environment.gymnasium_environment.unwrapped
    bare.model.opt.cone, bare.model.opt.solver = 1, 2
    worlds, random = Worlds(environment, 2, DEVICE), np.random.default_rng(1)
    worlds.put([0, 1], [worlds.fresh(11), worlds.fresh(11)])
    bound, forced, is_over = bare.action_space.high, 0.0, False
    for step in range(102):
        action = random.uniform(-1.5 * bound, 1.5 * bound).astype(np.float32)
        frame, reward, is_over, _ = environment.step(action)
        rewards, terminated = worlds.step(
            torch.from_numpy(np.stack([action, 0.0 * action])).to(DEVICE)
        )
        assert rewards[0].item() == pytest.approx(reward, rel=1e-4, abs=5e-3)
        assert terminated[0].item() == is_over
        state, forces = np.split(
            worlds.observations[0].cpu().numpy() - frame, [-6 * (bare.model.nbody - 1)]
        )
        np.testing.assert_allclose(state, 0.0, atol=1e-3)
        np.testing.assert_allclose(
            forces, 0.0, atol=2e-2 + 1e-3 * np.abs(frame[len(state) :]).max()
        )
        assert not torch.equal(worlds.observations[0], worlds.observations[1]), (
            "they have other actions"
        )
        forced = max(forced, np.abs(bare.data.cfrc_ext[1:]).max())
        if is_over:
            break
        if step == 100:
            bare.set_state(
                np.array([*bare.data.qpos[:2], 2.5, *bare.data.qpos[3:]]), bare.data.qvel
            )
        place = worlds._weights @ getattr(bare.data, worlds._on_its_way)[:, 0]
        worlds.put(
            [0],
            [
                np.concatenate(
                    [frame, bare.data.qpos, bare.data.qvel, bare.data.qacc_warmstart, [place]],
                    dtype=np.float32,
                )
            ],
        )
    assert is_over
    assert forced > 1.0


def test_a_fragment_is_the_one_that_gymnasium_plays() -> None:
    """With falls, the time limit and open ends, slots have the same episodes, noise and starts."""
    options = {"max_episode_steps": 18}
    environments = [make_environment("Humanoid-v5", "none", options) for _ in range(3)]
    agent = learner(environments[0])
    asked = [event("Humanoid-v5", slot, environment_options=options) for slot in (0, 1, 5)]
    expected: Any = roll_out_together(
        environments,
        Policy.from_bytes(agent.weights()),
        [Request(5, 2, one["slot"]) for one in asked],
        fragment_steps=40,
    )
    ends = set()
    for found, one in zip(
        played(make_worlds(asked[0], DEVICE), agent, asked), expected, strict=True
    ):
        for name in EPISODE_ARRAYS:
            np.testing.assert_array_equal(getattr(found, name), getattr(one, name), err_msg=name)
        for name in STEP_ARRAYS:
            array = getattr(found, name)
            assert isinstance(array, torch.Tensor)
            assert array.cpu().numpy().dtype == getattr(one, name).dtype
            np.testing.assert_allclose(
                array.cpu().numpy(), getattr(one, name), rtol=2e-2, atol=5e-2, err_msg=name
            )
        np.testing.assert_allclose(found.episode_returns, one.episode_returns, rtol=1e-3)
        assert found.open_episode is not None and one.open_episode is not None
        np.testing.assert_allclose(
            found.open_episode.observation, one.open_episode.observation, rtol=2e-2, atol=5e-2
        )
        assert found.open_episode.return_so_far == pytest.approx(
            one.open_episode.return_so_far, rel=1e-3
        )
        assert found.open_episode.length == one.open_episode.length
        ends |= {"fall"} if one.terminated.any() else set()
        ends |= {"limit"} if one.truncated.any() else set()
    assert ends == {"fall", "limit"}


@pytest.fixture(scope="module")
def ants() -> Worlds:
    return make_worlds(event("Ant-v5", 0), DEVICE)


def equal(found: Fragment, expected: Fragment) -> bool:
    return all(
        torch.equal(*(torch.as_tensor(getattr(one, name)) for one in (found, expected)))
        for name in (*STEP_ARRAYS, *EPISODE_ARRAYS, "episode_returns")
    )


@to_the_bit
def test_what_a_slot_plays_does_not_depend_on_the_others(ants: Worlds) -> None:
    """An instance's lost work can therefore be played again in any group. Remains in unused worlds do not matter."""
    agent, slots = (
        learner(make_environment("Ant-v5", "none")),
        [event("Ant-v5", slot) for slot in range(4)],
    )
    whole = played(ants, agent, slots)
    parts = [
        *played(ants, agent, slots[:1]),
        *played(ants, agent, slots[1:3]),
        *played(ants, agent, slots[3:]),
    ]
    back = played(ants, agent, slots[::-1])[::-1]
    assert all(map(equal, parts, whole)) and all(map(equal, back, whole))
    assert not equal(whole[0], whole[1])


@to_the_bit
def test_an_open_episode_goes_on_elsewhere(ants: Worlds) -> None:
    agent = learner(make_environment("Ant-v5", "none"))
    first = played(ants, agent, [event("Ant-v5", slot, fragment_steps=9) for slot in range(3)])
    episodes = [
        one.open_episode and OpenEpisode.from_bytes(one.open_episode.to_bytes()) for one in first
    ]
    assert all(episodes)
    asked = [event("Ant-v5", slot, round_index=3, fragment_steps=25) for slot in range(3)]
    # The simulation itself knows only the state, so it resumes where it was when another begins with that state.
    here = played(ants, agent, asked, episodes)
    elsewhere = played(make_worlds(asked[0], DEVICE), agent, asked[::-1], episodes[::-1])[::-1]
    assert all(map(equal, here, elsewhere))
    assert torch.equal(
        here[0].observations[0].cpu(), torch.from_numpy(first[0].open_episode.observation)
    )  # type: ignore
    ended = next(one for one in here if len(one.episode_lengths))
    assert ended.episode_lengths[0] > 9 and ended.episode_first_versions[0] == 7


@to_the_bit
def test_a_world_that_is_not_finite_costs_its_own_slot_only(ants: Worlds) -> None:
    agent, slots = (
        learner(make_environment("Ant-v5", "none")),
        [event("Ant-v5", slot) for slot in range(2)],
    )
    sound = played(ants, agent, slots)
    state = sound[0].open_episode
    assert state is not None
    broken = OpenEpisode(state.observation * np.float32(np.nan), state.state, 0.0, 1, 7)
    found = roll_out(ants, agent, slots, [broken, None])
    assert isinstance(found[0], Exception) and "not finite" in str(found[0])
    assert equal(found[1], sound[1])  # type: ignore[arg-type]


@to_the_bit
def test_whoever_is_killed_the_rounds_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """Six worlds in two instances, two at a time: kept ones are played again, and open episodes continue."""
    (file := tmp_path / "small.yaml").write_text(EXPERIMENT)
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    finished = train(file, undisturbed)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert any(row["episodes_spanning_versions"] for row in rounds(undisturbed))
    finished = train(
        file, tmp_path / "own", *overrides(environment__backend="gymnasium", stop__max_rounds=1)
    )
    assert finished.returncode == 0, finished.stderr
    (own,), simulated = rounds(tmp_path / "own"), rounds(undisturbed)[0]
    for key in ("value_loss", "entropy", "kl"):
        assert simulated[key] == pytest.approx(own[key], rel=2e-2)
    assert simulated["value_loss"] != own["value_loss"], "simulators round differently"
    process = start(file, out)
    killed = []
    for round_index in range(1, 4):
        wait_for(
            (out / "checkpoints" / f"round_{round_index:06}.json").exists, f"round {round_index}"
        )
        killed.append(instances_of(process)[0] if round_index < 3 else process.pid)
        os.kill(killed[-1], signal.SIGKILL)
    process.communicate()
    assert len(set(killed)) == 3, "another instance took the place of the first"
    resumed = train(file, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert without_failures(out) == without_failures(undisturbed)
    assert (out / "policy.safetensors").read_bytes() == (
        undisturbed / "policy.safetensors"
    ).read_bytes()
