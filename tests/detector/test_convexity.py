"""The convexity ratio against exact Hessians, quadratics with known eigenvalues, and PyHessian's own density."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.detector.convexity import ConvexityDetector, convexity_ratio, extreme_eigenvalues
from runtime.detector.interfaces import Detected
from runtime.learner import LearnerSpec
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.impact import Impact
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.impala import Impala
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.interfaces import CurvatureProblem, DetectorSamples
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from tests.learner.learning import (
    COMBINED,
    DISCRETE,
    PIXELS,
    assert_same,
    distribution_of,
    everything,
    roll,
    scramble,
)

OBSERVATION_SIZE, ACTION_SIZE = 3, 2
SPACES = Spaces((OBSERVATION_SIZE,), action_size=ACTION_SIZE)
OBJECTIVES = ("log_prob", "surrogate", "total_loss")
UNDEFINED = Detected()


pytestmark = pytest.mark.usefixtures("one_thread")


# Quadratics


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


def measured_at(
    learner: ActorCritic,
    samples: DetectorSamples,
    objective: str,
    *,
    lanczos_steps: int = 20,
    seed: int = 0,
) -> Detected:
    """Returns what a detector measures at the learner's current policy."""
    detector = ConvexityDetector(objective, 1024, lanczos_steps, seed=seed)
    return detector.measure(learner.curvature_problem(detector.objective, samples))


def test_the_sign_of_the_ratio() -> None:
    """The sign trap: for the *maximized* objective, R = −λ_max/λ_min, so 6 and −2 give 3.

    Code that minimizes −L and takes the ratio of that Hessian's eigenvalues, 2 and −6, gets 1/3. The reciprocal
    reverses the order of rounds and boosts exactly the wrong ones.
    """
    eigenvalues = [6.0, 1.0, 0.5, -0.25, -1.0, -2.0]
    objective = measured(quadratic(eigenvalues))
    assert objective.convexity_ratio == pytest.approx(3.0, rel=1e-5)
    assert objective.eigenvalue_max == pytest.approx(6.0, rel=1e-5)
    assert objective.eigenvalue_min == pytest.approx(-2.0, rel=1e-5)
    negated = measured(quadratic(eigenvalues, factor=-1.0))
    assert negated.convexity_ratio == pytest.approx(1.0 / 3.0, rel=1e-5)
    assert negated.eigenvalue_max == pytest.approx(2.0, rel=1e-5)
    assert negated.eigenvalue_min == pytest.approx(-6.0, rel=1e-5)


@pytest.mark.parametrize(
    ("eigenvalue_min", "eigenvalue_max", "expected"),
    [
        (-2.0, 6.0, 3.0),
        (-4.0, 1.0, 0.25),
        (-1.0, 1.0, 1.0),
        (0.0, 5.0, None),
        (-5.0, -1.0, None),
        (math.nan, 1.0, None),
        (-1.0, math.inf, None),
    ],
)
def test_ratio_of_two_eigenvalues(
    eigenvalue_min: float, eigenvalue_max: float, expected: float | None
) -> None:
    assert convexity_ratio(eigenvalue_min, eigenvalue_max) == expected


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


def test_an_ill_conditioned_spectrum() -> None:
    """Thousandths next to thousands: full reorthogonalization leaves no ghosts, and the small negative end is found."""
    eigenvalues = [1000.0, *np.linspace(1e-3, 1.0, 60).tolist(), -4.0]
    curvature = measured(quadratic(eigenvalues), 40)
    assert curvature.convexity_ratio == pytest.approx(250.0, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_iterations_end_when_both_eigenvalues_are_known(seed: int) -> None:
    """Extremes far from the bulk are found long before the last iteration, and not before they are accurate."""
    curvature = measured(
        quadratic([*np.linspace(-1.0, 1.0, 200).tolist(), 6.0, -3.0], seed=seed), 100
    )
    assert 4 < curvature.products < 20
    assert curvature.eigenvalue_max == pytest.approx(6.0, rel=0.01)
    assert curvature.eigenvalue_min == pytest.approx(-3.0, rel=0.01)


def test_no_more_iterations_than_allowed() -> None:
    assert measured(quadratic(np.linspace(-2.0, 6.0, 400).tolist()), 7).products == 7


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_hessian_that_is_not_finite_is_null(poison: float) -> None:
    assert measured(quadratic([6.0, 1.0, -2.0], factor=poison)) == UNDEFINED


# Networks


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_is_the_written_out_one_at_the_present_policy(objective: str) -> None:
    settings = PpoSettings(
        kind="ppo",
        clip=0.1,
        kl_coefficient=0.3,
        entropy_coefficient=0.02,
        value_coefficient=0.7,
        normalize_observations=True,
    )
    learner = Ppo(LearnerSpec(settings, SPACES))
    samples = learner.samples(roll(learner.weights(), SPACES, steps=40)).arrays
    scramble(learner.policy, 0.03)
    scramble(learner.critic, 0.03)
    columns = {name: torch.from_numpy(array) for name, array in vars(samples).items()}
    inputs, advantages = learner.inputs(samples.observations), columns["advantages"]
    policy = distribution_of(SPACES, learner.policy(inputs))
    log_probs = policy.log_prob(columns["actions"])
    ratios = torch.exp(log_probs - columns["log_probs"])
    surrogate = torch.minimum(ratios * advantages, ratios.clip(0.9, 1.1) * advantages).mean()
    old = distribution_of(SPACES, columns["old_outputs"])
    expected = {
        "log_prob": (log_probs * advantages).mean(),
        "surrogate": surrogate,
        "total_loss": surrogate
        - 0.7 * ((learner.critic(inputs) - columns["value_targets"]) ** 2).mean() / 2
        + 0.02 * policy.entropy().mean()
        - 0.3 * torch.distributions.kl_divergence(old, policy).mean(),
    }[objective]
    problem = learner.curvature_problem(objective, samples)
    value = problem.criterion(problem.module(problem.inputs), problem.targets)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
    for field in ("observations", "actions", "advantages"):
        getattr(samples, field)[5] = np.nan
        assert measured_at(learner, samples, objective) == UNDEFINED


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("spaces", [SPACES, DISCRETE])
@pytest.mark.parametrize(
    ("algorithm", "section", "kind"),
    [
        (Ppo, PpoSettings, "ppo"),
        (Impact, ImpactSettings, "impact"),
        (Impala, ImpalaSettings, "impala"),
    ],
)
def test_extremes_equal_those_of_the_exact_hessian(
    algorithm, section, kind: str, spaces: Spaces, objective: str
) -> None:
    """The same objective's Hessian, differentiated in double precision."""
    settings = section(kind=kind, staleness_max=8, normalize_observations=True)
    learner = algorithm(LearnerSpec(settings, spaces, "mlp tanh 6 6"))
    for seed, network in enumerate(learner.networks().values()):
        scramble(network, 0.4, seed=seed)
    samples = learner.samples(roll(learner.weights(), spaces, steps=24)).arrays
    problem = learner.curvature_problem(objective, samples)
    module = problem.module.double()
    names, start = zip(
        *((name, parameter.detach()) for name, parameter in module.named_parameters()), strict=True
    )
    sizes = [parameter.numel() for parameter in start]

    def value(flat: torch.Tensor) -> torch.Tensor:
        parts = [part.view(one.shape) for part, one in zip(flat.split(sizes), start, strict=True)]
        outputs = torch.func.functional_call(
            module, dict(zip(names, parts, strict=True)), (problem.inputs.double(),)
        )
        return problem.criterion(outputs, problem.targets)

    matrix = torch.autograd.functional.hessian(
        value, torch.cat([one.reshape(-1) for one in start]), vectorize=True
    )
    eigenvalues = torch.linalg.eigvalsh(matrix)
    curvature = measured_at(learner, samples, objective, lanczos_steps=60)
    scale = float(eigenvalues.abs().max())
    assert curvature.eigenvalue_min == pytest.approx(
        float(eigenvalues[0]), rel=1e-3, abs=1e-4 * scale
    )
    assert curvature.eigenvalue_max == pytest.approx(
        float(eigenvalues[-1]), rel=1e-3, abs=1e-4 * scale
    )


@pytest.mark.parametrize(("spaces", "network"), [(PIXELS, "conv"), (COMBINED, "combined")])
def test_pixels_have_curvature_and_stay_bytes(spaces: Spaces, network: str) -> None:
    learner = Impala(
        LearnerSpec(
            ImpalaSettings(kind="impala", normalize_observations=spaces.is_combined),
            spaces,
            network,
        )
    )
    detector = ConvexityDetector("log_prob", 16, 6, seed=0)
    subset = detector.select(learner.update(roll(learner.weights(), spaces), progress=0.0).samples)
    assert subset.observations.dtype == np.uint8 and subset.observations.shape == (
        16,
        *spaces.observation_shape,
    )
    curvature = detector.measure(learner.curvature_problem("log_prob", subset))
    assert curvature.convexity_ratio is not None
    assert detector.measure(learner.curvature_problem("log_prob", subset)) == curvature


def test_a_problem_stands_by_itself_while_the_learner_goes_on() -> None:
    """The problem is solved in a thread next to the learner's."""
    learner, samples = updated_learner()
    detector = ConvexityDetector("total_loss", 1024, 10, seed=0)
    expected = detector.measure(learner.curvature_problem("total_loss", samples))
    problem = learner.curvature_problem("total_loss", samples)
    learner.update(roll(learner.weights(), SPACES), progress=0.0)
    learner.kl_coefficient = 100.0
    assert detector.measure(problem) == expected
    assert detector.measure(learner.curvature_problem("total_loss", samples)) != expected


# The learner is not disturbed


def updated_learner() -> tuple[Ppo, DetectorSamples]:
    """Returns a full-size learner after one update, with that update's samples."""
    learner = Ppo(
        LearnerSpec(
            PpoSettings(
                kind="ppo",
                epochs=1,
                minibatch_steps=32,
                kl_coefficient=0.1,
                normalize_observations=True,
            ),
            SPACES,
        )
    )
    batch = roll(learner.weights(), SPACES)
    return learner, learner.update(batch, progress=0.0).samples


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_measuring_disturbs_neither_learner_nor_samples(objective: str) -> None:
    """Parameters, gradients, optimizer, moments, version and the global random generator do not change."""
    learner, samples = updated_learner()
    before, generator = everything(learner), torch.get_rng_state()
    gradients = learner.trained["policy"].gradient.clone()
    kept = {name: array.copy() for name, array in vars(samples).items()}
    curvature = measured_at(learner, samples, objective, lanczos_steps=10)
    assert curvature.convexity_ratio is not None
    assert_same(everything(learner), before)
    assert_same(vars(samples), kept)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(learner.trained["policy"].gradient, gradients)


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


# The subset


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
