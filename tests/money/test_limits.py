"""Tightened limits: never longer than the experiment's and never shorter than observed. Old rounds are forgotten."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.money.limits import FACTORS, PhaseSeconds, PhaseTimes
from runtime.money.work import Limits

WHOLE = Limits(60.0, 120.0, 90.0)
SECONDS = st.floats(0.0, 300.0)


def seen(**seconds: float) -> PhaseTimes:
    phases = PhaseTimes(WHOLE, samples_max=100)
    phases.saw(PhaseSeconds(**seconds))
    phases.end_round()
    return phases


@given(
    actor_s=SECONDS,
    collect_s=SECONDS,
    sample_s=st.floats(0.0, 3.0),
    detect_s=SECONDS,
    evaluate_s=SECONDS,
)
def test_each_choice_is_tighter_and_holds_what_was_seen(
    actor_s: float, collect_s: float, sample_s: float, detect_s: float, evaluate_s: float
):
    phases = seen(
        actor_s=actor_s,
        collect_s=collect_s,
        sample_s=sample_s,
        detect_s=detect_s,
        evaluate_s=evaluate_s,
    )
    whole, *choices = phases.choices(detects=True, evaluates=True)
    assert (whole, [limits.factor for limits in choices]) == (WHOLE, list(FACTORS))
    update_s = 100 * sample_s + detect_s + evaluate_s
    for before, limits in zip([whole, *choices], choices, strict=False):
        for name, taken_s in (
            ("actor_s", actor_s),
            ("collect_s", collect_s),
            ("update_s", update_s),
        ):
            assert (
                min(taken_s, getattr(WHOLE, name)) <= getattr(limits, name) <= getattr(before, name)
            )


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


def test_limits_leave_room_for_an_episode_that_gets_longer():
    once, thrice = (
        PhaseTimes(
            WHOLE,
            samples_max=1,
            expected=PhaseSeconds(actor_s=0.5, collect_s=0.75, sample_s=0.25),
            growth=growth,
        )
        for growth in (1.0, 3.0)
    )
    tight, loose = (list(one.choices(detects=False, evaluates=False))[-1] for one in (once, thrice))
    assert (loose.actor_s, loose.collect_s) == pytest.approx(
        (3 * tight.actor_s, 3 * tight.collect_s)
    )
    assert loose.update_s == tight.update_s


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
