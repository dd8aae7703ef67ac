"""Variants that take a weight apart: its mean from its shape, the group cap from its stop-gradient.

Ours, not the paper's, and named so. They act on what an estimator returns, so any rule of the menu can be combined
with them, and micro-batches still work.
"""

import math

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, as_mask, check_shape, check_tensor
from gmc_core.estimators.groups import GroupLayout, RatioGroups
from gmc_core.estimators.weights_group import check_epsilon
from gmc_core.typing import Float, Int, Shaped


def match_group_mean(
    weight: Float[Tensor, "..."],
    reference: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."],
    *,
    group_index: Int[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """`weight` times one factor per group, so that its mean in the group is that of `reference`.

    A weight's mean acts like a step size; this keeps a rule's shape inside the group and takes the mean of another.
    The mean of a group is taken over rollouts, of each rollout's mean over its response tokens.

    Args:
        weight, reference: the weights of two estimators on the same rollouts, (..., G, T), or (N, T) with
            `group_index` (N,). mask: response tokens, same shape.
    Returns:
        the rescaled weights, same shape and dtype. A group whose weights are all 0 stays 0: no factor can lift it.
    """
    check_tensor("weight", weight, floating=True)
    check_shape("reference", reference, weight.shape, "the weights of another rule on the same tokens")
    mask = as_mask("mask", check_shape("mask", mask, weight.shape, "it must match weight"))
    layout = GroupLayout(mask.shape[:-1], group_index, what="the rows of mask")
    length = mask.sum(-1).clamp_min(1)

    def total(values: Tensor) -> Tensor:  # both groups have the same count, so sums compare as means do
        rollout = torch.where(mask, values, 0.0).sum(-1) / length
        return layout.pack(rollout, 0.0).sum(-1, keepdim=True)

    own = total(weight)
    factor = torch.where(own > 0, total(reference) / own, 0.0)
    groups = layout.pack(torch.zeros_like(length, dtype=weight.dtype), 0.0)
    return weight * layout.unpack(factor.expand_as(groups)).unsqueeze(-1)


def undetached_cap_advantages(
    advantage: Float[Tensor, "..."],
    log_ratio: Float[Tensor, "..."],
    scale: Float[Tensor, "..."],
    epsilon: Number = 0.2,
    *,
    group_index: Int[Tensor, "..."] | None = None,
    valid: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Advantages with which GMC's detached weights give the gradient of the objective whose cap is not detached.

    The objective is - sum_i scale_i A_i r_i min(1, c / M) with gradient through every r and through M. Where the cap
    acts, its gradient is GMC's with A_i replaced by

        A_i - (sum_j scale_j A_j r_j / sum_j r_j) / scale_i,

    which for a scale that is equal inside the group subtracts the ratio-weighted mean advantage: a constant reward
    earns nothing, and the mean weight no longer acts. Elsewhere A_i stays. Source: our reconstruction, docs/theory.md
    section 7, extended to normalisers that differ between the rollouts of a group.

    Args:
        advantage, log_ratio, scale: per rollout, (..., G), or (N,) with `group_index`; scale from `loss_normalizer`.
        epsilon: the slack of the cap, c = 1 + epsilon. valid: rollouts that take part in the mass.
    Returns:
        the advantages, same shape; 0 where a rollout has scale 0 or does not count in a capped group.
    """
    cap = 1.0 + check_epsilon(epsilon)
    groups = RatioGroups(log_ratio, group_index, valid)
    check_shape("advantage", advantage, log_ratio.shape, "one entry per rollout, as in log_ratio")
    check_shape("scale", scale, log_ratio.shape, "one entry per rollout, as in log_ratio")
    advantage, scale = groups.layout.pack(advantage, 0.0), groups.layout.pack(scale, 0.0)
    share = groups.scaled / groups.scaled.sum(-1, keepdim=True).clamp_min(torch.finfo(groups.scaled.dtype).tiny)
    mean = (torch.where(groups.counted, scale * advantage, 0.0) * share).sum(-1, keepdim=True)
    used = groups.counted & (scale > 0)
    centered = torch.where(used, advantage - mean / torch.where(used, scale, 1.0), 0.0)
    return groups.layout.unpack(torch.where(groups.log_mass > math.log(cap), centered, advantage))
