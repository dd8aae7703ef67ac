"""Floating-point operations of an update, from the shape of the model.

Forward, with multiplication and addition counted as two:

    body  per token     2 x weights of its linear layers
    attention, a row    4 x layers x heads x head_dim x S (S + 1) / 2     S tokens, each sees itself and those before
    head  per response token   2 x hidden x vocabulary

Only the causal half of attention counts, although kernels may compute more, and the head counts where log-probs are
wanted. Norms, rotary embedding, softmax, the optimiser count nothing. Backward is twice the forward.

Model FLOPs of an update: three forwards for the pass with gradient (forward and backward), and one more where a step
does not fit in one micro-batch, because the weights of a group need the log-probs of all of it before (the two passes
of the learner). What is computed again to save memory is not model FLOPs but is hardware FLOPs: the head in the
backward pass when the vocabulary is taken in blocks, the body when layers are recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_check.sizes import Rollouts


@dataclass(frozen=True)
class Forward:
    """Operations of one forward pass over all rollouts: of the layers, and of the output head."""

    body: float
    head: float

    @property
    def total(self) -> float:
        return self.body + self.head


def forward_flops(model: Any, rollouts: Rollouts) -> Forward:
    """Of a Qwen3-like transformers model (linear layers and full causal attention)."""
    config, head = model.config, model.get_output_embeddings()
    linear = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    )
    length = rollouts.prompt + rollouts.response
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * length * (length + 1) / 2
    return Forward(
        body=rollouts.count * (2 * linear * length + attention),
        head=rollouts.count * 2 * head.weight.numel() * rollouts.response,
    )


def update_flops(forward: Forward, *, passes: int, in_blocks: bool, recomputed: bool) -> tuple[float, float]:
    """(model FLOPs, hardware FLOPs) of an update; `passes` 2 when the log-probs were computed once before."""
    model = (3 + (passes == 2)) * forward.total
    return model, model + in_blocks * forward.head + recomputed * forward.body
