"""Diagonal Gaussians and the two networks against plain Python."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from runtime.learner.networks import (
    GaussianPolicyNetwork,
    ValueNetwork,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def density(x: float, mean: float, std: float) -> float:
    return math.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2.0 * math.pi))


def integral(function, mean: float, std: float, points: int = 4001) -> float:
    """∫ function by Simpson's rule over ± 12 σ."""
    low, high = mean - 12.0 * std, mean + 12.0 * std
    width = (high - low) / (points - 1)
    weights = [1.0, *([4.0, 2.0] * ((points - 3) // 2)), 4.0, 1.0]
    return width / 3.0 * math.fsum(w * function(low + i * width) for i, w in enumerate(weights))


def gaussians(seed: int, samples: int = 6, size: int = 3) -> tuple[list[list[float]], list[list[float]]]:
    stream = random.Random(seed)
    means = [[stream.uniform(-2, 2) for _ in range(size)] for _ in range(samples)]
    log_stds = [[stream.uniform(-1.5, 1.0) for _ in range(size)] for _ in range(samples)]
    return means, log_stds


def doubles(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_log_prob_is_the_log_of_the_product_of_densities() -> None:
    means, log_stds = gaussians(0)
    actions, _ = gaussians(1)
    result = gaussian_log_prob(doubles(means), doubles(log_stds), doubles(actions))
    assert result.shape == (6,)
    for row in range(6):
        product = math.prod(density(a, m, math.exp(s))
                            for a, m, s in zip(actions[row], means[row], log_stds[row], strict=True))
        assert float(result[row]) == pytest.approx(math.log(product), rel=1e-12)


def test_entropy_is_the_integral_of_minus_p_log_p() -> None:
    means, log_stds = gaussians(2, samples=3, size=2)
    result = gaussian_entropy(doubles(log_stds))
    assert result.shape == (3,)
    for row in range(3):
        expected = 0.0
        for mean, log_std in zip(means[row], log_stds[row], strict=True):
            std = math.exp(log_std)
            expected -= integral(lambda x, m=mean, s=std: density(x, m, s) * math.log(density(x, m, s)), mean, std)
        assert float(result[row]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("old", "new"), [
    ((0.0, 0.0), (0.5, 0.3)), ((1.0, -0.7), (-0.2, 0.4)), ((0.3, 0.6), (0.3, -0.4)), ((-1.0, 0.2), (1.0, 0.2))])
def test_kl_is_the_integral_of_p_old_log_p_old_over_p_new(old: tuple[float, float], new: tuple[float, float]) -> None:
    """In one dimension; the direction counts: KL(old ‖ new)."""
    (old_mean, old_log_std), (new_mean, new_log_std) = old, new
    old_std, new_std = math.exp(old_log_std), math.exp(new_log_std)

    def log_density(x: float, mean: float, std: float) -> float:
        return -0.5 * ((x - mean) / std) ** 2 - math.log(std * math.sqrt(2.0 * math.pi))

    expected = integral(lambda x: density(x, old_mean, old_std) * (
        log_density(x, old_mean, old_std) - log_density(x, new_mean, new_std)), old_mean, old_std)
    result = gaussian_kl(doubles([[old_mean]]), doubles([[old_log_std]]), doubles([[new_mean]]),
                         doubles([[new_log_std]]))
    assert float(result[0]) == pytest.approx(expected, rel=1e-6)


def test_kl_of_several_dimensions_is_the_sum_over_them() -> None:
    """Each dimension by the textbook formula log σ₂/σ₁ + (σ₁² + (μ₁ − μ₂)²)/(2σ₂²) − ½."""
    old_means, old_log_stds = gaussians(3)
    means, log_stds = gaussians(4)
    result = gaussian_kl(doubles(old_means), doubles(old_log_stds), doubles(means), doubles(log_stds))
    assert result.shape == (6,)
    for row in range(6):
        expected = sum(
            math.log(math.exp(s2) / math.exp(s1)) + (math.exp(s1) ** 2 + (m1 - m2) ** 2) / (2 * math.exp(s2) ** 2) - 0.5
            for m1, s1, m2, s2 in zip(old_means[row], old_log_stds[row], means[row], log_stds[row], strict=True))
        assert float(result[row]) == pytest.approx(expected, rel=1e-12)


def test_kl_of_a_gaussian_with_itself_is_zero_and_never_negative() -> None:
    means, log_stds = gaussians(5)
    np.testing.assert_array_equal(
        gaussian_kl(doubles(means), doubles(log_stds), doubles(means), doubles(log_stds)).numpy(), np.zeros(6))
    others, other_log_stds = gaussians(6)
    assert (gaussian_kl(doubles(means), doubles(log_stds), doubles(others), doubles(other_log_stds)) > 0).all()


def test_kl_broadcasts_one_old_log_std_over_all_samples() -> None:
    """The learner keeps the acting policy's log σ once, ``[A]``."""
    old_means, old_log_stds = gaussians(7)
    means, log_stds = gaussians(8)
    once = doubles(old_log_stds[0])
    repeated = once.expand(6, 3)
    np.testing.assert_array_equal(
        gaussian_kl(doubles(old_means), once, doubles(means), doubles(log_stds)).numpy(),
        gaussian_kl(doubles(old_means), repeated, doubles(means), doubles(log_stds)).numpy())


def test_log_probs_average_to_minus_the_entropy() -> None:
    """Monte Carlo, 20 000 draws: the two formulas belong to the same distribution."""
    draws = np.random.default_rng(0).normal(size=(20_000, 2))
    mean, log_std = np.array([0.5, -1.0]), np.array([0.3, -0.8])
    actions = mean + np.exp(log_std) * draws
    log_probs = gaussian_log_prob(doubles(mean).expand(20_000, 2), doubles(log_std).expand(20_000, 2), doubles(actions))
    entropy = float(gaussian_entropy(doubles([log_std.tolist()]))[0])
    assert float(log_probs.mean()) == pytest.approx(-entropy, abs=0.03)


def plain_network(layers: torch.nn.Sequential, inputs: list[float]) -> list[float]:
    """Linear, tanh, linear, tanh, linear in plain Python."""
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    vector = inputs
    for index, layer in enumerate(linear):
        vector = [math.fsum(w * x for w, x in zip(row, vector, strict=True)) + bias
                  for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]
        if index < len(linear) - 1:
            vector = [math.tanh(x) for x in vector]
    assert len(linear) == 3
    return vector


def test_policy_network_gives_means_and_then_log_stds() -> None:
    torch.manual_seed(0)
    network = GaussianPolicyNetwork(4, 2, hidden_sizes=(5, 7))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.5)
    observations = torch.randn(3, 4)
    outputs = network(observations).detach()
    assert outputs.shape == (3, 4) and outputs.dtype == torch.float32
    for row in range(3):
        expected = [*plain_network(network.mean, observations[row].tolist()), *network.log_std.tolist()]
        assert outputs[row].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_value_network_gives_one_number_each() -> None:
    torch.manual_seed(0)
    network = ValueNetwork(4, hidden_sizes=(5, 7))
    observations = torch.randn(3, 4)
    outputs = network(observations).detach()
    assert outputs.shape == (3,) and outputs.dtype == torch.float32
    for row in range(3):
        assert float(outputs[row]) == pytest.approx(plain_network(network.value, observations[row].tolist())[0],
                                                    rel=1e-5, abs=1e-5)


def test_a_single_observation_keeps_its_row() -> None:
    assert GaussianPolicyNetwork(3, 1)(torch.zeros(1, 3)).shape == (1, 2)
    assert ValueNetwork(3)(torch.zeros(1, 3)).shape == (1,)


def test_the_networks_have_two_hidden_layers_of_256() -> None:
    """Paper: Nitro §8.1."""
    shapes = {name: tuple(parameter.shape) for name, parameter in GaussianPolicyNetwork(11, 3).named_parameters()}
    assert shapes == {"log_std": (3,), "mean.0.weight": (256, 11), "mean.0.bias": (256,),
                      "mean.2.weight": (256, 256), "mean.2.bias": (256,),
                      "mean.4.weight": (3, 256), "mean.4.bias": (3,)}
    shapes = [tuple(parameter.shape) for parameter in ValueNetwork(11).parameters()]
    assert shapes == [(256, 11), (256,), (256, 256), (256,), (1, 256), (1,)]


def test_a_new_policy_acts_around_zero_with_unit_spread() -> None:
    torch.manual_seed(0)
    means, log_stds = GaussianPolicyNetwork(11, 3)(torch.randn(50, 11)).detach().chunk(2, dim=-1)
    assert float(means.abs().max()) < 0.2
    np.testing.assert_array_equal(log_stds.numpy(), np.zeros((50, 3)))
