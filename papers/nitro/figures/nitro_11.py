"""Nitro Fig. 11: episodic rewards of IMPACT through fifty rounds, with Nitro and with 16 actors."""

from __future__ import annotations

from functools import partial

from papers.nitro.figures import efficiency

measure = partial(efficiency.measure, "impact")
draw, verdict = efficiency.draw, efficiency.verdict
