"""The smallest exact case: one prompt, two outcomes, a scalar gradient; every moment is a binomial sum in fp64.

Our reconstruction, docs/theory.md section 6. `enumerable.exact_moments` runs the fp32 estimators themselves; these
closed forms resolve biases far below fp32 rounding (GMC's decays exponentially in G).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ScalarMoments", "TwoOutcomes"]

CLOSED_FORMS = ("gmc", "tic_truncate", "tic_mask", "snis", "is", "water_filling", "uncorrected")


@dataclass(frozen=True)
class ScalarMoments:
    """bias = E g - grad J (signed), second_moment = E g^2, variance = Var g of one group, excess = E(M - c)_+."""

    bias: float
    second_moment: float
    variance: float
    excess: float

    def mse(self, prompts: float | int = 1) -> float:
        """Mean squared error of the average over `prompts` independent groups."""
        return self.bias**2 + self.variance / prompts


@dataclass(frozen=True)
class TwoOutcomes:
    """Outcome 1 (reward 1) has probability `current` = p under pi and `behavior` = q < p under b; fixed `baseline`.

    One logit: the score is 1 - p on outcome 1 and -p on outcome 0, grad J = p (1 - p).
    """

    current: float = 0.6
    behavior: float = 0.3
    baseline: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.behavior < self.current < 1:
            raise ValueError(
                f"TwoOutcomes needs 0 < behavior < current < 1, got behavior {self.behavior}, current {self.current}: "
                "name the outcome whose probability grew outcome 1."
            )

    @property
    def ratios(self) -> tuple[float, float]:
        """(r_1, r_0) = (p / q, (1 - p) / (1 - q))."""
        return self.current / self.behavior, (1 - self.current) / (1 - self.behavior)

    @property
    def chi_square(self) -> float:
        r1, r0 = self.ratios
        return self.behavior * r1**2 + (1 - self.behavior) * r0**2 - 1

    @property
    def gradient(self) -> float:
        return self.current * (1 - self.current)

    def moments(self, estimator: str, group_size: int, epsilon: float | int = 0.2) -> ScalarMoments:
        """Exact moments of g = (1/G) sum w_i A_i s_i, summing over the number K ~ Bin(G, q) of successes."""
        if estimator not in CLOSED_FORMS:
            raise ValueError(f"no two-outcome closed form for {estimator!r}; known: {', '.join(CLOSED_FORMS)}.")
        successes = torch.arange(group_size + 1, dtype=torch.float64)
        prob = self._log_binomial(group_size, successes).exp()
        share = successes / group_size
        r1, r0 = self.ratios
        mass, cap = share * r1 + (1 - share) * r0, 1 + epsilon
        w1, w0 = self._weights(estimator, share, mass, cap)
        p, beta = self.current, self.baseline
        g = share * w1 * (1 - beta) * (1 - p) + (1 - share) * w0 * beta * p
        # bias summed as E[g - g_IS], which vanishes term by term where the weights are r: no cancellation of large sums
        unbiased = share * r1 * (1 - beta) * (1 - p) + (1 - share) * r0 * beta * p
        second = float(prob @ g**2)
        return ScalarMoments(
            bias=float(prob @ (g - unbiased)),
            second_moment=second,
            variance=second - float(prob @ g) ** 2,
            excess=float(prob @ (mass - cap).clamp(min=0)),
        )

    def fixed_bias(self, estimator: str, epsilon: float | int = 0.2) -> float:
        """Bias of the estimators that look at one rollout: -(p - c q)(1 - beta)(1 - p) for tic_truncate and
        -p (1 - beta)(1 - p) for tic_mask when r_1 > c (0 otherwise), whatever G is."""
        lost = {"tic_truncate": self.current - (1 + epsilon) * self.behavior, "tic_mask": self.current}
        if estimator not in lost:
            raise ValueError(f"fixed_bias knows tic_truncate and tic_mask, got {estimator!r}.")
        changed = self.ratios[0] > 1 + epsilon
        return -lost[estimator] * (1 - self.baseline) * (1 - self.current) if changed else 0.0

    def decay_rate(self, epsilon: float | int = 0.2) -> float:
        """kl(q* || q), q* = (c - r_0) / (r_1 - r_0): GMC's bias decays like exp(-G kl(q* || q))."""
        r1, r0 = self.ratios
        q, reached = self.behavior, (1 + epsilon - r0) / (r1 - r0)
        if reached >= 1:
            return math.inf  # the cap never binds
        return reached * math.log(reached / q) + (1 - reached) * math.log((1 - reached) / (1 - q))

    def snis_constant(self) -> float:
        """lim G * bias of self-normalised weights: v grad J - Cov_b(r, r A s)."""
        r1, r0 = self.ratios
        p, q, beta = self.current, self.behavior, self.baseline
        second = q * r1**2 * (1 - beta) * (1 - p) + (1 - q) * r0**2 * beta * p
        return self.chi_square * self.gradient - (second - self.gradient)

    def _log_binomial(self, n: int, k: Tensor) -> Tensor:
        choose = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        return choose + k * math.log(self.behavior) + (n - k) * math.log1p(-self.behavior)

    def _weights(self, estimator: str, share: Tensor, mass: Tensor, cap: float) -> tuple[Tensor, Tensor]:
        r1, r0 = (torch.full_like(share, r) for r in self.ratios)
        if estimator == "gmc":
            shrink = (cap / mass).clamp(max=1)
            return r1 * shrink, r0 * shrink
        if estimator == "snis":
            return r1 / mass, r0 / mass
        if estimator == "tic_truncate":
            return r1.clamp(max=cap), r0.clamp(max=cap)
        if estimator == "tic_mask":
            return r1 * (r1 <= cap), r0 * (r0 <= cap)
        if estimator == "water_filling":  # r_0 < 1 < c: only outcome 1 is lowered, until the mean is c
            level = (cap - (1 - share) * r0) / share.clamp(min=1e-300)
            return torch.minimum(r1, torch.where(mass > cap, level, r1)), r0
        return (r1, r0) if estimator == "is" else (torch.ones_like(r1), torch.ones_like(r0))
