"""Nitro Fig. 20: the parts of a round's time, and the detector's savings from approximating the Hessian on a subset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.drawing import BLUE, GREEN, ORANGE, PURPLE, dots, panels
from papers.estimates import excludes, over_seeds, status
from papers.nitro.figures import modelled
from papers.nitro.figures.replays import SETTINGS, measured, trainer
from runtime.detector.convexity import ConvexityDetector
from runtime.ports.learning import CurvatureProblem

ACTORS = 64
"""The most actors that Nitro starts in §8. Paper: Nitro §8.1."""
SUBSET_SIZE, STEPS = 1024, 20
COLUMNS, EIGEN_SIZES = 8, (512, 1024)
"""Columns of the Hessian whose cost is measured, and rows of the matrices whose eigenvalues are computed."""
PARTS = ("detector, and first actors", "boosted actors", "invocations and trajectories", "update")


def measure(work: Path) -> dict[str, Any]:
    cases = {"paper": SETTINGS["paper"]}
    lines = measured(
        work / "nitro_20.jsonl", f"{cases} {SUBSET_SIZE} {STEPS} {COLUMNS}", cases, _costs
    )["paper"]
    return {
        "breakdown": {name: breakdown(one) for name, one in modelled.EXPERIMENTS.items()},
        "lines": lines,
        **summary(lines),
    }


def _costs(file: str, seed: int) -> dict[str, Any]:
    """Returns CPU seconds of the detector with both, on all samples of a round, and of columns of the Hessian."""
    training = trainer(file, seed)
    fragments = training.roll_out(1, ACTORS)
    samples = training.learner.samples(training.batch(fragments)).arrays
    total = len(samples.advantages)
    found: dict[str, Any] = {"samples": total}
    for name, size in (("both", SUBSET_SIZE), ("without_subset", total)):
        detector = ConvexityDetector("log_prob", size, STEPS, seed=0)
        problem = training.learner.curvature_problem("log_prob", detector.select(samples))
        started_s = time.process_time()
        if name == "both":
            detector.measure(problem)  # Warms up.
            started_s = time.process_time()
        curvature = detector.measure(problem)
        found[name] = {
            "cpu_s": time.process_time() - started_s,
            "products": curvature.products,
            "ratio": curvature.convexity_ratio,
        }
    subset = ConvexityDetector("log_prob", SUBSET_SIZE, STEPS, seed=0).select(samples)
    return {**found, **_columns(training.learner.curvature_problem("log_prob", subset))}


def _columns(problem: CurvatureProblem) -> dict[str, Any]:
    """Returns CPU seconds of one column of the Hessian, and of all eigenvalues of small symmetric matrices."""
    parameters = list(problem.module.parameters())
    gradients = torch.autograd.grad(
        problem.criterion(problem.module(problem.inputs), problem.targets),
        parameters,
        create_graph=True,
    )
    flat = torch.cat([one.reshape(-1) for one in gradients])
    seconds = []
    for index in np.linspace(0, len(flat) - 1, COLUMNS).astype(int):
        started_s = time.process_time()
        torch.autograd.grad(flat[index], parameters, retain_graph=True, materialize_grads=True)
        seconds.append(time.process_time() - started_s)
    eigen = {}
    for size in EIGEN_SIZES:
        matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
        started_s = time.process_time()
        torch.linalg.eigvalsh(matrix + matrix.T)
        eigen[str(size)] = time.process_time() - started_s
    return {
        "parameters": len(flat),
        "column_cpu_s": float(np.median(seconds)),
        "eigenvalues_cpu_s": eigen,
    }


def breakdown(file: str) -> dict[str, Any]:
    """Returns modelled seconds of a round with 64 warm actors, on the paper's learner and a small one without a GPU.

    The detector runs in parallel with the first eight actors. The boosted ones start when it has ended.
    """
    fitted = modelled.fitted(file)
    found = {}
    for learner in ("p3.2xlarge", "c7i.large"):
        times = modelled.times(fitted, learner)
        expected = times.expected_s()
        parts = dict(
            zip(
                PARTS,
                (
                    max(expected["detect_s"], expected["actor_s"]),
                    expected["actor_s"],
                    modelled.INVOKE_S + ACTORS * modelled.FAN_OUT_S,
                    times.update_s(ACTORS * fitted.actor.fragment_steps, 0.0),
                ),
                strict=True,
            )
        )
        whole_s = sum(parts.values())
        found[learner] = {
            "seconds": parts,
            "detector_s": expected["detect_s"],
            "overhead_share": (parts[PARTS[0]] + parts[PARTS[2]]) / whole_s,
        }
    return found


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns seconds over seeds. The full Hessian's are extrapolated from columns and smaller matrices."""
    _, large = EIGEN_SIZES
    seconds = {
        "both": [row["both"]["cpu_s"] for row in lines],
        "without_subset": [row["without_subset"]["cpu_s"] for row in lines],
        "without_approximation": [row["parameters"] * row["column_cpu_s"] for row in lines],
        "eigenvalues_of_the_full_hessian": [
            row["eigenvalues_cpu_s"][str(large)] * (row["parameters"] / large) ** 3 for row in lines
        ],
    }
    return {
        "seconds": {name: over_seeds(values) for name, values in seconds.items()},
        "times_as_long": {
            name: over_seeds(a / b for a, b in zip(seconds[name], seconds["both"], strict=True))
            for name in ("without_subset", "without_approximation")
        },
    }


def draw(data: dict[str, Any]) -> Any:
    figure, (rounds, detector) = panels(2, (13, 4.6))
    names, left = list(data["breakdown"]), np.zeros(len(data["breakdown"]))
    for part, colour in zip(PARTS, (ORANGE, BLUE, PURPLE, GREEN), strict=True):
        seconds = np.array(
            [data["breakdown"][name]["p3.2xlarge"]["seconds"][part] for name in names]
        )
        rounds.barh(range(len(names)), seconds, left=left, color=colour, label=part)
        left += seconds
    rounds.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    rounds.invert_yaxis()
    rounds.set(xlabel="seconds", title="(a) A round with 64 warm actors and a p3.2xlarge, modelled")
    rounds.set_xlim(0, 1.45 * left.max())
    rounds.legend(frameon=False, fontsize=9, loc="lower right")
    keys = ("both", "without_subset", "without_approximation")
    dots(detector, range(3), [data["seconds"][key] for key in keys], color=BLUE)
    detector.set_xticks(
        range(3),
        [
            "approximation\nand subset",
            "without a subset\n(16,384 samples)",
            "without approximation\n(extrapolated from\n8 of 69,638 columns)",
        ],
    )
    for place, key in enumerate(keys):
        found = data["seconds"][key]["interquartile_mean"]
        detector.annotate(f"{found:,.1f} s", (place, found), (8, 6), textcoords="offset points")
    detector.set(
        yscale="log",
        xlim=(-0.5, 2.7),
        ylabel="CPU seconds",
        title="(b) The boosting score on Hopper, one thread",
    )
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    shares = [found["p3.2xlarge"]["overhead_share"] for found in data["breakdown"].values()]
    is_saved = all(
        excludes(data["times_as_long"][name], least) > 0
        for name, least in (("without_subset", 5.0), ("without_approximation", 50.0))
    )
    return {
        "low": min(shares),
        "high": max(shares),
        "status": status([is_saved, max(shares) < 0.05]),
    }
