"""Nitro Fig. 3: rewards around the policy of the boostable round, after an update on 256, 2,048 and 4,096 samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import nitro_7, replays, surfaces
from benchmarks.figures.replays import OURS, STEPS

PAPER = (
    "§2.2: the surface around the policy of the boostable round gains regions of high reward as the round is "
    "boosted with 256, 2,048 and 4,096 samples. One run; no values.")
METHOD = (
    "the settings of `experiments/hopper.yaml`, as Table 1's hardly move a policy in a round; five seeds. Of "
    "ten rounds the one with the lowest R, which Nitro would boost; after an update on so many samples, a grid "
    "along the two eigenvectors of the Hessian of Theorem 1's objective on them (PyHessian's power iteration, "
    "norm 1, from −1 to 1). Compared on 10 × 10 points of four episodes, drawn on 30 × 30 of two. With "
    "`benchmarks/figures/requirements.txt`, `python -m benchmarks.figures nitro_3 --page` makes a page of it "
    "that can be turned.")
ACTORS = (1, 8, 16)
NAMES = tuple(f"{actors * STEPS}" for actors in ACTORS)


def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_3.jsonl", f"{OURS} {surfaces.COARSE} {surfaces.FINE}")
    for setting, file in OURS.items():
        for seed in replays.SEEDS:
            kept.once({"setting": setting, "seed": seed}, lambda file=file, seed=seed: _surfaces(file, seed))
    kept.close()
    return {setting: {"lines": rows, "compared": surfaces.compared(rows, NAMES, NAMES[0]),
                      "last_less_middle": surfaces.compared(rows, NAMES, NAMES[1])[NAMES[2]]["share_less_base"]}
            for setting in OURS if (rows := [line for line in kept.lines if line["setting"] == setting])}


def _surfaces(file: str, seed: int) -> dict[str, Any]:
    training = replays.trainer(file, seed)
    chosen = nitro_7.chosen_rounds(training)["lowest"]
    found: dict[str, Any] = {"round_index": chosen["round_index"], "ratio": chosen["ratio"]}
    for name, actors in zip(NAMES, ACTORS, strict=True):
        training.restore(chosen["snapshot"])
        samples = training.update(training.roll_out(chosen["round_index"], actors)).samples
        found[name] = surfaces.both(training, samples, seed)
    return found


def panels(data: dict[str, Any]) -> list[tuple[str, list[list[float]]]]:
    """Titles and surfaces of the first seed."""
    return [(f"{replays.SETTING_NAMES[setting]}: {name} samples, round {row['round_index']}",
             row[name]["drawn"]["returns"])
            for setting in data for row in data[setting]["lines"][:1] for name in NAMES]


def draw(data: dict[str, Any], path: Path) -> None:
    surfaces.draw(panels(data), path, columns=len(NAMES))


def page(data: dict[str, Any], path: Path) -> None:
    surfaces.page(panels(data), path, columns=len(NAMES))


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    ours = data["ours"]
    has_more = replays.excludes(ours["compared"][NAMES[1]]["share_less_base"]) > 0
    goes_on = replays.excludes(ours["last_less_middle"]) > 0
    shares = ", ".join(replays.text(ours["compared"][name]["share_high"], 2) for name in NAMES)
    returns = ", ".join(replays.text(ours["compared"][name]["centre"]) for name in NAMES)
    return "reproduced" if has_more and goes_on else "partly" if has_more else "not", (
        "The share of the surface that returns more than nine tenths of that after 256 samples, after 256, 2,048 and "
        f"4,096: {shares}. {'It goes on growing' if goes_on else 'No growth could be shown'} from 2,048 to 4,096: "
        f"by {replays.text(ours['last_less_middle'], 2)}, above nine tenths of that after 2,048. "
        f"Five seeds; one is drawn. The policy in the middle returns {returns}.")
