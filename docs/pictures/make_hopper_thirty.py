"""Draws when and how well Hopper's runs stop: python docs/pictures/make_hopper_thirty.py."""

import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
COLOURS = {"native": "#2f6fb0", "avx2": "#d9822b", "default": "#3a8f4d"}
LABELS = {"native": "AVX-512", "avx2": "AVX2", "default": "neither"}


def is_hit(run: dict) -> bool:
    return run["stop_reason"] == "target_return"


def marker(run: dict) -> str:
    return "o" if is_hit(run) else "x"


def returns(run: dict) -> tuple[float, float]:
    return run["evaluation_return_mean_of_100_others"], run["sampled_return_mean_of_100_others"]


def main() -> None:
    arms = json.loads((RESULTS / "hopper_selection.json").read_text())["arms"]
    confirmed = json.loads((RESULTS / "hopper_thirty.json").read_text())["seeds"]
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    chosen, checked = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.2, 1.0]})
    for row, arm in enumerate(reversed(arms.values())):
        for run in arm["runs"]:
            chosen.plot(
                run["env_steps_total"] / 1000.0, row, marker(run), color="#2f6fb0", alpha=0.75
            )
        hits = sum(map(is_hit, arm["runs"]))
        chosen.text(625, row, f"{hits} of {len(arm['runs'])}", va="center")
    chosen.set_yticks(range(len(arms)), list(reversed(arms)))
    chosen.set(
        xlim=(100, 700),
        ylim=(-0.6, len(arms) - 0.4),
        xlabel="thousand steps until 3,000; × = not within 600,000",
        title="Choosing: seeds from 100",
    )
    for run in confirmed:
        best, sampled = returns(run)
        checked.plot(best, sampled, marker(run), color=COLOURS[run["arithmetic"]], alpha=0.8)
    for name, colour in COLOURS.items():
        checked.plot([], [], "o", color=colour, label=LABELS[name])
    checked.axvline(3000, color="#999999", lw=0.8, ls="--")
    checked.axhline(2000, color="#999999", lw=0.8, ls="--")
    checked.set(
        xlabel="return with best actions",
        ylabel="return with sampled actions",
        title=f"Confirming: {sum(map(is_hit, confirmed))} of {len(confirmed)} runs stop at the target",
    )
    checked.legend(title="arithmetic", frameon=False)
    for axes in (chosen, checked):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "hopper_thirty.png", dpi=110)


if __name__ == "__main__":
    main()
