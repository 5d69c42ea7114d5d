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
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from tests.learner.learning import COMBINED, DISCRETE, PIXELS, roll

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
        (1.0, 5.0, None),
        (-5.0, 0.0, None),
        (-5.0, -1.0, None),
        (0.0, 0.0, None),
        (math.nan, 1.0, None),
        (-1.0, math.nan, None),
        (math.nan, math.nan, None),
        (-math.inf, 1.0, None),
        (-1.0, math.inf, None),
        (-math.inf, math.inf, None),
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


def small_learner(
    *, network: str = "mlp tanh 8 8", seed: int = 0, scale: float = 0.4, **ppo
) -> Ppo:
    """Returns a learner with small networks of steep random weights, non-neutral moments, and a KL penalty."""
    options = {
        "clip": 0.2,
        "kl_coefficient": 0.3,
        "entropy_coefficient": 0.02,
        "value_coefficient": 0.5,
        "normalize_observations": True,
    } | ppo
    learner = Ppo(LearnerSpec(PpoSettings(kind="ppo", **options), SPACES, seed=seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner.policy = PolicyNetwork(SPACES, network)
        learner.critic = ValueNetwork(SPACES, network)
        with torch.no_grad():
            for one in (learner.policy, learner.critic):
                for parameter in one.parameters():
                    parameter.add_(scale * torch.randn_like(parameter))
    learner.moments.merge(
        np.random.default_rng(seed).normal([0.5, -1.0, 3.0], [1.0, 2.0, 0.5], (500, 3))
    )
    return learner


def random_samples(
    learner: Ppo, count: int, *, seed: int = 0, moved: float = 0.15, advantage_shift: float = 0.0
) -> DetectorSamples:
    """Returns samples of an older policy. Its means lie ``moved`` from the current ones, so that some ratios are
    clipped.
    """
    random = np.random.default_rng(seed)
    observations = random.normal([0.5, -1.0, 3.0], [1.0, 2.0, 0.5], (count, 3)).astype(np.float32)
    means, _, log_std = forward(
        learner, flat_parameters(learner, "total_loss"), "total_loss", observations
    )
    means, log_std = means.detach().numpy(), log_std.detach().numpy()
    old_means = means + moved * random.normal(size=means.shape)
    old_log_stds = log_std + moved * random.normal(size=log_std.shape)
    actions = old_means + np.exp(old_log_stds) * random.normal(size=means.shape)
    log_probs = (
        -0.5 * ((actions - old_means) / np.exp(old_log_stds)) ** 2
        - old_log_stds
        - 0.5 * math.log(2 * math.pi)
    ).sum(1)
    singles = {
        "observations": observations,
        "actions": actions,
        "log_probs": log_probs,
        "advantages": random.normal(size=count) + advantage_shift,
        "value_targets": random.normal(size=count),
        "old_outputs": np.concatenate([old_means, np.tile(old_log_stds, (count, 1))], axis=1),
    }
    return DetectorSamples(**{name: array.astype(np.float32) for name, array in singles.items()})


def networks_of(learner: Ppo, objective: str) -> list[torch.nn.Module]:
    return [learner.policy, learner.critic] if objective == "total_loss" else [learner.policy]


def flat_parameters(learner: Ppo, objective: str) -> torch.Tensor:
    """Returns the differentiated parameters in double precision, ``[P]``."""
    return torch.cat(
        [
            parameter.detach().double().reshape(-1)
            for network in networks_of(learner, objective)
            for parameter in network.parameters()
        ]
    )


def forward(
    learner: Ppo, flat: torch.Tensor, objective: str, observations: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Returns means ``[N, A]``, values ``[N]`` (or None) and log σ ``[A]`` as functions of the flat parameters."""
    named, place = {}, 0
    for prefix, network in zip(("policy", "critic"), networks_of(learner, objective), strict=False):
        for name, parameter in network.named_parameters():
            named[f"{prefix}.{name}"] = flat[place : place + parameter.numel()].view(
                parameter.shape
            )
            place += parameter.numel()
    assert place == len(flat)
    moments = learner.moments
    inputs = torch.from_numpy(
        np.clip(
            (observations.astype(np.float64) - moments.mean) / np.sqrt(moments.variance),
            -10.0,
            10.0,
        )
    )

    def network(prefix: str) -> torch.Tensor:
        hidden = torch.tanh(
            inputs @ named[f"{prefix}.layers.0.weight"].T + named[f"{prefix}.layers.0.bias"]
        )
        hidden = torch.tanh(
            hidden @ named[f"{prefix}.layers.2.weight"].T + named[f"{prefix}.layers.2.bias"]
        )
        return hidden @ named[f"{prefix}.layers.4.weight"].T + named[f"{prefix}.layers.4.bias"]

    values = network("critic")[:, 0] if objective == "total_loss" else None
    return network("policy"), values, named["policy.log_std"]


def oracle(learner: Ppo, samples: DetectorSamples, objective: str):
    """Returns the maximized objective as a function of the flat parameters, written again from its definition."""
    columns = {name: torch.from_numpy(array).double() for name, array in vars(samples).items()}
    settings = learner.settings

    def log_prob(
        flat: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        means, values, log_std = forward(learner, flat, objective, samples.observations)
        distribution = torch.distributions.Normal(means, torch.exp(log_std), validate_args=False)
        return distribution.log_prob(columns["actions"]).sum(1), means, values, log_std

    def value(flat: torch.Tensor) -> torch.Tensor:
        log_probs, means, values, log_std = log_prob(flat)
        advantages = columns["advantages"]
        if objective == "log_prob":
            return (log_probs * advantages).mean()
        ratio = torch.exp(log_probs - columns["log_probs"])
        held = torch.where(
            (advantages > 0) & (ratio > 1 + settings.clip),
            1 + settings.clip,
            torch.where((advantages < 0) & (ratio < 1 - settings.clip), 1 - settings.clip, ratio),
        )
        surrogate = (held * advantages).mean()
        if objective == "surrogate":
            return surrogate
        old_means, old_log_stds = columns["old_outputs"].chunk(2, dim=1)
        old = torch.distributions.Normal(old_means, torch.exp(old_log_stds))
        new = torch.distributions.Normal(means, torch.exp(log_std))
        kl = torch.distributions.kl_divergence(old, new).sum(1).mean()
        entropy = new.entropy().sum(1).mean()
        value_loss = ((values - columns["value_targets"]) ** 2).mean() / 2
        loss = (
            -surrogate
            + settings.value_coefficient * value_loss
            - settings.entropy_coefficient * entropy
            + learner.kl_coefficient * kl
        )
        return -loss

    return value


def exact_extremes(learner: Ppo, samples: DetectorSamples, objective: str) -> tuple[float, float]:
    """Returns the smallest and largest eigenvalue of the full Hessian in double precision."""
    matrix = torch.autograd.functional.hessian(
        oracle(learner, samples, objective), flat_parameters(learner, objective), vectorize=True
    )
    torch.testing.assert_close(matrix, matrix.T, rtol=1e-8, atol=1e-10)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    return float(eigenvalues[0]), float(eigenvalues[-1])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_extremes_equal_those_of_the_exact_hessian(objective: str, seed: int) -> None:
    """Value and sign agree to 10⁻³ with 60 steps, for every objective."""
    learner = small_learner(seed=seed)
    samples = random_samples(learner, 64, seed=seed)
    low, high = exact_extremes(learner, samples, objective)
    assert low < 0.0 < high
    curvature = measured_at(learner, samples, objective, lanczos_steps=60, seed=seed)
    assert curvature.eigenvalue_min == pytest.approx(low, rel=1e-3)
    assert curvature.eigenvalue_max == pytest.approx(high, rel=1e-3)
    assert curvature.convexity_ratio == pytest.approx(-high / low, rel=1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("field", ["observations", "actions", "advantages"])
def test_nan_in_the_samples_is_null(field: str, objective: str) -> None:
    learner = small_learner()
    samples = random_samples(learner, 32)
    getattr(samples, field)[5] = np.nan
    assert measured_at(learner, samples, objective) == UNDEFINED


# Other algorithms, distributions and networks


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("algorithm", "section", "kind"),
    [
        (Ppo, PpoSettings, "ppo"),
        (Impact, ImpactSettings, "impact"),
        (Impala, ImpalaSettings, "impala"),
    ],
)
def test_discrete_actions_and_other_algorithms(
    algorithm, section, kind: str, objective: str
) -> None:
    """Returns the extreme eigenvalues of the same objective's Hessian, differentiated in double precision."""
    settings = section(kind=kind, staleness_max=8, normalize_observations=True)
    learner = algorithm(LearnerSpec(settings, DISCRETE))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        learner.policy = PolicyNetwork(DISCRETE, "mlp tanh 6 6")
        learner.critic = ValueNetwork(DISCRETE, "mlp tanh 6 6")
        for network in (learner.policy, learner.critic):
            for parameter in network.parameters():
                parameter.data.add_(0.4 * torch.randn_like(parameter))
    learner.target = PolicyNetwork(DISCRETE, "mlp tanh 6 6")
    samples = learner.samples(roll(learner.weights(), DISCRETE, steps=24)).arrays
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


def snapshot(learner: Ppo) -> dict[str, np.ndarray]:
    state = learner.get_state()
    arrays = {name: array.copy() for name, array in state.arrays.items()}
    arrays |= {name: np.array(value) for name, value in state.values.items()}
    for which, network in (("policy", learner.policy), ("critic", learner.critic)):
        for name, parameter in network.named_parameters():
            arrays[f"gradient.{which}.{name}"] = np.array(
                "none" if parameter.grad is None else parameter.grad.numpy().copy()
            )
            arrays[f"flags.{which}.{name}"] = np.array([parameter.requires_grad, network.training])
    return arrays | {"generator": torch.get_rng_state().numpy().copy()}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_measuring_disturbs_neither_learner_nor_samples(objective: str) -> None:
    """Parameters, gradients, optimizer, moments, version and the global random generator do not change."""
    learner, samples = updated_learner()
    before = snapshot(learner)
    kept = {name: array.copy() for name, array in vars(samples).items()}
    curvature = measured_at(learner, samples, objective, lanczos_steps=10)
    assert curvature.convexity_ratio is not None
    after = snapshot(learner)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    for name, array in kept.items():
        np.testing.assert_array_equal(getattr(samples, name), array)


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
