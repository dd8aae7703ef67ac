"""Weights that need the whole group: group-mass capping and its relatives.

Notation: r_i = exp(log_ratio_i) of rollout i, G the number of counted rollouts of its group,
M = (1/G) sum_i r_i the group mass, c = 1 + epsilon.

Layout, the same for every function here: `log_ratio` (..., G) with the group last (a 1-d tensor is one group), or flat
(N,) with `group_index` (N,), integer labels in any order. `valid` marks the rollouts that take part; a rollout whose
log-ratio is NaN or +inf is left out as well (weight 0, not in M, not in G), and log_ratio = -inf means r = 0.
Weights are detached, have the shape of `log_ratio`, no unit, and are float32 (float64 for float64 input).
"""

import math

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, check_number
from gmc_core.estimators.groups import RatioGroups, saturating_exp
from gmc_core.typing import Float, Int, Shaped

_EPSILON_HINT = "epsilon is the slack of the cap c = 1 + epsilon: 0.2 is the default, 0 caps at the on-policy mass."


def check_epsilon(epsilon: Number) -> float:
    """`epsilon` as a float if it is a finite number >= 0."""
    return check_number("epsilon", epsilon, minimum=0.0, below=math.inf, hint=_EPSILON_HINT)


def log_group_mass(
    log_ratio: Float[Tensor, "..."],
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """log M per group, with M = (1/G) sum_i r_i; never overflows.

    Returns one value per group: (..., G) -> (...), flat -> (K,) in ascending order of the K labels. -inf for a group
    whose ratios are all 0, or that has no counted rollout.
    """
    return RatioGroups(log_ratio, group_index, valid).log_mass.squeeze(-1)


def group_mass(
    log_ratio: Float[Tensor, "..."],
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """The group mass M = (1/G) sum_i r_i, one value per group as in `log_group_mass`; inf above the dtype's range.

    M has expectation 1 when the behaviour policy covers the current one. Source: arXiv 2610.01896, abstract.
    """
    return log_group_mass(log_ratio, group_index=group_index, valid=valid).exp()


def gmc_weights(
    log_ratio: Float[Tensor, "..."],
    epsilon: Number = 0.2,
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Group-mass capping: w_i = r_i min(1, c / M), with c = 1 + epsilon.

    The mean weight of a group never exceeds c, and ratios inside a group are kept. It is `is_weights` while M <= c and
    c times `self_normalized_weights` beyond. Taken from log space: log r = +1000 gives that rollout G c and the others
    nearly 0; log r = -inf for all gives 0. One weight may be as large as G c.

    Source: arXiv 2610.01896, abstract; the reading of the cap as c = 1 + epsilon on the mean (C = G (1 + epsilon) on
    the sum) is our reconstruction, docs/theory.md sections 1 and 3.
    Raises: ValueError for epsilon < 0 or NaN and for shapes that do not fit; TypeError for non-floating log-ratios.
    """
    cap = 1.0 + check_epsilon(epsilon)
    groups = RatioGroups(log_ratio, group_index, valid)
    return groups.layout.unpack(_cap_mass(groups, cap))


def self_normalized_weights(
    log_ratio: Float[Tensor, "..."],
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Self-normalised importance sampling in the group: w_i = r_i / M, mean exactly 1 (0 in a group of mass 0).

    Its bias is of order 1/G even while no ratio is large (docs/theory.md section 6).
    """
    groups = RatioGroups(log_ratio, group_index, valid)
    return groups.layout.unpack(groups.normalized)


def water_filling_weights(
    log_ratio: Float[Tensor, "..."],
    epsilon: Number = 0.2,
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Water-filling: w_i = min(r_i, level), the level such that the mean weight is c when M > c; w_i = r_i otherwise.

    It leaves the same mass uncovered as GMC, mean |r - w| = (M - c)_+, and of all such weights it has the least second
    moment; it does not keep the ratios inside a group. Source: our reconstruction, docs/theory.md section 3.
    Raises: as `gmc_weights`.
    """
    cap = 1.0 + check_epsilon(epsilon)
    groups = RatioGroups(log_ratio, group_index, valid)
    total = cap * groups.count.to(groups.log_ratio.dtype)
    # The level never exceeds the whole capped mass `total`, so larger ratios may be cut there before exp overflows.
    ratio = torch.exp(torch.minimum(groups.log_ratio, torch.log(total)))
    # With the k smallest ratios left alone, the level that brings the sum to `total` is (total - their sum) / (G - k).
    # The sum of min(r, level) is the least of these G lines, hence the level is the largest of the G solutions.
    ascending = torch.sort(torch.where(groups.counted, ratio, torch.inf), -1).values
    below = torch.where(torch.isinf(ascending), 0.0, ascending).cumsum(-1).roll(1, -1)
    below[..., :1] = 0.0
    above = groups.count - torch.arange(ratio.shape[-1], device=ratio.device)
    levels = torch.where(above > 0, (total - below) / above.clamp_min(1), -torch.inf)
    level = levels.amax(-1, keepdim=True) if ratio.shape[-1] else total
    weight = torch.where(groups.log_mass > math.log(cap), torch.minimum(ratio, level), saturating_exp(groups.log_ratio))
    return groups.layout.unpack(torch.where(groups.counted, weight, 0.0))


def mixture_weights(
    log_ratio: Float[Tensor, "..."],
    alpha: Number = 0.2,
    epsilon: Number = 0.2,
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """GMC on tempered ratios: q_i = r_i / (alpha r_i + 1 - alpha), then w_i = q_i min(1, c / mean q).

    q is the ratio to the mixture alpha pi + (1 - alpha) b, at most 1/alpha, so no rollout can own the group; the price
    is a bias that stays as G grows. alpha = 0 is GMC. Ours, not the paper's.
    Raises: ValueError unless 0 <= alpha < 1 and epsilon >= 0.
    """
    alpha = check_alpha(alpha)
    if alpha == 0.0:
        return gmc_weights(log_ratio, epsilon, group_index=group_index, valid=valid)
    groups = RatioGroups(log_ratio, group_index, valid)
    small, large = groups.log_ratio.clamp_max(1.0), groups.log_ratio.clamp_min(1.0)
    log_q = torch.where(
        groups.log_ratio <= 1.0,
        small - torch.log1p(alpha * torch.expm1(small)),  # exactly 0 at r = 1
        -torch.log(alpha + (1.0 - alpha) * torch.exp(-large)),  # tends to log(1/alpha) without overflow
    )
    tempered = torch.where(groups.counted, log_q, torch.nan)
    return groups.layout.unpack(gmc_weights(tempered, epsilon))


def effective_sample_size(
    log_ratio: Float[Tensor, "..."],
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """ESS = (sum r)^2 / sum r^2 per group, in rollouts: between 1 and G, and 0 for a group of mass 0.

    One value per group, ordered as in `log_group_mass`.
    """
    scaled = RatioGroups(log_ratio, group_index, valid).scaled
    squares = (scaled * scaled).sum(-1)
    return scaled.sum(-1).square() / squares.clamp_min(torch.finfo(scaled.dtype).tiny)


def check_alpha(alpha: Number) -> float:
    """`alpha` as a float if 0 <= alpha < 1."""
    hint = "alpha is the share of the current policy in the mixture: 0 is GMC, 1 would drop the correction."
    return check_number("alpha", alpha, minimum=0.0, below=1.0, hint=hint)


def _cap_mass(groups: RatioGroups, cap: Number) -> Tensor:
    return torch.where(groups.log_mass > math.log(cap), cap * groups.normalized, saturating_exp(groups.log_ratio))
