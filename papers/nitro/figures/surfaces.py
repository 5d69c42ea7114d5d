"""Episodic rewards around a policy, along the two leading eigenvectors of its objective's Hessian.

Paper: Nitro §2.2 and §5.2 (Fig. 3 and 8): a grid of perturbations from −1 to 1; eigenvectors by PyHessian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np
import torch
from pyhessian import hessian

from papers.estimates import differences, over_seeds
from papers.nitro.boosting.trainer import Trainer
from papers.nitro.figures.replays import SETTING_NAMES, mean_return
from runtime.ports.learning import DetectorSamples

REACH = 1.0
"""The largest perturbation along an eigenvector, which has norm 1, as in PyHessian."""
COARSE, FINE = (10, 4), (30, 2)
"""Points along a side, and episodes at each point: for every seed, and for the picture."""
HIGH_QUANTILE = 0.9
"""Quantile of the base surface's returns above which a point counts as a region of high reward."""


def directions(
    training: Trainer, samples: DetectorSamples
) -> tuple[torch.Tensor, list[float], list[float]]:
    """Finds the two eigenvectors with the eigenvalues of largest magnitude by PyHessian's power iteration.

    Returns:
        The eigenvectors ``[2, P]``, their eigenvalues, and the share of each vector's square in the actions' spread.
    """
    problem = training.learner.curvature_problem("log_prob", samples)
    torch.manual_seed(0)
    values, vectors = hessian(
        problem.module, problem.criterion, data=(problem.inputs, problem.targets), cuda=False
    ).eigenvalues(maxIter=100, tol=1e-3, top_n=2)
    flat = torch.stack([torch.cat([part.reshape(-1) for part in one]) for one in vectors]).detach()
    names = [name for name, part in problem.module.named_parameters() for _ in range(part.numel())]
    is_spread = torch.tensor([name.endswith("log_std") for name in names])
    return (
        flat,
        [float(one) for one in values],
        [float(one[is_spread].square().sum()) for one in flat],
    )


def surface(
    training: Trainer, samples: DetectorSamples, points: int, episodes: int
) -> dict[str, Any]:
    """Returns mean returns ``[points, points]``, with the same episode seeds everywhere. Keeps the policy unchanged."""
    vectors, eigenvalues, shares = directions(training, samples)
    values = training.learner.trained["policy"].values
    centre, steps = values.clone(), np.linspace(-REACH, REACH, points)
    returns = np.empty((points, points))
    for row, along_first in enumerate(steps):
        for column, along_second in enumerate(steps):
            values.copy_(centre + along_first * vectors[0] + along_second * vectors[1])
            returns[row, column] = mean_return(training, episodes)
    values.copy_(centre)
    return {
        "returns": [[round(float(one), 2) for one in line] for line in returns],
        "eigenvalues": eigenvalues,
        "share_of_spread": shares,
        "at_the_centre": mean_return(training, 16 * episodes),
    }


def both(training: Trainer, samples: DetectorSamples, seed: int) -> dict[str, Any]:
    """Returns the surface for comparison, and for the first seed also the one to draw."""
    found = {"compared": surface(training, samples, *COARSE)}
    return found | ({"drawn": surface(training, samples, *FINE)} if seed == 0 else {})


def compared(
    rows: Sequence[Mapping[str, Mapping[str, Any]]], names: Sequence[str], base: str
) -> dict[str, Any]:
    """Returns each surface's mean return, and its share of points above nine tenths of the base's points.

    Args:
        rows: A seed's surfaces by name.
        base: The surface to compare with.
    """
    high = [np.quantile(row[base]["compared"]["returns"], HIGH_QUANTILE) for row in rows]
    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        grids = [np.array(row[name]["compared"]["returns"]) for row in rows]
        centres = [row[name]["compared"]["at_the_centre"] for row in rows]
        found[name] = {
            "centre": centres,
            "mean": [grid.mean() for grid in grids],
            "share_above_centre": [
                (grid > one).mean() for grid, one in zip(grids, centres, strict=True)
            ],
            "share_high": [(grid > limit).mean() for grid, limit in zip(grids, high, strict=True)],
        }
    return {
        name: {
            **{what: over_seeds(values) for what, values in one.items()},
            "mean_less_base": differences(one["mean"], found[base]["mean"]),
            "share_less_base": differences(one["share_high"], found[base]["share_high"]),
        }
        for name, one in found.items()
    }


def _panels(
    data: Mapping[str, Any], names: Sequence[str], title: str
) -> list[tuple[str, list[list[float]]]]:
    """Returns titles and surfaces of each setting's first seed.

    Args:
        title: Format of a panel's title, with the surface's ``name``, its ``row``, and ``one``, its entry in the row.
    """
    return [
        (
            f"{SETTING_NAMES[setting]}: {title.format(name=name, row=row, one=row[name])}",
            row[name]["drawn"]["returns"],
        )
        for setting in data
        for row in data[setting]["lines"][:1]
        for name in names
    ]


def draw(data: Mapping[str, Any], *, names: Sequence[str], title: str) -> Any:
    """Draws one surface per panel, from blue for low returns to red for high. A row of panels shares its scale."""
    panels, columns = _panels(data, names, title), len(names)
    rows = -(-len(panels) // columns)
    figure = pyplot.figure(figsize=(4.8 * columns, 4.6 * rows))
    for number, (title, returns) in enumerate(panels, 1):
        low, high = _range(panels, number - 1, columns)
        steps = np.linspace(-REACH, REACH, len(returns))
        axes = figure.add_subplot(rows, columns, number, projection="3d")
        axes.plot_surface(
            *np.meshgrid(steps, steps),
            np.array(returns),
            cmap="coolwarm",
            linewidth=0,
            vmin=low,
            vmax=high,
            rcount=len(steps),
            ccount=len(steps),
        )
        axes.set_xlabel("along the second eigenvector", fontsize=8)
        axes.set_ylabel("along the first", fontsize=8)
        axes.set_zlabel("return", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_title(title, fontsize=10)
    figure.subplots_adjust(left=0.02, right=0.95, bottom=0.08, top=0.95, wspace=0.12, hspace=0.14)
    return figure


def _range(panels: Sequence[tuple[str, Any]], number: int, columns: int) -> tuple[float, float]:
    """Returns the color range of a panel's row, from the lowest return to the 99th percentile."""
    start = number // columns * columns
    returns = np.concatenate([np.ravel(one) for _, one in panels[start : start + columns]])
    return float(returns.min()), float(np.quantile(returns, 0.99))


def page(data: Mapping[str, Any], path: Path, *, names: Sequence[str], title: str) -> None:
    """Writes the same surfaces as an interactive page that needs no network.

    Raises:
        SystemExit: plotly is not installed.
    """
    try:
        from plotly.graph_objects import Surface
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        raise SystemExit(
            "the page that can be turned needs plotly: pip install -r "
            "papers/nitro/figures/requirements.txt"
        ) from None
    panels, columns = _panels(data, names, title), len(names)
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows,
        columns,
        specs=[[{"type": "surface"}] * columns] * rows,
        horizontal_spacing=0.02,
        vertical_spacing=0.05,
        subplot_titles=[title for title, _ in panels],
    )
    for number, (_, returns) in enumerate(panels):
        steps = np.linspace(-REACH, REACH, len(returns))
        low, high = _range(panels, number, columns)
        figure.add_trace(
            Surface(
                x=steps,
                y=steps,
                z=np.array(returns),
                cmin=low,
                cmax=high,
                colorscale="RdBu",
                reversescale=True,
                showscale=False,
            ),
            row=number // columns + 1,
            col=number % columns + 1,
        )
    figure.update_scenes(
        xaxis_title="second eigenvector",
        yaxis_title="first eigenvector",
        zaxis_title="return",
        camera_eye={"x": 1.6, "y": 1.6, "z": 1.1},
    )
    figure.update_layout(height=560 * rows, margin={"l": 10, "r": 10, "t": 40, "b": 10})
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
