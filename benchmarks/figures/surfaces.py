"""Episodic rewards around a policy, along the two leading eigenvectors of its objective's Hessian.

Paper: Nitro §2.2 and §5.2 (Fig. 3 and 8): a grid of perturbations from −1 to 1; eigenvectors by PyHessian.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot  # noqa: E402
import numpy as np
import torch
from pyhessian import hessian

from benchmarks.boosting.trainer import Trainer
from benchmarks.figures import replays
from runtime.ports.learning import DetectorSamples

REACH = 1.0
"""The largest perturbation: along an eigenvector of norm 1, as PyHessian has them."""
COARSE, FINE = (10, 4), (30, 2)
"""Points along a side and episodes at each: for every seed, and for the picture."""
HIGH_QUANTILE = 0.9
"""Of the returns on the surface that the others are compared with: what is above counts as a region of high reward."""


def directions(training: Trainer, samples: DetectorSamples) -> tuple[torch.Tensor, list[float], list[float]]:
    """The two eigenvectors with the eigenvalues of largest magnitude, ``[2, P]``, by PyHessian's power iteration.

    Returns:
        Also the eigenvalues, and which share of each vector's square is in the spread of the actions.
    """
    problem = training.learner.curvature_problem("log_prob", samples)
    torch.manual_seed(0)
    values, vectors = hessian(problem.module, problem.criterion, data=(problem.inputs, problem.targets),
                              cuda=False).eigenvalues(maxIter=100, tol=1e-3, top_n=2)
    flat = torch.stack([torch.cat([part.reshape(-1) for part in one]) for one in vectors]).detach()
    names = [name for name, part in problem.module.named_parameters() for _ in range(part.numel())]
    is_spread = torch.tensor([name.endswith("log_std") for name in names])
    return flat, [float(one) for one in values], [float(one[is_spread].square().sum()) for one in flat]


def surface(training: Trainer, samples: DetectorSamples, points: int, episodes: int) -> dict[str, Any]:
    """Mean returns ``[points, points]``, everywhere over the same episodes' seeds; the policy stays as it is."""
    vectors, eigenvalues, shares = directions(training, samples)
    values = training.learner.trained["policy"].values
    centre, steps = values.clone(), np.linspace(-REACH, REACH, points)
    returns = np.empty((points, points))
    for row, along_first in enumerate(steps):
        for column, along_second in enumerate(steps):
            values.copy_(centre + along_first * vectors[0] + along_second * vectors[1])
            returns[row, column] = replays.mean_return(training, episodes)
    values.copy_(centre)
    return {"returns": [[round(float(one), 2) for one in line] for line in returns], "eigenvalues": eigenvalues,
            "share_of_spread": shares, "at_the_centre": replays.mean_return(training, 16 * episodes)}


def both(training: Trainer, samples: DetectorSamples, seed: int) -> dict[str, Any]:
    """The surface that is compared, and of the first seed the one that is drawn."""
    found = {"compared": surface(training, samples, *COARSE)}
    return found | ({"drawn": surface(training, samples, *FINE)} if seed == 0 else {})


def compared(rows: Sequence[Mapping[str, Mapping[str, Any]]], names: Sequence[str], base: str) -> dict[str, Any]:
    """Mean return on each surface, and the share of it that returns more than nine tenths of the base's points do.

    Args:
        rows: By name the surfaces of a seed.
        base: The surface that the others are compared with.
    """
    grids = {name: [np.array(row[name]["compared"]["returns"]) for row in rows] for name in names}
    high = [np.quantile(grid, HIGH_QUANTILE) for grid in grids[base]]
    means = {name: np.array([grid.mean() for grid in grids[name]]) for name in names}
    shares = {name: np.array([(grid > limit).mean() for grid, limit in zip(grids[name], high, strict=True)])
              for name in names}
    centres = {name: np.array([row[name]["compared"]["at_the_centre"] for row in rows]) for name in names}
    better = {name: [(grid > centre).mean() for grid, centre in zip(grids[name], centres[name], strict=True)]
              for name in names}
    return {name: {"centre": replays.over_seeds(centres[name]), "share_above_centre": replays.over_seeds(better[name]),
                   "mean": replays.over_seeds(means[name]), "share_high": replays.over_seeds(shares[name]),
                   "mean_less_base": replays.over_seeds(means[name] - means[base]),
                   "share_less_base": replays.over_seeds(shares[name] - shares[base])} for name in names}


def draw(panels: Sequence[tuple[str, Sequence[Sequence[float]]]], path: Path, *, columns: int) -> None:
    """One surface a panel, high returns red and low ones blue; colours mean the same in a row of panels."""
    rows = -(-len(panels) // columns)
    figure = pyplot.figure(figsize=(4.8 * columns, 4.6 * rows))
    for number, (title, returns) in enumerate(panels, 1):
        low, high = _range(panels, number - 1, columns)
        steps = np.linspace(-REACH, REACH, len(returns))
        axes = figure.add_subplot(rows, columns, number, projection="3d")
        axes.plot_surface(*np.meshgrid(steps, steps), np.array(returns), cmap="coolwarm", linewidth=0,
                          vmin=low, vmax=high, rcount=len(steps),
                          ccount=len(steps))
        axes.set_xlabel("along the second eigenvector", fontsize=8)
        axes.set_ylabel("along the first", fontsize=8)
        axes.set_zlabel("return", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_title(title, fontsize=10)
    figure.subplots_adjust(left=0.02, right=0.95, bottom=0.08, top=0.95, wspace=0.12, hspace=0.14)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _range(panels: Sequence[tuple[str, Any]], number: int, columns: int) -> tuple[float, float]:
    """The lowest and the highest return in a panel's row; of the highest hundredth the lowest."""
    start = number // columns * columns
    returns = np.concatenate([np.ravel(one) for _, one in panels[start:start + columns]])
    return float(returns.min()), float(np.quantile(returns, 0.99))


def page(panels: Sequence[tuple[str, Sequence[Sequence[float]]]], path: Path, *, columns: int) -> None:
    """The same surfaces on a page of their own that needs no network, to be turned with the mouse.

    Raises: SystemExit: plotly is not installed.
    """
    try:
        from plotly.graph_objects import Surface
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        raise SystemExit("the page that can be turned needs plotly: pip install -r "
                         "benchmarks/figures/requirements.txt") from None
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows, columns, specs=[[{"type": "surface"}] * columns] * rows, horizontal_spacing=0.02,
                           vertical_spacing=0.05, subplot_titles=[title for title, _ in panels])
    for number, (_, returns) in enumerate(panels):
        steps = np.linspace(-REACH, REACH, len(returns))
        low, high = _range(panels, number, columns)
        figure.add_trace(
            Surface(x=steps, y=steps, z=np.array(returns), cmin=low, cmax=high, colorscale="RdBu", reversescale=True,
                    showscale=False), row=number // columns + 1, col=number % columns + 1)
    figure.update_scenes(xaxis_title="second eigenvector", yaxis_title="first eigenvector", zaxis_title="return",
                         camera_eye={"x": 1.6, "y": 1.6, "z": 1.1})
    figure.update_layout(height=560 * rows, margin={"l": 10, "r": 10, "t": 40, "b": 10})
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
