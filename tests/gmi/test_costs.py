"""Algorithm 1 and Table 2 of the paper."""

from __future__ import annotations

import pytest

from runtime.gmi.costs import applicable, choice_of_paper, cost_s


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ([0], "mpr"),
        ([3, 3, 3, 3], "mpr"),
        ([0, 0, 1, 1], "mrr"),
        ([0, 1, 2, 0, 1, 2, 0, 1, 2], "mrr"),
        ([0, 0, 0, 1, 1, 1], "har"),
        ([0, 0, 0, 1], "har"),
        ([0, 1, 2, 3, 3], "har"),
    ],
)
def test_the_paper_chooses_by_layout(devices: list[int], chosen: str) -> None:
    assert choice_of_paper(devices) == chosen
    assert chosen in applicable(devices)


def test_what_a_layout_allows() -> None:
    assert applicable([0, 0, 1, 1]) == ("mpr", "mrr", "har", "flat")
    assert applicable([0, 0, 0, 1, 1, 1]) == applicable([0, 1, 1]) == ("mpr", "har", "flat")
    assert applicable([0, 0, 1, 1], is_cuda=True) == ("mpr", "mrr", "har")
    assert applicable([0, 1], is_cuda=True) == ("mpr", "mrr", "har", "flat")


def costs(devices: int, instances: int, *, link_bandwidth: float) -> dict[str, float]:
    """Seconds of each reduction, in units of M / B₁."""
    return {
        reduction: cost_s(
            reduction,
            devices=devices,
            instances=instances,
            model_bytes=1.0,
            host_bandwidth=1.0,
            link_bandwidth=link_bandwidth,
        )
        for reduction in ("mpr", "mrr", "har")
    }


def test_table_2() -> None:
    assert costs(2, 3, link_bandwidth=4.0) == pytest.approx(
        {"mpr": 2 * 5 / 6, "mrr": 2 * 1 * 4 / (2 * 4), "har": 2 * 1 / (2 * 4) + 2 * 2 / 3}
    )


def test_algorithm_1_contradicts_table_2_where_links_are_less_than_four_times_as_fast_as_the_host() -> (
    None
):
    four_by_four = [device for device in range(4) for _ in range(4)]
    assert choice_of_paper(four_by_four) == "mrr", "whatever the bandwidths"
    slow, equal, fast = (costs(4, 4, link_bandwidth=bandwidth) for bandwidth in (3.9, 4.0, 4.1))
    assert slow["mpr"] < slow["har"] < slow["mrr"]
    assert equal["mpr"] == pytest.approx(equal["har"]) == pytest.approx(equal["mrr"])
    assert fast["mrr"] < fast["har"] < fast["mpr"]
