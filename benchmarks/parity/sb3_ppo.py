"""One run of stable-baselines3's PPO, for benchmarks/parity_ppo.py; in an environment with requirements-ppo.txt.

    python benchmarks/parity/sb3_ppo.py ENVIRONMENT_ID --seed S --steps N --out DIRECTORY

Writes ``policy.npz``, its policy in the format of `benchmarks.parity.evaluation`, and ``run.json``.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from peer import peer_arguments, write_run
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ENVIRONMENTS, STEPS_OF_EACH = 8, 256
"""As actors and fragments in ppo.yaml."""
OBSERVATION_CLIP, EPSILON = 10.0, 1e-8
SETTINGS = {
    "n_steps": STEPS_OF_EACH,
    "batch_size": 64,
    "n_epochs": 10,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "clip_range_vf": None,
    "normalize_advantage": True,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "target_kl": None,
}
POLICY_SETTINGS = {
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
    "activation_fn": torch.nn.Tanh,
    "ortho_init": True,
    "log_std_init": 0.0,
    "optimizer_kwargs": {"eps": 1e-5},
}


class Curve(BaseCallback):
    """Records each batch's mean return of the training episodes that ended in it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float | int | None]] = []
        self._returns: list[float] = []

    def _on_step(self) -> bool:
        self._returns += [
            float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info
        ]
        return True

    def _on_rollout_end(self) -> None:
        mean = float(np.mean(self._returns)) if self._returns else None
        self.rows.append(
            {"env_steps": self.num_timesteps, "episodes": len(self._returns), "return_mean": mean}
        )
        self._returns = []


def exported(model: PPO, environments: VecNormalize) -> dict[str, np.ndarray]:
    """Returns the policy as plain arrays."""
    network = model.policy
    layers = [
        layer for layer in network.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear)
    ]
    arrays = {}
    for index, layer in enumerate([*layers, network.action_net]):
        arrays[f"layer.{index}.weight"] = layer.weight.detach().numpy()
        arrays[f"layer.{index}.bias"] = layer.bias.detach().numpy()
    return arrays | {
        "observation_mean": environments.obs_rms.mean.astype(np.float32),
        "observation_std": np.sqrt(environments.obs_rms.var + EPSILON).astype(np.float32),
        "observation_clip": np.float32(OBSERVATION_CLIP),
    }


def probes(model: PPO, environments: VecNormalize) -> dict[str, np.ndarray]:
    """Returns raw observations and the library's own unclipped deterministic actions, to check the export."""
    observations = environments.get_original_obs()
    inputs = torch.from_numpy(environments.normalize_obs(observations)).float()
    with torch.no_grad():
        actions = model.policy.get_distribution(inputs).mode().numpy()
    return {"probe_observations": observations.astype(np.float32), "probe_actions": actions}


def main() -> None:
    options = peer_arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    environments = VecNormalize(
        make_vec_env(options.environment_id, n_envs=ENVIRONMENTS, seed=options.seed),
        norm_obs=True,
        norm_reward=False,
        clip_obs=OBSERVATION_CLIP,
        epsilon=EPSILON,
    )
    model = PPO(
        "MlpPolicy",
        environments,
        policy_kwargs=POLICY_SETTINGS,
        seed=options.seed,
        device="cpu",
        **SETTINGS,
    )
    curve = Curve()
    started_s = time.monotonic()
    model.learn(options.steps, callback=curve)
    training_s = time.monotonic() - started_s
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.out / "policy.npz", **exported(model, environments), **probes(model, environments)
    )
    write_run(
        options.out,
        ("stable-baselines3", "torch", "numpy", "gymnasium", "mujoco"),
        env_steps=model.num_timesteps,
        training_s=training_s,
        curve=curve.rows,
    )


if __name__ == "__main__":
    main()
