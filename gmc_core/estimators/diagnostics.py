"""What an update reports: group mass, the uncovered excess, effective sample size and tails of the raw ratios.

Everything is computed from the raw log-ratios, before any cap or clip: metrics taken after clipping look tame.
"""

import math

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, as_mask, check_shape, check_tensor
from gmc_core.estimators.groups import RatioGroups, saturating_exp
from gmc_core.estimators.importance_ratios import counted_rollouts
from gmc_core.estimators.metrics import METRICS, Metric
from gmc_core.estimators.weights_group import check_epsilon
from gmc_core.typing import Float, Int, Shaped

__all__ = ["METRICS", "Metric", "group_diagnostics"]


def group_diagnostics(
    log_ratio: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    *,
    epsilon: Number = 0.2,
    valid: Shaped[Tensor, "..."] | None = None,
    group_index: Int[Tensor, "..."] | None = None,
    advantage: Float[Tensor, "..."] | None = None,
    mask: Shaped[Tensor, "..."] | None = None,
) -> dict[str, Tensor]:
    """Scalars that describe the ratios and weights of a step; `METRICS` says what each means.

    Args:
        log_ratio: raw trajectory log-ratios, (..., G) or flat (N,) with `group_index`, NaN where a rollout has none.
        weight: of the estimator in use, one per rollout, or per token (..., G, T) together with `mask`.
        epsilon: c = 1 + epsilon is the level of capped_fraction and of the excesses, whatever the estimator.
        valid: the rollouts meant to take part, so that those lost to poisoned log-probabilities can be counted.
        advantage: one per rollout; adds zero_advantage_groups.
    Returns:
        0-d tensors, float32 (float64 for float64 input). Finite as soon as one counted rollout has a finite log-ratio,
        but for log_ratio_min, which is -inf when a response has probability 0 now; NaN where there is nothing to
        measure. Groups of mass 0 are left out of log_mass_*, and their ESS is 0.

    The excesses are means over groups of (M - c)+ and of the means in the group of (r - c)+ and r 1{r > c}, so that
    excess_group <= excess_truncate <= excess_mask.
    """
    cap = 1.0 + check_epsilon(epsilon)
    check_tensor("log_ratio", log_ratio, floating=True)
    groups = RatioGroups(log_ratio, group_index, valid)
    counted = counted_rollouts(log_ratio, valid)
    meant = torch.ones_like(counted) if valid is None else as_mask("valid", valid)
    dtype = groups.log_ratio.dtype

    occupied = groups.count.squeeze(-1) > 0
    log_mass = groups.log_mass.squeeze(-1)
    massive = log_mass > -torch.inf
    scaled = groups.scaled
    ess = scaled.sum(-1).square() / scaled.square().sum(-1).clamp_min(torch.finfo(dtype).tiny)
    ratio = saturating_exp(groups.log_ratio).double()
    beyond = groups.log_ratio > math.log(cap)
    count = groups.count.squeeze(-1).clamp_min(1)
    truncated = torch.where(beyond, ratio - cap, 0.0).sum(-1) / count
    masked = torch.where(beyond, ratio, 0.0).sum(-1) / count
    excess = (ratio.sum(-1) / count - cap).clamp_min(0.0)  # not from log_mass: saturated alike, so the order holds
    finite = log_ratio.detach().to(dtype)[counted & torch.isfinite(log_ratio)]
    used_weight = _counted_weights(weight, counted, mask)

    metrics = {
        "log_mass_mean": _mean(log_mass[massive]),
        "log_mass_max": _max(log_mass[massive]),
        "capped_fraction": _mean((log_mass > math.log(cap))[occupied]),
        "weight_mean": _mean(used_weight),
        "weight_max": _max(used_weight),
        "weight_zero_fraction": _mean(used_weight == 0),
        "ess_fraction": _mean((ess / count)[occupied]),
        "log_ratio_mean": _mean(finite),
        "log_ratio_std": (finite - _mean(finite)).square().mean().sqrt(),
        "log_ratio_min": -_max(-log_ratio.detach()[counted]),
        "log_ratio_max": _max(log_ratio.detach()[counted]),
        "excess_group": _mean(excess[occupied]),
        "excess_truncate": _mean(truncated[occupied]),
        "excess_mask": _mean(masked[occupied]),
        "excluded_rollouts": (meant & ~counted).sum(),
    }
    if advantage is not None:
        check_shape("advantage", advantage, log_ratio.shape, "one entry per rollout, as in log_ratio")
        moved = groups.layout.pack(counted & (advantage != 0), False).any(-1)
        metrics["zero_advantage_groups"] = (occupied & ~moved).sum()
    # a mean of saturated ratios may leave float32: hold it at the largest finite number
    limit = torch.finfo(dtype).max
    doubles = {name: value.double() for name, value in metrics.items()}
    return {name: torch.where(torch.isposinf(value), limit, value).to(dtype) for name, value in doubles.items()}


def _counted_weights(weight: Tensor, counted: Tensor, mask: Tensor | None) -> Tensor:
    check_tensor("weight", weight)
    if tuple(weight.shape) == tuple(counted.shape):
        return weight.detach()[counted]
    if mask is None:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}, expected {tuple(counted.shape)}, one per rollout as in "
            "log_ratio; for one per token, pass mask too."
        )
    check_shape("mask", mask, (*counted.shape, *mask.shape[-1:]), "the shape of log_ratio with the tokens added last")
    check_shape("weight", weight, mask.shape, "one weight per token of mask")
    return weight.detach()[as_mask("mask", mask) & counted.unsqueeze(-1)]


def _mean(values: Tensor) -> Tensor:
    """Mean in double, NaN for nothing."""
    return values.double().mean()


def _max(values: Tensor) -> Tensor:
    return values.double().amax() if values.numel() else _mean(values)
