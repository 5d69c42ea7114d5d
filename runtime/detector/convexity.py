"""Convexity ratio of the maximized objective, by PyHessian's Hessian-vector products and Lanczos' method.

R = −λ_max / λ_min of the Hessian of the objective that is *maximized* (paper: Nitro §5.2, equation 2). Code minimizes
−L, whose eigenvalues are negated, so its ratio is 1/R and orders rounds in reverse. Here the objective itself is
differentiated, and no sign changes.

Departure: PyHessian 0.1's own `density()` ends in `torch.eig`, which torch has removed, and divides by (norm + 1e-6),
which distorts small Hessians. Only its products are used; the gradient and the tridiagonalization are made here. See
docs/decisions/nitro.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from pyhessian.utils import hessian_vector_product

from runtime.detector.interfaces import Detected
from runtime.learner.interfaces import CurvatureProblem, DetectorSamples

_RELATIVE_NOISE = 1e-6
_TOLERANCE = 1e-3
"""Residual of both extreme Ritz pairs, relative to their values, below which they count as converged."""


class ConvexityDetector:
    """Measures the new policy's R on a subset of the last round's batch.

    The subset has a fixed size and seed.
    """

    def __init__(self, objective: str, subset_size: int, lanczos_steps: int, *, seed: int) -> None:
        self.objective = objective
        self._subset_size = subset_size
        self._lanczos_steps = lanczos_steps
        self.seed = seed

    def select(self, samples: DetectorSamples) -> DetectorSamples:
        """Returns ``subset_size`` samples without replacement, with the same seed in every round; at most all."""
        total = len(samples.advantages)
        if total <= self._subset_size:
            return samples
        chosen = np.sort(
            np.random.default_rng(self.seed).choice(total, self._subset_size, replace=False)
        )
        return DetectorSamples(**{name: array[chosen] for name, array in vars(samples).items()})

    def measure(self, problem: CurvatureProblem) -> Detected:
        """Measures the curvature of the objective at the problem's policy."""
        threads = torch.get_num_threads()
        # The actors run beside it: more threads would take their cores, and change rounding.
        torch.set_num_threads(1)
        try:
            eigenvalue_min, eigenvalue_max, products = extreme_eigenvalues(
                problem, self._lanczos_steps, seed=self.seed
            )
        finally:
            torch.set_num_threads(threads)
        if not (np.isfinite(eigenvalue_min) and np.isfinite(eigenvalue_max)):
            return Detected(products=products)
        return Detected(
            eigenvalue_min,
            eigenvalue_max,
            convexity_ratio(eigenvalue_min, eigenvalue_max),
            products=products,
        )


def convexity_ratio(eigenvalue_min: float, eigenvalue_max: float) -> float | None:
    """Returns R = −λ_max / λ_min if λ_min < 0 < λ_max, otherwise None.

    An eigenvalue below the other's rounding noise counts as 0: in float32, a true zero comes out that small.
    """
    noise = _RELATIVE_NOISE * max(abs(eigenvalue_min), abs(eigenvalue_max))
    if eigenvalue_min < -noise and eigenvalue_max > noise:
        return -eigenvalue_max / eigenvalue_min
    return None


def extreme_eigenvalues(
    problem: CurvatureProblem, lanczos_steps: int, *, seed: int
) -> tuple[float, float, int]:
    """Returns the extreme eigenvalues of ∇²L, by Lanczos with full reorthogonalization from a random start.

    Args:
        problem: The objective L; it is differentiated by its module's parameters ``[P]``.
        lanczos_steps: Most Hessian-vector products; fewer if both eigenvalues converge.
        seed: Seed of the start vector.

    Returns:
        The smallest and the largest, both NaN if the Hessian is not finite, and the number of products.
    """
    parameters = list(problem.module.parameters())
    objective = problem.criterion(problem.module(problem.inputs), problem.targets)
    gradient = _flat(torch.autograd.grad(objective, parameters, create_graph=True))

    def product(vector: torch.Tensor) -> torch.Tensor:
        return _flat(hessian_vector_product([gradient], parameters, [vector])).detach()

    generator = torch.Generator().manual_seed(seed % 2**63)
    start = torch.randn(len(gradient), generator=generator).to(problem.inputs.device)
    tridiagonal = _lanczos(product, start, min(lanczos_steps, len(gradient)))
    if not np.isfinite(tridiagonal).all():
        return float("nan"), float("nan"), len(tridiagonal)
    eigenvalues = np.linalg.eigvalsh(tridiagonal)
    return float(eigenvalues[0]), float(eigenvalues[-1]), len(tridiagonal)


def _flat(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _lanczos(
    product: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int
) -> np.ndarray:
    """Returns the tridiagonal matrix of at most ``steps`` Lanczos iterations, float64.

    It stops early if the Krylov space is exhausted, or the residuals of both extreme Ritz pairs are below `_TOLERANCE`
    (Parlett, The Symmetric Eigenvalue Problem, §13.2: each is then that close to an eigenvalue, though a start vector
    with almost no part in the outermost one may lead to its neighbor).
    """
    basis = torch.empty(steps, len(start), dtype=start.dtype, device=start.device)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    vector = start / start.norm()
    for step in range(steps):
        basis[step] = vector
        image = product(vector)
        diagonal.append(float(image @ vector))
        spanned = basis[: step + 1]
        for _ in range(2):
            image = image - spanned.T @ (spanned @ image)
        norm = float(image.norm())
        if (
            step + 1 == steps
            or not norm > _RELATIVE_NOISE * max(map(abs, diagonal + off_diagonal))
            or _have_converged(diagonal, off_diagonal, norm)
        ):
            break
        off_diagonal.append(norm)
        vector = image / norm
    return _tridiagonal(diagonal, off_diagonal)


def _have_converged(diagonal: list[float], off_diagonal: list[float], residual_norm: float) -> bool:
    eigenvalues, vectors = np.linalg.eigh(_tridiagonal(diagonal, off_diagonal))
    errors = residual_norm * np.abs(vectors[-1])
    return all(errors[i] <= _TOLERANCE * abs(eigenvalues[i]) for i in (0, -1))


def _tridiagonal(diagonal: list[float], off_diagonal: list[float]) -> np.ndarray:
    return np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
