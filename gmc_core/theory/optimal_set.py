"""The optimal set of capped weights for one group, and what singles out the proportional member (GMC).

With r the ratios of a group, M their mean and c = 1 + epsilon: over W = {w >= 0, mean w <= c} the least distortion
D(w) = mean |r - w| is (M - c)_+, reached for M > c exactly on the polytope {0 <= w <= r, mean w = c}. Our
reconstruction, docs/theory.md section 3 (Proposition 2 and "why proportional").
"""

from __future__ import annotations

import torch
from torch import Tensor

from gmc_core.typing import Bool, Float

__all__ = ["distortion", "in_optimal_set", "kl_from_ratio", "optimal_line", "worst_shrink"]


def distortion(ratio: Float[Tensor, "... G"], weight: Float[Tensor, "... G"]) -> Float[Tensor, ...]:
    """D(w) = (1/G) sum_i |r_i - w_i|: times A S it bounds the bias of the gradient with weights w."""
    return (ratio - weight).abs().mean(-1)


def in_optimal_set(
    ratio: Float[Tensor, "... G"], weight: Float[Tensor, "... G"], epsilon: float = 0.2, tolerance: float = 1e-5
) -> Bool[Tensor, ...]:
    """Whether w is among the minimisers of D over W: w = r while M <= c, else 0 <= w <= r with mean exactly c."""
    cap = 1 + epsilon
    between = ((weight >= -tolerance) & (weight <= ratio + tolerance)).all(-1)
    target = ratio.mean(-1).clamp_max(cap)
    return between & ((weight.mean(-1) - target).abs() <= tolerance)


def worst_shrink(ratio: Float[Tensor, "... G"], weight: Float[Tensor, "... G"]) -> Float[Tensor, ...]:
    """max_i (r_i - w_i) / r_i, the largest share taken from any one rollout (over rollouts with r > 0)."""
    share = torch.where(ratio > 0, (ratio - weight) / ratio, -torch.inf)
    return share.amax(-1)


def kl_from_ratio(ratio: Float[Tensor, "... G"], weight: Float[Tensor, "... G"]) -> Float[Tensor, ...]:
    """(1/G) sum_i [w_i log(w_i / r_i) - w_i + r_i] >= 0: generalised KL divergence of w from r, for r > 0."""
    return (torch.xlogy(weight, weight / ratio) - weight + ratio).mean(-1)


def optimal_line(
    ratio: Float[Tensor, " G"], first: Float[Tensor, " G"], second: Float[Tensor, " G"], steps: int = 101
) -> tuple[Float[Tensor, " N"], Float[Tensor, "N G"]]:
    """The straight line from `first` (position 0) through `second` (position 1) as far as it stays in 0 <= w <= r.

    Returns the positions (N,) and weights (N, G). Both points must lie in the box; with equal means, as for two members
    of the optimal set, every weight on the line has that mean too.
    """
    step = second - first
    if bool(((first < 0) | (first > ratio + 1e-6) | (second < 0) | (second > ratio + 1e-6)).any()):
        raise ValueError("optimal_line needs two weights with 0 <= w <= r; take them from gmc_weights and the like")
    if not bool((step.abs() > 1e-9).any()):
        raise ValueError("optimal_line needs two different weights; the cap is not active, so both equal the ratios")
    room = torch.where(step > 0, (ratio - first) / step, torch.where(step < 0, -first / step, torch.inf))
    position = torch.linspace(0, float(room.min()), steps, dtype=ratio.dtype)
    return position, first + position.unsqueeze(-1) * step
