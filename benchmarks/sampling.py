"""Measures one actor's environment steps per CPU-second, against the limit and a usual implementation.

    python benchmarks/sampling.py [--base /path/to/another/checkout] [ENVIRONMENT_ID ...]

Contenders, each in its own process on one thread:

- ``actor``: a whole invocation of the actor function: fetch and decode a new policy version's weights from a Redis
  server, continue the last open episode, and sample, encode and submit a fragment.
- ``base``: the same with another checkout.
- ``limit``: the simulator alone. For MuJoCo, `mujoco.rollout` replays the same policy's actions, with frame skip. For
  a game, the emulator runs without pixels. Other simulators have no limit.
- ``usual``: Gymnasium with its default wrappers, and the torch work of CleanRL's agents at each step: actor, critic,
  distribution, its sample, log-probability and entropy.

They take turns, and ratios are taken within a turn, so that drifts in the machine's speed cancel out. Results are
medians over all turns. Prints JSON; keep it under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    os.environ.get("CHECKOUT", str(ROOT)),
    *(path for path in sys.path if path != str(ROOT / "benchmarks")),
]

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402

from lambda_actor import wire  # noqa: E402
from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.policy import Policy  # noqa: E402
from lambda_actor.spaces import Spaces  # noqa: E402
from lambda_actor.trial import random_weights  # noqa: E402

TURNS = 9
STEPS = {"vectors": 256, "pixels": 128}
"""As in experiments/."""
FRAGMENTS = 4
"""Fragments of a turn."""
Turn = Callable[[int], float]
"""Samples `FRAGMENTS` fragments. Returns CPU-seconds."""


def weights(spaces: Spaces, policy_version: int = 0) -> bytes:
    """Returns a full-size policy with random weights."""
    fields = wire.decode(random_weights(spaces), wire.Kind.WEIGHTS)
    version = {"policy_version": np.array(policy_version, np.int64)}
    return wire.encode(wire.Kind.WEIGHTS, {**fields, **version})


def steps_of(spaces: Spaces) -> int:
    return STEPS["pixels" if spaces.is_pixels else "vectors"]


def actor(environment_id: str, cache_url: str) -> Turn:
    from lambda_actor.cache import TrajectoryCache
    from lambda_actor.handler import handler

    spaces = make_environment(environment_id).spaces
    kind = wire.Kind.FRAME_TRAJECTORY if spaces.is_pixels else wire.Kind.TRAJECTORY
    cache = TrajectoryCache(cache_url, f"sampling-{os.getpid()}")
    event = {
        "run_id": f"sampling-{os.getpid()}",
        "cache_url": cache_url,
        "cache_credential": "",
        "cache_ttl_s": 600,
        "environment_id": environment_id,
        "preprocessing": "auto",
        "seed": 0,
        "slot": 0,
        "truncate_at_fragment": False,
        "fragment_steps": steps_of(spaces),
        "episode_id": "",
    }

    def turn(number: int) -> float:
        cpu_s = 0.0
        for version in range(FRAGMENTS * number, FRAGMENTS * (number + 1)):
            invocation = f"r{version}"
            cache.publish_weights(version, weights(spaces, version))
            cache.expect([invocation])
            started_s = time.process_time()
            handler(
                {
                    **event,
                    "invocation_id": invocation,
                    "policy_version": version,
                    "round_index": version,
                },
                None,
            )
            cpu_s += time.process_time() - started_s
            cache.forget_weights(version)
            open_episode = bytes(wire.decode(cache.take(invocation) or b"", kind)["open_episode"])
            event["episode_id"] = f"e{version}" if open_episode else ""
            if open_episode:
                cache.publish_episodes({event["episode_id"]: open_episode})
        return cpu_s

    return turn


def limit(environment_id: str, cache_url: str) -> Turn:
    environment = make_environment(environment_id)
    return (game_frames if environment.spaces.is_pixels else mujoco_rollouts)(environment_id)


def mujoco_rollouts(environment_id: str) -> Turn:
    import mujoco
    from mujoco.rollout import Rollout

    environment = gymnasium.make(environment_id)
    model, data, frame_skip = (
        getattr(environment.unwrapped, name) for name in ("model", "data", "frame_skip")
    )
    spaces = make_environment(environment_id).spaces
    policy, draw = Policy.from_bytes(weights(spaces)), np.random.default_rng(0)
    spec = mujoco.mjtState.mjSTATE_FULLPHYSICS
    episodes: list[tuple[np.ndarray, list[np.ndarray]]] = []
    is_over = True
    for _ in range(FRAGMENTS * steps_of(spaces)):
        if is_over:
            observation, _ = environment.reset(seed=len(episodes))
            state = np.empty(mujoco.mj_stateSize(model, spec))
            mujoco.mj_getState(model, data, state, spec)
            episodes.append((state, []))
        means = policy.outputs(observation.astype(np.float32))
        action = np.clip(
            means + draw.standard_normal(len(means)),
            environment.action_space.low,
            environment.action_space.high,
        ).astype(np.float32)
        episodes[-1][1].append(action)
        observation, _, terminated, truncated, _ = environment.step(action)
        is_over = terminated or truncated
    prepared = []
    for state, actions in episodes:
        frames = frame_skip * len(actions)
        controls = np.repeat(np.array(actions, np.float64), frame_skip, axis=0)[None]
        prepared.append(
            (
                state[None],
                {
                    "control": controls,
                    "nstep": frames,
                    "skip_checks": True,
                    "state": np.empty((1, frames, len(state))),
                    "sensordata": np.empty((1, frames, model.nsensordata)),
                },
            )
        )
    runner, own = Rollout(nthread=0), mujoco.MjData(model)

    def turn(number: int) -> float:
        started_s = time.process_time()
        for state, options in prepared:
            runner.rollout([model], [own], state, **options)
        return time.process_time() - started_s

    return turn


def game_frames(environment_id: str) -> Turn:
    environment = gymnasium.make(environment_id, frameskip=1, obs_type="grayscale")
    emulator, draw = environment.unwrapped.ale, np.random.default_rng(0)
    actions = emulator.getMinimalActionSet()
    environment.reset(seed=0)

    def turn(number: int) -> float:
        started_s = time.process_time()
        for choice in draw.integers(len(actions), size=FRAGMENTS * STEPS["pixels"]).tolist():
            for _ in range(4):
                emulator.act(actions[choice])
            if emulator.game_over():
                emulator.reset_game()
        return time.process_time() - started_s

    return turn


def usual(environment_id: str, cache_url: str) -> Turn:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    spaces = make_environment(environment_id).spaces
    environment = gymnasium.make(environment_id, **({"frameskip": 1} if spaces.is_pixels else {}))
    if spaces.is_pixels:
        environment = gymnasium.wrappers.FrameStackObservation(
            gymnasium.wrappers.AtariPreprocessing(environment), spaces.frame_stack
        )

    def network(outputs: int) -> nn.Sequential:
        """Returns a network of the actor's sizes."""
        if spaces.is_pixels:
            return nn.Sequential(
                nn.Conv2d(spaces.frame_stack, 16, 8, stride=4, padding=2),
                nn.ReLU(),
                nn.ZeroPad2d((1, 2, 1, 2)),
                nn.Conv2d(16, 32, 4, stride=2),
                nn.ReLU(),
                nn.Conv2d(32, 256, 11),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(256, outputs),
            )
        layers = [
            nn.Linear(spaces.observation_size, 256),
            nn.Tanh(),
            nn.Linear(256, 256),
            nn.Tanh(),
        ]
        return nn.Sequential(*layers, nn.Linear(256, outputs))

    policy = network(Policy.from_bytes(weights(spaces)).output_size)
    critic = network(1)
    log_std = nn.Parameter(torch.zeros(1, max(spaces.action_size, 1)))
    state = {"observation": environment.reset(seed=0)[0]}

    @torch.no_grad()
    def step() -> None:
        inputs = torch.as_tensor(np.asarray(state["observation"]), dtype=torch.float32)[None]
        outputs = policy(inputs / 255.0 if spaces.is_pixels else inputs)
        distribution = (
            torch.distributions.Categorical(logits=outputs)
            if spaces.is_discrete
            else torch.distributions.Normal(outputs, torch.exp(log_std.expand_as(outputs)))
        )
        action = distribution.sample()
        distribution.log_prob(action).sum(-1)
        distribution.entropy().sum(-1)
        critic(inputs / 255.0 if spaces.is_pixels else inputs)
        chosen = (
            int(action)
            if spaces.is_discrete
            else np.clip(
                action[0].numpy(), environment.action_space.low, environment.action_space.high
            )
        )
        state["observation"], _, terminated, truncated, _ = environment.step(chosen)
        if terminated or truncated:
            state["observation"], _ = environment.reset()

    def turn(number: int) -> float:
        started_s = time.process_time()
        for _ in range(FRAGMENTS * steps_of(spaces)):
            step()
        return time.process_time() - started_s

    return turn


CONTENDERS = {"actor": actor, "base": actor, "limit": limit, "usual": usual}


def contend(name: str, environment_id: str, cache_url: str) -> None:
    """Takes a turn for each line of standard input."""
    turn = CONTENDERS[name](environment_id, cache_url)
    for line in sys.stdin:
        print(turn(int(line)), flush=True)


def measure(environment_id: str, cache_url: str, base: str) -> dict[str, dict[str, float]]:
    bare = make_environment(environment_id).gymnasium_environment.unwrapped
    has_limit = "mujoco" in type(bare).__module__ or type(bare).__module__.startswith("ale_py")
    names = [
        name for name in CONTENDERS if (name != "base" or base) and (name != "limit" or has_limit)
    ]
    running = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--contender", name, "--cache", cache_url, environment_id],
            text=True,
            env={**os.environ, "CHECKOUT": base if name == "base" else str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in names
    }
    steps = FRAGMENTS * steps_of(make_environment(environment_id).spaces)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(TURNS + 1):
        for name, process in running.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            cpu_s = float(process.stdout.readline())
            if number > 0:  # the first warms up
                rates[name].append(steps / cpu_s)
    for process in running.values():
        process.communicate()
    return {
        name: {
            "steps_per_cpu_s_median": round(statistics.median(values)),
            "steps_per_cpu_s_min": round(min(values)),
            "steps_per_cpu_s_max": round(max(values)),
            "actor_as_fraction_of_it_median": round(
                statistics.median(
                    ours / theirs for ours, theirs in zip(rates["actor"], values, strict=True)
                ),
                3,
            ),
        }
        for name, values in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "ids",
        nargs="*",
        default=["Hopper-v5", "Walker2d-v5", "Humanoid-v5", "SpaceInvadersNoFrameskip-v4"],
    )
    parser.add_argument("--base", default="", help="another checkout")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        contend(given.contender, given.ids[0], given.cache)
        return
    from contextlib import closing

    from benchmarks.provenance import origin
    from runtime.fleet.cache_server import EmbeddedServer

    with closing(EmbeddedServer()) as server:
        print(
            json.dumps(
                {
                    **origin("python benchmarks/sampling.py " + " ".join(given.ids)),
                    "environments": {
                        one: measure(one, server.url, given.base) for one in given.ids
                    },
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
