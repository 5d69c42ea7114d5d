"""Nitro Fig. 10: episodic rewards of PPO through fifty rounds, with Nitro and with 16 actors."""

from __future__ import annotations

from functools import partial

from papers.nitro.figures import efficiency

measure = partial(efficiency.measure, "ppo")
draw, verdict = efficiency.draw, efficiency.verdict
