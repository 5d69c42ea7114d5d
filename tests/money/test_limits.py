"""Tightened limits: never longer than the experiment's and never shorter than observed. Old rounds are forgotten."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.money.limits import FACTORS, PhaseSeconds, PhaseTimes
from runtime.money.work import Limits

WHOLE = Limits(60.0, 120.0, 90.0)
SECONDS = st.floats(0.0, 300.0, allow_subnormal=False)


def seen(**seconds: float) -> PhaseTimes:
    phases = PhaseTimes(WHOLE, samples_max=100)
    phases.saw(PhaseSeconds(**seconds))
    phases.end_round()
    return phases


@given(seconds=st.builds(PhaseSeconds, *[SECONDS] * 5), growth=st.floats(1.0, 3.0))
def test_each_choice_is_tighter_and_holds_what_was_seen_and_an_episode_that_gets_longer(
    seconds: PhaseSeconds, growth: float
):
    phases = PhaseTimes(WHOLE, samples_max=100, growth=growth)
    phases.saw(replace(seconds, sample_s=seconds.sample_s / 100))
    whole, *choices = phases.choices(detects=True, evaluates=True)
    assert (whole, choices) == (WHOLE, [])
    phases.end_round()
    whole, *choices = phases.choices(detects=True, evaluates=True)
    assert (whole, [limits.factor for limits in choices]) == (WHOLE, list(FACTORS))
    needed = Limits(
        growth * seconds.actor_s,
        growth * seconds.collect_s + seconds.detect_s,
        seconds.sample_s + seconds.detect_s + seconds.evaluate_s,
    )
    for before, limits in itertools.pairwise([whole, *choices]):
        for name in ("actor_s", "collect_s", "update_s"):
            held_s, whole_s = getattr(limits, name), getattr(WHOLE, name)
            assert min(getattr(needed, name), whole_s) * 0.999999 <= held_s <= getattr(before, name)


@pytest.mark.parametrize("missing", ["actor_s", "collect_s", "sample_s", "detect_s", "evaluate_s"])
def test_what_nobody_knows_is_not_tightened(missing: str):
    known = dict.fromkeys(("actor_s", "collect_s", "sample_s", "detect_s", "evaluate_s"), 1.0)
    del known[missing]
    assert list(seen(**known).choices(detects=True, evaluates=True)) == [WHOLE]
    # Times of phases that a round does not have need not be known.
    is_needed = missing not in ("detect_s", "evaluate_s")
    assert (len(list(seen(**known).choices(detects=False, evaluates=False))) == 1) == is_needed
    expected = PhaseTimes(WHOLE, samples_max=100, expected=PhaseSeconds(**known | {missing: 2.0}))
    assert len(list(expected.choices(detects=True, evaluates=True))) == 1 + len(FACTORS)


def test_the_longest_of_the_last_rounds_counts_and_is_kept_in_a_checkpoint():
    phases = PhaseTimes(
        WHOLE, samples_max=1, expected=PhaseSeconds(actor_s=40.0, collect_s=1.0, sample_s=1.0)
    )
    found = []
    for round_index in range(10):
        phases.saw(PhaseSeconds(actor_s=5.0 if round_index == 0 else 1.0))
        phases.saw(PhaseSeconds(actor_s=0.5))
        phases.end_round()
        other = PhaseTimes(WHOLE, samples_max=1, expected=PhaseSeconds(collect_s=1.0, sample_s=1.0))
        other.set_state(json.loads(json.dumps(phases.get_state())))
        *_, tightest = other.choices(detects=False, evaluates=False)
        found.append(tightest.actor_s / FACTORS[-1])
    assert found == pytest.approx([5.0] * 4 + [1.0] * 6)
