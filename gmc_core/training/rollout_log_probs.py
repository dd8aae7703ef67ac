"""Current log-probs of the rollouts of a batch, each distinct rollout run once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.policy import response_log_probs
from gmc_core.rollouts.trajectories import Batch


def rollout_log_probs(model: Any, batch: Batch, rows_N: Tensor, temperature: float) -> Tensor:
    """(N, T) fp32 log-probs (nats) of the rollouts `rows_N` of the flattened batch; meaningless past a response's end.

    Rollouts of a prompt that say the same are run once; gradients flow to every copy.
    """
    _, G, T = batch.shape
    prompt_N1 = torch.div(rows_N, G, rounding_mode="floor").unsqueeze(-1)
    mask_NT = batch.mask_PGT.flatten(0, 1)[rows_N]
    response_NT = torch.where(mask_NT, batch.response_PGT.flatten(0, 1)[rows_N], 0)
    identity = torch.cat([prompt_N1, mask_NT.sum(-1, keepdim=True), response_NT], dim=-1)
    distinct, copy_N = torch.unique(identity, dim=0, return_inverse=True)
    used, index = torch.unique(distinct[:, 0], return_inverse=True)
    return response_log_probs(
        model,
        batch.prompt_PL[used],
        batch.prompt_mask_PL[used],
        distinct[:, -T:],
        index,
        temperature=temperature,
    )[copy_N]
