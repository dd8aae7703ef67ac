"""Current log-probs of the rollouts of a batch, each distinct rollout run once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.policy import response_log_probs
from gmc_core.rollouts.trajectories import Batch


def rollout_log_probs(
    model: Any,
    batch: Batch,
    rows_N: Tensor,
    temperature: float,
    *,
    prompt_width: int | None = None,
    response_width: int | None = None,
    **options: Any,
) -> Tensor:
    """(N, T) fp32 log-probs (nats) of the rollouts `rows_N` of the flattened batch; meaningless past a response's end.

    Rollouts of a prompt that say the same are run once; gradients flow to every copy. The widths trim prompts and
    responses to so many tokens, T then being `response_width`: they must hold all tokens of these rows. `options` go to
    `response_log_probs`.
    """
    _, G, _ = batch.shape
    L = batch.prompt_PL.shape[-1]
    prompt_N1 = torch.div(rows_N, G, rounding_mode="floor").unsqueeze(-1)
    mask_NT = batch.mask_PGT.flatten(0, 1)[rows_N, :response_width]
    response_NT = torch.where(mask_NT, batch.response_PGT.flatten(0, 1)[rows_N, :response_width], 0)
    identity = torch.cat([prompt_N1, mask_NT.sum(-1, keepdim=True), response_NT], dim=-1)
    distinct, copy_N = torch.unique(identity, dim=0, return_inverse=True)
    used, index = torch.unique(distinct[:, 0], return_inverse=True)
    prompt = slice(L - (L if prompt_width is None else prompt_width), None)
    return response_log_probs(
        model,
        batch.prompt_PL[used, prompt],
        batch.prompt_mask_PL[used, prompt],
        distinct[:, 2:],
        index,
        temperature=temperature,
        mask_NT=torch.arange(mask_NT.shape[1], device=rows_N.device) < distinct[:, 1:2],
        **options,
    )[copy_N]
