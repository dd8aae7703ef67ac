"""Log-ratios between the current policy and the behaviour policy that sampled a rollout.

Notation: token t of rollout i has current log-probability log pi_it and behaviour log-probability log b_it.
    token       log rho_it = log pi_it - log b_it
    trajectory  log r_i    = sum_t log rho_it        (nats; r_i is the importance ratio of the whole response)
Ratios stay in log space here: exp is taken by the weights, at the last step.
"""

import torch
from torch import Tensor

from gmc_core.estimators.checks import as_mask, check_shape, check_tensor, computing_dtype
from gmc_core.typing import Bool, Float, Shaped

# A sampled token cannot have a behaviour log-probability this low: values below it are fillers for "missing"
# (engines send -9999), and a filler would pin the ratio of the whole trajectory.
MISSING_BELOW = -1e3


def token_log_ratio(
    logp_current: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."], mask: Shaped[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """log rho_it = log pi_it - log b_it per token, 0 where `mask` is 0.

    Args:
        logp_current, logp_behavior: log-probabilities in nats of the sampled tokens, shape (..., T), any float dtype;
            both taken after the same temperature and top-p / top-k.
        mask: True (or 1) on response tokens, same shape.
    Returns:
        float32 (float64 for float64 input), same shape. Differentiable in `logp_current`.

    Masked positions are set to 0 before any arithmetic, so they may hold NaN, infinities or fillers. Under the mask a
    non-finite log-probability, or a behaviour log-probability below -1000 (a filler for "missing"), gives NaN:
    the token has no ratio and its rollout is left out of the group. It is never replaced by a floor.

    Raises:
        TypeError: something is not a floating-point tensor. ValueError: shapes differ, or the mask is not 0/1.
    """
    check_tensor("logp_current", logp_current, floating=True)
    check_tensor("logp_behavior", logp_behavior, floating=True)
    check_shape("logp_behavior", logp_behavior, logp_current.shape, "it must match logp_current, token by token")
    check_shape("mask", mask, logp_current.shape, "it must match logp_current, token by token")
    mask = as_mask("mask", mask)
    dtype = computing_dtype(logp_current, logp_behavior)
    current = masked_logp(logp_current, mask, dtype)
    behavior = masked_logp(logp_behavior, mask, dtype).detach()
    missing = ~torch.isfinite(current) | ~torch.isfinite(behavior) | (behavior < MISSING_BELOW)
    return torch.where(missing, torch.nan, current - behavior)


def trajectory_log_ratio(
    logp_current: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."], mask: Shaped[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """log r_i = sum_t log rho_it over the response tokens: the last dimension is summed, in float32.

    Shapes (..., T) -> (...). NaN marks a rollout that has no ratio: a log-probability that is not finite (or missing)
    under its mask, or no response token at all (a rollout masked out of the loss must not enter its group as r = 1).
    The weights and diagnostics leave such rollouts out of their group and count them.

    The sum is right for long responses too, but its spread grows with length: beyond about one nat of trajectory KL,
    groups of practical size are dominated by one rollout (docs/theory.md section 6).
    """
    log_ratio = token_log_ratio(logp_current, logp_behavior, mask)
    empty = ~as_mask("mask", mask).any(-1)
    return torch.where(empty, torch.nan, log_ratio.sum(-1))


def counted_rollouts(
    log_ratio: Float[Tensor, "..."], valid: Shaped[Tensor, "..."] | None = None
) -> Bool[Tensor, "..."]:
    """True where a rollout takes part in its group: valid, and with a ratio.

    NaN is a poisoned rollout; +inf would need a sampled response of behaviour probability 0, so it is a fault too.
    -inf is legitimate (the current policy gives the response probability 0): r = 0 and the rollout counts.
    """
    check_tensor("log_ratio", log_ratio, floating=True)
    has_ratio = log_ratio < torch.inf  # False for NaN and +inf, True for -inf
    if valid is None:
        return has_ratio
    check_shape("valid", valid, log_ratio.shape, "one entry per rollout")
    return has_ratio & as_mask("valid", valid)


def masked_logp(logp: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Log-probabilities with 0 at masked positions: `where`, because NaN * 0 is NaN."""
    return torch.where(mask, logp.to(dtype), torch.zeros((), dtype=dtype, device=logp.device))
