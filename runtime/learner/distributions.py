"""Distributions over actions, with the same methods, on packed parameters ``[N, D]``: the outputs of `PolicyNetwork`.

Results are ``[N]``; entropy and KL(old ‖ new) are in nats. A WEIGHTS message holds a distribution's ``name``.

`slopes` returns the gradient of a function of log π, entropy and KL by the outputs, ``[N, D]``. The function's
derivatives are ``of_log_probs`` by log π of each sample, ``[N]``, ``of_entropy`` by each sample's entropy, and
``of_kl`` by each sample's KL. ``old`` is not read if ``of_kl`` is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lambda_actor.policy import FORBIDDEN
from lambda_actor.spaces import Spaces
from runtime.learner.fast import compiled

_NEVER = float(FORBIDDEN)


class Gaussian:
    """Diagonal Gaussian over ``A`` numbers: means, then log σ, so ``D`` = 2·A."""

    name = "gaussian"

    @staticmethod
    @compiled
    def log_prob(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns log π(a|s).

        Args:
            outputs: float32 ``[N, D]``.
            actions: float32 ``[N, A]``.
        """
        means, log_stds = outputs.chunk(2, dim=-1)
        scaled = (actions - means) * torch.exp(-log_stds)
        return -(0.5 * scaled.square() + log_stds + 0.5 * math.log(2.0 * math.pi)).sum(-1)

    @staticmethod
    @compiled
    def entropy(outputs: torch.Tensor) -> torch.Tensor:
        _, log_stds = outputs.chunk(2, dim=-1)
        return (log_stds + 0.5 * (math.log(2.0 * math.pi) + 1.0)).sum(-1)

    def kl(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        (old_means, old_log_stds) = old.chunk(2, dim=-1)
        (means, log_stds) = new.chunk(2, dim=-1)
        variance_ratio = torch.exp(2.0 * (old_log_stds - log_stds))
        distance = ((old_means - means) * torch.exp(-log_stds)).square()
        return (0.5 * (variance_ratio + distance - 1.0) + log_stds - old_log_stds).sum(-1)

    @staticmethod
    @compiled
    def slopes(
        outputs: torch.Tensor,
        actions: torch.Tensor,
        old: torch.Tensor,
        of_log_probs: torch.Tensor,
        of_entropy: float,
        of_kl: float,
    ) -> torch.Tensor:
        means, log_stds = outputs.chunk(2, dim=-1)
        inverse_stds = torch.exp(-log_stds)
        weights = of_log_probs.unsqueeze(-1)
        scaled = (actions - means) * inverse_stds
        weighed = weights * scaled
        of_means = weighed * inverse_stds
        of_log_stds = torch.addcmul(of_entropy - weights, weighed, scaled)
        if of_kl != 0.0:
            old_means, old_log_stds = old.chunk(2, dim=-1)
            distances = (means - old_means) * inverse_stds
            ratios = torch.exp(old_log_stds) * inverse_stds
            of_means.addcmul_(distances, inverse_stds, value=of_kl)
            of_log_stds.addcmul_(ratios, ratios, value=-of_kl).addcmul_(
                distances, distances, value=-of_kl
            ).add_(of_kl)
        return torch.cat([of_means, of_log_stds], dim=-1)


class Categorical:
    """Discrete actions 0 … n − 1 with unnormalized logits, so ``D`` = n."""

    name = "categorical"

    @staticmethod
    @compiled
    def log_prob(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns log π(a|s).

        Args:
            outputs: float32 ``[N, D]``.
            actions: int64 ``[N]``.
        """
        return torch.log_softmax(outputs, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        log_probs = torch.log_softmax(outputs, dim=-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        old_log_probs = torch.log_softmax(old, dim=-1)
        log_probs = torch.log_softmax(new, dim=-1)
        return (old_log_probs.exp() * (old_log_probs - log_probs)).sum(-1)

    @staticmethod
    @compiled
    def slopes(
        outputs: torch.Tensor,
        actions: torch.Tensor,
        old: torch.Tensor,
        of_log_probs: torch.Tensor,
        of_entropy: float,
        of_kl: float,
    ) -> torch.Tensor:
        log_probs = torch.log_softmax(outputs, dim=-1)
        probs = log_probs.exp()
        weights = of_log_probs.unsqueeze(-1)
        slopes = (-weights * probs).scatter_add_(-1, actions.unsqueeze(-1), weights)
        if of_entropy != 0.0:
            slopes -= of_entropy * probs * (log_probs - (probs * log_probs).sum(-1, keepdim=True))
        if of_kl != 0.0:
            slopes += of_kl * (probs - torch.softmax(old, dim=-1))
        return slopes


class Categoricals:
    """Several independent choices at once. Each is a `Categorical`, and their logits are concatenated."""

    def __init__(self, counts: Sequence[int]) -> None:
        """Takes the number of values of each choice."""
        self.name = " ".join(["categorical", *map(str, counts)])
        self._counts = list(counts)
        self._choice = Categorical()

    def log_prob(self, outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns log π(a|s).

        Args:
            outputs: float32 ``[N, D]``.
            actions: int64 ``[N, A]``.
        """
        each = map(self._choice.log_prob, self._split(outputs), actions.unbind(-1))
        return torch.stack(list(each), -1).sum(-1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(map(self._choice.entropy, self._split(outputs))), -1).sum(-1)

    def kl(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        each = map(self._choice.kl, self._split(old), self._split(new))
        return torch.stack(list(each), -1).sum(-1)

    def slopes(
        self,
        outputs: torch.Tensor,
        actions: torch.Tensor,
        old: torch.Tensor,
        of_log_probs: torch.Tensor,
        of_entropy: float,
        of_kl: float,
    ) -> torch.Tensor:
        choices = zip(self._split(outputs), actions.unbind(-1), self._split(old), strict=True)
        return torch.cat(
            [self._choice.slopes(*choice, of_log_probs, of_entropy, of_kl) for choice in choices],
            -1,
        )

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns each choice's logits, ``[N, D]`` → ``A`` times ``[N, n]``."""
        return torch.split(outputs, self._counts, -1)


def allowed(outputs: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Returns logits ``[N, D]`` that forbid the actions forbidden in the known logits ``[N, D]`` of the same samples.

    A forbidden logit has slope 0, as its probability is 0.
    """
    return torch.where(known > 0.5 * _NEVER, outputs, _NEVER)


Distribution = Gaussian | Categorical | Categoricals


def make_distribution(spaces: Spaces) -> Distribution:
    """Returns the distribution over the actions of these spaces."""
    if spaces.action_counts:
        return Categoricals(spaces.action_counts)
    return Categorical() if spaces.is_discrete else Gaussian()
