"""MSRL's PPO on Hopper with actors of a pool, and with Nitro choosing how many: part of Figure 13.

    PYTHONPATH=. msrl/bin/python papers/nitro/msrl.py --python .venv/bin/python --work runs/msrl

MindSpore 2.7.0 and mindspore-rl 0.7.0 need an environment of their own: Python 3.11, numpy 1.26.4, torch 2.13.0 and
PyHessian 0.1 for Nitro's detector, and pydantic. --python names the pool's interpreter. The loss, the networks' layers,
the optimizer and all settings of PPO are MSRL's. Its policy and its `learn` are not used: the one is made for six
actions, and the other does not know that episodes end. The command may be interrupted and repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import torch
from mindspore import Tensor, ops
from mindspore_rl.algorithm.config import learner_params, policy_params
from mindspore_rl.algorithm.ppo import PPOLearner, PPOPolicy

from benchmarks.provenance import origin
from nitro_rl.integrations.remote_pool import RemotePool
from runtime.detector.convexity import ConvexityDetector
from runtime.learner.interfaces import CurvatureProblem
from runtime.pool.policies import numpy_policy
from runtime.pool.trajectory import Array, Trajectory
from runtime.scaler.interfaces import RoundView
from runtime.scaler.nitro import NitroSettings

RESULT = Path(__file__).parent / "results" / "msrl.json"
ENV_STEPS, FRAGMENT_STEPS, ACTORS, ACTORS_MIN, ACTORS_MAX, EPISODES = 51_200, 256, 8, 4, 12, 20
OBSERVATIONS, ACTIONS = 11, 3
GAE_LAMBDA = 0.95


class ActorNet(PPOPolicy.PPOActorNet):
    """MSRL's, for any number of actions. Departure: the mean is not squashed, as actors' policies cannot do that."""

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.linear_miu_actor(
            self.tanh_actor(self.linear2_actor(self.tanh_actor(self.linear1_actor(x))))
        )
        return mean, ops.zeros_like(mean) + ops.softplus(self.bias_sigma_actor)


def arrays_of(net: ActorNet) -> list[tuple[Array, Array]]:
    return [
        (layer.weight.asnumpy().copy(), layer.bias.asnumpy().copy())
        for layer in (net.linear1_actor, net.linear2_actor, net.linear_miu_actor)
    ]


def message_of(net: ActorNet, log_std: Array | None = None) -> bytes:
    sigma = np.log1p(np.exp(net.bias_sigma_actor.asnumpy()))
    return numpy_policy(arrays_of(net), log_std=np.log(sigma) if log_std is None else log_std)


def estimates_of(one: Trajectory, critic: Any) -> tuple[Array, Array]:
    """Advantages and returns. Departure: MSRL's know no ends of episodes, and its returns start from 0."""
    gamma = learner_params["gamma"]
    values, after = (
        critic(Tensor(observed.astype(np.float32))).asnumpy()[:, 0]
        for observed in (one.observations, one.next_observations)
    )
    deltas = one.rewards + gamma * after * ~one.terminated - values
    goes_on = ~(one.terminated | one.truncated)
    advantages, last = np.zeros(len(one)), 0.0
    for step in reversed(range(len(one))):
        advantages[step] = last = deltas[step] + gamma * GAE_LAMBDA * goes_on[step] * last
    return advantages, advantages + values


class TorchPolicy(torch.nn.Module):
    """The actor's network for the detector, which differentiates in torch."""

    def __init__(self, net: ActorNet) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for weight, bias in arrays_of(net):
            layers += [torch.nn.Linear(*weight.shape[::-1]), torch.nn.Tanh()]
            layers[-2].load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
        self.net = torch.nn.Sequential(*layers[:-1])
        self.raw_sigma = torch.nn.Parameter(torch.tensor(net.bias_sigma_actor.asnumpy().copy()))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        mean = self.net(observations)
        return torch.cat(
            [mean, torch.nn.functional.softplus(self.raw_sigma).expand_as(mean)], dim=-1
        )


def ratio_of(
    detector: ConvexityDetector,
    net: ActorNet,
    observations: Array,
    actions: Array,
    advantages: Array,
    seed: int,
) -> float | None:
    chosen = np.sort(np.random.default_rng(seed).choice(len(actions), 1024, replace=False))
    taken = torch.tensor(actions[chosen])

    def log_prob(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mean, sigma = outputs.chunk(2, dim=-1)
        return (torch.distributions.Normal(mean, sigma).log_prob(taken).sum(-1) * targets).mean()

    problem = CurvatureProblem(
        TorchPolicy(net),
        log_prob,
        torch.tensor(observations[chosen]),
        torch.tensor(advantages[chosen]),
    )
    return detector.measure(problem).convexity_ratio


def run(kind: str, seed: int, python: str, out: Path) -> dict[str, Any]:
    mindspore.set_seed(seed)
    sizes = {**policy_params, "state_space_dim": OBSERVATIONS, "action_space_dim": ACTIONS}
    hidden = (sizes["hidden_size1"], sizes["hidden_size2"])
    actor = ActorNet(OBSERVATIONS, *hidden, ACTIONS, sizes["sigma_init_std"])
    critic = PPOPolicy.PPOCriticNet(OBSERVATIONS, *hidden, 1)
    learner = PPOLearner({**learner_params, "actor_net": actor, "critic_net": critic})
    detector = ConvexityDetector("log_prob", 1024, 30, seed=seed)
    scaler = NitroSettings(actors_min=ACTORS_MIN, actors_max=ACTORS_MAX).make()
    experiment = {
        "environment": {"id": "Hopper-v5"},
        "actor": {"fragment_steps": FRAGMENT_STEPS},
        "seed": seed,
        "scaler": {"kind": "fixed", "actors_fixed": ACTORS_MAX},
        "fleet": {"processes": 2},
    }
    pool = RemotePool(python=python, experiment=experiment, budget_usd=1.0, out=out)
    curve: list[dict[str, Any]] = []
    ratio, env_steps = None, 0
    try:
        while env_steps < ENV_STEPS:
            actors = (
                ACTORS
                if kind == "pool"
                else scaler.decide(
                    RoundView(len(curve) + 1, signals={"convexity_ratio": ratio})
                ).actor_count
            )
            trajectories = pool.sample(message_of(actor), actors=actors, steps=FRAGMENT_STEPS)
            observations, actions, log_probs, returns = (
                np.concatenate(arrays)
                for arrays in zip(
                    *(
                        (one.observations, one.actions, one.log_probs, one.episode_returns)
                        for one in trajectories
                    ),
                    strict=True,
                )
            )
            advantages, targets = (
                np.concatenate(arrays).astype(np.float32)
                for arrays in zip(*(estimates_of(one, critic) for one in trajectories), strict=True)
            )
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            batch = [
                Tensor(array) for array in (actions, observations, advantages, log_probs, targets)
            ]
            for _ in range(learner_params["iter_times"]):
                learner._ppo_net_train(*batch)
            if kind == "nitro":
                ratio = ratio_of(detector, actor, observations, actions, advantages, seed)
            env_steps += len(actions)
            curve.append(
                {
                    "env_steps": env_steps,
                    "actors": actors,
                    "convexity_ratio": ratio,
                    "return_mean": float(returns.mean()),
                    "spent_usd": pool.spent_usd,
                }
            )
            print(kind, seed, curve[-1], flush=True)
    finally:
        pool.close()
    played = {
        **experiment,
        "environment": {"id": "Hopper-v5", "truncate_at_fragment": True},
        "seed": 1_000 + seed,
        "actor": {"fragment_steps": 1_000},
        "scaler": {"kind": "fixed", "actors_fixed": EPISODES},
    }
    pool = RemotePool(
        python=python,
        experiment=played,
        budget_usd=1.0,
        out=out.with_name(f"{out.name}-evaluation"),
    )
    try:
        fragments = pool.sample(
            message_of(actor, np.full(ACTIONS, -20.0)), actors=EPISODES, steps=1_000
        )
    finally:
        pool.close()
    return {
        "kind": kind,
        "seed": seed,
        "curve": curve,
        "evaluation_return_mean": float(np.mean([one.episode_returns[0] for one in fragments])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    options.work.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in range(options.seeds):
        for kind in ("pool", "nitro"):
            path = options.work / f"{kind}-{seed}.json"
            if not path.exists():
                path.write_text(
                    json.dumps(run(kind, seed, options.python, options.work / f"{kind}-{seed}"))
                )
            runs.append(json.loads(path.read_text()))
    RESULT.write_text(
        json.dumps(
            origin("python papers/nitro/msrl.py")
            | {
                "versions": {
                    "mindspore": mindspore.__version__,
                    "mindspore-rl": "0.7.0",
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                }
            }
            | {
                kind: [
                    {
                        "seed": one["seed"],
                        "evaluation_return_mean": round(one["evaluation_return_mean"], 1),
                        "env_steps": one["curve"][-1]["env_steps"],
                        "spent_usd": round(one["curve"][-1]["spent_usd"], 6),
                        "training_returns": [round(row["return_mean"], 1) for row in one["curve"]],
                        "actors": [row["actors"] for row in one["curve"]],
                    }
                    for one in runs
                    if one["kind"] == kind
                ]
                for kind in ("pool", "nitro")
            },
            indent=2,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
