"""Nitro Fig. 10: episodic rewards of PPO through fifty rounds, with Nitro and with 16 actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import efficiency

PAPER = (
    "§8.2: in all of three MuJoCo and three Atari environments PPO's returns grow faster with Nitro, by rounds and by "
    "time; the final reward is up to 5 times that of the serverful PPO. Ten seeds.")
METHOD = (
    "experiments/paper/{hopper,walker2d}-ppo.yaml, which are Table 1 and §8.1; against 16 actors of 256 steps "
    "in each round, for which the paper's cluster has cores and which are its variant without boosting. Real "
    "trainings, modelled seconds, a p3.2xlarge as learner. Both arms make as many rounds, so Nitro gets more steps "
    "and, as a minibatch is 4,096 samples, more updates. Final return: the episodes of the last five rounds. Humanoid "
    "and the Atari games are left out: ten trainings of four minutes, and thirty of some ten.")
draw, verdict = efficiency.draw, efficiency.verdict


def measure(work: Path) -> dict[str, Any]:
    return efficiency.measure("ppo", work)
