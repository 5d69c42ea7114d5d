"""The convexity ratio against exact Hessians, quadratics with known eigenvalues, and PyHessian's own density."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.detector.convexity import ConvexityDetector, extreme_eigenvalues
from runtime.detector.interfaces import Detected
from runtime.learner.interfaces import CurvatureProblem, DetectorSamples
from tests.learner.learning import (
    COMBINED,
    DISCRETE,
    MASKED,
    PIXELS,
    SEVERAL_MASKED,
    VECTORS,
    assert_same,
    everything,
    make,
    roll,
    scramble,
    written_out,
)

OBJECTIVES = ("log_prob", "surrogate", "total_loss")
UNDEFINED = Detected()


pytestmark = pytest.mark.usefixtures("one_thread")


class Point(torch.nn.Module):
    """Parameters θ ``[P]``; ignores its inputs."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(start)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.theta


def quadratic(
    eigenvalues: list[float], *, factor: float = 1.0, rotated: bool = True, seed: int = 0
) -> CurvatureProblem:
    """Returns the objective ½·θᵀDθ, to be maximized. D has these eigenvalues in random directions."""
    generator = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    directions = torch.eye(size, dtype=torch.float64)
    if rotated:
        directions, _ = torch.linalg.qr(
            torch.randn(size, size, dtype=torch.float64, generator=generator)
        )
    matrix = (directions * torch.tensor(eigenvalues, dtype=torch.float64)) @ directions.T

    def objective(theta: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return factor * 0.5 * (theta @ matrix @ theta)

    return CurvatureProblem(
        Point(torch.randn(size, generator=generator)), objective, torch.zeros(1), matrix.float()
    )


def measured(problem: CurvatureProblem, lanczos_steps: int = 20) -> Detected:
    return ConvexityDetector("log_prob", 1024, lanczos_steps, seed=0).measure(problem)


@pytest.mark.parametrize(
    ("eigenvalues", "ratio"),
    [
        ([6.0, 1.0, 0.5, -0.25, -1.0, -2.0], 3.0),
        ([2.0, 1.0, 0.25, -0.5, -1.0, -6.0], 1.0 / 3.0),
        ([1000.0, *np.linspace(1e-3, 1.0, 60).tolist(), -4.0], 250.0),
        ([5.0, 4.0, 1.0], None),
        ([-1.0, -5.0], None),
    ],
)
def test_the_ratio_is_that_of_the_maximized_objective(
    eigenvalues: list[float], ratio: float | None
) -> None:
    """R = −λ_max/λ_min. Code that minimizes −L gets the reciprocal, and boosts exactly the wrong rounds.

    Thousandths next to thousands leave no ghosts. A Hessian that is not finite gives nothing.
    """
    found = measured(quadratic(eigenvalues), 40)
    assert found.eigenvalue_max == pytest.approx(max(eigenvalues), rel=1e-3)
    assert found.eigenvalue_min == pytest.approx(min(eigenvalues), rel=1e-3)
    assert found.convexity_ratio == (None if ratio is None else pytest.approx(ratio, rel=1e-3))
    for poison in (math.nan, math.inf):
        assert measured(quadratic(eigenvalues, factor=poison)) == UNDEFINED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("flat_directions", [1, 10, 300])
def test_a_semidefinite_hessian_has_no_ratio(flat_directions: int, sign: float, seed: int) -> None:
    """Some directions are curved with one sign, and the others are flat.

    An eigenvalue of −10⁻⁷ that is only a rounded 0 must not give a ratio of ten million or one ten-millionth. Such a
    ratio would push every other ratio in the scaler's window to the same score.
    """
    curvature = measured(
        quadratic([0.0] * flat_directions + [sign, sign * 2.0, sign * 3.0], seed=seed)
    )
    assert curvature.eigenvalue_max - curvature.eigenvalue_min == pytest.approx(3.0, rel=1e-4)
    assert curvature.convexity_ratio is None


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("lanczos_steps", [2, 3, 20, 60])
def test_few_distinct_eigenvalues_exhaust_the_krylov_space(
    lanczos_steps: int, rotated: bool
) -> None:
    """Two distinct eigenvalues need two steps. Further steps must not create others from rounding errors."""
    problem = quadratic([6.0] * 20 + [-2.0] * 30, rotated=rotated)
    assert extreme_eigenvalues(problem, lanczos_steps, seed=1) == (
        pytest.approx(-2.0, rel=1e-5),
        pytest.approx(6.0, rel=1e-5),
        2,
    )


@pytest.mark.parametrize("seed", range(5))
def test_iterations_end_when_both_eigenvalues_are_known(seed: int) -> None:
    """Extremes far from the bulk are found long before the last iteration, and not before they are accurate."""
    curvature = measured(
        quadratic([*np.linspace(-1.0, 1.0, 200).tolist(), 6.0, -3.0], seed=seed), 100
    )
    assert 4 < curvature.products < 20
    assert curvature.eigenvalue_max == pytest.approx(6.0, rel=0.01)
    assert curvature.eigenvalue_min == pytest.approx(-3.0, rel=0.01)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, MASKED, SEVERAL_MASKED])
@pytest.mark.parametrize("kind", ["ppo", "impact", "impala"])
def test_extremes_are_those_of_the_written_out_objectives_exact_hessian(
    kind: str, spaces: Spaces, objective: str
) -> None:
    """At the present policy, differentiated in double precision. Nothing changes by it."""
    learner = make(kind, spaces, "mlp tanh 6 6", value_coefficient=0.7, entropy_coefficient=0.02)
    learner.kl_coefficient = 0.3
    batch = roll(learner.weights(), spaces, steps=24)
    samples = learner.samples(batch).arrays
    for seed, network in enumerate((learner.policy, learner.critic)):
        scramble(network, 0.4, seed=seed)
    columns = {name: torch.from_numpy(array) for name, array in vars(samples).items()}
    inputs = learner.inputs(samples.observations).double()
    modules = {"policy": copy.deepcopy(learner.policy), "critic": copy.deepcopy(learner.critic)}
    networks = torch.nn.ModuleDict(modules).double()
    named = [
        (name, one.detach())
        for name, one in networks.named_parameters()
        if objective == "total_loss" or name.startswith("policy")
    ]

    def value(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([one.numel() for _, one in named])
        parameters = {
            name: part.view(one.shape) for (name, one), part in zip(named, parts, strict=True)
        }
        policy, critic = (
            torch.func.functional_call(
                networks[one],
                {
                    name.removeprefix(f"{one}."): tensor
                    for name, tensor in parameters.items()
                    if name.startswith(one)
                },
                (inputs,),
            )
            for one in ("policy", "critic")
        )
        return written_out(learner, spaces, columns, policy, critic)[objective]

    start = torch.cat([one.reshape(-1) for _, one in named])
    matrix = torch.autograd.functional.hessian(value, start, vectorize=True)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    generator = torch.get_rng_state()
    problem = learner.curvature_problem(objective, samples)
    learner.update(batch, progress=0.0)
    learner.kl_coefficient = 100.0
    after = everything(learner)
    found = ConvexityDetector(objective, 1024, 60, seed=0).measure(problem)
    scale = float(eigenvalues.abs().max())
    assert [found.eigenvalue_min, found.eigenvalue_max] == pytest.approx(
        [float(eigenvalues[0]), float(eigenvalues[-1])], rel=1e-3, abs=1e-4 * scale
    )
    assert torch.equal(torch.get_rng_state(), generator)
    assert_same(everything(learner), after)


@pytest.mark.parametrize("spaces", [PIXELS, COMBINED])
def test_pixels_have_curvature_and_stay_bytes(spaces: Spaces) -> None:
    learner = make("impala", spaces)
    detector = ConvexityDetector("log_prob", 16, 6, seed=0)
    subset = detector.select(learner.samples(roll(learner.weights(), spaces)).arrays)
    assert subset.observations.dtype == np.uint8 and len(subset.observations) == 16
    one, other = (detector.measure(learner.curvature_problem("log_prob", subset)) for _ in range(2))
    assert one == other and one.convexity_ratio is not None


def test_the_number_of_threads_is_put_back() -> None:
    """Measuring uses one thread and restores the previous number, even if it fails."""
    during = []

    def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        during.append(torch.get_num_threads())
        if len(during) > 1:
            raise RuntimeError("no such luck")
        return -outputs @ targets @ outputs

    torch.set_num_threads(2)
    problem = CurvatureProblem(Point(torch.ones(2)), criterion, torch.zeros(1), torch.eye(2))
    measured(problem)
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError, match="no such luck"):
        measured(problem)
    assert torch.get_num_threads() == 2
    assert during == [1, 1]


def test_the_subset_has_its_size_no_repetition_and_aligned_fields() -> None:
    """The same indices are chosen in every round, from all actors' samples."""
    index = np.arange(100, dtype=np.float32)
    detector, chosen = ConvexityDetector("log_prob", 20, 20, seed=1), []
    for offset in (0, 1000):
        columns = dict.fromkeys(DetectorSamples.__annotations__, index + offset)
        subset = vars(detector.select(DetectorSamples(**columns)))
        chosen += [(array - offset).tolist() for array in subset.values()]
    assert chosen == [chosen[0]] * len(chosen)
    assert len(chosen[0]) == len(set(chosen[0])) == 20
    assert set(chosen[0]) <= set(range(100)) and max(chosen[0]) >= 80
