"""The one surrogate loss, and its normalisers.

    loss = - sum_i scale_i A_i sum_t sg(w_it) log pi(y_it | ...)        sg: stop-gradient

`scale_i` is computed once over the whole optimiser step and travels with the rows, so a step may be split into
micro-batches of any rows in any order: the losses and gradients of the parts add up to those of the whole.
"""

import torch
from torch import Tensor

from gmc_core.estimators.checks import (
    Number,
    as_mask,
    check_choice,
    check_number,
    check_shape,
    check_tensor,
    computing_dtype,
)
from gmc_core.estimators.groups import GroupLayout
from gmc_core.typing import Float, Int, Shaped

NORMALIZERS = ("sequence_mean_token_sum", "sequence_mean_token_mean", "token_mean")


def loss_normalizer(
    kind: str,
    mask: Shaped[Tensor, "..."],
    *,
    valid: Shaped[Tensor, "..."] | None = None,
    group_index: Int[Tensor, "..."] | None = None,
    max_length: Number | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "..."]:
    """scale_i of every rollout of an optimiser step; P prompts have a valid rollout, G_p of them in prompt p.

    sequence_mean_token_sum   1 / (P G_p), and / max_length when given (Dr. GRPO, 2503.20783): the theory's gradient.
    sequence_mean_token_mean  1 / (P G_p |y_i|): GRPO (2402.03300).
    token_mean                1 / (all valid response tokens of the step): DAPO (2503.14476).

    Args:
        mask: response tokens of the WHOLE step, (..., G, T), or flat (N, T) with `group_index` (N,).
        valid: rollouts that take part, (..., G) or (N,). Invalid rollouts and rollouts without response tokens get 0.
        max_length: the constant maximal response length in tokens, for sequence_mean_token_sum only.
    Returns:
        (..., G) or (N,) in `dtype`. Slice it with the rows of a micro-batch.
    """
    check_choice("normalizer", kind, NORMALIZERS)
    check_tensor("mask", mask)
    if mask.dim() < 2:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; expected (..., G, T), or (N, T) with group_index.")
    mask = as_mask("mask", mask)
    length = mask.sum(-1)
    counted = length > 0
    if valid is not None:
        counted = counted & as_mask("valid", check_shape("valid", valid, length.shape, "one entry per row of mask"))
    if max_length is not None:
        if kind != "sequence_mean_token_sum":
            raise ValueError(f"max_length only applies to 'sequence_mean_token_sum', got it with {kind!r}; drop it.")
        check_number("max_length", max_length, strictly_above=0)
    layout = GroupLayout(length.shape, group_index, what="the rows of mask")
    if kind == "token_mean":
        tokens = torch.where(counted, length, 0).sum().clamp_min(1)
        return torch.where(counted, 1.0 / tokens.to(dtype), 0.0)
    packed = layout.pack(counted, False)
    group_count = packed.sum(-1, keepdim=True)
    prompts = (group_count > 0).sum()
    scale = 1.0 / (prompts * group_count).clamp_min(1).to(dtype)
    scale = torch.where(counted, layout.unpack(scale.expand_as(packed)), 0.0)
    if kind == "sequence_mean_token_mean":
        return scale / length.clamp_min(1)
    return scale if max_length is None else scale / max_length


def policy_gradient_loss(
    logp: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    advantage: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."],
    *,
    normalizer: Float[Tensor, "..."] | str,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """loss = - sum_i scale_i A_i sum_t sg(w_it) logp_it over response tokens.

    Its gradient is the estimator's (minus, to be minimised); its value is not a measure of progress.

    Args:
        logp: current log-probabilities with gradient (..., T). mask: response tokens (..., T). advantage: (...).
        weight: the weights of an estimator, (..., T), or one per rollout (...).
        normalizer: scale per rollout (...), from `loss_normalizer` over the whole step and sliced with these rows; or
            the name of a normaliser, when these rows are the whole step in the layout (..., G, T).
    Returns:
        the loss, a scalar in float32 (float64 for float64 logp), and the metrics `loss` and `tokens`, both sums: add
        them over micro-batches.

    Tokens that are masked, of weight 0, or of a rollout with scale or advantage 0 contribute exactly 0 to loss and
    gradient, whatever their log-probability (NaN included).
    """
    check_tensor("logp", logp, floating=True)
    check_shape("mask", mask, logp.shape, "it must match logp")
    mask = as_mask("mask", mask)
    rollouts = logp.shape[:-1]
    check_shape("advantage", advantage, rollouts, "one advantage per rollout: the shape of logp without T")
    check_tensor("weight", weight)
    if tuple(weight.shape) == tuple(rollouts):
        weight = weight.unsqueeze(-1)
    else:
        check_shape("weight", weight, logp.shape, "one weight per token (or one per rollout, the shape without T)")
    if isinstance(normalizer, str):
        normalizer = loss_normalizer(normalizer, mask, dtype=computing_dtype(logp))
    check_shape("normalizer", normalizer, rollouts, "one scale per rollout, sliced with the rows of logp")

    dtype = computing_dtype(logp)
    coefficient = normalizer.detach().to(dtype) * advantage.detach().to(dtype)
    coefficient = torch.where(normalizer == 0, 0.0, coefficient).unsqueeze(-1) * weight.detach().to(dtype)
    used = mask & (coefficient != 0)
    loss = -(torch.where(used, coefficient, 0.0) * torch.where(used, logp.to(dtype), 0.0)).sum()
    tokens = (mask & (normalizer != 0).unsqueeze(-1)).sum()
    return loss, {"loss": loss.detach(), "tokens": tokens}
