"""Tightened limits: never longer than the experiment's and never shorter than observed. Old rounds are forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.money.limits import PhaseSeconds, PhaseTimes
from runtime.money.work import Limits

WHOLE = Limits(60.0, 120.0, 90.0)
SECONDS = st.floats(0.0, 300.0, allow_subnormal=False)


def seen(**seconds: float) -> PhaseTimes:
    phases = PhaseTimes(WHOLE, samples_max=100)
    phases.saw(PhaseSeconds(**seconds))
    phases.end_round()
    return phases


@given(seconds=st.builds(PhaseSeconds, *[SECONDS] * 5), growth=st.floats(1.0, 3.0))
def test_tightened_limits_hold_a_quarter_more_than_was_seen_and_an_episode_that_gets_longer(
    seconds: PhaseSeconds, growth: float
):
    phases = PhaseTimes(WHOLE, samples_max=100, growth=growth)
    phases.saw(replace(seconds, sample_s=seconds.sample_s / 100))
    assert phases.choices(detects=True, evaluates=True) == [WHOLE]
    phases.end_round()
    whole, tightened = phases.choices(detects=True, evaluates=True)
    assert (whole, tightened.is_tightened) == (WHOLE, True)
    collect_s = growth * seconds.collect_s + seconds.detect_s
    update_s = seconds.sample_s + seconds.detect_s + seconds.evaluate_s
    assert (tightened.actor_s, tightened.collect_s, tightened.update_s) == (
        pytest.approx(min(1.25 * growth * seconds.actor_s, WHOLE.actor_s)),
        pytest.approx(min(1.25 * collect_s, WHOLE.collect_s)),
        pytest.approx(min(1.25 * update_s, WHOLE.update_s)),
    )


@pytest.mark.parametrize("missing", ["actor_s", "collect_s", "sample_s", "detect_s", "evaluate_s"])
def test_what_nobody_knows_is_not_tightened(missing: str):
    known = dict.fromkeys(("actor_s", "collect_s", "sample_s", "detect_s", "evaluate_s"), 1.0)
    del known[missing]
    assert seen(**known).choices(detects=True, evaluates=True) == [WHOLE]
    # Times of phases that a round does not have need not be known.
    is_needed = missing not in ("detect_s", "evaluate_s")
    assert (len(seen(**known).choices(detects=False, evaluates=False)) == 1) == is_needed
    expected = PhaseTimes(WHOLE, samples_max=100, expected=PhaseSeconds(**known | {missing: 2.0}))
    assert len(expected.choices(detects=True, evaluates=True)) == 2


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
        _, tightened = other.choices(detects=False, evaluates=False)
        found.append(tightened.actor_s)
    assert found == pytest.approx([6.25] * 4 + [1.25] * 6)
