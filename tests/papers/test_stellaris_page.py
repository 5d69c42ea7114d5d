"""What Stellaris buys: the page says what the data say, and judges nothing on fewer than five seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pages import with_part
from papers.stellaris import page
from papers.stellaris.arms import SERIES, WORKLOADS, arms_of

CLAIM, COSTS, TO_TARGET = ("returns 2.2 times as high: after 20 rounds", "costs 41 % less: 20 rounds",
                           "costs 41 % less: to the target")


def a_run(arm: str, seed: int, height: float, usd: float) -> dict[str, Any]:
    """Returns of ``height`` after 20 rounds, and twice that after 40; each round costs ``usd`` and takes a second."""
    rows = {name: [0.0] * 40 for name in SERIES} | {"round_cost_usd": [usd] * 40, "modelled_round_s": [1.0] * 40}
    rounds = [index if index % 20 == 0 else None for index in range(1, 41)]
    rows |= {"evaluation_round": rounds,
             "evaluation_return_mean": [None if one is None else height * one / 20 + seed for one in rounds]}
    return {"arm": arm, "seed": seed, "rounds": 40, "commits": ["abc"], "rows": rows}


def found(heights: dict[str, float], usd: dict[str, float], seeds: int = 5) -> dict[str, Any]:
    return {"command": "make it", "date": "today", "runs": [
        a_run(arm, seed, heights.get(arm, 300.0), usd.get(arm, 0.01)) for seed in range(seeds)
        for arm in arms_of("hopper")]}


def verdicts(*of_found: Any, **options: Any) -> dict[str, tuple[str, str]]:
    return page.claims(page.by_arm(found(*of_found, **options)), WORKLOADS["hopper"])


def test_the_pages_are_up_to_date() -> None:
    everything = {name: one for name in WORKLOADS if (one := page.read(name)) is not None}
    assert page.PAGE.read_text() == page.page(everything)
    text = page.RESULTS_PAGE.read_text()
    assert with_part(text, "combined", page.combined(everything.get("hopper"))) == text
    assert with_part(text, "combined", "") != text


def test_the_picture_has_all_arms_and_the_caption_says_which_have_nitros_scaler(tmp_path: Path) -> None:
    page.draw(page.by_arm(found({}, {})), tmp_path / "all.svg")
    drawn = (tmp_path / "all.svg").read_text()
    assert all(f"<!-- {arm} (5) -->" in drawn for arm in arms_of("hopper"))
    assert "Dashed: with Nitro's scaler" in page.page({"hopper": found({}, {})})
    assert "run on Hopper alone" in page.page({"humanoid": found({}, {})})


def test_a_claim_is_judged_by_its_interval_and_on_five_seeds() -> None:
    assert verdicts({page.FULL: 660.0}, {})[CLAIM][0] == "partly"
    assert verdicts({page.FULL: 700.0}, {})[CLAIM] == ("reproduced", "2.32 times [2.32, 2.33]")
    assert verdicts({page.FULL: 290.0}, {})[CLAIM][0] == "not"
    assert verdicts({page.FULL: 700.0}, {}, seeds=4)[CLAIM][0] == "too few seeds"


def test_a_saving_is_in_percent_of_the_baselines_bill_and_whoever_misses_the_target_saves_nothing() -> None:
    cheap = verdicts({page.FULL: 600.0}, {page.FULL: 0.007})
    assert cheap[COSTS] == ("partly", "30 % [30, 30]")
    # It gets there after 20 rounds, the baseline after 40.
    assert cheap[TO_TARGET] == ("reproduced", "65 % [65, 65]")
    assert verdicts({page.FULL: 250.0}, {page.FULL: 0.001})[TO_TARGET] == ("not", "5 of 5 did not get there")
    assert cheap[f"{COSTS}, always-on GPU nodes"][0] == "not"


def test_arms_are_compared_with_the_one_before_and_the_combination_at_equal_dollars() -> None:
    one = found({"+bound": 350.0, page.BOTH: 400.0}, {page.NITRO: 0.005})
    lines = page.steps_table(page.by_arm(one)).splitlines()
    assert lines[4].startswith("| `async` to `+bound` | 5 | +50 [+50, +50] | 1.00 times [1.00, 1.00] | returns more |")
    assert lines[5].endswith("| returns less |")
    # The cheapest has spent 20 cents at its end; the others have then made half of their rounds.
    text = page.combined(one)
    assert "Hopper, after 20.00 cents each" in text
    assert ("**The combination returns more than without either and with Stellaris' learners alone but less than with "
            "Nitro's scaler alone**") in text
    whole = page.page({"hopper": one})
    assert "commit abc, today; [data]" in whole and "Hopper: 5 of 5 seeds of every arm; Walker2d: not run yet" in whole
    assert "not run yet" in page.page({}) and "Not known yet" in page.combined(None)
