"""Compares our PPO's returns with stable-baselines3's, with the same hyperparameters.

    python3 -m venv peer && peer/bin/pip install -r benchmarks/parity/requirements-ppo.txt
    python benchmarks/parity_ppo.py --work runs/parity_ppo --peer-python peer/bin/python --jobs 2
    python benchmarks/parity_ppo.py --work runs/parity_ppo --summarise

The first two commands take hours and may be interrupted and repeated: they keep finished runs. The last writes
benchmarks/results/parity_ppo.json and .png.

The settings are the defaults of stable-baselines3 (batches of 2048, minibatches of 64, ten epochs, 3e-4, clip 0.2, no
entropy bonus), as used by Schulman et al. 2017 for MuJoCo and by CleanRL: 49 updates in 100,000 steps. A batch is 8
environments by 256 steps. Observations are normalized. Policy and critic are separate, with two layers of 256 tanh
units each. Our side is ``python -m runtime train benchmarks/parity/ppo.yaml`` with eight actors in every round.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.parity.bench import DIFFERENCES, Benchmark, main  # noqa: E402

BENCHMARK = Benchmark(
    name="parity_ppo",
    experiment="benchmarks/parity/ppo.yaml",
    peer_script="benchmarks/parity/sb3_ppo.py",
    titles=("PPO here", "stable-baselines3"),
    environments=("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"),
    steps=100_000,
    seeds=5,
    differences=DIFFERENCES["parity_ppo"],
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
