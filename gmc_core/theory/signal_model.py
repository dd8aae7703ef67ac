"""Long sequences: bias and variance of a group's gradient when ratio and signal are independent.

One direction of the gradient, f_i = A_i s_i = signal + noise * N(0, 1), independent of the ratio r_i. The group's
estimate is g = (1/G) sum_i w_i f_i and the truth is `signal`. Only the ratios are sampled, the Gaussian is integrated:

    E g = signal E[mean w],    E g^2 = signal^2 E[(mean w)^2] + noise^2 E[sum w^2] / G^2.

Our reconstruction, docs/theory.md section 7 (variance). Independence is a strong simplification: with it
self-normalised weights have no bias at all, because their mean is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gmc_core.theory.ratio_laws import Estimate, RatioLaw

__all__ = ["SignalMoments", "signal_moments"]


@dataclass(frozen=True)
class SignalMoments:
    """Per group: `mean` of g, `second_moment` E g^2, with standard errors; `signal` is the target."""

    mean: Estimate
    second_moment: Estimate
    signal: float

    @property
    def squared_bias(self) -> float:
        """(E g - signal)^2, less the variance of the estimated mean, not below 0."""
        return max((self.mean.value - self.signal) ** 2 - self.mean.standard_error**2, 0.0)

    @property
    def variance(self) -> float:
        return self.second_moment.value - self.mean.value**2

    def mse(self, prompts: float | int = 1) -> float:
        """Mean squared error of the average over `prompts` independent groups."""
        return self.squared_bias + self.variance / prompts


def signal_moments(
    law: RatioLaw,
    weights: Callable[[Tensor], Tensor],
    group_size: int,
    *,
    signal: float = 0.5,
    noise: float = 1.0,
    samples: int = 50_000,
    generator: np.random.Generator,
) -> SignalMoments:
    """Moments of g for groups of `group_size` ratios from `law`; `weights` maps log-ratios (n, G) to weights (n, G)."""
    if group_size < 1 or samples < 2:
        raise ValueError(f"group_size must be >= 1 and samples >= 2, got {group_size} and {samples}.")
    log_ratio = torch.from_numpy(np.log(law.sample((samples, group_size), generator)))
    weight = weights(log_ratio).double()
    if weight.shape != log_ratio.shape:
        raise ValueError(f"weights must keep the shape {tuple(log_ratio.shape)}, got {tuple(weight.shape)}.")
    first = signal * weight.mean(-1)
    second = first.square() + noise**2 * weight.square().sum(-1) / group_size**2

    def estimate(x: Tensor) -> Estimate:
        return Estimate(x.mean().item(), x.std().item() / samples**0.5, samples)

    return SignalMoments(estimate(first), estimate(second), signal)
