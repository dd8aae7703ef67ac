"""Laws of the trajectory ratio r = pi/b: exact excesses of one ratio, and the excess of the group mass by simulation.

Our reconstruction, docs/theory.md sections 4 and 6. Lognormal ratios model long sequences (the log-ratio is a sum over
tokens), Lomax ratios heavy tails. E(M - c)_+ has no closed form for them: `mass_excess` estimates it by conditional
Monte Carlo, which stays accurate where plain sampling would see no exceedance at all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

__all__ = [
    "Estimate",
    "GroupSizeNeeded",
    "LognormalRatio",
    "LomaxRatio",
    "RatioLaw",
    "group_size_needed",
    "mass_excess",
]

_CHUNK = 4_000_000  # ratios drawn at once


class RatioLaw(ABC):
    """A continuous law on r >= 0 with E r = 1 under b."""

    @property
    @abstractmethod
    def chi_square(self) -> float:
        """v = Var r, possibly infinite."""

    @abstractmethod
    def survival(self, level):
        """P(r > level); level a number or an array."""

    @abstractmethod
    def tail_mean(self, level):
        """E[r 1{r > level}]; level a number or an array."""

    @abstractmethod
    def sample(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Independent ratios."""

    def truncate_excess(self, epsilon: float | int = 0.2) -> float:
        """E(r - c)_+, exact: what truncating one rollout loses, whatever the group size."""
        return float(self.tail_mean(1 + epsilon) - (1 + epsilon) * self.survival(1 + epsilon))

    def mask_excess(self, epsilon: float | int = 0.2) -> float:
        """E[r 1{r > c}], exact: what masking one rollout loses, whatever the group size."""
        return float(self.tail_mean(1 + epsilon))


@dataclass(frozen=True)
class LognormalRatio(RatioLaw):
    """log r ~ N(-s2/2, s2) under b, with s2 = `log_variance`; under pi it is N(+s2/2, s2).

    Two unit Gaussians at distance D give s2 = D^2.
    """

    log_variance: float | int

    def __post_init__(self) -> None:
        if not self.log_variance > 0:
            raise ValueError(f"log_variance must be > 0, got {self.log_variance}.")

    @classmethod
    def from_kl(cls, kl: float | int) -> LognormalRatio:
        """The law with KL(pi || b) = `kl` nats."""
        return cls(2 * kl)

    @property
    def kl(self) -> float:
        return self.log_variance / 2

    @property
    def chi_square(self) -> float:
        return math.expm1(self.log_variance)

    def survival(self, level):
        return norm.sf((np.log(level) + self.log_variance / 2) / self.log_variance**0.5)

    def tail_mean(self, level):
        return norm.sf((np.log(level) - self.log_variance / 2) / self.log_variance**0.5)

    def sample(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        return np.exp(self.log_variance**0.5 * generator.standard_normal(shape) - self.log_variance / 2)


@dataclass(frozen=True)
class LomaxRatio(RatioLaw):
    """r = 1 + D (X - 1) with X Lomax of mean 1: P(X > x) = (1 + x / (alpha - 1))^-alpha.

    `tail_index` alpha > 1 (infinite chi-square for alpha <= 2); `drift` D in (0, 1] grows linearly in the parameters.
    """

    tail_index: float | int
    drift: float | int = 1.0

    def __post_init__(self) -> None:
        if not self.tail_index > 1:
            raise ValueError(f"tail_index must be > 1, or the ratio has no mean; got {self.tail_index}.")
        if not 0 < self.drift <= 1:
            raise ValueError(f"drift must lie in (0, 1], or ratios become negative; got {self.drift}.")

    @property
    def chi_square(self) -> float:
        alpha = self.tail_index
        return self.drift**2 * alpha / (alpha - 2) if alpha > 2 else math.inf

    def _x(self, level):
        return np.maximum(1 + (np.asarray(level, dtype=float) - 1) / self.drift, 0.0)

    def survival(self, level):
        return (1 + self._x(level) / (self.tail_index - 1)) ** -self.tail_index

    def tail_mean(self, level):
        x, scale = self._x(level), self.tail_index - 1
        beyond = (1 + x / scale) ** -self.tail_index
        excess = (1 + x / scale) ** -scale  # E(X - x)_+
        return (1 - self.drift) * beyond + self.drift * (x * beyond + excess)

    def sample(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        uniform = 1.0 - generator.random(shape)  # in (0, 1]: 0 would give an infinite ratio
        x = (self.tail_index - 1) * (uniform ** (-1 / self.tail_index) - 1)
        return 1 + self.drift * (x - 1)

    def one_big_jump(self, group_size: float | int, epsilon: float | int = 0.2) -> float:
        """E(r - 1 - G eps)_+: what E(M - c)_+ tends to for G >> 1/eps^2, slope 1 - alpha in G. Section 6."""
        level = 1 + group_size * epsilon
        return float(self.tail_mean(level) - level * self.survival(level))


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean with its standard error over `samples` independent draws (inf, 0: exact)."""

    value: float
    standard_error: float
    samples: float | int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % normal interval, cut at 0: the estimated quantity is not negative."""
        half = norm.ppf(0.975) * self.standard_error
        return max(self.value - half, 0.0), self.value + half


def mass_excess(
    law: RatioLaw, group_size: int, epsilon: float | int = 0.2, *, samples: int = 20_000, generator: np.random.Generator
) -> Estimate:
    """E(M - c)_+ for a group of G i.i.d. ratios, by the conditional estimator of Asmussen and Kroese (2006).

    E(M - c)_+ = E[(r_G - u)_+ 1{r_G > max of the others}], u = G c - sum of the others, because any of the G ratios may
    be the largest. Drawing the other G - 1 and integrating r_G exactly gives psi = E[r 1{r > k}] - u P(r > k) with
    k = max(u, max of the others): the tail needs no luck. G = 1 is exact.
    """
    if group_size < 1 or samples < 2:
        raise ValueError(f"group_size must be >= 1 and samples >= 2, got {group_size} and {samples}.")
    if epsilon < 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon}.")
    cap = 1 + epsilon
    if group_size == 1:
        return Estimate(float(law.tail_mean(cap) - cap * law.survival(cap)), 0.0, math.inf)
    draws = []
    block = max(1, _CHUNK // group_size)
    for start in range(0, samples, block):
        others = law.sample((min(block, samples - start), group_size - 1), generator)
        missing = group_size * cap - others.sum(1)
        level = np.maximum(others.max(1), missing)
        draws.append(law.tail_mean(level) - missing * law.survival(level))
    psi = np.concatenate(draws)
    return Estimate(float(psi.mean()), float(psi.std(ddof=1) / samples**0.5), samples)


@dataclass(frozen=True)
class GroupSizeNeeded:
    """Interpolated `group_size` at which E(M - c)_+ = tolerance, and the 95 % interval left by the sampling error."""

    group_size: float | int
    low: float
    high: float
    samples: int


def group_size_needed(
    law: RatioLaw,
    tolerance: float | int = 0.1,
    epsilon: float | int = 0.2,
    *,
    samples: int = 6000,
    growth: float | int = 1.4,
    largest: int = 20_000,
    generator: np.random.Generator,
) -> GroupSizeNeeded:
    """Smallest G with E(M - c)_+ <= `tolerance`: a geometric scan, then log-log interpolation of its last two points.

    Returns 1 when a single ratio already meets the tolerance. RuntimeError if `largest` does not.
    """
    if not tolerance > 0 or not growth > 1:
        raise ValueError(f"tolerance must be > 0 and growth > 1, got {tolerance} and {growth}.")
    size, before = 1, None
    while True:
        now = mass_excess(law, size, epsilon, samples=samples, generator=generator)
        if now.value <= tolerance:
            break
        before, smaller = now, size
        size = max(size + 1, math.ceil(size * growth))
        if size > largest:
            raise RuntimeError(f"E(M - c)_+ is still {now.value:.3g} > {tolerance} at G = {smaller}; raise `largest`.")
    if before is None:
        return GroupSizeNeeded(1.0, 1.0, 1.0, samples)
    y0, y1, x0, x1 = np.log(before.value), np.log(now.value), math.log(smaller), math.log(size)
    slope = (x1 - x0) / (y1 - y0)
    log_size = x0 + slope * (math.log(tolerance) - y0)
    error = max(before.standard_error / before.value, now.standard_error / now.value)
    half = norm.ppf(0.975) * abs(slope) * error
    return GroupSizeNeeded(math.exp(log_size), math.exp(log_size - half), math.exp(log_size + half), samples)
