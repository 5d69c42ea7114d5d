"""One run of RLlib's APPO, for benchmarks/parity_impact.py; in an environment with requirements-impact.txt.

    python benchmarks/parity/rllib_appo.py ENVIRONMENT_ID --seed S --steps N --out DIRECTORY [--mended]

Writes ``policy.npz``, its policy in the format of `benchmarks.parity.evaluation`, and ``run.json``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from peer import peer_arguments, write_run
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

ENVIRONMENTS, FRAGMENT_STEPS = 8, 64
"""As actors and fragments in impact.yaml."""
ITERATION_STEPS = 2048
OBJECT_STORE_BYTES = 200 * 2**20
SETTINGS = {
    "lr": 5e-4,
    "gamma": 0.99,
    "train_batch_size_per_learner": ENVIRONMENTS * FRAGMENT_STEPS,
    "vtrace": True,
    "clip_param": 0.4,
    "use_kl_loss": True,
    "kl_coeff": 1.0,
    "kl_target": 0.01,
    "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5,
    "grad_clip": 40.0,
    "grad_clip_by": "global_norm",
    "target_network_update_freq": 0.5,
    "tau": 1.0,
    "use_circular_buffer": True,
    "circular_buffer_num_batches": 4,
    "circular_buffer_iterations_per_batch": 2,
    "num_epochs": 1,
}
MODEL = DefaultModelConfig(
    fcnet_hiddens=[256, 256],
    fcnet_activation="tanh",
    vf_share_layers=False,
    fcnet_kernel_initializer="orthogonal_",
    fcnet_kernel_initializer_kwargs={"gain": 2**0.5},
    fcnet_bias_initializer="zeros_",
    head_fcnet_kernel_initializer="orthogonal_",
    head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
    head_fcnet_bias_initializer="zeros_",
)


class MendedLearner(APPOTorchLearner):
    """Bootstraps with V where a fragment is cut.

    The library appends a step to each piece of an episode, for its value. With reward and discount 0, V-trace's target
    for that step is 0 instead of its value, so the target of the previous step, r + γ·V, loses its second part. With
    the value as the reward of the appended step, which no loss uses, the target is the value.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: Any, fwd_out: Any
    ) -> Any:
        with torch.no_grad():
            values = self.module[module_id].unwrapped().compute_values(batch)
        rewards = torch.where(batch["loss_mask"].bool(), batch["rewards"], values)
        return super().compute_loss_for_module(
            module_id=module_id, config=config, batch={**batch, "rewards": rewards}, fwd_out=fwd_out
        )


class Told(gymnasium.Wrapper):
    """Appends the return of each finished episode to a file."""

    def __init__(self, environment: gymnasium.Env, path: str) -> None:
        super().__init__(environment)
        self._path, self._total = path, 0.0

    def reset(self, **arguments: Any) -> tuple[Any, dict]:
        self._total = 0.0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        if terminated or truncated:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(f"{self._total!r}\n")
        return observation, reward, terminated, truncated, info


def exported(module: Any) -> dict[str, np.ndarray]:
    """Returns the policy as plain arrays."""
    layers = [
        layer
        for part in (module.encoder.actor_encoder, module.pi)
        for layer in part.modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    arrays = {}
    for index, layer in enumerate(layers):
        arrays[f"layer.{index}.weight"] = layer.weight.detach().numpy()
        arrays[f"layer.{index}.bias"] = layer.bias.detach().numpy()
    return arrays | {
        "observation_mean": np.empty(0, np.float32),
        "observation_std": np.empty(0, np.float32),
        "observation_clip": np.float32(3e38),
    }


def probes(module: Any, environment_id: str) -> dict[str, np.ndarray]:
    """Returns observations and the library's own outputs for them, logits or means, to check the export."""
    environment = gymnasium.make(environment_id)
    is_discrete = isinstance(environment.action_space, gymnasium.spaces.Discrete)
    observations = np.array([environment.reset(seed=seed)[0] for seed in range(16)], np.float32)
    with torch.no_grad():
        outputs = module.forward_inference({"obs": torch.from_numpy(observations)})[
            "action_dist_inputs"
        ].numpy()
    return {
        "probe_observations": observations,
        "is_discrete": np.bool_(is_discrete),
        "probe_actions": outputs if is_discrete else np.split(outputs, 2, axis=-1)[0],
    }


def configured(seed: int, *, is_mended: bool) -> APPOConfig:
    return (
        APPOConfig()
        .environment("told")
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=ENVIRONMENTS,
            rollout_fragment_length=FRAGMENT_STEPS,
        )
        .learners(num_learners=0)
        .training(learner_class=MendedLearner if is_mended else APPOTorchLearner, **SETTINGS)
        .rl_module(model_config=MODEL)
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=ITERATION_STEPS)
        .debugging(seed=seed, log_level="ERROR")
    )


def train(algorithm: Any, steps: int, episodes: Path) -> list[dict[str, Any]]:
    """The learning curve."""
    rows, told, env_steps = [], 0, 0
    while env_steps < steps:
        result = algorithm.train()
        env_steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        returns = [float(line) for line in episodes.read_text(encoding="ascii").split()]
        new, told = returns[told:], len(returns)
        rows.append(
            {
                "env_steps": env_steps,
                "episodes": len(new),
                "return_mean": float(np.mean(new)) if new else None,
            }
        )
    return rows


def gradient_steps(learner: Any) -> int:
    """Returns the optimizer's own count, because the library's metrics omit most replays."""
    return int(next(iter(learner.get_optimizer("default_policy").state.values()))["step"])


def main() -> None:
    parser = peer_arguments(__doc__)
    parser.add_argument("--mended", action="store_true", help="see MendedLearner")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    episodes = options.out.absolute() / "episodes.txt"
    episodes.touch()
    register_env("told", lambda _: Told(gymnasium.make(options.environment_id), str(episodes)))
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
    )
    try:
        algorithm = configured(options.seed, is_mended=options.mended).build_algo()
        started_s = time.monotonic()
        curve = train(algorithm, options.steps, episodes)
        training_s = time.monotonic() - started_s
        # Its thread would continue to replay while the policy is written.
        learner = algorithm.learner_group._learner
        learner.shutdown()
        module = learner.module["default_policy"].unwrapped()
        np.savez(
            options.out / "policy.npz", **exported(module), **probes(module, options.environment_id)
        )
        steps_of_gradient = gradient_steps(learner)
        algorithm.stop()
    finally:
        ray.shutdown()
    write_run(
        options.out,
        ("ray", "torch", "numpy", "gymnasium"),
        env_steps=curve[-1]["env_steps"],
        training_s=training_s,
        curve=curve,
        gradient_steps=steps_of_gradient,
    )


if __name__ == "__main__":
    main()
