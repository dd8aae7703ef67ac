"""Weights of one token at a time.

rho_it is the token ratio, A_i the advantage of the rollout. Inputs: token log-ratios and the mask, of shape (..., T),
and the advantage (...). Weights have the shape of the mask, are 0 outside it, detached, without unit, float32 (float64
for float64 input). A NaN or +inf token ratio poisons its rollout: all its weights are 0.
"""

import math

import torch
from torch import Tensor

from gmc_core.estimators.checks import Number, as_mask, check_number, check_shape, check_tensor, computing_dtype
from gmc_core.estimators.groups import saturating_exp
from gmc_core.estimators.weights_trajectory import check_cap, check_clip, clip_picks_ratio
from gmc_core.typing import Float, Shaped


def ppo_clip_weights(
    token_log_ratio: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."],
    low: Number = 0.2,
    high: Number = 0.2,
) -> Float[Tensor, "..."]:
    """PPO/GRPO clip (arXiv 2402.03300; DAPO, 2503.14476, with 0.2 / 0.28) as a detached weight.

    w_it = rho_it where min(rho A, clip(rho, 1 - low, 1 + high) A) picks rho, else 0: the weight is dropped when A > 0
    and rho > 1 + high, or A < 0 and rho < 1 - low. For A < 0 there is no upper bound.
    """
    check_clip(low, high)
    log_rho, usable = _prepare(token_log_ratio, mask)
    return clip_picks_ratio(log_rho, _per_token(advantage, log_rho), low, high, usable)


def cispo_weights(
    token_log_ratio: Float[Tensor, "..."], mask: Shaped[Tensor, "..."], low: Number = 1.0, high: Number = 0.2
) -> Float[Tensor, "..."]:
    """CISPO (arXiv 2506.13585): w_it = clip(rho_it, 1 - low, 1 + high), every token keeps a gradient.

    low = 1 switches the lower clip off. The paper tunes `high` and does not print it; 0.2 is verl's, and up to 4
    (the range [0, 5]) is in use.
    """
    check_clip(low, high)
    log_rho, usable = _prepare(token_log_ratio, mask)
    return torch.where(usable, saturating_exp(log_rho).clamp(1.0 - low, 1.0 + high), 0.0)


def token_tis_weights(
    token_log_ratio: Float[Tensor, "..."], mask: Shaped[Tensor, "..."], cap: Number = 2.0
) -> Float[Tensor, "..."]:
    """Token-level truncated importance sampling: w_it = min(rho_it, cap)."""
    check_cap(cap)
    log_rho, _ = _prepare(token_log_ratio, mask)
    return saturating_exp(log_rho).clamp_max(cap)


def icepop_weights(
    token_log_ratio: Float[Tensor, "..."], mask: Shaped[Tensor, "..."], low: Number = 0.5, high: Number = 5.0
) -> Float[Tensor, "..."]:
    """IcePop (arXiv 2510.18855): w_it = rho_it where low <= rho_it <= high, else 0."""
    check_range(low, high)
    log_rho, _ = _prepare(token_log_ratio, mask)
    rho = saturating_exp(log_rho)
    return torch.where((rho >= low) & (rho <= high), rho, 0.0)


def m2po_weights(
    token_log_ratio: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."],
    threshold: Number = 0.04,
) -> Float[Tensor, "..."]:
    """M2PO (arXiv 2510.01161): w_it = rho_it, with the fewest extreme tokens masked to bound a second moment.

    Over all tokens of the step, those that move outward (A > 0 and rho > 1, or A < 0 and rho < 1) are masked in
    descending order of (log rho)^2 until the mean of (log rho)^2 over the kept tokens, outward or not, is at most
    `threshold` (nats^2). If masking all of them is not enough, all of them are masked (our reading: tokens that move
    inward are never masked). Tokens of equal (log rho)^2 are masked in storage order.
    """
    check_threshold(threshold)
    log_rho, usable = _prepare(token_log_ratio, mask)
    sign = _per_token(advantage, log_rho)
    second_moment = torch.where(usable, log_rho.square(), 0.0)
    outward = usable & (((sign > 0) & (log_rho > 0)) | ((sign < 0) & (log_rho < 0)))
    candidates = torch.nonzero(outward.reshape(-1)).squeeze(-1)
    moments, order = second_moment.reshape(-1)[candidates].sort(descending=True, stable=True)
    # kept_moment[k]: what is left after the k largest are masked. Summed from the small end and in double, so that
    # neither millions of tokens nor one enormous ratio blur the comparison with the threshold.
    inward_moment = torch.where(outward, 0.0, second_moment).sum(dtype=torch.float64)
    tail = torch.cat([moments.new_zeros(1), moments.flip(0)]).cumsum(0, dtype=torch.float64).flip(0)
    kept_tokens = usable.sum() - torch.arange(len(candidates) + 1, device=log_rho.device)
    enough = inward_moment + tail <= threshold * kept_tokens
    enough[-1] = True
    to_mask = candidates[order[: int(enough.int().argmax())]]
    kept = usable.reshape(-1).clone()
    kept[to_mask] = False
    return torch.where(kept.view_as(usable), saturating_exp(log_rho), 0.0)


def check_range(low: Number, high: Number) -> None:
    """The range [low, high] of accepted ratios: 0 <= low <= high."""
    check_number("low", low, minimum=0.0)
    check_number("high", high, minimum=float(low), hint="low <= high: they bound the accepted token ratios.")


def check_threshold(threshold: Number) -> float:
    """The bound of M2PO on the mean of (log rho)^2, >= 0."""
    return check_number("threshold", threshold, minimum=0.0, hint="It bounds the mean of (log rho)^2, 0.04 by default.")


def _prepare(token_log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Detached token log-ratios, -inf where a token is masked or its rollout poisoned, and the usable tokens."""
    check_tensor("token_log_ratio", token_log_ratio, floating=True)
    check_shape("mask", mask, token_log_ratio.shape, "it must match token_log_ratio")
    mask = as_mask("mask", mask)
    poisoned = (mask & ~(token_log_ratio < torch.inf)).any(-1, keepdim=True)
    usable = mask & ~poisoned
    log_rho = token_log_ratio.detach().to(computing_dtype(token_log_ratio))
    return torch.where(usable, log_rho, -math.inf), usable


def _per_token(advantage: Tensor, log_rho: Tensor) -> Tensor:
    check_shape("advantage", advantage, log_rho.shape[:-1], "one entry per rollout: the token shape without its last")
    return advantage.detach().unsqueeze(-1)
