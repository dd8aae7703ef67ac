"""Which delay, group size and response length keep the bias of group-mass capping below a target, at a measured drift?

A chain of three steps, docs/theory.md sections 4 and 6; each is an assumption that a run can break:

1. Drift. KL(pi || b) of a whole response grows as powers of its length and of the delay, k^p T^q. p is measured (1 for
   a random walk of the parameters, 2 for a steady direction); q = 1 if all tokens drift alike.
2. Law. log r is normal, so that r is lognormal with Var log r = 2 KL: a sum over many tokens. All prompts drift alike,
   and the G rollouts of a group are independent.
3. Bias. What the cap takes away is E(M - c)+ of a mass of 1: the bias in units of A S at most (section 3), and the
   share of the gradient that is lost if what is lost points like the rest.

Notebook 07 compares steps 1 to 3 with two language models. A log-ratio whose law is skewed to the left, as measured
there, has less E(M - c)+ than its variance says; its KL(pi || b), which is about the right tail, says it better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gmc_core.theory.ratio_laws import Estimate, LognormalRatio, mass_excess
from gmc_core.theory.slopes import log_slope

__all__ = ["Choice", "Drift", "largest_delay", "largest_kl", "largest_length", "plan", "predicted_excess"]

SAMPLES = 4000  # Monte-Carlo draws of a predicted excess: a relative error of one or two per cent
LEAST_KL, MOST_KL = 1e-4, 30.0  # nats; between them `largest_kl` looks


@dataclass(frozen=True)
class Drift:
    """KL(pi || b) of a response in nats: `kl` at `delay` updates and `length` tokens, elsewhere by powers of both.

    `delay_power` has no default, because it differs: 1 for a random walk, 2 for a steady direction, and it is not the
    same early and late in a run.
    """

    kl: float | int
    delay_power: float | int
    delay: float | int = 1
    length: float | int = 1
    length_power: float | int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"Drift.{name} is {value}; expected a finite number above 0")

    @classmethod
    def from_log_ratio_std(cls, std: float | int, *, delay_power: float | int, **at: float | int) -> Drift:
        """From the standard deviation of log r of whole responses, what the metric log_ratio_std logs: KL = std^2 / 2.

        That holds for a normal log r; it overstates KL(pi || b) if the law is skewed to the left. `at`: delay, length
        and length_power, as in the constructor.
        """
        return cls(std**2 / 2, delay_power, **at)

    @classmethod
    def fit(
        cls, delays: Sequence[float | int], kls: Sequence[float | int], *, length: float | int = 1,
        length_power: float | int = 1,
    ) -> Drift:  # fmt: skip
        """Through KLs measured at several delays and one length: least squares of their logarithms.

        ValueError for fewer than two delays or a KL that is not positive (leave it out: it is below its noise).
        """
        x, y = np.asarray(delays, dtype=float), np.asarray(kls, dtype=float)
        if len(x) != len(y) or len(set(x.tolist())) < 2 or not (x > 0).all() or not (y > 0).all():
            raise ValueError(
                f"Drift.fit got delays {x.tolist()} and KLs {y.tolist()}; expected a positive KL at each of two or "
                "more positive delays"
            )
        power = log_slope(x, y)
        middle = math.exp(np.log(x).mean())
        return cls(math.exp(np.log(y).mean()), power, delay=middle, length=length, length_power=length_power)

    def at(self, delay: float | int, length: float | int | None = None) -> float:
        """KL(pi || b) of a response of `length` tokens (default: that of the measurement), `delay` updates old."""
        length = self.length if length is None else length
        return float(self.kl * (delay / self.delay) ** self.delay_power * (length / self.length) ** self.length_power)


def predicted_excess(
    kl: float | int, group_size: int, epsilon: float | int = 0.2, *, samples: int = SAMPLES, seed: int = 0
) -> Estimate:
    """E(M - c)+ of `group_size` lognormal ratios with KL(pi || b) = `kl` nats; 0 for kl = 0.

    The same seed gives the same draws at every KL, so that curves are smooth and can be inverted.
    """
    if kl == 0:
        return Estimate(0.0, 0.0, math.inf)
    law = LognormalRatio.from_kl(kl)
    return mass_excess(law, group_size, epsilon, samples=samples, generator=np.random.default_rng(seed))


def largest_kl(
    bias: float | int, group_size: int, epsilon: float | int = 0.2, *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """The KL (nats a response) up to which E(M - c)+ stays at `bias` or below: bisection, to a relative 0.1 %.

    Between 0.0001 and 30 nats. ValueError for a bias that is not between 0 and 1: all mass is 1.
    """
    if not 0 < bias < 1:
        raise ValueError(f"bias is {bias}; expected a share of the gradient, between 0 and 1")
    low, high = math.log(LEAST_KL), math.log(MOST_KL)
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        found = predicted_excess(math.exp(middle), group_size, epsilon, samples=samples, seed=seed).value
        low, high = (middle, high) if found <= bias else (low, middle)
    return math.exp(0.5 * (low + high))


def largest_delay(
    drift: Drift, bias: float | int, group_size: int, length: float | int | None = None, epsilon: float | int = 0.2,
    **sampling: int,
) -> float:  # fmt: skip
    """The delay in updates, not rounded, up to which the predicted bias stays at `bias` or below."""
    kl = largest_kl(bias, group_size, epsilon, **sampling)
    return float(drift.delay * (kl / drift.at(drift.delay, length)) ** (1 / drift.delay_power))


def largest_length(
    drift: Drift, bias: float | int, group_size: int, delay: float | int, epsilon: float | int = 0.2, **sampling: int
) -> float:
    """The response length in tokens, not rounded, up to which the predicted bias stays at `bias` or below."""
    kl = largest_kl(bias, group_size, epsilon, **sampling)
    return float(drift.length * (kl / drift.at(delay)) ** (1 / drift.length_power))


@dataclass(frozen=True)
class Choice:
    """One setting: its KL, the predicted `excess` E(M - c)+, and whether that `keeps` the bias at the target or below.

    It keeps it if the upper end of the excess's 95 % interval of simulation does.
    """

    delay: float | int
    length: float | int
    group_size: int
    kl: float
    excess: Estimate
    keeps: bool


def plan(
    drift: Drift,
    bias: float | int,
    *,
    delays: Sequence[float | int],
    group_sizes: Sequence[int],
    lengths: Sequence[float | int] | None = None,
    epsilon: float | int = 0.2,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[Choice, ...]:
    """Every combination of delay, length and group size, with the bias of GMC that the measured drift lets expect.

    Args:
        drift: measured; see `Drift`. A delay or length far from those measured is an extrapolation of a power law.
        bias: the target, as E(M - c)+: a share of the gradient (steps 2 and 3 of the module's text).
        lengths: tokens of a response; default that of the measurement.
        epsilon: c = 1 + epsilon, the cap of GMC.
        samples, seed: of the simulation of E(M - c)+.
    Returns: delays outermost, group sizes innermost.

    >>> drift = Drift.from_log_ratio_std(0.3, delay_power=1.5, delay=4, length=200)
    >>> [c.delay for c in plan(drift, 0.05, delays=(4, 16, 64), group_sizes=(16,)) if c.keeps]
    [4, 16]
    """
    if not 0 < bias < 1:
        raise ValueError(f"bias is {bias}; expected a share of the gradient, between 0 and 1")
    choices = []
    for delay in delays:
        for length in (drift.length,) if lengths is None else lengths:
            kl = drift.at(delay, length)
            for size in group_sizes:
                excess = predicted_excess(kl, size, epsilon, samples=samples, seed=seed)
                choices.append(Choice(delay, length, size, kl, excess, bool(excess.interval[1] <= bias)))
    return tuple(choices)
